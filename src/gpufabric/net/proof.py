"""Whether the network that NCCL used is the one that was promised, by the job's own log."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gpufabric._frozen import frozen
from gpufabric.net._proof_rules import contradictions, gaps
from gpufabric.net.diagnosis import Diagnosis, diagnose
from gpufabric.net.records import Evidence, Gdr
from gpufabric.net.report import NetReport
from gpufabric.net.tier import NetworkTier

if TYPE_CHECKING:
    from gpufabric.plan import Offer

__all__ = ["NetworkProof", "Proof", "prove"]


class Proof(StrEnum):
    """What a job's own log says of the promised network."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


_LOST: Final = frozenset(
    {
        "efa_provider_missing",
        "fewer_nics_than_instance_has",
        "gdr_off",
        "gdr_unsupported_on_hca",
        "ib_disabled_by_env",
        "mixed_network_types",
        "nic_not_in_container",
        "no_rdma_device_visible",
        "port_down",
        "rdma_library_missing",
        "soft_roce",
        "socket_fallback",
        "wrong_network_plugin",
    }
)
"""Findings by which a promise is broken, whatever the speed."""


@frozen(kw_only=True)
class NetworkProof:
    """The transport, NICs and GPUDirect state that NCCL chose, held against the promised tier.

    `state` is `UNKNOWN` while the log does not tell; `NCCL_DEBUG=INFO` makes NCCL tell.
    """

    state: Proof
    promised: NetworkTier
    reasons: tuple[str, ...]
    network: str | None = None
    inter_node_transport: str | None = None
    gdr: Gdr = Gdr.UNKNOWN
    nics: tuple[str, ...] = ()
    nics_promised: int | None = None
    evidence: tuple[Evidence, ...] = ()
    report: NetReport = NetReport()
    diagnosis: Diagnosis

    def __str__(self) -> str:
        head = f"{self.promised.value} network {self.state.value}"
        used = f"{self.network or 'network not told'}, {len(self.nics) or 'unknown'} NICs"
        lines = [f"{head}: {used}, GPUDirect {self.gdr.value}"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  line {e.lineno}: {e.text}" for e in self.evidence]
        return "\n".join(lines)


def prove(report: NetReport, offer: Offer) -> NetworkProof:
    """Holds what NCCL said of itself against the tier that the offer reaches."""
    diagnosis = diagnose(report, offer=offer)
    log = report.nccl_log
    fast = offer.num_nodes > 1 and offer.tier > NetworkTier.STANDARD
    broken = [f for f in diagnosis.problems if fast and f.code in _LOST]
    against = [f"{f.title or f.code}: {f.remedy}" for f in broken]
    against += list(contradictions(report, offer)) if fast else []
    missing = list(gaps(report, offer))
    state = Proof.REFUTED if against else Proof.UNKNOWN if missing else Proof.PROVEN
    faults = [f"and yet: {f.title or f.code}" for f in diagnosis.problems]
    return NetworkProof(
        state=state,
        promised=offer.tier,
        reasons=tuple(against or missing or [_said(report), *faults]),
        network=log.network if log else None,
        inter_node_transport=log.inter_node_transport if log else None,
        gdr=(log.gdr if log else None) or Gdr.UNKNOWN,
        nics=tuple(hca.name for hca in (log.hcas if log else None) or ()),
        nics_promised=len(offer.nics.fabric) or None,
        evidence=tuple(e for f in broken for e in f.evidence[:2]),
        report=report,
        diagnosis=diagnosis,
    )


def _said(report: NetReport) -> str:
    log = report.nccl_log
    if log is None:
        return "nothing between nodes"
    by = log.inter_node_transport or log.network or log.intra_node_transport
    return f"NCCL {report.header.nccl_version or ''} says {by}".replace("  ", " ")
