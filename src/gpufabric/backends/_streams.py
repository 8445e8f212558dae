"""Talks with a command that runs somewhere else, over pipes: all in, all out, and its exit code."""

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from gpufabric._pause import pause
from gpufabric.backends.base import Command

__all__ = ["communicate", "pieces"]

_CHUNK = 64 * 1024
_LOOK_S = 0.1  # how soon a wait ends that nobody awaits any more


def pieces(data: bytes | BinaryIO | Iterator[bytes]) -> Iterator[bytes]:
    """What is to be sent, in pieces; none is empty."""
    read = cast("Callable[[int], bytes] | None", getattr(data, "read", None))
    if isinstance(data, bytes):
        for at in range(0, len(data), _CHUNK):
            yield data[at : at + _CHUNK]
    elif read is not None:  # a file; as an iterator it would give lines
        while part := read(_CHUNK):
            yield part
    else:
        waiting = bytearray()
        for part in data:
            waiting += part
            if len(waiting) >= _CHUNK:
                yield bytes(waiting)
                waiting.clear()
        if waiting:
            yield bytes(waiting)


def communicate(
    command: Command,
    data: bytes | BinaryIO | Iterator[bytes] = b"",
    *,
    timeout_s: float | None = None,
) -> tuple[int, bytes, bytes]:
    """Sends all of `data`, and gives exit code, standard output and standard error.

    Raises `TimeoutError` after `timeout_s`, and what ended the connection.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    taken: dict[int, bytearray] = {
        command.stdout.fileno(): bytearray(), command.stderr.fileno(): bytearray(),
    }  # fmt: skip
    out, err = taken.values()
    source, part = pieces(data), b""
    if not command.stdin.closed:
        os.set_blocking(command.stdin.fileno(), False)
    poll = select.poll()
    for fd in taken:
        poll.register(fd, select.POLLIN)
    while taken:
        if not command.stdin.closed and not (part := part or next(source, b"")):
            command.stdin.close()
        if part:
            poll.register(command.stdin.fileno(), select.POLLOUT)
        left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
        if left <= 0:
            raise TimeoutError
        for fd, _ in poll.poll(left * 1000):
            if fd in taken:
                got = os.read(fd, _CHUNK)
                taken[fd] += got
                if not got:
                    poll.unregister(fd)
                    del taken[fd]
            else:
                poll.unregister(fd)
                part = _written(command.stdin, part)
        pause(0)
    return (
        command.wait(None if until is None else max(0.0, until - time.monotonic())),
        bytes(out),
        bytes(err),
    )


def _written(stdin: BinaryIO, part: bytes) -> bytes:
    """What of `part` is still to be written; nothing where the command has stopped reading."""
    try:
        return part[os.write(stdin.fileno(), part) :]
    except BlockingIOError:
        return part
    except OSError:  # its end says why
        with contextlib.suppress(OSError):
            stdin.close()
        return b""
