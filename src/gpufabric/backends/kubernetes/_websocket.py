"""The frames of a websocket, and a thread that carries channels between it and this process.

Kubernetes' channels: the first byte of each message names the channel.
https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/streaming/pkg/httpstream/wsstream/conn.go
"""

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping

__all__ = ["Carrier", "Frames", "frame"]

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_CHUNK = 64 * 1024
_AHEAD = 1 << 20  # what may wait on its way, for each direction
_LARGEST = 64 << 20  # a frame above this is no frame of a Kubernetes server
_READS = 16  # before what waits to be sent has its turn
_GONE_S = 0.5
_QUIET_S = 30.0  # load balancers end connections on which nothing moves


class BrokenFramesError(ValueError):
    """What came is no websocket."""


def frame(opcode: int, payload: bytes) -> bytes:
    """One message of a client: masked, whole."""
    # https://www.rfc-editor.org/rfc/rfc6455#section-5.2
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    key = os.urandom(4)
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "little")
    masked = int.from_bytes(payload, "little") ^ mask
    return head + key + masked.to_bytes(size, "little")


class Frames:
    """Bytes of a server in, whole messages out; what is in pieces is put together."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._opcode: int | None = None
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Opcode and payload of each message that is whole now. Raises `BrokenFramesError`."""
        self._rest += data
        while (taken := self._next()) is not None:
            final, opcode, payload = taken
            if opcode >= CLOSE:
                yield opcode, payload
                continue
            if (opcode == CONTINUED) != (self._opcode is not None):
                raise BrokenFramesError("a piece of a message without its beginning")
            if opcode != CONTINUED:
                self._opcode = opcode
            self._parts += payload
            if final:
                whole, kind = bytes(self._parts), self._opcode or BINARY
                self._opcode, self._parts = None, bytearray()
                yield kind, whole

    def _next(self) -> tuple[bool, int, bytes] | None:
        rest = self._rest
        if len(rest) < 2:
            return None
        first, second = rest[0], rest[1]
        if first & 0x70 or second & 0x80:
            raise BrokenFramesError(f"no websocket frame of a server: {bytes(rest[:8])!r}")
        size, at = second & 0x7F, 2
        if size == 126:
            at = 4
        elif size == 127:
            at = 10
        if len(rest) < at:
            return None
        if at > 2:
            size = int.from_bytes(rest[2:at], "big")
        if size > _LARGEST:
            raise BrokenFramesError(f"a frame of {size} bytes")
        if len(rest) < at + size:
            return None
        payload = bytes(rest[at : at + size])
        del rest[: at + size]
        return bool(first & 0x80), first & 0x0F, payload


