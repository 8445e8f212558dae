"""Kueue, as far as one ClusterQueue a queue goes: admission by quota, deactivation, the end.

No cohorts, no preemption, no topologies: such tests are for a real cluster.
https://github.com/kubernetes-sigs/kueue, version 0.17.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from fractions import Fraction

from .admission import QUEUE_LABEL
from .errors import Json
from .events import Events, reference
from .jobs import condition
from .objects import Objects, controlled_by, now
from .quantities import Amounts, quantity, requests_of, told
from .store import Entry

_GROUP = "kueue.x-k8s.io"
_TABLES = ("jobs.batch", "jobsets.jobset.x-k8s.io")
WORKLOADS, QUEUES, CLUSTER_QUEUES, FLAVORS = (
    f"{plural}.{_GROUP}" for plural in ("workloads", "localqueues", "clusterqueues",
                                        "resourceflavors")
)  # fmt: skip


class Kueue:
    """Lets queued jobs go, one after the other."""

    def __init__(self, objects: Objects, events: Events) -> None:
        self._objects = objects
        self._store = objects.store
        self._events = events

    def run(self) -> None:
        """One look at every queued job."""
        if self._objects.kinds.find(_GROUP, "v1beta2", "workloads") is None:
            return
        for table in _TABLES:
            for entry in sorted(self._store.all(table), key=_age):
                if _queued(entry.obj):
                    self._job(table, entry.obj)
        self._queues()

    def _job(self, table: str, job: Json) -> None:
        if job["metadata"].get("deletionTimestamp"):
            return
        load = self._workload(job)
        ended = condition(job, "Complete", "Completed", "Failed")
        if load is None:
            if ended:
                return
            load = self._make(job)
        if ended:
            if not condition(load, "Finished"):
                words = "Job finished successfully" if ended["type"] != "Failed" else "Job failed"
                self._put(load, "Finished", "True", "Succeeded", words)
            return
        admitted, live = condition(load, "Admitted"), load["spec"].get("active", True)
        if not live:
            if admitted or condition(load, "QuotaReserved"):
                self._evict(load)
            self._suspend(table, job, suspended=True)
        elif admitted:
            self._suspend(table, job, suspended=False, flavors=load["status"].get("admission"))
        else:
            self._suspend(table, job, suspended=True)
            self._admit(load, job)

    def _workload(self, job: Json) -> Json | None:
        uid = job["metadata"]["uid"]
        for entry in self._store.all(WORKLOADS, job["metadata"]["namespace"]):
            if any(o["uid"] == uid for o in entry.obj["metadata"].get("ownerReferences") or ()):
                return entry.obj
        return None

    def _make(self, job: Json) -> Json:
        meta, kind = job["metadata"], job["kind"].lower()
        key = hashlib.sha1(meta["uid"].encode(), usedforsecurity=False).hexdigest()[:5]
        made = self._store.put(WORKLOADS, {
            "kind": "Workload", "apiVersion": f"{_GROUP}/v1beta2",
            "metadata": {
                "name": f"{kind}-{meta['name']}-{key}", "namespace": meta["namespace"],
                "uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1,
                "labels": {f"{_GROUP}/job-uid": meta["uid"]},
                "ownerReferences": [controlled_by(job)],
            },
            "spec": {
                "active": True, "queueName": meta["labels"][QUEUE_LABEL],
                "podSets": list(_pod_sets(job)),
            },
            "status": {},
        })  # fmt: skip
        return made.obj

    # ---- quota

    def _admit(self, load: Json, job: Json) -> None:
        namespace, name = load["metadata"]["namespace"], load["spec"]["queueName"]
        queue = self._store.find(QUEUES, namespace, name)
        if queue is None:
            self._inadmissible(load, "Inadmissible", f"LocalQueue {name} doesn't exist")
            return
        where = queue.obj["spec"]["clusterQueue"]
        cluster = self._store.find(CLUSTER_QUEUES, "", where)
        if cluster is None:
            self._inadmissible(load, "Inadmissible", f"ClusterQueue {where} doesn't exist")
            return
        assigned, why = self._assigned(load, cluster.obj)
        if why:
            self._inadmissible(load, "Pending", why)
            return
        admission = {"clusterQueue": where, "podSetAssignments": assigned}

        def change(one: Json) -> None:
            one.setdefault("status", {})["admission"] = admission

        self._mutate(load, change)
        self._put(load, "QuotaReserved", "True", "QuotaReserved",
                  f"Quota reserved in ClusterQueue {where}")  # fmt: skip
        self._put(load, "Admitted", "True", "Admitted", "The workload is admitted")
        self._events.tell(
            reference(job), "Started", f"Admitted by clusterQueue {where}", component="kueue"
        )

    def _inadmissible(self, load: Json, reason: str, why: str) -> None:
        self._put(load, "QuotaReserved", "False", reason, why)

    def _assigned(self, load: Json, cluster: Json) -> tuple[list[Json], str]:
        """A flavor for each pod set and resource, or why there is none."""
        used = self._used(cluster["metadata"]["name"])
        made: list[Json] = []
        for row in load["spec"]["podSets"]:
            asked = {n: a * row["count"] for n, a in requests_of(row["template"]["spec"]).items()}
            flavors: dict[str, str] = {}
            for group in cluster["spec"].get("resourceGroups") or ():
                mine = {n: a for n, a in asked.items() if n in group["coveredResources"]}
                flavor, why = _fitting(group["flavors"], mine, used)
                if flavor is None:
                    return [], f"couldn't assign flavors to pod set {row['name']}: {why}"
                flavors |= dict.fromkeys(mine, flavor)
                for name, amount in mine.items():
                    used[flavor, name] = used.get((flavor, name), Fraction(0)) + amount
            loose = sorted(set(asked) - set(flavors))
            if loose:
                told_ = f"resource {loose[0]} unavailable in ClusterQueue"
                return [], f"couldn't assign flavors to pod set {row['name']}: {told_}"
            usage = {name: told(asked[name]) for name in flavors}
            made.append({"name": row["name"], "count": row["count"], "flavors": flavors,
                         "resourceUsage": usage})  # fmt: skip
        return made, ""

    def _used(self, cluster: str) -> dict[tuple[str, str], Fraction]:
        total: dict[tuple[str, str], Fraction] = {}
        for entry in self._store.all(WORKLOADS):
            load = entry.obj
            admission = (load.get("status") or {}).get("admission") or {}
            if admission.get("clusterQueue") != cluster or condition(load, "Finished"):
                continue
            for row in admission["podSetAssignments"]:
                for name, amount in row["resourceUsage"].items():
                    key = (row["flavors"][name], name)
                    total[key] = total.get(key, Fraction(0)) + quantity(amount)
        return total

    # ---- jobs

    def _suspend(
        self, table: str, job: Json, *, suspended: bool, flavors: Json | None = None
    ) -> None:
        if bool(job["spec"].get("suspend")) is suspended:
            return
        labels: dict[str, dict[str, str]] = {}
        for row in (flavors or {}).get("podSetAssignments") or ():
            mine = labels.setdefault(row["name"], {})
            for name in set(row["flavors"].values()):
                found = self._store.find(FLAVORS, "", name)
                mine |= (found.obj["spec"].get("nodeLabels") or {}) if found else {}

        def change(one: Json) -> None:
            one["spec"]["suspend"] = suspended
            one["metadata"]["generation"] = one["metadata"].get("generation", 1) + 1
            for name, spec in _templates(one):
                if labels.get(name):
                    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **labels[name]}

        meta = job["metadata"]
        self._objects.mutate(table, meta["namespace"], meta["name"], change)

    def _evict(self, load: Json) -> None:
        self._mutate(load, lambda one: one["status"].pop("admission", None))
        words = "The workload is deactivated"
        self._put(load, "QuotaReserved", "False", "Pending", words)
        self._put(load, "Admitted", "False", "NoReservation", "The workload has no reservation")
        self._put(load, "Evicted", "True", "Deactivated", words)

    def _put(self, load: Json, kind: str, word: str, reason: str, words: str) -> None:
        def change(one: Json) -> None:
            status = one.setdefault("status", {})
            rows = status.setdefault("conditions", [])
            made = {"type": kind, "status": word, "reason": reason, "message": words,
                    "lastTransitionTime": now()}  # fmt: skip
            for number, row in enumerate(rows):
                if row["type"] == kind:
                    if (row["status"], row["message"]) != (word, words):
                        rows[number] = made
                    return
            rows.append(made)

        self._mutate(load, change)

    def _mutate(self, load: Json, change: object) -> None:
        meta = load["metadata"]
        made = self._objects.mutate(WORKLOADS, meta["namespace"], meta["name"], change)  # type: ignore[arg-type]
        if made is not None:
            load["status"] = made.copy().get("status", {})

    # ---- what queues say of themselves

    def _queues(self) -> None:
        loads = [entry.obj for entry in self._store.all(WORKLOADS)]
        for entry in self._store.all(QUEUES):
            meta = entry.obj["metadata"]
            mine = [w for w in loads if w["metadata"]["namespace"] == meta["namespace"]
                    and w["spec"]["queueName"] == meta["name"]]  # fmt: skip
            self._counts(QUEUES, entry, mine)
        for entry in self._store.all(CLUSTER_QUEUES):
            name = entry.obj["metadata"]["name"]
            spaces = {(q.obj["metadata"]["namespace"], q.obj["metadata"]["name"])
                      for q in self._store.all(QUEUES)
                      if q.obj["spec"].get("clusterQueue") == name}  # fmt: skip
            mine = [w for w in loads
                    if (w["metadata"]["namespace"], w["spec"]["queueName"]) in spaces]  # fmt: skip
            self._counts(CLUSTER_QUEUES, entry, mine)

    def _counts(self, table: str, entry: Entry, loads: Sequence[Json]) -> None:
        live = [one for one in loads if not condition(one, "Finished")]
        held = [one for one in live if condition(one, "QuotaReserved")]
        status: Json = {
            "pendingWorkloads": len([w for w in live if w["spec"].get("active", True)
                                     and w not in held]),
            "reservingWorkloads": len(held), "admittedWorkloads": len(held),
            "conditions": [{
                "type": "Active", "status": "True", "reason": "Ready",
                "message": "Can admit new workloads",
                "lastTransitionTime": entry.obj["metadata"]["creationTimestamp"],
            }],
        }  # fmt: skip
        if table == CLUSTER_QUEUES:
            rows = list(_usage_rows(entry.obj, self._used(entry.obj["metadata"]["name"])))
            status |= {"flavorsReservation": rows, "flavorsUsage": rows}
        meta = entry.obj["metadata"]
        self._objects.mutate(
            table, meta.get("namespace") or "", meta["name"], lambda one: one.update(status=status)
        )


def _age(entry: Entry) -> tuple[str, int]:
    meta = entry.obj["metadata"]
    return meta["creationTimestamp"], int(meta["resourceVersion"])


def _queued(job: Json) -> bool:
    owners = job["metadata"].get("ownerReferences") or ()
    if any(owner.get("controller") for owner in owners):
        return False
    return QUEUE_LABEL in (job["metadata"].get("labels") or {})


def _templates(job: Json) -> Iterator[tuple[str, Json]]:
    """The pod specs of a job's pod sets, by name."""
    if job["kind"] == "Job":
        yield "main", job["spec"]["template"]["spec"]
        return
    for row in job["spec"].get("replicatedJobs") or ():
        yield row["name"], row["template"]["spec"]["template"]["spec"]


