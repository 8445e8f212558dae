"""One container: a process of this machine, its log, and its state as a kubelet tells it."""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path

from .errors import Json
from .logs import Log, Synthetic
from .objects import now
from .volumes import Paths, expanded

_LINE = 16 * 1024  # the runtime cuts longer lines, and the kubelet joins them again
_MESSAGE_LINES, _MESSAGE_BYTES = 80, 2048


class Container:
    """A container over all its runs."""

    def __init__(self, spec: Json, folder: Path) -> None:
        self.spec = spec
        self.name = str(spec["name"])
        self.log: Log | Synthetic | None = None
        self.previous: Log | None = None
        self.ready = False
        self.restarts = 0
        self.exit_code: int | None = None
        self.state: Json = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Json = {}
        self.process: asyncio.subprocess.Process | None = None
        self.stopped = asyncio.Event()
        self.stopped.set()
        self.setting: tuple[dict[str, str], Path, Paths] | None = None
        self._message = folder / f"termination-{self.name}"
        self._id = ""
        self._groups: set[int] = set()

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return "running" in self.state

    def message_mount(self) -> tuple[str, Path]:
        """Where it may write why it ended."""
        return self.spec["terminationMessagePath"], self._message

    # ---- the process

    async def start(self, env: Mapping[str, str], folder: Path, paths: Paths) -> bool:
        """Starts it; False where its program is not there."""
        self._message.write_bytes(b"")
        if isinstance(self.log, Log):
            self.previous = self.log
        self.log = log = Log()
        self.exit_code = None
        self._id = f"fake://{uuid.uuid4().hex}"
        self.setting = (dict(env), folder, paths)
        argv = [paths.here(expanded(w, env)) for w in
                (*(self.spec.get("command") or ()), *(self.spec.get("args") or ()))]  # fmt: skip
        begun = now()
        try:
            if not argv:
                raise FileNotFoundError("no command specified")
            self.process = await self.spawn(argv)
        except OSError as exc:
            log.close()
            program = argv[0] if argv else ""
            self._ended(begun, 128, "StartError", (
                "failed to create containerd task: failed to create shim task: OCI runtime create"
                f' failed: exec: "{program}": executable file not found in $PATH ({exc.strerror})'
            ))  # fmt: skip
            return False
        self.state = {"running": {"startedAt": begun}}
        self.stopped.clear()
        self.ready = not self.spec.get("readinessProbe")
        return True

    async def spawn(self, argv: list[str], **pipes: int) -> asyncio.subprocess.Process:
        """A process in the container: its own, or one of `exec`."""
        assert self.setting is not None
        env, folder, _ = self.setting
        given = {"stdin": asyncio.subprocess.DEVNULL, **pipes}
        made = await asyncio.create_subprocess_exec(
            *argv, env={k: v for k, v in env.items() if v is not None}, cwd=folder,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, limit=1 << 20, **given,
        )  # fmt: skip
        self._groups.add(made.pid)
        return made

    async def wait(self) -> int:
        """Waits for its end; gives the exit code."""
        assert self.process is not None
        assert isinstance(self.log, Log)
        process, log = self.process, self.log
        readers = [asyncio.ensure_future(_read(stream, log))
                   for stream in (process.stdout, process.stderr) if stream]  # fmt: skip
        await _exited(process)
        self.signal(signal.SIGKILL)  # what it started ends with it
        code = await process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.gather(*readers)
        log.close()
        code = 128 - code if code < 0 else code
        reason = "Completed" if code == 0 else "Error"
        self._ended(str(self.state["running"]["startedAt"]), code, reason, self._said(code, log))
        return code

    def _said(self, code: int, log: Log) -> str:
        text = self._message.read_bytes()[:4096].decode("utf-8", "replace")
        fallback = self.spec["terminationMessagePolicy"] == "FallbackToLogsOnError"
        if not text and code and fallback:
            text = log.last(_MESSAGE_LINES, _MESSAGE_BYTES)
        return text

    def _ended(self, begun: str, code: int, reason: str, message: str) -> None:
        ended: Json = {
            "exitCode": code, "reason": reason, "startedAt": begun, "finishedAt": now(),
            "containerID": self._id,
        }  # fmt: skip
        if message:
            ended["message"] = message
        self.state = {"terminated": ended}
        self.stopped.set()
        self.exit_code = code
        self.ready = False

    def signal(self, number: int) -> None:
        """SIGTERM goes to its first process, SIGKILL to all of them."""
        if number == signal.SIGKILL:
            for group in tuple(self._groups):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)
            self._groups.clear()
        elif self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)  # `send_signal` may take the exit code away

    def waits(self, reason: str, message: str = "") -> None:
        """It has not started, and why."""
        if "terminated" in self.state:
            self.last_state = self.state
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def status(self) -> Json:
        """As a pod's status has it."""
        made: Json = {
            "name": self.name, "image": self.spec["image"], "imageID": "",
            "ready": self.ready, "restartCount": self.restarts, "started": self.running,
            "state": self.state, "lastState": self.last_state,
        }  # fmt: skip
        if self._id:
            made["imageID"] = "fake://image"
            made["containerID"] = self._id
        return made


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Waits for its own end: its `wait` would also wait for whatever holds its pipes open."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(handle, over.set)
    try:
        await over.wait()
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


async def _read(stream: asyncio.StreamReader, log: Log) -> None:
    """Every line as it comes; the last one also without a newline."""
    rest = b""
    while data := await stream.read(1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for text in whole:
            log.write(text + b"\n")
    if rest:
        log.write(rest)
