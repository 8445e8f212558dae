"""The folder of a local job: made whole or not at all, read by any process, removed to the end."""

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from gpufabric.backends import _supervisor as supervisor
from gpufabric.errors import (
    BackendError,
    ConfigError,
    CredentialsError,
    Remedy,
    TransientError,
)

__all__ = ["Filler", "JobFolder", "default_root", "make_root", "start"]

Filler = Callable[[Path], dict[str, object]]
"""Puts files into a new folder, and gives what they add to the spec."""

START_TIMEOUT_S = 120.0  # unpacking the work folder on every node included
STOP_SLACK_S = 15.0  # beyond the grace time, before the supervisor itself is killed
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
SCHEMA = "gpufabric/local-job/1"
_NAME = re.compile(r"^[a-z][a-z0-9-]{0,62}$")
_SPEC = "spec.json"
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); import _supervisor; _supervisor.main(sys.argv[2])"
)


def home() -> str:
    """The home folder that the system has on record, whatever the environment says."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a uid without an entry, as containers have
        return "/"


def default_root(*, trust_env: bool) -> Path:
    """The user's state folder; below the temporary folder where there is no usable home."""
    import platformdirs

    with contextlib.suppress(RuntimeError, OSError, KeyError):
        state = (
            platformdirs.user_state_path("gpufabric")
            if trust_env
            else Path(home(), ".local", "state", "gpufabric")
        )
        path = state / "local"
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        if path.is_absolute() and os.access(existing, os.W_OK | os.X_OK):
            return path
    temporary = tempfile.gettempdir() if trust_env else "/tmp"  # noqa: S108  # make_root checks it
    return Path(temporary) / f"gpufabric-{os.getuid()}"


def make_root(root: Path) -> None:
    """Makes the folder of all jobs: this user's, closed to others. Raises `ConfigError`."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = root.lstat().st_uid == os.getuid()  # of a link, too: nobody laid it here
        found = root.stat()
    except OSError as exc:
        raise ConfigError(
            f"local: cannot make {root}: {exc.strerror}; set local_root to a folder of yours"
        ) from exc
    if not own or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"local: {root} is not a folder of this user; set local_root to a folder of yours"
        )
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise ConfigError(f"local: all may write to {root}; chmod o-w it, or set local_root")


class JobFolder:
    """One job's folder, by its path. Nothing of it is kept in memory."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.path = root / name

    @property
    def valid(self) -> bool:
        """Whether the name can be one of ours at all."""
        return bool(_NAME.match(self.name)) and self.root.is_absolute()

    def exists(self) -> bool:
        """Whether there is a job, which a folder alone does not make.

        Raises `CredentialsError` where this user may not look.
        """
        try:
            return self.valid and (self.path / _SPEC).is_file()
        except PermissionError as exc:
            raise CredentialsError(
                f"{self.path} is another user's", backend="local", operation="attach"
            ) from exc

    def spec(self) -> dict[str, object]:
        """What was started, without secrets; empty where there is nothing."""
        try:
            text = (self.path / _SPEC).read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        return cast("dict[str, object]", json.loads(text))

    def state(self) -> dict[str, object] | None:
        """What the supervisor last wrote, None where it has written nothing."""
        for _ in range(5):
            try:
                found = supervisor.read_slots((self.path / "state").read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                return None
            if found is not None:
                return cast("dict[str, object]", found[1])
        return None

    def supervised(self) -> bool:
        """Whether a supervisor or its guard is alive: they hold the lock."""
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def ask_to_stop(self) -> bool:
        """Asks the supervisor to stop the gang; False where there is none to ask."""
        try:
            fd = os.open(self.path / "control", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            os.write(fd, b"stop\n")
        except OSError as exc:
            return exc.errno == errno.EAGAIN
        finally:
            os.close(fd)
        return True

    def wait_unsupervised(self, timeout_s: float) -> bool:
        """Waits until supervisor and guard are gone; False where they are not in time."""
        until = time.monotonic() + timeout_s
        pause = 0.002
        while self.supervised():
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return True

    def kill(self, job: str) -> list[int]:
        """Kills the supervisor and what carries the job's mark or holds its pipes.

        Gives what could not be killed.
        """
        state = self.state()
        if state and self.supervised():
            for who, when in (("guard", "guard_start"), ("pid", "start")):
                pid, started = state[who], state[when]
                if isinstance(pid, int) and isinstance(started, int):
                    supervisor.signal_process(pid, 9, started)
        mark = f"GPUFABRIC_JOB={job}".encode()
        pipes = cast("list[int]", state.get("pipes", [])) if state else []
        return _end_all(lambda: {*supervisor.marked(mark), *supervisor.holding(pipes)})

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Generator[None]:
        """Keeps all other launches and teardowns of this job out. Raises `TransientError`."""
        path = self.root / f".lock-{self.name}"
        until = time.monotonic() + timeout_s
        while True:
            fd = self._open_lock(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                here = os.fstat(fd)
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISDIR(here.st_mode) or path.stat().st_ino == here.st_ino:
                        break
            except BlockingIOError:
                time.sleep(0.005)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if time.monotonic() > until:
                raise TransientError(
                    f"{self.name} is being started or removed by another process",
                    backend="local", operation="lock",
                )  # fmt: skip
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)

    def _supervisors(self) -> Iterator[int]:
        """Supervisors of this job, also those that have not found their folder yet."""
        boot, folder = _BOOT.encode(), f"{self.root}/.new-{self.name}-".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                arguments = path.read_bytes().split(b"\0")
                if boot in arguments and any(word.startswith(folder) for word in arguments):
                    yield int(path.parent.name)

    def _open_lock(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            if exc.errno not in FULL:
                raise
            # A full disk must not stop a teardown: the folder of all jobs can be locked too.
            return os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)

    def remove(self) -> tuple[str, ...]:
        """Removes the folder and what killed launches left of it; gives what could not be."""
        left = [f"process {pid}" for pid in _end_all(self._supervisors)]
        if self.spec().get("schema") == SCHEMA:  # and nothing else that may have this name
            try:
                grave = tempfile.mkdtemp(prefix=f".gone-{self.name}-", dir=self.root)
                os.rename(self.path, Path(grave) / "job")  # noqa: PTH104  # atomic
            except OSError:  # no room for a new name: remove it where it is
                _remove_tree(self.path)
                if self.path.exists():
                    left.append(str(self.path))
        for pattern in (f".gone-{self.name}-*", f".new-{self.name}-*"):
            for folder in self.root.glob(pattern):
                _remove_tree(folder)
                if folder.exists():
                    left.append(str(folder))
        return tuple(left)


def _end_all(find: Callable[[], Iterable[int]]) -> list[int]:
    """Kills what `find` finds, until it finds nothing; gives what could not be killed."""
    until = time.monotonic() + supervisor.KILL_WAIT_S
    while left := sorted(find()):
        if time.monotonic() > until:
            return left
        supervisor.signal_all(left, 9)
        time.sleep(0.005)
    return []


def _remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # folders that their owner may not enter
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)  # noqa: PTH101  # the path os.walk gives
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)  # noqa: PTH101  # those that the first pass opened
        shutil.rmtree(folder, ignore_errors=True)


