"""A port of a node as a port of this machine, for as long as a block runs."""

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from gpufabric.backends.base import Connection
from gpufabric.errors import ConfigError, GpuFabricError

__all__ = ["PortForward", "relay"]

_log = logging.getLogger(__name__)
_CHUNK = 64 * 1024
_NO_ROOM_MS = 100  # before a connection is taken that there was no descriptor or thread for


class PortForward:
    """Connections to `127.0.0.1:port` reach a port of a node, until the block ends.

    Any number at once. `error` is what last kept a connection from the node's port, such as that
    nothing listens there; None where all went well.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        node_rank: int,
        node_port: int,
        local_port: int = 0,
    ) -> None:
        """Made by `JobHandle.port_forward`."""
        self.node_rank = node_rank
        self.node_port = node_port
        self.error: GpuFabricError | None = None
        self._connect = connect
        self._listener = _listener(local_port)
        #: The port on 127.0.0.1.
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = os.pipe()  # readable once this is closed
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._begin(self._accept)

    def __repr__(self) -> str:
        return f"PortForward(127.0.0.1:{self.port} to port {self.node_port} of {self.node_rank})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every connection and thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.close(self._woken)
        while threads := self._running():
            for thread in threads:
                thread.join()
        self._listener.close()
        os.close(self._wake)

    def _running(self) -> tuple[threading.Thread, ...]:
        with self._lock:
            return tuple(self._threads)

    def _begin(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"gpufabric-port-{self.node_port}", daemon=True)
        with self._lock:  # so that nobody waits for one that has not started
            thread.start()
            self._threads.add(thread)

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._wake not in dict(poll.poll()):
            try:
                near, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):  # whoever it was has gone again
                continue
            except OSError as exc:
                self._no_room(exc)
                continue
            try:
                self._begin(partial(self._serve, near))
            except RuntimeError as exc:  # no thread can be started
                near.close()
                self._no_room(exc)

    def _no_room(self, exc: OSError | RuntimeError) -> None:
        _log.warning("port %d: a connection cannot be taken: %s", self.port, exc)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(_NO_ROOM_MS)

    def _serve(self, near: socket.socket) -> None:
        with near:
            try:
                far = self._connect()
            except GpuFabricError as exc:
                self._failed(exc)
                return
            try:
                relay(near, far.socket, self._wake)
                error = far.error  # asks the place
                if error is not None:
                    self._failed(error)
            finally:
                far.close()

    def _failed(self, error: GpuFabricError) -> None:
        self.error = error
        _log.warning("port %d: %s", self.port, error)


def _listener(port: int) -> socket.socket:
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as exc:
        raise ConfigError(
            f"port {port} of 127.0.0.1 cannot be had: {exc.strerror}; leave local_port out for a"
            " free one"
        ) from exc
    listener.setblocking(False)
    return listener


class _Way:
    """One direction: what was read of it and is not written yet."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.rest = b""
        self.ended = False

    def move(self, *, readable: bool) -> None:
        """Reads where there is something, and writes what can be."""
        if readable and not self.rest and not self.ended:
            self.rest = self.source.recv(_CHUNK)
            if not self.rest:
                self.ended = True
                self.target.shutdown(socket.SHUT_WR)
        if self.rest:
            self.rest = self.rest[self.target.send(self.rest) :]


def relay(near: socket.socket, far: socket.socket, wake: int) -> None:
    """Carries bytes both ways until both have ended, one is gone, or `wake` is readable."""
    near.setblocking(False)
    far.setblocking(False)
    there, back = _Way(near, far), _Way(far, near)
    while not (there.ended and back.ended):
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for way, other in ((there, back), (back, there)):
            events = select.POLLOUT if other.rest else 0
            if not way.rest and not way.ended:
                events |= select.POLLIN
            if events or way.ended:  # what has ended may still be told to be gone
                poll.register(way.source, events)
        ready = dict(poll.poll())
        if wake in ready:
            return
        for way in (there, back):
            seen = ready.get(way.source.fileno(), 0)
            if way.ended and seen & (select.POLLHUP | select.POLLERR):
                return
            try:
                way.move(readable=bool(seen & (select.POLLIN | select.POLLHUP | select.POLLERR)))
            except BlockingIOError:
                continue
            except OSError:  # reset by one of them
                return
