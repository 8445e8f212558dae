"""Logs of containers: lines with times; and synthetic ones, which cost nothing to keep.

A synthetic log is a function of time: line i was written at `begin + i / rate`, so that any number
of readers, at any time and from any `sinceTime`, sees the same lines. `Synthetic.line(i)` says what
a reader must have got.
"""

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from .errors import bad_request

_TICK_S = 0.02


def stamp(nanoseconds: int) -> bytes:
    """A time as the runtime writes it, nine digits after the point."""
    seconds, rest = divmod(nanoseconds, 10**9)
    head = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{head}.{rest:09d}Z".encode()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The part of a log that is asked for."""

    timestamps: bool = False
    follow: bool = False
    since: bytes = b""  # whole seconds, as the API server hands it on
    tail: int | None = None
    limit: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """Reads the query of a request."""
        since = ""
        if text := query.get("sinceTime"):
            try:
                moment = dt.datetime.fromisoformat(text).astimezone(dt.UTC)
            except ValueError as exc:
                raise bad_request(f"unable to parse sinceTime {text!r}") from exc
            since = moment.strftime("%Y-%m-%dT%H:%M:%S")
        elif text := query.get("sinceSeconds"):
            moment = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=int(text))
            since = moment.strftime("%Y-%m-%dT%H:%M:%S")

        def number(name: str) -> int | None:
            return int(query[name]) if query.get(name) else None

        return cls(
            timestamps=query.get("timestamps") == "true", follow=query.get("follow") == "true",
            since=since.encode(), tail=number("tailLines"), limit=number("limitBytes"),
        )  # fmt: skip


@dataclass(kw_only=True)
class Log:
    """What one run of a container has written."""

    lines: list[tuple[bytes, bytes]] = field(default_factory=list)
    closed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, text: bytes) -> None:
        """Takes a line, with its newline where it had one."""
        self.lines.append((stamp(time.time_ns()), text))
        self._wake()

    def close(self) -> None:
        """Nothing more comes."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def last(self, lines: int, most: int) -> str:
        """The end of it, as a termination message has it."""
        text = b"".join(text for _, text in self.lines[-lines:])
        return text[-most:].decode("utf-8", "replace")

    async def read(self, wanted: Wanted) -> AsyncIterator[bytes]:
        """The part that is asked for, in chunks."""
        start = 0
        if wanted.tail is not None:
            start = max(0, len(self.lines) - wanted.tail)
        given = 0
        while True:
            changed, end = self._changed, len(self.lines)
            chunk = b"".join(
                (when + b" " + text if wanted.timestamps else text)
                for when, text in self.lines[start:end]
                if when >= wanted.since
            )
            start = end
            if wanted.limit is not None:
                chunk = chunk[: max(0, wanted.limit - given)]
            given += len(chunk)
            if chunk:
                yield chunk
            if self.closed or not wanted.follow or wanted.limit == given:
                if start == len(self.lines):
                    return
                continue
            await changed.wait()


@dataclass(kw_only=True)
class Synthetic:
    """A log that is computed: `rate` lines a second for `seconds`, from `begin` on."""

    rate: int
    seconds: float
    text: bytes = b"step %d loss 1.2345 tokens/s 12345 lr 0.0003 grad_norm 0.98"
    begin: int = field(default_factory=time.time_ns)
    _made: dict[tuple[int, int, bool], bytes] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many lines there are in the end."""
        return int(self.rate * self.seconds)

    def line(self, number: int) -> bytes:
        """Line `number`, from 0, without its newline."""
        return self.text.replace(b"%d", b"%d" % number)

    def when(self, number: int) -> bytes:
        """When it was written."""
        return stamp(self.begin + number * 10**9 // self.rate)

    def written(self) -> int:
        """How many lines there are by now."""
        passed = (time.time_ns() - self.begin) * self.rate // 10**9
        return max(0, min(self.total, passed + 1))

    def chunk(self, start: int, end: int, *, timestamps: bool) -> bytes:
        """Lines as they are sent; made once for all readers of the same moment."""
        key = (start, end, timestamps)
        if key not in self._made:
            rows = range(start, end)
            if timestamps:
                made = b"".join(b"%s %s\n" % (self.when(n), self.line(n)) for n in rows)
            else:
                made = b"".join(b"%s\n" % self.line(n) for n in rows)
            if len(self._made) >= 256:
                self._made.clear()
            self._made[key] = made
        return self._made[key]

    async def read(self, wanted: Wanted) -> AsyncIterator[bytes]:
        """The part that is asked for, in chunks; followers wake at the same ticks."""
        at = 0
        if wanted.tail is not None:
            at = max(0, self.written() - wanted.tail)
        if wanted.since:
            moment = dt.datetime.fromisoformat(wanted.since.decode() + "+00:00")
            first = (int(moment.timestamp()) * 10**9 - self.begin) * self.rate
            at = max(at, -(-first // 10**9))
        tick = int(_TICK_S * self.rate) or 1
        while at < self.total:
            end = self.written()
            if wanted.follow and end < self.total:
                end -= end % tick  # so that all readers ask for the same chunks
            if end > at:
                while at < end:
                    upto = min(end, at - at % tick + tick)
                    yield self.chunk(at, upto, timestamps=wanted.timestamps)
                    at = upto
            elif wanted.follow:
                await asyncio.sleep(_TICK_S)
            if not wanted.follow:
                return
