"""The Job controller: k8s.io/kubernetes/pkg/controller/job, for Indexed Jobs above all."""

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from .errors import Json, Refusal
from .events import Events, reference
from .objects import Objects, controlled_by, now, suffix
from .store import Entry, Key

TABLE = "jobs.batch"
INDEX = "batch.kubernetes.io/job-completion-index"
_RETRY_S = 0.5


class Parent(Protocol):
    """What a controller gets from the loop."""

    def controlled(self, uid: str, table: str) -> list[Entry]:
        """What an object controls."""
        ...

    def later(self, seconds: float, table: str, key: Key) -> None:
        """Looks at an object again after a time."""
        ...


class Controller:
    """What makes objects for those of its kind."""

    def __init__(self, objects: Objects, events: Events, parent: Parent) -> None:
        self._objects = objects
        self._events = events
        self._parent = parent


class Jobs(Controller):
    """Makes pods for Jobs, counts them, and says how the Job ended."""

    def __init__(self, objects: Objects, events: Events, parent: Parent) -> None:
        super().__init__(objects, events, parent)
        self._failed: defaultdict[str, dict[str, str]] = defaultdict(dict)  # job -> pod -> verdict
        self._done: defaultdict[str, set[int]] = defaultdict(set)
        self._dropped: set[str] = set()  # pods that a suspension ended: no failures
        self._retries: dict[str, float] = {}

    def look(self, entry: Entry) -> None:
        """One look at a Job."""
        job = entry.obj
        if condition(job, "Complete", "Failed"):
            self._old(job)
            return
        pods = [e.obj for e in self._parent.controlled(job["metadata"]["uid"], "pods")]
        if job["spec"].get("suspend"):
            self._suspend(job, pods)
            return
        self._begin(job)
        self._count(job, pods)
        verdict = condition(job, "FailureTarget") or self._verdict(job, pods)
        if verdict is not None and verdict["type"] == "FailureTarget":
            self._fail(job, pods, verdict)
        elif verdict is not None:
            self._complete(job, pods)
        else:
            self._fill(job, pods)
            self._status(job)

    # ---- what is

    def _uid(self, job: Json) -> str:
        return str(job["metadata"]["uid"])

    def _key(self, job: Json) -> Key:
        return job["metadata"]["namespace"], job["metadata"]["name"]

    def _write(self, job: Json, change: Callable[[Json], None]) -> None:
        """Changes the status here and at the server."""

        def apply(one: Json) -> None:
            change(one.setdefault("status", {}))

        made = self._objects.mutate(TABLE, *self._key(job), apply)
        if made is not None:
            job["status"] = made.copy().get("status", {})

    def _tell(self, job: Json, reason: str, message: str, *, warning: bool = False) -> None:
        self._events.tell(
            reference(job), reason, message, warning=warning, component="job-controller"
        )

    # ---- beginning and suspending

    def _begin(self, job: Json) -> None:
        status = job.get("status") or {}
        if status.get("startTime"):
            return
        was = [c for c in status.get("conditions") or () if c["type"] == "Suspended"]

        def change(one: Json) -> None:
            one["startTime"] = now()
            if was:
                put(one, "Suspended", "JobResumed", "Job resumed", word="False")

        self._write(job, change)
        if was:
            self._tell(job, "Resumed", "Job resumed")
        deadline = job["spec"].get("activeDeadlineSeconds")
        if deadline is not None:
            self._parent.later(deadline, TABLE, self._key(job))

    def _suspend(self, job: Json, pods: Sequence[Json]) -> None:
        for pod in pods:
            if active(pod):
                self._dropped.add(pod["metadata"]["uid"])
                self._remove(job, pod)
        pods = [e.obj for e in self._parent.controlled(self._uid(job), "pods")]
        ending = sum(not over(pod) for pod in pods)
        suspended = condition(job, "Suspended")

        def change(one: Json) -> None:
            one.pop("startTime", None)
            one.update(active=0, ready=0, terminating=ending)
            put(one, "Suspended", "JobSuspended", "Job suspended")
            one.setdefault("uncountedTerminatedPods", {})
            if not one["active"]:
                del one["active"]

        self._write(job, change)
        if not suspended:
            self._tell(job, "Suspended", "Job suspended")

    def _remove(self, job: Json, pod: Json) -> None:
        resource = self._objects.kinds.find("", "v1", "pods")
        assert resource is not None
        meta = pod["metadata"]
        self._objects.delete(resource, meta["namespace"], meta["name"], {})
        self._tell(job, "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    # ---- counting

    def _count(self, job: Json, pods: Sequence[Json]) -> None:
        uid = self._uid(job)
        for pod in pods:
            me = pod["metadata"]["uid"]
            phase = (pod.get("status") or {}).get("phase")
            if phase == "Succeeded":
                self._done[uid].add(index_of(pod) if indexed(job) else hash(me))
                continue
            replace_failed_only = job["spec"].get("podReplacementPolicy") == "Failed"
            going = bool(pod["metadata"].get("deletionTimestamp")) and not replace_failed_only
            if (phase == "Failed" or going) and me not in self._dropped:
                self._failed[uid].setdefault(me, self._policy(job, pod))

    def _policy(self, job: Json, pod: Json) -> str:
        """What a pod's failure means, by podFailurePolicy: `count`, `ignore`, or why all fail."""
        policy = job["spec"].get("podFailurePolicy") or {}
        for number, rule in enumerate(policy.get("rules") or ()):
            told = _rule_matches(rule, pod)
            if told is None:
                continue
            if rule["action"] == "FailJob":
                return f"{told} matching FailJob rule at index {number}"
            return "ignore" if rule["action"] == "Ignore" else "count"
        return "count"

    def _verdict(self, job: Json, pods: Sequence[Json]) -> Json | None:
        uid, spec = self._uid(job), job["spec"]
        words = self._failed[uid].values()
        for why in words:
            if why not in {"count", "ignore"}:
                return _row("FailureTarget", "PodFailurePolicy", why)
        began = dt.datetime.fromisoformat(job["status"]["startTime"])
        deadline = spec.get("activeDeadlineSeconds")
        if deadline is not None:
            left = deadline - (dt.datetime.now(dt.UTC) - began).total_seconds()
            if left <= 0:
                return _row("FailureTarget", "DeadlineExceeded",
                            "Job was active longer than specified deadline")  # fmt: skip
            self._parent.later(left, TABLE, self._key(job))
        failures = sum(why == "count" for why in words) + _restarts(spec, pods)
        if failures > spec["backoffLimit"]:
            return _row("FailureTarget", "BackoffLimitExceeded",
                        "Job has reached the specified backoff limit")  # fmt: skip
        wanted = spec.get("completions")
        if wanted is not None and len(self._done[uid]) >= wanted:
            return _row("SuccessCriteriaMet", "CompletionsReached", _REACHED)
        if wanted is None and self._done[uid] and not any(active(pod) for pod in pods):
            return _row("SuccessCriteriaMet", "CompletionsReached", _REACHED)
        return None

    # ---- pods

    def _fill(self, job: Json, pods: Sequence[Json]) -> None:
        uid, spec = self._uid(job), job["spec"]
        wait = self._retries.get(uid, 0.0) - time.monotonic()
        if wait > 0:
            self._parent.later(wait, TABLE, self._key(job))
            return
        failed_only = spec.get("podReplacementPolicy") == "Failed"
        there = [pod for pod in pods if active(pod) or (failed_only and not over(pod))]
        room = spec["parallelism"] - len(there)
        if indexed(job):
            taken = {index_of(pod) for pod in there} | self._done[uid]
            free = [i for i in range(spec["completions"]) if i not in taken]
            for number in free[: max(0, room)]:
                if not self._make(job, number):
                    return
            return
        if spec.get("completions") is not None:
            room = min(room, spec["completions"] - len(self._done[uid]) - len(there))
        for _ in range(max(0, room)):
            if not self._make(job, None):
                return

    def _make(self, job: Json, number: int | None) -> bool:
        resource = self._objects.kinds.find("", "v1", "pods")
        assert resource is not None
        try:
            made = self._objects.create(resource, job["metadata"]["namespace"], pod_of(job, number))
        except Refusal as exc:
            self._retries[self._uid(job)] = time.monotonic() + _RETRY_S
            self._parent.later(_RETRY_S, TABLE, self._key(job))
            self._tell(job, "FailedCreate", f"Error creating: {exc.message}", warning=True)
            return False
        self._tell(job, "SuccessfulCreate", f"Created pod: {made.obj['metadata']['name']}")
        return True

    def _status(self, job: Json) -> None:
        uid = self._uid(job)
        pods = [e.obj for e in self._parent.controlled(uid, "pods")]
        live = [pod for pod in pods if active(pod)]

        def change(one: Json) -> None:
            one["active"] = len(live)
            one["ready"] = sum(_ready(pod) for pod in live)
            one["terminating"] = sum(not over(pod) and not active(pod) for pod in pods)
            one["uncountedTerminatedPods"] = {}
            self._counters(one, job)
            if not live:
                del one["active"]

        self._write(job, change)

    def _counters(self, status: Json, job: Json) -> None:
        uid = self._uid(job)
        if self._failed[uid]:
            status["failed"] = len(self._failed[uid])
        if self._done[uid]:
            status["succeeded"] = len(self._done[uid])
            if indexed(job):
                status["completedIndexes"] = ranges(sorted(self._done[uid]))

    # ---- the end

    def _fail(self, job: Json, pods: Sequence[Json], verdict: Json) -> None:
        for pod in pods:
            if active(pod):
                self._remove(job, pod)
        pods = [e.obj for e in self._parent.controlled(self._uid(job), "pods")]
        self._count(job, pods)
        left = sum(not over(pod) for pod in pods)

        def change(one: Json) -> None:
            one.pop("active", None)
            one.update(ready=0, terminating=left, uncountedTerminatedPods={})
            self._counters(one, job)
            put(one, "FailureTarget", verdict["reason"], verdict["message"])
            if not left:
                put(one, "Failed", verdict["reason"], verdict["message"])

        self._write(job, change)
        if not left:
            self._tell(job, verdict["reason"], verdict["message"], warning=True)

    def _complete(self, job: Json, pods: Sequence[Json]) -> None:
        left = [pod for pod in pods if not over(pod)]
        for pod in left:
            if active(pod):
                self._remove(job, pod)

        def change(one: Json) -> None:
            one.pop("active", None)
            one.update(ready=0, terminating=len(left), uncountedTerminatedPods={})
            self._counters(one, job)
            put(one, "SuccessCriteriaMet", "CompletionsReached", _REACHED)
            if not left:
                one["completionTime"] = now()
                put(one, "Complete", "CompletionsReached", _REACHED)

        self._write(job, change)
        if not left:
            self._tell(job, "Completed", "Job completed")

    def _old(self, job: Json) -> None:
        """Removes what has lived long enough after its end."""
        lives = job["spec"].get("ttlSecondsAfterFinished")
        if lives is None:
            return
        ended = condition(job, "Complete", "Failed")
        assert ended is not None
        at = dt.datetime.fromisoformat(ended["lastTransitionTime"])
        left = lives - (dt.datetime.now(dt.UTC) - at).total_seconds()
        if left > 0:
            self._parent.later(left, TABLE, self._key(job))
            return
        resource = self._objects.kinds.find("batch", "v1", "jobs")
        assert resource is not None
        self._objects.delete(resource, *self._key(job), {"propagationPolicy": "Foreground"})


_REACHED = "Reached expected number of succeeded pods"


def pod_of(job: Json, number: int | None) -> Json:
    """The pod of an index, as the controller makes it from the template."""
    template = Entry(job["spec"]["template"]).copy()
    meta, name = dict(template.get("metadata") or {}), job["metadata"]["name"]
    base = name if number is None else f"{name}-{number}"
    made: Json = {
        "name": f"{base[:57]}-{suffix()}", "generateName": f"{base}-",
        "labels": dict(meta.get("labels") or {}),
        "annotations": dict(meta.get("annotations") or {}),
        "ownerReferences": [controlled_by(job)],
    }  # fmt: skip
    spec = template["spec"]
    if number is not None:
        made["labels"][INDEX] = made["annotations"][INDEX] = str(number)
        spec.setdefault("hostname", base[:63])
        field = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        row = {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}
        for one in (*(spec.get("initContainers") or ()), *spec["containers"]):
            rows = one.get("env") or []
            if not any(r["name"] == row["name"] for r in rows):
                one["env"] = [*rows, row]
    return {"kind": "Pod", "apiVersion": "v1", "metadata": made, "spec": spec}


def indexed(job: Json) -> bool:
    """Whether its pods have indexes."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: Json) -> int:
    """A pod's index."""
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def over(pod: Json) -> bool:
    """Whether its containers have ended."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def active(pod: Json) -> bool:
    """Whether it runs, or will."""
    return not over(pod) and not pod["metadata"].get("deletionTimestamp")


def _ready(pod: Json) -> bool:
    rows = (pod.get("status") or {}).get("conditions") or ()
    return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)


def _restarts(spec: Json, pods: Sequence[Json]) -> int:
    """With restartPolicy OnFailure restarts of containers count."""
    if spec["template"]["spec"].get("restartPolicy") != "OnFailure":
        return 0
    return sum(
        row.get("restartCount", 0)
        for pod in pods
        for row in (pod.get("status") or {}).get("containerStatuses") or ()
    )


def _rule_matches(rule: Json, pod: Json) -> str | None:
    """What of a pod fits a rule of podFailurePolicy, in the controller's words."""
    status, meta = pod.get("status") or {}, pod["metadata"]
    if codes := rule.get("onExitCodes"):
        for row in status.get("containerStatuses") or ():
            if codes.get("containerName") not in {None, row["name"]}:
                continue
            ended = (row.get("state") or {}).get("terminated")
            if not ended or ended["exitCode"] == 0:
                continue
            if (ended["exitCode"] in codes["values"]) is (codes["operator"] == "In"):
                return (
                    f"Container {row['name']} for pod {meta['namespace']}/{meta['name']} failed"
                    f" with exit code {ended['exitCode']}"
                )
    for wanted in rule.get("onPodConditions") or ():
        for row in status.get("conditions") or ():
            if row["type"] == wanted["type"] and row["status"] == wanted.get("status", "True"):
                return f"Pod {meta['namespace']}/{meta['name']} has condition {row['type']}"
    return None


def condition(one: Json, *types: str) -> Json | None:
    """A condition that holds."""
    for row in (one.get("status") or {}).get("conditions") or ():
        if row["type"] in types and row["status"] == "True":
            return dict(row)
    return None


def _row(kind: str, reason: str, message: str) -> Json:
    return {"type": kind, "reason": reason, "message": message}


def put(status: Json, kind: str, reason: str, message: str, *, word: str = "True") -> None:
    """Sets a condition; its times change with its truth only."""
    rows = status.setdefault("conditions", [])
    moment = now()
    made = {
        "type": kind, "status": word, "reason": reason, "message": message,
        "lastProbeTime": moment, "lastTransitionTime": moment,
    }  # fmt: skip
    for number, row in enumerate(rows):
        if row["type"] == kind:
            if row["status"] != word:
                rows[number] = made
            return
    rows.append(made)


def ranges(numbers: Sequence[int]) -> str:
    """`0-2,5`, with two in a row as `0,1`: pkg/controller/job/indexed_job_utils.go."""
    parts: list[str] = []
    start = None
    for place, number in enumerate(numbers):
        start = number if start is None else start
        if place + 1 < len(numbers) and numbers[place + 1] == number + 1:
            continue
        if number == start:
            parts.append(str(number))
        else:
            parts.append(f"{start}{'-' if number > start + 1 else ','}{number}")
        start = None
    return ",".join(parts)
