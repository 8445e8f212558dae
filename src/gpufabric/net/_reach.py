"""What network a type gives on a platform, and which tier that reaches in a place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpufabric.catalog.index import CloudCatalog
from gpufabric.catalog.rows import (
    Confidence,
    GpuDirect,
    InstanceTypeRow,
    KubernetesRow,
    PlatformRow,
)
from gpufabric.net.interconnect import FabricKind
from gpufabric.net.tier import NetworkTier

__all__ = [
    "READS",
    "Network",
    "attached",
    "gbps_of",
    "network_of",
    "reached",
    "reached_alone",
    "strongest",
]

READS = (GpuDirect.RDMA, GpuDirect.TCPX, GpuDirect.TCPXO)


class Network(NamedTuple):
    """What nodes of one type share on one platform."""

    kind: FabricKind
    fabric: bool
    """The fabric's NICs are attached; otherwise the front end is all there is."""
    gpudirect: bool
    why: str
    """Why it is not GPUDirect, empty where it is."""
    gbps: float | None = None
    """Of a node; None where not known, or only inferred."""
    way: KubernetesRow | None = None
    """How pods get the NICs."""
    nvlink_nodes: int | None = None
    """Nodes of one NVLink domain, where the platform can use it."""
    max_nodes: int | None = None
    scope: str = ""
    short: str = ""
    """What is missing of it on the nodes that were found."""


def inferred(row: InstanceTypeRow, path: str) -> bool:
    """Says whether a field of a row is a conclusion only."""
    return row.confidence is Confidence.INFERRED or path in row.inferred


def gbps_of(row: InstanceTypeRow) -> float | None:
    """Gbit/s of a node's fabric NICs; None where unknown or inferred."""
    nics = row.nics
    if inferred(row, "nics.gbps_each") or inferred(row, "nics.count"):
        return None
    if nics.total_gbps is not None:
        return None if inferred(row, "nics.total_gbps") else nics.total_gbps
    return nics.count * nics.gbps_each if nics.count and nics.gbps_each else None


def network_of(
    cloud: CloudCatalog, row: InstanceTypeRow, platform: PlatformRow, *, whole: bool
) -> Network:
    """What a gang of these nodes shares; `whole`: it takes all GPUs of each node."""
    key = ("network", platform.name, whole)
    return cloud.kept(row, key, lambda: _network(cloud, row, platform, whole=whole))


def attached(network: Network, row: InstanceTypeRow, found: int) -> Network:
    """The network of nodes that were found to have this many of their fabric's NICs."""
    count = row.nics.count
    if not network.fabric or count is None or found >= count:
        return network
    if found == 0:
        why = f"none of its {count} {network.kind.value} NICs is attached to the nodes"
        return Network(FabricKind.ETHERNET, False, False, why, row.frontend.gbps, network.way)
    gbps = None if network.gbps is None else network.gbps * found / count
    return network._replace(gbps=gbps, short=f"{found} of {count} NICs are attached to the nodes")


def _network(
    cloud: CloudCatalog, row: InstanceTypeRow, platform: PlatformRow, *, whole: bool
) -> Network:
    shared = cloud.interconnect(row)
    kind = FabricKind(shared.kind)
    way = next(iter(cloud.kubernetes_rows(row.name, platform.name)), None)
    why = _no_fabric(row, platform, kind, whole=whole) or _no_way(platform, way)
    if why:
        return Network(
            FabricKind.ETHERNET, False, False, why, row.frontend.gbps or _plain_gbps(row, kind), way
        )
    cannot = _no_gpudirect(row, kind)
    nvlink = platform.kind != "kubernetes" or (way is not None and way.compute_domain)
    return Network(
        kind=kind,
        fabric=True,
        gpudirect=not cannot,
        why=cannot,
        gbps=gbps_of(row),
        way=way,
        nvlink_nodes=row.nvlink_domain_nodes if nvlink else None,
        max_nodes=row.max_nodes or shared.max_nodes,
        scope=shared.scope,
    )


def _plain_gbps(row: InstanceTypeRow, kind: FabricKind) -> float | None:
    return gbps_of(row) if kind is FabricKind.ETHERNET else None


def _no_fabric(
    row: InstanceTypeRow, platform: PlatformRow, kind: FabricKind, *, whole: bool
) -> str:
    if kind is FabricKind.ETHERNET:
        return "it has no NIC that reads GPU memory"
    if row.fabric_platforms is not None and platform.name not in row.fabric_platforms:
        return f"its {kind.value} network cannot be used on {platform.name}"
    if not whole and row.whole_node:
        return (
            f"a part of a node gets no part of its {kind.value} network:"
            f" ask for all {row.gpu.count} accelerators"
        )
    return ""


def _no_way(platform: PlatformRow, way: KubernetesRow | None) -> str:
    if platform.kind != "kubernetes":
        return ""
    if way is None:
        return f"the catalog does not know how pods on {platform.name} get its NICs"
    if way.confidence is Confidence.INFERRED:
        return f"how pods on {platform.name} get its NICs is inferred, not documented"
    return "" if way.fabric else f"pods on {platform.name} get no RDMA"


