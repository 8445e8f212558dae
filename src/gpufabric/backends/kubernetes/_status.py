"""The state of a job, from its objects alone."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence

from gpufabric._frozen import evolve
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._manifest import ATTEMPT_LABEL, CONTAINER
from gpufabric.backends.kubernetes._objects import Found, rank_of
from gpufabric.job import JobRef, JobState, JobStatus, NodeStatus

__all__ = [
    "attempt_of",
    "disruption_of",
    "failed_container",
    "first_failed",
    "has_ended",
    "has_log",
    "job_status",
    "last_words",
    "node_state",
    "restarts_of",
    "seconds",
    "terminated_of",
]

#: The runtime's words are the message; of other ends it is the end of the log.
_RUNTIMES = {"StartError", "ContainerCannotRun", "ContainerStatusUnknown"}
_OVERDUE_S = 10.0
_STARTED = (JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def seconds(text: object) -> float | None:
    """A time of Kubernetes (RFC 3339) in seconds since 1970."""
    if not text:
        return None
    return dt.datetime.fromisoformat(str(text)).timestamp()


def attempt_of(one: Json) -> int:
    """How often the gang had started again when this object was made."""
    return int((one["metadata"].get("labels") or {}).get(ATTEMPT_LABEL, 0))


def _container(pod: Json) -> Json:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if one.get("name") == CONTAINER:
            return dict(one)
    return {}


def terminated_of(pod: Json) -> Json | None:
    """How the job's container ended, None while it has not."""
    state = _container(pod).get("state") or {}
    return state.get("terminated")


def disruption_of(pod: Json) -> str:
    """What the cluster says of a pod that it stopped itself; nothing where it did not.

    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    one = _disruption(pod)
    return ": ".join(str(one[key]) for key in ("reason", "message") if one.get(key))


def _disruption(pod: Json) -> Json:
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return dict(one)
    return {}


def restarts_of(pod: Json) -> int:
    """How often the kubelet has started the job's container again, which `Never` forbids it."""
    return int(_container(pod).get("restartCount") or 0)


def has_log(pod: Json) -> bool:
    """Whether the job's container has begun, so that there may be lines of it."""
    state = node_state(pod)
    return state.started_at is not None and state.state in {
        JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST
    }  # fmt: skip


def has_ended(pod: Json) -> bool:
    """Whether the job's container writes no more."""
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return True
    for_ever = (pod.get("spec") or {}).get("restartPolicy", "Never") != "Never"
    return terminated_of(pod) is not None and not for_ever


def failed_container(pod: Json) -> str:
    """The container whose log tells why a pod failed: one before the job's, or the job's."""
    if terminated_of(pod) is None:
        for name, _ in _failed_before(pod):
            return name
    return CONTAINER


def last_words(pod: Json) -> tuple[str, ...]:
    """The end of the container's log as the cluster keeps it with its exit code.

    At most 2048 bytes or 80 lines, of a container that failed (`FallbackToLogsOnError`).
    https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
    """
    return tuple(str((terminated_of(pod) or {}).get("message") or "").splitlines())


def node_state(pod: Json) -> NodeStatus:
    """A node of the gang by its pod."""
    status = pod.get("status") or {}
    ended = terminated_of(pod)
    phase = status.get("phase")
    state, reason, code = JobState.PENDING, "", None
    if ended is not None or phase in {"Succeeded", "Failed"}:
        code = ended.get("exitCode") if ended else None
        state = JobState.SUCCEEDED if phase == "Succeeded" or code == 0 else JobState.FAILED
        if state is JobState.FAILED and _with_the_gang(pod, ended):
            state, reason = JobState.CANCELLED, "stopped with the gang"
        elif state is JobState.FAILED:
            reason = _why_failed(pod, ended)
    elif "running" in (_container(pod).get("state") or {}):
        state, reason = JobState.RUNNING, disruption_of(pod) or _why_again(pod)
    elif pod["spec"].get("nodeName"):
        state, reason = JobState.STARTING, _why_waiting(pod)
    else:
        for one in status.get("conditions") or ():
            if one.get("type") == "PodScheduled" and one.get("status") == "False":
                reason = str(one.get("message") or one.get("reason") or "")
    running = (_container(pod).get("state") or {}).get("running") or {}
    return NodeStatus(
        node_rank=rank_of(pod),
        state=state,
        exit_code=code,
        reason=reason,
        host=pod["spec"].get("nodeName"),
        started_at=seconds((ended or running).get("startedAt")),
        ended_at=seconds(ended.get("finishedAt")) if ended else None,
    )


