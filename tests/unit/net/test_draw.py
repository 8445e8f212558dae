"""The topology drawing: one SVG text, escaped, bounded."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpufabric._frozen import FrozenDict
from gpufabric.net.draw import topology_svg
from gpufabric.net.reading import read
from gpufabric.net.records import Topology
from gpufabric.net.topology import TopoGpu, TopoNic, node_topology

_DATA = Path(__file__).parents[2] / "data" / "topology"
CASES = sorted(path for path in _DATA.iterdir() if path.suffix in {".txt", ".xml"})


def _drawn(topology: Topology) -> tuple[str, ET.Element]:
    svg = topology_svg(topology)
    return svg, ET.fromstring(svg)  # noqa: S314 - our own text


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_topology_is_drawn_as_well_formed_svg(path: Path):
    topology = read(path).topology
    assert topology is not None
    _, root = _drawn(topology)
    assert root.tag.endswith("svg")


def test_gpus_nics_and_their_switches_are_there():
    topology = read(_DATA / "h100_8gpu_dump.xml").topology
    assert topology is not None
    svg, _ = _drawn(topology)
    assert svg.count("PCIe switch") == 8
    assert "GPU7" in svg
    assert "mlx5_7" in svg
    assert "18 links a GPU" in svg


def test_a_gpu_without_a_near_nic_is_marked_with_the_way_it_goes():
    topology = read(_DATA / "smi_misaligned_pod.txt").topology
    assert topology is not None
    svg, _ = _drawn(topology)
    assert svg.count(">SYS</text>") == 4


def test_names_cannot_break_out_of_the_drawing():
    name = 'x"/><script>alert(1)</script>'
    topology = node_topology(
        source="topo_xml",
        gpus=[TopoGpu(name="GPU0")],
        nics=[TopoNic(name=name, device=name)],
        paths={("GPU0", name): "PIX"},
    )
    svg, root = _drawn(topology)
    assert "<script" not in svg
    assert len(list(root.iter("{http://www.w3.org/2000/svg}script"))) == 0


def test_a_huge_topology_is_told_in_words():
    gpus = [TopoGpu(name=f"GPU{n}") for n in range(300)]
    svg, _ = _drawn(node_topology(source="topo_xml", gpus=gpus))
    assert "300 GPUs" in svg
    assert len(svg) < 2_000


def test_a_bare_matrix_is_drawn_too():
    row = FrozenDict({"GPU1": "NV18", "NIC0": "PIX"})
    svg, _ = _drawn(Topology(matrix=FrozenDict({"GPU0": row})))
    assert "NIC0" in svg


def test_a_notebook_shows_the_drawing():
    topology = read(_DATA / "h100_8gpu_dump.xml").topology
    assert topology is not None
    assert topology._repr_html_().startswith("<svg")  # type: ignore[attr-defined]
