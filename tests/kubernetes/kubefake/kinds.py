"""What the fake serves: resources with their verbs, and the discovery documents made of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import Json

ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ_WRITE = ("get", "patch", "update")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource of one API version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    verbs: tuple[str, ...] = ALL
    subresources: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    custom: bool = False

    @property
    def table(self) -> str:
        """Where its objects are kept, whatever the version."""
        return self.qualified

    @property
    def qualified(self) -> str:
        """As messages name it: `jobs.batch`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """As messages of invalid objects name it: `Job.batch`, `Pod`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def api_version(self) -> str:
        """As objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        """Whether status is written apart."""
        return any(name == "status" for name, _, _ in self.subresources)


_STATUS = "status"


def _of(
    group_version: str, plural: str, kind: str, *flags: str, subs: tuple[str, ...] = ()
) -> Resource:
    group, _, version = group_version.rpartition("/")
    made: list[tuple[str, str, tuple[str, ...]]] = []
    if _STATUS in flags:
        made.append((_STATUS, kind, READ_WRITE))
    for sub in subs:
        name, _, rest = sub.partition(":")
        sub_kind, _, verbs = rest.partition(":")
        made.append((name, sub_kind or kind, tuple(verbs.split(",")) if verbs else READ_WRITE))
    return Resource(
        group=group, version=version, plural=plural, kind=kind,
        namespaced="cluster" not in flags,
        verbs=("create",) if "create-only" in flags else ALL,
        subresources=tuple(made), custom="custom" in flags,
    )  # fmt: skip


_POD_SUBS = (
    "log:Pod:get", "exec:PodExecOptions:create,get", "attach:PodAttachOptions:create,get",
    "portforward:PodPortForwardOptions:create,get", "eviction:Eviction:create",
    "binding:Binding:create",
)  # fmt: skip
_RBAC = "rbac.authorization.k8s.io/v1"
_AUTH = "authorization.k8s.io/v1"
_DRA = "resource.k8s.io/v1"
BUILTIN = (
    _of("v1", "namespaces", "Namespace", "cluster", "status"),
    _of("v1", "nodes", "Node", "cluster", "status"),
    _of("v1", "pods", "Pod", "status", subs=_POD_SUBS),
    _of("v1", "secrets", "Secret"),
    _of("v1", "configmaps", "ConfigMap"),
    _of("v1", "services", "Service", "status"),
    _of("v1", "serviceaccounts", "ServiceAccount"),
    _of("v1", "events", "Event"),
    _of("v1", "resourcequotas", "ResourceQuota", "status"),
    _of("v1", "limitranges", "LimitRange"),
    _of("v1", "persistentvolumeclaims", "PersistentVolumeClaim", "status"),
    _of("apps/v1", "deployments", "Deployment", "status"),
    _of("apps/v1", "daemonsets", "DaemonSet", "status"),
    _of("batch/v1", "jobs", "Job", "status"),
    _of("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", "cluster"),
    _of("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", "status"),
    _of("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", "status"),
    _of("storage.k8s.io/v1", "storageclasses", "StorageClass", "cluster"),
    _of("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", "cluster"),
    _of("coordination.k8s.io/v1", "leases", "Lease"),
    _of(_RBAC, "roles", "Role"),
    _of(_RBAC, "rolebindings", "RoleBinding"),
    _of(_RBAC, "clusterroles", "ClusterRole", "cluster"),
    _of(_RBAC, "clusterrolebindings", "ClusterRoleBinding", "cluster"),
    _of(_AUTH, "selfsubjectaccessreviews", "SelfSubjectAccessReview", "cluster", "create-only"),
    _of(_AUTH, "selfsubjectrulesreviews", "SelfSubjectRulesReview", "cluster", "create-only"),
    _of(_DRA, "deviceclasses", "DeviceClass", "cluster"),
    _of(_DRA, "resourceclaims", "ResourceClaim", "status"),
    _of(_DRA, "resourceclaimtemplates", "ResourceClaimTemplate"),
    _of(_DRA, "resourceslices", "ResourceSlice", "cluster"),
    _of("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition",
        "cluster", "status"),
    _of("admissionregistration.k8s.io/v1", "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy", "cluster", "status"),
)  # fmt: skip
_KUEUE = "kueue.x-k8s.io/v1beta2"
ADDONS = {
    "jobset": (_of("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "status", "custom"),),
    "kueue": (
        _of(_KUEUE, "workloads", "Workload", "status", "custom"),
        _of(_KUEUE, "localqueues", "LocalQueue", "status", "custom"),
        _of(_KUEUE, "clusterqueues", "ClusterQueue", "status", "cluster", "custom"),
        _of(_KUEUE, "resourceflavors", "ResourceFlavor", "cluster", "custom"),
        _of(_KUEUE, "workloadpriorityclasses", "WorkloadPriorityClass", "cluster", "custom"),
        _of(_KUEUE, "topologies", "Topology", "cluster", "custom"),
        _of(_KUEUE, "admissionchecks", "AdmissionCheck", "status", "cluster", "custom"),
    ),
    "lws": (
        _of("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", "status",
            "custom"),
    ),
}  # fmt: skip


class Kinds:
    """The resources that one server serves, by group, version and plural."""

    def __init__(self, addons: tuple[str, ...]) -> None:
        self._served: dict[tuple[str, str], dict[str, Resource]] = {}
        for one in BUILTIN:
            self.add(one)
        for name in addons:
            for one in ADDONS[name]:
                self.add(one)

    def add(self, one: Resource) -> None:
        """Serves it from now on."""
        self._served.setdefault((one.group, one.version), {})[one.plural] = one

    def remove(self, one: Resource) -> None:
        """Serves it no more."""
        plurals = self._served.get((one.group, one.version), {})
        plurals.pop(one.plural, None)
        if not plurals:
            self._served.pop((one.group, one.version), None)

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """One resource, None where it is not served."""
        return self._served.get((group, version), {}).get(plural)

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        """The resource of an object's type."""
        group, _, version = api_version.rpartition("/")
        rows = self._served.get((group, version), {}).values()
        return next((one for one in rows if one.kind == kind), None)

    def __iter__(self) -> Iterator[Resource]:
        for plurals in self._served.values():
            yield from plurals.values()

    # ---- discovery

    def groups(self) -> Json:
        """`/apis`."""
        found: dict[str, list[str]] = {}
        for group, version in self._served:
            if group:
                found.setdefault(group, []).append(version)
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(name, versions) for name, versions in found.items()],
        }

    def group(self, name: str) -> Json | None:
        """`/apis/NAME`."""
        versions = [version for group, version in self._served if group == name]
        if not versions or not name:
            return None
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}

    def resources(self, group: str, version: str) -> Json | None:
        """`/apis/GROUP/VERSION`, `/api/v1`."""
        plurals = self._served.get((group, version))
        if plurals is None:
            return None
        rows = [row for one in plurals.values() for row in _rows(one)]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": rows,
        }


def _group(name: str, versions: list[str]) -> Json:
    rows = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": rows, "preferredVersion": rows[0]}


def _rows(one: Resource) -> Iterator[Json]:
    yield {
        "name": one.plural, "singularName": one.kind.lower(), "namespaced": one.namespaced,
        "kind": one.kind, "verbs": list(one.verbs),
    }  # fmt: skip
    for name, kind, verbs in one.subresources:
        yield {
            "name": f"{one.plural}/{name}", "singularName": "", "namespaced": one.namespaced,
            "kind": kind, "verbs": list(verbs),
        }  # fmt: skip
