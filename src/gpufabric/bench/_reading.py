"""From the lines of a benchmark's log to BenchReports."""

import re
from collections.abc import Iterable

from gpufabric._frozen import evolve
from gpufabric.bench.report import BenchPair, BenchReport, BenchRow
from gpufabric.errors import ParseError

__all__ = ["read_reports"]

_OURS = re.compile(r"^# gpufabric-bench (format=\d+ .*)$")
_PARAMETERS = re.compile(r"^# nThread .* iters: (\d+) agg iters")
_PAIR = re.compile(r"^# pair (\d+) \((\S+)\) -> (\d+) \((\S+)\): ([\d.]+) GB/s$")
_OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (OK|FAILED)")
_AVERAGE = re.compile(r"^# Avg bus bandwidth    : ([\d.e+-]+)")
_N_WORDS = 13


def read_reports(lines: str | Iterable[str]) -> tuple[BenchReport, ...]:
    """Reads every table that the tcp or the torch workload printed."""
    found: list[BenchReport] = []
    last = ""
    n = 0
    for n, line in enumerate(lines.splitlines() if isinstance(lines, str) else lines, 1):
        text = line.rstrip()
        last = text or last
        header = _OURS.match(text)
        if header:
            found.append(_begin(header.group(1), n, text))
        elif found:
            found[-1] = _take(found[-1], text)
    whole = tuple(report for report in found if report.rows)
    if not whole:
        raise ParseError(f"no benchmark table in {n} lines; the last one is {last[:200]!r}")
    return whole


def _begin(header: str, lineno: int, text: str) -> BenchReport:
    words = dict(word.split("=", 1) for word in header.split() if "=" in word)
    try:
        return BenchReport(
            collective=words["collective"],
            workload=words["workload"],
            backend=words.get("backend"),
            n_ranks=int(words["n_ranks"]),
            num_nodes=int(words["num_nodes"]),
            complete=False,
        )
    except (KeyError, ValueError) as exc:
        raise ParseError(f"not a benchmark header: {exc}", lineno=lineno, text=text) from exc


def _take(report: BenchReport, text: str) -> BenchReport:
    if not text.startswith("#"):
        row = _row(text.split())
        return evolve(report, rows=(*report.rows, row)) if row else report
    if match := _PARAMETERS.match(text):
        return evolve(report, iters=int(match.group(1)))
    if match := _PAIR.match(text):
        source, source_host, target, target_host, speed = match.groups()
        pair = BenchPair(
            source_rank=int(source),
            source_host=source_host,
            target_rank=int(target),
            target_host=target_host,
            gbytes_s=float(speed),
        )
        return evolve(report, pairs=(*report.pairs, pair))
    if match := _OUT_OF_BOUNDS.match(text):
        return evolve(report, out_of_bounds=int(match.group(1)))
    if match := _AVERAGE.match(text):
        return evolve(report, avg_bus_bandwidth_gbytes_s=float(match.group(1)), complete=True)
    return report


def _row(words: list[str]) -> BenchRow | None:
    if len(words) != _N_WORDS or not words[0].isdigit():
        return None
    try:
        numbers = [None if word == "N/A" else float(word) for word in words[5:]]
        root = int(words[4])
        count = int(words[1])
    except ValueError:
        return None
    return BenchRow(
        size_bytes=int(words[0]),
        count=count,
        dtype=words[2],
        redop=None if words[3] == "none" else words[3],
        root=None if root < 0 else root,
        time_us=numbers[0],
        algbw_gbytes_s=numbers[1],
        busbw_gbytes_s=numbers[2],
        wrong=None if numbers[3] is None else int(numbers[3]),
        in_place_time_us=numbers[4],
        in_place_algbw_gbytes_s=numbers[5],
        in_place_busbw_gbytes_s=numbers[6],
        in_place_wrong=None if numbers[7] is None else int(numbers[7]),
    )
