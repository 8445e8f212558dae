"""What the readers of network texts find, as frozen values.

``None`` in any field means that the text does not tell. Collections are bounded where a text may
be long: next to each stands a count of what was seen in all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from gpufabric._frozen import FrozenDict, frozen

_ABSURD: Final = 1e15
_NO_STR_MAP: FrozenDict[str, str] = FrozenDict()


class Gdr(StrEnum):
    """Whether NICs read and write GPU memory themselves (GPUDirect)."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    MIXED = "mixed"
    UNKNOWN = "unknown"


@frozen
class Evidence:
    """A line of the source that says so; long lines are clipped."""

    lineno: int
    text: str


@frozen
class Unread:
    """A line that looked like one of a known format and could not be read."""

    lineno: int
    text: str


@frozen(kw_only=True)
class Device:
    """A device line of an nccl-tests header: one rank and the GPU it drives."""

    rank: int
    host: str | None
    gpu: str
    local_dev: int | None = None
    pid: int | None = None
    group: int | None = None
    bus_id: str | None = None


@frozen(kw_only=True)
class Header:
    """Who ran what, as the header of a benchmark or the first lines of a log tell."""

    nccl_version: str | None = None
    cuda_driver: int | None = None
    cuda_build: str | None = None
    gpu: str | None = None
    n_ranks: int | None = None
    n_ranks_basis: str | None = None
    n_nodes: int | None = None
    ranks_per_node: int | None = None
    iters: int | None = None
    warmup_iters: int | None = None
    validation: bool | None = None
    complete: bool | None = None
    tests_version: str | None = None
    library: str | None = None
    """Either nccl or rccl, where the text tells."""
    devices: tuple[Device, ...] = ()
    parameters: FrozenDict[str, str] = _NO_STR_MAP
    """The rest of the parameter line: minBytes, maxBytes, step, agg iters, graph, ..."""
    memory_report: str | None = None
    average_check: str | None = None
    """OK or FAILED behind the average, which is there only with NCCL_TESTS_MIN_BW."""
    failures: tuple[Evidence, ...] = ()
    """Lines such as "Test NCCL failure common.cu:1279 ...", one for each process and level."""
    n_headers: int = 0
    """Parameter lines seen; more than one without a footer between = built without MPI."""
    n_footers: int = 0


@frozen
class Measured:
    """One half of a table row. Bandwidths are 10^9 bytes/s; ``wrong`` is None for N/A."""

    time_us: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    wrong: float | None = None
    """A count of wrong elements (#wrong), or in old layouts the largest difference (error)."""


@frozen(kw_only=True)
class BenchRow:
    """One message size of an nccl-tests table."""

    size_bytes: int
    count: int | None
    out_of_place: Measured | None
    in_place: Measured | None
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    lineno: int | None = None
    timestamp: str | None = None

    def busbws(self) -> tuple[float, ...]:
        """The bus bandwidths printed in this row, out of place first."""
        # nan and inf are printed where a time is zero; they have no mean.
        found: list[float] = []
        for half in (self.out_of_place, self.in_place):
            busbw = None if half is None else half.busbw
            if busbw is not None and -_ABSURD < busbw < _ABSURD:
                found.append(busbw)
        return tuple(found)


@frozen(kw_only=True)
class BenchTable:
    """One nccl-tests table with all its rows, in the order printed."""

    rows: tuple[BenchRow, ...]
    collective: str | None = None
    collective_basis: str | None = None
    n_ranks: int | None = None
    n_ranks_basis: str | None = None
    n_ranks_range: tuple[int, int] | None = None
    """What busbw/algbw allows after rounding, where the collective's factor tells ranks."""
    avg_bus_bandwidth: float | None = None
    out_of_bounds_count: int | None = None
    out_of_bounds_word: str | None = None
    mean_of_printed_rows: float | None = None
    printed_rows_are_complete: bool | None = None
    wrong_is_count: bool = True
    """False where the column is called error: a difference such as 5e-07, not a count."""
    time_is_cpu: bool = False
    per_iteration: bool = False
    lineno: int | None = None
    rows_left_out: int = 0
    errors: tuple[str, ...] = ()


