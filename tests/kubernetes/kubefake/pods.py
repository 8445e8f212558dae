"""One pod on a node: volumes, init containers, containers, the end."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import volumes
from .containers import Container
from .errors import Json
from .objects import now
from .probes import probed
from .volumes import NotReadyError, Paths

if TYPE_CHECKING:
    from .kubelet import Kubelet

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RETRY_S = 0.2
_BACKOFF_S = 10.0


class Pod:
    """Runs one pod."""

    def __init__(self, kubelet: "Kubelet", pod: Json, address: str) -> None:
        self.kubelet = kubelet
        self.uid = str(pod["metadata"]["uid"])
        self.namespace = str(pod["metadata"]["namespace"])
        self.name = str(pod["metadata"]["name"])
        self.spec: Json = pod["spec"]
        self.address = address
        self.folder = kubelet.root / "pods" / self.uid
        self.started = now()
        self.phase = "Pending"
        self.reason = ""
        self.over = asyncio.Event()
        self._ending = asyncio.Event()
        self._killed = False
        self._conditions: dict[str, Json] = {}
        self.folder.mkdir(parents=True)
        self.first = [Container(one, self.folder) for one in self.spec.get("initContainers") or ()]
        self.main = [Container(one, self.folder) for one in self.spec["containers"]]

    @property
    def ended(self) -> bool:
        """Whether all of its processes have ended."""
        return self.over.is_set()

    def container(self, name: str) -> Container | None:
        """One of its containers."""
        return next((one for one in (*self.first, *self.main) if one.name == name), None)

    # ---- its life

    async def run(self) -> None:
        """From the first moment to the last."""
        if self.first:
            for one in self.main:
                one.waits("PodInitializing")
            self.first[0].waits("PodInitializing")
        self.publish()
        try:
            if await self._volumes() and await self._init():
                await asyncio.gather(*(self._lives(one) for one in self.main))
        finally:
            for one in self.first:  # sidecars end after the others
                one.signal(signal.SIGTERM)
        await self._sidecars_end()
        codes = [one.exit_code for one in self.main]
        good = all(code == 0 for code in codes)
        self.phase = "Succeeded" if good else "Failed"
        self.over.set()
        self.publish()

    async def _volumes(self) -> bool:
        told = ""
        while not self._ending.is_set():
            try:
                self.volumes = volumes.folders(
                    self.spec, self.kubelet.store, self.namespace, self.folder, self._object()
                )
            except NotReadyError as exc:
                if str(exc) != told:
                    told = str(exc)
                    self.event("FailedMount", told, warning=True)
                await self._pause(_RETRY_S)
                continue
            return True
        return False

    async def _init(self) -> bool:
        for one in self.first:
            if one.spec.get("restartPolicy") == "Always":
                self.kubelet.spawn(self._lives(one))
                while not (one.ready or self._ending.is_set()):
                    await self._pause(0.01)
                continue
            await self._lives(one)
            if one.exit_code != 0:
                return False
        return not self._ending.is_set()

    async def _sidecars_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.spec.get("terminationGracePeriodSeconds", 30)):
                for one in self.first:
                    await one.stopped.wait()
        for one in self.first:
            one.signal(signal.SIGKILL)

    async def _lives(self, one: Container) -> None:
        """All runs of one container."""
        init = one in self.first
        policy = one.spec.get("restartPolicy") or self.spec["restartPolicy"]
        if init and policy == "Always" and one.spec.get("restartPolicy") is None:
            policy = "OnFailure"
        while not self._ending.is_set():
            if not await self._runs(one):
                return
            again = policy == "Always" or (policy == "OnFailure" and one.exit_code != 0)
            if not again or self._ending.is_set():
                return
            self.publish()
            if one.restarts:
                one.waits(
                    "CrashLoopBackOff", f"back-off 10s restarting failed container={one.name}"
                )
                self.publish()
                await self._pause(_BACKOFF_S)
            else:
                one.last_state = one.state
            one.restarts += 1

    async def _runs(self, one: Container) -> bool:
        """One run, to its end; False where it never began."""
        if not await self._image(one):
            return False
        env = await self._environment(one)
        if env is None:
            return False
        mounts = volumes.mounts(one.spec, self.volumes)
        paths = Paths({**mounts, **dict([one.message_mount()])})
        env = {name: paths.here(value) for name, value in env.items()}
        work = one.spec.get("workingDir")
        folder = Path(paths.here(work)) if work else self.folder / "root"
        folder.mkdir(parents=True, exist_ok=True)
        self.event("Created", "Container created", container=one)
        if await one.start({**self._base(), **env}, folder, paths):
            self.event("Started", "Container started", container=one)
            self.publish()
            if one.spec.get("readinessProbe"):
                self.kubelet.spawn(self._probe(one))
            if self._killed:  # while it was being started
                one.signal(signal.SIGKILL)
            await one.wait()
        else:
            self.event(
                "Failed", str(one.state["terminated"]["message"]), warning=True, container=one
            )
        self.publish()
        return True

    async def _probe(self, one: Container) -> None:
        probe = one.spec["readinessProbe"]
        await self._pause(float(probe.get("initialDelaySeconds") or 0))
        while one.running and not self._ending.is_set():
            good = await probed(probe, one, self.address)
            if good != one.ready and one.running:
                one.ready = good
                self.publish()
            await self._pause(float(probe.get("periodSeconds") or 10))

    def _base(self) -> dict[str, str]:
        """Variables that every container has."""
        shims = self.kubelet.names.shims(self.namespace)
        home = self.folder / "root"
        home.mkdir(exist_ok=True)
        return {
            "PATH": f"{shims}:{os.path.dirname(sys._base_executable)}:{_SYSTEM_PATH}",  # noqa: PTH120
            "HOME": str(home),
            "TMPDIR": str(home),
            "HOSTNAME": self.spec.get("hostname") or self.name,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }

    async def _image(self, one: Container) -> bool:
        image = one.spec["image"]
        while not self._ending.is_set():
            if self.kubelet.has_image(image):
                words = "already present on machine and can be accessed by the pod"
                self.event("Pulled", f'Container image "{image}" {words}', container=one)
                return True
            if image != image.lower() or "//" in image or " " in image:
                one.waits("InvalidImageName", f'Failed to apply default image tag "{image}":'
                          " couldn't parse image name: invalid reference format")  # fmt: skip
                self.event("InspectFailed", one.state["waiting"]["message"], warning=True,
                           container=one)  # fmt: skip
            elif one.spec["imagePullPolicy"] == "Never":
                one.waits("ErrImageNeverPull", f'Container image "{image}" is not present with pull'
                          " policy of Never")  # fmt: skip
            elif one.state.get("waiting", {}).get("reason") == "ErrImagePull":
                one.waits("ImagePullBackOff", f'Back-off pulling image "{image}"')
            else:
                one.waits("ErrImagePull", f'failed to pull and unpack image "{image}": no registry'
                          " is reached from here")  # fmt: skip
                self.event("Failed", f'Failed to pull image "{image}"', warning=True, container=one)
            self.publish()
            await self._pause(1.0)
        return False

    async def _environment(self, one: Container) -> dict[str, str] | None:
        while not self._ending.is_set():
            try:
                return volumes.environment(one.spec, self._object(), self.kubelet.store)
            except NotReadyError as exc:
                one.waits("CreateContainerConfigError", str(exc))
                self.event("Failed", f"Error: {exc}", warning=True, container=one)
                self.publish()
                await self._pause(_RETRY_S)
        return None

    async def _pause(self, seconds: float) -> None:
        """Sleeps, or until the pod ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    # ---- the end

    async def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after the grace period."""
        if not self._ending.is_set():
            self._ending.set()
            for one in self.main:
                if one.running:
                    self.event("Killing", f"Stopping container {one.name}", container=one)
                    one.signal(signal.SIGTERM)
            for one in self.first:
                if one.running and one.spec.get("restartPolicy") != "Always":
                    one.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.over.wait()
        self.kill()

    def kill(self) -> None:
        """Ends every process now."""
        self._killed = True
        self._ending.set()
        for one in (*self.first, *self.main):
            one.signal(signal.SIGKILL)

    # ---- telling

    def _object(self) -> Json:
        """The pod as the server has it, with its address."""
        found = self.kubelet.store.find("pods", self.namespace, self.name)
        pod: Json = found.obj if found is not None else {"metadata": {"namespace": self.namespace}}
        status = {**(pod.get("status") or {}), **self._where()}
        return {**pod, "status": status}

    def _where(self) -> Json:
        host = self.kubelet.host_of(str(self.spec.get("nodeName")))
        return {
            "hostIP": host, "hostIPs": [{"ip": host}],
            "podIP": self.address, "podIPs": [{"ip": self.address}], "startTime": self.started,
        }  # fmt: skip

    def publish(self) -> None:
        """Writes its status."""
        if self.phase == "Pending" and any(
            one.running or one.exit_code is not None for one in self.main
        ):
            self.phase = "Running"
        ready = all(one.ready for one in self.main) and not self.ended
        over = f"Pod{self.phase}" if self.phase == "Failed" else "PodCompleted"
        why = over if self.ended else "" if ready else "ContainersNotReady"
        self._condition("PodReadyToStartContainers", good=not self.ended)
        self._condition("Initialized", good=all(
            one.exit_code == 0 or (one.spec.get("restartPolicy") == "Always" and one.running)
            or self.ended for one in self.first))  # fmt: skip
        self._condition("Ready", good=ready, reason=why)
        self._condition("ContainersReady", good=ready, reason=why)

        def change(pod: Json) -> None:
            if pod["metadata"]["uid"] != self.uid:
                return
            status = pod["status"]
            scheduled = [c for c in status.get("conditions") or () if c["type"] not in
                         self._conditions]  # fmt: skip
            status |= {"phase": self.phase, **self._where()}
            status["conditions"] = [*self._conditions.values(), *scheduled]
            status["containerStatuses"] = [one.status() for one in self.main]
            if self.first:
                status["initContainerStatuses"] = [one.status() for one in self.first]

        self.kubelet.write("pods", self.namespace, self.name, change)

    def _condition(self, kind: str, *, good: bool, reason: str = "") -> None:
        word = "True" if good else "False"
        before = self._conditions.get(kind)
        if before is not None and before["status"] == word and before.get("reason", "") == reason:
            return
        moment = before["lastTransitionTime"] if before and before["status"] == word else now()
        made: Json = {
            "type": kind, "status": word, "lastProbeTime": None, "lastTransitionTime": moment,
        }  # fmt: skip
        if reason:
            made["reason"] = reason
        self._conditions = {**self._conditions, kind: made}

    def event(
        self,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        container: Container | None = None,
    ) -> None:
        """Tells what happened to it."""
        path = f"spec.containers{{{container.name}}}" if container else ""
        self.kubelet.tell(self, reason, message, warning=warning, path=path)


Change = Callable[[Json], object]
