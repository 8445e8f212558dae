"""What connects GPUs and NICs inside a node, read from topology files and tools.

Three texts say it: NCCL's topology XML, NCCL's graph XML (what the search made of it) and
`nvidia-smi topo -m`. All three become one `Topology`, so that a reader of it asks one question:
which NIC is near which GPU?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from gpufabric._frozen import FrozenDict, evolve, frozen
from gpufabric.net.records import Topology


class PathKind(StrEnum):
    """How far two devices are apart, nearest first (names of NCCL and nvidia-smi)."""

    SELF = "X"
    NVLINK = "NVL"
    PIX = "PIX"  # one PCIe switch
    PXB = "PXB"  # several PCIe switches
    PHB = "PHB"  # the CPU's host bridge
    NODE = "NODE"  # between host bridges of one NUMA node (nvidia-smi only)
    SYS = "SYS"  # between CPU sockets


NEAR: Final = frozenset({PathKind.PIX, PathKind.PXB})
"""Distances at which a NIC reads GPU memory without crossing the CPU."""

_ORDER: Final = {kind: rank for rank, kind in enumerate(PathKind)}
MAX_DEVICES: Final = 512
"""More GPUs or NICs than this in one text are counted, but their pairs are not computed."""


@frozen(kw_only=True)
class TopoGpu:
    """One GPU of a topology text; `None` where the text does not say."""

    name: str
    index: int | None = None
    bus_id: str | None = None
    sm: int | None = None
    rank: int | None = None
    gdr: bool | None = None
    nvlinks: int | None = None
    cpu_affinity: str | None = None
    numa: str | None = None
    memory_numa: str | None = None
    link_speed: str | None = None
    link_width: int | None = None


@frozen(kw_only=True)
class TopoNic:
    """One NIC (or one port of it); `device` is the name that NCCL and verbs use."""

    name: str
    device: str | None = None
    index: int | None = None
    bus_id: str | None = None
    speed_mbps: int | None = None
    port: int | None = None
    guid: str | None = None
    gdr: bool | None = None
    link_speed: str | None = None
    link_width: int | None = None


@frozen(kw_only=True)
class GraphChannel:
    """One channel of a graph: the NICs at its ends and the GPUs between, as CUDA or NET ids."""

    nets: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


@frozen(kw_only=True)
class Graph:
    """One search result of NCCL: an algorithm's channels and the bandwidth it expects (GB/s)."""

    id: int
    algorithm: str | None = None
    pattern: str | None = None
    n_channels: int | None = None
    cross_nic: int | None = None
    speed_intra_gbytes_s: float | None = None
    speed_inter_gbytes_s: float | None = None
    type_intra: str | None = None
    type_inter: str | None = None
    channels: tuple[GraphChannel, ...] = ()


@frozen(kw_only=True)
class NodeTopology(Topology):
    """The devices of one node and the paths between them, beside the report's summary of it."""

    source: str  # "topo_xml", "graph_xml" or "nvidia_smi_topo"
    gpus: tuple[TopoGpu, ...] = ()
    nics: tuple[TopoNic, ...] = ()
    graphs: tuple[Graph, ...] = ()
    whole: bool = True
    """False where the text stops inside."""
    first_line: int = 0
    last_line: int = 0
    also: tuple[NodeTopology, ...] = ()
    """The other nodes or files of the same text."""

    def path(self, one: str, other: str) -> str | None:
        """The path between two devices by name, as printed ("NV18", "PIX"); None if not told."""
        return path_between(self, one, other)

    @property
    def hides_pcie(self) -> bool:
        """Whether GPU memory is an own NUMA node: Grace, where nvidia-smi calls every NIC SYS."""
        return any(gpu.memory_numa for gpu in self.gpus)

    def _repr_html_(self) -> str:
        from gpufabric.net.draw import topology_svg

        return topology_svg(self)


def path_between(topology: Topology, one: str, other: str) -> str | None:
    """The path between two devices of any topology, in whichever direction it is told."""
    return _either(topology.matrix or {}, one, other)


