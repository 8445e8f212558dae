"""The JobSet controller of https://github.com/kubernetes-sigs/jobset, pkg/controllers, 0.11."""

import hashlib
import re
from collections.abc import Sequence

from .errors import Json, Refusal
from .events import reference
from .jobs import Controller, condition
from .objects import controlled_by, now
from .store import Entry

TABLE = "jobsets.jobset.x-k8s.io"
_PREFIX = "jobset.sigs.k8s.io"
ATTEMPT = f"{_PREFIX}/restart-attempt"
_SERVED = ("jobset.x-k8s.io", "v1alpha2", "jobsets")


class JobSets(Controller):
    """Makes Jobs and a Service for JobSets, restarts them, and says how they ended."""

    def look(self, entry: Entry) -> None:
        """One look at a JobSet."""
        one = entry.obj
        jobs = [e.obj for e in self._parent.controlled(one["metadata"]["uid"], "jobs.batch")]
        if condition(one, "Completed", "Failed"):
            self._clean(jobs)
            return
        restarts = (one.get("status") or {}).get("restarts", 0)
        mine = [j for j in jobs if int(j["metadata"]["labels"].get(ATTEMPT, -1)) == restarts]
        for job in jobs:
            if job not in mine:
                self._delete(job)
        failed = [job for job in mine if condition(job, "Failed")]
        if failed:
            self._failed(one, failed)
        elif self._succeeded(one, mine):
            self._end(one, "Completed", "AllJobsCompleted", "jobset completed successfully")
        else:
            self._service(one)
            self._suspend(one, mine)
            if len(mine) == len(jobs):  # the old ones are gone
                self._make(one, mine, restarts)
            self._count(one, restarts)

    # ---- making

    def _service(self, one: Json) -> None:
        network, meta = one["spec"]["network"], one["metadata"]
        if not network["enableDNSHostnames"]:
            return
        name = network.get("subdomain") or meta["name"]
        if self._objects.store.find("services", meta["namespace"], name) is not None:
            return
        self._create("services", meta["namespace"], {
            "kind": "Service", "apiVersion": "v1",
            "metadata": {"name": name, "ownerReferences": [controlled_by(one)]},
            "spec": {
                "clusterIP": "None", "selector": {f"{_PREFIX}/jobset-name": meta["name"]},
                "publishNotReadyAddresses": network["publishNotReadyAddresses"],
            },
        }, one)  # fmt: skip

    def _make(self, one: Json, there: Sequence[Json], restarts: int) -> None:
        names = {job["metadata"]["name"] for job in there}
        total = sum(row["replicas"] for row in one["spec"].get("replicatedJobs") or ())
        number = 0
        for row in one["spec"].get("replicatedJobs") or ():
            for index in range(row["replicas"]):
                job = _job(one, row, index, number, total, restarts)
                number += 1
                if job["metadata"]["name"] not in names:
                    self._create("jobs", one["metadata"]["namespace"], job, one)

    def _create(self, plural: str, namespace: str, body: Json, owner: Json) -> None:
        group, version = ("batch", "v1") if plural == "jobs" else ("", "v1")
        resource = self._objects.kinds.find(group, version, plural)
        assert resource is not None
        try:
            self._objects.create(resource, namespace, body)
        except Refusal as exc:
            reason = "JobCreationFailed" if plural == "jobs" else "HeadlessServiceCreationFailed"
            self._tell(owner, reason, exc.message, warning=True)
            key = (namespace, owner["metadata"]["name"])
            self._parent.later(0.5, TABLE, key)

    def _suspend(self, one: Json, jobs: Sequence[Json]) -> None:
        """Suspends and resumes its Jobs, with the pods' template as it is by now."""
        wanted = bool(one["spec"].get("suspend"))
        templates = {row["name"]: row["template"]["spec"]["template"]
                     for row in one["spec"].get("replicatedJobs") or ()}  # fmt: skip

        def change(job: Json) -> None:
            if job["spec"].get("suspend") and not wanted:
                template = templates[job["metadata"]["labels"][f"{_PREFIX}/replicatedjob-name"]]
                for part in ("nodeSelector", "tolerations", "schedulingGates"):
                    if template["spec"].get(part):
                        job["spec"]["template"]["spec"][part] = template["spec"][part]
                for part in ("labels", "annotations"):
                    more = (template.get("metadata") or {}).get(part) or {}
                    job["spec"]["template"]["metadata"].setdefault(part, {}).update(more)
            job["spec"]["suspend"] = wanted

        for job in jobs:
            meta = job["metadata"]
            self._objects.mutate("jobs.batch", meta["namespace"], meta["name"], change)
        was = condition(one, "Suspended")
        if wanted and not was:
            self._put(one, "Suspended", "SuspendedJobs", "jobset is suspended")
        elif not wanted and was:
            self._put(one, "Suspended", "ResumeJobs", "jobset is resumed", word="False")

    def _count(self, one: Json, restarts: int) -> None:
        jobs = [e.obj for e in self._parent.controlled(one["metadata"]["uid"], "jobs.batch")]
        rows: list[Json] = []
        for row in one["spec"].get("replicatedJobs") or ():
            name = row["name"]
            key = f"{_PREFIX}/replicatedjob-name"
            mine = [j for j in jobs if j["metadata"]["labels"][key] == name
                    and not j["metadata"].get("deletionTimestamp")]  # fmt: skip
            done = [j for j in mine if condition(j, "Complete")]
            bad = [j for j in mine if condition(j, "Failed")]
            held = [j for j in mine if j["spec"].get("suspend")]
            busy = [j for j in mine if (j.get("status") or {}).get("active")]
            ready = [j for j in busy if _is_ready(j)]
            rows.append({"name": name, "active": len(busy), "failed": len(bad), "ready": len(ready),
                         "succeeded": len(done), "suspended": len(held)})  # fmt: skip

        def change(made: Json) -> None:
            status = made.setdefault("status", {})
            status["restarts"] = restarts
            status["replicatedJobsStatus"] = rows

        self._mutate(one, change)

    # ---- the end

    def _succeeded(self, one: Json, jobs: Sequence[Json]) -> bool:
        policy = one["spec"]["successPolicy"]
        wanted = set(policy.get("targetReplicatedJobs") or ())
        key = f"{_PREFIX}/replicatedjob-name"
        rows = [row for row in one["spec"].get("replicatedJobs") or ()
                if not wanted or row["name"] in wanted]  # fmt: skip
        names = {row["name"] for row in rows}
        done = sum(bool(condition(j, "Complete")) for j in jobs
                   if j["metadata"]["labels"][key] in names)  # fmt: skip
        if policy["operator"] == "Any":
            return done > 0
        total = sum(row["replicas"] for row in rows)
        return total > 0 and done >= total

    def _failed(self, one: Json, failed: Sequence[Json]) -> None:
        policy = one["spec"].get("failurePolicy")
        first = failed[0]["metadata"]["name"]
        told = f"(first failed job: {first})"
        if policy is None:
            words = f"jobset failed due to one or more job failures {told}"
            self._end(one, "Failed", "FailedJobs", words)
            return
        rule = next(
            (r for r in policy.get("rules") or () if any(_fits(r, j) for j in failed)), None
        )
        action = rule["action"] if rule else "RestartJobSet"
        status = one.get("status") or {}
        if action == "FailJobSet":
            words = f"applying FailJobSet failure policy action {told}"
            self._end(one, "Failed", "FailJobSetFailurePolicyAction", words)
        elif action == "RestartJobSet" and (
            status.get("restartsCountTowardsMax", 0) >= policy["maxRestarts"]
        ):
            words = f"jobset failed due to reaching max number of restarts {told}"
            self._end(one, "Failed", "ReachedMaxRestarts", words)
        else:
            counts = action == "RestartJobSet"

            def change(made: Json) -> None:
                status = made.setdefault("status", {})
                status["restarts"] = status.get("restarts", 0) + 1
                if counts:
                    status["restartsCountTowardsMax"] = status.get("restartsCountTowardsMax", 0) + 1

            self._mutate(one, change)
            self._tell(one, f"{action}FailurePolicyAction",
                       f"applying {action} failure policy action {told}", warning=True)  # fmt: skip

    def _end(self, one: Json, kind: str, reason: str, words: str) -> None:
        restarts = (one.get("status") or {}).get("restarts", 0)
        self._count(one, restarts)
        self._mutate(one, lambda made: made.setdefault("status", {}).update(terminalState=kind))
        self._put(one, kind, reason, words)

    def _clean(self, jobs: Sequence[Json]) -> None:
        for job in jobs:
            if not condition(job, "Complete", "Failed"):
                self._delete(job)

    def _delete(self, job: Json) -> None:
        meta = job["metadata"]
        if meta.get("deletionTimestamp"):
            return
        resource = self._objects.kinds.find("batch", "v1", "jobs")
        assert resource is not None
        options = {"propagationPolicy": "Foreground"}
        self._objects.delete(resource, meta["namespace"], meta["name"], options)

    # ---- telling

    def _mutate(self, one: Json, change: object) -> None:
        meta = one["metadata"]
        self._objects.mutate(TABLE, meta["namespace"], meta["name"], change)  # type: ignore[arg-type]

    def _put(self, one: Json, kind: str, reason: str, words: str, *, word: str = "True") -> None:
        row = {"type": kind, "status": word, "reason": reason, "message": words,
               "lastTransitionTime": now()}  # fmt: skip

        def change(made: Json) -> None:
            status = made.setdefault("status", {})
            rest = [r for r in status.get("conditions") or () if r["type"] != kind]
            status["conditions"] = [*rest, row]

        self._mutate(one, change)
        self._tell(one, reason, words, warning=kind == "Failed")

    def _tell(self, one: Json, reason: str, words: str, *, warning: bool = False) -> None:
        self._events.tell(reference(one), reason, words, warning=warning, component="jobset")


