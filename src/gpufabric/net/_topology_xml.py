"""NCCL's topology and graph XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`, `NCCL_GRAPH_DUMP_FILE`).

The parser is expat, fed line by line. A document type declaration, an entity, a comment flood or
deep nesting ends the document: what was read before stays, `complete` is false.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final
from xml.parsers import expat

from gpufabric.net._xml_values import cpu_list, decimal, flag, integer
from gpufabric.net.records import Unread
from gpufabric.net.topology import (
    MAX_DEVICES,
    Graph,
    GraphChannel,
    NodeTopology,
    PathKind,
    TopoGpu,
    TopoNic,
    node_topology,
    together,
)

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

MAX_DEPTH: Final = 24  # real files nest about 8 deep
MAX_ELEMENTS: Final = 50_000  # the largest real dump has some hundreds
_MAX_DOCUMENTS: Final = 64
_NOTHING: Final[Mapping[str, str]] = {}
_ROOTS: Final = ("<system", "<graphs")
_ALGORITHMS: Final = {0: "ring", 1: "tree", 2: "collnet_chain", 3: "nvls", 4: "collnet_direct"}
_PATTERNS: Final = {
    1: "balanced_tree",
    2: "split_tree",
    3: "tree",
    4: "ring",
    5: "nvls",
    6: "collnet_direct",
}


class _RefusedError(Exception):
    """The document uses XML that NCCL never writes and that could be an attack."""


class _Node:
    """One element, linked to its parent; children are not needed."""

    __slots__ = ("attributes", "depth", "name", "parent")

    def __init__(self, name: str, attributes: Mapping[str, str], parent: _Node | None) -> None:
        self.name = name
        self.attributes = attributes
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1


class _Document:
    """One XML document being read."""

    def __init__(self, first_line: int) -> None:
        self.first_line = first_line
        self.nodes: list[_Node] = []
        self.done = False
        self._open: list[_Node] = []
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse
        self._parser.ExternalEntityRefHandler = self._refuse
        self._parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def feed(self, text: str) -> bool:
        """Takes a piece of the document; False when it broke."""
        try:
            self._parser.Parse(text.encode("utf-8", "replace") + b"\n", False)
        except (expat.ExpatError, _RefusedError):
            # Text after the root's end is "junk after document element": the document is whole.
            return self.done
        return True

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= MAX_DEPTH or len(self.nodes) >= MAX_ELEMENTS:
            raise _RefusedError(name)
        node = _Node(name, attributes, self._open[-1] if self._open else None)
        self._open.append(node)
        self.nodes.append(node)

    def _end(self, _name: str) -> None:
        self._open.pop()
        self.done = not self._open

    def _refuse(self, *_args: object) -> int:
        raise _RefusedError


class TopologyXml:
    """Reads every `<system>` and `<graphs>` document of a text."""

    name: ClassVar[str] = "topology_xml"
    kind: ClassVar[str] = "topo_xml"

    def __init__(self) -> None:
        self.topologies: list[NodeTopology] = []
        self.unread: list[Unread] = []
        self.unread_count = 0
        self._document: _Document | None = None
        self._last_line = 0

    def feed(self, line: Line, /) -> bool:
        """Takes the lines from a root element to its end."""
        text = line.text
        if self._document is None:
            if "<" not in text or not any(root in text for root in _ROOTS):
                return False
            if len(self.topologies) >= _MAX_DOCUMENTS:
                return self._refused(line)
            start = min(at for root in _ROOTS if (at := text.find(root)) >= 0)
            self._document, text = _Document(line.lineno), text[start:]
        self._last_line = line.lineno
        if not self._document.feed(text):
            self._refused(line)
            self.close()
        elif self._document.done:
            self.close()
        return True

    def close(self) -> None:
        """Ends the document at hand, whole or not."""
        if self._document is not None:
            found = _topology(self._document, self._last_line)
            if found is not None:
                self.topologies.append(found)
            self._document = None

    def result(self) -> dict[str, object]:
        """The documents read, and what looked like one and was not."""
        found = together(self.topologies)
        topology = {} if found is None else {"topology": found}
        return {**topology, "unread": tuple(self.unread), "unread_count": self.unread_count}

    def _refused(self, line: Line) -> bool:
        self.unread_count += 1
        if len(self.unread) < _MAX_DOCUMENTS:
            self.unread.append(Unread(lineno=line.lineno, text=line.text[:200]))
        return True


def _topology(document: _Document, last_line: int) -> NodeTopology | None:
    if not document.nodes:
        return None
    if document.nodes[0].name == "graphs":
        return _graphs(document, last_line)
    if document.nodes[0].name != "system":
        return None
    gpus = _gpus(document.nodes)
    nics = _nics(document.nodes)
    return node_topology(
        source="topo_xml",
        gpus=(gpu for gpu, _ in gpus),
        nics=(nic for nic, _ in nics),
        n_cpus=sum(node.name == "cpu" for node in document.nodes),
        paths=_paths(document.nodes, gpus, nics),
        whole=document.done,
        lines=(document.first_line, last_line),
    )


def _gpus(nodes: list[_Node]) -> list[tuple[TopoGpu, _Node]]:
    """The GPUs: `gpu` elements, or PCI devices of that class where detection adds the rest."""
    found: list[tuple[TopoGpu, _Node]] = []
    named = {id(node.parent) for node in nodes if node.name == "gpu"}
    links = _nvlink_counts(nodes)
    for node in nodes:
        if node.name == "gpu":
            pci = node.parent if node.parent is not None else node
        elif node.name == "pci" and id(node) not in named and _is(node, "0x0302", "0x0300"):
            pci = node
        else:
            continue
        gpu = node.attributes if node.name == "gpu" else _NOTHING
        index = integer(gpu.get("dev"))
        cpu = _cpu(pci)
        found.append(
            (
                TopoGpu(
                    name=_unique(f"GPU{index}", found) if index is not None else _bus(pci) or "GPU",
                    index=index,
                    bus_id=_bus(pci),
                    sm=integer(gpu.get("sm")),
                    rank=integer(gpu.get("rank")),
                    gdr=flag(gpu.get("gdr")),
                    nvlinks=links.get(id(node)),
                    cpu_affinity=cpu_list(cpu.attributes.get("affinity")) if cpu else None,
                    numa=cpu.attributes.get("numaid") if cpu else None,
                    link_speed=pci.attributes.get("link_speed") or None,
                    link_width=integer(pci.attributes.get("link_width")),
                ),
                pci,
            )
        )
    return found


def _nics(nodes: list[_Node]) -> list[tuple[TopoNic, _Node]]:
    """The NICs: `net` elements, or PCI network devices where detection adds the rest."""
    found: list[tuple[TopoNic, _Node]] = []
    named = {id(node.parent.parent) for node in nodes if node.name == "net" and node.parent}
    for node in nodes:
        if node.name == "net":
            nic = node.parent
            pci = nic.parent if nic is not None and nic.parent is not None else node
        elif node.name == "pci" and id(node) not in named and _is(node, "0x0207", "0x0200"):
            pci = node
        else:
            continue
        net = node.attributes if node.name == "net" else _NOTHING
        found.append(
            (
                TopoNic(
                    name=net.get("name") or _bus(pci) or "NIC",
                    device=net.get("name"),
                    index=integer(net.get("dev")),
                    bus_id=_bus(pci),
                    speed_mbps=integer(net.get("speed")),
                    port=integer(net.get("port")),
                    guid=net.get("guid"),
                    gdr=flag(net.get("gdr")),
                    link_speed=pci.attributes.get("link_speed") or None,
                    link_width=integer(pci.attributes.get("link_width")),
                ),
                pci,
            )
        )
    return found


def _unique(name: str, found: list[tuple[TopoGpu, _Node]]) -> str:
    """A multi-node dump has GPU0 once per node: later ones are told apart by a mark."""
    taken = {gpu.name for gpu, _ in found[-MAX_DEVICES:]}
    mark, unique = 1, name
    while unique in taken:
        mark, unique = mark + 1, f"{name}#{mark + 1}"
    return unique


def _nvlink_counts(nodes: list[_Node]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for node in nodes:
        if node.name == "nvlink" and node.parent is not None:
            counts[id(node.parent)] = counts.get(id(node.parent), 0) + (
                integer(node.attributes.get("count")) or 0
            )
    return counts


def _paths(
    nodes: list[_Node], gpus: list[tuple[TopoGpu, _Node]], nics: list[tuple[TopoNic, _Node]]
) -> dict[tuple[str, str], str]:
    if len(gpus) > MAX_DEVICES or len(nics) > MAX_DEVICES:
        return {}
    paths: dict[tuple[str, str], str] = {}
    for gpu, gpu_pci in gpus:
        for nic, nic_pci in nics:
            paths[gpu.name, nic.name] = _pci_path(gpu_pci, nic_pci)
    direct, switched = _nvlinks(nodes)
    for number, (gpu, pci) in enumerate(gpus):
        for other, other_pci in gpus[number + 1 :]:
            links = direct.get((_bus(pci) or "", _bus(other_pci) or ""), 0)
            both = _bus(pci) in switched and _bus(other_pci) in switched
            if links:
                paths[gpu.name, other.name] = f"NV{links}"
            elif both and gpu.nvlinks is not None:
                paths[gpu.name, other.name] = f"NV{gpu.nvlinks}"
            else:
                paths[gpu.name, other.name] = _pci_path(pci, other_pci)
    return paths


def _nvlinks(nodes: list[_Node]) -> tuple[dict[tuple[str, str], int], set[str | None]]:
    """NVLinks between GPUs (both directions), and the GPUs that reach an NVSwitch."""
    direct: dict[tuple[str, str], int] = {}
    switched: set[str | None] = set()
    for node in nodes:
        if node.name != "nvlink" or node.parent is None or node.parent.parent is None:
            continue
        here = _bus(node.parent.parent)
        if node.attributes.get("tclass", "").startswith("0x0680"):
            switched.add(here)
        else:
            pair = (here or "", node.attributes.get("target", ""))
            direct[pair] = direct.get(pair, 0) + (integer(node.attributes.get("count")) or 0)
    return direct, switched


def _pci_path(one: _Node, other: _Node) -> str:
    """NCCL's rule: bridges up to the common point; the CPU, or two CPUs, if there is none."""
    ancestors = {id(node) for node in _line_up(one)}
    meeting = next((node for node in _line_up(other) if id(node) in ancestors), None)
    if meeting is None or meeting.name == "system":
        return PathKind.SYS.value
    if meeting.name == "cpu":
        return PathKind.PHB.value
    bridges = (one.depth - meeting.depth - 1) + 1 + (other.depth - meeting.depth - 1)
    return (PathKind.PIX if bridges <= 1 else PathKind.PXB).value


