"""What is kept while an NCCL log streams by: bounded, and mutable until the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpufabric._frozen import FrozenDict
from gpufabric.net.records import Evidence, NetError

if TYPE_CHECKING:
    from gpufabric.net._nccl_errors import Fault
    from gpufabric.net._nccl_frame import Who

MAX_HOSTS: Final = 2_048
MAX_RANKS: Final = 16_384
_MAX_MARKS: Final = 512
_MAX_COMMS: Final = 4_096
_MAX_ENV: Final = 512
_MAX_TRANSPORTS: Final = 1_024
_MAX_MARK_HOSTS: Final = 8
_CLIP: Final = 400


def clipped(text: str) -> str:
    """The line as evidence keeps it: no longer than needed, nothing that drives a terminal."""
    text = text.strip()
    if not text.isprintable():
        text = "".join(c for c in text.replace("\t", " ") if c.isprintable())
    return text if len(text) <= _CLIP else text[: _CLIP - 1] + "…"


class HostState:
    """What one host said."""

    def __init__(self, name: str, lineno: int) -> None:
        self.name = name
        self.lineno = lineno
        self.networks: dict[str, None] = {}
        self.loaded: str | None = None
        self.version: str | None = None
        self.hcas: dict[str, dict[str, object]] = {}
        self.env: dict[str, str] = {}
        self.gdr: dict[str, bool] = {}
        self.oob: tuple[str, str] | None = None
        self.bootstrap: tuple[str, str] | None = None
        self.sockets: dict[str, str] = {}


class MarkState:
    """A named kind of line: how often, where first, by whom."""

    __slots__ = ("count", "first", "hosts", "level", "values")

    def __init__(self, first: Evidence, level: str, values: dict[str, str]) -> None:
        self.count = 0
        self.first = first
        self.level = level
        self.hosts: dict[str, None] = {}
        self.values = values


class RankState:
    """One rank of one communicator."""

    __slots__ = (
        "bus_id", "comm", "complete", "dev", "host", "lineno", "n_ranks", "nvml", "rank", "started",
    )  # fmt: skip

    def __init__(self, rank: int, n_ranks: int, lineno: int) -> None:
        self.rank = rank
        self.n_ranks = n_ranks
        self.lineno = lineno
        self.host: str | None = None
        self.comm: str | None = None
        self.dev: int | None = None
        self.nvml: int | None = None
        self.bus_id: str | None = None
        self.started = False
        self.complete = False


class LogState:
    """Everything known so far."""

    def __init__(self) -> None:
        self.info_lines = 0
        self.warn_lines = 0
        self.trace_lines = 0
        self.torn_lines = 0
        self.last_time: str | None = None
        self.hosts: dict[str, HostState] = {}
        self.more_hosts: set[str] = set()
        self.nowhere = HostState("", 0)
        """Lines without a frame: an excerpt that lost it."""
        self.versions: dict[str, None] = {}
        self.cuda_build: str | None = None
        self.cuda_driver: int | None = None
        self.library: str | None = None
        self.ranks: dict[tuple[str | None, int], RankState] = {}
        self.ranks_left_out = 0
        self.comms: dict[str, int] = {}
        self.n_comms_left_out = 0
        self.layout: tuple[int, int, int | None, bool | None] | None = None
        """nRanks, nNodes, localRanks and MNNVL of the largest communicator."""
        self.channels: dict[str, int] = {}
        self.nvls: bool | None = None
        self.ring: tuple[bool, bool] | None = None
        self.relaxed_ordering: bool | None = None
        self.provider: str | None = None
        self.n_provider_nics: int | None = None
        self.facts: dict[str, str] = {}
        self.connections: dict[tuple[str, str | None], list[int]] = {}
        self.first_connection: dict[tuple[str, str | None], Evidence] = {}
        self.marks: dict[tuple[str, str], MarkState] = {}
        self.return_codes: dict[int, None] = {}

    def host(self, name: str | None, lineno: int = 0) -> HostState:
        """The state of a host; those beyond the limit share one that is not shown."""
        if name is None:
            return self.nowhere
        state = self.hosts.get(name)
        if state is None:
            if len(self.hosts) >= MAX_HOSTS:
                if len(self.more_hosts) < 65_536:
                    self.more_hosts.add(name)
                return HostState(name, lineno)
            state = self.hosts[name] = HostState(name, lineno)
        return state

    def every_host(self) -> list[HostState]:
        """All hosts with a name, and what came without one if anything did."""
        return [*self.hosts.values(), self.nowhere]

    def mark(  # noqa: PLR0913, PLR0917 - who said what where, as every handler has it
        self,
        name: str,
        host: str | None,
        lineno: int,
        raw: str,
        level: str,
        values: dict[str, str] | None = None,
        *,
        key: str = "",
    ) -> None:
        """Counts a line of a known kind and keeps the first one."""
        mark = self.marks.get((name, key))
        if mark is None:
            if len(self.marks) >= _MAX_MARKS:
                if not key:
                    return
                mark = self.marks.get((name, ""))
                if mark is None:
                    return
            else:
                mark = MarkState(Evidence(lineno, clipped(raw)), level, dict(values or {}))
                self.marks[(name, key)] = mark
        mark.count += 1
        if host is not None and len(mark.hosts) < _MAX_MARK_HOSTS:
            mark.hosts.setdefault(host)

    def connection(self, transport: str, direction: str | None, first: Evidence) -> list[int]:
        """The counter of one kind of connection."""
        key = (transport, direction)
        counter = self.connections.get(key)
        if counter is None:
            if len(self.connections) >= _MAX_TRANSPORTS:
                return [0]
            counter = self.connections[key] = [0]
            self.first_connection[key] = first
        return counter

    def rank(self, comm: str | None, rank: int, n_ranks: int, lineno: int) -> RankState | None:
        """The state of one rank of a communicator."""
        state = self.ranks.get((comm, rank))
        if state is None:
            if len(self.ranks) >= MAX_RANKS:
                self.ranks_left_out += 1
                return None
            state = self.ranks[(comm, rank)] = RankState(rank, n_ranks, lineno)
        return state

    def comm(self, name: str, n_ranks: int) -> None:
        """A communicator and its size."""
        if name not in self.comms and len(self.comms) >= _MAX_COMMS:
            self.n_comms_left_out += 1
            return
        self.comms[name] = n_ranks

    def env(self, host: str | None, name: str, value: str) -> None:
        """A variable NCCL read."""
        env = self.host(host).env
        if name in env or len(env) < _MAX_ENV:
            env.setdefault(name, value)


_TYPED: Final = ("port", "peer_port", "status", "vendor_err", "errno", "rank", "bytes")
_NAMED: Final = ("device", "peer", "text", "path")


def error_of(fault: Fault, who: Who, lineno: int, text: str) -> NetError:
    """A fault as a record, with who said it."""
    numbers = {
        name: int(value)
        for name in _TYPED
        if (value := fault.fields.get(name, "")).isdecimal() and len(value) < 19
    }
    words = {name: fault.fields[name].strip() for name in _NAMED if name in fault.fields}
    rest = {
        name: value
        for name, value in fault.fields.items()
        if name not in _TYPED and name not in _NAMED
    }
    rank = numbers.get("rank")
    second = fault.fields.get("rank2", "")
    ranks = [rank] if rank is not None else []
    if second.isdecimal():
        ranks.append(int(second[:9]))
    return NetError(
        kind=fault.kind,
        evidence=Evidence(lineno, clipped(text)),
        host=who.host,
        local_dev=who.dev,
        rank=rank,
        ranks=tuple(ranks),
        device=words.get("device"),
        port=numbers.get("port"),
        peer=words.get("peer"),
        peer_port=numbers.get("peer_port"),
        status=numbers.get("status"),
        vendor_err=numbers.get("vendor_err"),
        errno=numbers.get("errno"),
        text=words.get("text") or None,
        path=words.get("path"),
        bytes=numbers.get("bytes"),
        time=who.time,
        values=FrozenDict(rest),
    )
