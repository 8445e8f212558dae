"""What of a log speaks against a promised network, and what a proof of it still lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gpufabric.net.interconnect import FabricKind
from gpufabric.net.records import Gdr, NcclLog
from gpufabric.net.rules.case import DATACENTER_GPU, SOCKETS
from gpufabric.net.tier import NetworkTier

if TYPE_CHECKING:
    from gpufabric.net.report import NetReport
    from gpufabric.plan import Offer

_MAY_NOT_SAY: Final = ("FasTrak", "GPUDirectTCPX")
"""Networks (TCPXO, TCPX) of which a line without GDRDMA does not tell that GPUDirect is off."""
_OWN_NETWORK: Final = {
    FabricKind.EFA: "Libfabric",
    FabricKind.GPUDIRECT_TCPXO: "FasTrak",
    FabricKind.GPUDIRECT_TCPX: "GPUDirectTCPX",
}
"""Fabrics that one NCCL network alone can use, and a part of that network's name."""
_LINK_LAYERS: Final = {FabricKind.INFINIBAND: "IB", FabricKind.ROCE: "RoCE"}
_DEVICE: Final = re.compile(r"NET/[^/]+/(\d+)")


def contradictions(report: NetReport, offer: Offer) -> Iterator[str]:
    """What the log says that cannot be where the promise is kept."""
    log = report.nccl_log
    if log is None:
        return
    kind = offer.interconnect.kind
    if _sockets(log):
        yield f"NCCL uses plain TCP sockets, {kind.value} was promised"
    elif log.gdr is Gdr.DISABLED and not (_by_nvlink(log) or _may_not_say(log)):
        yield "NCCL has GPUDirect off: data goes through host memory"
    alien = _alien(log, kind)
    if alien:
        yield f"NCCL uses {alien}, {kind.value} was promised"
    wanted = _LINK_LAYERS.get(kind)
    if wanted and log.link_layer in _LINK_LAYERS.values() and log.link_layer != wanted:
        yield f"NCCL's NICs are {log.link_layer}, {kind.value} was promised"
    promised = len(offer.nics.fabric)
    for host in log.hosts if offer.tier is NetworkTier.BEST else ():
        if host.hcas and len(host.hcas) < promised:
            yield (
                f"NCCL uses {len(host.hcas)} of the {promised} NICs of {offer.instance_type}"
                f" on {host.host or 'a node'}"
            )


def gaps(report: NetReport, offer: Offer) -> Iterator[str]:
    """What the log would have to tell before the promise is proven."""
    log = report.nccl_log
    if offer.num_nodes == 1:
        if log is None or log.intra_node_transport is None:
            yield "the log does not say how the GPUs of the node talk: set NCCL_DEBUG=INFO"
        return
    if log is None or (log.network is None and log.inter_node_transport is None):
        yield "the log does not say which network NCCL chose: set NCCL_DEBUG=INFO in envs"
        return
    if offer.tier is NetworkTier.STANDARD:
        return
    if log.inter_node_transport is None:
        yield (
            "the log shows no connection between nodes yet (NCCL makes them at the first"
            " collective): set NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"
        )
    elif not _direct(log):
        yield "the log does not say whether GPUDirect is on: set NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"
    yield from _unseen(report, offer, log)


def _unseen(report: NetReport, offer: Offer, log: NcclLog) -> Iterator[str]:
    """NICs, nodes and GPUs that the log does not show as they were promised."""
    promised = len(offer.nics.fabric)
    best = offer.tier is NetworkTier.BEST
    told = bool(log.hcas or log.n_provider_nics) or len(_devices(log)) >= promised
    if best and promised and not told:
        yield f"the log does not name the NICs in use; {promised} were promised"
    spoken = sum(bool(host.networks or host.hcas or host.gdr_by_hca) for host in log.hosts)
    if spoken + log.hosts_left_out < offer.num_nodes:
        yield f"{spoken} of {offer.num_nodes} nodes have told which network they use"
    seen = DATACENTER_GPU.search(report.header.gpu or "")
    meant = DATACENTER_GPU.search((offer.accelerator and offer.accelerator.model) or "")
    if seen and meant and seen[0] != meant[0]:
        yield f"the log is of another machine: it has {seen[0]}, {meant[0]} was promised"


def _sockets(log: NcclLog) -> bool:
    """Whether TCP carries traffic between nodes; on one node the choice moves nothing."""
    if any(c.transport.startswith(("NET/Socket", "NET/FastSocket")) for c in log.connections):
        return True
    return any(name in SOCKETS for name in log.networks) and log.n_nodes != 1


def _alien(log: NcclLog, kind: FabricKind) -> str | None:
    """A network that cannot run over this fabric."""
    own = _OWN_NETWORK.get(kind)
    others = tuple(name for each, name in _OWN_NETWORK.items() if each is not kind)
    for name in log.networks:
        if name in SOCKETS:
            continue
        if own is not None and own not in name:
            return name
        if kind in _LINK_LAYERS and any(other in name for other in others):
            return name
    return None


def _by_nvlink(log: NcclLog) -> bool:
    return (log.inter_node_transport or "").startswith("P2P/MNNVL")


def _may_not_say(log: NcclLog) -> bool:
    return (log.network or "").startswith(_MAY_NOT_SAY)


def _direct(log: NcclLog) -> bool:
    """Whether a connection between nodes shows that host memory is not in the way."""
    return _by_nvlink(log) or any("/GDRDMA" in c.transport for c in log.connections)


def _devices(log: NcclLog) -> set[str]:
    """NCCL's numbers of the NICs that carry connections."""
    found = (_DEVICE.match(c.transport) for c in log.connections)
    return {match[1] for match in found if match}
