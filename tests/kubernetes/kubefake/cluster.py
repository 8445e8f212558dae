"""A fake cluster: server, controllers, scheduler and kubelets in one thread of this process.

    with FakeCluster.started(folder) as cluster:
        Kubernetes(kubeconfig=str(cluster.kubeconfig), namespace="default", image=cluster.image)

Many objects at once: `cluster.load(objects)` keeps them as they are, past all rules, and no
controller looks at them. Logs that cost nothing to keep: `cluster.say(namespace, pod,
Synthetic(rate=1000, seconds=60))` gives a pod, loaded or real, a log that is computed as it is
read. `python -m kubefake`, in this folder, runs one in a process of its own: see there.
"""

import asyncio
import contextlib
import json
import secrets
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from .access import MASTERS, User
from .client import Client
from .controllers import Controllers
from .dressing import Dressing
from .errors import Json
from .events import Events
from .kinds import Kinds
from .kubelet import Kubelet
from .logs import Synthetic
from .objects import Objects, now
from .server import Front
from .store import Store
from .streams import Streams

T = TypeVar("T")
IMAGE = "gpufabric.test/python:1"
ADDONS = ("jobset", "kueue", "lws")
_CPUS, _MEMORY = "192", "2Ti"


class FakeCluster:
    """One fake cluster. Calls from other threads are safe."""

    own = True
    real = False

    def __init__(
        self, folder: Path, *, nodes: int = 2, addons: Sequence[str] = ADDONS, image: str = IMAGE
    ) -> None:
        self.folder = folder
        self.image = image
        self.kinds = Kinds(tuple(addons))
        self.store = Store()
        self.objects = Objects(store=self.store, kinds=self.kinds)
        self.users: dict[str, User] = {}
        self.faults: list[str] = []
        self._nodes = nodes
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kubefake", daemon=True)
        self.broken: list[BaseException] = []

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, **fields: Any) -> "Generator[FakeCluster]":
        """A cluster that serves for as long as the block runs."""
        made = cls(folder, **fields)
        made.start()
        try:
            yield made
        finally:
            made.stop()

    # ---- its life

    def start(self) -> None:
        """Begins to serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._ready.wait()
        if self.broken:
            self._thread.join()
            raise self.broken[0]
        self.kubeconfig = self.user("admin", groups=(MASTERS,))
        self.dressing = Dressing(self)

    def stop(self) -> None:
        """Ends every process and thread."""
        self.do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(self._broke)
        try:
            self._loop.run_until_complete(self._open())
            self._ready.set()
            self._loop.run_forever()
        except BaseException as exc:  # noqa: BLE001  # it is raised where it was started
            self.broken.append(exc)
            self._ready.set()
        finally:
            self._loop.close()

    def _broke(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if isinstance(exc, ConnectionError | asyncio.CancelledError):
            return
        self.broken.append(exc or RuntimeError(str(context.get("message"))))
        sys.stderr.write(f"kubefake: {context.get('message')}: {exc!r}\n")

    async def _open(self) -> None:
        events = Events(self.store)
        self.kubelet = Kubelet(self.objects, events, self.folder, {self.image})
        self.controllers = Controllers(self.objects, events)
        self.front = Front(
            self.objects, self.users, Streams(self.objects, self.kubelet), self.broken.append
        )
        self._furnish()
        self._runner = web.AppRunner(
            self.front.app(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=0.0,
            handler_cancellation=True,
        )
        await self._runner.setup()
        await self._listen()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        await self.kubelet.close()
        await self._runner.cleanup()

    def _furnish(self) -> None:
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            resource = self.kinds.find("", "v1", "namespaces")
            assert resource is not None
            self.objects.create(
                resource, "", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
            )
        for number in range(1, self._nodes + 1):
            self.store.put("nodes", node(f"node-{number}", number))

    # ---- from other threads

    def do(self, work: Callable[[], Any]) -> Any:
        """Runs something in the server's thread; waits for it, and for what it awaits."""

        async def run() -> Any:
            made = work()
            return await made if asyncio.iscoroutine(made) else made

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def api(self) -> Client:
        """A small client, as administrator."""
        return Client(self.kubeconfig)

    def user(self, name: str, *, groups: Sequence[str] = (), namespace: str = "default") -> Path:
        """A kubeconfig of a user, who may do what Roles say."""
        token = secrets.token_hex(16)
        self.users[token] = User(name=name, groups=tuple(groups))
        path = self.folder / f"{name}-{uuid.uuid4().hex[:6]}.kubeconfig"
        context = {"cluster": "fake", "user": name, "namespace": namespace}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": context}],
        }))  # fmt: skip
        path.chmod(0o600)
        return path

    def load(self, objects: Iterable[Json]) -> int:
        """Keeps many objects as they are; see the module's text."""
        tables: defaultdict[str, list[Json]] = defaultdict(list)
        for one in objects:
            resource = self.kinds.of_kind(one["apiVersion"], one["kind"])
            if resource is None:
                raise LookupError(f"not served: {one['apiVersion']} {one['kind']}")
            one["metadata"].setdefault("uid", str(uuid.uuid4()))
            one["metadata"].setdefault("creationTimestamp", now())
            tables[resource.table].append(one)
        return int(self.do(lambda: sum(self.store.load(t, rows) for t, rows in tables.items())))

    def say(self, namespace: str, pod: str, log: Synthetic) -> None:
        """Gives a pod a computed log."""
        self.do(lambda: self.kubelet.synthetic.__setitem__((namespace, pod), log))

    def forget(self) -> None:
        """Compacts the history: watches from before, and lists half read, get 410."""
        self.do(self.store.forget)

    # ---- as the fixtures of tests/cluster have it

    def kubectl(self, *words: str) -> str:
        """The few commands of kubectl that tests use."""
        from .kubectl import kubectl

        return kubectl(self.api, words)

    def dress(self, profile: str, *nodes: str, **words: str) -> None:
        """Makes nodes, or all of them, look like a cloud's."""
        self.dressing.dress(profile, *nodes, **words)

    @contextlib.contextmanager
    def fault(self, fault: str, target: str) -> Generator[None]:
        """A fault for as long as the block runs."""
        begin, end = {
            ("kill", "apiserver"): (self._down, self._listen),
            ("kill", "etcd"): (self._stop_working, self._work),
            ("pause", "apiserver"): (self._stop_working, self._work),
            ("pause", "etcd"): (self._stop_working, self._work),
        }[fault, target]
        self.do(begin)
        try:
            yield
        finally:
            self.do(end)

    async def _down(self) -> None:
        await self._site.stop()
        for protocol in tuple(self._runner.server.connections if self._runner.server else ()):
            if protocol.transport is not None:
                protocol.transport.abort()

    def _stop_working(self) -> None:
        self.front.working.clear()

    def _work(self) -> None:
        self.front.working.set()


def node(name: str, number: int) -> Json:
    """A node as it comes."""
    moment = now()
    amounts = {
        "cpu": _CPUS, "memory": _MEMORY, "pods": "200", "ephemeral-storage": "100Gi",
        "hugepages-2Mi": "32Gi",
    }  # fmt: skip
    return {
        "kind": "Node", "apiVersion": "v1",
        "metadata": {
            "name": name, "uid": str(uuid.uuid4()), "creationTimestamp": moment,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
            },
            "annotations": {},
        },
        "spec": {},
        "status": {
            "capacity": amounts, "allocatable": dict(amounts),
            "addresses": [
                {"type": "InternalIP", "address": f"127.0.1.{number % 250 + 1}"},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "kubelet is posting ready status", "lastHeartbeatTime": moment,
                "lastTransitionTime": moment,
            }],
            "nodeInfo": {
                "architecture": "amd64", "kubeletVersion": "v1.36.3-fake",
                "operatingSystem": "linux",
                "osImage": "fake", "kernelVersion": "fake", "containerRuntimeVersion": "fake://1",
                "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": "",
            },
        },
    }  # fmt: skip
