"""Renders nccl-tests output in the layouts of its versions, from made-up measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One row: size, and time, algbw, busbw, wrong of both halves as they are printed."""

    size: int
    count: int
    out: tuple[str, str, str, str]
    inn: tuple[str, str, str, str]
    dtype: str = "float"
    redop: str = "sum"
    root: int = -1


@dataclass(frozen=True)
class Layout:
    """How one version prints a table."""

    name: str
    columns: tuple[str, ...]
    wrong: str
    time: str = "time"
    first: tuple[str, str] = ("size", "count")
    extra: tuple[str, ...] = ()
    timestamp: bool = False


LAYOUTS = (
    Layout("1.0", ("op",), "res", first=("bytes", "N")),
    Layout("2.0 all_reduce", ("redop",), "error"),
    Layout("2.0 reduce", ("redop", "root"), "error"),
    Layout("2.0 broadcast", ("root",), "error"),
    Layout("2.0 all_gather", (), "error"),
    Layout("2.13", ("redop", "root"), "#wrong"),
    Layout("2.17.6 -S 1", ("redop", "root"), "#wrong", timestamp=True),
    Layout("2.19.2 -I 1", ("redop", "root"), "#wrong", extra=("i_min", "i_max", "i_p99", "i_cv%")),
    Layout("-C 1", ("redop", "root"), "#wrong", time="cputime"),
)

PARAMETERS = (
    "# nThread 1 nGpus 1 minBytes {first} maxBytes {last} step: 2(factor) warmup iters: 5 iters: 20"
    " agg iters: 1 validation: 1 graph: 0"
)


def header(layout: Layout) -> str:
    half = [layout.time, "algbw", "busbw", layout.wrong, *layout.extra]
    words = [*layout.first, "type", *layout.columns, *half, *half]
    return "#  " + "  ".join(words + (["timestamp"] if layout.timestamp else []))


def row(point: Point, layout: Layout) -> str:
    values = {"redop": point.redop, "op": point.redop, "root": str(point.root)}
    words = [str(point.size), str(point.count), point.dtype, *(values[c] for c in layout.columns)]
    for half in (point.out, point.inn):
        words += [*half, *("1.5" for _ in layout.extra)]
    if layout.timestamp:
        words.append("2026-02-03 04:05:06")
    return "  " + "  ".join(f"{word:>9}" for word in words)


def devices(hosts: Sequence[str], gpus: int, name: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    return [
        f"#  Rank {host * gpus + gpu:2d} Group  0 Pid {4000 + gpu} on {node:>10} device {gpu:2d}"
        f" [0000:{16 + gpu:02x}:00] {name}"
        for host, node in enumerate(hosts)
        for gpu in range(gpus)
    ]


def table(points: Sequence[Point], layout: Layout) -> list[str]:
    return [header(layout), *(row(point, layout) for point in points)]


def footer(points: Sequence[Point]) -> list[str]:
    values = [float(half[2]) for point in points for half in (point.out, point.inn)]
    return [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {sum(values) / len(values):g} ",
        "#",
    ]


def measured(size: int, n_ranks: int, gbytes_s: float, *, factor: float | None = None) -> Point:
    """A row of an all_reduce on ``n_ranks`` whose busbw comes near ``gbytes_s``."""
    ratio = 2 * (n_ranks - 1) / n_ranks if factor is None else factor
    time_us = 30.0 + size * ratio / gbytes_s / 1e3
    algbw = size / time_us / 1e3
    half = (f"{time_us:.2f}", f"{algbw:.2f}", f"{algbw * ratio:.2f}", "0")
    return Point(size, size // 4, half, half)


def run(
    *, hosts: Sequence[str] = ("an-1", "an-2"), gpus: int = 8, top: float = 400.0, rows: int = 6
) -> list[str]:
    """A whole all_reduce run in the layout of 2.13 to 2.17."""
    layout = LAYOUTS[5]
    n_ranks = len(hosts) * gpus
    points = [measured(1 << (25 + 2 * i), n_ranks, top) for i in range(rows)]
    return [
        "# Collective test starting: all_reduce_perf",
        PARAMETERS.format(first=points[0].size, last=points[-1].size),
        "#",
        "# Using devices",
        *devices(hosts, gpus),
        "#",
        *table(points, layout),
        *footer(points),
        "# Collective test concluded: all_reduce_perf",
    ]
