"""Rules: bootstrap, versions, environment and waiting: the job rather than the network."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence, HostView, NetError
from gpufabric.net.rules.case import Case, evidence_of
from gpufabric.net.rules.rule import Match, Rule, fires

_CONNECT: Final = (
    "no_route_to_host",
    "connection_refused",
    "connection_timed_out",
    "network_unreachable",
    "connect_failed",
    "rendezvous_failed",
)
_DOCKER: Final = tuple(map(ipaddress.ip_network, ("172.17.0.0/16", "192.168.122.0/24")))
_VIRTUAL: Final = re.compile(r"docker|br-|virbr|veth|cni|flannel")
_MUST_AGREE: Final = re.compile(
    r"NCCL_(?:ALGO|PROTO|BUFFSIZE|NTHREADS|MIN_\w+|MAX_\w+|NCHANNELS\w*|NET|NET_PLUGIN|IB_DISABLE"
    r"|P2P_\w+|SHM_DISABLE|CROSS_NIC|PXN_DISABLE|CUMEM_ENABLE|NVLS_ENABLE|COLLNET_ENABLE"
    r"|MNNVL_ENABLE|IB_SPLIT_DATA_ON_QPS|IB_QPS_PER_CONNECTION|NET_SHARED_BUFFERS|LL\w*)"
)
_SOURCES_TROUBLE: Final = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
)


def _connects(case: Case) -> tuple[NetError, ...]:
    return case.errors(*_CONNECT)


def _no_route(case: Case) -> Iterable[Match]:
    errors = _connects(case)
    if not errors:
        return ()
    first = errors[0]
    about = " ".join(
        part
        for part in (
            f"from {first.host}" if first.host else "",
            f"to {first.peer}" if first.peer else "",
            f"({first.text})" if first.text else "",
        )
        if part
    )
    return fires(*evidence_of(errors), about=about)


def _firewall(case: Case) -> Iterable[Match]:
    errors = _connects(case)
    odd = _odd_interface(case)
    blocked = [e for e in errors if e.kind != "connection_refused"]
    if errors and odd:
        return fires(*evidence_of(errors), about=odd)
    no_interface = case.errors("no_socket_interface")
    if blocked or no_interface:
        return fires(*evidence_of([*blocked, *no_interface]))
    return ()


def _odd_interface(case: Case) -> str:
    """The interface or address that no other machine can reach, if one was chosen."""
    name, address = case.log.oob_interface or "", case.log.oob_address or ""
    peers = [e.peer or "" for e in _connects(case)]
    if _VIRTUAL.match(name):
        return f"the bootstrap is on {name}"
    for text in [address, *peers]:
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            continue
        if any(found in network for network in _DOCKER):
            return f"{text} is an address of a container bridge"
    return ""


def _follow_up(case: Case) -> Iterable[Match]:
    followers = [e for e in case.report.errors if e.root_cause is False]
    followers += case.any_errors("nccl_call_failed", "connection_reset", "socket_call_failed")
    followers = [e for e in followers if e.kind != "completion_error"]
    return fires(*evidence_of(followers)) if followers else ()


def _versions(case: Case) -> Iterable[Match]:
    errors = case.errors("version_mismatch", "bad_address")
    if errors:
        return fires(*evidence_of(errors))
    by_host = {h.host: h.nccl_version for h in case.log.hosts if h.nccl_version}
    seen = dict.fromkeys(v for v in by_host.values() if v)
    if len(seen) < 2:
        return ()
    first = {v: next(h for h in case.log.hosts if h.nccl_version == v) for v in seen}
    lines = [Evidence(h.lineno or 0, f"{h.host}: NCCL {v}") for v, h in first.items()]
    return fires(*lines, about=" and ".join(seen))


def _hca_sets(case: Case) -> Iterable[Match]:
    errors = case.errors("nic_count_mismatch", "device_open_failed")
    if errors:
        return fires(*evidence_of(errors))
    sets = {host.host: _hca_set(host) for host in case.log.hosts if host.hcas}
    if len(set(sets.values())) < 2:
        return ()
    told = [f"{host}: {len(found)}" for host, found in list(sets.items())[:6]]
    lines = [
        Evidence(host.lineno or 0, f"{host.host}: {', '.join(h.name for h in host.hcas)}"[:200])
        for host in case.log.hosts
        if host.hcas
    ]
    return fires(*lines[:4], about="NICs a host: " + ", ".join(told))


def _hca_set(host: HostView) -> tuple[tuple[str, int], ...]:
    """What must agree: how many of each link layer and speed; names and order need not."""
    kinds = sorted((hca.link_layer or "", hca.speed_mbps or 0) for hca in host.hcas)
    return tuple(kinds)


def _env(case: Case) -> Iterable[Match]:
    differs = [n for n in case.log.env_by_host_differs if _MUST_AGREE.fullmatch(n)]
    symptoms = case.errors("message_truncated", "collective_mismatch")
    if symptoms:
        about = f"{', '.join(differs[:6])} differ between hosts" if differs else ""
        return fires(*evidence_of(symptoms), about=about)
    if not differs:
        return ()
    lines = [
        Evidence(host.lineno or 0, f"{host.host}: {differs[0]}={host.env.get(differs[0], 'unset')}")
        for host in case.log.hosts
    ]
    about = f"{', '.join(differs[:6])} differ between hosts"
    severity = Severity.WARNING if case.root_errors else Severity.NOTE
    return fires(*lines[:4], about=about, severity=severity)


def _relaxed(case: Case) -> Iterable[Match]:
    errors = case.errors("collective_mismatch")
    if not errors or case.log.env_by_host_differs or len(case.log.versions) > 1:
        return ()
    if not any("local_size" in e.values for e in errors):
        return ()
    return fires(*evidence_of(errors), severity=Severity.WARNING)


def _duplicate(case: Case) -> Iterable[Match]:
    errors = case.errors("duplicate_gpu")
    return fires(*evidence_of(errors)) if errors else ()


def _watchdog(case: Case) -> Iterable[Match]:
    errors = case.errors("watchdog_timeout", "watchdog_stuck")
    if not errors:
        return ()
    ranks = sorted({e.rank for e in errors if e.rank is not None})
    states = case.report.torch.ranks if case.report.torch else ()
    behind = _behind(states)
    about = "; ".join(
        part
        for part in (
            f"{errors[0].op} with sequence number {errors[0].seq}" if errors[0].op else "",
            f"ranks {', '.join(map(str, ranks[:10]))} waited" if ranks else "",
            f"rank {behind} is behind the others" if behind is not None else "",
        )
        if part
    )
    return fires(*evidence_of(errors), about=about)


def _behind(states: Iterable[object]) -> int | None:
    """The one rank whose last completed work is lower than everyone else's."""
    from gpufabric.net.records import RankState

    told = [s for s in states if isinstance(s, RankState) and s.last_enqueued is not None]
    if len(told) < 3:
        return None
    lowest = min(told, key=lambda s: s.last_enqueued or 0)
    others = [s.last_enqueued or 0 for s in told if s is not lowest]
    return lowest.rank if (lowest.last_enqueued or 0) < min(others) else None


