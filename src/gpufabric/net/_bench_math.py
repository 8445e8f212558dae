"""Arithmetic on nccl-tests rows: what the numbers themselves tell about the run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpufabric.net.records import BenchRow

COLLECTIVES: Final = (
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce_scatter",
    "reduce",
    "alltoallv",
    "alltoall",
    "scatter",
    "gather",
    "sendrecv",
    "hypercube",
)

_N_MINUS_1_OVER_N: Final = frozenset(
    {"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"}
)
_TYPE_BYTES: Final = {
    "int8": 1, "uint8": 1, "char": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
    "half": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "int": 4, "float": 4, "float32": 4,
    "int64": 8, "uint64": 8, "double": 8, "float64": 8,
}  # fmt: skip
_SAMPLE: Final = 64
_MANY: Final = 1 << 30


def rank_range(collective: str | None, low: float, high: float) -> tuple[int, int] | None:
    """How many ranks a busbw/algbw between ``low`` and ``high`` allows for this collective.

    The factor is 2(n-1)/n for all_reduce and (n-1)/n where data goes to all others once; for the
    rest it is 1 whatever the number of ranks.
    """
    if collective == "all_reduce":
        top = 2.0
    elif collective in _N_MINUS_1_OVER_N:
        top = 1.0
    else:
        return None
    if not 0 <= low <= high or low >= top:
        return None
    fewest = max(1, math.ceil(top / (top - low) - 1e-9))
    most = _MANY if high >= top else math.floor(top / (top - high) + 1e-9)
    return (fewest, most) if fewest <= most else None


def infer_collective(  # noqa: PLR0911 - one return for each collective that rows can tell
    rows: Sequence[BenchRow],
    *,
    has_redop: bool | None,
    has_root: bool | None,
    many_ranks: bool = False,
) -> str | None:
    """The collective that these rows must be of, or None where more than one fits.

    Told by the redop and root columns, by whether ``count`` elements fill ``size`` bytes (else
    the count is per rank), by busbw against algbw, and by the in-place check that alltoall and
    sendrecv do not have (sendrecv prints a redop all the same). ``many_ranks`` says that the
    text shows more than one rank.
    """
    told = [row for row in rows[-_SAMPLE:] if row.size_bytes > 0 and row.count and row.dtype]
    if any(row.dtype not in _TYPE_BYTES for row in told):
        return None
    fills = {row.size_bytes == (row.count or 0) * _TYPE_BYTES[row.dtype or ""] for row in told}
    if len(fills) != 1:
        return None
    whole = fills.pop()
    reduces = has_redop is not False and all(row.redop not in (None, "none") for row in told)
    rooted = has_root is not False and all(row.root is not None and row.root >= 0 for row in told)
    if rooted:
        if reduces:
            return "reduce"
        return "broadcast" if whole and (many_ranks or _has_busbw(told)) else None
    if _unchecked_in_place(told):
        return "sendrecv" if whole else "alltoall"
    if reduces:
        if not whole:
            return "reduce_scatter"
        return "all_reduce" if _is_all_reduce(told, many_ranks=many_ranks) else None
    checked = any(row.in_place and row.in_place.wrong is not None for row in told)
    return "all_gather" if checked and not whole else None


def _is_all_reduce(rows: Sequence[BenchRow], *, many_ranks: bool) -> bool:
    """Whether rows with whole buffers and a redop are no sendrecv and no one-rank reduce_scatter.

    The in-place check tells it from sendrecv; unchecked, a busbw above algbw does.
    """
    largest = max(rows, key=lambda row: row.size_bytes)
    half = largest.out_of_place
    above = bool(half and half.algbw and half.busbw and half.busbw > 1.05 * half.algbw)
    checked = any(row.in_place and row.in_place.wrong is not None for row in rows)
    return above or (checked and (many_ranks or _has_busbw(rows)))


def _has_busbw(rows: Sequence[BenchRow]) -> bool:
    return any(row.out_of_place and row.out_of_place.busbw for row in rows)


def _unchecked_in_place(rows: Sequence[BenchRow]) -> bool:
    """Out of place was checked and in place was not."""
    return all(
        row.out_of_place
        and row.out_of_place.wrong is not None
        and (row.in_place is None or row.in_place.wrong is None)
        for row in rows
    )


def mean(values: Sequence[float]) -> float | None:
    """The plain mean with the six digits nccl-tests prints."""
    return float(f"{math.fsum(values) / len(values):.6g}") if values else None


def average_matches(average: float, values: Sequence[float]) -> bool:
    """Whether the printed average is that of the printed rows, after rounding."""
    if not values or not math.isfinite(average):
        return False
    return abs(math.fsum(values) / len(values) - average) <= 0.005 + 1e-5 * abs(average)
