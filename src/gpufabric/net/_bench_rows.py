"""Rows of an nccl-tests table: columns found by the header, or from the right without one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from gpufabric._frozen import evolve
from gpufabric.net.records import BenchRow, Measured

_TIME: Final = ("time", "cputime")
_WRONG: Final = ("#wrong", "wrong", "error", "res")
_SIZE: Final = ("size", "bytes")
_COUNT: Final = ("count", "N")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)\*?$")
_TYPE = re.compile(r"[a-z]+[a-z0-9_]*$")
_MAX_DIGITS: Final = 18
"""A longer number is no size or count, and may be too large for arithmetic."""
_NA: Final = frozenset({"N/A", "n/a", "NA"})


class Layout(NamedTuple):
    """Where the columns of a table are, counted in words of a row."""

    n_words: int
    size: int | None
    elements: int | None
    dtype: int | None
    redop: int | None
    root: int | None
    halves: tuple[tuple[int, int | None, int | None, int | None], ...]
    """For each half: the words of time, algbw, busbw and wrong."""
    n_left: int
    timestamp: int | None
    wrong_is_count: bool
    milliseconds: bool
    time_is_cpu: bool
    per_iteration: bool
    usual: bool = False
    """The columns of all versions from 2.13 on, without switches."""


def layout_of(text: str) -> Layout | None:
    """The layout a header line gives, or None where the line is no table header."""
    words = [w.partition("(")[0] or w for w in text.replace("# wrong", "#wrong").split()]
    words = [word for word in words if word != "#"]
    if words and words[0] in {"#size", "#bytes"}:
        words[0] = words[0][1:]
    starts = [i for i, word in enumerate(words) if word in _TIME]
    if not 1 <= len(starts) <= 2 or "busbw" not in words or "algbw" not in words:
        return None
    left = words[: starts[0]]
    if not any(name in left for name in _SIZE):
        return None
    stamp = words.index("timestamp") if "timestamp" in words else None
    end = len(words) if stamp is None else stamp
    halves: list[tuple[int, int | None, int | None, int | None]] = []
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        half = words[start:stop]
        wrong = next((start + i for i, word in enumerate(half) if word in _WRONG), None)
        halves.append((start, _at(half, ("algbw",), start), _at(half, ("busbw",), start), wrong))
    layout = Layout(
        n_words=len(words) + (stamp is not None),
        size=_at(left, _SIZE),
        elements=_at(left, _COUNT),
        dtype=_at(left, ("type",)),
        redop=_at(left, ("redop", "op")),
        root=_at(left, ("root",)),
        halves=tuple(halves),
        n_left=starts[0],
        timestamp=stamp,
        wrong_is_count="#wrong" in words or "wrong" in words,
        milliseconds="bytes" in left and "res" in words,
        time_is_cpu="cputime" in words,
        per_iteration=any(word.startswith("i_m") for word in words),
    )
    return layout._replace(usual=layout[:7] == _USUAL)


def _at(words: list[str], names: tuple[str, ...], offset: int = 0) -> int | None:
    return next((offset + i for i, word in enumerate(words) if word in names), None)


def layout_of_row(words: list[str]) -> Layout | None:
    """The layout a row must have where no header was seen, read from the right.

    Eight words of two halves; left of them size, count, type and perhaps redop and root.
    """
    n_left = len(words) - 8
    if not 3 <= n_left <= 5 or not all(is_value(word) for word in words[n_left:]):
        return None
    redop = root = None
    if n_left == 5:
        redop, root = 3, 4
    elif n_left == 4:
        redop, root = (None, 3) if words[3].lstrip("-").isdecimal() else (3, None)
    wrongs = (words[n_left + 3], words[n_left + 7])
    return Layout(
        n_words=len(words),
        size=0,
        elements=1,
        dtype=2,
        redop=redop,
        root=root,
        halves=tuple((i, i + 1, i + 2, i + 3) for i in (n_left, n_left + 4)),
        n_left=n_left,
        timestamp=None,
        wrong_is_count=n_left == 5 and not any("e" in word for word in wrongs),
        milliseconds=False,
        time_is_cpu=False,
        per_iteration=False,
    )


def is_value(word: str) -> bool:
    """A number or N/A, as a measured column holds."""
    return word in _NA or _NUMBER.match(word) is not None


def is_row_start(words: list[str], layout: Layout) -> bool:
    """Whether these are the first words of a row whose rest is missing."""
    if not 3 <= len(words) < layout.n_words or layout.dtype is None:
        return False
    if not (words[0].isdecimal() and words[1].isdecimal()):
        return False
    if len(words) > layout.dtype and not _TYPE.match(words[layout.dtype]):
        return False
    return all(is_value(word) for word in words[layout.n_left :])


def is_plausible(words: list[str], layout: Layout) -> bool:
    """Whether size / time is the printed algbw in every half: a guessed layout must prove so."""
    if len(words[layout.size or 0]) > _MAX_DIGITS:
        return False
    for time, algbw, _, _ in layout.halves:
        try:
            size, time_us = int(words[layout.size or 0]), float(words[time])
            printed = float(words[algbw or 0])
        except ValueError:
            return words[time] in _NA
        if not 1e-6 < time_us < 1e15:
            return size == 0
        rounding = half_unit(words[algbw or 0]) + half_unit(words[time]) * size / time_us**2 / 1e3
        if not abs(size / time_us / 1e3 - printed) <= 1.01 * rounding + 0.001 * printed:
            return False
    return True


def row_of(words: list[str], layout: Layout, lineno: int) -> BenchRow | None:
    """The row, or None where a word does not fit its column."""
    if layout.usual:
        row = _usual_row(words, lineno)
        if row is not None:
            return row
    _, size_at, count_at, type_at, redop_at, root_at, halves, *_ = layout
    try:
        size = int(words[size_at or 0])
        count = None if count_at is None else int(words[count_at])
        root = None if root_at is None else int(words[root_at])
        out_of_place = _half(words, halves[0])
        in_place = _half(words, halves[1]) if len(halves) > 1 else None
    except (ValueError, IndexError):
        return None
    dtype = None if type_at is None else words[type_at]
    redop = None if redop_at is None else words[redop_at]
    if not 0 <= size < 10**_MAX_DIGITS or not _names_fit(dtype, redop):
        return None
    if layout.milliseconds:
        out_of_place, in_place = _from_milliseconds(out_of_place), _from_milliseconds(in_place)
    return BenchRow(
        size_bytes=size,
        count=count,
        out_of_place=out_of_place,
        in_place=in_place,
        dtype=dtype,
        redop=redop,
        root=root,
        lineno=lineno,
        timestamp=None if layout.timestamp is None else " ".join(words[layout.timestamp :]),
    )


_USUAL: Final = (13, 0, 1, 2, 3, 4, ((5, 6, 7, 8), (9, 10, 11, 12)))


def _usual_row(words: list[str], lineno: int) -> BenchRow | None:
    """A row of the usual columns with a number in each; None leaves it to the general way."""
    size, count, dtype, redop, root, time, alg, bus, wrong, time2, alg2, bus2, wrong2 = words
    if not _names_fit(dtype, redop) or size[0] == "-" or len(size) > _MAX_DIGITS:
        return None
    try:
        return BenchRow(
            size_bytes=int(size),
            count=int(count),
            out_of_place=Measured(
                float(time), float(alg), float(bus), 0.0 if wrong == "0" else _number(wrong)
            ),
            in_place=Measured(
                float(time2), float(alg2), float(bus2), 0.0 if wrong2 == "0" else _number(wrong2)
            ),
            dtype=dtype,
            redop=redop,
            root=int(root),
            lineno=lineno,
        )
    except ValueError:
        return None


@lru_cache(maxsize=256)
def _names_fit(dtype: str | None, redop: str | None) -> bool:
    """Whether these can be a type and an operation."""
    return (dtype is None or _TYPE.match(dtype) is not None) and (not redop or redop.isalpha())


def _half(words: list[str], at: tuple[int, int | None, int | None, int | None]) -> Measured | None:
    time_at, algbw_at, busbw_at, wrong_at = at
    time = words[time_at]
    if time in _NA:
        return None
    if algbw_at is None or busbw_at is None or wrong_at is None:
        numbers = [None if i is None else _number(words[i]) for i in at[1:]]
        return Measured(float(time), *numbers)
    wrong = words[wrong_at]
    return Measured(
        float(time),
        float(words[algbw_at]),
        float(words[busbw_at]),
        0.0 if wrong == "0" else _number(wrong),
    )


def _from_milliseconds(half: Measured | None) -> Measured | None:
    if half is None or half.time_us is None:
        return half
    return evolve(half, time_us=round(half.time_us * 1000, 6))


def _number(word: str) -> float | None:
    if word == "0":
        return 0.0
    try:
        return float(word)
    except ValueError:
        return None if word in _NA else float(word.rstrip("*"))


def ratio_of(words: Iterable[tuple[str, str]]) -> tuple[float, float] | None:
    """Between what bounds busbw/algbw is, from the printed words of many rows.

    Each pair allows a range by its rounding, and all must agree; where they do not, the pairs
    of larger bandwidth, whose rounding matters least, are believed.
    """
    ratio: tuple[float, float] | None = None
    best = 0.0
    for algbw, busbw in words:
        try:
            alg, bus = float(algbw), float(busbw)
        except ValueError:
            continue
        alg_unit, bus_unit = half_unit(algbw), half_unit(busbw)
        if not 0.1 <= alg < 1e7 or bus < bus_unit:
            continue
        low, high = (bus - bus_unit) / (alg + alg_unit), (bus + bus_unit) / (alg - alg_unit)
        if ratio and low <= ratio[1] and high >= ratio[0]:
            ratio, best = (max(low, ratio[0]), min(high, ratio[1])), max(alg, best)
        elif alg > best:
            ratio, best = (low, high), alg
    return ratio


_MAX_PLACES: Final = 30
_HALF_UNITS: Final = tuple(0.5 * 10.0**-places for places in range(_MAX_PLACES + 1))


def half_unit(word: str) -> float:
    """Half of the last digit printed: by how much the value may have been rounded."""
    point = word.find(".")
    return 0.5 if point < 0 else _HALF_UNITS[min(len(word) - point - 1, _MAX_PLACES)]
