"""What the nodes of a gang have written so far, rank by rank, with the cluster's words about them.

Following them is in `_follow.py`, and reading one log without loss in `_podlog.py`.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from gpufabric._pause import pause
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._manifest import CONTAINER
from gpufabric.backends.kubernetes._objects import path_of, rank_of
from gpufabric.backends.kubernetes._podlog import PodLog
from gpufabric.backends.kubernetes._status import attempt_of, has_log
from gpufabric.backends.kubernetes._streams import Loop
from gpufabric.errors import CredentialsError, GpuFabricError, NotFoundError, TransientError
from gpufabric.job import LogLine

__all__ = ["read"]

_QUIET_S = 60.0
_TRIES = 4
_PAUSE_S = 0.2


def read(
    api: Api,
    namespace: str,
    pods: Sequence[Json],
    events: Iterable[LogLine] = (),
    *,
    since: float | None = None,
) -> Iterator[LogLine]:
    """What pods have written so far, rank by rank; `events` are put where their time is.

    What is older than the second of `since` is not read.
    """
    waiting = deque(sorted(events, key=lambda line: (line.node_rank, line.time or 0.0)))
    loop = Loop()
    try:
        for pod in sorted(pods, key=lambda pod: (rank_of(pod), attempt_of(pod))):
            rank = rank_of(pod)
            while waiting and waiting[0].node_rank < rank:
                yield waiting.popleft()
            if not has_log(pod):
                continue
            with contextlib.suppress(NotFoundError):  # removed meanwhile, and its log with it
                for line in _Reading(loop, api, namespace, pod, since).lines():
                    while waiting and waiting[0].node_rank == rank and _is_later(line, waiting[0]):
                        yield waiting.popleft()
                    yield line
        yield from waiting
    finally:
        loop.close()


def _is_later(line: LogLine, event: LogLine) -> bool:
    return line.time is not None and event.time is not None and line.time > event.time


class _Reading:
    """One pod's log up to now, over connections that break."""

    def __init__(
        self, loop: Loop, api: Api, namespace: str, pod: Json, since: float | None
    ) -> None:
        self._loop = loop
        self._api = api
        self._path = path_of("v1", "Pod", namespace, str(pod["metadata"]["name"])) + "/log"
        self._log = PodLog(rank_of(pod), attempt_of(pod), since)
        self._lines: list[LogLine] = []
        self._over = False
        self._error: GpuFabricError | None = None
        self._heard = 0.0

    def lines(self) -> Iterator[LogLine]:
        """Each line once."""
        refused = False
        for number in range(_TRIES):
            yield from self._once()
            if isinstance(self._error, CredentialsError) and not refused:
                refused = True
                self._api.get(self._path.removesuffix("/log"))  # renews them, or raises
            elif not isinstance(self._error, TransientError):
                break
            if number + 1 < _TRIES:
                pause(_PAUSE_S * 2**number)
        if self._error is not None:
            raise self._error
        yield from self._log.last()

    def _once(self) -> Iterator[LogLine]:
        query = {"container": CONTAINER, "timestamps": "true"}
        if self._log.since is not None:
            query["sinceTime"] = self._log.since
        self._log.again()
        self._over, self._error, self._heard = False, None, time.monotonic()
        self._loop.open(lambda: self._api.open(self._path, query), self)
        while not self._over:
            for _ in self._loop.step():
                lines, self._lines = self._lines, []
                yield from lines
            if time.monotonic() - self._heard > _QUIET_S:
                self._loop.drop_reader(self)
                self._error = TransientError(
                    f"the log stopped for {_QUIET_S:g} s", backend=self._api.backend,
                    operation=f"GET {self._path}",
                )  # fmt: skip
                return
        lines, self._lines = self._lines, []
        yield from lines

    def began(self) -> None:
        """There is a log."""

    def received(self, data: bytes) -> None:
        """Takes some more of it."""
        self._heard = time.monotonic()
        self._lines.extend(self._log.feed(data))

    def ended(self, error: GpuFabricError | None, status: int) -> None:  # noqa: ARG002  # a Reader
        """All is read, or it broke."""
        self._over, self._error = True, error
