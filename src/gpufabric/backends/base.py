"""What a backend is: eleven calls over values. `Fabric` is for people; this stays small."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from socket import socket
from typing import BinaryIO, ClassVar, Protocol, runtime_checkable

from gpufabric._frozen import FrozenDict, field, frozen
from gpufabric._pause import pause
from gpufabric.errors import BackendError, Problem, SpecError
from gpufabric.job import JobRef, JobStatus, LogLine
from gpufabric.net.interconnect import Interconnect, Place
from gpufabric.net.nics import NicLayout
from gpufabric.plan import LaunchPlan, Offer, Resolution
from gpufabric.resources import Accelerator
from gpufabric.task import Task

__all__ = [
    "Backend",
    "Capability",
    "CheckItem",
    "CheckReport",
    "Command",
    "Connection",
    "Live",
    "Pool",
    "Site",
    "check_rank",
    "pause",
]


class Capability(StrEnum):
    """What a backend can do beyond planning."""

    LAUNCH = "launch"
    FOLLOW_LOGS = "follow-logs"
    RESTARTS = "restarts"
    EXEC = "exec"
    PORT_FORWARD = "port-forward"
    OFFLINE = "offline"  # `discover` waits for nothing outside this process


@frozen(kw_only=True)
class CheckItem:
    """One thing that must hold: what, whether it does, and what to do where it does not.

    `warn`: it is usable, and something is lost.
    """

    name: str
    ok: bool
    message: str = ""
    warn: bool = False


def _word(item: CheckItem) -> str:
    if not item.ok:
        return "FAIL"
    return "warn" if item.warn else "ok  "


@frozen(kw_only=True)
class CheckReport:
    """Whether a backend is usable. `check` answers without raising."""

    backend: str
    items: tuple[CheckItem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return all(item.ok for item in self.items)

    def __str__(self) -> str:
        lines = [
            f"  {_word(i)} {i.name}" + (f": {i.message}" if i.message else "") for i in self.items
        ]
        return "\n".join([f"{self.backend}: {'usable' if self.ok else 'not usable'}", *lines])


@frozen(kw_only=True)
class Pool:
    """Nodes of one kind in one place, as a backend found them. None means not known."""

    name: str
    place: Place
    platform: str
    instance_type: str | None = None
    accelerator: Accelerator | None = None
    nodes_total: int | None = None
    nodes_free: int | None = None
    gpus_free: tuple[int, ...] = ()
    cpus: float | None = None
    memory_gib: float | None = None
    nics: NicLayout = field(factory=NicLayout)
    interconnect: Interconnect | None = None
    labels: FrozenDict[str, str] = field(
        factory=FrozenDict[str, str], converter=FrozenDict[str, str]
    )
    usd_hour: float | None = None
    spot: bool = False


@frozen(kw_only=True)
class Site:
    """What a backend read about one account, cluster or machine. Plans are made from it alone.

    `unseen` says in words what could not be read. `facts` has what only this backend needs.
    """

    backend: str
    pools: tuple[Pool, ...] = ()
    unseen: tuple[str, ...] = ()
    facts: FrozenDict[str, object] = field(factory=FrozenDict[str, object])
    as_of: dt.datetime | None = None
    assumed: bool = False

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Site":
        """Builds it from plain data. Raises `SpecError`."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def to_yaml(self) -> str:
        """The same as `to_dict`, as YAML."""
        from gpufabric._yaml import dump

        return dump(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str) -> "Site":
        """Builds it from YAML text. Raises `SpecError`."""
        from gpufabric._yaml import load_value

        return load_value(cls, text)

    def __str__(self) -> str:
        from gpufabric._site_text import site_lines

        return "\n".join(site_lines(self))

    def _repr_html_(self) -> str:
        from gpufabric._site_text import sites_html

        return sites_html([(self.backend, self)])


def check_rank(node_rank: int, num_nodes: int) -> None:
    """Raises `SpecError` for a node that a gang of that size does not have."""
    if not 0 <= node_rank < num_nodes:
        told = f"{node_rank} is not within 0 to {num_nodes - 1}"
        raise SpecError([Problem(path="node_rank", message=told)])


@runtime_checkable
class Backend(Protocol):
    """One place that can run gangs. All calls are synchronous and safe from several threads.

    `discover` reads; `offers` and `plan` are pure; only `apply`, `cancel` and `teardown` write.

    - `apply` does what the plan prints: looks first, creates second; the same plan twice is one
      job; on any failure (Ctrl-C too) it removes what it made and raises with `.leftovers`.
    - `logs` gives per node the lines in order; `follow` goes on until the job ends.
    - `teardown` removes everything the plan made; of what is gone it succeeds.
    - `jobs` lists what the place itself has on record.
    """

    @property
    def name(self) -> str: ...

    capabilities: ClassVar[frozenset[Capability]]

    def check(self) -> CheckReport: ...
    def discover(self) -> Site: ...
    def offers(self, task: Task, site: Site) -> Resolution: ...
    def plan(self, task: Task, offer: Offer, site: Site, *, run: str = "") -> LaunchPlan: ...
    def apply(self, plan: LaunchPlan) -> JobRef: ...
    def status(self, ref: JobRef) -> JobStatus: ...
    def logs(
        self,
        ref: JobRef,
        *,
        node_rank: int | None = None,
        follow: bool = False,
        since: float | None = None,
    ) -> Iterator[LogLine]: ...
    def cancel(self, ref: JobRef) -> None: ...
    def teardown(self, ref: JobRef) -> None: ...
    def jobs(self) -> Iterable[JobRef]: ...
    def close(self) -> None: ...


class Command(Protocol):
    """A command that runs on a node. Its streams are pipes of this process.

    Both `stdout` and `stderr` have to be read: what nobody takes holds the command up. They end
    with the command, and closing `stdin` tells it that nothing more comes.

    - `wait` gives the exit code (128 + n after signal n). Raises `TimeoutError` after `timeout_s`,
      and a `BackendError` where the connection, or the node, ended before the command.
    - `close` ends a command that still runs, and frees everything.
    """

    @property
    def stdin(self) -> BinaryIO: ...
    @property
    def stdout(self) -> BinaryIO: ...
    @property
    def stderr(self) -> BinaryIO: ...
    def wait(self, timeout_s: float | None = None) -> int: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """A connection to a port of a node: `socket` is this process's end of it.

    `error` is what ended it, once `socket` has ended; None where that was its natural end.
    """

    @property
    def socket(self) -> socket: ...
    @property
    def error(self) -> BackendError | None: ...
    def close(self) -> None: ...


@runtime_checkable
class Live(Protocol):
    """A backend whose running nodes can be entered. Two calls beside those of `Backend`.

    Both raise `NotFoundError` where the node has ended or never was, and `TransientError` while it
    has not started.

    - `exec` starts a command with the environment and in the work folder of the node. Without
      `stdin` its input is empty. A command that is not there ends with 127, as in a shell.
    - `connect` opens a connection to a port of the node, as from within it.
    """

    def exec(
        self, ref: JobRef, command: Sequence[str], *, node_rank: int = 0, stdin: bool = False
    ) -> Command: ...
    def connect(self, ref: JobRef, port: int, *, node_rank: int = 0) -> Connection: ...
