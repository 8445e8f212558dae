"""Watching a gang until it is whole, or it is plain why it will not be."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
import time
from collections.abc import Collection, Sequence

from gpufabric._frozen import evolve, field, frozen
from gpufabric.backends.kubernetes._api import Api, Json, error_of
from gpufabric.backends.kubernetes._events import WOULD_FIT
from gpufabric.backends.kubernetes._gangwatch import GangWatch
from gpufabric.backends.kubernetes._manifest import VOLCANO_QUEUE
from gpufabric.backends.kubernetes._objects import Found, workloads
from gpufabric.backends.kubernetes._patience import Patience
from gpufabric.backends.kubernetes._status import attempt_of, disruption_of, node_state
from gpufabric.backends.kubernetes._streams import Loop
from gpufabric.errors import (
    BackendError,
    CapacityError,
    CredentialsError,
    NotFoundError,
    QuotaError,
)
from gpufabric.job import JobState

__all__ = ["LIMITS_S", "SCALING", "Limits", "Waiting", "Why", "refused_for_good", "why_waiting"]

#: How long a gang may wait, by why it waits.
LIMITS_S = {
    "unschedulable": 20.0,  # no node has room, and nothing says that one will come
    "scaling up": 900.0,  # an autoscaler has said that it makes nodes
    "queued": 300.0,  # Kueue has not admitted it, or Volcano's queue, where one is named
    "not created": 10.0,  # the cluster refuses to make the pods: quota, admission
    "image": 60.0,  # pulling fails
    "container": 30.0,  # the container cannot be made
    "starting": 900.0,  # images are pulled, volumes attached
}
#: Waits for something that is under way: a plan's own `gang_timeout_s` takes their place, while
#: it only shortens the others.
_UNDER_WAY = {"scaling up", "queued", "starting"}
_LOOK_S = 1.0  # events and queues, which are not watched, are looked at so often
# The cluster autoscaler's word, and Karpenter's:
# https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md and
# https://github.com/kubernetes-sigs/karpenter/blob/main/pkg/events/reason.go
SCALING = {"TriggeredScaleUp", "Nominated"}
# Why a container waits, in the kubelet's words: pkg/kubelet/images/types.go and
# pkg/kubelet/kuberuntime/kuberuntime_container.go of k8s.io/kubernetes, and
# pkg/errors/errors.go of k8s.io/cri-api, 1.36
_IMAGE = {
    "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "RegistryUnavailable",
    "SignatureValidationFailed",
}  # fmt: skip
_NEVER = {"InvalidImageName", "ErrImageNeverPull"}
_CONTAINER = {
    "CreateContainerConfigError", "CreateContainerError", "PostStartHookError",
    "PreCreateHookError", "PreStartHookError", "RunContainerError",
}  # fmt: skip
# What a controller says of objects that it cannot make: the Job's, and JobSet's own two.
# https://github.com/kubernetes-sigs/jobset/blob/v0.11.0/pkg/constants/constants.go
_REFUSED = {"FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed"}
_TROUBLE = re.compile(
    r"exceeded quota|violates PodSecurity|denied (the )?request|forbidden|is invalid"
)
_NOT_FOUND = re.compile(r'"([^"]+)" not found')
# What Volcano tells a pod of a gang that its queue holds: no word of any node. FitError in
# pkg/scheduler/api/job_info.go of volcano.sh/volcano, ed72c7c81
_HELD, _NODES = "pod group is not ready", "Origin reason"


@frozen(kw_only=True)
class Why:
    """Why a gang is not whole yet: a key of `LIMITS_S`, and the cluster's words."""

    kind: str
    words: str
    final: bool = False


def why_waiting(pods: Sequence[Json], num_nodes: int) -> Why | None:
    """The worst reason among pods of one attempt; None when every node has started."""
    waits: list[Why] = []
    started = 0
    for pod in pods:
        node = node_state(pod)
        if node.state is JobState.RUNNING or node.state.ended:
            started += 1
        elif node.state is JobState.PENDING:
            waits.append(_not_placed(pod, node.reason))
        else:
            waits.append(_not_started(pod, node.reason))
    if started >= num_nodes:
        return None
    if len(pods) < num_nodes:
        waits.append(Why(kind="not created", words=f"{len(pods)} of {num_nodes} pods exist"))
    # Of a gang that waits for pods which are refused, the scheduler may say nothing, or only that.
    order = ["not created", "queued", "unschedulable", "image", "container", "starting"]
    waits.sort(
        key=lambda why: (
            not why.final, order.index(why.kind), not why.words, why.words.endswith(WOULD_FIT)
        )
    )  # fmt: skip
    if not waits:
        return Why(kind="starting", words="pods start")
    return waits[0] if waits[0].words else evolve(waits[0], words=_unspoken(pods))


