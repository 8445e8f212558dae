"""Commands in pods, and connections to their ports, over websockets.

Channels of exec: 0 stdin, 1 stdout, 2 stderr, 3 how it ended. `v5.channel.k8s.io` (Kubernetes 1.30)
can tell that stdin has ended; before, stdin is sent in counted pieces that a shell takes apart.
https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/4006-transition-spdy-to-websockets
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import BinaryIO, cast

from gpufabric.backends._streams import communicate
from gpufabric.backends.kubernetes._api import Api, Json, UpgradeRefusedError
from gpufabric.backends.kubernetes._objects import path_of
from gpufabric.backends.kubernetes._websocket import Carrier
from gpufabric.errors import BackendError, Remedy, TransientError
from gpufabric.job import ExecResult

__all__ = ["ALL_TAKEN", "Exec", "PortStream", "exec_in"]

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_END_OF_STDIN = b"\xff\x00"
_STATUS = 3
_LINGER_S = 10.0
# What comes is "SIZE\n" and so many bytes, again and again; 0 is the end. `dd` reads no byte more.
_COUNTED = """\
while read -r n && [ "$n" -gt 0 ]; do
  dd bs="$n" count=1 iflag=fullblock 2>/dev/null
done | "$@\""""

#: The server tells how a command ended only after all of its input was taken, so what it left is.
ALL_TAKEN = """\
exec 3<&0
"$@" <&3 3<&-
code=$?
cat <&3 >/dev/null 2>&1 &
exit "$code\""""


class Exec:
    """A command that runs in a container. Its streams are pipes of this process.

    Whoever reads `stdout` has to read `stderr` too: what nobody takes holds the command up.
    """

    def __init__(  # noqa: PLR0913  # one command in one container, by keyword
        self,
        api: Api,
        *,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        stdin: bool = False,
        protocols: Sequence[str] = (V5, V4),
    ) -> None:
        """Starts it. Raises what the API server says; what the container says comes by `wait`."""
        self._backend = api.backend
        self.operation = f"exec {command[0]} in {pod}"
        self._status: Json | None = None
        self._said = bytearray()
        path = path_of("v1", "Pod", namespace, pod) + "/exec"
        query = {"container": container, "stdin": str(stdin).lower(), "stdout": "true",
                 "stderr": "true", "command": [*command]}  # fmt: skip
        sock, ahead, self.protocol = _opened(api, path, query, protocols, stdin=stdin)
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        self.stdin: BinaryIO = os.fdopen(write_in, "wb", buffering=0)
        self.stdout: BinaryIO = os.fdopen(read_out, "rb", buffering=0)
        self.stderr: BinaryIO = os.fdopen(read_err, "rb", buffering=0)
        if not stdin:
            self.stdin.close()
            os.close(read_in)
        counted = stdin and self.protocol == V4
        self._carrier = Carrier(
            sock, ahead, source=read_in if stdin else None, sinks={1: write_out, 2: write_err},
            on_message=self._take_status,
            on_end=lambda: b"\0000\n" if counted else _END_OF_STDIN,
            encode=_counted if counted else bytes, decode=self._decode,
        )  # fmt: skip
        self._carrier.start()

    @property
    def ended(self) -> bool:
        """Whether the command, or the connection to it, has ended."""
        return self._carrier.ended.is_set()

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, once the command has ended.

        Raises `TimeoutError`, `BackendError` where it could not be started, and `TransientError`
        where the connection ended first.
        """
        if not self._carrier.ended.wait(timeout_s):
            raise TimeoutError
        status = self._status
        if status is None:
            raise TransientError(
                f"the connection ended before the command did: {self._carrier.error or 'closed'}",
                backend=self._backend, operation=self.operation,
            )  # fmt: skip
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        raise BackendError(
            f"it did not run: {status.get('message')}", backend=self._backend,
            operation=self.operation, remedy=Remedy.FIX_REQUEST,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the connection; a command that still runs sees the end of its input."""
        self._carrier.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                stream.close()

    def _decode(self, channel: int, data: bytes) -> bytes:  # noqa: ARG002  # for subclasses
        return data

    def _take_status(self, channel: int, data: bytes) -> bool:
        if channel != _STATUS:
            return False
        self._said += data
        try:
            self._status = cast("Json", json.loads(self._said))
        except ValueError:  # not yet whole
            return False
        return True


