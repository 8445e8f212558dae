"""The controllers' loop, and the small ones: garbage collection, namespaces, quotas."""

import asyncio
from collections import defaultdict

from .admission import used_of
from .events import Events
from .jobs import Jobs
from .jobsets import JobSets
from .kinds import Resource
from .kueue import Kueue
from .lws import TABLE as SETS
from .lws import LeaderWorkerSets
from .objects import FOREGROUND, ORPHAN, Objects
from .quantities import amounts, told
from .scheduler import Scheduler
from .store import Change, Entry, Key

Place = tuple[str, str, str]  # table, namespace, name
_SETTLES = 200  # rounds without an end are a fault of the fake


class Controllers:
    """Acts on changes until nothing is left to do; wakes when something is."""

    def __init__(self, objects: Objects, events: Events) -> None:
        self._objects = objects
        self._store = objects.store
        self._scheduler = Scheduler(objects, events)
        self._jobs = Jobs(objects, events, self)
        self._jobsets = JobSets(objects, events, self)
        self._sets = LeaderWorkerSets(objects, events, self)
        self._kueue = Kueue(objects, events)
        self._dirty: set[Place] = set()
        self._owners: defaultdict[str, set[Place]] = defaultdict(set)
        self._places: dict[str, Place] = {}
        self._gone: list[Entry] = []
        self._planned = False
        self._broad: set[str] = set()
        self._store.listen(self._changed)

    # ---- for controllers

    def controlled(self, uid: str, table: str) -> list[Entry]:
        """What an object controls, of one kind: it may own more than that."""
        found = [self._store.find(*place) for place in sorted(self._owners.get(uid, ()))
                 if place[0] == table]  # fmt: skip
        return [entry for entry in found if entry is not None and any(
            ref["uid"] == uid and ref.get("controller")
            for ref in entry.obj["metadata"].get("ownerReferences") or ()
        )]  # fmt: skip

    def later(self, seconds: float, table: str, key: Key) -> None:
        """Looks at an object again after a time."""
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, seconds), self._wake, (table, *key))

    def _wake(self, place: Place) -> None:
        self._dirty.add(place)
        self._plan()

    # ---- changes

    def _changed(self, change: Change) -> None:
        meta = change.entry.obj["metadata"]
        place = (change.table, meta.get("namespace") or "", meta["name"])
        owners = meta.get("ownerReferences") or ()
        for owner in owners:
            if change.type == "DELETED":
                self._owners[owner["uid"]].discard(place)
            else:
                self._owners[owner["uid"]].add(place)
            if owner["uid"] in self._places:  # who owns it wants to know
                self._dirty.add(self._places[owner["uid"]])
        if change.type == "DELETED":
            self._places.pop(meta["uid"], None)
        else:
            self._places[meta["uid"]] = place
        if change.type == "DELETED":
            self._gone.append(change.entry)
        self._dirty.add(place)
        if change.table in {"pods", "nodes", "podgroups.scheduling.k8s.io"}:
            self._broad.add("schedule")
        if change.table in {"resourcequotas", "limitranges"} or (
            change.type != "MODIFIED" and change.table in {"pods", "secrets", "services"}
        ):
            self._broad.add("quota")
        if change.table.endswith((".kueue.x-k8s.io", "jobs.batch", ".jobset.x-k8s.io")):
            self._broad.add("kueue")
        self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._planned = False
        for _ in range(_SETTLES):
            gone, self._gone = self._gone, []
            for entry in gone:
                self._collect(entry)
            dirty, self._dirty = self._dirty, set()
            broad, self._broad = self._broad, set()
            if not (gone or dirty or broad):
                return
            for place in sorted(dirty):
                self._look(place)
            if "kueue" in broad:
                self._kueue.run()
            if "schedule" in broad:
                self._scheduler.run()
            if "quota" in broad:
                self._quotas()
        raise RuntimeError("the fake's controllers do not come to rest")

    def _look(self, place: Place) -> None:
        table, namespace, name = place
        entry = self._store.find(table, namespace, name)
        if entry is None:
            return
        if entry.obj["metadata"].get("deletionTimestamp"):
            self._ending(place, entry)
            return
        if table == "jobs.batch":
            self._jobs.look(entry)
        elif table == "jobsets.jobset.x-k8s.io":
            self._jobsets.look(entry)
        elif table == SETS:
            self._sets.look(entry)
        elif table == "pods":
            self._sets.look_at_leader(entry.obj)
        elif table == "namespaces":
            self._furnish(name)
        elif table == "customresourcedefinitions.apiextensions.k8s.io":
            self._serve(entry)

    # ---- the end of objects

    def _resource(self, table: str) -> Resource:
        return next(one for one in self._objects.kinds if one.table == table)

    def _ending(self, place: Place, entry: Entry) -> None:
        table, namespace, name = place
        finalizers = entry.obj["metadata"].get("finalizers") or []
        if table == "namespaces":
            self._empty(name)
        elif FOREGROUND in finalizers:
            self._foreground(place, entry)
        elif ORPHAN in finalizers:
            uid = entry.obj["metadata"]["uid"]
            for dependent in tuple(self._owners.get(uid, ())):
                self._disown(dependent, {uid})
            self._unfinalize(place, ORPHAN)
        elif table == "customresourcedefinitions.apiextensions.k8s.io" and not finalizers:
            self._store.drop(table, namespace, name)

    def _foreground(self, place: Place, entry: Entry) -> None:
        """What blocks goes first: k8s.io/kubernetes/pkg/controller/garbagecollector."""
        uid = entry.obj["metadata"]["uid"]
        blocking = False
        for dependent in sorted(self._owners.get(uid, ())):
            found = self._store.find(*dependent)
            if found is None:
                continue
            refs = found.obj["metadata"].get("ownerReferences") or ()
            mine = [ref for ref in refs if ref["uid"] == uid]
            blocking = blocking or any(ref.get("blockOwnerDeletion") for ref in mine)
            others = [r for r in refs if r["uid"] != uid and self._lives(r, dependent)]
            if others:
                self._disown(dependent, {uid})
            elif not found.obj["metadata"].get("deletionTimestamp"):
                self._delete(dependent, "Foreground")
        if not blocking or not self._owners.get(uid):
            self._unfinalize(place, FOREGROUND)

    def _lives(self, ref: dict[str, str], dependent: Place) -> bool:
        resource = self._objects.kinds.of_kind(ref["apiVersion"], ref["kind"])
        if resource is None:
            return False
        space = dependent[1] if resource.namespaced else ""
        found = self._store.find(resource.table, space, ref["name"])
        if found is None or found.obj["metadata"]["uid"] != ref["uid"]:
            return False
        return FOREGROUND not in (found.obj["metadata"].get("finalizers") or ())

    def _unfinalize(self, place: Place, finalizer: str) -> None:
        self._objects.mutate(*place, lambda one: one["metadata"].update(
            finalizers=[f for f in one["metadata"].get("finalizers") or () if f != finalizer]
        ))  # fmt: skip

    def _disown(self, dependent: Place, uids: set[str]) -> None:
        self._objects.mutate(*dependent, lambda one: one["metadata"].update(
            ownerReferences=[r for r in one["metadata"].get("ownerReferences") or ()
                             if r["uid"] not in uids]
        ))  # fmt: skip
        for uid in uids:
            self._owners[uid].discard(dependent)

    def _delete(self, place: Place, policy: str) -> None:
        table, namespace, name = place
        self._objects.delete(self._resource(table), namespace, name, {"propagationPolicy": policy})

    def _collect(self, entry: Entry) -> None:
        """The owner is gone: so is what has no other."""
        uid = entry.obj["metadata"]["uid"]
        for dependent in sorted(self._owners.get(uid, ())):
            found = self._store.find(*dependent)
            if found is None:
                continue
            refs = found.obj["metadata"].get("ownerReferences") or ()
            lost = {ref["uid"] for ref in refs if not self._lives(ref, dependent)}
            if len(lost) < len({ref["uid"] for ref in refs}):
                self._disown(dependent, lost)
            elif not found.obj["metadata"].get("deletionTimestamp"):
                self._delete(dependent, "Background")
        self._owners.pop(uid, None)

    # ---- namespaces

    def _furnish(self, namespace: str) -> None:
        """What every namespace gets."""
        for plural, kind, name in (("serviceaccounts", "ServiceAccount", "default"),
                                   ("configmaps", "ConfigMap", "kube-root-ca.crt")):  # fmt: skip
            if self._store.find(plural, namespace, name) is None:
                body = {"kind": kind, "apiVersion": "v1", "metadata": {"name": name}}
                if kind == "ConfigMap":
                    body["data"] = {"ca.crt": "none"}  # type: ignore[assignment]
                self._objects.create(self._resource(plural), namespace, body)

    def _empty(self, namespace: str) -> None:
        left = False
        for resource in tuple(self._objects.kinds):
            if not resource.namespaced or resource.verbs == ("create",):
                continue
            for entry in self._store.all(resource.table, namespace):
                left = True
                meta = entry.obj["metadata"]
                if not meta.get("deletionTimestamp"):
                    self._delete((resource.table, namespace, meta["name"]), "Background")
        if left:
            self.later(0.05, "namespaces", ("", namespace))
        else:
            self._store.drop("namespaces", "", namespace)

    # ---- definitions

    def _serve(self, entry: Entry) -> None:
        spec = entry.obj["spec"]
        for version in spec["versions"]:
            if version["served"]:
                self._objects.kinds.add(Resource(
                    group=spec["group"], version=version["name"], plural=spec["names"]["plural"],
                    kind=spec["names"]["kind"], namespaced=spec["scope"] == "Namespaced",
                    subresources=(("status", spec["names"]["kind"], ("get", "patch", "update")),)
                    if (version.get("subresources") or {}).get("status") is not None else (),
                    custom=True,
                ))  # fmt: skip
        moment = entry.obj["metadata"]["creationTimestamp"]
        conditions = [{"type": kind, "status": "True", "reason": "InitialNamesAccepted",
                       "message": "", "lastTransitionTime": moment}
                      for kind in ("NamesAccepted", "Established")]  # fmt: skip
        self._objects.mutate(
            "customresourcedefinitions.apiextensions.k8s.io", "", entry.obj["metadata"]["name"],
            lambda one: one.update(status={"conditions": conditions}),
        )  # fmt: skip

    # ---- quotas

    def _quotas(self) -> None:
        for entry in self._store.all("resourcequotas"):
            meta = entry.obj["metadata"]
            hard = amounts(entry.obj["spec"].get("hard"))
            used = used_of(self._store, meta["namespace"], hard, iter(self._objects.kinds))
            status = {
                "hard": {name: told(value) for name, value in hard.items()},
                "used": {name: told(value) for name, value in used.items()},
            }
            self._objects.mutate(
                "resourcequotas", meta["namespace"], meta["name"],
                lambda one, status=status: one.update(status=status),
            )  # fmt: skip