def _line_up(node: _Node | None) -> list[_Node]:
    line: list[_Node] = []
    while node is not None:
        line.append(node)
        node = node.parent
    return line


def _cpu(node: _Node) -> _Node | None:
    return next((above for above in _line_up(node) if above.name == "cpu"), None)


def _graphs(document: _Document, last_line: int) -> NodeTopology:
    channels: dict[int, list[GraphChannel]] = {}
    members: dict[int, tuple[list[str], list[str]]] = {}
    for node in document.nodes:
        if node.name in {"net", "gpu"} and node.parent is not None and "dev" in node.attributes:
            nets, gpus = members.setdefault(id(node.parent), ([], []))
            (nets if node.name == "net" else gpus).append(node.attributes["dev"])
    for node in document.nodes:
        if node.name == "channel" and node.parent is not None:
            nets, gpus = members.get(id(node), ([], []))
            channel = GraphChannel(nets=tuple(nets), gpus=tuple(gpus))
            channels.setdefault(id(node.parent), []).append(channel)
    graphs = [
        _graph(node, tuple(channels.get(id(node), ())))
        for node in document.nodes
        if node.name == "graph" and integer(node.attributes.get("id")) is not None
    ]
    gpu_ids = dict.fromkeys(g for graph in graphs for c in graph.channels for g in c.gpus)
    net_ids = dict.fromkeys(n for graph in graphs for c in graph.channels for n in c.nets)
    return node_topology(
        source="graph_xml",
        gpus=(TopoGpu(name=f"GPU{dev}", index=integer(dev)) for dev in gpu_ids),
        nics=(TopoNic(name=f"NET{dev}", index=integer(dev)) for dev in net_ids),
        graphs=graphs,
        whole=document.done,
        lines=(document.first_line, last_line),
    )


def _graph(node: _Node, channels: tuple[GraphChannel, ...]) -> Graph:
    told = node.attributes
    number = integer(told.get("id")) or 0
    return Graph(
        id=number,
        algorithm=_ALGORITHMS.get(number),
        pattern=_PATTERNS.get(integer(told.get("pattern")) or 0),
        n_channels=integer(told.get("nchannels")),
        cross_nic=integer(told.get("crossnic")),
        speed_intra_gbytes_s=decimal(told.get("speedintra")),
        speed_inter_gbytes_s=decimal(told.get("speedinter")),
        type_intra=told.get("typeintra"),
        type_inter=told.get("typeinter"),
        channels=channels,
    )


def _is(node: _Node, *classes: str) -> bool:
    return node.attributes.get("class", "").lower().startswith(classes)


def _bus(node: _Node) -> str | None:
    return node.attributes.get("busid")
