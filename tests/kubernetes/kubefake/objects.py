"""Create, read, update, patch and delete, with the rules of an API server."""

import base64
import datetime as dt
import json
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from . import admission, defaults, rules, schemas
from .errors import Json, bad_request, conflict, exists, expired, forbidden, invalid, not_found
from .kinds import Kinds, Resource
from .patches import patched
from .store import Entry, Key, Store, ordered

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SERVERS_OWN = (
    "uid", "creationTimestamp", "generation", "namespace", "generateName", "deletionTimestamp",
    "deletionGracePeriodSeconds", "resourceVersion",
)  # fmt: skip
_MUTABLE_POD = {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"}


def now() -> str:
    """The time as objects carry it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def after(seconds: float) -> str:
    """A time to come, as objects carry it."""
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def controlled_by(one: Json) -> Json:
    """The owner reference of what a controller makes for an object."""
    meta = one["metadata"]
    return {
        "apiVersion": one["apiVersion"], "kind": one["kind"], "name": meta["name"],
        "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def suffix() -> str:
    """Five letters, as in generated names."""
    return "".join(secrets.choice(_LETTERS) for _ in range(5))


@dataclass(frozen=True, kw_only=True)
class Page:
    """A part of a list."""

    entries: list[Entry]
    version: int
    token: str = ""
    remaining: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """What a list has still to give."""

    rows: list[tuple[Key, Entry]]
    version: int


@dataclass(kw_only=True)
class Objects:
    """The rules over a store."""

    store: Store
    kinds: Kinds
    _rests: "OrderedDict[str, _Rest]" = field(default_factory=OrderedDict)

    # ---- reading

    def get(self, resource: Resource, namespace: str, name: str) -> Entry:
        """One object."""
        found = self.store.find(resource.table, namespace, name)
        if found is None:
            raise not_found(resource.qualified, name)
        return found

    def list(
        self,
        resource: Resource,
        namespace: str,
        *,
        fits: Callable[[Json], bool],
        limit: int,
        token: str,
    ) -> Page:
        """A page of a list. Pages of one list are of one version, as of the first."""
        if token:
            rest = self._rest(token)
        else:
            rows = self.store.sorted(resource.table, namespace)
            rest = _Rest(rows=[row for row in rows if fits(row[1].obj)], version=self.store.version)
        if not limit or limit >= len(rest.rows):
            return Page(entries=[entry for _, entry in rest.rows], version=rest.version)
        left = _Rest(rows=rest.rows[limit:], version=rest.version)
        name = secrets.token_hex(8)
        self._rests[name] = left
        while len(self._rests) > 64:
            self._rests.popitem(last=False)
        made = base64.urlsafe_b64encode(
            json.dumps({"v": "meta.k8s.io/v1", "rv": rest.version, "start": name}).encode()
        ).decode()
        entries = [entry for _, entry in rest.rows[:limit]]
        return Page(entries=entries, version=rest.version, token=made, remaining=len(left.rows))

    def _rest(self, token: str) -> _Rest:
        try:
            said = json.loads(base64.urlsafe_b64decode(token))
            name, version = said["start"], int(said["rv"])
        except (ValueError, KeyError, TypeError) as exc:
            raise bad_request(f"continue key is not valid: {exc}") from exc
        rest = self._rests.get(name)
        if rest is None or version < self.store.forgotten:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result."
                " You can start a new list without the continue parameter."
            )
        return rest

    # ---- writing

    def create(
        self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False
    ) -> Entry:
        """Makes an object."""
        meta = self._typed(resource, namespace, body)
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise invalid(
                    resource.qualified_kind, "",
                    ["metadata.name: Required value: name or generateName is required"],
                )  # fmt: skip
            meta["name"] = f"{meta['generateName'][:58]}{suffix()}"
        self._namespace_takes(resource, namespace, body)
        schemas.check(body, resource)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now()
        for name in ("resourceVersion", "deletionTimestamp", "selfLink", "managedFields"):
            meta.pop(name, None)
        if resource.has_status:
            body.pop("status", None)
        if "spec" in body:
            meta["generation"] = 1
        missing = [f"{p}: Required value" for p in
                   schemas.missing(body, schemas.schema_of(resource))]  # fmt: skip
        if missing:
            raise invalid(resource.qualified_kind, meta["name"], missing)
        defaults.fill(resource.table, body)
        rules.check(resource, body)
        kueue = self.kinds.find("kueue.x-k8s.io", "v1beta2", "workloads") is not None
        admission.admit(self.store, resource, body, kueue=kueue)
        if self.store.find(resource.table, namespace, meta["name"]) is not None:
            raise exists(resource.qualified, meta["name"])
        if resource.table == "pods":
            body["status"] = {"phase": "Pending", "qosClass": _quality(body["spec"])}
        body = ordered(body)
        if dry_run:
            return Entry(body)
        return self.store.put(resource.table, body)

    def _typed(self, resource: Resource, namespace: str, body: Json) -> Json:
        """The metadata of a body that is of the right type."""
        version = body.setdefault("apiVersion", resource.api_version)
        kind = body.setdefault("kind", resource.kind)
        if version != resource.api_version or kind != resource.kind:
            raise bad_request(
                f"{kind} in version {version!r} cannot be handled as a {resource.kind}:"
                f" the path is of {resource.api_version} {resource.kind}"
            )
        meta = body.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise bad_request("json: cannot unmarshal metadata")
        if resource.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on"
                    " the request"
                )
        else:
            meta.pop("namespace", None)
        return meta

    def _namespace_takes(self, resource: Resource, namespace: str, body: Json) -> None:
        if not resource.namespaced:
            return
        space = self.store.find("namespaces", "", namespace)
        if space is None:
            raise not_found("namespaces", namespace)
        if space.obj["metadata"].get("deletionTimestamp"):
            raise forbidden(
                f'{resource.qualified} "{body["metadata"]["name"]}" is forbidden: unable to create'
                f" new content in namespace {namespace} because it is being terminated"
            )

    def update(  # the parts of a request
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Json,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Entry:
        """Replaces an object, or its status."""
        before = self.get(resource, namespace, name)
        meta = self._typed(resource, namespace, body)
        old = before.obj["metadata"]
        if meta.get("name", name) != name:
            raise bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL"
                f" ({name})"
            )
        if meta.get("uid") not in {None, old["uid"]}:
            raise conflict(
                resource.qualified, name,
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta:"
                f" {old['uid']}",
            )  # fmt: skip
        if meta.get("resourceVersion") not in {None, "", old["resourceVersion"]}:
            raise conflict(resource.qualified, name)
        schemas.check(body, resource)
        made = before.copy()
        if subresource == "status":
            made["status"] = body.get("status", {})
        else:
            made = self._replaced(resource, made, body)
        return self._written(resource, before, made, dry_run=dry_run)

    def _replaced(self, resource: Resource, before: Json, body: Json) -> Json:
        old = before["metadata"]
        meta = dict(body["metadata"])
        for key in _SERVERS_OWN:
            meta.pop(key, None)
            if key in old:
                meta[key] = old[key]
        meta["name"] = old["name"]
        made = {**body, "metadata": meta}
        if resource.has_status:
            made.pop("status", None)
            if "status" in before:
                made["status"] = before["status"]
        _immutable(resource, before, made)
        if made.get("spec") != before.get("spec") and "generation" in meta:
            meta["generation"] += 1
        rules.check(resource, made)
        return ordered(made)

    def _written(
        self, resource: Resource, before: Entry, made: Json, *, dry_run: bool = False
    ) -> Entry:
        if made == before.obj:
            return before
        if dry_run:
            return Entry(made)
        meta = made["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not _graceful(made):
            self.store.put(resource.table, made)
            dropped = self.store.drop(resource.table, meta.get("namespace") or "", meta["name"])
            return dropped or before
        return self.store.put(resource.table, made)

    def patch(  # the parts of a request
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: object,
        content_type: str,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Entry:
        """Changes parts of an object."""
        before = self.get(resource, namespace, name)
        schema = None if resource.custom else schemas.schema_of(resource)
        made = patched(before.copy(), patch, content_type, schema)
        return self.update(
            resource, namespace, name, made, subresource=subresource, dry_run=dry_run
        )

    def mutate(
        self, table: str, namespace: str, name: str, change: Callable[[Json], object]
    ) -> Entry | None:
        """A controller's own change, past all rules; None where the object is gone."""
        before = self.store.find(table, namespace, name)
        if before is None:
            return None
        made = before.copy()
        change(made)
        if made == before.obj:
            return before
        resource = next(one for one in self.kinds if one.table == table)
        return self._written(resource, before, made)

    # ---- deleting

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        options: Json,
        *,
        dry_run: bool = False,
    ) -> tuple[Entry, bool]:
        """Deletes an object; whether it is gone already, or its end has only begun."""
        before = self.get(resource, namespace, name)
        meta = before.obj["metadata"]
        asked = options.get("preconditions") or {}
        for key in ("uid", "resourceVersion"):
            if asked.get(key) not in {None, meta[key]}:
                raise conflict(
                    resource.qualified, name,
                    f"Precondition failed: {key.upper()} in precondition: {asked[key]}, in object"
                    f" meta: {meta[key]}",
                )  # fmt: skip
        if dry_run:
            return before, False
        policy = options.get("propagationPolicy") or "Background"
        if policy not in {"Foreground", "Background", "Orphan"}:
            raise bad_request(f"propagationPolicy: Unsupported value: {policy!r}")
        made = before.copy()
        grace = _grace(resource, made, options)
        finalizers = made["metadata"].get("finalizers") or []
        wanted = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy)
        if wanted and wanted not in finalizers and resource.table != "namespaces":
            finalizers = [*finalizers, wanted]
            made["metadata"]["finalizers"] = finalizers
        if not finalizers and not grace and resource.table != "namespaces":
            dropped = self.store.drop(resource.table, namespace, name)
            return dropped or before, True
        if not made["metadata"].get("deletionTimestamp"):
            made["metadata"]["deletionTimestamp"] = after(grace)
            made["metadata"]["deletionGracePeriodSeconds"] = grace
            if "generation" in made["metadata"]:
                made["metadata"]["generation"] += 1
        elif grace < made["metadata"].get("deletionGracePeriodSeconds", 0):
            made["metadata"]["deletionTimestamp"] = after(grace)
            made["metadata"]["deletionGracePeriodSeconds"] = grace
        if resource.table == "namespaces":
            made["status"] = {"phase": "Terminating"}
        if made == before.obj:
            return before, False
        return self.store.put(resource.table, made), False


