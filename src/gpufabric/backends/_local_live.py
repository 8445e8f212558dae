"""Commands beside a node of a local gang: its environment and folder, in a session of their own."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from gpufabric.backends import _supervisor as supervisor
from gpufabric.backends._local_job import JobFolder
from gpufabric.errors import BackendError, CredentialsError, NotFoundError, TransientError

__all__ = ["LocalCommand", "LocalConnection", "node_process"]

_CONNECT_S = 10.0
_EXEC_S = 2.0


def node_process(folder: JobFolder, rank: int, what: str) -> int:
    """The process of a node that runs. Raises `NotFoundError` or `TransientError`."""
    state = folder.state()
    nodes = cast("list[list[object]]", state["nodes"]) if state else []
    word = str(nodes[rank][0]) if nodes else "pending"
    if not folder.supervised() or word not in {"pending", "starting", "running"}:
        reason = str(nodes[rank][2]) if nodes else "its supervisor is gone"
        raise NotFoundError(
            f"node {rank} of {what} runs no more: {word}{f': {reason}' if reason else ''}",
            backend=folder.backend, operation="exec",
        )  # fmt: skip
    pid = cast("int", state["pid"]) if state else 0
    marks = {f"GPUFABRIC_JOB={what}".encode(), f"GPUFABRIC_NODE_RANK={rank}".encode()}
    until = time.monotonic() + (_EXEC_S if word == "running" else 0.0)
    while (found := _leader(pid, marks)) is None and time.monotonic() < until:
        time.sleep(0.005)  # it has been let go, and is not yet its own program
    if found is not None:
        return found
    raise TransientError(
        f"node {rank} of {what} has not started: {word}", backend=folder.backend, operation="exec"
    )


def _leader(parent: int, marks: set[bytes]) -> int | None:
    for child in supervisor.children(parent):
        with contextlib.suppress(OSError):
            if os.getsid(child) == child and marks <= set(_environ(child)):
                return child
    return None


def _environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")


class LocalCommand:
    """A command with a node's environment, in its work folder."""

    def __init__(
        self, folder: JobFolder, process: int, command: Sequence[str], *, stdin: bool
    ) -> None:
        """Starts it."""
        try:
            env = dict(
                cast("tuple[bytes, bytes]", tuple(pair.split(b"=", 1)))
                for pair in _environ(process) if b"=" in pair
            )  # fmt: skip
            cwd = os.readlink(f"/proc/{process}/cwd")  # noqa: PTH115  # bytes of /proc, not a path of ours
        except PermissionError as exc:
            raise CredentialsError(
                f"process {process} is another user's", backend=folder.backend, operation="exec"
            ) from exc
        except OSError as exc:
            raise NotFoundError(
                "the node ended meanwhile", backend=folder.backend, operation="exec"
            ) from exc
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@"', "gpufabric", *command],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=env, cwd=cwd, bufsize=0, start_new_session=True,
        )  # fmt: skip
        self.stdin: BinaryIO = cast("BinaryIO", self._process.stdin or io.BytesIO())
        if not stdin:
            self.stdin.close()
        self.stdout = cast("BinaryIO", self._process.stdout)
        self.stderr = cast("BinaryIO", self._process.stderr)

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code. Raises `TimeoutError`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Ends it, and what it started in its session."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", stream).close()


class LocalConnection:
    """A connection to a port of this machine, which is that of every node."""

    error: BackendError | None = None

    def __init__(self, backend: str, port: int) -> None:
        """Opens it."""
        try:
            self.socket = socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        except OSError as exc:
            raise TransientError(
                f"127.0.0.1, port {port}: {exc.strerror or exc}", backend=backend,
                operation="connect",
            ) from exc  # fmt: skip

    def close(self) -> None:
        """Ends it."""
        self.socket.close()
