"""Two runs of one benchmark side by side, with their noise in mind."""

from collections.abc import Mapping
from enum import StrEnum
from statistics import median
from typing import Final

from gpufabric._frozen import frozen
from gpufabric.bench.report import BenchReport, BenchRow
from gpufabric.errors import Problem, SpecError

__all__ = ["Change", "ComparedRow", "Comparison", "compare"]

#: Two runs on a quiet machine differ by this much without a cause.
LEAST_NOISE: Final = 0.05
#: Sizes from which bandwidth counts; below, time does.
BANDWIDTH_BYTES: Final = 1 << 20


class Change(StrEnum):
    """What became of it."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNKNOWN = "unknown"


@frozen(kw_only=True)
class ComparedRow:
    """One size in both runs. `ratio` is of speeds: 1.1 means that the second run is 10 % faster."""

    size_bytes: int
    before_time_us: float
    after_time_us: float
    before_busbw_gbytes_s: float | None
    after_busbw_gbytes_s: float | None
    ratio: float
    change: Change


@frozen(kw_only=True)
class Comparison:
    """Two runs of one benchmark.

    Fields:
        noise: the share by which times of one size differ within and between the runs without
            meaning; a change below it is `same`.
        bandwidth, latency: what became of the largest size, and of the small ones together.
        rows: the sizes that both runs have.
        left_out: sizes that only one of them has.
        became_wrong: the second run has wrong data and the first has not.
    """

    before: str
    after: str
    noise: float
    bandwidth: Change
    latency: Change
    rows: tuple[ComparedRow, ...] = ()
    left_out: tuple[int, ...] = ()
    became_wrong: bool = False

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Comparison":
        """Builds it from plain data. Raises `SpecError` with every fault and its path."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def summary(self) -> str:
        """The outcome on one line."""
        wrong = "; the second run's DATA IS WRONG" if self.became_wrong else ""
        return (
            f"bandwidth {self.bandwidth.value}, latency {self.latency.value}"
            f" (noise {self.noise:.0%}){wrong}"
        )

    def _table(self) -> tuple[list[str], list[list[object]]]:
        headers = [
            "size B",
            "before us",
            "after us",
            "before GB/s",
            "after GB/s",
            "speed",
            "change",
        ]
        rows: list[list[object]] = [
            [
                row.size_bytes,
                row.before_time_us,
                row.after_time_us,
                "-" if row.before_busbw_gbytes_s is None else row.before_busbw_gbytes_s,
                "-" if row.after_busbw_gbytes_s is None else row.after_busbw_gbytes_s,
                f"{row.ratio:.2f}x",
                row.change.value,
            ]
            for row in self.rows
        ]
        return headers, rows

    def __str__(self) -> str:
        from gpufabric._display import text_table

        return f"{self.summary()}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        from gpufabric._display import html_table

        return html_table(*self._table(), caption=self.summary())


def compare(before: BenchReport, after: BenchReport) -> Comparison:
    """Compares two runs of the same benchmark, size by size.

    In place and out of place are the same work, so what they differ by within a run is noise; a
    change counts only where it is more than that, and more than 5 %.

    Raises:
        SpecError: they are not of the same benchmark (collective, ranks, type, workload).
    """
    _refuse(before, after)
    first, second = _timed(before), _timed(after)
    shared = sorted(set(first) & set(second))
    if not shared:
        raise SpecError("the two runs have no size in common")
    noise = max(LEAST_NOISE, _noise(before), _noise(after))
    rows = tuple(_row(first[size], second[size], noise) for size in shared)
    small = [row.ratio for row in rows if row.size_bytes < BANDWIDTH_BYTES]
    large = [row for row in rows if row.size_bytes >= BANDWIDTH_BYTES]
    return Comparison(
        before=before.title(),
        after=after.title(),
        noise=noise,
        bandwidth=large[-1].change if large else Change.UNKNOWN,
        latency=_change(median(small), noise) if small else Change.UNKNOWN,
        rows=rows,
        left_out=tuple(sorted(set(first) ^ set(second))),
        became_wrong=after.is_correct is False and before.is_correct is not False,
    )


def _refuse(before: BenchReport, after: BenchReport) -> None:
    pairs = {
        "collective": (before.collective, after.collective),
        "workload": (before.workload, after.workload),
        "backend": (before.backend, after.backend),
        "n_ranks": (before.n_ranks, after.n_ranks),
        "num_nodes": (before.num_nodes, after.num_nodes),
        "dtype": (before.dtype, after.dtype),
        "redop": (before.redop, after.redop),
    }
    differing = [
        Problem(path=name, message=f"{one!r} and {other!r} cannot be compared")
        for name, (one, other) in pairs.items()
        if one != other
    ]
    if differing:
        raise SpecError(differing, what="compare")


def _timed(report: BenchReport) -> dict[int, BenchRow]:
    return {row.size_bytes: row for row in report.rows if row.size_bytes and row.best_time_us}


def _noise(report: BenchReport) -> float:
    """The median difference of the two ways within a run, at sizes that take a while."""
    differences = [
        abs(row.time_us - row.in_place_time_us) / max(row.time_us, row.in_place_time_us)
        for row in report.rows
        if row.time_us and row.in_place_time_us
    ]
    return median(differences) if differences else 0.0


def _row(before: BenchRow, after: BenchRow, noise: float) -> ComparedRow:
    first, second = before.best_time_us or 0.0, after.best_time_us or 0.0
    ratio = first / second
    return ComparedRow(
        size_bytes=before.size_bytes,
        before_time_us=first,
        after_time_us=second,
        before_busbw_gbytes_s=before.best_busbw_gbytes_s,
        after_busbw_gbytes_s=after.best_busbw_gbytes_s,
        ratio=ratio,
        change=_change(ratio, noise),
    )


def _change(ratio: float, noise: float) -> Change:
    if ratio > 1 + noise:
        return Change.FASTER
    return Change.SLOWER if ratio < 1 / (1 + noise) else Change.SAME