def _why_again(pod: Json) -> str:
    """How a container ended that was started again in its pod: one of a gang that serves."""
    last = (_container(pod).get("lastState") or {}).get("terminated")
    return f"{_exit(last)}, and all nodes start again" if last else ""


def _with_the_gang(pod: Json, ended: Json | None) -> bool:
    """Whether a pod was told to stop before it ended: it is not the one that failed first.

    The controller deletes the others when one has failed; that one itself it lets be.
    """
    meta = pod["metadata"]
    limit = seconds(meta.get("deletionTimestamp"))
    finished = seconds((ended or {}).get("finishedAt"))
    if limit is None or disruption_of(pod):
        return False
    asked = limit - float(meta.get("deletionGracePeriodSeconds") or 0)
    return finished is None or finished >= asked


def _why_failed(pod: Json, ended: Json | None) -> str:
    """The cluster's own words."""
    status, stopped = pod.get("status") or {}, disruption_of(pod)
    said = [stopped] if stopped else []
    said += [str(status[key]) for key in ("reason", "message") if status.get(key)]
    if ended is not None:
        said.append(_exit(ended))
    elif not said:
        said += [f"{name}: {_exit(one)}" for name, one in _failed_before(pod)]
    return ": ".join(said) or "failed"


def _exit(ended: Json) -> str:
    code, word = ended.get("exitCode"), ended.get("reason")
    if word in {None, "Error"}:
        return f"exit code {code}"
    words = " ".join(str(ended.get("message") or "").split()) if word in _RUNTIMES else ""
    return f"exit code {code} ({word}{': ' if words else ''}{words})"


def _before(pod: Json) -> Iterator[tuple[str, Json]]:
    """The containers that start before the job's: names and states."""
    for one in (pod.get("status") or {}).get("initContainerStatuses") or ():
        yield str(one.get("name")), dict(one.get("state") or {})


def _failed_before(pod: Json) -> Iterator[tuple[str, Json]]:
    for name, state in _before(pod):
        ended = state.get("terminated") or {}
        if ended.get("exitCode"):
            yield name, ended


def _why_waiting(pod: Json) -> str:
    """Why the job's container has not started: by its own state, or of one before it."""
    waiting = (_container(pod).get("state") or {}).get("waiting") or {}
    told = [("", waiting)]
    if waiting.get("reason") in {None, "PodInitializing"}:
        early = [(f"{name}: ", state.get("waiting") or {}) for name, state in _before(pod)]
        told = [
            one for one in early if one[1].get("reason") not in {None, "PodInitializing"}
        ] + told
    name, state = told[0]
    words = ": ".join(str(w) for w in (state.get("reason"), state.get("message")) if w)
    return f"{name}{words}" if words else ""


def job_status(
    ref: JobRef,
    found: Found,
    pods: Sequence[Json],
    tail: Sequence[str] = (),
    *,
    now: float | None = None,
) -> JobStatus:
    """The job by its objects. `tail` is of the node that failed first.

    With the time as `now`, a pod that should have been removed long ago tells a lost node.
    """
    attempt = max([attempt_of(pod) for pod in pods] + [attempt_of(found.job or found.owner)])
    by_rank = {rank_of(pod): pod for pod in pods if attempt_of(pod) == attempt}
    seen = {rank: node_state(pod) for rank, pod in by_rank.items()}
    state, reason = _end(found, pods)
    if state is None and _is_lost(found, by_rank.values(), now):
        state, reason = JobState.FAILED, ""
    if state is None:
        state, reason = _running(found, list(seen.values()))
    nodes = tuple(
        _node(rank, seen.get(rank), by_rank.get(rank), state) for rank in range(found.num_nodes)
    )
    first = first_failed(nodes) if state is JobState.FAILED else None
    code = 0 if state is JobState.SUCCEEDED else None
    if first is not None:
        code = first.exit_code
        reason = f"node {first.node_rank}: {first.reason}"
    starts = [node.started_at for node in nodes if node.started_at is not None]
    condition = found.condition("Complete", "Completed", "Failed") if state.ended else None
    return JobStatus(
        ref=ref,
        state=state,
        nodes=nodes,
        attempt=attempt,
        exit_code=code,
        reason=reason,
        tail=tuple(tail) if first is not None else (),
        started_at=min(starts, default=None),
        ended_at=seconds(condition.get("lastTransitionTime")) if condition else None,
    )


