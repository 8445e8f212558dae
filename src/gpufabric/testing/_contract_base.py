"""What the author of a backend supplies to `BackendContract`, and what its tests share."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from gpufabric.backends.base import Backend
from gpufabric.job import JobRef, JobStatus, LogLine
from gpufabric.plan import LaunchPlan
from gpufabric.task import Task
from gpufabric.testing._other import OtherProcess, shared_interpreter

__all__ = ["ContractBase"]

#: Runs until it is stopped, after it has said so.
ENDLESS = "echo up; sleep infinity"


class ContractBase:
    """Hooks to override, and the fixtures made from them."""

    #: How many seeded moments the tests that kill the launching process try.
    kill_moments: int = 12
    #: The seed of these moments.
    seed: int = 1
    #: Whether `fail_call` and `count_calls` are there.
    injects_faults: bool = False

    # To override

    def make_factory(self, folder: Path) -> Callable[[], Backend]:
        """A callable that makes a backend; all that it makes use one place, in any process.

        It must pickle and be importable: `functools.partial(MyBackend, str(folder))`.
        """
        raise NotImplementedError

    def leftovers(self, backend: Backend, ref: JobRef) -> Iterable[str]:
        """All that exists of a job, from the place's own records: objects, files, processes."""
        raise NotImplementedError

    def task(self, run: object, **fields: object) -> Task:
        """A task of two nodes that this place can run at once."""
        return Task.from_dict({"run": run, "name": "contract", "num_nodes": 2, **fields})

    def fail_call(self, backend: Backend, number: int, *, lost_answer: bool, lasting: bool) -> None:
        """Lets the place fail the `number`-th call from now, and all after it if `lasting`.

        With `lost_answer` the place acts first.
        """
        raise NotImplementedError

    def count_calls(self, backend: Backend) -> int:
        """How many calls the place has had."""
        raise NotImplementedError

    def heal(self, backend: Backend) -> None:
        """Takes back every fault of `fail_call`."""
        raise NotImplementedError

    def readable_by_others(self, backend: Backend, ref: JobRef) -> Iterable[bytes]:  # noqa: ARG002  # for those who override
        """What other users of the place can read of a job; command lines are looked at anyway."""
        return ()

    # Fixtures

    @pytest.fixture
    def factory(self, tmp_path: Path) -> Callable[[], Backend]:
        """Makes backends of one place."""
        return self.make_factory(tmp_path)

    @pytest.fixture
    def backend(self, factory: Callable[[], Backend]) -> Iterator[Backend]:
        """A backend; what its test leaves is removed."""
        made = factory()
        yield made
        if self.injects_faults:
            self.heal(made)
        for ref in made.jobs():
            made.teardown(ref)
        made.close()

    @pytest.fixture
    def other(self, factory: Callable[[], Backend]) -> OtherProcess:
        """Another process that uses the same place."""
        return OtherProcess(factory, shared_interpreter())

    # Shared

    def plan_of(
        self, backend: Backend, run: object, run_id: str = "", **fields: object
    ) -> LaunchPlan:
        """The plan of the best offer for a task."""
        task, site = self.task(run, **fields), backend.discover()
        resolution = backend.offers(task, site)
        assert resolution.best is not None, str(resolution)
        return backend.plan(task, resolution.best, site, run=run_id)

    def launch(self, backend: Backend, run: object, **fields: object) -> JobRef:
        """A job of its own."""
        return backend.apply(self.plan_of(backend, run, "", **fields))

    def finish(self, backend: Backend, ref: JobRef) -> tuple[JobStatus, list[LogLine]]:
        """Follows a job to its end; gives its last state and all its lines."""
        lines = list(backend.logs(ref, follow=True))
        status = backend.status(ref)
        while not status.state.ended:  # the lines may end a moment before the record
            time.sleep(0.01)  # without it, asking takes the time of what is asked about
            status = backend.status(ref)
        return status, lines

    def until_up(self, backend: Backend, ref: JobRef) -> None:
        """Returns when every node of an `ENDLESS` job runs."""
        waiting = {node.node_rank for node in backend.status(ref).nodes} or {0}
        lines = backend.logs(ref, follow=True)
        while waiting:
            line = next(lines)
            if line.data == b"up":
                waiting.discard(line.node_rank)
        close_lines(lines)

    def assert_nothing_left(self, backend: Backend, ref: JobRef) -> None:
        """Fails if anything of the job exists."""
        left = list(self.leftovers(backend, ref))
        assert left == []
        assert ref not in set(backend.jobs())


def printed(lines: Sequence[LogLine], node_rank: int, stream: str = "stdout") -> list[str]:
    """What one node printed."""
    return [x.text for x in lines if x.node_rank == node_rank and x.stream == stream]


def close_lines(lines: Iterator[LogLine]) -> None:
    """Drops a connection to a log, as a caller that stops reading does."""
    close = getattr(lines, "close", None)
    if close is not None:
        close()


def by_rank(lines: Iterable[LogLine]) -> list[LogLine]:
    """What nodes wrote, node by node: a follower may see another order than a later reader.

    Nor need a place repeat its own words: a count that grew is one event to who reads later.
    """
    return sorted(
        (line for line in lines if line.stream != "event"), key=lambda line: line.node_rank
    )


def is_name(text: str) -> bool:
    """Whether a JobRef can carry it as its backend."""
    return re.fullmatch(r"[a-z0-9][a-z0-9_-]*", text) is not None
