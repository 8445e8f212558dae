"""Following the logs of all ranks in one thread, until the job has ended."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import time
from collections.abc import Iterator

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._events import Events, events_path
from gpufabric.backends.kubernetes._gangwatch import GangWatch
from gpufabric.backends.kubernetes._manifest import CONTAINER
from gpufabric.backends.kubernetes._objects import Found, path_of, pods_of, rank_of
from gpufabric.backends.kubernetes._podlog import PodLog, said
from gpufabric.backends.kubernetes._status import (
    attempt_of,
    has_ended,
    has_log,
    job_status,
    restarts_of,
)
from gpufabric.backends.kubernetes._streams import Loop, Stream
from gpufabric.backends.kubernetes._watch import Watch
from gpufabric.errors import CredentialsError, GpuFabricError, NotFoundError, TransientError
from gpufabric.job import JobRef, JobState, LogLine

__all__ = ["Follower"]

_QUIET_S = 300.0  # a connection that says nothing for so long is opened anew
_AGE_S = 5.0
_LOOK_S = 0.05  # so often at most the whole gang is looked at
_PAUSE_S = (0.1, 5.0)
_LAST_S = 20.0  # so long after the end it is tried to read what a node still has
_GONE_S = 5.0  # so long after the last word of a pod that was removed
_NOT_YET = ("waiting to start", "is terminated", "ContainerCreating", "PodInitializing")


class _Tail:
    """The log of one pod, followed over whatever breaks."""

    def __init__(self, follower: "Follower", pod: Json) -> None:
        meta = pod["metadata"]
        self.uid = str(meta["uid"])
        self.done = False
        self.waits_since: float | None = None  # nothing can be read now
        self.why: GpuFabricError | None = None
        self.heard = time.monotonic()
        self._follower = follower
        self._path = path_of("v1", "Pod", follower.namespace, str(meta["name"])) + "/log"
        self._log = PodLog(rank_of(pod), attempt_of(pod), follower.since)
        self._pause = _PAUSE_S[0]
        self._reading = False
        self._final = False
        self._refused = 0
        self._rest: bytes | None = None
        self._restarts = restarts_of(pod)
        self._previous = False
        self._whole = False  # the last reading came to an end
        self.open()

    @property
    def rank(self) -> int:
        """The node's rank."""
        return self._log.rank

    def open(self) -> None:
        """Reads on from the last line: to its end where the container has ended, else for ever."""
        pod = self._follower.pod(self.uid)
        if self._reading or self.done:
            return
        if pod is None and self._follower.serves:  # the next pod of that rank has the same name
            self._gone()
            return
        self._final = pod is None or has_ended(pod)
        query = {"container": CONTAINER, "timestamps": "true"}
        restarts = self._restarts if pod is None else restarts_of(pod)
        self._previous = restarts > self._restarts
        if self._previous:  # the container's last life, before what it says in this one
            query["previous"] = "true"
            self._final = True
        elif not self._final:
            query["follow"] = "true"
        if self._log.since is not None:
            query["sinceTime"] = self._log.since
        self._log.again()
        self._reading = True
        self.heard = time.monotonic()
        self._follower.loop.open(lambda: self._opened(query), self)

    def _opened(self, query: dict[str, str]) -> Stream:
        """The pod of what serves has the name of the one before it: its log is another."""
        api, path = self._follower.api, self._path
        if self._follower.serves:
            pod = api.get(path.removesuffix("/log"))
            if pod["metadata"]["uid"] != self.uid:
                raise NotFoundError("replaced", backend=api.backend, operation=f"GET {path}")
        return api.open(path, query)

    def began(self) -> None:
        """There is a log."""

    def received(self, data: bytes) -> None:
        """Takes some more of the log."""
        self.heard = time.monotonic()
        lines = self._log.feed(data)
        if lines:
            self._pause = _PAUSE_S[0]
            self._follower.out.extend(lines)

    def ended(self, error: GpuFabricError | None, status: int) -> None:
        """Decides whether there is more to read."""
        self._reading = False
        pod = self._follower.pod(self.uid)
        if status not in {401, 403}:
            self._refused = 0
        if error is None:
            self._whole, self.waits_since, self.why = True, None, None
            self._in_order(pod)
        elif isinstance(error, TransientError):
            self._wait(error, pod)
        elif isinstance(error, NotFoundError):
            if pod is None or (self._final and not self._previous):
                self._gone()
            else:
                self._skip_life(pod)
                self._wait(error, pod)
        elif status in {401, 403}:
            self._renew(error)
        elif any(words in str(error) for words in _NOT_YET) or pod is None:
            self._skip_life(pod)
            self._wait(error, pod)
        else:
            self._follower.error = error

    def _in_order(self, pod: Json | None) -> None:
        """A reading that ended as it should: of a follower, because the container has."""
        if self._previous:
            self._skip_life(pod)
            self.open()
        elif not self._final:
            if pod is None:
                self._finish()
            elif has_ended(pod):
                self.open()
            else:  # or the connection to the node broke: that looks the same
                self._later()
        elif self._log.rest and self._log.rest != self._rest:
            self._rest = self._log.rest  # no newline: half a line, or the log's own end?
            self.open()
        else:
            self._follower.out.extend(self._log.last())
            self._finish()

    def _skip_life(self, pod: Json | None) -> None:
        if self._previous and pod is not None:
            self._restarts = restarts_of(pod)
            self._log.fresh()
            self._previous = False

    def _wait(self, error: GpuFabricError, pod: Json | None) -> None:
        self._whole, self.why = False, error
        if pod is None:
            self._gone()
            return
        if self.waits_since is None:
            self.waits_since = time.monotonic()
        self._later()

    def _later(self) -> None:
        self._follower.loop.later(self._pause, self.open)
        self._pause = min(self._pause * 2, _PAUSE_S[1])

    def _renew(self, error: GpuFabricError) -> None:
        """Asks for the pod, which renews credentials; raises where that does not help."""
        self._refused += 1
        if self._refused > 2:
            self._follower.error = error
            return

        def renewed(result: Json | GpuFabricError) -> None:
            if isinstance(result, CredentialsError):
                self._follower.error = result
            else:
                self._later()

        path = self._path.removesuffix("/log")
        self._follower.loop.call(lambda: self._follower.api.get(path), renewed)

    def anew(self) -> None:
        """Opens a connection anew that has said nothing for long: it may be dead."""
        if self._reading:
            self._follower.loop.drop_reader(self)
            self._reading = False
            self.open()

    def _gone(self) -> None:
        """The log cannot be read any more."""
        if self._whole:
            self._finish()
        else:
            why = f": {self.why}" if self.why is not None else ""
            self.give_up(f"its pod was removed before its log was read to the end{why}")

    def _finish(self) -> None:
        self.done = True
        self._follower.touched = True

    def give_up(self, words: str) -> None:
        """Stops reading, and says so."""
        self._follower.loop.drop_reader(self)
        self.done = self._follower.touched = True
        self._follower.out.append(
            said(f"gpufabric: {words}", rank=self.rank, attempt=self._log.attempt)
        )


