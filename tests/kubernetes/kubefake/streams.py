"""What a pod's subresources do: log, exec, port forwarding, eviction, binding."""

import asyncio
import contextlib
import json
import struct

from aiohttp import WSMsgType, web

from .containers import Container
from .errors import Json, Refusal, bad_request, not_found, unknown_path
from .kubelet import Kubelet
from .logs import Log, Synthetic, Wanted
from .objects import Objects
from .pods import Pod
from .requests import Asked

_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255


class Streams:
    """Answers requests to subresources of pods."""

    def __init__(self, objects: Objects, kubelet: Kubelet) -> None:
        self._objects = objects
        self._kubelet = kubelet

    async def answer(self, request: web.Request, asked: Asked, body: bytes) -> web.StreamResponse:
        """One request."""
        if asked.plural != "pods":
            raise unknown_path()
        found = self._objects.store.find("pods", asked.namespace, asked.name)
        if found is None:
            raise not_found("pods", asked.name)
        if asked.subresource == "log":
            return await self._log(request, asked, found.obj)
        if asked.subresource == "exec":
            return await self._exec(request, asked, found.obj)
        if asked.subresource == "portforward":
            return await self._forward(request, found.obj)
        if asked.subresource == "eviction":
            return self._evict(asked, body)
        raise Refusal(501, "NotImplemented", f"the fake has no {asked.subresource}")

    def _evict(self, asked: Asked, body: bytes) -> web.Response:
        options = (json.loads(body) if body else {}).get("deleteOptions") or {}
        resource = self._objects.kinds.find("", "v1", "pods")
        assert resource is not None
        condition = {
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }  # fmt: skip
        self._objects.mutate(
            "pods", asked.namespace, asked.name,
            lambda pod: pod["status"].setdefault("conditions", []).append(condition),
        )  # fmt: skip
        self._objects.delete(resource, asked.namespace, asked.name, options)
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "code": 201}  # fmt: skip
        return web.json_response(done, status=201)

    # ---- which container

    def _container(self, pod: Json, name: str) -> tuple[Pod | None, str]:
        """The container that is meant: k8s.io/kubernetes/pkg/registry/core/pod/strategy.go."""
        spec, pod_name = pod["spec"], pod["metadata"]["name"]
        every = [c["name"] for c in (*(spec.get("initContainers") or ()), *spec["containers"])]
        if not name:
            if len(spec["containers"]) > 1:
                told = f"a container name must be specified for pod {pod_name}, choose one of:"
                raise bad_request(f"{told} [{' '.join(every)}]")
            name = spec["containers"][0]["name"]
        elif name not in every:
            raise bad_request(f"container {name} is not valid for pod {pod_name}")
        return self._kubelet.pods.get(pod["metadata"]["uid"]), name

    # ---- logs

    async def _log(self, request: web.Request, asked: Asked, pod: Json) -> web.StreamResponse:
        mine, name = self._container(pod, asked.query.get("container", ""))
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        wanted = Wanted.of(asked.query)
        log = self._kubelet.synthetic.get((asked.namespace, asked.name))
        if log is None:
            log = self._real_log(mine, name, asked)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async for chunk in log.read(wanted):
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass
        return response

    def _real_log(self, pod: Pod | None, name: str, asked: Asked) -> Log | Synthetic:
        one = pod.container(name) if pod else None
        if one is not None and asked.query.get("previous") == "true":
            if one.previous is None:
                raise bad_request(
                    f'previous terminated container "{name}" in pod "{asked.name}" not found'
                )
            return one.previous
        if one is None or one.log is None:
            reason = (one.state.get("waiting") or {}).get("reason") if one else "ContainerCreating"
            words = {
                "ErrImagePull": "image can't be pulled",
                "ImagePullBackOff": "trying and failing to pull image",
            }
            told = words.get(str(reason), str(reason))
            raise bad_request(
                f'container "{name}" in pod "{asked.name}" is waiting to start: {told}'
            )
        return one.log

    # ---- exec

    async def _exec(self, request: web.Request, asked: Asked, pod: Json) -> web.StreamResponse:
        command = request.query.getall("command", [])
        if not command:
            raise bad_request("you must specify at least 1 command for exec")
        mine, name = self._container(pod, asked.query.get("container", ""))
        _placed(pod)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise bad_request("Upgrade request required")
        one = mine.container(name) if mine else None
        if one is None or not one.running:
            if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
                phase = pod["status"]["phase"]
                raise bad_request(
                    f"cannot exec into a container in a completed pod; current phase is {phase}"
                )
            raise Refusal(500, "InternalError", f'container not found ("{name}")')
        socket = web.WebSocketResponse(protocols=(_V5, _V4), max_msg_size=0)
        await socket.prepare(request)
        if socket.ws_protocol is None:
            await socket.close(code=1002, message=b"unable to negotiate a protocol")
            return socket
        await _Session(socket, one, wants_stdin=asked.query.get("stdin") == "true").run(command)
        return socket

    # ---- port forwarding

    async def _forward(self, request: web.Request, pod: Json) -> web.StreamResponse:
        """The plain protocol: a data and an error channel for each port of the query."""
        ports = [int(p) for text in request.query.getall("ports", []) for p in text.split(",")]
        if not ports:
            raise bad_request('query parameter "ports" is required')
        _placed(pod)
        mine = self._kubelet.pods.get(pod["metadata"]["uid"])
        if mine is None or (pod.get("status") or {}).get("phase") != "Running":
            phase = (pod.get("status") or {}).get("phase")
            raise bad_request(f"pod is not running; current phase is {phase}")
        socket = web.WebSocketResponse(protocols=(_V4,), max_msg_size=0)
        await socket.prepare(request)
        pairs = [_Port(socket, number, port, mine) for number, port in enumerate(ports)]
        for one in pairs:
            await one.begin()
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            number, kind = divmod(message.data[0], 2)
            if number < len(pairs) and kind == 0:
                await pairs[number].send(message.data[1:])
        for one in pairs:
            one.close()
        return socket


