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

_N_MINUS_1_OVER_N: Final = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"})
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


def infer_collective(
    rows: Sequence[BenchRow], *, has_redop: bool | None, has_root: bool | None
) -> str | None:
    """The collective that these rows must be of, or None where more than one fits.

    Told by the redop and root columns, by whether ``count`` elements fill ``size`` bytes (else
    the count is per rank), and by the in-place check that alltoall and sendrecv do not have.
    """
    big = [row for row in rows[-_SAMPLE:] if row.size_bytes >= 4096 and row.count and row.dtype]
    fills = {row.size_bytes == (row.count or 0) * _TYPE_BYTES.get(row.dtype or "", 0) for row in big}
    if len(fills) != 1 or any(row.dtype not in _TYPE_BYTES for row in big):
        return None
    whole = fills.pop()
    reduces = has_redop is not False and all(row.redop not in (None, "none") for row in big)
    rooted = has_root is not False and all(row.root is not None and row.root >= 0 for row in big)
    if reduces and rooted:
        return "reduce"
    if reduces:
        # With one rank reduce_scatter fills its buffer too; its busbw is 0 then.
        return ("all_reduce" if _has_busbw(big) else None) if whole else "reduce_scatter"
    if rooted:
        return "broadcast" if whole and _has_busbw(big) else None
    if whole:
        return "sendrecv" if big and _unchecked_in_place(big) else None
    if big and _unchecked_in_place(big):
        return "alltoall"
    checked = any(row.in_place and row.in_place.wrong is not None for row in big)
    return "all_gather" if checked else None


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
