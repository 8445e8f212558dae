"""Topology files and matrices: structure, hostile XML, several in one text."""

from pathlib import Path

import pytest

from gpufabric.net.reading import read
from gpufabric.net.topology import NodeTopology, kind_of

_DATA = Path(__file__).parents[2] / "data" / "topology"

_BOMB = """<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<system version="1">
  <cpu numaid="0" affinity="&b;&b;&b;&b;">
    <pci busid="0000:1b:00.0" class="0x030200"><gpu dev="0"/></pci>
  </cpu>
</system>
"""


def _read(text: str) -> NodeTopology | None:
    topology = read(text).topology
    assert topology is None or isinstance(topology, NodeTopology)
    return topology


def test_entities_are_never_expanded():
    topology = _read(_BOMB)
    assert topology is not None
    assert not topology.whole
    assert topology.n_gpus == 0


def test_a_document_type_inside_the_root_line_ends_the_document():
    text = '<system version="1"><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>&e;</system>'
    report = read(text)
    assert report.unread_count == 1
    assert "root:" not in str(report.to_dict())


def test_deep_nesting_ends_the_document_and_keeps_what_was_read():
    opening = "\n".join(f'<pci busid="{n}" class="0x060400">' for n in range(10_000))
    gpu = '<cpu numaid="0"><pci busid="a" class="0x030200"><gpu dev="0"/></pci></cpu>'
    topology = _read(f'<system version="1">\n{gpu}\n{opening}')
    assert topology is not None
    assert topology.n_gpus == 1
    assert not topology.whole


def test_a_flood_of_elements_is_bounded():
    text = '<system version="1">\n' + '<cpu numaid="0"/>\n' * 51_000
    topology = _read(text)
    assert topology is not None
    assert topology.n_cpus is not None
    assert topology.n_cpus <= 50_000


def test_a_file_that_is_cut_says_so():
    text = (_DATA / "h100_8gpu_dump.xml").read_text()
    topology = _read("\n".join(text.splitlines()[:40]))
    assert topology is not None
    assert not topology.whole
    assert topology.n_gpus == 3


def test_two_nodes_in_one_text_are_both_kept():
    text = (_DATA / "h100_8gpu_dump.xml").read_text()
    topology = _read(text + "\n" + (_DATA / "vm_pci_only.xml").read_text())
    assert topology is not None
    assert [other.source for other in topology.also] == ["topo_xml"]


def test_the_columns_of_a_matrix_may_be_torn_by_the_terminal():
    topology = _read((_DATA / "smi_wrapped.txt").read_text())
    assert topology is not None
    assert topology.path("GPU0", "NIC1") == "SYS"
    assert topology.path("NIC1", "GPU0") == "SYS"


def test_a_matrix_of_p2p_capabilities_is_no_topology():
    text = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"
    topology = _read(text)
    assert topology is None or not topology.n_gpus


@pytest.mark.parametrize(("path", "kind"), [("NV12", "NVL"), ("SOC", "SYS"), ("PIX", "PIX")])
def test_old_and_numbered_names_of_paths_are_known(path: str, kind: str):
    found = kind_of(path)
    assert found is not None
    assert found.value == kind


def test_an_unknown_path_stays_unknown():
    assert kind_of("QQQ") is None
    assert kind_of(None) is None
