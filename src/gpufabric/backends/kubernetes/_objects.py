"""Paths of objects, and the objects of one job as the cluster has them."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping

from gpufabric._frozen import frozen
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._manifest import CANCELLED, JOB_LABEL, NODES
from gpufabric.errors import CredentialsError, NotFoundError

__all__ = [
    "JOBSET_VERSION",
    "LWS_VERSION",
    "Found",
    "find",
    "path_of",
    "pods_of",
    "rank_of",
    "selector",
    "workloads",
    "workloads_of",
]

_PLURALS = {
    "JobSet": "jobsets",
    "LeaderWorkerSet": "leaderworkersets",
    "Job": "jobs",
    "Secret": "secrets",
    "Service": "services",
    "Pod": "pods",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ComputeDomain": "computedomains",
    "PodGroup": "podgroups",
    "Workload": "workloads",
}
JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
LWS_VERSION = "leaderworkerset.x-k8s.io/v1"
_OF_SET = "leaderworkerset.sigs.k8s.io/name"
#: The labels that say which node a pod is: of an Indexed Job, and of a LeaderWorkerSet:
#: https://github.com/kubernetes-sigs/lws/blob/v0.7.0/api/leaderworkerset/v1/leaderworkerset_types.go
_RANKS = (
    "batch.kubernetes.io/job-completion-index", "leaderworkerset.sigs.k8s.io/worker-index",
)  # fmt: skip


def path_of(api_version: str, kind: str, namespace: str | None, name: str = "") -> str:
    """The path of an object, or of all of its kind; in every namespace where that is None."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    place = f"{root}/namespaces/{namespace}" if namespace is not None else root
    path = f"{place}/{_PLURALS[kind]}"
    return f"{path}/{name}" if name else path


@frozen(kw_only=True)
class Found:
    """A job's owner (JobSet, Job or LeaderWorkerSet).

    And its Job, None where that does not exist (yet): a LeaderWorkerSet has none.
    """

    kind: str
    path: str
    owner: Json
    job: Json | None

    @property
    def num_nodes(self) -> int:
        """The size of the gang."""
        return int(self.owner["metadata"]["annotations"][NODES])

    @property
    def serves(self) -> bool:
        """Whether it starts again for ever."""
        return self.kind == "LeaderWorkerSet"

    @property
    def held(self) -> bool:
        """Whether it has no pods until it is let go."""
        spec = self.owner["spec"]
        return not spec.get("replicas") if self.serves else bool(spec.get("suspend"))

    @property
    def cancelled(self) -> str | None:
        """Why and when it was cancelled, None where it was not."""
        value = (self.owner["metadata"].get("annotations") or {}).get(CANCELLED)
        return None if value is None else str(value)

    def condition(self, *types: str) -> Json | None:
        """The first condition of these types that holds, of the Job first."""
        for one in (self.job, self.owner):
            for condition in ((one or {}).get("status") or {}).get("conditions") or ():
                if condition.get("type") in types and condition.get("status") == "True":
                    return dict(condition)
        return None


def find(  # noqa: PLR0913  # which job, and what is looked for by keyword
    api: Api,
    namespace: str,
    name: str,
    *,
    jobsets: bool = True,
    sets: bool = False,
    serves: bool = False,
) -> Found | None:
    """A job of ours by its name; None where there is none.

    With `sets` also one that serves. Raises `CredentialsError` where those may not be read and one
    of the name runs, or is about to be made (`serves`).
    """
    kinds = (("JobSet", JOBSET_VERSION),) if jobsets else ()
    for kind, version in (*kinds, ("Job", "batch/v1")):
        path = path_of(version, kind, namespace, name)
        try:
            owner = api.get(path)
        except NotFoundError:
            continue
        if not _ours(owner, name):
            continue
        job = owner if kind == "Job" else _only(api, namespace, name)
        return Found(kind=kind, path=path, owner=owner, job=job)
    if not sets and not serves:
        return None
    try:
        return _serving(api, namespace, name)
    except CredentialsError:
        pods = () if serves else pods_of(api, namespace, name)
        if serves or any(_OF_SET in pod["metadata"]["labels"] for pod in pods):
            raise
        return None


def _serving(api: Api, namespace: str, name: str) -> Found | None:
    path = path_of(LWS_VERSION, "LeaderWorkerSet", namespace, name)
    try:
        owner = api.get(path)
    except NotFoundError:
        return None
    if not _ours(owner, name):
        return None
    return Found(kind="LeaderWorkerSet", path=path, owner=owner, job=None)


def _ours(owner: Json, name: str) -> bool:
    meta = owner["metadata"]
    return (meta.get("labels") or {}).get(JOB_LABEL) == name and NODES in (
        meta.get("annotations") or {}
    )


def _only(api: Api, namespace: str, name: str) -> Json | None:
    listed = list(api.items(path_of("batch/v1", "Job", namespace), selector(name)))
    live = [one for one in listed if not one["metadata"].get("deletionTimestamp")]
    return next(iter(live or listed), None)


def selector(name: str) -> Mapping[str, str]:
    """The query that finds the objects of a job."""
    return {"labelSelector": f"{JOB_LABEL}={name}"}


def pods_of(api: Api, namespace: str, name: str) -> list[Json]:
    """The pods of a job, the latest of each rank last."""
    listed = api.items(path_of("v1", "Pod", namespace), selector(name))
    return sorted(listed, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def rank_of(pod: Json) -> int:
    """The node's rank."""
    meta = pod["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    known = [where[name] for where in (labels, notes) for name in _RANKS if name in where]
    return int(known[0] if known else 0)


def workloads(api: Api, namespace: str, found: Found) -> Iterator[Json]:
    """Kueue's own records of a job."""
    groups = api.get("/apis").get("groups") or ()
    for group in groups:
        if group["name"] == "kueue.x-k8s.io":
            version = f"kueue.x-k8s.io/{group['preferredVersion']['version']}"
            query = {"labelSelector": f"kueue.x-k8s.io/job-uid={found.owner['metadata']['uid']}"}
            for load in api.items(path_of(version, "Workload", namespace), query):
                yield {**load, "apiVersion": version}


def workloads_of(api: Api, namespace: str, found: Found) -> list[str]:
    """The paths of Kueue's records of a job."""
    return [
        path_of(load["apiVersion"], "Workload", namespace, str(load["metadata"]["name"]))
        for load in workloads(api, namespace, found)
    ]
