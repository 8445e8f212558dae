"""Answers that are read as they come, many at once, by one thread: logs and watches.

A thread for each of 256 followed logs costs more than a core. Here one thread waits for all
connections; requests that may block (a list, a connection to be made) are done by a few helpers,
which end with the `Loop` that they work for.
"""

import contextlib
import heapq
import itertools
import queue
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeVar

from gpufabric._pause import pause
from gpufabric.backends.kubernetes._answer import Answer
from gpufabric.errors import GpuFabricError

__all__ = ["Connection", "Loop", "Reader", "Stream"]

T = TypeVar("T")

_RECORD = 1 << 14  # as much as one TLS record holds
_TURN = 1 << 15  # of one stream, before the next has its turn: small enough for the caches
_WORDS = 1 << 20
_HELPERS = 16
_SLICE_S = 0.2  # so often it is looked whether anybody still waits
_LET_COME_S = 0.0002  # for each busy stream: many small reads cost more than few large ones
_MOST_LET_COME_S = 0.05
_JOIN_S = 1.0


class Connection(Protocol):
    """What a `Stream` reads from, and how its API tells what an answer means."""

    sock: socket.socket

    def close(self) -> None:
        """Ends it."""
        ...

    def refused(self, status: int, data: bytes, headers: Mapping[str, str]) -> GpuFabricError:
        """The error that an answer of 400 and more means."""
        ...

    def lost(self, why: str) -> GpuFabricError:
        """The error of an answer that broke off."""
        ...


class Stream:
    """One answer on its own connection. Never blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sock = connection.sock
        self._sock.setblocking(False)
        self._answer = Answer()
        self._words = b""
        self.begun = False  # its reader knows that it is granted
        self.over = False
        self.error: GpuFabricError | None = None
        self.more = False  # there may be bytes that the socket does not announce

    @property
    def status(self) -> int:
        """The answer's status; 0 while it has none."""
        return self._answer.status

    def fileno(self) -> int:
        """For a selector."""
        return self._sock.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def read(self) -> bytes:
        """What has come of the body. Then `over` and `error` say whether and how it ended."""
        parts, closed = self._received()
        data = b""
        try:
            for part in parts:
                data += self._answer.feed(part)
        except ValueError as exc:
            self._end(self._connection.lost(f"what came is no HTTP: {exc}"))
            return b""
        if self._answer.status >= 400:
            self._words += data[: _WORDS - len(self._words)]
            data = b""
        if self._answer.over or (closed is not None and self._answer.end()):
            self._end(None)
        elif closed is not None:
            self._end(self._connection.lost(closed))
        return data

    def _end(self, error: GpuFabricError | None) -> None:
        self.over, self.error = True, error
        if error is None and self._answer.status >= 400:
            headers = dict(self._answer.headers.items()) if self._answer.headers else {}
            self.error = self._connection.refused(self._answer.status, self._words, headers)

    def _received(self) -> tuple[list[bytes], str | None]:
        parts: list[bytes] = []
        size = 0
        self.more = False
        while size < _TURN:
            try:
                part = self._sock.recv(_RECORD)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                return self._joined(parts), None
            except OSError as exc:
                return self._joined(parts), str(exc) or type(exc).__name__
            if not part:
                return self._joined(parts), "the connection ended in the middle of an answer"
            parts.append(part)
            size += len(part)
        self.more = True
        return self._joined(parts), None

    @staticmethod
    def _joined(parts: list[bytes]) -> list[bytes]:
        return [b"".join(parts)] if len(parts) > 1 else parts


class Reader(Protocol):
    """Who is given what a stream brings, in the thread that calls `Loop.step`."""

    def began(self) -> None:
        """The request is granted; the body may still take its time."""
        ...

    def received(self, data: bytes) -> None:
        """Some more of the body."""
        ...

    def ended(self, error: GpuFabricError | None, status: int) -> None:
        """It is over: in order, or by an error. `status` is 0 where no answer came."""
        ...


