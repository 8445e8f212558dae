"""`nvidia-smi topo -m` (and `-mp`, `-C`): the matrix of GPUs and NICs with its two legends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric.net.records import Unread
from gpufabric.net.topology import (
    MAX_DEVICES,
    NodeTopology,
    TopoGpu,
    TopoNic,
    node_topology,
    together,
)

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_HEADER = re.compile(r"\s*GPU\d+\s+[A-Za-z]")
_NAME = re.compile(r"[A-Za-z][\w.:-]*")
_ROW = re.compile(r"\s*(GPU\d+|NIC\d+|[a-z][\w.]*?_?\d+)\s+")
_CELL = re.compile(r"X|NV\d{1,4}|PIX|PXB|PHB|NODE|SYS|SOC")
_NIC_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*$")
_LEGEND = re.compile(r"\s*(?:Legend:|NIC Legend:|(?:X|NV#|PIX|PXB|PHB|NODE|SYS|SOC)\s+=\s)")
_SWITCHED: Final = frozenset({8, 12, 18})
"""NVLinks of a GPU on an NVSwitch board (A800/H800, A100, H100 and later); V100's 6 is also the
number between two GPUs of a 4-GPU H100 board, so 6 alone decides nothing."""
_MAX_TOPOLOGIES: Final = 64
_LEGEND_GAP: Final = 40  # lines between a matrix and its NIC legend, blank ones included


class SmiTopology:
    """Reads the matrix, then the NIC legend that names its columns."""

    name: ClassVar[str] = "nvidia_smi_topo"
    kind: ClassVar[str] = "nvidia_smi_topo"

    def __init__(self) -> None:
        self.topologies: list[NodeTopology] = []
        self.unread: list[Unread] = []
        self.unread_count = 0
        self._columns: list[str] = []
        self._rows: dict[str, list[str]] = {}
        self._tails: dict[str, str] = {}
        self._devices: dict[str, str] = {}
        self._torn: str | None = None  # a row that the terminal wrapped
        self._has_affinity = False
        self._first_line = self._last_line = 0

    def feed(self, line: Line, /) -> bool:
        """Takes the header, the rows and the legends."""
        text = line.text
        if "GPU0" in text and _HEADER.match(text) and not _matrix_row(text):
            return self._begin(line)
        if not self._columns:
            return False
        if line.lineno - self._last_line > _LEGEND_GAP:
            self.close()
            return False
        if legend := _NIC_LEGEND.match(text):
            self._devices[legend[1]] = legend[2]
        elif not _LEGEND.match(text) and not self._row(text):
            return False
        self._last_line = line.lineno
        return True

    def close(self) -> None:
        """Ends the matrix at hand."""
        if self._rows and len(self.topologies) < _MAX_TOPOLOGIES:
            self.topologies.append(self._topology())
        self._columns, self._rows, self._tails, self._devices = [], {}, {}, {}
        self._torn = None

    def result(self) -> dict[str, object]:
        """The matrices read, and headers that had no row."""
        found = together(self.topologies)
        topology = {} if found is None else {"topology": found}
        return {**topology, "unread": tuple(self.unread), "unread_count": self.unread_count}

    def _begin(self, line: Line) -> bool:
        self.close()
        head, affinity, _ = line.text.partition("CPU Affinity")
        columns = head.split()
        if len(columns) > MAX_DEVICES or not all(map(_NAME.fullmatch, columns)):
            self.unread_count += 1
            if len(self.unread) < _MAX_TOPOLOGIES:
                self.unread.append(Unread(lineno=line.lineno, text=line.text[:200]))
            return True
        self._columns, self._has_affinity = columns, bool(affinity)
        self._first_line = self._last_line = line.lineno
        return True

    def _row(self, text: str) -> bool:
        row = _ROW.match(text)
        if row is None and self._torn is not None:
            return self._cells(self._torn, text)
        if row is None or row[1] not in self._columns or row[1] in self._rows:
            return False
        return self._cells(row[1], text[row.end() :])

    def _cells(self, name: str, text: str) -> bool:
        cells = self._rows.get(name, [])
        rest = text.strip()
        while len(cells) < len(self._columns) and rest:
            cell, _, after = rest.replace("\t", " ").partition(" ")
            if not _CELL.fullmatch(cell):
                return bool(cells) and name in self._rows
            cells.append(cell)
            rest = after.strip() if len(cells) < len(self._columns) else after
        if not cells:
            return False
        self._rows[name] = cells
        self._torn = name if len(cells) < len(self._columns) else None
        if self._torn is None:
            self._tails[name] = rest
        return True

    def _topology(self) -> NodeTopology:
        names = [name for name in self._columns if name in self._rows or name in self._seen()]
        gpus = [name for name in names if name.startswith("GPU")]
        nics = [name for name in names if not name.startswith("GPU")]
        paths = {
            (name, column): cell
            for name, cells in self._rows.items()
            for column, cell in zip(self._columns, cells, strict=False)
            if name != column
        }
        return node_topology(
            source="nvidia_smi_topo",
            gpus=(self._gpu(name, gpus) for name in gpus),
            nics=(
                TopoNic(
                    name=name,
                    device=self._devices.get(name, None if name.startswith("NIC") else name),
                )
                for name in nics
            ),
            paths=paths,
            whole=all(len(self._rows.get(n, ())) == len(self._columns) for n in self._columns),
            lines=(self._first_line, self._last_line),
        )

    def _seen(self) -> set[str]:
        """Columns that at least one row reaches: a cut matrix still names them."""
        reach = max((len(cells) for cells in self._rows.values()), default=0)
        return set(self._columns[:reach])

    def _gpu(self, name: str, gpus: list[str]) -> TopoGpu:
        tail = self._tails.get(name, "") if self._has_affinity else ""
        affinity, numa, memory = _affinity(tail)
        cells = dict(zip(self._columns, self._rows.get(name, ()), strict=False))
        digits = name.removeprefix("GPU")
        return TopoGpu(
            name=name,
            index=int(digits) if digits.isdecimal() and len(digits) < 10 else None,
            nvlinks=_nvlinks([cells.get(other, "") for other in gpus if other != name]),
            cpu_affinity=affinity,
            numa=numa,
            memory_numa=memory,
        )


def _matrix_row(text: str) -> bool:
    """Whether a line that starts with GPU0 is its row, not the header."""
    words = text.split(None, 2)
    return len(words) > 1 and _CELL.fullmatch(words[1]) is not None


def _affinity(tail: str) -> tuple[str | None, str | None, str | None]:
    """CPU affinity, NUMA affinity and the NUMA node of the GPU's own memory (Grace only)."""
    if "\t" in tail:
        columns = [column.strip() for column in tail.strip("\n").split("\t")]
        columns = [column for column in columns if column] if columns[:1] == [""] else columns
    else:
        columns = tail.split()
    known = [None if column in {"", "N/A"} else column for column in columns]
    cpu = known[0] if known else None
    numa = known[1] if len(known) > 1 else None
    memory = next((column for column in reversed(known[2:])), None)
    return cpu, numa, memory


def _nvlinks(cells: list[str]) -> int | None:
    """NVLinks of one GPU from its cells to the others; None where the cells do not decide it."""
    links = [int(cell[2:]) for cell in cells if cell.startswith("NV")]
    if not links:
        return 0 if cells and all(cells) else None
    if len(links) == 1:
        return links[0]
    if len(set(links)) == 1:
        through_switch = links[0] in _SWITCHED or sum(links) > max(_SWITCHED)
        ambiguous = links[0] == 6
        if through_switch:
            return links[0]
        return None if ambiguous else sum(links)
    return sum(links)
