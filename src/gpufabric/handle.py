"""JobHandle: a job that runs somewhere, found by its ref, from any process."""

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpufabric.backends.base import Backend
from gpufabric.config import Settings
from gpufabric.errors import JobTimeoutError
from gpufabric.job import Attempt, JobRef, JobState, JobStatus, LogLine
from gpufabric.plan import LaunchPlan, LaunchPolicy

if TYPE_CHECKING:
    from gpufabric.bench import BenchReport

__all__ = ["JobHandle"]


class JobHandle:
    """A job that runs somewhere. As a context manager it tears the job down at the end.

    A plain handle may be dropped: the job goes on, and `Fabric.attach(ref)` finds it again.
    """

    def __init__(  # noqa: PLR0913  # made by Fabric alone
        self,
        ref: JobRef,
        backend: Backend,
        *,
        settings: Settings,
        plan: LaunchPlan | None = None,
        attempts: Sequence[Attempt] = (),
        policy: LaunchPolicy | None = None,
    ) -> None:
        """Made by `Fabric.launch` and `Fabric.attach`."""
        self.ref = ref
        #: What was launched; None on a handle that was attached.
        self.plan = plan
        #: Every offer that was tried, the one that took last.
        self.attempts = tuple(attempts)
        self.policy = policy or LaunchPolicy()
        self._backend = backend
        self._settings = settings

    def __repr__(self) -> str:
        return f"JobHandle({str(self.ref)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.teardown()

    def status(self) -> JobStatus:
        """Asks the place for the job's state; `GONE` when it has none such."""
        return self._backend.status(self.ref)

    def wait(self, *, timeout: float | None = None) -> JobStatus:
        """Waits until the job has ended and gives its last state.

        Raises `JobTimeoutError` after `timeout` seconds; the job goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.01
        while True:
            status = self.status()
            if status.state.ended:
                return status
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise JobTimeoutError(
                    f"{self.ref} is {status.state.value} after {timeout:g} s of waiting; it goes on"
                    " (cancel() stops it)",
                    ref=self.ref,
                )
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, self._settings.poll_s)

    def logs(
        self, *, node_rank: int | None = None, follow: bool = False, since: float | None = None
    ) -> Iterator[LogLine]:
        """Gives the lines of all nodes, or of one; `follow` goes on until the job ends.

        `since` leaves out what was written before, in seconds since 1970.
        """
        return self._backend.logs(self.ref, node_rank=node_rank, follow=follow, since=since)

    def cancel(self) -> None:
        """Stops the processes; logs and state stay until `teardown`."""
        self._backend.cancel(self.ref)

    def teardown(self) -> None:
        """Removes everything that the launch made. Of what is gone it succeeds."""
        self._backend.teardown(self.ref)

    def bench(self, *, timeout: float | None = None) -> "BenchReport":
        """Waits for a benchmark job and reads its table from rank 0's output.

        Raises `JobFailedError`, `JobTimeoutError`, and `ParseError` where there is no table.
        """
        from gpufabric.bench import BenchReport

        status = self.wait(timeout=timeout).raise_for_state()
        if status.state is JobState.GONE:
            raise JobTimeoutError(f"{self.ref} is gone, and its output with it", ref=self.ref)
        lines = (line.text for line in self.logs(node_rank=0) if line.stream == "stdout")
        return BenchReport.from_text(lines)
