"""Rules: bootstrap, shared memory, versions, environment, hangs: the job rather than the network."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence, HostView, NetError
from gpufabric.net.rules._names import KNOWN, OTHERS
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
_IMAGES_OWN: Final = frozenset({"NCCL_VERSION", "NCCL_HOME", "NCCL_ROOT", "NCCL_DIR", "NCCL_LIB"})
_SOURCES_TROUBLE: Final = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
)
_ENV_GUIDE: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


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


def _shm(case: Case) -> Iterable[Match]:
    full = [
        e
        for e in case.errors("shm_extend_failed", "shm_create_failed", "shm_attach_failed")
        if e.errno in {None, 12, 28} and not (e.kind == "shm_attach_failed" and e.errno is None)
    ]
    if full:
        return fires(*evidence_of(full))
    size = case.fact("shm_bytes")
    if isinstance(size, int) and size <= 64 * 2**20:
        line = case.fact_evidence("shm_bytes", f"/dev/shm: {size} bytes")
        return fires(line, severity=Severity.WARNING)
    return ()


def _ipc(case: Case) -> Iterable[Match]:
    gone = [e for e in case.errors("shm_attach_failed") if e.errno == 2]
    texts = ("abstract socket", "ncclIpcSocket", "UDS socket", "cuMemImportFromShareableHandle")
    marks = [m for m in case.marks("unknown_warning") if any(t in m.first.text for t in texts)]
    return fires(*evidence_of([*gone, *marks])) if gone or marks else ()


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
    if len({found for found in sets.values()}) < 2:
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
    return fires(*lines[:4], about=about, severity=Severity.WARNING)


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


def _p2p(case: Case) -> Iterable[Match]:
    if not case.gdr_could_be:
        return ()  # GeForce-class GPUs have no P2P to lose
    names = [n for n in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if case.env.get(n) == "1"]
    return fires(*map(case.env_evidence, names), about=" and ".join(names)) if names else ()


def _misspelled(case: Case) -> Iterable[Match]:
    found: list[Evidence] = []
    told: list[str] = []
    for name in case.launch_env:
        if name in KNOWN or name in _IMAGES_OWN or name.startswith(OTHERS):
            continue
        if not name.startswith("NCCL_"):
            continue
        close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
        if close and _distance(name, close[0]) <= 2:
            found.append(case.env_evidence(name))
            told.append(f"{name} should be {close[0]}")
    return fires(*found, about="; ".join(told)) if found else ()


def _distance(one: str, other: str) -> int:
    """Letters to add, drop or change (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, another in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != another))
    return row[-1]


def _conf(case: Case) -> Iterable[Match]:
    files = case.detail("nccl_conf")
    if files:
        lines = [
            Evidence(at if isinstance(at := facts.get("lineno"), int) else 0, path)
            for path, facts in files.items()
        ]
        return fires(*lines, about=", ".join(files))
    return fires(case.env_evidence("NCCL_CONF_FILE")) if "NCCL_CONF_FILE" in case.env else ()