def _graceful(made: Json) -> bool:
    """Whether its end is for a kubelet or a controller to tell."""
    if made["kind"] == "Namespace":
        return True
    return made["kind"] == "Pod" and bool(made["metadata"].get("deletionGracePeriodSeconds"))


def _grace(resource: Resource, body: Json, options: Json) -> int:
    """Seconds that a kubelet has to end a pod: k8s.io/kubernetes/pkg/registry/core/pod."""
    if resource.table != "pods":
        return 0
    ended = (body.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    if not body["spec"].get("nodeName") or ended:
        return 0
    asked = options.get("gracePeriodSeconds")
    if asked is None:
        asked = body["spec"].get("terminationGracePeriodSeconds", 30)
    return int(asked)


def _quality(spec: Json) -> str:
    rows = [one.get("resources") or {} for one in spec["containers"]]
    if not any(row.get("limits") or row.get("requests") for row in rows):
        return "BestEffort"
    full = all(
        {"cpu", "memory"} <= set(row.get("limits") or {})
        and row.get("limits") == row.get("requests")
        for row in rows
    )
    return "Guaranteed" if full else "Burstable"


def _immutable(resource: Resource, before: Json, made: Json) -> None:
    """Refuses a change of what may not change."""
    name = before["metadata"]["name"]
    kind = resource.qualified_kind
    words = "field is immutable"
    if before.get("immutable"):
        for part in ("data", "immutable", "binaryData", "stringData"):
            if made.get(part) != before.get(part):
                told = f"{part}: Forbidden: field is immutable when `immutable` is set"
                raise invalid(kind, name, [told])
    old, new = before.get("spec") or {}, made.get("spec") or {}
    if resource.table == "jobs.batch":
        if old.get("suspend") and not (before.get("status") or {}).get("active"):
            old, new = _unscheduled(old), _unscheduled(new)
        fixed = ["selector", "completionMode", "podFailurePolicy", "template"]
        changed = [f"spec.{f}: Invalid value: {words}" for f in fixed if old.get(f) != new.get(f)]
        count = new.get("completions")
        if old.get("completions") != count and count != new.get("parallelism"):
            told = "can only be modified in tandem with spec.parallelism"
            changed.append(f"spec.completions: Invalid value: {count}: {told}")
        if changed:
            raise invalid(kind, name, changed)
    elif resource.table == "jobsets.jobset.x-k8s.io":
        same = _munged(old) if old.get("suspend") or new.get("suspend") else old
        now_ = _munged(new) if old.get("suspend") or new.get("suspend") else new
        for part in ("replicatedJobs", "managedBy", "successPolicy", "failurePolicy", "network"):
            if same.get(part) != now_.get(part):
                raise invalid(kind, name, [f"spec.{part}: Invalid value: {words}"])
    elif resource.table == "pods":
        changed = [key for key in {*old, *new} if old.get(key) != new.get(key)]
        if not set(changed) <= _MUTABLE_POD:
            told = "spec: Forbidden: pod updates may not change fields other than"
            raise invalid(kind, name, [f"{told} `spec.containers[*].image` and a few others"])


def _munged(spec: Json) -> Json:
    """A JobSet's spec without what may change while it is suspended."""
    made: Json = json.loads(json.dumps(spec))
    for row in made.get("replicatedJobs") or ():
        row["template"]["spec"] = _unscheduled(row["template"]["spec"])
    return made


def _unscheduled(spec: Json) -> Json:
    """A Job's spec without what may change of its pods while it is suspended."""
    made: Json = json.loads(json.dumps(spec))
    template = made["template"]
    for part in ("labels", "annotations"):
        (template.get("metadata") or {}).pop(part, None)
    for part in ("nodeSelector", "tolerations", "schedulingGates"):
        template["spec"].pop(part, None)
    return made