class Follower:
    """The lines of a job as they are written."""

    def __init__(  # noqa: PLR0913  # which lines of which job
        self,
        api: Api,
        namespace: str,
        ref: JobRef,
        *,
        jobsets: bool,
        serves: bool = False,
        node_rank: int | None = None,
        since: float | None = None,
    ) -> None:
        """Begins to read. `lines` must be gone through to its end, or closed.

        What is older than the second of `since` is not read.
        """
        self.api = api
        self.namespace = namespace
        self.since = since
        self.serves = serves
        self.loop = Loop()
        self.out: list[LogLine] = []
        self.error: GpuFabricError | None = None
        self.touched = True  # something has changed that must be looked at
        self._ref = ref
        self._rank = node_rank
        self._tails: dict[str, _Tail] = {}
        self._told = Events(ref.name)
        self._end: JobState | None = None
        self._over_since: float | None = None
        self._looked = 0.0
        self._uid: str | None = None  # of the owner: another one of this name is another job
        self._gang = GangWatch(
            self.loop, api, namespace, ref.name, jobsets=jobsets, serves=serves,
            changed=self._touch,
        )  # fmt: skip
        self._events = Watch(
            self.loop, api, events_path(namespace), changed=self._touch, keep=self._told.concerns
        )
        self.loop.later(_QUIET_S / 4, self._nudge)
        self.loop.later(_AGE_S, self._age)

    def lines(self) -> Iterator[LogLine]:
        """Each line once, until the job has ended and all is read."""
        try:
            while not self.loop.stopped:
                for _ in self.loop.step():
                    yield from self._taken()
                now = time.monotonic()
                if self.touched and now - self._looked >= _LOOK_S:
                    self._looked = now
                    self._look()
                    yield from self._taken()
                    continue
                if self.error is not None:
                    raise self.error
                unseen = self.touched or self.out  # such as the last events
                if self._over_since is not None and not unseen and self._all_read(now):
                    return
        finally:
            self.loop.close()

    def pod(self, uid: str) -> Json | None:
        """A pod as it is known; None where it was removed."""
        return self._gang.pod(uid)

    # ---- inside

    def _taken(self) -> list[LogLine]:
        out, self.out = self.out, []
        return out

    def _touch(self) -> None:
        self.touched = True

    def _look(self) -> None:
        self.touched = False
        if self._gang.error is not None:
            self.error = self._gang.error
            return
        if not self._gang.synced:
            return
        found, pods = self._gang.found(), self._gang.pods()
        state = self._state(found, pods)
        if found is not None and state is not JobState.GONE:  # what is there is of this job
            self._take(pods)
            self._told.know(found.owner, pods)
            if self._events.synced:
                ranks = None if self._rank is None else [self._rank]
                self.out.extend(self._told.lines(self._events.objects.values(), ranks))
        if state.ended and self._end is None:
            self._end = state
            self._list_once_more()
        elif not state.ended:
            self._end = self._over_since = None

    def _state(self, found: Found | None, pods: list[Json]) -> JobState:
        if found is None:
            return JobState.GONE
        uid = str(found.owner["metadata"]["uid"])
        self._uid = self._uid or uid
        if uid != self._uid:
            return JobState.GONE
        return job_status(self._ref, found, pods, now=time.time()).state

    def _take(self, pods: list[Json]) -> None:
        for pod in pods:
            uid = str(pod["metadata"]["uid"])
            if uid in self._tails:
                if has_ended(pod) and self._tails[uid].waits_since is None:
                    self._tails[uid].open()  # unless it is being read
            elif self._rank in {None, rank_of(pod)} and has_log(pod):
                self._tails[uid] = _Tail(self, pod)

    def _list_once_more(self) -> None:
        """What ran while nobody watched has a log too."""

        def took(result: list[Json] | GpuFabricError) -> None:
            if isinstance(result, TransientError):
                self.loop.later(1.0, self._list_once_more)
                return
            if isinstance(result, GpuFabricError):
                self.error = result
                return
            if self._end is not JobState.GONE:
                self._gang.learn(result)
                self._take(result)
            self._over_since = time.monotonic()

        self.loop.call(lambda: pods_of(self.api, self.namespace, self._ref.name), took)

    def _all_read(self, now: float) -> bool:
        since = self._over_since or now
        late = now - since > _LAST_S
        for tail in self._tails.values():
            if tail.done:
                continue
            if self.pod(tail.uid) is None and now - max(tail.heard, since) > _GONE_S:
                tail.give_up("its pod is gone, and its log was not read to the end")
            elif tail.waits_since is not None:
                if late and now - tail.waits_since > _LAST_S:
                    tail.give_up(f"its log could not be read to the end: {tail.why}")
            elif now - max(tail.heard, since) > _LAST_S:  # as of a node whose power is gone
                tail.give_up(
                    "the job has ended, and its log says nothing more: not read to its end"
                )
        if not (self._events.synced or self._events.error or late):
            return False
        return all(tail.done for tail in self._tails.values()) and not self.out

    def _age(self) -> None:
        """That a node is lost is told by time alone: nothing changes then."""
        self.touched = True
        self.loop.later(_AGE_S, self._age)

    def _nudge(self) -> None:
        now = time.monotonic()
        for tail in self._tails.values():
            if not tail.done and now - tail.heard > _QUIET_S:
                tail.anew()
        self.loop.later(_QUIET_S / 4, self._nudge)
