"""The text that nccl-tests and rccl-tests print, of every version, into tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric._frozen import FrozenDict
from gpufabric.net._bench_json import version_text
from gpufabric.net._bench_math import COLLECTIVES, average_matches
from gpufabric.net._bench_result import finished, has_content, node_count, rank_count
from gpufabric.net._bench_rows import (
    Layout,
    is_plausible,
    is_row_start,
    is_value,
    layout_of,
    layout_of_row,
    row_of,
)
from gpufabric.net._bench_state import Stream, TableState
from gpufabric.net._lines import Line
from gpufabric.net.records import BenchTable, Device, Evidence, Header, Unread

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ROWS: Final = 20_000
"""Rows kept of one table."""
_MAX_TABLES: Final = 1_000
_MAX_DEVICES: Final = 100_000
_MAX_STREAMS: Final = 1_024
_KEEP: Final = 100

_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d{1,9})(?:\s+Group\s+(\d{1,9}))?(?:\s+Pid\s+(\d{1,18}))?\s+on\s+(\S*)"
    r"\s+device\s+(\d{1,9})\s+\[([0-9a-fA-Fx:.]+)\]\s+(\S.*?)\s*$"
)
_PARAMETER = re.compile(r"([A-Za-z][A-Za-z ]*?):?\s+(-?\d+(?:\((?:factor|bytes)\))?)(?=\s|$)")
_OUT_OF_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)(?:\s+(OK|FAILED))?")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*([-+.\deE]+|-?nan|-?inf)(?:\s+(OK|FAILED))?")
_COLLECTIVE = re.compile(r"\b(" + "|".join(COLLECTIVES) + r")_perf")
_VERSION = re.compile(r"#?\s*(?:nccl|rccl)-tests(?: version|:)\s*(\S+)")
_LIBRARY_INT = re.compile(r"nccl-library=(\d{1,9})\b")
_FAILURE = re.compile(
    r"(?:^|\s|:\s?)Test (?:NCCL failure|CUDA failure|failure|timeout)\b.*|^Invalid number of GPUs"
)


class NcclTestsReader:
    """Parameter line, device lines, tables and footers of nccl-tests."""

    name: ClassVar[str] = "nccl_tests"
    kind: ClassVar[str] = "nccl_tests"

    def __init__(self) -> None:
        self._streams: dict[str | None, Stream] = {}
        self._last: Stream | None = None
        self._tables: list[TableState] = []
        self._parameters: dict[str, str] = {}
        self._devices: list[Device] = []
        self._last_devices: tuple[Device, ...] = ()
        self._devices_end = False
        self._failures: list[Evidence] = []
        self._unread: list[Unread] = []
        self._unread_count = 0
        self._headers = 0
        self._footers = 0
        self._tests_version: str | None = None
        self._nccl_version: str | None = None
        self._library: str | None = None
        self._average_check: str | None = None
        self._memory: str | None = None
        self.seen = False

    # -- feeding ---------------------------------------------------------------------------

    def feed(self, line: Line) -> bool:
        """Takes a line of an nccl-tests output."""
        text = line.text
        stripped = text.lstrip()
        if not stripped:
            return False
        first = stripped[0]
        if first.isdecimal():
            return self._row(stripped, line)
        if first == "#":
            taken = self._comment(stripped[1:].lstrip(), line)
        elif first in "ORAsbn":  # "Out of", "Rank", "Avg", "size", "bytes", "nThread" (1.0)
            taken = self._comment(stripped, line, bare=True)
        else:
            taken = False
        if not taken and first == "-":
            return self._row(stripped, line)
        if taken:
            self.seen = True
            if self._last and "device" not in stripped:
                self._last.devices_end = True
            return True
        if "_perf" in text:
            self._command(text, line)
        return self._failure(text, line)

    def row(self, raw: str, lineno: int) -> bool:
        """Takes an untagged row of the table that is being read; the hot path of tables."""
        stream = self._streams.get(None)
        if stream is None or stream.table is None or stream.half_row:
            return False
        table = stream.table
        layout = table.layout
        if layout is None or table.average is not None:
            return False
        words = raw.split()
        if len(words) != layout.n_words or len(table.rows) >= MAX_ROWS:
            return False
        row = row_of(words, layout, lineno)
        if row is None:
            return False
        table.rows.append(row)
        table.printed.append(words)
        return True

    def feed_cut(self, line: Line) -> bool:  # noqa: PLR0911 - one for each kind of line
        """Takes the last line of a text that has no line feed, and believes no number at its end.

        Behind a whole row stands "0" or "N/A"; an average has six digits; the rest may be cut.
        """
        text = line.text.strip()
        bare = text.lstrip("# ")
        if text[:1].isdecimal():
            words = text.split()
            stream = self._streams.get(line.prefix) or self._last
            layout = stream.table.layout if stream and stream.table else None
            if layout is None and layout_of_row(words) is None:
                return False
            if layout and len(words) == layout.n_words and words[-1] in {"0", "N/A"}:
                return self.feed(line)
        elif bare.startswith("Avg bus"):
            match = _AVERAGE.match(text)
            if match and (match[2] or sum(c.isdecimal() for c in match[1].lstrip("0.")) >= 6):
                return self.feed(line)
        elif bare.startswith("Out of bounds"):
            if text.endswith(("OK", "FAILED")):
                return self.feed(line)
        elif bare.startswith("Rank "):
            device = _DEVICE.match(text)
            if device and any(device[7] == known.gpu for known in self._devices):
                return self.feed(line)
        elif bare.startswith("nThread"):
            whole = line.text.rstrip().rpartition(" ")[0]
            return self.feed(Line(line.lineno, whole, line.prefix, line.time))
        elif not text.startswith("#"):
            return False
        self._mark_unread(line.lineno, text)
        return True

    def feed_torn(self, left: str, line: Line) -> None:
        """The start of a row whose rest stands on a later line: NCCL logged in between."""
        stream = self._stream(line.prefix)
        words = left.split()
        if stream.half_row and all(is_value(word) for word in words):
            stream.half_row += words  # the first half of the measurements, torn off as well
            return
        self._drop_half(stream)
        stream.half_row, stream.half_row_line = words, line.lineno

    def close(self) -> None:
        """Nothing more comes: half rows stay unread."""
        for stream in self._streams.values():
            self._drop_half(stream)
            self._end_run(stream)

    # -- lines -----------------------------------------------------------------------------

    def _stream(self, prefix: str | None, *, new: bool = False) -> Stream:
        """The process that a line is of: the one with that tag, else the one that spoke last.

        Terminals and viewers number lines, so a tag need not name a process; only the first
        line of a run opens a stream of its own.
        """
        stream = self._streams.get(prefix) or (None if new else self._last)
        if stream is None:
            if len(self._streams) >= _MAX_STREAMS:
                prefix = None
            stream = self._streams.setdefault(prefix, Stream())
        self._last = stream
        return stream

    def _comment(  # noqa: PLR0911 - one for each kind of line
        self, text: str, line: Line, *, bare: bool = False
    ) -> bool:
        """A line that starts with # in the original; authors drop the sign."""
        head = text[:12]
        if head.startswith("Rank"):
            return self._device(text, line)
        if "busbw" in text:
            return self._header(text, line)
        if head.startswith("Out of"):
            return self._bounds(text, line)
        if head.startswith("Avg bus"):
            return self._footer(text, line)
        if head.startswith("nThread"):
            return self._parameter_line(text, line)
        if bare:
            return False
        return self._other_comment(text, line)

    def _other_comment(self, text: str, line: Line) -> bool:  # noqa: PLR0911 - one for each
        if not text:
            # A lone "#" is nccl-tests' only while a run is open or just ended.
            return self.seen
        if text.startswith("Collective test starting"):
            stream = self._stream(line.prefix, new=True)
            self._start_run(stream)
            match = _COLLECTIVE.search(text)
            stream.named = match[1] if match else None
            return True
        if text.startswith("Collective test concluded"):
            return True
        version = _VERSION.match(text)
        if version:
            self._tests_version = self._tests_version or version[1]
            library = _LIBRARY_INT.search(text)
            if library and self._nccl_version is None:
                self._nccl_version = version_text(int(library[1]))
            if text.startswith("rccl"):
                self._library = "rccl"
            return True
        if text.startswith("GPU memory usage"):
            self._memory = text.partition(":")[2].strip()
            return True
        if text.startswith("error: "):
            table = self._stream(line.prefix).table
            if table and len(table.errors) < _KEEP:
                table.errors.append(text[7:].strip())
            return True
        return self.seen and (
            text.startswith(
                ("Using devices", "out-of-place", "(B)", "Blocking Enabled", "Parallel Init",
                 "Per-Iteration", "Reducing maxBytes", "Writing JSON", "skipping json",
                 "NCCL Tests compiled", "Errors with asterisks")
            )
        )  # fmt: skip

    def _parameter_line(self, text: str, line: Line) -> bool:
        found = {m[1].strip(): m[2] for m in _PARAMETER.finditer(text)}
        if "nGpus" not in found and "minBytes" not in found:
            return False
        self._headers += 1
        stream = self._stream(line.prefix, new=True)
        if stream.table is not None or stream.devices:
            # "Collective test starting" of the same run stands just above; it has no rows yet.
            named, commands = stream.named, stream.commands
            ended = stream.table is not None
            self._start_run(stream)
            if not ended:
                stream.named, stream.commands = named, commands
        stream.open = True
        if not self._parameters:
            self._parameters = found
        return True

    def _device(self, text: str, line: Line) -> bool:
        match = _DEVICE.match(text)
        if not match:
            return False
        rank, group, pid, host, dev, bus, gpu = match.groups()
        device = Device(
            rank=int(rank),
            host=host or None,
            gpu=gpu,
            local_dev=int(dev),
            pid=int(pid) if pid else None,
            group=int(group) if group else None,
            bus_id=bus,
        )
        stream = self._stream(line.prefix)
        if stream.table is not None:
            self._start_run(stream)
        stream.open = True
        stream.devices_end = False
        if len(stream.devices) < _MAX_DEVICES:
            stream.devices.append(device)
        if len(self._devices) < _MAX_DEVICES:
            self._devices.append(device)
        return True

    def _header(self, text: str, line: Line) -> bool:
        layout = layout_of(text)
        if layout is None:
            return False
        stream = self._stream(line.prefix)
        self._drop_half(stream)
        if stream.table is None or stream.table.rows or stream.table.layout:
            self._open_table(stream, layout, line.lineno)
        else:
            stream.table.layout = layout
        stream.open = True
        return True

    def _open_table(self, stream: Stream, layout: Layout | None, lineno: int) -> TableState:
        named = stream.named
        table = TableState(layout, lineno, named)
        if named is None:
            table.commands = stream.commands
            stream.commands = set()
        table.devices = tuple(stream.devices)
        stream.table = table
        stream.averaged.append(table)
        if len(self._tables) < _MAX_TABLES:
            self._tables.append(table)
        return table

    def _row(self, text: str, line: Line) -> bool:
        words = text.split()
        stream = self._streams.get(line.prefix) or self._last
        table = stream.table if stream else None
        layout = table.layout if table else None
        if stream and layout and stream.half_row:
            joined = [*stream.half_row, *words]
            if len(joined) == layout.n_words and all(is_value(w) for w in words):
                stream.half_row = []
                return self._add(stream, joined, layout, line, text)
            if len(joined) < layout.n_words and all(is_value(w) for w in words):
                stream.half_row = joined
                return True
            self._drop_half(stream)
        if stream and layout and len(words) == layout.n_words:
            return self._add(stream, words, layout, line, text)
        found = layout_of_row(words)
        if found is None or not is_plausible(words, found):
            if stream and layout and is_row_start(words, layout):
                stream.half_row, stream.half_row_line = words, line.lineno
                return True
            return False
        if layout and layout.n_words == found.n_words:
            found = layout
        stream = stream or self._stream(line.prefix)
        table = stream.table
        other = layout is None or layout.n_words != found.n_words
        if table is None or (table.average is not None and other):
            self._open_table(stream, None, line.lineno)
        return self._add(stream, words, found, line, text)

    def _add(self, stream: Stream, words: list[str], layout: Layout, line: Line, text: str) -> bool:
        row = row_of(words, layout, line.lineno)
        if row is None:
            self._mark_unread(line.lineno, text)
            return True
        table = stream.table
        if table is None or table.average is not None:
            # Rows after an average belong to another run, whose header is not in the text.
            table = self._open_table(stream, table.layout if table else None, line.lineno)
        if table.layout is None:
            table.layout = layout
        self.seen = True
        if len(table.rows) >= MAX_ROWS:
            table.left_out += 1
            return True
        table.rows.append(row)
        table.printed.append(words)
        return True

    def _bounds(self, text: str, line: Line) -> bool:
        match = _OUT_OF_BOUNDS.match(text)
        if not match:
            return False
        stream = self._stream(line.prefix)
        table = stream.table or self._open_table(stream, None, line.lineno)
        table.out_of_bounds = (int(match[1][:18]), match[2])
        return True

    def _footer(self, text: str, line: Line) -> bool:
        match = _AVERAGE.match(text)
        if not match:
            return False
        try:
            average = float(match[1])
        except ValueError:
            self._mark_unread(line.lineno, text)
            return True
        stream = self._stream(line.prefix)
        self._drop_half(stream)
        table = stream.table or self._open_table(stream, None, line.lineno)
        if average == average and abs(average) != float("inf"):  # noqa: PLR0124  # not NaN
            table.average = average
            values = [b for t in stream.averaged for row in t.rows for b in row.busbws()]
            if values:
                cut = any(t.left_out for t in stream.averaged)
                table.complete = average_matches(average, values) and not cut
        self._average_check = match[2] or self._average_check
        self._footers += 1
        stream.averaged = []
        stream.open = False
        return True

    def _command(self, text: str, line: Line) -> None:
        stream = self._stream(line.prefix)
        if len(stream.commands) < len(COLLECTIVES):
            stream.commands.update(m[1] for m in _COLLECTIVE.finditer(text))

    def _failure(self, text: str, line: Line) -> bool:
        if "Test " not in text and "Invalid number" not in text:
            return False
        if not _FAILURE.search(text):
            return False
        if len(self._failures) < _KEEP:
            self._failures.append(Evidence(line.lineno, text.strip()[:400]))
        return True

    # -- runs ------------------------------------------------------------------------------

    def _start_run(self, stream: Stream) -> None:
        self._drop_half(stream)
        self._end_run(stream)
        stream.table = None
        stream.named = None
        stream.devices = []
        stream.devices_end = False
        stream.averaged = []

    def _end_run(self, stream: Stream) -> None:
        if stream.devices:
            self._last_devices = tuple(stream.devices)
            self._devices_end = stream.devices_end

    def _drop_half(self, stream: Stream) -> None:
        if stream.half_row:
            self._mark_unread(stream.half_row_line, " ".join(stream.half_row))
            stream.half_row = []

    def _mark_unread(self, lineno: int, text: str) -> None:
        self._unread_count += 1
        if len(self._unread) < _KEEP:
            self._unread.append(Unread(lineno, text[:400]))

    # -- the answer ------------------------------------------------------------------------

    def result(self) -> Mapping[str, object]:
        """Header, tables and what could not be read."""
        tables = tuple(finished(table) for table in self._tables if has_content(table))
        out: dict[str, object] = {
            "unread": tuple(self._unread),
            "unread_count": self._unread_count,
        }
        if self.seen or self._failures:
            out["header"] = self._header_of(tables)
        if tables:
            out["tables"] = tables
        if self._failures:
            out["tests_failure"] = True
        return out

    def _header_of(self, tables: tuple[BenchTable, ...]) -> Header:
        devices = self._last_devices
        open_runs = any(stream.open for stream in self._streams.values())
        n_ranks, basis = rank_count(devices if self._devices_end else (), tables)
        n_nodes, per_node = node_count(devices) if n_ranks == len(devices) else (None, None)
        check = self._parameters.get("validation")
        gpus = list(dict.fromkeys(device.gpu for device in devices))
        return Header(
            nccl_version=self._nccl_version,
            gpu=" + ".join(gpus) or None,
            n_ranks=n_ranks,
            n_ranks_basis=basis,
            n_nodes=n_nodes,
            ranks_per_node=per_node,
            iters=_int(self._parameters.get("iters")),
            warmup_iters=_int(self._parameters.get("warmup iters")),
            validation=None if check is None else check != "0",
            complete=not (open_runs or self._failures or not self._footers),
            tests_version=self._tests_version,
            library=self._library,
            devices=devices,
            parameters=FrozenDict(self._parameters),
            memory_report=self._memory,
            average_check=self._average_check,
            failures=tuple(self._failures),
            n_headers=self._headers,
            n_footers=self._footers,
        )


def _int(text: str | None) -> int | None:
    return int(text[:18]) if text and text.isdecimal() else None
