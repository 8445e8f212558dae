"""The kubelets of all nodes: pods that are given to a node run, until they are deleted."""

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from .errors import Json
from .events import Events, reference
from .logs import Synthetic
from .names import Names
from .objects import Objects
from .pods import Pod
from .store import Change

# Pods listen at ports of their own choice, so no other fake has their addresses, be it in this
# process or, as a rule, in another.
_ADDRESSES = itertools.count(os.getpid() * 2500)


class Kubelet:
    """Runs the pods of every node."""

    def __init__(self, objects: Objects, events: Events, root: Path, images: set[str]) -> None:
        self.objects = objects
        self.store = objects.store
        self.root = root
        self.images = images
        self.names = Names(self.store, root)
        self.pods: dict[str, Pod] = {}
        self.synthetic: dict[tuple[str, str], Synthetic] = {}
        self._events = events
        self._tasks: set[asyncio.Task[Any]] = set()
        self.store.listen(self._changed)

    # ---- for pods

    def has_image(self, image: str) -> bool:
        """Whether it is on the nodes."""
        return image in self.images

    def host_of(self, node: str) -> str:
        """A node's address."""
        found = self.store.find("nodes", "", node)
        rows = (found.obj.get("status") or {}).get("addresses") or () if found else ()
        return next((row["address"] for row in rows if row["type"] == "InternalIP"), "127.0.0.1")

    def write(
        self, table: str, namespace: str, name: str, change: Callable[[Json], object]
    ) -> None:
        """Writes a status."""
        self.objects.mutate(table, namespace, name, change)

    def tell(self, pod: Pod, reason: str, message: str, *, warning: bool, path: str) -> None:
        """An event of a pod."""
        found = self.store.find("pods", pod.namespace, pod.name)
        if found is None or found.obj["metadata"]["uid"] != pod.uid:
            return
        about = reference(found.obj)
        if path:
            about["fieldPath"] = path
        self._events.tell(
            about, reason, message, warning=warning, component="kubelet",
            host=str(pod.spec.get("nodeName")),
        )  # fmt: skip

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs something beside."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a pod of the fake broke", "exception": exc}
            )

    # ---- what the server says

    def _changed(self, change: Change) -> None:
        if change.table != "pods":
            return
        pod = change.entry.obj
        uid = pod["metadata"]["uid"]
        mine = self.pods.get(uid)
        if change.type == "DELETED":
            if mine is not None:
                mine.kill()
                self.spawn(self._forget(mine))
            return
        ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if mine is None:
            if pod["spec"].get("nodeName") and not ended:
                self._begin(pod)
            return
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            was = change.before.obj["metadata"] if change.before else {}
            if was.get("deletionGracePeriodSeconds") != grace:
                self.spawn(self._end(mine, float(grace)))

    def _begin(self, pod: Json) -> None:
        number = next(_ADDRESSES)
        address = f"127.{64 + number // 62500 % 190}.{number // 250 % 250}.{number % 250 + 1}"
        if pod["spec"].get("hostNetwork"):
            address = self.host_of(pod["spec"]["nodeName"])
        made = Pod(self, pod, address)
        self.pods[made.uid] = made
        self.spawn(self._run(made))

    async def _run(self, pod: Pod) -> None:
        await asyncio.sleep(0)  # the server's own change is over first
        await pod.run()
        found = self.store.find("pods", pod.namespace, pod.name)
        if found is not None and found.obj["metadata"].get("deletionTimestamp"):
            self._drop(pod)

    async def _end(self, pod: Pod, grace_s: float) -> None:
        if pod.ended:
            self._drop(pod)
            return
        await pod.end(grace_s)

    def _drop(self, pod: Pod) -> None:
        """Tells the server that a deleted pod is no more."""
        found = self.store.find("pods", pod.namespace, pod.name)
        if found is None or found.obj["metadata"]["uid"] != pod.uid:
            return
        if found.obj["metadata"].get("finalizers"):
            self.write(
                "pods", pod.namespace, pod.name,
                lambda one: one["metadata"].update(deletionGracePeriodSeconds=0),
            )  # fmt: skip
        else:
            self.store.drop("pods", pod.namespace, pod.name)

    async def _forget(self, pod: Pod) -> None:
        """Removes its folder after its last process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await pod.over.wait()
        self.pods.pop(pod.uid, None)
        shutil.rmtree(pod.folder, ignore_errors=True)

    async def close(self) -> None:
        """Ends every process."""
        for pod in tuple(self.pods.values()):
            pod.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while self._tasks:
                    await asyncio.wait(tuple(self._tasks))
        for task in tuple(self._tasks):
            task.cancel()
