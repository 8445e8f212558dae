"""What is kept of nccl-tests output while it streams by."""

from __future__ import annotations

from collections import deque

from gpufabric.net._bench_rows import Layout
from gpufabric.net.records import BenchRow, Device


class TableState:
    """One table as it is being read."""

    def __init__(self, layout: Layout | None, lineno: int, named: str | None) -> None:
        self.layout = layout
        self.lineno = lineno
        self.named = named
        self.rows: list[BenchRow] = []
        self.left_out = 0
        self.average: float | None = None
        self.complete: bool | None = None
        self.out_of_bounds: tuple[int, str | None] | None = None
        self.errors: list[str] = []
        self.printed: deque[list[str]] = deque(maxlen=128)
        """The last rows as printed: how far a number was rounded shows in its digits only."""
        self.commands: set[str] = set()
        self.devices: tuple[Device, ...] = ()


class Stream:
    """What one process prints: runs one after the other, each with header, rows and footer."""

    def __init__(self) -> None:
        self.table: TableState | None = None
        self.named: str | None = None
        self.commands: set[str] = set()
        self.devices: list[Device] = []
        self.devices_end = False
        """Something else came after the device lines: none of them is cut off."""
        self.half_row: list[str] = []
        self.half_row_line = 0
        self.averaged: list[TableState] = []
        """The tables since the last average line, which covers them all."""
        self.open = False
        """A header was seen and no footer yet."""
