"""A node's topology as a standalone SVG: NVLink above, GPUs, PCIe switches, NICs, CPUs below.

Plain text in, plain text out: no renderer, no server, no script. Names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from gpufabric.net.records import Topology
from gpufabric.net.topology import NEAR, NodeTopology, PathKind, kind_of, path_between

_BOX_W: Final = 92
_BOX_H: Final = 34
_GAP: Final = 12
_MARGIN: Final = 20
_MAX_DRAWN: Final = 128
"""More GPUs or NICs than this are named in a line of text, not drawn."""
_GPU: Final = "#76b900"
_NIC: Final = "#4a7fb5"
_SWITCH: Final = "#e8e8e8"
_FAR: Final = "#c0392b"


class _Group(NamedTuple):
    """GPUs and NICs under one PCIe switch (or several in a row)."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]


def topology_svg(topology: Topology) -> str:
    """The drawing as SVG text, for a notebook, a page or a file."""
    gpus, nics = _names(topology)
    if len(gpus) > _MAX_DRAWN or len(nics) > _MAX_DRAWN or not (gpus or nics):
        return _only_text(f"{len(gpus)} GPUs, {len(nics)} NICs")
    groups = _groups(topology, gpus, nics)
    lonely = _far_gpus(topology, gpus, nics)
    parts: list[str] = []
    at = float(_MARGIN)
    centres: dict[str, float] = {}
    for group in groups:
        width = _width(group)
        parts += _draw_group(topology, group, at, lonely, centres)
        at += width + 2 * _GAP
    total = int(at + _MARGIN - 2 * _GAP)
    parts += _draw_nvlink(topology, gpus, centres)
    parts += _draw_far(lonely, nics, centres)
    return _page(total, 270 if lonely else 230, _title(topology), parts)


def _names(topology: Topology) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(topology, NodeTopology):
        gpus = tuple(gpu.name for gpu in topology.gpus)
        return gpus, tuple(nic.name for nic in topology.nics)
    rows = dict.fromkeys(topology.matrix or {})
    for row in (topology.matrix or {}).values():
        rows.update(dict.fromkeys(row))
    gpus = tuple(name for name in rows if name.startswith("GPU"))
    return gpus, tuple(name for name in rows if not name.startswith("GPU"))


def _groups(topology: Topology, gpus: Sequence[str], nics: Sequence[str]) -> list[_Group]:
    """Devices that reach each other without the CPU, in the order of their first one."""
    names = [*gpus, *nics]
    head = {name: name for name in names}

    def find(name: str) -> str:
        while head[name] != name:
            head[name] = head[head[name]]
            name = head[name]
        return name

    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            if kind_of(path_between(topology, one, other)) in NEAR:
                head[find(other)] = find(one)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(find(name), []).append(name)
    known_gpus = set(gpus)
    return [
        _Group(
            tuple(name for name in group if name in known_gpus),
            tuple(name for name in group if name not in known_gpus),
        )
        for group in members.values()
    ]


def _far_gpus(
    topology: Topology, gpus: Iterable[str], nics: Iterable[str]
) -> Mapping[str, tuple[str, str]]:
    """GPUs without a near NIC, with the nearest one and the path to it."""
    if isinstance(topology, NodeTopology) and topology.hides_pcie:
        return {}  # no NIC of Grace is nearer than another
    order = list(PathKind)
    found: dict[str, tuple[str, str]] = {}
    for gpu in gpus:
        told = [
            (order.index(kind), nic, path)
            for nic in nics
            if (path := path_between(topology, gpu, nic)) is not None
            and (kind := kind_of(path)) is not None
        ]
        if told and (best := min(told))[0] > order.index(PathKind.PXB):
            found[gpu] = (best[1], best[2])
    return found


def _width(group: _Group) -> float:
    count = max(len(group.gpus), len(group.nics), 1)
    return count * _BOX_W + (count - 1) * _GAP + 2 * _GAP


