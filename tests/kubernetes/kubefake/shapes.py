"""Shapes of kinds that Kubernetes' own description does not have: JobSet's, Kueue's and LWS'.

Written by hand after their types: https://github.com/kubernetes-sigs/jobset (api/jobset/v1alpha2)
and https://github.com/kubernetes-sigs/kueue (apis/kueue/v1beta2). A field that is missing here is
refused by the fake and taken by a real server: add it.
"""

from .errors import Json


def _ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "integer"}
FLAG: Json = {"type": "boolean"}
ANY: Json = {"type": "object", "x-any": True}
TEXTS: Json = {"type": "array", "items": TEXT}
WORDS: Json = {"type": "object", "additionalProperties": TEXT}
QUANTITY = _ref("io.k8s.apimachinery.pkg.api.resource.Quantity")
SELECTOR = _ref("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector")
CONDITIONS: Json = {
    "type": "array",
    "items": _ref("io.k8s.apimachinery.pkg.apis.meta.v1.Condition"),
}
POD_TEMPLATE = _ref("io.k8s.api.core.v1.PodTemplateSpec")


def one(*required: str, **fields: Json) -> Json:
    """An object with just these fields."""
    return {"type": "object", "properties": fields, "required": list(required)}


def many(item: Json) -> Json:
    """A list."""
    return {"type": "array", "items": item}


def _kind(spec: Json, status: Json | None = None) -> Json:
    meta = _ref("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
    fields = {"apiVersion": TEXT, "kind": TEXT, "metadata": meta, "spec": spec}
    if status is not None:
        fields["status"] = status
    return one("metadata", **fields)


_REPLICATED = one(
    "name", "template",
    name=TEXT, groupName=TEXT, replicas=NUMBER,
    template=_ref("io.k8s.api.batch.v1.JobTemplateSpec"),
    dependsOn=many(one("name", "status", name=TEXT, status=TEXT)),
)  # fmt: skip
_JOBSET = one(
    replicatedJobs=many(_REPLICATED),
    network=one(enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG),
    successPolicy=one("operator", operator=TEXT, targetReplicatedJobs=TEXTS),
    failurePolicy=one(
        maxRestarts=NUMBER, restartStrategy=TEXT,
        rules=many(one(
            "action", name=TEXT, action=TEXT, onJobFailureReasons=TEXTS,
            onJobFailureMessagePatterns=TEXTS, targetReplicatedJobs=TEXTS,
        )),
    ),
    startupPolicy=one("startupPolicyOrder", startupPolicyOrder=TEXT),
    suspend=FLAG,
    coordinator=one("replicatedJob", replicatedJob=TEXT, jobIndex=NUMBER, podIndex=NUMBER),
    managedBy=TEXT,
    ttlSecondsAfterFinished=NUMBER,
    volumeClaimPolicies=many(ANY),
)  # fmt: skip
_FLAVOR = one(
    "name", "resources", name=TEXT,
    resources=many(one(
        "name", "nominalQuota", name=TEXT, nominalQuota=QUANTITY, borrowingLimit=QUANTITY,
        lendingLimit=QUANTITY,
    )),
)  # fmt: skip
_CLUSTER_QUEUE = one(
    resourceGroups=many(one(
        "coveredResources", "flavors", coveredResources=TEXTS, flavors=many(_FLAVOR)
    )),
    cohortName=TEXT, queueingStrategy=TEXT, namespaceSelector=SELECTOR, flavorFungibility=ANY,
    preemption=ANY, admissionChecksStrategy=ANY, stopPolicy=TEXT, fairSharing=ANY,
    admissionScope=ANY,
)  # fmt: skip
_TOLERATION = _ref("io.k8s.api.core.v1.Toleration")
_TAINT = _ref("io.k8s.api.core.v1.Taint")
_POD_SET = one(
    "count", "template", name=TEXT, count=NUMBER, minCount=NUMBER, template=POD_TEMPLATE,
    topologyRequest=ANY,
)  # fmt: skip
_WORKLOAD = one(
    podSets=many(_POD_SET), queueName=TEXT, priorityClassRef=ANY, priority=NUMBER, active=FLAG,
    maximumExecutionTimeSeconds=NUMBER,
)  # fmt: skip
# https://github.com/kubernetes-sigs/lws/blob/v0.7.0/api/leaderworkerset/v1/leaderworkerset_types.go
_LWS = one(
    "leaderWorkerTemplate", "startupPolicy",
    replicas=NUMBER, startupPolicy=TEXT, rolloutStrategy=ANY,
    networkConfig=one("subdomainPolicy", subdomainPolicy=TEXT),
    leaderWorkerTemplate=one(
        "workerTemplate", leaderTemplate=POD_TEMPLATE, workerTemplate=POD_TEMPLATE, size=NUMBER,
        restartPolicy=TEXT, subGroupPolicy=ANY, volumeClaimTemplates=many(ANY),
        persistentVolumeClaimRetentionPolicy=ANY,
    ),
)  # fmt: skip
SHAPES: dict[str, Json] = {
    "JobSet": _kind(_JOBSET, ANY),
    "LeaderWorkerSet": _kind(_LWS, ANY),
    "ResourceFlavor": _kind(
        one(nodeLabels=WORDS, nodeTaints=many(_TAINT), tolerations=many(_TOLERATION),
            topologyName=TEXT)
    ),
    "ClusterQueue": _kind(_CLUSTER_QUEUE, ANY),
    "LocalQueue": _kind(one(clusterQueue=TEXT, stopPolicy=TEXT, fairSharing=ANY), ANY),
    "Workload": _kind(_WORKLOAD, ANY),
    "Topology": _kind(one("levels", levels=many(one("nodeLabel", nodeLabel=TEXT)))),
    "AdmissionCheck": _kind(one("controllerName", controllerName=TEXT, parameters=ANY), ANY),
}  # fmt: skip
