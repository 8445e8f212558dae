"""The lines of one pod's log, from its bytes: none lost and none doubled, however often it breaks.

Every line carries the time at which the container runtime took it. After a break the log is read
again from a second before the last line, and what was given already is counted off by its times.
"""

import datetime as dt
import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import cast

from gpufabric.job import LogLine

__all__ = ["PodLog", "said"]

# With nine digits the kubelet of every version that is supported writes it.
_TIME = rb"(.{20})(\d{9})(Z|[+-]\d\d:\d\d) "
_LINE = re.compile(_TIME + rb"(.*)\n")
_ANY = re.compile(rb"(?:" + _TIME + rb")?(.*)\n")
_OTHER = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) (.*)")
_NS = 1_000_000_000
#: So much earlier a line may be stamped than one before it: a container's two streams are read by
#: two threads of the runtime, and written in the order in which these come to it.
_MARGIN_S = 1
_GONE = b"unable to retrieve container logs"
_ROTATED = "gpufabric: the log was rotated while it was not read"
_KUBELET = (_GONE, b"failed to ", b"rpc error")


# One line costs what a core can give to it: at 256 nodes and 1,000 lines a second 4 us, of which
# attrs' own __init__ of a frozen class takes 1. So values are set column by column, in C.
_new = LogLine.__new__
_set: tuple[Callable[[LogLine, object], None], ...] = tuple(
    vars(LogLine)[name].__set__ for name in ("node_rank", "data", "stream", "attempt", "time")
)


def _made(rank: int, attempt: int, datas: Sequence[bytes], times: Iterable[float]) -> list[LogLine]:
    """Lines of stdout."""
    lines = list(map(_new, repeat(LogLine, len(datas))))
    values: tuple[Iterable[object], ...] = (
        repeat(rank), datas, repeat("stdout"), repeat(attempt), times,
    )  # fmt: skip
    for set_value, value in zip(_set, values, strict=True):
        deque(map(set_value, lines, value), 0)
    return lines


def said(words: str, *, rank: int, attempt: int = 0, time: float | None = None) -> LogLine:
    """A line of the place's own words."""
    return LogLine(node_rank=rank, data=words.encode(), stream="event", attempt=attempt, time=time)


