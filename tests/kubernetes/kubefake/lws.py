"""The LeaderWorkerSet controller of https://github.com/kubernetes-sigs/lws, 0.7: one group only.

Pods are made at once, without the StatefulSets between; what those say of pods that are refused is
told in their name.
"""

from .errors import Json, Refusal
from .events import reference
from .jobs import Controller
from .objects import controlled_by
from .store import Entry

TABLE = "leaderworkersets.leaderworkerset.x-k8s.io"
_PREFIX = "leaderworkerset.sigs.k8s.io"
_RETRY_S = 0.5


class LeaderWorkerSets(Controller):
    """Makes group 0 of each set, and makes it anew when one of its containers has ended."""

    def look(self, entry: Entry) -> None:
        """One look at a set: it makes, or removes, its leader."""
        one = entry.obj
        meta = one["metadata"]
        self._service(one)
        leaders = self._parent.controlled(meta["uid"], "pods")
        if not leaders and one["spec"]["replicas"]:
            self._make(one, one, 0)
        for leader in leaders:
            if one["spec"]["replicas"]:
                self.look_at_leader(leader.obj)
            else:
                self._delete(leader.obj, "Background")

    def look_at_leader(self, leader: Json) -> None:
        """One look at a pod that leads a group, if it does: `Reconcile` in pod_controller.go."""
        labels = leader["metadata"].get("labels") or {}
        going = leader["metadata"].get("deletionTimestamp")
        if going or labels.get(f"{_PREFIX}/worker-index") != "0":
            return
        found = self._objects.store.find(
            TABLE, leader["metadata"]["namespace"], labels[f"{_PREFIX}/name"]
        )
        if found is None or found.obj["metadata"].get("deletionTimestamp"):
            return
        one = found.obj
        workers = [e.obj for e in self._parent.controlled(leader["metadata"]["uid"], "pods")]
        for pod in (leader, *workers):
            if _restarted(pod) or pod["metadata"].get("deletionTimestamp"):
                name = pod["metadata"]["name"]
                words = f"Worker pod {name} failed, deleted leader pod {leader['metadata']['name']}"
                self._delete(leader, "Foreground")
                self._events.tell(reference(one), "RecreateGroupOnPodRestart",
                                  f"{words} to recreate group 0", component="lws")  # fmt: skip
                return
        there = {pod["metadata"]["name"] for pod in workers}
        for rank in range(1, one["spec"]["leaderWorkerTemplate"]["size"]):
            if f"{leader['metadata']['name']}-{rank}" not in there:
                self._make(one, leader, rank)

    def _service(self, one: Json) -> None:
        meta = one["metadata"]
        if self._objects.store.find("services", meta["namespace"], meta["name"]) is not None:
            return
        marks = {f"{_PREFIX}/name": meta["name"]}
        self._create("services", meta["namespace"], {
            "kind": "Service", "apiVersion": "v1",
            "metadata": {
                "name": meta["name"], "labels": marks, "ownerReferences": [controlled_by(one)],
            },
            "spec": {"clusterIP": "None", "selector": marks, "publishNotReadyAddresses": True},
        })  # fmt: skip

    def _make(self, one: Json, owner: Json, rank: int) -> None:
        meta, pod = one["metadata"], _pod(one, owner, rank)
        try:
            self._create("pods", meta["namespace"], pod)
        except Refusal as exc:
            name = f"{meta['name']}-0" if rank else meta["name"]
            about = {**reference(one), "kind": "StatefulSet", "apiVersion": "apps/v1", "name": name}
            told = f"create Pod {pod['metadata']['name']} in StatefulSet {name} failed error:"
            self._events.tell(about, "FailedCreate", f"{told} {exc.message}", warning=True,
                              component="statefulset-controller")  # fmt: skip
            self._parent.later(_RETRY_S, TABLE, (meta["namespace"], meta["name"]))

    def _create(self, plural: str, namespace: str, body: Json) -> None:
        resource = self._objects.kinds.find("", "v1", plural)
        assert resource is not None
        self._objects.create(resource, namespace, body)

    def _delete(self, pod: Json, policy: str) -> None:
        meta = pod["metadata"]
        resource = self._objects.kinds.find("", "v1", "pods")
        assert resource is not None
        if not meta.get("deletionTimestamp"):
            options = {"propagationPolicy": policy}
            self._objects.delete(resource, meta["namespace"], meta["name"], options)


def _restarted(pod: Json) -> bool:
    """`ContainerRestarted` in pkg/utils/pod/pod_utils.go."""
    status = pod.get("status") or {}
    rows = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    alive = status.get("phase") in {"Running", "Pending"}
    return alive and any(row.get("restartCount") for row in rows)


def _pod(one: Json, owner: Json, rank: int) -> Json:
    """As the webhook of pods and the StatefulSets make it."""
    meta, template = one["metadata"], one["spec"]["leaderWorkerTemplate"]
    made = Entry(template["workerTemplate"]).copy()
    inner, spec, leader = made.get("metadata") or {}, made["spec"], f"{meta['name']}-0"
    name = f"{leader}-{rank}" if rank else leader
    marks = {"name": meta["name"], "group-index": "0", "worker-index": str(rank)}
    labels = {f"{_PREFIX}/{word}": value for word, value in marks.items()}
    spec |= {"hostname": name, "subdomain": meta["name"]}
    given = {
        "LWS_LEADER_ADDRESS": f"{leader}.{meta['name']}.{meta['namespace']}",
        "LWS_GROUP_SIZE": str(template["size"]), "LWS_WORKER_INDEX": str(rank),
    }  # fmt: skip
    rows = [{"name": key, "value": value} for key, value in given.items()]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        container["env"] = [*rows, *(container.get("env") or [])]
    return {
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name, "labels": {**(inner.get("labels") or {}), **labels},
            "annotations": {
                **(inner.get("annotations") or {}), f"{_PREFIX}/size": str(template["size"]),
            },
            "ownerReferences": [controlled_by(owner)],
        },
        "spec": spec,
    }  # fmt: skip
