"""The local backend keeps the contract of backends, with real processes."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from gpufabric.backends import _supervisor as supervisor
from gpufabric.backends.base import Backend
from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.job import JobRef
from gpufabric.testing import BackendContract

SETTINGS = Settings(stop_grace_s=0.5)


def supervisors(root: Path) -> Iterator[int]:
    """The supervisors and guards of jobs below `root`: they carry its name as an argument."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = line.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(bytes(root) + b"/") for word in arguments):
            yield int(line.parent.name)


class TestLocal(BackendContract):
    kill_moments = 8  # tests/hostile has many more

    def make_factory(self, folder: Path) -> Callable[[], Backend]:
        return partial(Local, str(folder / "jobs"), SETTINGS)

    def leftovers(self, backend: Local, ref: JobRef) -> Iterable[str]:
        if backend.root.exists():
            yield from (str(path) for path in backend.root.iterdir() if ref.name in path.name)
        mark = f"GPUFABRIC_JOB={ref}".encode()
        yield from (f"process {pid}" for pid in supervisor.marked(mark))
        yield from (
            f"supervisor {pid}"
            for pid in supervisors(backend.root)
            if ref.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    def readable_by_others(self, backend: Local, ref: JobRef) -> Iterable[bytes]:
        folder = backend.root / ref.name
        # More than others can read: the folder is closed to them.
        yield from (path.read_bytes() for path in folder.rglob("*") if path.is_file())
        for pid in supervisors(backend.root):
            yield Path(f"/proc/{pid}/environ").read_bytes()