@frozen(kw_only=True)
class Connection:
    """Connections of one kind that NCCL made: how many, and the first line that says so."""

    transport: str
    """As printed after "via", for example NET/IB/0/GDRDMA or P2P/CUMEM/read."""
    direction: str | None
    """send, receive, or None where none is printed (inside a node)."""
    network: bool
    count: int
    first: Evidence


@frozen(kw_only=True)
class Hca:
    """One NIC that NCCL lists as in use."""

    name: str
    index: int | None = None
    port: int | None = None
    link_layer: str | None = None
    sharp: bool = False
    merged_into: int | None = None
    speed_mbps: int | None = None
    pci_path: str | None = None


@frozen(kw_only=True)
class RankInit:
    """One rank of one communicator."""

    rank: int
    n_ranks: int
    host: str | None = None
    comm_id: str | None = None
    local_dev: int | None = None
    nvml_dev: int | None = None
    bus_id: str | None = None
    started: bool = False
    complete: bool = False
    lineno: int | None = None


@frozen(kw_only=True)
class Mark:
    """A line with a meaning of its own, by a fixed name, for the rules that diagnose.

    ``values`` holds what the line carries. ``hosts`` are those that said it, the first few.
    """

    name: str
    count: int
    first: Evidence
    level: str
    hosts: tuple[str, ...] = ()
    values: FrozenDict[str, str] = _NO_STR_MAP


@frozen(kw_only=True)
class HostView:
    """What one host said, where hosts can differ."""

    host: str
    networks: tuple[str, ...] = ()
    net_plugin: str | None = None
    nccl_version: str | None = None
    hcas: tuple[Hca, ...] = ()
    env: FrozenDict[str, str] = _NO_STR_MAP
    gdr_by_hca: FrozenDict[str, bool] = FrozenDict()
    oob_interface: str | None = None
    oob_address: str | None = None
    socket_interfaces: tuple[str, ...] = ()
    gdr_without_dmabuf: bool | None = None
    lineno: int | None = None


@frozen(kw_only=True)
class NcclLog:
    """What NCCL said about itself in INFO, WARN and TRACE lines."""

    network: str | None = None
    networks: tuple[str, ...] = ()
    net_plugin: str | None = None
    provider: str | None = None
    n_provider_nics: int | None = None
    fabric: str | None = None
    protocol: str | None = None
    platform: str | None = None
    plugin_version: str | None = None
    libfabric_version: str | None = None
    hcas: tuple[Hca, ...] | None = None
    link_layer: str | None = None
    relaxed_ordering: bool | None = None
    gdr: Gdr | None = None
    gdr_by_hca: FrozenDict[str, bool] | None = None
    ring_gdr: bool | None = None
    ring_pxn: bool | None = None
    inter_node_transport: str | None = None
    intra_node_transport: str | None = None
    oob_interface: str | None = None
    oob_address: str | None = None
    socket_interfaces: tuple[str, ...] | None = None
    socket_addresses: FrozenDict[str, str] = _NO_STR_MAP
    env: FrozenDict[str, str] | None = None
    env_by_host_differs: tuple[str, ...] = ()
    channels: int | None = None
    nvls_channels: int | None = None
    collnet_channels: int | None = None
    p2p_channels: int | None = None
    n_ranks: int | None = None
    n_nodes: int | None = None
    ranks_per_node: int | None = None
    mnnvl: bool | None = None
    nvls: bool | None = None
    n_hosts_seen: int | None = None
    hosts: tuple[HostView, ...] = ()
    hosts_left_out: int = 0
    comm_id: str | None = None
    n_comms: int = 0
    ranks: tuple[RankInit, ...] = ()
    ranks_left_out: int = 0
    connections: tuple[Connection, ...] = ()
    marks: tuple[Mark, ...] = ()
    versions: tuple[str, ...] = ()
    library: str | None = None
    return_codes: tuple[int, ...] = ()
    info_lines: int = 0
    warn_lines: int = 0
    trace_lines: int = 0
    torn_lines: int = 0
    last_time: str | None = None