def _draw_group(
    topology: Topology,
    group: _Group,
    left: float,
    lonely: Mapping[str, tuple[str, str]],
    centres: dict[str, float],
) -> list[str]:
    width = _width(group)
    middle = left + width / 2
    parts: list[str] = []
    joined = bool(group.gpus) and bool(group.nics)
    if joined:
        parts.append(_box(left, 128, width, 24, text="PCIe switch", fill=_SWITCH, dark=True))
    for names, y, colour in ((group.gpus, 70, _GPU), (group.nics, 176, _NIC)):
        start = middle - (len(names) * _BOX_W + (len(names) - 1) * _GAP) / 2
        for number, name in enumerate(names):
            x = start + number * (_BOX_W + _GAP)
            centres[name] = x + _BOX_W / 2
            edge = _FAR if name in lonely else None
            parts.append(
                _box(x, y, _BOX_W, _BOX_H, text=_label(topology, name), fill=colour, edge=edge)
            )
            if joined and colour == _GPU:
                parts.append(_line(centres[name], y + _BOX_H, centres[name], 128))
            elif joined:
                parts.append(_line(centres[name], 152, centres[name], y))
    return parts


def _label(topology: Topology, name: str) -> str:
    """A NIC's name with that of its device, where both are told."""
    if isinstance(topology, NodeTopology):
        for nic in topology.nics:
            if nic.name == name and nic.device is not None and nic.device != name:
                return f"{name} {nic.device}"
    return name


def _draw_nvlink(
    topology: Topology, gpus: Sequence[str], centres: Mapping[str, float]
) -> list[str]:
    """A bar above the GPUs that NVLink joins."""
    linked = [
        gpu
        for gpu in gpus
        if any(
            kind_of(path_between(topology, gpu, other)) is PathKind.NVLINK
            for other in gpus
            if other != gpu
        )
    ]
    if not linked:
        return []
    ends = [centres[gpu] for gpu in linked]
    left, right = min(ends) - _BOX_W / 2, max(ends) + _BOX_W / 2
    count = topology.nvlinks_per_gpu
    text = f"NVLink, {count} links a GPU" if isinstance(count, int) and count else "NVLink"
    bar = _box(left, 20, right - left, 24, text=text, fill="#d9efb3", dark=True)
    return [bar, *(_line(end, 44, end, 70) for end in ends)]


def _draw_far(
    lonely: Mapping[str, tuple[str, str]],
    nics: Sequence[str],
    centres: Mapping[str, float],
) -> list[str]:
    """The ways through the CPU, as lines below, with their kind."""
    parts: list[str] = []
    for gpu, (nic, path) in list(lonely.items())[:16]:
        x, y = centres[gpu], 70 + _BOX_H
        end = centres.get(nic)
        if end is None or nic not in nics:
            continue
        parts.append(_line(x, y, end, 176, colour=_FAR, dashed=True))
        parts.append(_text((x + end) / 2, 122, path, "#c0392b", size=11))
    return parts


def _title(topology: Topology) -> str:
    told = [f"{topology.n_gpus} GPUs" if topology.n_gpus is not None else ""]
    told.append(f"{topology.n_nics} NICs" if topology.n_nics is not None else "")
    if isinstance(topology.gpu_nic_path, str):
        told.append(f"a NIC within {topology.gpu_nic_path}")
    return ", ".join(part for part in told if part)


def _box(  # noqa: PLR0913 - a rectangle has this many sides
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    text: str,
    fill: str,
    dark: bool = False,
    edge: str | None = None,
) -> str:
    stroke = f'stroke="{edge}" stroke-width="3"' if edge else 'stroke="#555" stroke-width="1"'
    label = _text(x + width / 2, y + height / 2 + 4, text, "#111" if dark else "#fff")
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
        f' fill="{fill}" {stroke}/>{label}'
    )


def _text(x: float, y: float, text: str, colour: str, *, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{colour}"'
        f' font-size="{size}">{escape(text[:40])}</text>'
    )


def _line(  # noqa: PLR0913 - two ends
    x1: float, y1: float, x2: float, y2: float, *, colour: str = "#555", dashed: bool = False
) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f' stroke="{colour}" stroke-width="1.5"{dash}/>'
    )


def _page(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    shown = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}"'
        f' width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif">'
        f"<title>{shown}</title>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        + "".join(parts)
        + _text(width / 2, height - 6, title, "#333", size=11)
        + "</svg>"
    )


def _only_text(text: str) -> str:
    return _page(320, 60, text, ())
