"""Waiting that another thread can end: what lets `AsyncFabric` cancel a follower or a `wait`."""

import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["WaitingEnded", "pause", "stoppable", "undisturbed"]

_here = threading.local()


class WaitingEnded(BaseException):
    """Nobody wants the answer any more. No `Exception`, so that no backend takes it for a fault."""


def pause(seconds: float) -> None:
    """Sleeps; raises `WaitingEnded` as soon as whoever waits for this thread has given up."""
    stop: threading.Event | None = getattr(_here, "stop", None)
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise WaitingEnded


@contextmanager
def stoppable(stop: threading.Event | None) -> Generator[None]:
    """Lets `stop` end every `pause` of this thread within the block."""
    before: threading.Event | None = getattr(_here, "stop", None)
    _here.stop = stop
    try:
        yield
    finally:
        _here.stop = before


def undisturbed() -> AbstractContextManager[None]:
    """For what is to be done to its end, though nobody waits for it any more: ending something."""
    return stoppable(None)