def first_failed(nodes: Sequence[NodeStatus]) -> NodeStatus | None:
    """The node that failed, or was lost, first."""
    failed = [n for n in nodes if n.state in {JobState.FAILED, JobState.LOST}]
    return min(failed, key=lambda n: (n.ended_at or float("inf"), n.node_rank), default=None)


def _end(found: Found, pods: Sequence[Json]) -> tuple[JobState | None, str]:
    if found.condition("Complete", "Completed"):
        return JobState.SUCCEEDED, ""
    failed = found.condition("Failed")
    if failed is not None and found.kind == "JobSet":
        ended = [
            one
            for one in (found.owner.get("status") or {}).get("conditions") or ()
            if one.get("type") == "Failed" and one.get("status") == "True"
        ]
        if not ended and found.cancelled is None:
            return None, ""  # the JobSet has not yet said whether it starts again
    if failed is not None:
        words = str(failed.get("message") or failed.get("reason") or "")
        late = failed.get("reason") == "DeadlineExceeded"
        return (JobState.TIMED_OUT if late else JobState.FAILED), words
    if found.cancelled is not None:
        counted = (found.job or {}).get("status") or {}
        left = pods if found.serves else counted.get("active") or counted.get("terminating")
        if not left:
            return JobState.CANCELLED, f"cancelled at {found.cancelled}"
    return None, ""


def _is_lost(found: Found, pods: Iterable[Json], now: float | None) -> bool:
    """Whether the gang has failed, and the Job does not say so since a lost node's pod stays.

    The Job controller says that it fails (`FailureTarget`), and `Failed` only once no pod is left;
    the pod of a node that is gone stays until someone removes the node. A JobSet starts again
    only after that, so with restarts left it is not over.
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#termination-of-job-pods
    """
    if now is None or _condition(found.job, "FailureTarget") is None or _restarts_left(found):
        return False
    there = [pod for pod in pods if not node_state(pod).state.ended]
    return bool(there) and all(disruption_of(pod) and _is_overdue(pod, now) for pod in there)


def _is_overdue(pod: Json, now: float) -> bool:
    due = seconds(pod["metadata"].get("deletionTimestamp"))  # its grace is in it
    return due is not None and now > due + _OVERDUE_S


def _restarts_left(found: Found) -> bool:
    most = ((found.owner.get("spec") or {}).get("failurePolicy") or {}).get("maxRestarts") or 0
    return int(most) > int((found.owner.get("status") or {}).get("restarts") or 0)


def _condition(one: Json | None, kind: str) -> Json | None:
    for condition in ((one or {}).get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            return dict(condition)
    return None


def _running(found: Found, seen: Sequence[NodeStatus]) -> tuple[JobState, str]:
    waits = "; ".join(dict.fromkeys(node.reason for node in seen if node.reason))
    if any(node.state in _STARTED for node in seen):
        stops = [f"node {n.node_rank}: {n.reason}" for n in seen
                 if n.reason and (found.serves or n.state is JobState.RUNNING)]  # fmt: skip
        return JobState.RUNNING, "; ".join(stops)
    failing = _condition(found.job, "FailureTarget") or _condition(found.job, "Failed")
    if failing is not None and not seen:  # its pods are gone, and its owner has not judged yet
        return JobState.RUNNING, str(failing.get("message") or "")
    if any(node.state is JobState.STARTING for node in seen):
        return JobState.STARTING, waits
    if not seen:
        queued = found.condition("Suspended")
        waits = str((queued or {}).get("message") or "")
    return JobState.PENDING, waits


def _node(rank: int, seen: NodeStatus | None, pod: Json | None, gang: JobState) -> NodeStatus:
    if seen is not None and (seen.state.ended or not gang.ended):
        return seen
    if seen is not None and pod is not None and (words := disruption_of(pod)):
        at = seconds(_disruption(pod).get("lastTransitionTime"))
        return evolve(seen, state=JobState.LOST, reason=words, ended_at=at)  # nobody tells its end
    if not gang.ended:
        return NodeStatus(node_rank=rank, state=JobState.PENDING)
    end = {JobState.SUCCEEDED: JobState.SUCCEEDED, JobState.TIMED_OUT: JobState.TIMED_OUT}
    state = end.get(gang, JobState.CANCELLED)
    reason = "" if state is JobState.SUCCEEDED else "stopped with the gang, its pod is gone"
    return NodeStatus(node_rank=rank, state=state, reason=reason)
