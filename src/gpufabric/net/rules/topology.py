"""Rules: where GPUs and NICs sit, and whether NCCL was told the truth about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence
from gpufabric.net.rules.case import Case, evidence_of
from gpufabric.net.rules.rule import Match, Rule, fires
from gpufabric.net.topology import NodeTopology, PathKind, kind_of, path_between

_FAR: Final = frozenset({PathKind.NODE, PathKind.SYS})
_ETHERNET: Final = re.compile(r"eth\d|ens\d|eno\d|enp\d|bond\d|lo$")


def _vm(case: Case) -> Iterable[Match]:
    if case.marks("topo_file") or case.gdr_seen or "NCCL_TOPO_FILE" in case.env:
        return ()
    slow = case.marks("pci_slow_link")
    unreadable = case.marks("topo_unreadable")
    if slow:
        return fires(
            *evidence_of(slow), about=f"a PCI link is taken for {slow[0].values['bw']} GB/s"
        )
    if unreadable:
        far = any("PHB" in m.values.get("type", "") for m in case.marks("graph"))
        lost = case.crosses_nodes and case.uses_rdma and bool(case.rdma_connections)
        # Alone these lines are harmless: NCCL only guesses a speed.
        return fires(*evidence_of(unreadable)) if far or lost else ()
    topology = case.topology
    if isinstance(topology, NodeTopology) and topology.source == "topo_xml":
        odd = [gpu for gpu in topology.gpus if (gpu.link_speed or "").startswith(("2.5 ", "Unk"))]
        if odd and topology.gpus_without_near_nic:
            text = f"{odd[0].name}: link_speed {odd[0].link_speed}, width {odd[0].link_width}"
            return fires(Evidence(topology.first_line, text))
    return ()


def _wrong_file(case: Case) -> Iterable[Match]:
    errors = case.errors("topology_mismatch")
    hints = [m for m in case.marks("hint") if "topology file" in m.values.get("text", "")]
    return fires(*evidence_of([*errors, *hints])) if errors or hints else ()


def _misaligned(case: Case) -> Iterable[Match]:
    top = case.topology
    if top is None:
        return ()
    for topology in [top, *(top.also if isinstance(top, NodeTopology) else ())]:
        found = list(_far_gpus(topology))
        if found:
            few = (topology.n_nics or 0) * 2 <= (topology.n_gpus or 0)
            at = topology.first_line if isinstance(topology, NodeTopology) else 0
            text = "; ".join(f"{gpu}: nearest NIC is {path}" for gpu, path in found[:8])
            # One or two NICs cannot be near every GPU: NCCL goes by a GPU that is (PXN).
            return fires(Evidence(at, text), severity=Severity.NOTE if few else None)
    return ()


def _far_gpus(topology: object) -> Iterable[tuple[str, str]]:
    """GPUs whose nearest fabric NIC is across the CPU's inner links, and how far it is."""
    if not isinstance(topology, NodeTopology) or topology.hides_pcie:
        return
    nics = [
        nic.name
        for nic in topology.nics
        if not _ETHERNET.match(nic.device or nic.name) or nic.gdr is True
    ]
    for gpu in topology.gpus:
        told = [path for nic in nics if (path := path_between(topology, gpu.name, nic))]
        kinds = [kind for path in told if (kind := kind_of(path)) is not None]
        order = list(PathKind)
        if kinds and (best := min(kinds, key=order.index)) in _FAR:
            yield gpu.name, best.value


RULES: Final = (
    Rule(
        id="vm_topology_missing",
        title="the virtual machine hides the PCIe topology",
        severity=Severity.ERROR,
        cause="NCCL sees emulated PCIe bridges instead of the real switches, so it judges links as"
        " slow and GPUs and NICs as far apart.",
        remedy="Set NCCL_TOPO_FILE to the provider's file for this machine type (for Azure"
        " /opt/microsoft/*/topo.xml of its HPC images; aws-ofi-nccl and gIB bring theirs).",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/256",
            "https://github.com/NVIDIA/nccl/issues/1303",
            "https://github.com/Azure/azhpc-images/tree/master/topology",
        ),
        when=_vm,
    ),
    Rule(
        id="wrong_topo_file",
        title="the topology file is of another machine",
        severity=Severity.ERROR,
        cause="NCCL_TOPO_FILE names devices that this machine does not have.",
        remedy="Unset NCCL_TOPO_FILE, or take the file of exactly this machine type; NCCL writes"
        " what it sees with NCCL_TOPO_DUMP_FILE=/tmp/topo.xml.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/513",
            "https://github.com/NVIDIA/nccl-tests/issues/352",
        ),
        when=_wrong_file,
    ),
    Rule(
        id="gpu_nic_misaligned",
        title="a GPU has no NIC under its own PCIe switch",
        severity=Severity.ERROR,
        cause="Every NIC of this set lies across the CPU from a GPU: devices were given out without"
        " regard to the topology. Bandwidth falls to a half or a quarter.",
        remedy="Allocate GPU and NIC in pairs: the platform's DRA claim with a PCIe-root"
        " constraint, or topology manager policy single-numa-node; `nvidia-smi topo -m` must show"
        " PIX or PXB for each GPU.",
        sources=(
            "https://github.com/google/dranet/blob/main/site/content/docs/user/gke-rdma.md",
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        ),
        when=_misaligned,
    ),
)
