"""From the lines of a benchmark's log to BenchReports.

Tables are read by `gpufabric.net`, whoever printed them. Here is only what this package's own
workloads add in comment lines: how many ranks and nodes there were, and speeds of pairs.
"""

import math
import re
from collections.abc import Iterable, Iterator

from gpufabric._frozen import frozen
from gpufabric.bench.report import BenchPair, BenchReport, BenchRow
from gpufabric.errors import ParseError
from gpufabric.net import records

__all__ = ["read_reports"]

_OURS = re.compile(r"# gpufabric-bench (format=\d+ .*)$")
_PAIR = re.compile(
    r"# pair ([0-9]{1,9}) \((\S+)\) -> ([0-9]{1,9}) \((\S+)\): ([0-9]{1,15}\.[0-9]{1,15}) GB/s$"
)
_COUNT = re.compile("[0-9]{1,9}")
_NOTHING: dict[str, str] = {}
_PARAMETERS = re.compile(r"# nThread .*?(?<!warmup )(?<!agg )\biters: ([0-9]{1,9})\b")


@frozen
class _Said:
    """A comment line of ours, or nccl-tests' line of parameters."""

    lineno: int
    ours: dict[str, str] | None = None
    pair: BenchPair | None = None
    iters: int | None = None


def read_reports(lines: str | Iterable[str]) -> tuple[BenchReport, ...]:
    """Reads every table, in order. Raises `ParseError` where there is none."""
    from gpufabric.net.reading import read

    said: list[_Said] = []
    last: list[int | str] = [0, ""]
    found = read(_listening(lines.splitlines() if isinstance(lines, str) else lines, said, last))
    tables = [table for table in found.tables if table.rows]
    if not tables:
        text = str(last[1])[:200]
        raise ParseError(f"no benchmark table in {last[0]} lines; the last one is {text!r}")
    reports: list[BenchReport] = []
    for i, table in enumerate(tables):
        start = table.lineno or 0
        end = tables[i + 1].lineno if i + 1 < len(tables) else None
        before = tables[i - 1].lineno or 0 if i else 0
        own_head = [s for s in said if before < s.lineno < start]
        own_body = [s for s in said if start < s.lineno and (end is None or s.lineno < end)]
        header = found.header if len(tables) == 1 else None
        reports.append(_report(table, header, own_head, own_body))
    return tuple(reports)


def _listening(lines: Iterable[str], said: list[_Said], last: list[int | str]) -> Iterator[str]:
    """Passes lines on, and keeps what those say that only this package prints."""
    for lineno, line in enumerate(lines, 1):
        if "# " in line:
            text = line.rstrip()
            if match := _OURS.search(text):
                words = [word.split("=", 1) for word in match.group(1).split() if "=" in word]
                said.append(_Said(lineno, ours={word[0]: word[1] for word in words}))
            elif match := _PARAMETERS.search(text):
                said.append(_Said(lineno, iters=int(match.group(1))))
            elif match := _PAIR.search(text):
                said.append(_Said(lineno, pair=_pair(match)))
        last[0] = lineno
        if line.strip():
            last[1] = line.rstrip()
        yield line


def _pair(match: re.Match[str]) -> BenchPair:
    source, source_host, target, target_host, speed = match.groups()
    return BenchPair(
        source_rank=int(source),
        source_host=source_host,
        target_rank=int(target),
        target_host=target_host,
        gbytes_s=float(speed),
    )


def _report(
    table: records.BenchTable,
    header: records.Header | None,
    own_head: list[_Said],
    own_body: list[_Said],
) -> BenchReport:
    ours = next((s.ours for s in reversed(own_head) if s.ours), _NOTHING)
    iters = next((s.iters for s in reversed(own_head) if s.iters), None)
    n_ranks = _int(ours.get("n_ranks")) or table.n_ranks or (header.n_ranks if header else None)
    nodes = _int(ours.get("num_nodes")) or (header.n_nodes if header else None)
    return BenchReport(
        collective=ours.get("collective") or table.collective,
        workload=ours.get("workload", "nccl_tests"),
        backend=ours.get("backend"),
        n_ranks=n_ranks,
        num_nodes=nodes,
        iters=iters,
        rows=tuple(_row(row, counts=table.wrong_is_count) for row in table.rows),
        pairs=tuple(s.pair for s in own_body if s.pair),
        out_of_bounds=table.out_of_bounds_count,
        avg_bus_bandwidth_gbytes_s=_finite(table.avg_bus_bandwidth),
        is_cpu_time=table.time_is_cpu,
        complete=table.avg_bus_bandwidth is not None and not table.rows_left_out,
    )


def _int(text: str | None) -> int | None:
    return int(text) if text and _COUNT.fullmatch(text) else None


def _row(row: records.BenchRow, *, counts: bool) -> BenchRow:
    out, into = row.out_of_place or records.Measured(), row.in_place or records.Measured()
    return BenchRow(
        size_bytes=row.size_bytes,
        count=row.count,
        dtype=row.dtype,
        redop=None if row.redop == "none" else row.redop,
        root=None if row.root is None or row.root < 0 else row.root,
        time_us=_finite(out.time_us),
        algbw_gbytes_s=_finite(out.algbw),
        busbw_gbytes_s=_finite(out.busbw),
        wrong=_count(out.wrong, counts=counts),
        in_place_time_us=_finite(into.time_us),
        in_place_algbw_gbytes_s=_finite(into.algbw),
        in_place_busbw_gbytes_s=_finite(into.busbw),
        in_place_wrong=_count(into.wrong, counts=counts),
    )


def _finite(value: float | None) -> float | None:
    """What was measured; a broken clock prints inf or nan, which is no measurement."""
    return value if value is not None and math.isfinite(value) else None


def _count(wrong: float | None, *, counts: bool) -> int | None:
    """The number of wrong elements; old layouts print a difference instead, which is none."""
    if wrong is None or not counts or not math.isfinite(wrong):
        return None
    return int(wrong)
