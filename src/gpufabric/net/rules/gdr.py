"""Rules: whether NICs reach GPU memory themselves, and what keeps them from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Connection, Evidence
from gpufabric.net.rules.case import Case, evidence_of, iter_values
from gpufabric.net.rules.rule import Match, Rule, fires

_OLD_HCA: Final = re.compile(r"mlx4_|irdma|rxe|siw|cxgb4|qedr")
_NO_RDMA_PLATFORM: Final = re.compile(r"p3dn|g4dn|g5\.|g6\.|g6e\.|trn|inf")
"""EC2 families whose EFA cannot read GPU memory (by the names that aws-ofi-nccl prints)."""


def gdr_is_off(case: Case) -> tuple[Evidence, ...]:
    """The lines that show data going through host memory where it need not; empty if none."""
    if _needs_none(case):
        return ()
    if case.rdma_connections:
        return _staged(case)
    by_hca = dict(case.log.gdr_by_hca or {})
    if by_hca:
        return () if any(by_hca.values()) else evidence_of(case.marks("gdr_hca_disabled"))
    if case.log.ring_gdr is False and case.uses_rdma and (case.n_nodes or 0) > 1:
        return (Evidence(0, "Connected all rings, use ring PXN ... GDR 0"),)
    return ()


def _needs_none(case: Case) -> bool:
    """Whether GPUDirect RDMA is not to be had, or not to be seen, here."""
    own = any(network.startswith(("FasTrak", "GPUDirectTCPX")) for network in case.networks)
    refused = case.promise is not None and case.promise.gpudirect is False
    sockets = bool(case.networks) and not case.uses_rdma
    single = case.crosses_nodes is False
    nvlink = case.goes_by_nvlink and not case.rdma_connections
    return (
        not case.gdr_could_be or single or case.tcp_is_meant or refused or own or sockets or nvlink
    )


def _staged(case: Case) -> tuple[Evidence, ...]:
    """Connections without GDRDMA, where those that receive lack it too.

    Sending without it is how NCCL works without NVLink: reading GPU memory is off by default.
    """
    if _ofi_without_rdma(case):
        return ()
    plain = [c for c in case.rdma_connections if "/GDRDMA" not in c.transport]
    into = [c for c in plain if c.direction != "send"]
    if not plain or (case.gdr_seen and not into):
        return ()
    if not into and _receives(case.rdma_connections):
        return ()
    return evidence_of(into or plain)


def _receives(connections: Iterable[Connection]) -> bool:
    return any(c.direction == "receive" and "/GDRDMA" in c.transport for c in connections)


def _ofi_without_rdma(case: Case) -> bool:
    """EFA of a machine that cannot do GPUDirect: not a fault of the set-up."""
    if not any("ibfabric" in c.transport for c in case.rdma_connections):
        return False
    if case.log.platform is not None:
        return _NO_RDMA_PLATFORM.match(case.log.platform) is not None
    promised = case.promise is not None and case.promise.gpudirect is True
    return not promised and case.gpu is not None and not case.is_datacenter_gpu


def _gdr_off(case: Case) -> Iterable[Match]:
    lines = gdr_is_off(case)
    if not lines:
        return ()
    partly = case.gdr_seen
    about = "only a part of the connections lacks it" if partly else ""
    return fires(*lines, about=about, severity=Severity.ERROR if partly else None)


def _version_path(case: Case) -> Iterable[Match]:
    if not gdr_is_off(case) or not _peermem_loaded(case):
        return ()
    version = case.nccl_version
    if version is None or (not (2, 22) <= version[:2] < (2, 23) and version[:3] != (2, 23, 0)):
        return ()
    about = f"NCCL {'.'.join(map(str, version))} does not look at /sys/module/nvidia_peermem"
    return fires(*gdr_is_off(case)[:2], about=about)


def _peermem_loaded(case: Case) -> bool:
    peers = case.fact("memory_peers")
    files = map(str, iter_values(peers))
    return "nvidia_peermem" in case.detail("modules") or any("nvidia_peermem" in f for f in files)


def _not_registered(case: Case) -> Iterable[Match]:
    module = case.detail("modules").get("nvidia_peermem")
    if module is None or module.get("used") != 0:
        return ()
    peers = case.fact("memory_peers")
    missing = case.fact("memory_peers_missing") is True
    if isinstance(peers, tuple) or not (missing or gdr_is_off(case)):
        return ()
    at = module.get("lineno")
    line = Evidence(at if isinstance(at, int) else 0, "nvidia_peermem is loaded, use count 0")
    return fires(line, severity=None if missing else Severity.WARNING)


def _distance(case: Case) -> Iterable[Match]:
    refused = case.marks("gdr_pair_disabled")
    if not refused or case.gdr_seen or case.marks("gdr_pair_enabled"):
        return ()
    if case.networks and not case.uses_rdma:
        return ()
    values = refused[0].values
    about = f"distance {values.get('distance')}, allowed {values.get('limit')}"
    return fires(*evidence_of(refused), about=about)


def _unsupported(case: Case) -> Iterable[Match]:
    errors = case.errors("completion_error")
    old = [hca.name for hca in case.log.hcas or () if _OLD_HCA.match(hca.name)]
    if not errors or not old or not case.gdr_seen:
        return ()
    return fires(*evidence_of(errors), about=f"the device is {old[0]}")


def _acs(case: Case) -> Iterable[Match]:
    hints = [m for m in case.marks("hint") if "ACS" in m.values.get("text", "")]
    if hints:
        return fires(*evidence_of(hints))
    first = next(iter(case.errors("completion_error")), None)
    protection = first is not None and first.status == 4
    if first is not None and protection and (case.gdr_seen or first.vendor_err in {81, 249}):
        return fires(first.evidence, about="the first completion error is a protection error")
    passthrough = case.marks("iommu_not_passthrough")
    if passthrough:
        return fires(*evidence_of(passthrough), severity=Severity.WARNING)
    on = case.fact("acs_on")
    if isinstance(on, int) and on > 0:
        line = case.fact_evidence("acs_on", f"ACSCtl: SrcValid+ on {on} PCIe devices")
        return fires(line, severity=Severity.NOTE if case.gdr_seen else Severity.WARNING)
    options = case.detail("kernel_options")
    iommu_on = any(options.get(n, {}).get("value") == "on" for n in ("intel_iommu", "amd_iommu"))
    if iommu_on and options.get("iommu", {}).get("value") != "pt":
        line = Evidence(0, "the IOMMU is on and not in passthrough mode")
        return fires(line, severity=Severity.NOTE if case.gdr_seen else Severity.WARNING)
    return ()


RULES: Final = (
    Rule(
        id="gdr_version_path",
        title="the peer-memory module is loaded, and this NCCL does not see it",
        severity=Severity.ERROR,
        cause="NCCL 2.22 looks for nv_mem and nv_mem_nc only; nvidia_peermem has another file, so"
        " GPUDirect RDMA stays off though the module is there.",
        remedy="Use NCCL 2.23.4 or later (`pip install -U nvidia-nccl-cu12` or another image); it"
        " looks at /sys/module/nvidia_peermem.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1676",
            "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib.cc",
        ),
        when=_version_path,
    ),
    Rule(
        id="peermem_not_registered",
        title="nvidia_peermem is loaded without effect",
        severity=Severity.ERROR,
        cause="nvidia_peermem is loaded, and nothing is registered under"
        " /sys/kernel/mm/memory_peers: the GPU driver was built without the RDMA stack's headers.",
        remedy="Install the RDMA stack (DOCA/OFED) first and the GPU driver after it, then"
        " `modprobe nvidia_peermem`; or use DMA-BUF: open GPU driver and kernel 5.12 or later.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1939",
            "https://github.com/NVIDIA/nccl/issues/1537",
        ),
        when=_not_registered,
    ),
    Rule(
        id="gdr_distance",
        title="GPUDirect RDMA is refused because of the distance",
        severity=Severity.WARNING,
        cause="NIC and GPU are farther apart than NCCL allows for GPUDirect: not under one PCIe"
        " switch, or the virtual machine hides that they are.",
        remedy="Give each GPU a NIC under its switch, or the provider's NCCL_TOPO_FILE in a VM."
        " Raise NCCL_NET_GDR_LEVEL only with a measurement before and after.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1657",
            "https://github.com/NVIDIA/nccl/issues/1464",
            "https://github.com/NVIDIA/nccl/issues/674",
        ),
        when=_distance,
    ),
    Rule(
        id="gdr_off",
        title="GPUDirect RDMA is not used",
        severity=Severity.CRITICAL,
        cause="Data goes through host memory: NCCL found neither a peer-memory module nor DMA-BUF"
        " for the NICs, or judged GPU and NIC too far apart. Bandwidth falls to about a third or"
        " a half.",
        remedy="Run `lsmod | grep -e peermem -e nv_peer` and `modprobe nvidia_peermem` on the hosts"
        " (or use the open GPU driver with kernel 5.12 or later for DMA-BUF); disable ACS; use"
        " NCCL 2.23.4 or later. Check with `ib_write_bw --use_cuda=0`.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1537",
            "https://github.com/NVIDIA/nccl/issues/1412",
            "https://github.com/NVIDIA/nccl/issues/1939",
            "https://github.com/NVIDIA/nccl/issues/1676",
        ),
        when=_gdr_off,
    ),
    Rule(
        id="gdr_unsupported_on_hca",
        title="this NIC cannot do GPUDirect RDMA",
        severity=Severity.WARNING,
        cause="The device or its driver fails under GPUDirect RDMA.",
        remedy="Set NCCL_NET_GDR_LEVEL=LOC, which keeps GPUDirect off, and see whether the errors"
        " go away.",
        sources=("https://github.com/NVIDIA/nccl-tests/issues/36",),
        when=_unsupported,
        confidence="inferred",
    ),
    Rule(
        id="acs_or_iommu",
        title="PCIe ACS or the IOMMU stands between NIC and GPU",
        severity=Severity.ERROR,
        cause="Access Control Services or an IOMMU that translates send peer-to-peer traffic up to"
        " the CPU, where it is slow or refused.",
        remedy="Test with NCCL_NET_GDR_LEVEL=0: if the errors vanish, disable ACS on the PCIe"
        " bridges (`lspci -vvv | grep ACSCtl` must not say SrcValid+) and boot with iommu=pt. In a"
        " VM the hypervisor must allow ATS.",
        sources=(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
            "https://github.com/NVIDIA/nccl/issues/928",
            "https://github.com/NVIDIA/nccl/issues/1353",
            "https://github.com/NVIDIA/nccl/issues/707",
        ),
        when=_acs,
    ),
)
