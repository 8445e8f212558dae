"""Asking several places at once, each within a time limit; one that fails spoils no other."""

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping
from typing import TypeVar

from gpufabric.errors import ConfigError, GpuFabricError

__all__ = ["ask_all", "bug", "words_of"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


def bug(exc: Exception) -> str:
    """Gives the words for an error that is none of ours: a plug-in's own."""
    return f"{type(exc).__name__}: {exc}"


def words_of(place: str, said: object) -> str:
    """What a place said, without its own name: who prints it tells the name first."""
    return str(said).removeprefix(f"{place}: ").removeprefix(f"{place} ")


def ask_all(
    calls: Mapping[str, Callable[[], T]], *, limit_s: float, here: Container[str] = ()
) -> dict[str, T | GpuFabricError]:
    """Makes all calls, each in a thread unless its name is in `here`; an error is its answer.

    The thread of a call that never comes back is left to end with the process.
    """
    answers: dict[str, T | GpuFabricError] = {}

    def ask(name: str, call: Callable[[], T]) -> None:
        try:
            answers[name] = call()
        except GpuFabricError as exc:
            answers[name] = exc
        except Exception as exc:  # noqa: BLE001  # a plug-in's bug must not spoil the others
            _log.debug("%s failed", name, exc_info=True)
            answers[name] = ConfigError(bug(exc))

    threads: list[threading.Thread] = []
    for name, call in calls.items():
        if name in here:
            ask(name, call)
            continue
        thread = threading.Thread(
            target=ask, args=(name, call), name=f"gpufabric-{name}", daemon=True
        )
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = ConfigError(f"no answer within {limit_s:g} s (setting discover_timeout_s)")
    return {name: answers.get(name, late) for name in calls}