def _gpu_too_new(case: Case) -> Iterable[Match]:
    errors = list(case.errors("shared_memory_limit"))
    errors += [e for e in case.errors("cuda_failure") if "no kernel image" in (e.text or "")]
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
        cause="Processes of one job loaded different NCCL libraries: images differ, LD_PRELOAD, or a"
        " pip wheel next to the system's library.",
        remedy="Run one image on all nodes; in the process, `python -c 'import torch;"
        " print(torch.cuda.nccl.version())'` and `grep nccl /proc/<pid>/maps` show what was loaded.",
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
        id="shm_too_small",
        title="/dev/shm is too small",
        severity=Severity.CRITICAL,
        cause="NCCL's shared-memory segments do not fit into /dev/shm; containers get 64 MiB unless"
        " told otherwise.",
        remedy="Give the container more: `docker run --shm-size=16g` or `--ipc=host`; on Kubernetes"
        " mount an emptyDir with `medium: Memory` at /dev/shm. NCCL 2.24 and later can do without"
        " (NCCL_CUMEM_HOST_ENABLE=1).",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/166",
            "https://github.com/NVIDIA/nccl/issues/290",
            "https://github.com/NVIDIA/nccl/issues/342",
        ),
        when=_shm,
    ),
    Rule(
        id="ipc_namespace",
        title="containers of one node cannot share memory handles",
        severity=Severity.WARNING,
        cause="Processes on one machine are in different IPC or network namespaces, so shared memory"
        " and abstract sockets of one are not visible to the other.",
        remedy="Run all ranks of a node in one pod, or set hostIPC and hostPID; try"
        " NCCL_IPC_USE_ABSTRACT_SOCKET=0 with a shared /tmp.",
        sources=(_ENV_GUIDE, "https://github.com/NVIDIA/nccl/issues/2379"),
        when=_ipc,
    ),
    Rule(
        id="hca_sets_differ",
        title="the nodes see different NICs",
        severity=Severity.CRITICAL,
        cause="Ranks found different numbers or kinds of RDMA devices: a device plugin or cgroup lets"
        " fewer through on one node, or a card is missing.",
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
        remedy="Run `mlxconfig -d <device> q PCI_WR_ORDERING`; if it says force_relax, `mlxconfig -d"
        " <device> set PCI_WR_ORDERING=per_mkey` and reboot.",
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
        id="nccl_version_lacks_gpu_fix",
        title="NCCL is too old for this GPU",
        severity=Severity.ERROR,
        cause="This NCCL (or the CUDA it was built with) does not know this GPU.",
        remedy="Use an image with a newer CUDA and NCCL; `nvidia-smi --query-gpu=name,compute_cap"
        " --format=csv` tells what must be supported.",
        sources=("https://github.com/NVIDIA/nccl-tests/issues/287",),
        when=_gpu_too_new,
    ),
    Rule(
        id="p2p_disabled_by_env",
        title="P2P or shared memory is switched off by a variable",
        severity=Severity.WARNING,
        cause="NCCL_P2P_DISABLE or NCCL_SHM_DISABLE is set, often left from a search for another"
        " fault; traffic inside the node takes a slow way.",
        remedy="Run `unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE` unless the platform's documents ask"
        " for them.",
        sources=(_ENV_GUIDE,),
        when=_p2p,
    ),
    Rule(
        id="misspelled_variable",
        title="a variable's name is misspelled",
        severity=Severity.WARNING,
        cause="NCCL ignores names that it does not know without a word, so the setting has no"
        " effect.",
        remedy="Correct the name, and look for `set by environment` in the log: NCCL prints each"
        " variable that it takes.",
        sources=("https://github.com/NVIDIA/nccl-tests/issues/185",),
        when=_misspelled,
    ),
    Rule(
        id="hidden_conf_file",
        title="settings come from a file",
        severity=Severity.NOTE,
        cause="NCCL also reads /etc/nccl.conf and ~/.nccl.conf (or NCCL_CONF_FILE), which images"
        " bring along.",
        remedy="Read it (`cat /etc/nccl.conf`) and remove what does not belong to this machine; the"
        " environment wins over it.",
        sources=(_ENV_GUIDE, "https://github.com/luxingcom/aicad-nccl-optimization/issues/1"),
        when=_conf,
    ),
    Rule(
        id="watchdog_timeout",
        title="PyTorch's watchdog gave up waiting",
        severity=Severity.ERROR,
        cause="A collective did not end in time: one rank came late, died or calls another"
        " collective, or the network stands still.",
        remedy="Find the rank that did not report (it is the likely culprit) and its last lines; set"
        " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 for the flight"
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
        cause="These lines say that another process or thread ended first; which, and why, is not in"
        " this text.",
        remedy="Collect the logs of all ranks (NCCL_DEBUG=WARN, NCCL_DEBUG_FILE=/tmp/nccl.%h.%p) and"
        " take the earliest WARN.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/952",
            "https://github.com/NVIDIA/nccl-tests/issues/185",
        ),
        when=_follow_up,
    ),
)
