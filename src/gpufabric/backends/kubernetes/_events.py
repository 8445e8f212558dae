"""The cluster's own words about a gang, as lines of its log: each once, without what is routine."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Iterable, Mapping, Sequence

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._manifest import REPLICA
from gpufabric.backends.kubernetes._objects import Found, rank_of
from gpufabric.backends.kubernetes._podlog import said
from gpufabric.backends.kubernetes._serve import told
from gpufabric.backends.kubernetes._status import seconds
from gpufabric.errors import CredentialsError, TransientError
from gpufabric.job import GANG, LogLine

__all__ = [
    "WOULD_FIT",
    "Events",
    "events_path",
    "listed",
    "why_no_pods",
    "why_restarted",
    "why_stopped",
]

#: What every gang that goes well says, and what this library does itself.
_ROUTINE = {
    "AllGroupsReady", "AllJobsCompleted", "Completed", "Created", "CreatedWorkload",
    "CreatingRevision", "FinishedWorkload", "GroupsProgressing", "ResumeJobs", "Resumed",
    "Scheduled", "Started", "SuccessfulCreate", "SuccessfulDelete", "Suspended", "SuspendedJobs",
}  # fmt: skip
#: Of a pod that the cluster stops: the scheduler, the kubelet, the controller of lost nodes.
_STOPS = {"Preempted", "Evicted", "TaintManagerEviction"}
_AFTER_ALL = "Cancelling deletion"
_HERE_ALREADY = "already present on machine"
#: Volcano counts an event of its PodGroup up every second, also of one that is just placed; its
#: pods' events tell the same once, and of a pod that would fit each node that it could go to.
#: RecordJobStatusEvent, pkg/scheduler/cache/cache.go of volcano.sh/volcano, ed72c7c81
_VOLCANO = "scheduling.volcano.sh/"
WOULD_FIT = "minAvailable is satisfied"


def events_path(namespace: str) -> str:
    """Where the events of a namespace are."""
    return f"/api/v1/namespaces/{namespace}/events"


def listed(api: Api, namespace: str) -> list[Json]:
    """The events of a namespace; none where they may not be listed."""
    try:
        return list(api.items(events_path(namespace)))
    except CredentialsError:
        return []


def why_no_pods(api: Api, namespace: str, found: Found) -> str:
    """What the one that should make a gang's pods said last; nothing where nobody may ask."""
    maker = (found.job or found.owner)["metadata"]
    field = f"name={maker['name']}" if found.serves else f"uid={maker['uid']}"  # it has a maker too
    query = {"fieldSelector": f"involvedObject.{field}"}
    try:
        events = list(api.items(events_path(namespace), query))
    except (CredentialsError, TransientError):
        return ""
    warnings = [one for one in events if one.get("type") == "Warning"]
    last = max(warnings, key=lambda one: _time(one) or 0.0, default=None)
    return "" if last is None else _words(last, _count(last))


def why_restarted(api: Api, namespace: str, found: Found) -> str:
    """How often what serves has started again; nothing where nobody may ask."""
    meta = found.owner["metadata"]
    query = {"fieldSelector": f"involvedObject.uid={meta['uid']}"}
    try:
        return told(str(meta["name"]), api.items(events_path(namespace), query))
    except (CredentialsError, TransientError):
        return ""


def why_stopped(api: Api, namespace: str, found: Found) -> str:
    """What stopped a pod that is gone, by the events; nothing where nobody may ask."""
    known = Events(str(found.owner["metadata"]["name"]))
    known.know(found.owner, ())
    try:
        events = [one for one in api.items(events_path(namespace)) if _stops(one)]
    except (CredentialsError, TransientError):
        return ""
    lines = known.lines(events)
    return f"node {lines[-1].node_rank}: {lines[-1].text}" if lines else ""


def _stops(event: Json) -> bool:
    return event.get("reason") in _STOPS and _AFTER_ALL not in str(event.get("message"))


class Events:
    """Tells the events of one job, each number of its count once."""

    def __init__(self, name: str) -> None:
        """Of the job with this name."""
        job = re.escape(name)
        self._name = name
        #: Job and JobSet name pods JOB-RANK-SUFFIX, JobSet its job NAME-REPLICATED-0,
        #: and Kueue its workload KIND-NAME-SUFFIX. LeaderWorkerSet names node 0, and what makes
        #: the others, NAME-0, and those NAME-0-RANK.
        self._pod = re.compile(
            rf"{job}(?:-{REPLICA}-0)?-(?P<rank>\d+)-[a-z0-9]{{5}}|{job}-0(?:-(?P<worker>\d{{1,4}}))?"
        )
        self._other = re.compile(rf"{job}(?:-{REPLICA}-0|-0)?|(?:job|jobset)-{job}-[a-z0-9]{{5}}")
        self._told: set[tuple[str, int]] = set()
        self._since = 0.0
        self._ranks: dict[str, int] = {}

    def know(self, owner: Json, pods: Sequence[Json]) -> None:
        """Learns when the job began, and whose pods there are."""
        self._since = seconds(owner["metadata"].get("creationTimestamp")) or 0.0
        self._ranks |= {str(pod["metadata"]["uid"]): rank_of(pod) for pod in pods}

    def concerns(self, event: Json) -> bool:
        """Whether it is, by its names, of this job, and not routine."""
        return self._rank(event) is not None and not _routine(event)

    def lines(self, events: Iterable[Json], ranks: Iterable[int] | None = None) -> list[LogLine]:
        """What was not told yet, by time. `ranks` are those wanted, all by default."""
        wanted = None if ranks is None else set(ranks)
        made: list[LogLine] = []
        for event in events:
            rank = self._rank(event)
            if rank is None or _routine(event) or (wanted is not None and rank not in wanted):
                continue
            when, count = _time(event), _count(event)
            if when is not None and when < self._since - 1.0:  # of a job of this name before
                continue
            key = (str(event["metadata"].get("uid")), count)
            if key not in self._told:
                self._told.add(key)
                made.append(said(_words(event, count), rank=rank, time=when))
        return sorted(made, key=lambda line: line.time or 0.0)

    def _rank(self, event: Json) -> int | None:
        about: Mapping[str, object] = event.get("involvedObject") or {}
        name = str(about.get("name") or "")
        if about.get("kind") == "Pod":
            known = self._ranks.get(str(about.get("uid")))
            found = self._pod.fullmatch(name)
            if known is not None or found is None:
                return known
            return int(found["rank"] or found["worker"] or 0)
        return GANG if self._other.fullmatch(name) else None


def _routine(event: Json) -> bool:
    about: Mapping[str, object] = event.get("involvedObject") or {}
    if str(about.get("apiVersion")).startswith(_VOLCANO):
        return True
    if event.get("type") != "Normal":
        return str(event.get("message")).endswith(WOULD_FIT)
    reason = event.get("reason")
    return reason in _ROUTINE or (
        reason == "Pulled" and _HERE_ALREADY in str(event.get("message") or "")
    )


def _time(event: Json) -> float | None:
    series = event.get("series") or {}
    for text in (
        series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"),
        event.get("firstTimestamp"), event["metadata"].get("creationTimestamp"),
    ):  # fmt: skip
        if text:
            return seconds(text)
    return None


def _count(event: Json) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def _words(event: Json, count: int) -> str:
    times = f" ({count} times)" if count > 1 else ""
    message = " ".join(str(event.get("message") or "").split())
    return f"{event.get('reason')}: {message}{times}"