class PodLog:
    """The log of one container, from where it was last read."""

    def __init__(self, rank: int, attempt: int = 0, since: float | None = None) -> None:
        """From its beginning, or from the second of `since` on."""
        self.rank = rank
        self.attempt = attempt
        self._begin = None if since is None else int(since)
        self.rest = b""  # a line whose end has not come
        self._given = array("q")  # times of the lines since `_floor`, in the order of the log
        self._floor = 0  # seconds
        self._resumed = False  # nothing new has come since it was read again
        self._at = 0  # so many of `_given` have come again in their order
        self._skip: Counter[int] | None = None  # those still to come, where their order is another
        self._met = False  # the last of them has come
        self._said: set[bytes] = set()
        self._bases: dict[tuple[bytes, bytes], int | None] = {}

    @property
    def since(self) -> str | None:
        """From when on it must be read again; None from its beginning."""
        if not self._given and self._begin is None:
            return None
        second = max(self._floor, self._begin or 0)
        return dt.datetime.fromtimestamp(second, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def again(self) -> None:
        """What comes now was read from `since` on."""
        self.rest = b""
        self._resumed, self._met = bool(self._given), False
        self._at, self._skip = 0, None

    def fresh(self) -> None:
        """What comes now is another log of the same container, after this one."""
        self.rest = b""
        self._given = array("q")
        self._resumed, self._skip = False, None

    def feed(self, data: bytes) -> list[LogLine]:
        """The lines in `data` that were not given yet."""
        text, newline, self.rest = (self.rest + data).rpartition(b"\n")
        return self._many(text + newline)

    def last(self) -> list[LogLine]:
        """What is left to say at the log's end: a line without newline, lines that are missing."""
        made = self.feed(b"\n") if self.rest else []
        if self._resumed and not self._met and self._at < len(self._given):
            self._resumed = False
            made.append(self._event(f"{_ROTATED}; lines after the last one may be missing", None))
        return made

    # ---- inside

    def _many(self, text: bytes) -> list[LogLine]:
        """Whole lines, at little cost for each."""
        if self._skip is not None:
            return self._singly(text)
        made = self._of_one_second(text) or self._of_several(text)
        if made is None:
            return self._singly(text)
        times, datas = made
        if self._resumed:
            known = min(len(times), len(self._given) - self._at)
            if array("q", times[:known]) != self._given[self._at : self._at + known]:
                return self._singly(text)
            self._at += known
            if known == len(times):
                return []
            self._resumed = False
            times, datas = times[known:], datas[known:]
        if times:
            self._note(times)
        return _made(self.rank, self.attempt, datas, map(int.__truediv__, times, repeat(_NS)))

    def _of_one_second(self, text: bytes) -> tuple[list[int], list[bytes]] | None:
        """Times and contents, where all lines begin as the first does."""
        head, zone = text[:20], text[29:30]
        base = self._base(head, zone) if zone == b"Z" else None
        if base is None:
            return None
        parts = _line_of(head).split(text)
        if any(parts[::3]):
            return None
        return list(map(base.__add__, map(int, parts[1::3]))), parts[2::3]

    def _of_several(self, text: bytes) -> tuple[list[int], list[bytes]] | None:
        """Times and contents of lines that all have a time; None where one has not."""
        parts = _LINE.split(text)
        heads, fractions, zones, datas = parts[1::5], parts[2::5], parts[3::5], parts[4::5]
        if any(parts[::5]):  # words that are not a line of the container
            return None
        table = {pair: self._base(*pair) for pair in set(zip(heads, zones, strict=True))}
        if None in table.values():
            return None
        known = cast("dict[tuple[bytes, bytes], int]", table)
        times = [
            known[head, zone] + int(fraction)
            for head, fraction, zone in zip(heads, fractions, zones, strict=True)
        ]
        return times, datas

    def _singly(self, text: bytes) -> list[LogLine]:
        """Line by line: odd ones are looked at, and what was given is counted off by its times."""
        made: list[LogLine] = []
        if self._resumed and self._skip is None:
            self._skip = Counter(self._given[self._at :])
            self._met = not self._skip
        for match in _ANY.finditer(text):
            parts = match.groups(b"")
            when = self._when(parts)
            if when is None:
                stamp = _stamp(match[0][:-1])
                if stamp is None:
                    made.extend(self._unstamped(match[0][:-1]))
                    continue
                parts, when = stamp, self._when(stamp) or 0
            if self._skip is not None:
                if self._skip[when] > 0:
                    self._skip[when] -= 1
                    self._met |= when == self._given[-1]
                    continue
                made.extend(self._first_new(when))
            self._note([when])
            made.extend(_made(self.rank, self.attempt, (parts[3],), (when / _NS,)))
        return made

    def _when(self, parts: Sequence[bytes]) -> int | None:
        base = self._base(parts[0], parts[2]) if parts[0] else None
        return None if base is None else base + int(parts[1])

    def _first_new(self, when: int) -> list[LogLine]:
        """Told before the first line after a break that was not given before it."""
        self._resumed, self._skip = False, None
        if self._met:  # so nothing is missing between that line and this one
            return []
        return [self._event(f"{_ROTATED}; lines before the next one may be missing", when / _NS)]

    def _note(self, times: list[int]) -> None:
        self._given.extend(times)
        floor = max(times) // _NS - _MARGIN_S
        if floor > self._floor:
            self._floor = floor
            least = floor * _NS
            self._given = array("q", [when for when in self._given if when >= least])

    def _base(self, head: bytes, zone: bytes) -> int | None:
        """The nanoseconds since 1970 of a time without its fraction."""
        try:
            return self._bases[head, zone]
        except KeyError:
            pass
        base = _whole(head[:19], zone) if head[19:] == b"." else None
        if len(self._bases) > 8:
            self._bases.clear()
        self._bases[head, zone] = base
        return base

    def _unstamped(self, raw: bytes) -> list[LogLine]:
        """The kubelet's own words, once; not the end of a long line that was given before."""
        cut = self._resumed or (self._begin is not None and not self._given)
        if cut and not raw.startswith(_KUBELET):
            return []
        if raw.startswith(_GONE) and self._given:  # it was read before it was removed
            self._met = True
            return []
        if not raw or raw in self._said:
            return []
        self._said.add(raw)
        return [self._event(raw.decode("utf-8", "backslashreplace"), None)]

    def _event(self, words: str, time: float | None) -> LogLine:
        return said(words, rank=self.rank, attempt=self.attempt, time=time)


@lru_cache(maxsize=16)
def _line_of(head: bytes) -> re.Pattern[bytes]:
    """Lines of one second: it is one for all nodes at a time."""
    return re.compile(re.escape(head) + rb"(\d{9})Z (.*)\n")


def _whole(text: bytes, zone: bytes) -> int | None:
    try:
        whole = dt.datetime.fromisoformat((text + zone).decode("ascii", "replace"))
    except ValueError:
        return None
    return int(whole.timestamp()) * _NS


def _stamp(raw: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
    """The parts of a line of a runtime that writes fewer digits."""
    found = _OTHER.match(raw)
    if found is None:
        return None
    text, fraction, zone, data = found.groups()
    if _whole(text, zone) is None:
        return None
    return text + b".", (fraction or b"0").ljust(9, b"0"), zone, data
