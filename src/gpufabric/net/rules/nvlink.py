"""Rules: NVLink, NVLink SHARP and NVLink between nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence
from gpufabric.net.rules.case import Case, evidence_of
from gpufabric.net.rules.rule import Match, Rule, fires

_NO_FABRIC: Final = frozenset({"0.0", "0x0.0x0"})


def _bind(case: Case) -> Iterable[Match]:
    errors = list(case.errors("nvls_bind_failed"))
    errors += [
        e
        for e in case.errors("cuda_failure")
        if "nvls.cc" in e.evidence.text and e.values.get("code", "401") in {"1", "401"}
    ]
    if errors:
        return fires(*evidence_of(errors))
    without = case.marks("nvls_proceeding_without")
    return fires(*evidence_of(without), severity=Severity.WARNING) if without else ()


def _uneven(case: Case) -> Iterable[Match]:
    if case.log.nvls is not True or not case.unfinished_ranks or not _is_uneven(case):
        return ()
    told = ", ".join(f"{host} {n}" for host, n in list(case.ranks_by_host.items())[:6])
    lines = [m.first for m in case.marks("nvls_available")]
    return fires(*(lines or [Evidence(0, told)]), about=f"ranks a node: {told}")


def _is_uneven(case: Case) -> bool:
    hosts, n_ranks = case.ranks_by_host, case.n_ranks or 0
    if sum(hosts.values()) == n_ranks:
        return len(set(hosts.values())) > 1
    # Not every rank has spoken; if something ended the job, a rest still tells.
    return case.fact("ended_by") is not None and len(hosts) > 1 and n_ranks % len(hosts) > 0


def _imex(case: Case) -> Iterable[Match]:
    errors = list(case.errors("imex_unavailable"))
    errors += [
        e
        for e in case.errors("cuda_failure")
        if e.values.get("code") == "800" and (case.log.mnnvl or case.marks("mnnvl_clique"))
    ]
    return fires(*evidence_of(errors)) if errors else ()


def _health_mask(case: Case) -> Iterable[Match]:
    """Fields of two bits: 1 says that a fault is there, 2 that it is not (nvml.h)."""
    masks = [(m, m.values["health"]) for m in case.marks("mnnvl_fabric") if "health" in m.values]
    bad = [mark for mark, text in masks if _degraded(text)]
    if bad:
        return fires(*evidence_of(bad), about=f"healthMask {bad[0].values['health']}")
    seen = dict.fromkeys(text for _, text in masks)
    if len(seen) > 1:
        return fires(
            *evidence_of([mark for mark, _ in masks]), about=f"healthMasks {', '.join(seen)}"
        )
    return ()


def _degraded(text: str) -> bool:
    try:
        mask = int(text, 16)
    except ValueError:
        return False
    return any(mask >> shift & 3 == 1 for shift in (0, 2, 4, 6))


def _unused(case: Case) -> Iterable[Match]:
    if case.log.mnnvl is not False or (case.n_nodes or 0) < 2:
        return ()
    if any(c.transport.startswith("P2P/MNNVL") for c in case.log.connections):
        return ()
    hosts_by_domain: dict[str, set[str]] = {}
    for mark in case.marks("mnnvl_fabric"):
        uuid = mark.values.get("uuid", "0.0")
        if uuid not in _NO_FABRIC:
            hosts_by_domain.setdefault(uuid, set()).update(mark.hosts)
    shared = [uuid for uuid, hosts in hosts_by_domain.items() if len(hosts) > 1]
    if not shared:
        return ()
    off = case.env.get("NCCL_MNNVL_ENABLE") == "0"
    lines = evidence_of(m for m in case.marks("mnnvl_fabric") if m.values.get("uuid") in shared)
    return fires(*lines, about="NCCL_MNNVL_ENABLE=0 is set" if off else "")


RULES: Final = (
    Rule(
        id="imex_unavailable",
        title="NVLink between nodes has no IMEX channel",
        severity=Severity.CRITICAL,
        cause="The GPUs form one NVLink domain, and the process may not open its memory channel:"
        " /dev/nvidia-caps-imex-channels is missing or not writable, or the IMEX domain is not up.",
        remedy="Run `nvidia-imex-ctl -N` (all nodes READY) and give the container the channel (a"
        " ComputeDomain claim on Kubernetes). NCCL_MNNVL_ENABLE=0 lets the job run, without NVLink"
        " between nodes.",
        sources=(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
            "https://github.com/NVIDIA/nccl/issues/1925",
        ),
        when=_imex,
    ),
    Rule(
        id="mnnvl_degraded_health_mask",
        title="the NVLink fabric is degraded",
        severity=Severity.ERROR,
        cause="The fabric's health mask of a GPU says that bandwidth or routes are impaired, or"
        " nodes of one domain differ in it.",
        remedy="Run `nvidia-smi -q | grep -A12 Fabric` on all nodes (State Completed, Health"
        " Healthy); have the NVLink switches checked. NCCL_MNNVL_ENABLE=0 avoids it.",
        sources=(
            "https://docs.nvidia.com/deploy/nvml-api/structnvmlGpuFabricInfo__v3__t.html",
            "https://github.com/NVIDIA/nccl/issues/2186",
            "https://github.com/NVIDIA/nccl/issues/1632",
        ),
        when=_health_mask,
    ),
    Rule(
        id="mnnvl_unused",
        title="NVLink between the nodes is there and not used",
        severity=Severity.ERROR,
        cause="The nodes belong to one NVLink domain, and the communicator was built without it:"
        " different cliques, IMEX off, or a variable.",
        remedy="Unset NCCL_MNNVL_ENABLE, check `nvidia-imex-ctl -N` and that `nvidia-smi -q` shows"
        " one CliqueId and ClusterUUID on all nodes.",
        sources=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
        when=_unused,
    ),
    Rule(
        id="nvls_bind_failed",
        title="NVLink SHARP cannot get its multicast memory",
        severity=Severity.CRITICAL,
        cause="The NVSwitch fabric refused a multicast group: fabric manager is not running or of"
        " another version than the driver, a switch is faulty, or groups of an earlier job remain.",
        remedy="Run `systemctl restart nvidia-fabricmanager` (versions of driver and fabric manager"
        " must be equal) or reboot the machine; NCCL_NVLS_ENABLE=0 lets jobs run meanwhile.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1788",
            "https://github.com/NVIDIA/nccl/issues/1672",
            "https://github.com/NVIDIA/DCGM/issues/304",
        ),
        when=_bind,
        explained_by=frozenset({"gpu_fault"}),
    ),
    Rule(
        id="nvls_uneven_ranks",
        title="NVLink SHARP hangs with uneven nodes",
        severity=Severity.ERROR,
        cause="The nodes have different numbers of ranks, and the set-up stops while multicast"
        " groups are made.",
        remedy="Use as many ranks on each node, or set NCCL_NVLS_ENABLE=0.",
        sources=("https://github.com/NVIDIA/nccl/issues/2385",),
        when=_uneven,
    ),
)
