"""The lines of one pod's log, from its bytes: none lost and none doubled, however often it breaks.

Every line carries the time at which the container runtime took it. After a break the log is read
again from a second before the last line, and what was given already is counted off by its times.
"""

import datetime as dt
import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from gpufabric.job import LogLine

__all__ = ["PodLog", "said"]

# With nine digits the kubelet of every version that is supported writes it.
_FRACTION = re.compile(rb"\d{9}(Z|[+-]\d\d:\d\d) ")
_OTHER = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_YEARS = 2262  # 64 bits of nanoseconds end in it
_HEAD = slice(0, 20)  # of a line: its time but for the fraction of a second
_NS = 1_000_000_000
#: So much earlier a line may be stamped than one before it: a container's two streams are read by
#: two threads of the runtime, and written in the order in which these come to it.
_MARGIN_S = 1
_GONE = b"unable to retrieve container logs"
_ROTATED = "gpufabric: the log was rotated while it was not read"
_KUBELET = (_GONE, b"failed to ", b"rpc error")


# One line costs what a core can give to it: at 256 nodes and 1,000 lines a second 4 us, of which
# attrs' own __init__ of a frozen class takes 1.
class _Open(LogLine):
    """A line that is being made. Then its class says that it is frozen: nothing else changes."""

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__
    node_rank: int
    data: bytes
    stream: str
    attempt: int
    time: float | None


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
        self._floor = 0  # the second that it is read again from
        #: In the order of the log, the lines since then: a second, and nine digits for each line.
        self._given: deque[tuple[int, bytearray]] = deque()
        self._resumed = False  # nothing new has come since it was read again
        self._known = array("q")  # the times of the lines that may come again, in their order
        self._at = 0  # so many of them have come again
        self._skip: Counter[int] | None = None  # those still to come, where their order is another
        self._met = False  # the last of them has come
        self._said: set[bytes] = set()

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
        self._known = array("q")
        for second, digits in self._given:
            if second >= self._floor:
                at = range(0, len(digits), 9)
                self._known.extend([second * _NS + int(digits[i : i + 9]) for i in at])
        self._resumed, self._met = bool(self._known), False
        self._at, self._skip = 0, None

    def fresh(self) -> None:
        """What comes now is another log of the same container, after this one."""
        self.rest = b""
        self._given.clear()
        self._resumed, self._skip = False, None

    def feed(self, data: bytes) -> list[LogLine]:
        """The lines in `data` that were not given yet."""
        text, newline, self.rest = (self.rest + data).rpartition(b"\n")
        made: list[LogLine] = []
        for head, tails in _runs(text) if newline else ():
            made += self._run(head, tails)
        return made

    def last(self) -> list[LogLine]:
        """What is left to say at the log's end: a line without newline, lines that are missing."""
        made = self.feed(b"\n") if self.rest else []
        if self._resumed and not self._met and self._at < len(self._known):
            self._resumed = False
            made.append(self._event(f"{_ROTATED}; lines after the last one may be missing", None))
        return made

    # ---- inside

    def _run(self, head: bytes, tails: list[bytes]) -> list[LogLine]:
        """Lines of one second, at little cost for each: all begin with `head`."""
        first = _FRACTION.match(tails[0])
        second = None if first is None else _second(head, first[1])
        if first is None or second is None or self._skip is not None:
            return self._singly(head, tails)
        width = first.end()
        fractions = [tail[:9] for tail in tails]
        digits = b"".join(fractions)
        odd = {tail[9:width] for tail in tails} != {first[0][9:]}
        if odd or not digits.isdigit():
            return self._singly(head, tails)
        if self._resumed:
            times = array("q", [second * _NS + int(part) for part in fractions])
            known = min(len(times), len(self._known) - self._at)
            if times[:known] != self._known[self._at : self._at + known]:
                return self._singly(head, tails)
            self._at += known
            if known == len(times):
                return []
            self._resumed = False
            fractions, tails, digits = fractions[known:], tails[known:], digits[9 * known :]
        self._note(second, digits)
        return self._made(second, fractions, [tail[width:] for tail in tails])

    def _made(self, second: int, fractions: list[bytes], datas: list[bytes]) -> list[LogLine]:
        lines: list[LogLine] = []
        rank, attempt, new, add = self.rank, self.attempt, _Open.__new__, lines.append
        for fraction, data in zip(fractions, datas, strict=True):
            line = new(_Open)
            line.node_rank = rank
            line.data = data
            line.stream = "stdout"
            line.attempt = attempt
            line.time = second + int(fraction) / _NS
            line.__class__ = LogLine  # type: ignore[assignment]  # its base, of the same layout
            add(line)
        return lines

    def _singly(self, head: bytes, tails: list[bytes]) -> list[LogLine]:
        """Line by line: odd ones are looked at, and what was given is counted off by its times."""
        made: list[LogLine] = []
        if self._resumed and self._skip is None:
            self._skip = Counter(self._known[self._at :])
            self._met = not self._skip
        for line in (head + tail for tail in tails):
            stamp = _OTHER.match(line)
            second = None if stamp is None else _second(stamp[1] + b".", stamp[3])
            if stamp is None or second is None:
                made.extend(self._unstamped(line))
                continue
            digits = (stamp[2] or b"").ljust(9, b"0")
            if self._skip is not None:
                when = second * _NS + int(digits)
                if self._skip[when] > 0:
                    self._skip[when] -= 1
                    self._met |= when == self._known[-1]
                    continue
                made.extend(self._first_new(when / _NS))
            self._note(second, digits)
            made.extend(self._made(second, [digits], [line[stamp.end() :]]))
        return made

    def _first_new(self, time: float) -> list[LogLine]:
        """Told before the first line after a break that was not given before it."""
        self._resumed, self._skip = False, None
        if self._met:  # so nothing is missing between that line and this one
            return []
        return [self._event(f"{_ROTATED}; lines before the next one may be missing", time)]

    def _note(self, second: int, digits: bytes) -> None:
        if self._given and self._given[-1][0] == second:
            self._given[-1][1].extend(digits)
            return
        self._given.append((second, bytearray(digits)))
        self._floor = max(self._floor, second - _MARGIN_S)
        while len(self._given) > 1 and self._given[0][0] < self._floor:
            self._given.popleft()

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


def _runs(text: bytes) -> Iterable[tuple[bytes, list[bytes]]]:
    """Lines, but for the newline of the last, by how they begin: mostly that is one second."""
    head = text[_HEAD]
    tails = (b"\n" + text).split(b"\n" + head)
    if len(tails) == text.count(b"\n") + 2:
        return [(head, tails[1:])]
    groups = groupby(text.split(b"\n"), key=itemgetter(_HEAD))
    return ((head, [line[len(head) :] for line in group]) for head, group in groups)


@lru_cache(maxsize=64)
def _second(head: bytes, zone: bytes) -> int | None:
    """The seconds since 1970 of a time without its fraction; None for what is no time."""
    try:
        whole = dt.datetime.fromisoformat((head[:19] + zone).decode("ascii"))
    except ValueError:  # UnicodeDecodeError too
        return None
    good = head[19:] == b"." and whole.year < _YEARS
    return int(whole.timestamp()) if good else None
