"""Log lines of all ranks, merged; followed over broken connections, none lost and none doubled.

Every line carries the time at which the container runtime took it. After a break the log is read
again from the second of the last line, and what was given already is counted off.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._manifest import CONTAINER
from gpufabric.backends.kubernetes._objects import path_of, rank_of
from gpufabric.backends.kubernetes._status import attempt_of, node_state, seconds
from gpufabric.errors import GpuFabricError, NotFoundError, TransientError
from gpufabric.job import JobState, LogLine

__all__ = ["PodLog", "follow", "read"]

_QUIET_S = 300.0  # a connection that says nothing for so long is opened anew
_LOOK_S = 0.5
_ROOM = 10_000
_GONE = b"unable to retrieve container logs"


class PodLog:
    """The log of one pod, from where it was last read."""

    def __init__(self, api: Api, namespace: str, pod: Json) -> None:
        self.uid = str(pod["metadata"]["uid"])
        self._api = api
        self._rank = rank_of(pod)
        self._attempt = attempt_of(pod)
        name = str(pod["metadata"]["name"])
        self.path = path_of("v1", "Pod", namespace, name) + "/log"
        self._last = ""
        self._given: Counter[str] = Counter()  # times of the lines of the last second

    def lines(
        self, *, follow: bool, on_open: Callable[[Callable[[], None]], None] | None = None
    ) -> Iterator[LogLine]:
        """The lines that were not given yet."""
        query = {"container": CONTAINER, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._last:
            query["sinceTime"] = self._last + "Z"
        skip = Counter(self._given)
        for raw in self._api.lines(
            self.path, query, read_timeout_s=_QUIET_S if follow else 60.0, on_open=on_open
        ):
            stamp, _, data = raw.partition(b" ")
            when = stamp.decode("ascii", "replace")
            at = seconds_of(when)
            if at is None:  # the kubelet's own words
                if raw.startswith(_GONE) and self._last:  # it was read before it was removed
                    continue
                yield LogLine(node_rank=self._rank, data=raw, stream="event", attempt=self._attempt)
                continue
            if skip[when] > 0:
                skip[when] -= 1
                continue
            if when[:19] > self._last:  # streams of one container are not in order of time
                self._last = when[:19]
                self._given = Counter(
                    {t: n for t, n in self._given.items() if t[:19] >= self._last}
                )
            self._given[when] += 1
            yield LogLine(node_rank=self._rank, data=data, attempt=self._attempt, time=at)


def seconds_of(stamp: str) -> float | None:
    """A log's time in seconds since 1970, None where it is none."""
    if len(stamp) < 20 or stamp[4] != "-":
        return None
    head, dot, tail = stamp.rstrip("Z").partition(".")
    try:
        whole = seconds(head + "+00:00")
        return None if whole is None else whole + (float(f"0.{tail}") if dot else 0.0)
    except ValueError:
        return None


def read(api: Api, namespace: str, pods: Sequence[Json]) -> Iterator[LogLine]:
    """What pods have written so far, rank by rank."""
    for pod in sorted(pods, key=lambda pod: (rank_of(pod), attempt_of(pod))):
        if _has_log(pod):
            with contextlib.suppress(NotFoundError):  # removed meanwhile, and its log with it
                yield from PodLog(api, namespace, pod).lines(follow=False)


def _has_log(pod: Json) -> bool:
    state = node_state(pod)
    return state.state is JobState.RUNNING or (state.state.ended and state.started_at is not None)


class _Followed:
    """The threads that read, and the way from them to the one that gives."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.lines: queue.Queue[LogLine] = queue.Queue(_ROOM)
        self.stop = threading.Event()
        self.ended = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._aborts: dict[str, Callable[[], None]] = {}
        self.errors: list[GpuFabricError] = []

    def add(self, pod: Json) -> None:
        """Begins to read a pod's log, once."""
        uid = str(pod["metadata"]["uid"])
        if uid not in self._threads:
            thread = threading.Thread(
                target=self._read, args=(PodLog(self.api, self.namespace, pod),),
                name=f"gpufabric-log-{rank_of(pod)}", daemon=True,
            )  # fmt: skip
            self._threads[uid] = thread
            thread.start()

    @property
    def reading(self) -> bool:
        """Whether a log is still read."""
        return any(thread.is_alive() for thread in self._threads.values())

    def close(self) -> None:
        """Ends every thread."""
        self.stop.set()
        while self.reading:
            for abort in tuple(self._aborts.values()):
                abort()
            with contextlib.suppress(queue.Empty):
                while True:
                    self.lines.get_nowait()
            for thread in self._threads.values():
                thread.join(0.05)

    def _read(self, log: PodLog) -> None:
        pause = 0.1
        while not self.stop.is_set():
            try:
                for line in log.lines(follow=True, on_open=lambda a: self._opened(log.uid, a)):
                    self._put(line)
                    pause = 0.1
                if self._over(log):
                    return
            except NotFoundError:
                return
            except TransientError:
                pass
            except GpuFabricError as exc:
                if "waiting to start" not in str(exc):
                    self.errors.append(exc)
                    return
            self.stop.wait(pause)
            pause = min(pause * 2, 5.0)

    def _opened(self, uid: str, abort: Callable[[], None]) -> None:
        self._aborts[uid] = abort
        if self.stop.is_set():
            abort()

    def _put(self, line: LogLine) -> None:
        while not self.stop.is_set():
            try:
                self.lines.put(line, timeout=0.2)
            except queue.Full:
                continue
            return

    def _over(self, log: PodLog) -> bool:
        """Whether the stream ended because the container did, and not the connection."""
        path = log.path.removesuffix("/log")
        try:
            pod = self.api.get(path)
        except NotFoundError:
            return True
        if str(pod["metadata"]["uid"]) != log.uid:
            return True
        if not node_state(pod).state.ended:
            return False
        for line in log.lines(follow=False):  # what was written after the stream broke
            self._put(line)
        return True


def follow(
    api: Api, namespace: str, pods: Callable[[], Sequence[Json]], ended: Callable[[], bool]
) -> Iterator[LogLine]:
    """The lines of all pods as they are written, until the job has ended."""
    mine = _Followed(api, namespace)
    try:
        looked = 0.0
        over = False
        while True:
            try:
                yield mine.lines.get(timeout=0.05)
                if time.monotonic() - looked < _LOOK_S:
                    continue
            except queue.Empty:
                if mine.errors:
                    raise mine.errors[0] from None
                if over and not mine.reading and mine.lines.empty():
                    return
            if time.monotonic() - looked < _LOOK_S or over:
                continue
            looked = time.monotonic()
            try:
                over = ended()  # before the pods: what started meanwhile is then seen
                for pod in pods():
                    if _has_log(pod):
                        mine.add(pod)
            except TransientError:
                over = False
    finally:
        mine.close()
