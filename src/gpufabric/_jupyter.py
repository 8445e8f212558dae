"""A Jupyter server in a node, reached from this machine, and ended with its block."""

import contextlib
import http.client
import os
import secrets
import select
import threading
import time
from typing import BinaryIO, Self

from gpufabric._forward import PortForward
from gpufabric._live import exec_on
from gpufabric._pause import pause
from gpufabric.backends.base import Command, Live
from gpufabric.errors import BackendError, JobTimeoutError, Remedy
from gpufabric.job import JobRef

__all__ = ["Jupyter", "start_jupyter"]

_TAIL_BYTES = 4096
_STOP_S = 15.0
_LOOK_S = 0.1
_FIND = "import jupyter_server"
#: Takes the token from its input, so that it stands in no argument, variable or file; ends when
#: that input does. The port is of the node alone: nothing but a forward reaches it.
_SERVE = """\
import os, signal, socket, sys, threading
token = sys.stdin.readline().strip()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
try:
    from jupyterlab.labapp import LabApp as App
except ImportError:
    from jupyter_server.serverapp import ServerApp as App
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config
def end():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end, daemon=True).start()
for name in ("write_server_info_file", "write_browser_open_file", "write_browser_open_files"):
    if hasattr(ServerApp, name):
        setattr(ServerApp, name, lambda self: None)  # they would hold the token
config = Config()
config.ServerApp.token = config.IdentityProvider.token = token
config.ServerApp.ip, config.ServerApp.port, config.ServerApp.port_retries = "127.0.0.1", port, 0
config.ServerApp.open_browser, config.ServerApp.allow_root = False, True
config.ServerApp.root_dir = os.getcwd()
print("port", port, "lab" if App is not ServerApp else "tree", flush=True)
App.launch_instance(argv=[], config=config)
"""


class Jupyter:
    """A Jupyter server in a node. `url` has its token, and nothing else shows it.

    Ends with its block, or with `close`: the server and its kernels.
    """

    def __init__(self, running: Command, forward: PortForward, page: str, token: str) -> None:
        """Made by `JobHandle.jupyter`."""
        self._running, self.forward = running, forward
        self._page, self._token = page, token
        self._said = bytearray()
        self._drains = [
            threading.Thread(target=self._drain, args=(out,), name="gpufabric-jupyter", daemon=True)
            for out in (running.stdout, running.stderr)
        ]
        for drain in self._drains:
            drain.start()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self.forward.port

    @property
    def url(self) -> str:
        """The address for a browser, with the token: whoever has it has the node."""
        return f"http://127.0.0.1:{self.port}/{self._page}?token={self._token}"

    def __repr__(self) -> str:
        return f"Jupyter(127.0.0.1:{self.port}, node_rank={self.forward.node_rank})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the server and its kernels, and gives when it has ended."""
        try:
            with contextlib.suppress(OSError):
                self._running.stdin.close()
            with contextlib.suppress(TimeoutError, BackendError):
                self._running.wait(_STOP_S)
        finally:
            self.forward.close()
            self._running.close()
            for drain in self._drains:
                drain.join()

    def answers(self) -> bool:
        """Whether the server answers to its token."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            link.request("GET", "/api/status", headers={"Authorization": f"token {self._token}"})
            return link.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            link.close()

    def words(self) -> str:
        """The last of what the server said, without the token."""
        return self._said.decode("utf-8", "backslashreplace").replace(self._token, "***").strip()

    def ended(self) -> bool:
        """Whether the server has ended."""
        try:
            self._running.wait(0)
        except TimeoutError:
            return False
        except BackendError:  # the connection to it has, which ends it
            return True
        return True

    def _drain(self, out: BinaryIO) -> None:
        with contextlib.suppress(OSError, ValueError):
            while part := out.read(_TAIL_BYTES):
                self._said += part
                del self._said[:-_TAIL_BYTES]


def start_jupyter(  # noqa: PLR0913  # one server, by keyword
    live: Live, ref: JobRef, *, node_rank: int, local_port: int, python: str, timeout_s: float
) -> Jupyter:
    """Starts a server, and gives when it answers."""
    until = time.monotonic() + timeout_s
    where = f"node {node_rank} of {ref}"
    found = exec_on(live, ref, [python, "-c", _FIND], node_rank=node_rank, timeout_s=timeout_s)
    if found.exit_code != 0:
        said = found.stderr[-500:].decode("utf-8", "backslashreplace").strip()
        raise _error(
            ref, f"{where}: {python} there has no jupyter_server: put jupyterlab into the image, or"
            f' exec("{python} -m pip install jupyterlab") where the node may reach an index; it'
            f" said {said}",
        )  # fmt: skip
    token = secrets.token_urlsafe(32)
    running = live.exec(ref, [python, "-c", _SERVE], node_rank=node_rank, stdin=True)
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended, and said why
            running.stdin.write(f"{token}\n".encode())
        port, page = _begun(running, until, ref, where)
        forward = PortForward(
            lambda: live.connect(ref, port, node_rank=node_rank),
            node_rank=node_rank, node_port=port, local_port=local_port,
        )  # fmt: skip
    except BaseException:
        running.close()
        raise
    made = Jupyter(running, forward, page, token)
    try:
        _until_it_answers(made, until, ref, where)
    except BaseException:
        made.close()
        raise
    return made


def _error(ref: JobRef, words: str) -> BackendError:
    return BackendError(words, backend=ref.backend, operation="jupyter", remedy=Remedy.FIX_SETUP)


def _begun(running: Command, until: float, ref: JobRef, where: str) -> tuple[int, str]:
    words = _first_line(running, until).split()
    if len(words) == 3 and words[0] == b"port":
        return int(words[1]), "lab" if words[2] == b"lab" else ""
    os.set_blocking(running.stderr.fileno(), False)
    said = (running.stderr.read(_TAIL_BYTES) or b"").decode("utf-8", "backslashreplace")
    raise _error(ref, f"{where}: Jupyter did not start: {said.strip()[-500:]}")


def _until_it_answers(made: Jupyter, until: float, ref: JobRef, where: str) -> None:
    while not made.answers():
        if made.ended():
            raise _error(ref, f"{where}: Jupyter ended: {made.words()[-500:]}")
        if time.monotonic() > until:
            raise JobTimeoutError(
                f"Jupyter on {where} did not answer in time and was ended; it said"
                f" {made.words()[-500:]}",
                ref=ref,
            )
        pause(_LOOK_S)


def _first_line(running: Command, until: float) -> bytes:
    """What the server says first; what came where it ends, or is too late."""
    line, poll = b"", select.poll()
    poll.register(running.stdout, select.POLLIN)
    while not line.endswith(b"\n") and time.monotonic() < until:
        if poll.poll(1000 * _LOOK_S):
            part = running.stdout.read(1)
            if not part:
                break
            line += part
        pause(0)
    return line
