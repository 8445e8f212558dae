"""Rules: what queue pairs, GIDs and completions say about the RDMA network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence, HcaState, NetError
from gpufabric.net.rules.case import (
    Case,
    evidence_of,
    ipv4_of,
    is_link_local,
    iter_values,
)
from gpufabric.net.rules.rule import Match, Rule, fires

_UNREACHABLE: Final = 101
_TIMED_OUT: Final = 110
_NO_ROUTE_ERRNOS: Final = frozenset({_UNREACHABLE, 22, 61})
_GONE: Final = frozenset({4, 5, 8, 9, 10, 11, 12, 13})


def _completions(case: Case, *statuses: int) -> tuple[NetError, ...]:
    return tuple(e for e in case.errors("completion_error") if e.status in statuses)


def _first_completion(case: Case) -> NetError | None:
    """The completion error that came first; flushes only if there is nothing else."""
    errors = case.any_errors("completion_error")
    return next((e for e in errors if e.status != 5), errors[0] if errors else None)


def _qp(case: Case) -> Iterable[Match]:
    errors = case.errors("qp_connect_failed")
    return fires(*evidence_of(errors), about=_ends(errors[0])) if errors else ()


def _ends(error: NetError) -> str:
    told = [
        f"device {error.device}" if error.device else "",
        f"from {error.values['local_gid']}" if "local_gid" in error.values else "",
        f"to {error.values['remote_gid']}" if "remote_gid" in error.values else "",
    ]
    return " ".join(part for part in told if part)


def _rails(case: Case) -> Iterable[Match]:
    hints = [m for m in case.marks("hint") if "cross-rail" in m.values.get("text", "")]
    if hints:
        return fires(*evidence_of(hints))
    if case.env.get("NCCL_CROSS_NIC") == "0":
        return ()
    across = [
        e for e in case.errors("qp_connect_failed") if e.errno == _TIMED_OUT and _different_rail(e)
    ]
    return fires(*evidence_of(across), severity=Severity.WARNING) if across else ()


def _different_rail(error: NetError) -> bool:
    """Whether the two addresses are of different subnets, as rails usually are."""
    here, there = ipv4_of(error.values.get("local_gid")), ipv4_of(error.values.get("remote_gid"))
    return here is not None and there is not None and int(here) >> 8 != int(there) >> 8


def _gid_index(case: Case) -> Iterable[Match]:
    forced = case.env.get("NCCL_IB_GID_INDEX")
    if forced is not None and forced.isdecimal() and len(forced) < 6:
        bad = [gid for gid in _gids(case, int(forced)) if not _routable(gid)]
        if bad and len(bad) == len(list(_gids(case, int(forced)))):
            about = f"index {forced} is {bad[0].get('gid')} ({bad[0].get('version')})"
            return fires(case.env_evidence("NCCL_IB_GID_INDEX"), about=about)
    errors = case.errors("qp_connect_failed", "completion_error")
    local = [e for e in errors if is_link_local(e.values.get("local_gid"))]
    if local and (case.log.link_layer or "RoCE") == "RoCE":
        about = f"the local GID is {local[0].values['local_gid']}, which is link-local"
        return fires(*evidence_of(local), about=about)
    unroutable = [e for e in case.errors("qp_connect_failed") if e.errno in _NO_ROUTE_ERRNOS]
    if unroutable and case.log.link_layer != "IB":
        return fires(*evidence_of(unroutable[:2]), severity=Severity.WARNING)
    old = case.nccl_version is not None and case.nccl_version[:2] <= (2, 20)
    first = _first_completion(case)
    roce = case.log.link_layer == "RoCE"
    if first is not None and first.status == 12 and roce and old and forced in {None, "0"}:
        return fires(first.evidence, about="this NCCL takes index 0 by itself")
    return ()


def _gids(case: Case, index: int) -> Iterable[Mapping[str, object]]:
    for hca in case.devices.hcas or ():
        for gid in _table(hca):
            if gid.get("index") == index:
                yield gid


def _table(hca: HcaState) -> Iterable[Mapping[str, object]]:
    for gid in iter_values(hca.values.get("gids")):
        if isinstance(gid, FrozenDict):
            yield cast("Mapping[str, object]", gid)


def _routable(gid: Mapping[str, object]) -> bool:
    address = gid.get("gid")
    text = address if isinstance(address, str) else ""
    return gid.get("version") == "v2" and not is_link_local(text)


def _gid_differs(case: Case) -> Iterable[Match]:
    """The index of the routable IPv4 GID on each machine of one text (`mlx5_0`, `mlx5_0#2`)."""
    by_device: dict[str, dict[str, tuple[int, int]]] = {}
    for hca in case.devices.hcas or ():
        name, _, machine = hca.name.partition("#")
        for gid in _table(hca):
            address = gid.get("gid")
            if _routable(gid) and isinstance(address, str) and ipv4_of(address) is not None:
                index, at = gid.get("index"), hca.values.get("lineno")
                if isinstance(index, int):
                    found = (index, at if isinstance(at, int) else 0)
                    by_device.setdefault(name, {}).setdefault(machine, found)
    for name, machines in by_device.items():
        if len({index for index, _ in machines.values()}) > 1:
            lines = [Evidence(at, f"{name}: RoCE v2 index {n}") for n, at in machines.values()]
            return fires(*lines, about=f"device {name}")
    return ()


def _gid_changed(case: Case) -> Iterable[Match]:
    errors = case.any_errors("gid_changed")
    marks = case.marks("gid_changed", "gid_changed_retry")
    if not errors and not marks:
        return ()
    lines = evidence_of([*errors, *marks])
    after = [
        e
        for e in case.any_errors("completion_error", "qp_connect_failed")
        if e.evidence.lineno > lines[0].lineno
    ]
    if not after:
        return fires(*lines, severity=Severity.NOTE, about="no error followed")
    return fires(*lines, *evidence_of(after[:1]))


def _retry(case: Case) -> Iterable[Match]:
    errors = _completions(case, 12)
    if not errors:
        return ()
    peers = dict.fromkeys(e.peer for e in errors if e.peer)
    devices = dict.fromkeys(e.device for e in errors if e.device)
    about = "; ".join(
        part
        for part in (
            f"{len(errors)} different lines" if len(errors) > 1 else "",
            f"peers {', '.join(list(peers)[:4])}" if peers else "",
            f"devices {', '.join(list(devices)[:4])}" if devices else "",
        )
        if part
    )
    return fires(*evidence_of(errors), about=about)


def _flush(case: Case) -> Iterable[Match]:
    errors = [e for e in case.any_errors("completion_error") if e.status == 5]
    others = [e for e in case.any_errors("completion_error") if e.status != 5]
    return fires(*evidence_of(errors)) if errors and not others else ()


def _protection(case: Case) -> Iterable[Match]:
    first = _first_completion(case)
    if first is not None and first.status in {4, 8}:
        return fires(*evidence_of(_completions(case, 4, 8) or (first,)))
    fatal = [e for e in case.errors("hca_fatal") if "access violation" in (e.text or "")]
    return fires(*evidence_of(fatal)) if fatal else ()


def _remote(case: Case) -> Iterable[Match]:
    errors = _completions(case, 9, 10, 11)
    return fires(*evidence_of(errors)) if errors else ()


def _one_plugin(case: Case) -> Iterable[Match]:
    names = [host.networks for host in case.log.hosts] + [case.log.networks]
    internal = any("IB" in networks for networks in names)
    external = any(name.startswith("IBext") for networks in names for name in networks)
    errors = case.errors("completion_error", "qp_connect_failed")
    if internal and external and errors:
        return fires(*evidence_of([*case.marks("network")[:2], *errors[:1]]))
    return ()


def _small_mtu(case: Case) -> Iterable[Match]:
    roce = case.log.link_layer == "RoCE"
    pairs = [m for m in case.marks("queue_pair") if m.values.get("mtu") in {"1", "2", "3"}]
    if pairs and (roce or any("GID" in m.first.text for m in pairs)):
        return fires(*evidence_of(pairs))
    for hca in case.devices.hcas or ():
        mtu = hca.values.get("active_mtu")
        if isinstance(mtu, int) and mtu <= 1024 and hca.link_layer == "Ethernet":
            at = hca.values.get("lineno")
            line = Evidence(at if isinstance(at, int) else 0, f"{hca.name}: active_mtu {mtu}")
            return fires(line)
    return ()


_TROUBLE: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

RULES: Final = (
    Rule(
        id="gid_changed",
        title="the GID table changed during the run",
        severity=Severity.ERROR,
        cause="An address of a RoCE interface came or went while the job ran (DHCP, networkd, a"
        " bond), and queue pairs that used its GID broke.",
        remedy="Give RoCE interfaces static addresses and take them out of NetworkManager's and"
        " networkd's hands; NCCL 2.28.3 and later bears it better.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1819",
            "https://github.com/NVIDIA/nccl/issues/394",
        ),
        when=_gid_changed,
    ),
    Rule(
        id="qp_connect_timeout",
        title="queue pairs cannot connect",
        severity=Severity.CRITICAL,
        cause="There is no RDMA path between the two ends that NCCL tried to join: a GID that does"
        " not reach the peer, rails that are not joined, a VLAN, or no subnet manager.",
        remedy="Run `ib_write_bw -d <device>` between exactly these two devices; compare"
        " `show_gids` on both nodes; leave NCCL_IB_GID_INDEX unset with NCCL 2.21 and later.",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/185",
            "https://github.com/NVIDIA/nccl/issues/2013",
            "https://github.com/NVIDIA/nccl-tests/issues/227",
            "https://github.com/NVIDIA/nccl/issues/925",
        ),
        when=_qp,
    ),
    Rule(
        id="rail_only_fabric",
        title="traffic across rails on a fabric of single rails",
        severity=Severity.ERROR,
        cause="Two NICs of different rails tried to talk, and this network joins only NICs of one"
        " rail.",
        remedy="Set NCCL_CROSS_NIC=0 on all ranks (and leave PXN on), or have the rails joined at"
        " the spine.",
        sources=("https://github.com/NVIDIA/nccl/issues/2013",),
        when=_rails,
    ),
    Rule(
        id="gid_index_not_rocev2",
        title="the GID in use is not the routable RoCE v2 one",
        severity=Severity.CRITICAL,
        cause="NCCL uses a GID of RoCE v1 or a link-local one, which does not reach other subnets:"
        " the index is forced to it, or an older NCCL took index 0.",
        remedy="Run `show_gids`; with NCCL 2.21 and later `unset NCCL_IB_GID_INDEX`, before that"
        " set it to the index whose version is v2 and whose GID holds the IPv4 address. Check the"
        " variable's spelling: NCCL says nothing about unknown names.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/426",
            "https://github.com/NVIDIA/nccl/issues/769",
            "https://github.com/NVIDIA/nccl/issues/1510",
            "https://github.com/NVIDIA/nccl-tests/issues/185",
        ),
        when=_gid_index,
    ),
    Rule(
        id="gid_index_differs",
        title="the RoCE v2 index differs between machines",
        severity=Severity.ERROR,
        cause="The machines (or pods with macvlan and SR-IOV) hold the routable GID at different"
        " indexes, so one NCCL_IB_GID_INDEX cannot fit all.",
        remedy="Leave NCCL_IB_GID_INDEX unset with NCCL 2.21 and later, or set"
        " NCCL_IB_ROCE_VERSION_NUM=2 and NCCL_IB_ADDR_RANGE to the subnet.",
        sources=(
            "https://github.com/k8snetworkplumbingwg/multus-cni/issues/1100",
            "https://github.com/NVIDIA/nccl/issues/890",
            "https://github.com/NVIDIA/nccl/issues/1573",
        ),
        when=_gid_differs,
    ),
    Rule(
        id="local_protection_error",
        title="the NIC was not allowed to touch the memory",
        severity=Severity.CRITICAL,
        cause="A work request ended with a local protection error: the memory registration does not"
        " hold, by ACS or the IOMMU, a fault of the peer-memory module, a buffer freed too early,"
        " or two plugins mixed.",
        remedy="Test with NCCL_NET_GDR_LEVEL=0: if it works then, look at ACS, IOMMU and"
        " nvidia_peermem; update NCCL, GPU driver and NIC firmware together.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1905",
            "https://github.com/NVIDIA/nccl/issues/707",
            "https://github.com/NVIDIA/nccl/issues/1524",
        ),
        when=_protection,
    ),
    Rule(
        id="remote_invalid_request",
        title="the receiver refused the transfer",
        severity=Severity.ERROR,
        cause="The other side rejected a request (status 9 to 11): the fault is there, in its"
        " memory registration or its process.",
        remedy="Read the log of the peer that the line names at the same second; put NCCL_IB_*"
        " variables back to their defaults; try the other IB plugin (internal or HPC-X).",
        sources=("https://github.com/NVIDIA/nccl/issues/1710",),
        when=_remote,
    ),
    Rule(
        id="transport_retry_exceeded",
        title="the peer does not answer (retry exceeded)",
        severity=Severity.CRITICAL,
        cause="Packets to the peer were sent again and again without an answer: its port or link is"
        " down, the network drops packets, its process died, or the timeout is too short for this"
        " network.",
        remedy="Look at the named device and peer: `ibstat <device>`, its port counters, and the"
        " peer's own log and dmesg at that time. On RoCE check PFC and ECN. As a test set"
        " NCCL_IB_TIMEOUT=22.",
        sources=(
            _TROUBLE,
            "https://github.com/NVIDIA/nccl/issues/426",
            "https://github.com/NVIDIA/nccl/issues/1664",
            "https://github.com/NVIDIA/nccl/issues/1814",
        ),
        when=_retry,
        explained_by=frozenset(
            {
                "port_down",
                "port_event",
                "hca_catastrophic",
                "gpu_fault",
                "local_protection_error",
                "remote_invalid_request",
                "gid_changed",
            }
        ),
    ),
    Rule(
        id="flush_error",
        title="only flushed requests are seen",
        severity=Severity.NOTE,
        cause="Status 5 means that the queue pair was in error already: the request that failed"
        " first is not in this text.",
        remedy="Collect the logs of all ranks and look for the first WARN, on either side.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1814",
            "https://github.com/NVIDIA/nccl/issues/1737",
        ),
        when=_flush,
    ),
    Rule(
        id="internal_vs_external_plugin",
        title="built-in and external IB plugin in one job",
        severity=Severity.NOTE,
        cause="Both NCCL's own IB code and the HPC-X plugin show in this text, and something"
        " failed: they choose GIDs, ordering and merged NICs differently.",
        remedy="Compare the two `NET/IB : Using` lines and use one plugin everywhere:"
        " NCCL_NET_PLUGIN=none for the built-in one.",
        sources=("https://github.com/NVIDIA/nccl/issues/1710",),
        when=_one_plugin,
    ),
    Rule(
        id="small_mtu",
        title="RoCE with small packets",
        severity=Severity.WARNING,
        cause="The RDMA MTU is 1024 bytes, because the interface's own MTU is 1500; about 5 percent"
        " of the bandwidth is lost.",
        remedy="Run `ip link set <interface> mtu 9000` (4200 is enough) on all nodes and switches.",
        sources=("https://github.com/NVIDIA/dgx-spark-playbooks/pull/103",),
        when=_small_mtu,
    ),
)