def _queue_of(pod: Json) -> str:
    """The queue of Volcano that was asked for."""
    return str((pod["metadata"].get("annotations") or {}).get(VOLCANO_QUEUE) or "")


def _unspoken(pods: Sequence[Json]) -> str:
    name = next((str(pod["spec"].get("schedulerName") or "") for pod in pods), "")
    queue = next(filter(None, map(_queue_of, pods)), "")
    there = f" Is there a Queue {queue!r}?" if queue else ""  # of another it passes over in silence
    name = name or "default-scheduler"
    return f"the scheduler {name!r} has not spoken of the pods: does it run?{there}"


def _not_placed(pod: Json, words: str) -> Why:
    queue = _queue_of(pod)
    if queue and words.startswith(_HELD) and _NODES not in words:
        held = f"the Queue {queue!r} has no room, or is not open: {words}"
        return Why(kind="queued", words=held)
    return Why(kind="unschedulable", words=words)


def _not_started(pod: Json, words: str) -> Why:
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()),
                *(status.get("containerStatuses") or ())):  # fmt: skip
        reason = ((one.get("state") or {}).get("waiting") or {}).get("reason")
        if reason in _NEVER:
            return Why(kind="image", words=words, final=True)
        if reason in _IMAGE:
            return Why(kind="image", words=words)
        if reason in _CONTAINER:
            return Why(kind="container", words=words)
    return Why(kind="starting", words=words or "pods start")


def refused_for_good(words: str, owners: Collection[str]) -> bool:
    """Whether what kept a controller from making Jobs or pods will keep it for ever.

    A webhook that does not find their `owners`, which are there, is only behind: Kueue's looks
    them up in a cache, and the controllers ask again.
    https://github.com/kubernetes-sigs/kueue/blob/v0.17.0/pkg/controller/jobframework/reconciler.go
    """
    behind = any(name in owners for name in _NOT_FOUND.findall(words))
    return not behind and _TROUBLE.search(words) is not None


def _stopped(found: Found, pods: Sequence[Json]) -> Why | None:
    """Why a gang failed without its own doing; None where it was cancelled or its code ended."""
    failed = found.condition("Failed")
    if found.cancelled or failed is None or failed.get("reason") == "DeadlineExceeded":
        return None
    disrupted = [told for pod in pods if (told := disruption_of(pod))]
    if not disrupted and any(node_state(pod).state is JobState.FAILED for pod in pods):
        return None
    said = str(failed.get("message") or failed.get("reason"))
    words = disrupted or [f"{said}: pods were removed, or failed before they ran"]
    return Why(kind="stopped", words="; ".join(dict.fromkeys(words)), final=True)


class _Watched:
    """The gang that is waited for, as it is now."""

    def __init__(self, loop: Loop, waiting: "Waiting") -> None:
        self._loop = loop
        self._changed = False
        self._gang = GangWatch(
            loop, waiting.api, waiting.namespace, waiting.name, jobsets=waiting.jobsets,
            serves=waiting.serves, changed=self._note,
        )  # fmt: skip

    def _note(self) -> None:
        self._changed = True

    def news(self) -> tuple[Found | None, list[Json]]:
        """The gang after the next change, or after a while; raises while it cannot be known."""
        gang, deadline = self._gang, time.monotonic() + _LOOK_S
        while True:
            for _ in self._loop.step():
                pass
            if not self._changed and (time.monotonic() < deadline or not gang.synced):
                continue
            self._changed = False
            failed = gang.error or gang.trouble
            if failed is not None:
                raise failed
            if gang.synced:
                return gang.found(), gang.pods()


class Limits:
    """How long one gang has waited, and for what."""

    def __init__(self, gang_timeout_s: float | None, now: float) -> None:
        self._given = gang_timeout_s
        self._in_all = sum(LIMITS_S.values()) if gang_timeout_s is None else gang_timeout_s
        self._began = self._since = now
        self._kind = ""

    def of(self, kind: str) -> float:
        """How long it may wait for this at a stretch, in seconds."""
        own, given = LIMITS_S.get(kind, 0.0), self._given
        if given is None:
            return own
        return given if kind in _UNDER_WAY else min(own, given)

    def passed(self, kind: str, now: float) -> float | None:
        """The limit that has passed, in seconds; None while it may wait on.

        A gang whose reason to wait goes back and forth does not wait for ever.
        """
        if kind != self._kind:
            self._kind, self._since = kind, now
        if now - self._began > self._in_all:
            return self._in_all
        return self.of(kind) if now - self._since > self.of(kind) else None


