"""What a benchmark shows by itself, without any reference: a slow rank, a dip, a falling end."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from gpufabric.bench.report import BenchPair, BenchReport, BenchRow
from gpufabric.net.diagnosis import Finding, Severity

__all__ = ["curve", "slow_ranks"]

#: A rank whose pairs all stay below this share of what other pairs reach is slow. Four namespaces
#: on one machine, links of 1 Gbit/s: healthy pairs differ by up to 8 %, under load by 25 %.
SLOW: Final = 0.75
#: One pair alone is less sure: a burst on a shared link looks the same.
SLOW_PAIR: Final = 0.5
#: NCCL changes protocol and algorithm with size, which bends a healthy curve less than this.
DIP: Final = 0.5
CLIFF: Final = 0.5
BANDWIDTH_BYTES: Final = 1 << 20
_SOURCE: Final = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"


def slow_ranks(report: BenchReport) -> Iterable[Finding]:
    """Ranks, and single pairs, that are slow among their peers in a pairwise run."""
    pairs = _between_hosts(report.pairs)
    ranks = sorted({pair.source_rank for pair in pairs})
    if len(ranks) < 3:  # two ranks have one link: which end is slow cannot be told
        return
    usual = _near_best(pair.gbytes_s for pair in pairs)
    slow = [rank for rank in ranks if _near_best(_speeds_of(pairs, rank)) < SLOW * usual]
    names = {pair.source_rank: pair.source_host for pair in pairs}
    for rank in slow:
        best = max(_speeds_of(pairs, rank))
        yield Finding(
            code="slow_rank",
            severity=Severity.ERROR,
            evidence=(),
            title=f"rank {rank} on {names[rank]} is slow with every other",
            cause=f"Its best pair reaches {best:g} GB/s, others {usual:g}. Its NIC, its rail's"
            " switch port, or the machine itself is slow; a ring runs at the pace of its slowest.",
            remedy=f"Take {names[rank]} out of the gang, and look at its link's rate and error"
            " counters (ethtool, ibstat).",
            source=_SOURCE,
        )
    for pair in pairs:
        known = pair.source_rank in slow or pair.target_rank in slow
        if not known and pair.gbytes_s < SLOW_PAIR * usual:
            yield Finding(
                code="slow_pair",
                severity=Severity.WARNING,
                evidence=(),
                title=f"rank {pair.source_rank} to {pair.target_rank} is slow",
                cause=f"{pair.source_host} to {pair.target_host} reaches {pair.gbytes_s:g} GB/s,"
                f" other pairs {usual:g}: the path between them, or other traffic at that moment.",
                remedy="Measure again; if it stays, ask for the path between the two.",
                source=_SOURCE,
            )


def _between_hosts(pairs: Iterable[BenchPair]) -> list[BenchPair]:
    """The pairs that have a network between them."""
    return [pair for pair in pairs if pair.source_host != pair.target_host]


def _speeds_of(pairs: Iterable[BenchPair], rank: int) -> list[float]:
    return [p.gbytes_s for p in pairs if rank in (p.source_rank, p.target_rank)]


def _near_best(speeds: Iterable[float]) -> float:
    """The second best: one lucky measurement is no ability."""
    ordered = sorted(speeds, reverse=True)
    return ordered[1] if len(ordered) > 1 else ordered[0]


def curve(report: BenchReport) -> Iterable[Finding]:
    """Dips and a falling end in bandwidth over size, a size that is slower than a larger one."""
    rows = sorted(
        (row for row in report.rows if row.size_bytes >= BANDWIDTH_BYTES and _speed(row)),
        key=lambda row: row.size_bytes,
    )
    yield from _dips(rows)
    yield from _cliff(rows)
    yield from _in_place(rows)
    yield from _latency(report)


def _dips(rows: list[BenchRow]) -> Iterable[Finding]:
    for i, row in enumerate(rows[1:-1], 1):
        shoulder = min(max(map(_speed, rows[:i])), max(map(_speed, rows[i + 1 :])))
        if _speed(row) < DIP * shoulder:
            yield _note(
                "dip",
                f"a dip at {row.size_bytes} bytes",
                f"{_speed(row):g} GB/s, while smaller and larger sizes reach {shoulder:g}: a bad"
                " change of NCCL's protocol or algorithm, or a disturbance in that minute.",
            )


def _cliff(rows: list[BenchRow]) -> Iterable[Finding]:
    """Large sizes that stay far below what smaller ones reached."""
    best = max(rows, key=_speed, default=None)
    if best is None:
        return
    after = [row for row in rows if row.size_bytes > best.size_bytes]
    if len(after) >= 2 and all(_speed(row) < CLIFF * _speed(best) for row in after):
        said = (
            f"{_speed(best):g} GB/s at {best.size_bytes} bytes, then {_speed(after[0]):g} at"
            f" {after[0].size_bytes} and at most half of the peak up to the end"
        )
        yield Finding(
            code="cliff_above_size",
            severity=Severity.ERROR,
            evidence=(),
            title=f"bandwidth falls above {best.size_bytes} bytes",
            cause=f"{said}: congestion, pause frames that spread (PFC), or a bad change of"
            " protocol.",
            remedy="Watch the NICs' pause and drop counters (ethtool -S) during a run of the large"
            " sizes; try NCCL_ALGO and NCCL_PROTO to tell the library from the network.",
            source="https://github.com/NVIDIA/nccl/issues/1453",
        )
    elif after and _speed(after[-1]) < SLOW * _speed(best):
        yield _note(
            "falling_end",
            "bandwidth falls at the largest size",
            f"{_speed(after[-1]):g} GB/s at {after[-1].size_bytes} bytes after {_speed(best):g} at"
            f" {best.size_bytes}.",
        )


def _in_place(rows: list[BenchRow]) -> Iterable[Finding]:
    for row in rows[-1:]:
        out, into = row.busbw_gbytes_s, row.in_place_busbw_gbytes_s
        if out and into and min(out, into) < SLOW * max(out, into):
            yield _note(
                "in_place_differs",
                "in place and out of place differ",
                f"{out:g} GB/s out of place, {into:g} in place at {row.size_bytes} bytes: the same"
                " work, so the network was not steady, or memory is short.",
            )


def _latency(report: BenchReport) -> Iterable[Finding]:
    timed = [r for r in report.rows if 0 < r.size_bytes <= BANDWIDTH_BYTES and r.best_time_us]
    for row, following in pairwise(sorted(timed, key=lambda r: r.size_bytes)):
        if (row.best_time_us or 0) > 3 * (following.best_time_us or 0):
            yield _note(
                "latency_spike",
                f"{row.size_bytes} bytes take longer than {following.size_bytes}",
                f"{row.best_time_us:g} us against {following.best_time_us:g}: connections that are"
                " set up at first use (too few warm-up operations), or a disturbance.",
            )
            return


def _speed(row: BenchRow) -> float:
    return row.best_busbw_gbytes_s or 0.0


def _note(code: str, title: str, cause: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.NOTE,
        evidence=(),
        title=title,
        cause=cause,
        remedy="Run it again; if it stays, it is real.",
        source=_SOURCE,
    )