class Loop:
    """Streams, timers, and requests that may block, for one thread that calls `step`."""

    def __init__(self) -> None:
        """Opens nothing but a way for its helpers to wake the one who waits."""
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._readers: dict[Stream, Reader] = {}
        self._more: list[Stream] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._helpers: list[threading.Thread] = []
        self._busy = 0
        self._asked_at = 0.0
        self._lock = threading.Lock()
        self.stopped = False

    # ---- from any thread

    def stop(self) -> None:
        """Lets the one who waits in `step` come back at once, and nothing begin any more."""
        self.stopped = True
        self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: nobody waits
            self._wake.send(b"x")

    # ---- from the thread of `step`

    def close(self) -> None:
        """Ends every connection and helper."""
        self.stop()
        for _ in self._helpers:
            self._asked.put(None)
        deadline = time.monotonic() + _JOIN_S
        for helper in self._helpers:  # one that waits for a dead server ends with its time-out
            helper.join(max(0.0, deadline - time.monotonic()))
        for stream in list(self._readers):
            self.drop(stream)
        try:
            while self._done:
                self._done.popleft()()
        finally:
            self._selector.close()
            self._woken.close()
            self._wake.close()

    def call(self, what: Callable[[], T], then: Callable[[T | GpuFabricError], None]) -> None:
        """Does what may block in a helper; `then` gets the result, or the error, in `step`."""

        def work() -> None:
            try:
                result: T | GpuFabricError = what()
            except GpuFabricError as exc:
                result = exc
            except BaseException as exc:  # noqa: BLE001  # raised where it can be seen
                self._done.append(partial(_raise, exc))
                return
            self._done.append(lambda: then(result))

        with self._lock:
            if self.stopped:
                return
            self._busy += 1
            if self._busy > len(self._helpers) < _HELPERS:
                helper = threading.Thread(target=self._help, name="gpufabric-watch", daemon=True)
                self._helpers.append(helper)
                helper.start()
        self._asked.put(work)

    def _help(self) -> None:
        while (work := self._asked.get()) is not None:
            if not self.stopped:
                work()
            with self._lock:
                self._busy -= 1
            self._rouse()

    def open(self, make: Callable[[], Stream], reader: Reader) -> None:
        """Opens a stream and has it read."""

        def opened(result: Stream | GpuFabricError) -> None:
            if isinstance(result, GpuFabricError):
                reader.ended(result, 0)
            elif self.stopped:
                result.close()
            else:
                self._readers[result] = reader
                self._selector.register(result, selectors.EVENT_READ, result)
                self._more.append(result)

        def made() -> Stream:
            stream = make()
            if self.stopped:  # nobody may be there any more to take it
                stream.close()
            return stream

        self.call(made, opened)

    def drop(self, stream: Stream) -> None:
        """Ends a stream, and tells nobody."""
        if self._readers.pop(stream, None) is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(stream)
        stream.close()

    def drop_reader(self, reader: Reader) -> None:
        """Ends the stream of a reader, and tells nobody."""
        for stream in [one for one, its in self._readers.items() if its is reader]:
            self.drop(stream)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Does something in `step` after a while."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), what))

    def step(self, timeout_s: float = _SLICE_S) -> Iterator[None]:
        """Waits until something comes, `timeout_s` at most, and hands it out: one yield each.

        Raises `WaitingEnded` where nobody wants it any more.
        """
        now = time.monotonic()
        if now - self._asked_at > _SLICE_S:
            self._asked_at = now
            pause(0)
        wait = min(timeout_s, _SLICE_S)
        if self._timers:
            wait = min(wait, self._timers[0][0] - time.monotonic())
        if self._more or self._done or self.stopped:
            wait = 0.0
        keys = self._selector.select(max(0.0, wait))
        ready = [key.data for key, _ in keys if key.data is not None]
        if len(ready) < len(keys):
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        ready = list(dict.fromkeys([*ready, *self._more]))
        self._more = []
        while self._done and not self.stopped:
            self._done.popleft()()
            yield
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now and not self.stopped:
            heapq.heappop(self._timers)[2]()
            yield
        for stream in ready:
            if not self.stopped:
                self._read(stream)
                yield
        if len(ready) > 8 and not self._more:
            time.sleep(min(len(ready) * _LET_COME_S, _MOST_LET_COME_S))

    def _read(self, stream: Stream) -> None:
        reader = self._readers.get(stream)
        if reader is None:
            return
        data = stream.read()
        if stream.more:
            self._more.append(stream)
        if not stream.begun and 0 < stream.status < 400:
            stream.begun = True
            reader.began()
        if data:
            reader.received(data)
        if stream.over and stream in self._readers:
            self.drop(stream)
            reader.ended(stream.error, stream.status)


def _raise(exc: BaseException) -> None:
    raise exc
