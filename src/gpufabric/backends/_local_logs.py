"""Reads what the supervisor recorded of every node: lines, live or after the end."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from pathlib import Path

from gpufabric._pause import pause
from gpufabric.backends import _supervisor as supervisor
from gpufabric.job import LogLine

__all__ = ["last_lines", "read_lines"]

_READ_BYTES = 256 * 1024
_PAUSE_LEAST_S, _PAUSE_MOST_S = 0.002, 0.05
_TAIL_LINES, _TAIL_BYTES = 20, 64 * 1024
_HEAD, _END = supervisor.RECORD, supervisor.RECORD_END
_FRAME = _HEAD.size + _END.size


class _NodeLog:
    """The lines of one node, attempt after attempt, as far as they are written."""

    def __init__(self, job: Path, node_rank: int, since: float | None) -> None:
        self._folder = job / "nodes" / str(node_rank)
        self._rank = node_rank
        self._since = since
        self._attempt = 0
        self._fd = -1
        self._rest = b""
        self._open_lines: dict[int, tuple[list[bytes], float]] = {}

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            self._fd = os.open(self._folder / str(self._attempt) / "log", os.O_RDONLY)
        except FileNotFoundError:
            return False
        return True

    def more(self) -> list[LogLine]:
        """The lines of the next piece; empty where nothing is written beyond what was read."""
        if self._fd < 0 and not self._open():
            return []
        while True:
            piece = os.read(self._fd, _READ_BYTES)
            if piece:
                lines = self._parse(self._rest + piece if self._rest else piece)
                if lines:
                    return lines
                continue
            if not (self._folder / str(self._attempt + 1) / "log").exists():
                return []
            # The next attempt starts when this one is written to the end; look once more.
            piece = os.read(self._fd, _READ_BYTES)
            if piece:
                lines = self._parse(self._rest + piece)
            else:
                lines = self.finish()
                self.close()
                self._attempt += 1
                self._open()
            if lines:
                return lines

    def finish(self) -> list[LogLine]:
        """The last lines, which have no newline, and what a torn record still tells."""
        lines: list[LogLine] = []
        if len(self._rest) > _HEAD.size:
            magic, stream, _, length, when = _HEAD.unpack_from(self._rest)
            if magic == supervisor.RECORD_MAGIC:
                self._split(lines, stream, self._rest[_HEAD.size : _HEAD.size + length], when)
        self._rest = b""
        for stream, (parts, when) in sorted(self._open_lines.items()):
            self._give(lines, stream, b"".join(parts), when)
        self._open_lines.clear()
        return lines

    def _parse(self, data: bytes) -> list[LogLine]:
        lines: list[LogLine] = []
        at, size = 0, len(data)
        while size - at >= _FRAME:
            _, stream, _, length, when = _HEAD.unpack_from(data, at)
            if size - at < _FRAME + length:
                break
            begin = at + _HEAD.size
            self._split(lines, stream, data[begin : begin + length], when)
            at += _FRAME + length
        self._rest = data[at:]
        return lines

    def _split(self, lines: list[LogLine], stream: int, data: bytes, when: float) -> None:
        parts = data.split(b"\n")
        last = parts.pop()
        begun = self._open_lines.get(stream)
        if begun is not None and parts:
            begun[0].append(parts[0])
            parts[0] = b"".join(begun[0])
            del self._open_lines[stream]
            begun = None
        if last:
            if begun is None:
                self._open_lines[stream] = ([last], when)
            else:
                begun[0].append(last)
        if self._since is not None and when < self._since:
            return
        name, rank, attempt = supervisor.STREAMS[stream], self._rank, self._attempt
        lines += [
            LogLine(node_rank=rank, data=part, stream=name, attempt=attempt, time=when)
            for part in parts
        ]

    def _give(self, lines: list[LogLine], stream: int, data: bytes, when: float) -> None:
        if self._since is None or when >= self._since:
            name = supervisor.STREAMS[stream]
            lines.append(
                LogLine(
                    node_rank=self._rank, data=data, stream=name, attempt=self._attempt, time=when
                )
            )


def read_lines(
    job: Path,
    ranks: list[int],
    *,
    since: float | None,
    ended: Callable[[], bool],
    follow: bool,
) -> Iterator[LogLine]:
    """Gives the lines of `ranks`: per node in order, nodes by the time of what they wrote.

    `follow` goes on until `ended` says that the job has ended and all is read.
    """
    logs = [_NodeLog(job, rank, since) for rank in ranks]
    rest = _PAUSE_LEAST_S
    try:
        while True:
            over = not follow or ended()
            if over:
                yield from _merged(logs)
                return
            found = False
            for log in logs:
                lines = log.more()
                found = found or bool(lines)
                yield from lines
            rest = _PAUSE_LEAST_S if found else min(rest * 1.5, _PAUSE_MOST_S)
            if not found:
                pause(rest)
    finally:
        for log in logs:
            log.close()


def _merged(logs: list[_NodeLog]) -> Iterator[LogLine]:
    """All that is written, nodes by time; the lines of one node up to another's at once."""
    pieces = [_pieces(log) for log in logs]
    heads: list[tuple[float, int, list[LogLine]]] = []
    for i, piece in enumerate(pieces):
        lines = next(piece, None)
        if lines:
            heappush(heads, (_when(lines[0]), i, lines))
    while heads:
        _, i, lines = heappop(heads)
        cut = bisect_right(lines, heads[0][0], lo=1, key=_when) if heads else len(lines)
        yield from lines[:cut]
        rest: list[LogLine] | None = lines[cut:] or next(pieces[i], None)
        if rest:
            heappush(heads, (_when(rest[0]), i, rest))


def _when(line: LogLine) -> float:
    return line.time or 0.0


def _pieces(log: _NodeLog) -> Iterator[list[LogLine]]:
    while lines := log.more():
        yield lines
    if lines := log.finish():
        yield lines


def last_lines(job: Path, node_rank: int, attempt: int) -> tuple[str, ...]:
    """The last lines that a node wrote, read from the end of its log."""
    try:
        with (job / "nodes" / str(node_rank) / str(attempt) / "log").open("rb") as file:
            at = file.seek(0, os.SEEK_END)
            chunks: list[tuple[int, bytes]] = []
            total = 0
            while at >= _FRAME and total < _TAIL_BYTES:
                file.seek(at - _END.size)
                (length,) = _END.unpack(file.read(_END.size))
                at -= _FRAME + length
                if at < 0:
                    break
                file.seek(at)
                magic, stream, _, size, _ = _HEAD.unpack(file.read(_HEAD.size))
                if magic != supervisor.RECORD_MAGIC or size != length:
                    break
                keep = min(length, _TAIL_BYTES)
                file.seek(length - keep, os.SEEK_CUR)
                chunks.append((stream, file.read(keep)))
                total += keep
    except FileNotFoundError:
        return ()
    return tuple(line.text for line in _tail_lines(chunks[::-1], node_rank)[-_TAIL_LINES:])


def _tail_lines(chunks: list[tuple[int, bytes]], node_rank: int) -> list[LogLine]:
    lines: list[LogLine] = []
    open_lines: dict[int, bytes] = {}
    for stream, data in chunks:
        *whole, last = (open_lines.pop(stream, b"") + data).split(b"\n")
        lines += [LogLine(node_rank=node_rank, data=part) for part in whole]
        if last:
            open_lines[stream] = last
    lines += [LogLine(node_rank=node_rank, data=part) for _, part in sorted(open_lines.items())]
    return lines
