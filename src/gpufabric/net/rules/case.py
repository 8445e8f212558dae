"""A report as rules ask about it: questions that several rules share, answered once."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net.records import (
    BenchRow,
    BenchTable,
    Connection,
    Devices,
    Evidence,
    Gdr,
    Mark,
    NcclLog,
    NetError,
    Topology,
)

if TYPE_CHECKING:
    from gpufabric.net.promise import Promise
    from gpufabric.net.report import NetReport

SOCKETS: Final = frozenset({"Socket", "FastSocket"})
_OWN_GPUDIRECT: Final = re.compile(r"FasTrak|GPUDirectTCPX")
"""Networks whose GPUDirect is not RDMA: their lines never say GDRDMA."""
_NO_GPUDIRECT: Final = re.compile(r"GeForce|TITAN|RTX [2345]0[5-9]0\b", re.IGNORECASE)
DATACENTER_GPU: Final = re.compile(
    r"\b(?:A100|A800|H100|H800|H200|H20|GH200|B200|B300|GB200|GB300)\b"
)
MEBI: Final = 2**20
TCP_FLAT: Final = 6.0
"""GB/s: what TCP gives between GPU nodes (3-4 untuned, more sockets a little more)."""


class Case:
    """One report, with what was promised if anything was."""

    def __init__(self, report: NetReport, promise: Promise | None = None) -> None:
        self.report = report
        self.promise = promise

    # -- what the text has -----------------------------------------------------------------

    @functools.cached_property
    def log(self) -> NcclLog:
        """NCCL's log, an empty one where there is none."""
        return self.report.nccl_log or NcclLog()

    @functools.cached_property
    def devices(self) -> Devices:
        """The devices, none where none are told."""
        return self.report.devices or Devices()

    @functools.cached_property
    def topology(self) -> Topology | None:
        """The topology, if the text has one."""
        return self.report.topology

    @functools.cached_property
    def _marks(self) -> Mapping[str, tuple[Mark, ...]]:
        found: dict[str, list[Mark]] = {}
        for mark in self.log.marks:
            found.setdefault(mark.name, []).append(mark)
        return {name: tuple(marks) for name, marks in found.items()}

    def marks(self, *names: str) -> tuple[Mark, ...]:
        """The lines of these meanings."""
        return tuple(mark for name in names for mark in self._marks.get(name, ()))

    def errors(self, *kinds: str) -> tuple[NetError, ...]:
        """The faults of these kinds that are not follow-ups of others."""
        return tuple(
            error
            for error in self.report.errors
            if error.kind in kinds and error.root_cause is not False
        )

    def any_errors(self, *kinds: str) -> tuple[NetError, ...]:
        """The faults of these kinds, follow-ups too."""
        return tuple(error for error in self.report.errors if error.kind in kinds)

    @functools.cached_property
    def root_errors(self) -> tuple[NetError, ...]:
        """Faults that nothing earlier explains."""
        return tuple(e for e in self.report.errors if e.root_cause is not False)

    @functools.cached_property
    def env(self) -> Mapping[str, str]:
        """Variables as NCCL read them, else as the launcher hands them out."""
        told = {name: value for name, value in self.launch_env.items() if value is not None}
        return {**told, **(self.log.env or {})}

    @functools.cached_property
    def launch_env(self) -> Mapping[str, str | None]:
        """Variables that a command line or a dump of the environment shows."""
        rows = self.devices.values.get("environment")
        found: dict[str, str | None] = {}
        for name, facts in mapping(rows).items():
            value = mapping(facts).get("value")
            found[name] = value if isinstance(value, str) else None
        return found

    def env_evidence(self, name: str) -> Evidence:
        """The line where a variable stands, as far as it is known."""
        for mark in self.marks("env"):
            if mark.values.get("name") == name:
                return mark.first
        facts = mapping(mapping(self.devices.values.get("environment")).get(name))
        lineno = facts.get("lineno")
        text = f"{name}={self.env.get(name, '')}"
        return Evidence(lineno if isinstance(lineno, int) else 0, text)

    def fact(self, name: str) -> object:
        """A fact of the machine: memlock_bytes, memory_peers, ended_by, ..."""
        return self.devices.values.get(name)

    def fact_evidence(self, name: str, text: str) -> Evidence:
        """The line of a fact of the machine."""
        at = mapping(self.devices.values.get("values_at")).get(name)
        return Evidence(at if isinstance(at, int) else 0, text)

    def detail(self, group: str) -> Mapping[str, Mapping[str, object]]:
        """Facts by name: modules, netdevs, pci, nccl_conf, environment."""
        rows = mapping(self.devices.values.get(group))
        return {name: mapping(facts) for name, facts in rows.items()}

    # -- how many nodes --------------------------------------------------------------------

    @functools.cached_property
    def n_nodes(self) -> int | None:
        """Machines of the job, where the text tells."""
        told = self.report.header.n_nodes or self.log.n_nodes
        if told is not None:
            return told
        hosts = self.log.n_hosts_seen
        return hosts if hosts is not None and hosts > 1 else self._promised_nodes

    @functools.cached_property
    def _promised_nodes(self) -> int | None:
        """Nodes of the offer where the text tells no other number of ranks.

        Of an instance type the number of nodes is known only where one cannot hold all ranks.
        """
        promise, ranks = self.promise, self.n_ranks
        if promise is None or ranks is None:
            return promise.num_nodes if promise else None
        if promise.num_nodes and ranks == promise.num_nodes * (promise.gpus_per_node or 0):
            return promise.num_nodes
        gpus = promise.node_gpus or 0
        return -(-ranks // gpus) if 0 < gpus < ranks else None

    @functools.cached_property
    def n_ranks(self) -> int | None:
        """Ranks of the job, where the text tells."""
        return self.report.header.n_ranks or self.log.n_ranks

    @functools.cached_property
    def crosses_nodes(self) -> bool | None:
        """Whether the job has several nodes; None where that cannot be known."""
        if self.n_nodes is not None:
            return self.n_nodes > 1
        if any(c.transport.startswith("NET/") for c in self.log.connections):
            return True
        if self.n_ranks is None:
            return None
        if self.n_ranks > 16:
            return True  # no machine has more GPUs than that (DGX-2, p2.16xlarge)
        hosts, spoken = self.log.n_hosts_seen, len(self.ranks_by_host)
        if self.n_ranks <= 8 and hosts == 1 and spoken == 1 and self.log.connections:
            # Several ranks of one host show their connections, and none leaves it.
            return False if max(self.ranks_by_host.values()) > 1 else None
        return None

    # -- the network in use ----------------------------------------------------------------

    @functools.cached_property
    def networks(self) -> tuple[str, ...]:
        """Every network that some process named or connected by."""
        used = (
            c.transport.split("/")[1]
            for c in self.log.connections
            if c.transport.startswith("NET/")
        )
        return tuple(dict.fromkeys((*self.log.networks, *used)))

    @functools.cached_property
    def uses_socket(self) -> bool:
        """Whether sockets, and nothing faster, carry the traffic."""
        return bool(self.networks) and all(network in SOCKETS for network in self.networks)

    @functools.cached_property
    def uses_rdma(self) -> bool:
        """Whether something faster than sockets carries the traffic."""
        return any(network not in SOCKETS for network in self.networks)

    @functools.cached_property
    def platform(self) -> Promise | None:
        """What the instance type that the log itself names is sold with (aws-ofi-nccl says it)."""
        from gpufabric.net.promise import find_promise

        return find_promise(self.log.platform) if self.log.platform else None

    @functools.cached_property
    def tcp_is_meant(self) -> bool:
        """Whether what was promised is plain TCP."""
        return self.promise is not None and self.promise.tcp_only

    @functools.cached_property
    def shown_to_work(self) -> bool:
        """Whether traffic is seen to pass and nothing has failed: settings then did no harm."""
        passes = bool(self.log.connections) or any(t.avg_bus_bandwidth for t in self.tables)
        return passes and not self.root_errors

    @functools.cached_property
    def goes_by_nvlink(self) -> bool:
        """Whether NVLink between nodes carries the traffic."""
        return any(c.transport.startswith("P2P/MNNVL") for c in self.log.connections)

    @functools.cached_property
    def carried(self) -> bool:
        """Whether another network than the built-in IB did the job, or none was needed."""
        beyond = [n for n in self.networks if n not in SOCKETS and n != "IB"]
        return bool(beyond) or self.crosses_nodes is False or self.tcp_is_meant

    @functools.cached_property
    def rdma_connections(self) -> tuple[Connection, ...]:
        """Network connections on which GPUDirect RDMA would show."""
        found = [
            c
            for c in self.log.connections
            if c.transport.startswith("NET/") and c.transport.split("/")[1] not in SOCKETS
        ]
        return tuple(c for c in found if not _OWN_GPUDIRECT.match(c.transport.split("/")[1]))

    @functools.cached_property
    def gdr_seen(self) -> bool:
        """Whether a connection shows GPUDirect RDMA."""
        return any("/GDRDMA" in c.transport for c in self.log.connections)

    @functools.cached_property
    def gdr_could_be(self) -> bool:
        """Whether this GPU can do GPUDirect RDMA, as far as its name tells."""
        gpu = self.gpu or ""
        return not _NO_GPUDIRECT.search(gpu)

    @functools.cached_property
    def gdr(self) -> Gdr | None:
        """GPUDirect as the log tells it."""
        return self.log.gdr

    @functools.cached_property
    def gpu(self) -> str | None:
        """The GPU's name from the text, else as promised."""
        told = self.report.header.gpu
        return told or (self.promise.gpu if self.promise else None)

    @functools.cached_property
    def is_datacenter_gpu(self) -> bool:
        """Whether the GPU is of a kind that is sold with an RDMA network."""
        return DATACENTER_GPU.search(self.gpu or "") is not None

    @functools.cached_property
    def nccl_version(self) -> tuple[int, ...] | None:
        """NCCL's version as numbers."""
        text = self.report.header.nccl_version or next(iter(self.log.versions), None)
        return version_of(text)

    # -- benchmarks ------------------------------------------------------------------------

    @functools.cached_property
    def tables(self) -> tuple[BenchTable, ...]:
        """Tables with rows."""
        return tuple(table for table in self.report.tables if table.rows)

    # -- hosts -----------------------------------------------------------------------------

    @functools.cached_property
    def ranks_by_host(self) -> Counter[str]:
        """Ranks of the largest communicator on each host that has spoken."""
        size = self.n_ranks
        return Counter(
            rank.host for rank in self.log.ranks if rank.host is not None and rank.n_ranks == size
        )

    @functools.cached_property
    def unfinished_ranks(self) -> tuple[int, ...]:
        """Ranks of the largest communicator that started and did not complete its set-up."""
        size = self.n_ranks
        return tuple(
            rank.rank
            for rank in self.log.ranks
            if rank.n_ranks == size and rank.started and not rank.complete
        )


def largest_row(table: BenchTable) -> BenchRow:
    """The row of the largest size, the last one of several."""
    return max(reversed(table.rows), key=lambda row: row.size_bytes)


def busbw(row: BenchRow) -> float | None:
    """The better half's bus bandwidth of a row."""
    found = [
        half.busbw for half in (row.out_of_place, row.in_place) if half and half.busbw is not None
    ]
    return max(found) if found else None


def flat_speed(table: BenchTable) -> float | None:
    """The speed of a table that stays at what TCP gives, whatever the size; else None."""
    speeds = [
        speed
        for row in table.rows
        if row.size_bytes >= 32 * MEBI and (speed := busbw(row)) is not None
    ]
    flat = len(speeds) >= 2 and min(speeds) > 0 and max(speeds) <= TCP_FLAT
    return max(speeds) if flat else None


def row_evidence(row: BenchRow) -> Evidence:
    """A table row as evidence."""
    bandwidth = busbw(row)
    told = "no bandwidth" if bandwidth is None else f"busbw {bandwidth:g} GB/s"
    return Evidence(row.lineno or 0, f"{row.size_bytes} bytes: {told}")


def evidence_of(found: Iterable[Mark | NetError | Connection]) -> tuple[Evidence, ...]:
    """The first line of each, in the order of the text."""
    lines = {each.evidence if isinstance(each, NetError) else each.first: None for each in found}
    return tuple(sorted(lines, key=lambda line: line.lineno))


def version_of(text: str | None) -> tuple[int, ...] | None:
    """The version "2.22.3" as (2, 22, 3)."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part[:6]) for part in found[0].split(".")) if found else None


def ipv4_of(gid: str | None) -> ipaddress.IPv4Address | None:
    """The IPv4 address in a GID such as ::ffff:10.0.0.1 or 0000:...:ffff:0a00:0001."""
    try:
        address = ipaddress.ip_address((gid or "").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped


def is_link_local(gid: str | None) -> bool:
    """Whether a GID is fe80::, which no router passes on."""
    return (gid or "").lower().startswith("fe80:")


def mapping(value: object) -> Mapping[str, object]:
    """A frozen mapping of facts, an empty one where it is something else."""
    return cast("Mapping[str, object]", value) if isinstance(value, FrozenDict) else {}


def iter_values(value: object) -> Iterator[object]:
    """The items of a tuple of unknown things."""
    if isinstance(value, tuple):
        yield from cast("tuple[object, ...]", value)
