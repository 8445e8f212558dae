"""The folder of a local job: made whole or not at all, read by any process, removed to the end."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import cast

from gpufabric.backends import _supervisor as supervisor
from gpufabric.errors import (
    ConfigError,
    CredentialsError,
    TransientError,
)

__all__ = ["JobFolder", "default_root", "home", "make_root"]

STOP_SLACK_S = 15.0  # beyond the grace time, before the supervisor itself is killed
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
SCHEMA = "gpufabric/local-job/1"
_NAME = re.compile(r"^[a-z][a-z0-9-]{0,62}$")
SPEC = "spec.json"
BOOT = "import sys; sys.path.append(sys.argv[1]); import _supervisor; _supervisor.main(sys.argv[2])"


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

    def __init__(self, root: Path, name: str, *, backend: str = "local") -> None:
        self.backend = backend
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
            return self.valid and (self.path / SPEC).is_file()
        except PermissionError as exc:
            raise CredentialsError(
                f"{self.path} is another user's", backend=self.backend, operation="attach"
            ) from exc

    def spec(self) -> dict[str, object]:
        """What was started, without secrets; empty where there is nothing."""
        try:
            text = (self.path / SPEC).read_text(encoding="utf-8")
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
        left = _end_all(self._supervisors)
        mark = f"GPUFABRIC_JOB={job}".encode()
        pipes = cast("list[int]", state.get("pipes", [])) if state else []
        return left + _end_all(lambda: {*supervisor.marked(mark), *supervisor.holding(pipes)})

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
                    backend=self.backend, operation="lock",
                )  # fmt: skip
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)

    def _supervisors(self) -> Iterator[int]:
        """Supervisors of this job, also those that have not found their folder yet."""
        boot, folder = BOOT.encode(), f"{self.root}/.new-{self.name}.".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                arguments = path.read_bytes().split(b"\0")
                if boot in arguments and any(word.startswith(folder) for word in arguments):
                    yield int(path.parent.name)

    @contextlib.contextmanager
    def no_other_start(self, timeout_s: float) -> Generator[None]:
        """Keeps the launch of every job of this folder out. Raises `TransientError`."""
        until = time.monotonic() + timeout_s
        fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while not _flock(fd):
                if time.monotonic() > until:
                    raise TransientError(
                        f"other jobs in {self.root} do not come to their start",
                        backend=self.backend, operation="lock",
                    )  # fmt: skip
                time.sleep(0.005)
            yield
        finally:
            os.close(fd)

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
                grave = tempfile.mkdtemp(prefix=f".gone-{self.name}.", dir=self.root)
                os.rename(self.path, Path(grave) / "job")  # noqa: PTH104  # atomic
            except OSError:  # no room for a new name: remove it where it is
                _remove_tree(self.path)
                if self.path.exists():
                    left.append(str(self.path))
        for pattern in (f".gone-{self.name}.*", f".new-{self.name}.*"):
            for folder in self.root.glob(pattern):
                _remove_tree(folder)
                if folder.exists():
                    left.append(str(folder))
        return tuple(left)


def _flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    if not folder.exists():
        return
    todo = [str(folder)]  # folders that their owner may not enter
    while todo:
        path = todo.pop()
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)  # noqa: PTH101  # beside scandir
            with os.scandir(path) as found:
                todo += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)
