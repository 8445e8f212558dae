"""Rules: ports, cards, links and GPUs, as tools, sysfs and the kernel report them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net.devices import failed_ports
from gpufabric.net.diagnosis import Severity
from gpufabric.net.dmesg import SERIOUS_XIDS
from gpufabric.net.records import Evidence, HcaState
from gpufabric.net.rules.case import Case, evidence_of
from gpufabric.net.rules.rule import Match, Rule, fires
from gpufabric.net.topology import NodeTopology

_SOFT: Final = re.compile(r"rxe_?\d|siw_?\w*\d")
_LOSS_LIMITS: Final = {
    "out_of_sequence": 1000,
    "packet_seq_err": 1000,
    "implied_nak_seq_err": 1000,
    "local_ack_timeout_err": 100,
    "rx_discards_phy": 1000,
}
"""Counters count since the driver was loaded, so a few are no news; thousands are."""
_LOSS: Final = tuple(_LOSS_LIMITS)
_SPEED: Final = re.compile(r"(\d+(?:\.\d+)?)")


def _port_down(case: Case) -> Iterable[Match]:
    ports = failed_ports(case.devices)
    if not ports:
        return ()
    waiting = [port for port in ports if port.state == "Initializing"]
    about = ", ".join(f"{port.name} {port.state}/{port.phys or '?'}" for port in ports[:8])
    if waiting and len(waiting) == len(ports):
        about += ": the link is up and no subnet manager has answered"
    return fires(*map(_port_line, ports), about=about)


def _port_line(port: HcaState) -> Evidence:
    at = port.values.get("lineno")
    rate = "" if port.rate_gbps is None else f", rate shown {port.rate_gbps:g}"
    text = f"{port.name}: state {port.state}, physical state {port.phys}{rate}"
    return Evidence(at if isinstance(at, int) else 0, text)


def _port_event(case: Case) -> Iterable[Match]:
    errors = case.any_errors("port_event", "kernel_cable")
    links = [
        e for e in case.any_errors("kernel_link_down") if not (e.device or "").startswith("eth")
    ]
    if not errors and not links:
        return ()
    devices = dict.fromkeys(e.device for e in [*errors, *links] if e.device)
    return fires(*evidence_of([*errors, *links]), about=", ".join(list(devices)[:8]))


def _catastrophic(case: Case) -> Iterable[Match]:
    fatal = [e for e in case.any_errors("hca_fatal") if "access violation" not in (e.text or "")]
    kernel = case.any_errors("kernel_hca_fatal", "kernel_hca_timeout")
    found = [*fatal, *kernel]
    devices = dict.fromkeys(e.device for e in found if e.device)
    return fires(*evidence_of(found), about=", ".join(list(devices)[:8])) if found else ()


def _gpu_fault(case: Case) -> Iterable[Match]:
    xids = [
        e
        for e in case.any_errors("kernel_xid")
        if e.status is not None and (e.status in SERIOUS_XIDS)
    ]
    others = case.any_errors("kernel_gpu_lost", "dcgm_nvlink_down", "dcgm_fail")
    fatal = [e for e in case.any_errors("kernel_sxid") if "atal" in (e.text or "")]
    fatal = [e for e in fatal if "Non-fatal" not in (e.text or "")]
    found = [*xids, *others, *fatal]
    if not found:
        return ()
    codes = dict.fromkeys(f"Xid {e.status}" for e in xids)
    places = dict.fromkeys(e.device for e in found if e.device)
    about = " ".join([*codes, *(["on", ", ".join(list(places)[:8])] if places else [])])
    return fires(*evidence_of(found), about=about)


def _counters(case: Case) -> Mapping[str, Mapping[str, int]]:
    counters = case.devices.counters or FrozenDict[str, object]()
    return {
        owner: cast("Mapping[str, int]", values)
        for owner, values in counters.items()
        if isinstance(values, FrozenDict)
    }


def _counter_line(case: Case, owner: str, text: str) -> Evidence:
    at = case.detail("counters_at").get(owner, {}).get("lineno")
    return Evidence(at if isinstance(at, int) else 0, f"{owner}: {text}")


def _saturated(case: Case) -> Iterable[Match]:
    full = [o for o, values in _counters(case).items() if values.get("link_downed") == 255]
    if not full:
        return ()
    lines = [_counter_line(case, owner, "link_downed 255") for owner in full]
    return fires(*lines, about=", ".join(full[:8]))


def _packet_loss(case: Case) -> Iterable[Match]:
    rising = _rising(case)
    if rising:
        return fires(*rising, about="the counters rise between two dumps")
    layers = {hca.name: hca.link_layer for hca in case.devices.hcas or ()}
    found: list[Evidence] = []
    for owner, values in _counters(case).items():
        if layers.get(owner) == "InfiniBand":
            continue
        lost = {n: v for n in _LOSS if (v := values.get(n, 0)) >= _LOSS_LIMITS[n]}
        if lost:
            told = ", ".join(f"{name} {value}" for name, value in lost.items())
            found.append(_counter_line(case, owner, told))
    # One dump does not tell when it was.
    return fires(*found, severity=Severity.WARNING) if found else ()


def _rising(case: Case) -> list[Evidence]:
    found: list[Evidence] = []
    for owner, values in case.detail("counters_rise").items():
        more = {n: v for n in _LOSS if isinstance(v := values.get(n), int) and v > 0}
        if more:
            told = ", ".join(f"{name} +{value}" for name, value in more.items())
            found.append(_counter_line(case, owner, told))
    return found


def _pcie(case: Case) -> Iterable[Match]:
    limited = case.any_errors("kernel_pcie_limited")
    if limited:
        values = limited[0].values
        about = f"{values.get('have')} of {values.get('want')} Gbit/s at {limited[0].device}"
        return fires(*evidence_of(limited), about=about)
    found = [*_slow_pci_devices(case), *_slow_topology_nics(case)]
    for hca in case.devices.hcas or ():
        for what in ("speed", "width"):
            now, most = (
                _leading(hca.values.get(f"pci_{word}_link_{what}")) for word in ("current", "max")
            )
            if now is not None and most is not None and now < most:
                at = hca.values.get("lineno")
                text = f"{hca.name}: PCIe link {what} {now:g} of {most:g}"
                found.append(Evidence(at if isinstance(at, int) else 0, text))
    return fires(*found) if found else ()


def _slow_pci_devices(case: Case) -> Iterable[Evidence]:
    """Network cards by bus id; GPUs lower their links when idle, so they are not judged."""
    for bus, facts in case.detail("pci").items():
        kind = facts.get("class")
        if isinstance(kind, str) and not kind.startswith("0x02"):
            continue
        for what in ("speed", "width"):
            now, most = (_leading(facts.get(f"{word}_link_{what}")) for word in ("current", "max"))
            if now is not None and most is not None and now < most:
                at = facts.get("lineno")
                text = f"{bus}: PCIe link {what} {now:g} of {most:g}"
                yield Evidence(at if isinstance(at, int) else 0, text)


def _slow_topology_nics(case: Case) -> Iterable[Evidence]:
    """NICs of a topology file whose link is slower than that of their equals."""
    topology = case.topology
    if not isinstance(topology, NodeTopology):
        return
    links = {
        nic.name: (_leading(nic.link_speed) or 0.0, nic.link_width or 0)
        for nic in topology.nics
        if _leading(nic.link_speed) and nic.link_width
    }
    best = max(links.values(), default=(0.0, 0), key=lambda link: link[0] * link[1])
    usual = sum(link == best for link in links.values()) * 2 > len(links)
    for name, (speed, width) in links.items():
        # 2.5 GT/s x1 is how virtual machines show any link.
        if usual and speed * width * 2 <= best[0] * best[1] and speed > 2.5:
            text = f"{name}: {speed:g} GT/s x{width}, the others {best[0]:g} GT/s x{best[1]}"
            yield Evidence(topology.first_line, text)


def _leading(text: object) -> float | None:
    found = _SPEED.match(text) if isinstance(text, str) else None
    if isinstance(text, int):
        return float(text)
    return float(found[1]) if found else None


def _soft(case: Case) -> Iterable[Match]:
    marks = [m for m in case.marks("no_real_path") if _SOFT.search(m.values.get("path", ""))]
    used = [hca.name for hca in case.log.hcas or () if _SOFT.match(hca.name)]
    listed = [hca.name for hca in case.devices.hcas or () if _SOFT.match(hca.name)]
    if not marks and not used and not listed:
        return ()
    name = (used or listed or ["rxe"])[0]
    return fires(*(evidence_of(marks) or (Evidence(0, name),)), about=f"device {name}")


def _prefix(case: Case) -> Iterable[Match]:
    value = case.env.get("NCCL_IB_HCA", "")
    if not value or value.startswith(("=", "^")):
        return ()
    names = [part.partition(":")[0] for part in value.split(",") if part]
    hcas = [hca.name for hca in case.log.hcas or ()]
    for name in names:
        caught = [
            hca
            for hca in hcas
            if hca.startswith(name) and hca != name and hca not in names and name[-1:].isdigit()
        ]
        if caught:
            about = f"{name} also takes {', '.join(caught[:6])}"
            return fires(case.env_evidence("NCCL_IB_HCA"), about=about)
    return ()


def _security_group(case: Case) -> Iterable[Match]:
    errors = case.errors("remote_address_failed")
    errors += tuple(
        e
        for e in case.errors("ofi_completion_error")
        if e.status == 20 or "NULL context" in e.evidence.text or "EHOSTUNREACH" in (e.text or "")
    )
    return fires(*evidence_of(errors)) if errors else ()


def _tcpxo(case: Case) -> Iterable[Match]:
    errors = case.errors("tcpxo_error", "shim_mismatch")
    differs = [
        m for m in case.marks("unknown_warning") if "Number of GPUs detected" in m.first.text
    ]
    if errors or differs:
        return fires(*evidence_of([*errors, *differs]))
    recommended = case.marks("shim_recommended")
    return fires(*evidence_of(recommended), severity=Severity.NOTE) if recommended else ()


RULES: Final = (
    Rule(
        id="gpu_fault",
        title="a GPU or its NVLink has failed",
        severity=Severity.CRITICAL,
        cause="The GPU driver or DCGM reports a fault of a GPU, an NVLink or an NVSwitch; the"
        " job's network errors follow from it.",
        remedy="Take the node out, run `nvidia-smi -q -d PAGE_RETIREMENT,ECC` and `dcgmi diag -r"
        " 3`, reset or reboot, and replace the part if it comes back.",
        sources=(
            "https://docs.nvidia.com/deploy/xid-errors/",
            "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html",
        ),
        when=_gpu_fault,
    ),
    Rule(
        id="hca_catastrophic",
        title="a NIC has failed",
        severity=Severity.CRITICAL,
        cause="The NIC's firmware or its PCIe link failed: all its queue pairs are gone.",
        remedy="Read `dmesg | grep mlx5`, reset with `mlxfwreset -d <device> reset` or reboot,"
        " update the firmware, replace the card if it comes back.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/230",
            "https://github.com/NVIDIA/nccl/issues/1919",
        ),
        when=_catastrophic,
    ),
    Rule(
        id="port_down",
        title="a port of the GPU network is down",
        severity=Severity.CRITICAL,
        cause="A port that should carry GPU traffic is not active: cable, optics, switch port, an"
        " administrator, or no subnet manager.",
        remedy="Check cable and switch port, `ip link set <interface> up`, `mlxlink -d <device>`;"
        " with the state Initializing start or reach the subnet manager. Until then leave the node"
        " out of multi-node jobs.",
        sources=("https://github.com/leptonai/gpud/pull/482",),
        when=_port_down,
    ),
    Rule(
        id="port_event",
        title="a link went down during the run",
        severity=Severity.ERROR,
        cause="The NIC reported a port error or the kernel saw the link fall: the link flaps.",
        remedy="Change cable or optics, look at the switch port, and watch `link_downed` in"
        " /sys/class/infiniband/<device>/ports/1/counters.",
        sources=("https://github.com/NVIDIA/nccl/issues/905",),
        when=_port_event,
    ),
    Rule(
        id="pcie_downgrade",
        title="a PCIe link is slower than it can be",
        severity=Severity.ERROR,
        cause="A NIC's PCIe link runs with fewer lanes or at a lower speed than it can: a bad slot,"
        " riser or seat. Its rail is slower than the others.",
        remedy="Run `lspci -vv -s <bus id> | grep -e LnkCap -e LnkSta` under load; reseat the card,"
        " change the riser or the slot.",
        sources=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
        when=_pcie,
        confidence="inferred",
    ),
    Rule(
        id="roce_packet_loss",
        title="the RoCE network drops packets",
        severity=Severity.ERROR,
        cause="Packets arrive out of order, or acknowledgements do not arrive: PFC/ECN is not set"
        " up end to end, the traffic is in the wrong class, or a link is bad.",
        remedy="Read the counters twice, ten seconds apart, during a run; set NCCL_IB_TC to the"
        " lossless class; check PFC and ECN on NICs and all switches.",
        sources=(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
            "https://github.com/NVIDIA/nccl/issues/394",
            "https://github.com/NVIDIA/nccl/issues/173",
        ),
        when=_packet_loss,
    ),
    Rule(
        id="counter_saturated",
        title="link_downed stands at its end, 255",
        severity=Severity.WARNING,
        cause="The 8-bit counter is full: the link went down many times since the driver was"
        " loaded. When, it cannot tell.",
        remedy="Clear it (`perfquery -x -R` or reload the driver) and watch the difference.",
        sources=("https://github.com/leptonai/gpud",),
        when=_saturated,
        confidence="inferred",
    ),
    Rule(
        id="soft_roce",
        title="software RoCE is in use",
        severity=Severity.ERROR,
        cause="The RDMA device is emulated in the kernel (rxe or siw), without RDMA hardware.",
        remedy="Remove it (`rdma link delete <name>`) and use sockets, or a real RDMA NIC.",
        sources=("https://github.com/NVIDIA/nccl/issues/1297",),
        when=_soft,
    ),
    Rule(
        id="hca_prefix_match",
        title="NCCL_IB_HCA takes more NICs than it names",
        severity=Severity.WARNING,
        cause="Without a leading = the names are prefixes: mlx5_1 is also mlx5_10, mlx5_11, ...",
        remedy="Write NCCL_IB_HCA==mlx5_0,mlx5_1 with the = in front of the list.",
        sources=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",),
        when=_prefix,
    ),
    Rule(
        id="efa_security_group",
        title="EFA traffic is blocked by a security group",
        severity=Severity.CRITICAL,
        cause="The first transfer finds no way to the peer: the security group lacks the rules that"
        " let its members talk to each other with all protocols, both ways.",
        remedy="Add to the security group an inbound and an outbound rule for all traffic whose"
        " source and destination is the group itself; attach it to every EFA interface.",
        sources=(
            "https://github.com/aws/aws-ofi-nccl/issues/156",
            "https://github.com/aws/aws-ofi-nccl/issues/663",
            "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html",
        ),
        when=_security_group,
    ),
    Rule(
        id="tcpxo_daemon",
        title="GPUDirect-TCPXO's daemon or settings do not fit",
        severity=Severity.CRITICAL,
        cause="The FasTrak plugin and its receive daemon disagree: versions differ, the pod lacks"
        " hostNetwork or privileges, or variables are not those of nccl-env-profile.sh.",
        remedy="Use the plugin and tcpxo-daemon of one release, source"
        " /usr/local/nvidia/lib64/nccl-env-profile.sh before the program, and set hostNetwork.",
        sources=(
            "https://github.com/GoogleCloudPlatform/container-engine-accelerators/issues/580",
            "https://github.com/NVIDIA/Megatron-LM/issues/4660",
        ),
        when=_tcpxo,
    ),
)