def _no_gpudirect(row: InstanceTypeRow, kind: FabricKind) -> str:
    if row.confidence is Confidence.INFERRED:
        return "its network is inferred, not documented, so nothing is promised of it"
    if row.nics.gpudirect is GpuDirect.NONE:
        return f"its {kind.value} NICs do not read GPU memory"
    if row.nics.gpudirect not in READS:
        return "it is not known whether its NICs read GPU memory"
    for path in ("nics.gpudirect", "nics.count"):
        if path in row.inferred:
            return f"its network is not promised: {path} is inferred, not documented"
    return ""


def reached(
    row: InstanceTypeRow, network: Network, num_nodes: int, rivals: Iterable[InstanceTypeRow]
) -> tuple[NetworkTier, str]:
    """The tier that a gang of several nodes reaches, and why not a higher one."""
    if not network.gpudirect:
        return NetworkTier.STANDARD, network.why
    why = _not_best(row, network, num_nodes, rivals)
    return (NetworkTier.GPUDIRECT, why) if why else (NetworkTier.BEST, "")


def _not_best(
    row: InstanceTypeRow, network: Network, num_nodes: int, rivals: Iterable[InstanceTypeRow]
) -> str:
    if network.short:
        return network.short
    if row.nics.count is None:
        return "how many NICs it has is not known, so that all are attached cannot be promised"
    if row.nvlink_domain_nodes is not None:
        if network.nvlink_nodes is None:
            return "the fastest it is sold with is NVLink between nodes, which this platform lacks"
        if num_nodes > network.nvlink_nodes:
            return f"{num_nodes} nodes exceed the {network.nvlink_nodes} of one NVLink domain"
    mine = _pace(row, network.gbps)
    for rival in rivals:
        theirs = _pace(rival, _claimed(rival))
        if theirs[:2] < mine[:2]:
            continue
        if theirs[:2] > mine[:2] or theirs[2] is None or mine[2] is None or theirs[2] > mine[2]:
            return _slower_than(rival, mine[2], theirs[2])
    return ""


def strongest(rows: Iterable[InstanceTypeRow]) -> list[InstanceTypeRow]:
    """The few rows that decide whether another is best: the rest are no faster than these.

    Two of each kind, as one of them may be the row that is judged.
    """
    paced = [(_pace(row, _claimed(row)), row) for row in rows]
    known = sorted((p for p in paced if p[0][2] is not None), key=lambda p: p[0], reverse=True)
    unknown = [p for p in paced if p[0][2] is None]
    unknown.sort(key=lambda p: p[0][:2], reverse=True)
    joined = sorted((p for p in paced if p[1].nvlink), key=lambda p: -p[1].gpu.count)
    few = (*known[:2], *unknown[:2], *joined[:2])
    return list({row.name: row for _, row in few}.values())


def _slower_than(rival: InstanceTypeRow, mine: float | None, theirs: float | None) -> str:
    if theirs is None or mine is None:
        return (
            f"{rival.name} is sold here too and may be faster:"
            f" the speed of {'this one' if theirs is not None else 'that one'} is not known"
        )
    return (
        f"it is not the fastest network of this accelerator here:"
        f" {rival.name} has {theirs:g} Gb/s a GPU, this {mine:g}"
    )


def _claimed(row: InstanceTypeRow) -> float | None:
    """What a rival is said to have, however sure: a promise must hold against it too."""
    nics = row.nics
    return nics.total_gbps or (
        nics.count * nics.gbps_each if nics.count and nics.gbps_each else None
    )


def _pace(row: InstanceTypeRow, gbps: float | None) -> tuple[bool, bool, float | None]:
    reads = row.nics.gpudirect in READS or row.nics.gpudirect is GpuDirect.UNKNOWN
    return (
        reads and row.interconnect != "ethernet",
        row.nvlink_domain_nodes is not None,
        None if gbps is None else gbps / row.gpu.count,
    )


def reached_alone(
    row: InstanceTypeRow, gpus: int, rivals: Iterable[InstanceTypeRow]
) -> tuple[NetworkTier, str]:
    """The tier of a task of one node: NVLink inside it counts, NICs do not."""
    if gpus == 1:
        return NetworkTier.BEST, ""
    if row.confidence is Confidence.INFERRED or "nvlink" in row.inferred:
        return NetworkTier.STANDARD, "how its GPUs are joined is inferred, not documented"
    if row.nvlink:
        return NetworkTier.BEST, ""
    rival = next((r for r in rivals if r.nvlink and r.gpu.count >= gpus), None)
    if rival is None:
        return NetworkTier.BEST, ""
    return (
        NetworkTier.GPUDIRECT,
        f"its GPUs are joined by {row.intra_node or 'PCIe'}; {rival.name} here has NVLink",
    )