RULES: Final = (
    Rule(
        id="version_mismatch",
        title="the ranks run different NCCL versions",
        severity=Severity.CRITICAL,
        cause="Processes of one job loaded different NCCL libraries: images differ, LD_PRELOAD, or"
        " a pip wheel next to the system's library.",
        remedy="Run one image on all nodes; in the process, `python -c 'import torch;"
        " print(torch.cuda.nccl.version())'` and `grep nccl /proc/<pid>/maps` show what was"
        " loaded.",
        sources=("https://github.com/NVIDIA/nccl/issues/1267",),
        when=_versions,
    ),
    Rule(
        id="no_route_to_host",
        title="a process cannot reach another one by TCP",
        severity=Severity.CRITICAL,
        cause="The first meeting of the ranks goes by TCP, and the connection was refused or had no"
        " way.",
        remedy="From the host in the line run `nc -vz <peer> <port>` and `ip route get <peer>`; see"
        " whether the peer's process lives.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1105",
            "https://github.com/sgl-project/sglang/issues/3820",
            "https://github.com/hiyouga/LLaMA-Factory/issues/8045",
        ),
        when=_no_route,
        explained_by=frozenset({"loopback_interface", "gpu_fault"}),
    ),
    Rule(
        id="firewall_or_wrong_interface",
        title="TCP is blocked, or the wrong interface was chosen",
        severity=Severity.CRITICAL,
        cause="A firewall or security group stops TCP between the nodes, or NCCL took an interface"
        " that the other nodes cannot reach.",
        remedy="Open all TCP ports between the nodes (NCCL uses ephemeral ones), or set"
        " NCCL_SOCKET_IFNAME to the interface that `ip route get <peer>` names; GLOO_SOCKET_IFNAME"
        " as well for PyTorch.",
        sources=(_SOURCES_TROUBLE, "https://github.com/NVIDIA/nccl/issues/1105"),
        when=_firewall,
        explained_by=frozenset({"loopback_interface", "gpu_fault"}),
    ),
    Rule(
        id="hca_sets_differ",
        title="the nodes see different NICs",
        severity=Severity.CRITICAL,
        cause="Ranks found different numbers or kinds of RDMA devices: a device plugin or cgroup"
        " lets fewer through on one node, or a card is missing.",
        remedy="Compare the `NET/IB : Using` lines by host and give every pod the same devices;"
        " leave NCCL_IGNORE_NET_MISMATCH unset, so that NCCL fails early.",
        sources=("https://github.com/NVIDIA/nccl/issues/2428",),
        when=_hca_sets,
    ),
    Rule(
        id="env_differs",
        title="the ranks have different settings, or call different collectives",
        severity=Severity.ERROR,
        cause="Ranks disagree about sizes or messages: a variable is set on some nodes only, or the"
        " program's ranks call different collectives.",
        remedy="Export variables through the launcher (`mpirun -x`, `srun --export`, the pod"
        " template) and compare the `set by environment` lines by host; if they are equal, look at"
        " the program (NCCL_DEBUG_SUBSYS=COLL).",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1328",
            "https://github.com/NVIDIA/nccl/issues/969",
            "https://github.com/NVIDIA/nccl/issues/296",
        ),
        when=_env,
        explained_by=frozenset({"version_mismatch"}),
    ),
    Rule(
        id="forced_relaxed_ordering",
        title="the NIC may be forced into relaxed ordering",
        severity=Severity.ERROR,
        cause="Sizes do not match though all ranks run the same code and settings. A NIC whose"
        " firmware forces relaxed ordering of PCIe writes gives that.",
        remedy="Run `mlxconfig -d <device> q PCI_WR_ORDERING`; if it says force_relax, `mlxconfig"
        " -d <device> set PCI_WR_ORDERING=per_mkey` and reboot.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/531",
            "https://github.com/NVIDIA/nccl/issues/615",
        ),
        when=_relaxed,
    ),
    Rule(
        id="duplicate_gpu",
        title="two ranks share a GPU",
        severity=Severity.ERROR,
        cause="Two processes chose the same GPU: the local rank is not used for"
        " torch.cuda.set_device, CUDA_VISIBLE_DEVICES is wrong, or -g does not fit one process a"
        " GPU.",
        remedy="Use LOCAL_RANK for the device, and for nccl-tests -g 1 with one process for each"
        " GPU.",
        sources=(
            "https://github.com/huggingface/accelerate/issues/2246",
            "https://github.com/horovod/horovod/issues/3929",
        ),
        when=_duplicate,
    ),
    Rule(
        id="watchdog_timeout",
        title="PyTorch's watchdog gave up waiting",
        severity=Severity.ERROR,
        cause="A collective did not end in time: one rank came late, died or calls another"
        " collective, or the network stands still.",
        remedy="Find the rank that did not report (it is the likely culprit) and its last lines;"
        " set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 for the flight"
        " recorder, or ask `ncclras`.",
        sources=(
            "https://github.com/hiyouga/LLaMA-Factory/issues/7396",
            "https://github.com/vllm-project/vllm/issues/13535",
        ),
        when=_watchdog,
        explained_by=frozenset(
            {
                "transport_retry_exceeded",
                "local_protection_error",
                "remote_invalid_request",
                "qp_connect_timeout",
                "port_down",
                "port_event",
                "hca_catastrophic",
                "gpu_fault",
                "gid_changed",
                "efa_security_group",
                "no_route_to_host",
                "firewall_or_wrong_interface",
                "duplicate_gpu",
                "version_mismatch",
                "mixed_network_types",
                "hca_sets_differ",
                "nvls_bind_failed",
                "nvls_uneven_ranks",
                "imex_unavailable",
                "shm_too_small",
                "memlock",
                "env_differs",
            }
        ),
    ),
    Rule(
        id="connect_failed",
        title="only follow-ups of an error are seen",
        severity=Severity.NOTE,
        cause="These lines say that another process or thread ended first; which, and why, is not"
        " in this text.",
        remedy="Collect the logs of all ranks (NCCL_DEBUG=WARN, NCCL_DEBUG_FILE=/tmp/nccl.%h.%p)"
        " and take the earliest WARN.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/952",
            "https://github.com/NVIDIA/nccl-tests/issues/185",
        ),
        when=_follow_up,
    ),
)