def _opened(
    api: Api,
    path: str,
    query: Mapping[str, str | Sequence[str]],
    protocols: Sequence[str],
    *,
    stdin: bool,
) -> tuple[socket.socket, bytes, str]:
    """A websocket of the best protocol that the server speaks."""
    if not stdin:  # they differ only in how stdin ends
        return api.upgrade(path, query, protocols)
    for protocol in protocols:
        try:
            if protocol == V4:
                command = ["/bin/sh", "-c", _COUNTED, "gpufabric", *query["command"]]
                query = {**query, "command": command}
            return api.upgrade(path, query, [protocol])
        except UpgradeRefusedError:
            if protocol == protocols[-1]:
                raise
    raise ValueError(protocols)


def _counted(data: bytes) -> bytes:
    return b"%d\n%b" % (len(data), data)


class PortStream:
    """A connection to a port of a pod: one websocket for each, as every Kubernetes serves it.

    Nothing of the protocol tells that one direction has ended. When the local end of it has, what
    comes is given on until it has been quiet for ten seconds.
    https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/cri-streaming/pkg/streaming/portforward/websocket.go
    """

    def __init__(self, api: Api, *, namespace: str, pod: str, port: int) -> None:
        """Opens it. Whether something listens there is known only when `socket` ends."""
        self._backend = api.backend
        self.operation = f"connect to port {port} of {pod}"
        self._said: dict[int, bytearray] = {0: bytearray(), 1: bytearray()}
        path = path_of("v1", "Pod", namespace, pod) + "/portforward"
        sock, ahead, _ = api.upgrade(path, {"ports": str(port)}, [V4])
        self.socket, theirs = socket.socketpair()
        self._carrier = Carrier(
            sock, ahead, source=os.dup(theirs.fileno()), sinks={0: theirs.detach()},
            on_message=self._take_error, on_end=lambda: None, decode=self._without_port,
            linger_s=_LINGER_S,
        )  # fmt: skip
        self._carrier.start()

    @property
    def error(self) -> BackendError | None:
        """What ended the connection, None where it was its natural end or goes on."""
        words = bytes(self._said[1][2:]).decode("utf-8", "backslashreplace")
        if not words and self._carrier.error is not None:
            words = f"the connection broke: {self._carrier.error}"
        if not words:
            return None
        return TransientError(words, backend=self._backend, operation=self.operation)

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()
        self._carrier.close()

    def _without_port(self, channel: int, data: bytes) -> bytes:
        """Each channel begins with two bytes that repeat the port."""
        missing = 2 - len(self._said[channel])
        self._said[channel] += data[:missing]
        return data[missing:]

    def _take_error(self, channel: int, data: bytes) -> bool:
        if channel == 1:
            self._said[1] += data
        return False


def exec_in(  # noqa: PLR0913  # one command in one container
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    *,
    stdin: bytes | BinaryIO | None = None,
    timeout_s: float | None = None,
) -> ExecResult:
    """Runs a command in a container to its end; `stdin` is sent in pieces, however large.

    Raises `TimeoutError` after `timeout_s`, `BackendError` where the command could not be started,
    and `TransientError` where the connection ended before it.
    """
    words = [*command] if stdin is None else ["/bin/sh", "-c", ALL_TAKEN, "gpufabric", *command]
    running = Exec(
        api, namespace=namespace, pod=pod, container=container, command=words,
        stdin=stdin is not None,
    )  # fmt: skip
    try:
        code, out, err = communicate(running, stdin or b"", timeout_s=timeout_s)
    finally:
        running.close()
    return ExecResult(exit_code=code, stdout=out, stderr=err)