@frozen(kw_only=True)
class Waiting:
    """Waits for one gang."""

    api: Api
    namespace: str
    name: str
    jobsets: bool
    serves: bool = False
    gang_timeout_s: float | None = None
    patience: Patience = field(factory=Patience)

    def until_whole(self) -> None:
        """Gives when every node has started, or the gang has ended. Raises why it will not."""
        loop = Loop()
        try:
            gang = _Watched(loop, self)
            self._until_whole(gang)
        finally:
            loop.close()

    def _until_whole(self, gang: "_Watched") -> None:
        limits = Limits(self.gang_timeout_s, time.monotonic())
        while True:
            found, why, got = self.patience.again(lambda: self._look(gang))
            if why is None:
                return
            passed = limits.passed(why.kind, time.monotonic())
            if why.final or passed is not None:
                limit = limits.of(why.kind) if passed is None else passed
                raise self._error(why, found.num_nodes, got, limit)

    def _look(self, gang: "_Watched") -> tuple[Found, Why | None, int]:
        found, pods = gang.news()
        if found is None:
            raise NotFoundError(
                "it was removed while it started", backend=self.api.backend, operation="launch"
            )
        if found.owner["metadata"].get("deletionTimestamp"):
            raise NotFoundError(
                "it, or its namespace, is being removed while it starts",
                backend=self.api.backend, operation="launch",
            )  # fmt: skip
        if found.cancelled or found.condition("Complete", "Completed", "Failed"):
            got = sum(node_state(pod).started_at is not None for pod in pods)
            return found, _stopped(found, pods), got
        latest = max(map(attempt_of, pods), default=0)
        mine = [pod for pod in pods if attempt_of(pod) == latest]
        got = sum(bool(pod["spec"].get("nodeName")) for pod in mine)
        why = why_waiting(mine, found.num_nodes)
        return found, self._closer(found, why, mine), got

    def _closer(self, found: Found, why: Why | None, pods: Sequence[Json]) -> Why | None:
        """The reason with what events and Kueue say of it."""
        if why is None or why.kind not in {"unschedulable", "not created"}:
            return why
        if found.held and not pods:
            return Why(kind="queued", words=self._queue_words(found) or "the queue holds it")
        if why.kind == "unschedulable":
            names = {str(pod["metadata"]["name"]) for pod in pods}
            scaling = [e for e in self._events("Pod") if e.get("reason") in SCALING
                       and (e.get("involvedObject") or {}).get("name") in names]  # fmt: skip
            if scaling:
                return Why(kind="scaling up", words=str(scaling[-1].get("message")))
            return why
        maker = found.job or found.owner  # without a Job it is the JobSet that cannot make it
        name = str(maker["metadata"]["name"])
        names = {name, f"{name}-0"} if found.serves else {name}
        owners = {*names, str(found.owner["metadata"]["name"])}
        kind = "StatefulSet" if found.serves else "Job" if found.job else found.kind
        for event in reversed(self._events(kind)):
            words = str(event.get("message") or "")
            mine = (event.get("involvedObject") or {}).get("name") in names
            if mine and event.get("reason") in _REFUSED:
                final = refused_for_good(words, owners)
                return Why(kind=why.kind, words=words, final=final)
        return why

    def _events(self, kind: str) -> list[Json]:
        path = f"/api/v1/namespaces/{self.namespace}/events"
        try:
            return list(self.api.items(path, {"fieldSelector": f"involvedObject.kind={kind}"}))
        except CredentialsError:
            return []

    def _queue_words(self, found: Found) -> str:
        try:
            for load in workloads(self.api, self.namespace, found):
                for one in (load.get("status") or {}).get("conditions") or ():
                    if one.get("type") == "QuotaReserved" and one.get("status") != "True":
                        return str(one.get("message") or "")
        except (CredentialsError, NotFoundError):
            return ""
        return ""

    def _error(self, why: Why, wanted: int, got: int, limit: float) -> BackendError:
        backend, operation = self.api.backend, "launch"
        if why.kind == "not created":
            made = error_of(403, "", why.words, backend=backend, operation=operation)
            if isinstance(made, CredentialsError):  # not of ours: of the controller that makes pods
                return BackendError(why.words, backend=backend, operation=operation)
            return made
        if why.kind == "queued":
            words = f"not admitted within {limit:g} s: {why.words}"
            return QuotaError(words, backend=backend, operation=operation)
        if why.kind == "stopped":
            words = f"{got} of {wanted} nodes had started when the cluster stopped it: {why.words}"
            return CapacityError(
                words, backend=backend, operation=operation, wanted=wanted, got=got
            )
        if why.kind in {"unschedulable", "scaling up"}:
            return CapacityError(
                f"{got} of {wanted} nodes placed within {limit:g} s: {why.words}",
                backend=backend, operation=operation, wanted=wanted, got=got,
            )  # fmt: skip
        within = "" if why.final else f" within {limit:g} s"
        words = f"not started{within} ({why.kind}): {why.words}"
        return BackendError(words, backend=backend, operation=operation)