class _Out:
    """What goes to one descriptor of this process, and waits while nobody reads there."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.waiting: deque[bytes] = deque()
        self.size = 0
        os.set_blocking(fd, False)

    def add(self, data: bytes) -> None:
        if self.fd is not None and data:
            self.waiting.append(data)
            self.size += len(data)

    def write(self) -> None:
        """Writes what can be. Where the reader has gone, the rest is for nobody."""
        while self.waiting and self.fd is not None:
            data = self.waiting[0]
            try:
                done = os.write(self.fd, data)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self.size -= done
            if done == len(data):
                self.waiting.popleft()
            else:
                self.waiting[0] = data[done:]

    def close(self) -> None:
        fd, self.fd = self.fd, None
        self.waiting.clear()
        self.size = 0
        if fd is not None:
            os.close(fd)


class Carrier:
    """Carries channels between a websocket and descriptors of this process, in its own thread.

    `source` is read and sent on channel 0; `on_end` gives the message that tells its end. `sinks`
    are written to, and closed when the websocket has ended; `decode` may take out what is not
    theirs. `on_message` takes what comes on any other channel, and says whether all is said.
    `linger_s` ends the conversation when nothing has come for so long after the source's end.
    """

    def __init__(  # noqa: PLR0913  # the parts of one conversation, by keyword
        self,
        sock: socket.socket,
        ahead: bytes,
        *,
        source: int | None,
        sinks: Mapping[int, int],
        on_message: Callable[[int, bytes], bool],
        on_end: Callable[[], bytes | None],
        encode: Callable[[bytes], bytes] = bytes,
        decode: Callable[[int, bytes], bytes] = lambda _, data: data,
        linger_s: float | None = None,
    ) -> None:
        """Takes over the socket and all descriptors; `start` begins."""
        self.error: Exception | None = None
        self.ended = threading.Event()
        self._sock = sock
        self._frames = Frames()
        self._ahead = ahead
        self._source = source
        self._outs = {channel: _Out(fd) for channel, fd in sinks.items()}
        self._on_message, self._on_end = on_message, on_end
        self._encode, self._decode = encode, decode
        self._linger_s = linger_s
        self._send = bytearray()
        self._deaf: OSError | None = None  # why the server hears nothing any more
        self._wake, self._woken = os.pipe()
        self._stop = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gpufabric-stream", daemon=True)
        sock.setblocking(False)
        if source is not None:
            os.set_blocking(source, False)

    def start(self) -> None:
        """Begins to carry."""
        self._thread.start()

    def close(self) -> None:
        """Ends the conversation, and gives when the thread is gone."""
        with self._lock:
            if not self.ended.is_set():
                self._stop = True
                os.write(self._woken, b"x")
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ---- the thread

    def _run(self) -> None:
        try:
            over = self._take(self._ahead)
            while not (over or self._stop):
                over = self._turn()
            if over:
                self._hand_over()
            self._say_goodbye()
        except (OSError, BrokenFramesError) as exc:
            self.error = exc
            self._hand_over()
        finally:
            self._finish()

    def _turn(self) -> bool:
        """Waits until something can move, and moves it; whether all is said."""
        for _ in range(_READS):  # first: a server that has said its last words hears no more
            over = self._receive() if self._room else None
            if over is None:
                break
            if over:
                return True
        self._transmit()
        if self._linger_s is not None and all(out.fd is None for out in self._outs.values()):
            return True  # nobody reads any more
        last = self._source is None and self._linger_s is not None
        ready = self._await(self._linger_s or 0 if last else _QUIET_S)
        if not ready:
            if last:
                return True
            self._send += frame(PING, b"")
        if self._source in ready:
            if self._linger_s is not None and ready[self._source] & select.POLLHUP:
                self._linger_s = _GONE_S  # both directions: nobody is there for an answer
            self._read_source()
        for out in self._outs.values():
            out.write()
        return False

    def _await(self, seconds: float) -> dict[int, int]:
        """What can move, as soon as anything can."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        events = (select.POLLIN if self._room else 0) | (select.POLLOUT if self._send else 0)
        if events:
            poll.register(self._sock, events)
        if self._source is not None and len(self._send) < _AHEAD and not self._deaf:
            poll.register(self._source, select.POLLIN)
        for out in self._outs.values():
            if out.fd is not None and out.waiting:
                poll.register(out.fd, select.POLLOUT)
        return dict(poll.poll(1000 * seconds))

    @property
    def _room(self) -> bool:
        return all(out.size < _AHEAD for out in self._outs.values())

    def _receive(self) -> bool | None:
        """Reads what has come; None where nothing has."""
        try:
            data = self._sock.recv(4 * _CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not data:
            raise self._deaf or ConnectionResetError("the connection was closed without a word")
        return self._take(data)

    def _take(self, data: bytes) -> bool:
        for opcode, payload in self._frames.feed(data):
            if opcode == CLOSE:
                return True
            if opcode == PING:
                self._send += frame(PONG, payload)
            elif opcode in {TEXT, BINARY} and payload:
                out = self._outs.get(payload[0])
                if out is not None:
                    out.add(self._decode(payload[0], payload[1:]))
                    out.write()
                elif self._on_message(payload[0], payload[1:]):
                    return True
        return False

    def _read_source(self) -> None:
        source = self._source
        if source is None:
            return
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._send += frame(BINARY, b"\0" + self._encode(data))
            return
        self._close_source()
        last = self._on_end()
        if last is not None:
            self._send += frame(BINARY, last)

    def _transmit(self) -> None:
        while self._send:
            try:
                done = self._sock.send(memoryview(self._send)[: 4 * _CHUNK].tobytes())
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as exc:  # what was said before is still to be read
                self._deaf = exc
                self._send.clear()
                self._close_source()
                return
            del self._send[:done]

    def _hand_over(self) -> None:
        """Gives what came last to those who still read."""
        while not self._stop:
            waiting = [out for out in self._outs.values() if out.waiting and out.fd is not None]
            if not waiting:
                return
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            for out in waiting:
                poll.register(out.fd or 0, select.POLLOUT)
            poll.poll()
            for out in waiting:
                out.write()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.send(frame(CLOSE, struct.pack("!H", 1000)))

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            os.close(source)

    def _finish(self) -> None:
        with self._lock:
            self.ended.set()
            self._close_source()
            for out in self._outs.values():
                out.close()
            with contextlib.suppress(OSError):
                self._sock.close()
            os.close(self._wake)
            os.close(self._woken)