def _pod_sets(job: Json) -> Iterator[Json]:
    if job["kind"] == "Job":
        spec = job["spec"]
        yield {
            "name": "main",
            "count": spec["parallelism"],
            "template": {"spec": spec["template"]["spec"]},
        }
        return
    for row in job["spec"].get("replicatedJobs") or ():
        inner = row["template"]["spec"]
        count = row["replicas"] * (inner.get("parallelism") or 1)
        yield {"name": row["name"], "count": count, "template": {"spec": inner["template"]["spec"]}}


def _fitting(
    flavors: Sequence[Json], asked: Amounts, used: dict[tuple[str, str], Fraction]
) -> tuple[str | None, str]:
    reasons: list[str] = []
    for flavor in flavors:
        name = flavor["name"]
        quotas = {row["name"]: quantity(row["nominalQuota"]) for row in flavor["resources"]}
        why: list[str] = []
        for resource, amount in asked.items():
            total = quotas.get(resource, Fraction(0))
            lacking = used.get((name, resource), Fraction(0)) + amount - total
            if amount > total:
                why.append(
                    f"insufficient quota for {resource} in flavor {name}, previously considered"
                    f" podsets requests (0) + current podset request ({told(amount)}) > maximum"
                    f" capacity ({told(total)})"
                )
            elif lacking > 0:
                why.append(f"insufficient unused quota for {resource} in flavor {name},"
                           f" {told(lacking)} more needed")  # fmt: skip
        if not why:
            return name, ""
        reasons += why
    return None, ", ".join(reasons)


def _usage_rows(cluster: Json, used: dict[tuple[str, str], Fraction]) -> Iterator[Json]:
    for group in cluster["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            rows = [{"name": row["name"], "total": told(used.get((flavor["name"], row["name"]),
                                                                 Fraction(0))), "borrowed": "0"}
                    for row in flavor["resources"]]  # fmt: skip
            yield {"name": flavor["name"], "resources": rows}
