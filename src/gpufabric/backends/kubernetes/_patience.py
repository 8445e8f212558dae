"""How long an operation bears an API server that fails, and when a request is made again."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpufabric.backends.kubernetes._errors import BusyError
from gpufabric.errors import TransientError

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = ["RETRY_S", "Patience", "again"]

T = TypeVar("T")
RETRY_S = 20.0
"""Longer than an API server, or etcd behind it, takes to be started again."""


class Patience:
    """One operation's: `seconds` from the first failure of several in a row.

    Once it is worn out every further request is made once, so that an operation of many requests
    against a server that fails for good ends as soon as one of a single request. An answer
    renews it.
    """

    def __init__(self, seconds: float = RETRY_S) -> None:
        """Nothing has failed yet."""
        self._seconds = seconds
        self._since: float | None = None

    def again(self, call: Callable[[], T]) -> T:
        """Makes a request, and makes it again where it failed for a reason that may pass."""
        import tenacity

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            stop=self._worn_out,
            wait=self._pause,
            reraise=True,
        )
        answer = retrying(call)
        self._since = None
        return answer

    def _pause(self, state: "RetryCallState") -> float:
        """A little more each time; as long as the server asks, where patience lasts so long."""
        import tenacity

        usual = tenacity.wait_random_exponential(multiplier=0.1, max=2)(state)
        failed = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(failed, BusyError):
            return usual
        since = self._since if self._since is not None else time.monotonic()
        left = since + self._seconds - time.monotonic()
        return max(usual, min(failed.retry_after_s, left))

    def _worn_out(self, state: "RetryCallState") -> bool:  # noqa: ARG002  # tenacity's signature
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since >= self._seconds


def again(call: Callable[[], T]) -> T:
    """Makes a single request, with a patience of its own."""
    return Patience().again(call)