@frozen(kw_only=True)
class NetError:
    """One fault that the text reports. ``count`` lines say the same."""

    kind: str
    evidence: Evidence
    level: str = "WARN"
    host: str | None = None
    local_dev: int | None = None
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    device: str | None = None
    port: int | None = None
    peer: str | None = None
    peer_port: int | None = None
    status: int | None = None
    vendor_err: int | None = None
    errno: int | None = None
    text: str | None = None
    path: str | None = None
    bytes: int | None = None
    phase: str | None = None
    op: str | None = None
    seq: int | None = None
    numel: int | None = None
    timeout_ms: int | None = None
    pg: int | None = None
    time: str | None = None
    count: int = 1
    root_cause: bool | None = None
    """False = a follow-up of an earlier one; None = the text does not tell."""
    values: FrozenDict[str, str] = _NO_STR_MAP
    """Further words of the line: local_gid, remote_gid, gid_index, side, state, ..."""


@frozen(kw_only=True)
class RankState:
    """Where one rank of a process group stood when its watchdog spoke."""

    rank: int
    pg: int | None = None
    pg_name: str | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    timed_out: bool = False
    lineno: int | None = None


@frozen(kw_only=True)
class FlightEntry:
    """One collective of a flight-recorder dump."""

    seq: int | None
    op: str | None
    state: str | None
    pg: int | None = None
    numel: int | None = None
    timeout_ms: int | None = None


@frozen(kw_only=True)
class TorchLog:
    """What torch.distributed said about its process groups."""

    pg: int | None = None
    pg_name: str | None = None
    rank: int | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    ranks: tuple[RankState, ...] = ()
    flight: tuple[FlightEntry, ...] = ()
    flight_count: int = 0


@frozen(kw_only=True)
class Topology:
    """What a topology matrix or file tells about the paths between GPUs and NICs."""

    n_gpus: int | None = None
    n_nics: int | None = None
    n_cpus: int | None = None
    gpu_nic_path: str | FrozenDict[str, str] | None = None
    nearest_nics: FrozenDict[str, tuple[str, ...]] | None = None
    gpus_without_near_nic: tuple[str, ...] | None = None
    cpu_affinity: FrozenDict[str, str] | None = None
    nvlinks_per_gpu: int | FrozenDict[str, int] | None = None
    nets: tuple[FrozenDict[str, object], ...] | None = None
    matrix: FrozenDict[str, FrozenDict[str, str]] | None = None


@frozen(kw_only=True)
class HcaState:
    """One RDMA device as a tool or sysfs reports it."""

    name: str
    link_layer: str | None = None
    rate_gbps: float | None = None
    state: str | None = None
    phys: str | None = None
    hca_type: str | None = None
    values: FrozenDict[str, object] = FrozenDict()


@frozen(kw_only=True)
class Devices:
    """The RDMA devices and network interfaces of the machines that the text is about."""

    hcas: tuple[HcaState, ...] | None = None
    down: tuple[FrozenDict[str, object], ...] | None = None
    counters: FrozenDict[str, object] | None = None
    netdev_down: tuple[str, ...] | None = None
    n_hcas: int | None = None
    values: FrozenDict[str, object] = FrozenDict()


@frozen(kw_only=True)
class RasCommunicator:
    """One group of communicators in a RAS report."""

    group: int | None = None
    ranks: int | None = None
    status: str | None = None
    errors: str | None = None
    values: FrozenDict[str, object] = FrozenDict()


@frozen(kw_only=True)
class Ras:
    """NCCL's reliability report."""

    n_gpus: int | None = None
    n_processes: int | None = None
    n_nodes: int | None = None
    communicators: tuple[RasCommunicator, ...] | None = None
    mismatch: FrozenDict[str, object] | None = None
    values: FrozenDict[str, object] = FrozenDict()


@frozen(kw_only=True)
class InspectorOp:
    """Collectives of one kind and size in NCCL inspector's records."""

    collective: str
    size_bytes: int
    count: int
    n_ranks: int | None = None
    n_nodes: int | None = None
    busbw_mean: float | None = None
    busbw_min: float | None = None
    busbw_max: float | None = None
    time_us_mean: float | None = None
    slowest_rank: int | None = None
    slowest_host: str | None = None
