"""The objects of one gang beside its pods: their owner, Service, Secret, claims, groups."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._carry import CODE_LABEL
from gpufabric.backends.kubernetes._gang import (
    ATTEMPT_LABEL,
    CANCELLED,
    CHANNEL,
    CONTAINER,
    JOB_LABEL,
    NODES,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    REPLICA,
    UNDISTURBED,
    Gang,
)
from gpufabric.backends.kubernetes._merge import merged
from gpufabric.backends.kubernetes._pod import pod
from gpufabric.backends.kubernetes._serve import serving_spec

__all__ = [
    "ATTEMPT_LABEL",
    "CANCELLED",
    "CONTAINER",
    "JOB_LABEL",
    "NODES",
    "QUEUE_LABEL",
    "REPLICA",
    "VOLCANO_QUEUE",
    "Gang",
    "owned",
    "owner",
]

VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotations by which a pod names its PodGroup of Volcano, and the queue of the one that Volcano
makes for a pod that names none:
https://pkg.go.dev/volcano.sh/apis@v1.14.0/pkg/apis/scheduling/v1beta1#pkg-constants"""


def owner(gang: Gang) -> Json:
    """The JobSet, Job or LeaderWorkerSet, suspended until everything else is there."""
    meta: Json = {
        "name": gang.name, "namespace": gang.namespace, "labels": gang.labels,
        "annotations": {NODES: str(gang.num_nodes)},
    }  # fmt: skip
    if gang.code:
        meta["annotations"][CODE_LABEL] = {"packed": "name"}
    if gang.queue:
        meta["labels"][QUEUE_LABEL] = gang.queue
        if gang.queue_priority:
            meta["labels"][PRIORITY_LABEL] = gang.queue_priority
    specs = {"Job": _job, "JobSet": _jobset, "LeaderWorkerSet": _serving}
    spec = specs[gang.kind](gang)
    return {"apiVersion": gang.version, "kind": gang.kind, "metadata": meta, "spec": spec}


def _job(gang: Gang) -> Json:
    return {**_job_spec(gang), "suspend": True}


def _jobset(gang: Gang) -> Json:
    replicated = {
        "name": REPLICA,
        "replicas": 1,
        "template": {"metadata": {"labels": gang.labels}, "spec": _job_spec(gang)},
    }
    return {
        "suspend": True,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True,
                    "subdomain": gang.name},
        "failurePolicy": {"maxRestarts": gang.max_restarts},
        "replicatedJobs": [replicated],
    }  # fmt: skip


def _serving(gang: Gang) -> Json:
    return serving_spec(gang.num_nodes, _template(gang))


def _job_spec(gang: Gang) -> Json:
    """An Indexed Job that fails as one.

    It has no podFailurePolicy: with one, a pod of a lost node would count as failed only when
    someone removes the node, and the others would run, and cost, until then.
    """
    spec: Json = {
        "completions": gang.num_nodes,
        "parallelism": gang.num_nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": _template(gang),
    }
    if gang.timeout_s is not None:
        spec["activeDeadlineSeconds"] = gang.timeout_s
    return spec


def _template(gang: Gang) -> Json:
    """What the pods are made from."""
    way = gang.way
    annotations = {**(way.annotations if way else {}), **gang.nearness.annotations}
    if gang.group and gang.group.startswith("scheduling.volcano.sh/"):
        annotations[VOLCANO_GROUP] = gang.name
    if gang.group_queue:
        annotations[VOLCANO_QUEUE] = gang.group_queue
    if gang.undisturbed:
        annotations[UNDISTURBED] = "true"
    labels = {**gang.labels, **(way.labels if way else {})}
    spec = merged(pod(gang), gang.pod_patch) if gang.pod_patch else pod(gang)
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


# ---- what the owner owns


def owned(gang: Gang) -> Iterator[Json]:
    """Secret, Service, claims, groups, in the order in which they are made."""
    if gang.secrets:
        data = {name: {"secret": name} for name in gang.secrets}
        yield {
            "apiVersion": "v1", "kind": "Secret", "metadata": gang.metadata(), "type": "Opaque",
            "immutable": True, "data": data,
        }  # fmt: skip
    if gang.num_nodes > 1 and gang.kind == "Job":  # the other controllers make their own
        spec = {
            "clusterIP": "None", "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: gang.name},
        }  # fmt: skip
        yield {"apiVersion": "v1", "kind": "Service", "metadata": gang.metadata(), "spec": spec}
    for name, claim in (gang.way.claims if gang.way else {}).items():
        yield {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": gang.metadata(gang.claims[name]), "spec": {"spec": thaw(claim)},
        }  # fmt: skip
    if gang.domain:
        yield _domain(gang)
    if gang.group:
        yield _group(gang, gang.group)


def _domain(gang: Gang) -> Json:
    """Joins the NVLink of the gang's nodes; its controller makes the template of the pods' claims.

    https://github.com/NVIDIA/k8s-dra-driver-gpu/blob/main/api/nvidia.com/resource/v1beta1/computedomain.go
    """
    template = {"name": gang.claims[CHANNEL]}
    return {
        "apiVersion": f"resource.nvidia.com/{gang.domain}", "kind": "ComputeDomain",
        "metadata": gang.metadata(),
        "spec": {"numNodes": gang.num_nodes, "channel": {"resourceClaimTemplate": template}},
    }  # fmt: skip


def _group(gang: Gang, version: str) -> Json:
    """What a gang scheduler places as one.

    https://pkg.go.dev/k8s.io/api@v0.36.3/scheduling/v1alpha2#PodGroupSpec
    https://pkg.go.dev/k8s.io/api@v0.35.3/scheduling/v1alpha1#WorkloadSpec
    https://pkg.go.dev/volcano.sh/apis@v1.14.0/pkg/apis/scheduling/v1beta1#PodGroupSpec
    """
    kind, size = "PodGroup", {"gang": {"minCount": gang.num_nodes}}
    spec: Json = {"schedulingPolicy": size}
    if version == "scheduling.k8s.io/v1alpha1":
        kind, spec = "Workload", {"podGroups": [{"name": REPLICA, "policy": size}]}
    elif version.startswith("scheduling.volcano.sh/"):
        spec = {"minMember": gang.num_nodes}
        if gang.group_queue:
            spec["queue"] = gang.group_queue
        if gang.priority:
            spec["priorityClassName"] = gang.priority
    return {"apiVersion": version, "kind": kind, "metadata": gang.metadata(), "spec": spec}