def node_topology(  # noqa: PLR0913 - the parts that the three formats have in common
    *,
    source: str,
    gpus: Iterable[TopoGpu] = (),
    nics: Iterable[TopoNic] = (),
    paths: Mapping[tuple[str, str], str] | None = None,
    n_cpus: int | None = None,
    graphs: Iterable[Graph] = (),
    whole: bool = True,
    lines: tuple[int, int] = (0, 0),
) -> NodeTopology:
    """The topology with the report's keys computed; a key stays None where the text is silent."""
    gpus, nics, graphs = tuple(gpus), tuple(nics), tuple(graphs)
    rows: dict[str, dict[str, str]] = {}
    for (one, other), path in (paths or {}).items():
        rows.setdefault(one, {})[other] = path
    nearest, kinds = _nearest(gpus, nics, rows)
    affinity = {gpu.name: gpu.cpu_affinity for gpu in gpus if gpu.cpu_affinity}
    links = {gpu.nvlinks for gpu in gpus}
    return NodeTopology(
        source=source,
        gpus=gpus,
        nics=nics,
        graphs=graphs,
        whole=whole,
        first_line=lines[0],
        last_line=lines[1],
        n_gpus=len(gpus),
        n_nics=len(nics),
        n_cpus=n_cpus,
        gpu_nic_path=_overall(gpus, kinds, graphs),
        nearest_nics=FrozenDict(nearest) if nearest else None,
        gpus_without_near_nic=tuple(gpu for gpu, kind in kinds.items() if kind not in NEAR)
        if kinds
        else None,
        cpu_affinity=FrozenDict(affinity) if affinity else None,
        nvlinks_per_gpu=links.pop() if len(links) == 1 else None,
        nets=tuple(_net(nic) for nic in nics if nic.device is not None or source != "topo_xml"),
        matrix=FrozenDict({name: FrozenDict(row) for name, row in rows.items()}),
    )


def together(found: Sequence[NodeTopology]) -> NodeTopology | None:
    """One value for all topologies of a text: the fullest, the others beside it."""
    if not found:
        return None
    fullest = max(found, key=lambda each: (each.source != "graph_xml", len(each.gpus)))
    return evolve(fullest, also=tuple(each for each in found if each is not fullest))


def _nearest(
    gpus: Iterable[TopoGpu], nics: Sequence[TopoNic], rows: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, PathKind]]:
    """For each GPU the NICs at its shortest distance, and that distance."""
    nearest: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, PathKind] = {}
    for gpu in gpus:
        told = {
            nic.name: kind
            for nic in nics
            if (kind := kind_of(_either(rows, gpu.name, nic.name))) is not None
        }
        if told:
            best = min(told.values(), key=_ORDER.__getitem__)
            kinds[gpu.name] = best
            nearest[gpu.name] = tuple(name for name, kind in told.items() if kind is best)
    return nearest, kinds


def _either(rows: Mapping[str, Mapping[str, str]], one: str, other: str) -> str | None:
    there, back = rows.get(one), rows.get(other)
    return (there.get(other) if there else None) or (back.get(one) if back else None)


def _overall(
    gpus: Sequence[TopoGpu], kinds: Mapping[str, PathKind], graphs: Iterable[Graph]
) -> str | None:
    """The distance within which every GPU has a NIC; a graph tells its own for the ring."""
    if kinds and len(kinds) == len(gpus):
        return max(kinds.values(), key=_ORDER.__getitem__).value
    told = [graph.type_inter for graph in graphs if graph.id == 0 and any_net(graph)]
    return told[0] if told else None


def any_net(graph: Graph) -> bool:
    """Whether the graph leaves the node."""
    return any(channel.nets for channel in graph.channels)


def _net(nic: TopoNic) -> FrozenDict[str, object]:
    told: dict[str, object] = {
        "name": nic.device or nic.name,
        "dev": nic.index,
        "speed_gbps": None if nic.speed_mbps is None else nic.speed_mbps / 1000,
        "port": nic.port,
        "guid": nic.guid,
        "gdr": nic.gdr,
        "bus_id": nic.bus_id,
    }
    return FrozenDict(told)


def kind_of(path: str | None) -> PathKind | None:
    """The distance class of a printed path; NCCL's and old nvidia-smi's names included."""
    if path is None:
        return None
    if path.startswith("NV"):
        return PathKind.NVLINK
    if path == "SOC":  # nvidia-smi before R384 for SYS
        return PathKind.SYS
    return PathKind(path) if path in _ORDER else None