def start(
    folder: JobFolder,
    spec: dict[str, object],
    runtime: dict[str, object],
    fill: Filler,
) -> None:
    """Makes the folder and starts the gang: all nodes run, or nothing is left.

    `spec` is kept on disk; `runtime` (secrets, the caller's environment) goes to the supervisor
    alone. Raises `BackendError`.
    """
    new = Path(tempfile.mkdtemp(prefix=f".new-{folder.name}-", dir=folder.root))
    process: subprocess.Popen[bytes] | None = None
    try:
        filled = fill(new)
        filled["schema"] = SCHEMA
        spec = {**spec, **filled}
        (new / _SPEC).write_text(json.dumps(spec), encoding="utf-8")
        os.mkfifo(new / "control", 0o600)
        process = _run_supervisor(new)
        process.wait()  # the starter: it ends as soon as it has detached
        until = time.monotonic() + START_TIMEOUT_S
        _expect_lock(_read_line(process, until))
        os.rename(new, folder.path)  # noqa: PTH104  # atomic: from here there is a job
        _expect_ok(_converse(process, {**spec, **runtime}, until))
    except BaseException:
        if process is not None:
            _give_up(process)
            folder.wait_unsupervised(STOP_SLACK_S)
        left = folder.remove()
        exc = sys.exc_info()[1]
        if left and isinstance(exc, BackendError):
            exc.leftovers = left
        raise
    finally:
        if process is not None:
            _hang_up(process)


def _run_supervisor(new: Path) -> "subprocess.Popen[bytes]":
    if not sys.executable:
        raise ConfigError("local: this process does not say which Python runs it")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(supervisor.__file__).parent), str(new)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={},
    )


def _give_up(process: "subprocess.Popen[bytes]") -> None:
    """Tells the supervisor to give up, and waits until it has."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(TransientError):
        while _read_line(process, time.monotonic() + STOP_SLACK_S):
            pass


def _hang_up(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _read_line(process: "subprocess.Popen[bytes]", until: float) -> bytes:
    pipe = cast("IO[bytes]", process.stdout)
    got = b""
    while not got.endswith(b"\n"):
        ready = select.poll()  # not select(2): the caller may have more than 1,024 open files
        ready.register(pipe, select.POLLIN)
        if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TransientError(
                f"not all nodes were ready within {START_TIMEOUT_S:g} s",
                backend="local", operation="launch",
            )  # fmt: skip
        part = os.read(pipe.fileno(), 65536)
        if not part:
            break
        got += part
    return got.rstrip(b"\n")


def _converse(
    process: "subprocess.Popen[bytes]", spec: dict[str, object], until: float
) -> dict[str, object]:
    pipe = cast("IO[bytes]", process.stdin)
    body = json.dumps(spec).encode("ascii")
    with contextlib.suppress(BrokenPipeError):  # then the answer says why, or there is none
        pipe.write(struct.pack("<Q", len(body)) + body)
        pipe.flush()
    line = _read_line(process, until)
    if not line:
        return {"error": "the supervisor was killed", "stage": "start"}
    return cast("dict[str, object]", json.loads(line))


def _expect_lock(line: bytes) -> None:
    if line != b"locked":
        raise BackendError("the supervisor did not start", backend="local", operation="launch")


def _expect_ok(answer: dict[str, object]) -> None:
    if "ok" in answer:
        return
    message = f"no node was left running: {answer['error']}"
    wrong = str(answer.get("stage", "")).startswith("cannot run")
    raise BackendError(
        message,
        backend="local",
        operation="launch",
        remedy=Remedy.FIX_REQUEST if wrong else Remedy.FIX_SETUP,
    )
