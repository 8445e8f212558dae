"""What a simulated cloud keeps: objects, calls, faults to come, scripted behaviours."""

from enum import StrEnum
from fnmatch import fnmatchcase

from gpufabric._convert import enum_of
from gpufabric._frozen import FrozenDict, field, frozen
from gpufabric.errors import SpecError

__all__ = [
    "Behaviour",
    "Call",
    "ClockMode",
    "CloudObject",
    "Fault",
    "FaultKind",
    "Moment",
    "Phase",
    "Preemption",
    "Run",
]


class ClockMode(StrEnum):
    """How the time of a simulated cloud passes. It never follows the time of this machine."""

    AUTO = "auto"  # a look at a job moves the clock to the job's next change
    MANUAL = "manual"  # only `FakeCloud.advance` moves it


class Moment(StrEnum):
    """Whether a fault strikes before the cloud acted, or after, so that the answer is lost."""

    BEFORE = "before"
    AFTER = "after"


class FaultKind(StrEnum):
    """What a call that is struck comes to."""

    TRANSIENT = "transient"  # TransientError: throttled, connection reset
    TIMEOUT = "timeout"  # TransientError after `delay_s`
    PERMISSION = "permission"  # CredentialsError that names the missing permission
    QUOTA = "quota"  # QuotaError
    CAPACITY = "capacity"  # CapacityError
    DELAY = "delay"  # answers, `delay_s` of the cloud's time later
    HANG = "hang"  # does not come back until FakeCloud.release() or FakeBackend.close()
    KILL = "kill"  # the calling process gets SIGKILL; only where the cloud lives in a folder


def _kind(value: object) -> FaultKind:
    return enum_of(FaultKind, value)


def _moment(value: object) -> Moment:
    return enum_of(Moment, value)


@frozen(kw_only=True)
class Fault:
    """A fault that strikes a call of the cloud.

    Fields:
        operation: which calls count, `"create node"`; a pattern (`"create *"`), all by default.
        call: which of these it strikes, counted from 1 when the fault was added.
        times: how many in a row from there on; None for all that follow.
        kind, moment: what happens, and whether the cloud had acted.
        delay_s: how far the cloud's clock moves first.
    """

    kind: FaultKind = field(default=FaultKind.TRANSIENT, converter=_kind)
    operation: str = "*"
    call: int = 1
    times: int | None = 1
    moment: Moment = field(default=Moment.BEFORE, converter=_moment)
    delay_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.call < 1 or (self.times is not None and self.times < 1):
            raise SpecError("calls and times of a fault are counted from 1")
        if self.delay_s < 0:
            raise SpecError("delay_s of a fault is 0 or more")

    def counts(self, operation: str) -> bool:
        """Says whether a call of `operation` counts for this fault."""
        return fnmatchcase(operation, self.operation)

    def strikes(self, number: int) -> bool:
        """Says whether it strikes the call that is the `number`-th of those that count."""
        return number >= self.call and (self.times is None or number < self.call + self.times)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.splitlines())
    if isinstance(value, list | tuple):
        items = [item for item in value if isinstance(item, str)]  # pyright: ignore[reportUnknownVariableType]
        if len(items) == len(value):  # pyright: ignore[reportUnknownArgumentType]
            return tuple(items)
    raise SpecError("lines are text, or a list of texts")


@frozen(kw_only=True)
class Behaviour:
    """What the nodes of a task do, in place of the task's own command.

    Fields:
        task: which tasks, by name or pattern (`"llama-*"`), all by default.
        node_rank, attempt: which node and which start of the gang; None for every.
        lines, stderr: what it prints, evenly spread over its time.
        exit_code: how it ends.
        seconds: how long it runs; None for ever.
        preempted_after_s: when the node is taken back, None for never.
    """

    task: str = "*"
    node_rank: int | None = None
    attempt: int | None = None
    lines: tuple[str, ...] = field(default=(), converter=_texts)
    stderr: tuple[str, ...] = field(default=(), converter=_texts)
    exit_code: int = 0
    seconds: float | None = 1.0
    preempted_after_s: float | None = None

    def fits(self, task: str, node_rank: int, attempt: int) -> bool:
        """Says whether it is about this node of this start of the gang."""
        return (
            fnmatchcase(task, self.task)
            and self.node_rank in {None, node_rank}
            and self.attempt in {None, attempt}
        )


@frozen(kw_only=True)
class Call:
    """One call that the cloud answered or failed. `outcome` is `ok` or an error's class."""

    number: int
    operation: str
    name: str = ""
    job: str = ""
    outcome: str = "ok"
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.number}. {self.operation} {self.name or self.job}: {self.outcome}"


@frozen(kw_only=True)
class CloudObject:
    """One object of the cloud, with the tag of the job that it belongs to.

    `body` is what was asked. `uid` tells it from an earlier object of the same name.
    """

    kind: str
    name: str
    job: str
    uid: int
    body: FrozenDict[str, object] = field(factory=FrozenDict[str, object], repr=False)
    created_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Phase(StrEnum):
    """Where a gang is between its first object and its last."""

    BUILDING = "building"
    STARTED = "started"
    REMOVING = "removing"


@frozen(kw_only=True)
class Preemption:
    """A node taken back at a time of the cloud's clock."""

    node_rank: int
    at: float


@frozen(kw_only=True)
class Run:
    """How far a gang is: what happens to it from outside, kept beside its objects."""

    job: str
    uid: int
    phase: Phase = Phase.BUILDING
    created_at: float = 0.0
    started_at: float | None = None
    stopped_at: float | None = None
    boot_s: float = 0.0
    gang_timeout_s: float | None = None
    behaviours: tuple[Behaviour, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
