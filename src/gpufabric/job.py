"""What is known of a job: its name everywhere (`JobRef`), its state, its log lines."""

import re
from enum import StrEnum
from typing import cast

from gpufabric._frozen import frozen
from gpufabric.errors import JobFailedError, JobTimeoutError, SpecError, shown

__all__ = ["ExecResult", "JobRef", "JobState", "JobStatus", "LogLine", "NodeStatus"]

GANG = -1
"""The `node_rank` of what a place says of the gang as a whole."""
_REF = re.compile(r"^([a-z0-9][a-z0-9_-]*)://(.*)/([^/\s]+)$")


@frozen(kw_only=True)
class JobRef:
    """A job's name that any process can attach to: `backend://place/name`.

    `place` is the backend's own (a region, a context and namespace); it may hold slashes.
    """

    backend: str
    place: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "JobRef":
        """Reads `aws://us-east-1/train-7c1e`. Raises `SpecError`."""
        match = _REF.match(text.strip()) if isinstance(cast("object", text), str) else None
        if match is None:
            raise SpecError(f"{shown(text)} is not a job: write backend://place/name")
        backend, place, name = match.groups()
        return cls(backend=backend, place=place, name=name)

    def __plain__(self) -> str:
        return str(self)

    @classmethod
    def __parse__(cls, value: object) -> "JobRef":
        return cls.parse(cast("str", value))

    def __str__(self) -> str:
        return f"{self.backend}://{self.place}/{self.name}"


class JobState(StrEnum):
    """Where a job or a node of it is.

    A job only moves down this list; a restart may go back from RUNNING to STARTING.
    """

    PENDING = "pending"  # accepted, no node has started
    STARTING = "starting"  # nodes are being made ready
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    LOST = "lost"  # what ran it is gone; nothing can be said of its end
    GONE = "gone"  # torn down, or it never was

    @property
    def ended(self) -> bool:
        """Whether it will not change by itself any more."""
        return self not in {JobState.PENDING, JobState.STARTING, JobState.RUNNING}


@frozen(kw_only=True)
class NodeStatus:
    """One node of the gang. `exit_code` follows the shell: 128 + n after signal n."""

    node_rank: int
    state: JobState
    exit_code: int | None = None
    reason: str = ""
    host: str | None = None
    started_at: float | None = None
    ended_at: float | None = None


@frozen(kw_only=True)
class JobStatus:
    """A job as it is now. Times are seconds since 1970; `attempt` counts restarts from 0."""

    ref: JobRef
    state: JobState
    nodes: tuple[NodeStatus, ...] = ()
    attempt: int = 0
    exit_code: int | None = None
    reason: str = ""
    tail: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None

    def raise_for_state(self) -> "JobStatus":
        """Gives itself if the job succeeded or has not ended.

        Raises `JobTimeoutError` when its time ran out, `JobFailedError` for any other end.
        """
        if not self.state.ended or self.state is JobState.SUCCEEDED:
            return self
        message = f"{self.ref} {self.state.value}" + (f": {self.reason}" if self.reason else "")
        if self.state is JobState.TIMED_OUT:
            raise JobTimeoutError(message, ref=self.ref)
        raise JobFailedError(
            message,
            ref=self.ref,
            exit_codes=[(node.node_rank, node.exit_code) for node in self.nodes],
            tail=self.tail,
        )


@frozen(kw_only=True)
class LogLine:
    """One line that a node wrote, without its newline.

    `stream` is `stdout`, `stderr` or `event`: the place's own words about the node, or about the
    gang as a whole with `node_rank` -1. `data` has the exact bytes, `text` shows them. `time` is
    seconds since 1970 where the place tells.
    """

    node_rank: int
    data: bytes
    stream: str = "stdout"
    attempt: int = 0
    time: float | None = None

    @property
    def text(self) -> str:
        r"""The line as text; bytes that are not UTF-8 are shown as `\xNN`."""
        return self.data.decode("utf-8", "backslashreplace")

    def __str__(self) -> str:
        who = "gang" if self.node_rank == GANG else self.node_rank
        return f"[{who}] {self.text}"


@frozen(kw_only=True)
class ExecResult:
    """What a command in a node said, and its exit code (128 + n after signal n, as in a shell)."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    node_rank: int = 0

    @property
    def text(self) -> str:
        r"""Standard output as text; bytes that are not UTF-8 are shown as `\xNN`."""
        return self.stdout.decode("utf-8", "backslashreplace")