def _placed(pod: Json) -> None:
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")


class _Session:
    """One `exec`."""

    def __init__(self, socket: web.WebSocketResponse, one: Container, *, wants_stdin: bool) -> None:
        self._socket = socket
        self._one = one
        self._stdin = wants_stdin

    async def run(self, command: list[str]) -> None:
        """Runs the command, and tells how it ended on the error channel."""
        assert self._one.setting is not None
        argv = [self._one.setting[2].here(word) for word in command]
        stdin = asyncio.subprocess.PIPE if self._stdin else asyncio.subprocess.DEVNULL
        try:
            process = await self._one.spawn(argv, stdin=stdin)
        except OSError as exc:
            await self._tell(127, f'exec: "{argv[0]}": executable file not found: {exc.strerror}')
            return
        taker = asyncio.ensure_future(self._take(process))
        await asyncio.gather(
            self._give(process.stdout, _STDOUT), self._give(process.stderr, _STDERR)
        )
        code = await process.wait()
        taker.cancel()
        await self._tell(128 - code if code < 0 else code, "")

    async def _give(self, stream: asyncio.StreamReader | None, channel: int) -> None:
        while stream is not None and (data := await stream.read(32 * 1024)):
            with contextlib.suppress(ConnectionError):
                await self._socket.send_bytes(bytes([channel]) + data)

    async def _take(self, process: asyncio.subprocess.Process) -> None:
        """Standard input; a caller that goes away ends the command's input."""
        with contextlib.suppress(ConnectionError):
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel == _CLOSE and data[:1] == b"\0" and process.stdin is not None:
                    process.stdin.close()
                elif channel == _STDIN and process.stdin is not None:
                    process.stdin.write(data)
                    await process.stdin.drain()
        if process.stdin is not None:
            process.stdin.close()
        if self._socket.closed and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _tell(self, code: int, why: str) -> None:
        status: Json = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": why or f"command terminated with non-zero exit code: exit status {code}",
                "details": {"causes": causes},
            }  # fmt: skip
        if code == 127 and why:
            status = {"metadata": {}, "status": "Failure", "reason": "InternalError",
                      "message": f"Internal error occurred: {why}", "code": 500}  # fmt: skip
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())
            await self._socket.close()


class _Port:
    """One forwarded port: the pod's, reached at its address or at localhost."""

    def __init__(self, socket: web.WebSocketResponse, number: int, port: int, pod: Pod) -> None:
        self._socket = socket
        self._data, self._error = number * 2, number * 2 + 1
        self._port = port
        self._pod = pod
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Tells the port on both channels, and connects."""
        number = struct.pack("<H", self._port)
        for channel in (self._data, self._error):
            await self._socket.send_bytes(bytes([channel]) + number)
        for host in ("127.0.0.1", self._pod.address):
            with contextlib.suppress(OSError):
                reader, self._writer = await asyncio.open_connection(host, self._port)
                self._task = asyncio.ensure_future(self._give(reader))
                return
        told = (
            f"error forwarding port {self._port} to pod {self._pod.uid}, uid : failed to connect"
            f" to localhost:{self._port} inside namespace: connection refused"
        )
        await self._socket.send_bytes(bytes([self._error]) + told.encode())
        await self._socket.close()

    async def _give(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(32 * 1024):
                await self._socket.send_bytes(bytes([self._data]) + data)
            await self._socket.close()

    async def send(self, data: bytes) -> None:
        """Bytes for the pod."""
        if self._writer is not None:
            self._writer.write(data)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    def close(self) -> None:
        """The caller is gone."""
        if self._task is not None:
            self._task.cancel()
        if self._writer is not None:
            self._writer.close()