def _job(one: Json, row: Json, index: int, number: int, total: int, restarts: int) -> Json:  # noqa: PLR0917
    """A Job as the controller makes it, with its labels on Job and pods."""
    meta, template = one["metadata"], Entry(row["template"]).copy()
    name = f"{meta['name']}-{row['name']}-{index}"
    key = hashlib.sha1(f"{meta['namespace']}/{name}".encode(), usedforsecurity=False).hexdigest()
    marks = {
        "global-replicas": str(total), "group-name": row["groupName"],
        "group-replicas": str(total), "job-global-index": str(number),
        "job-group-index": str(number), "job-index": str(index), "job-key": key,
        "jobset-name": meta["name"], "jobset-uid": meta["uid"],
        "replicatedjob-name": row["name"], "replicatedjob-replicas": str(row["replicas"]),
        "restart-attempt": str(restarts),
    }  # fmt: skip
    marks = {f"{_PREFIX}/{word}": value for word, value in marks.items()}
    spec = template["spec"]
    pod = spec["template"]
    inner = pod.setdefault("metadata", {})
    for part in ("labels", "annotations"):
        inner[part] = {**(inner.get(part) or {}), **marks}
    network = one["spec"]["network"]
    if network["enableDNSHostnames"]:
        pod["spec"].setdefault("subdomain", network.get("subdomain") or meta["name"])
    spec["suspend"] = bool(one["spec"].get("suspend"))
    outer = template.get("metadata") or {}
    return {
        "kind": "Job", "apiVersion": "batch/v1",
        "metadata": {
            "name": name, "namespace": meta["namespace"], "ownerReferences": [controlled_by(one)],
            "labels": {**(outer.get("labels") or {}), **marks},
            "annotations": {**(outer.get("annotations") or {}), **marks},
        },
        "spec": spec,
    }  # fmt: skip


def _is_ready(job: Json) -> bool:
    status = job.get("status") or {}
    wanted = min(job["spec"]["parallelism"], job["spec"].get("completions") or 1 << 30)
    return status.get("ready", 0) + status.get("succeeded", 0) >= wanted


def _fits(rule: Json, job: Json) -> bool:
    """Whether a failure policy rule is of this failed Job."""
    ended = condition(job, "Failed") or {}
    reasons = rule.get("onJobFailureReasons")
    patterns = rule.get("onJobFailureMessagePatterns")
    targets = rule.get("targetReplicatedJobs")
    name = job["metadata"]["labels"][f"{_PREFIX}/replicatedjob-name"]
    return (
        (not reasons or ended.get("reason") in reasons)
        and (not patterns or any(re.search(p, ended.get("message", "")) for p in patterns))
        and (not targets or name in targets)
    )
