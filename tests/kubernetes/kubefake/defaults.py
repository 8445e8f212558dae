"""What a server fills in: k8s.io/kubernetes/pkg/apis/*/v1/defaults.go, as far as it is read."""

import base64

from .errors import Json


def fill(table: str, body: Json) -> None:
    """Fills a new object in."""
    fillers = {
        "pods": lambda: pod_spec(body["spec"], alone=True),
        "jobs.batch": lambda: _job(body),
        "jobsets.jobset.x-k8s.io": lambda: _jobset(body["spec"]),
        "secrets": lambda: _secret(body),
        "services": lambda: _service(body),
        "namespaces": lambda: _namespace(body),
        "workloads.kueue.x-k8s.io": lambda: body["spec"].setdefault("active", True),
    }
    if table in fillers:
        fillers[table]()


def pod_spec(spec: Json, *, alone: bool = False) -> None:
    """A pod's spec; `alone`: as a pod, and not as the template of one."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if alone:
        spec.setdefault("enableServiceLinks", True)
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        _container(one)
    for volume in spec.get("volumes") or ():
        for kind in ("secret", "configMap", "projected", "downwardAPI"):
            if volume.get(kind) is not None:
                volume[kind].setdefault("defaultMode", 0o644)
        if set(volume) == {"name"}:
            volume["emptyDir"] = {}
    if alone:
        _tolerations(spec)


def _container(one: Json) -> None:
    tag = str(one.get("image") or "").rpartition("/")[2].partition(":")[2]
    policy = "Always" if tag in {"", "latest"} else "IfNotPresent"
    one.setdefault("imagePullPolicy", policy)
    one.setdefault("terminationMessagePath", "/dev/termination-log")
    one.setdefault("terminationMessagePolicy", "File")
    resources = one.setdefault("resources", {})
    limits = resources.get("limits") or {}
    if limits:
        requests = resources.setdefault("requests", {})
        for name, value in limits.items():
            requests.setdefault(name, value)
    for port in one.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for row in one.get("env") or ():
        field = (row.get("valueFrom") or {}).get("fieldRef")
        if field is not None:
            field.setdefault("apiVersion", "v1")


def _tolerations(spec: Json) -> None:
    rows = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(row.get("key") in {key, None} for row in rows):
            rows.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
            )


def job_spec(spec: Json) -> None:
    """The spec of a Job, or of the template of one."""
    completions = spec.get("completions")
    if completions is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    failed_only = spec.get("podFailurePolicy") is not None
    spec.setdefault("podReplacementPolicy", "Failed" if failed_only else "TerminatingOrFailed")
    pod_spec(spec["template"]["spec"])


def _job(body: Json) -> None:
    spec, meta = body["spec"], body["metadata"]
    job_spec(spec)
    uid = meta["uid"]
    if not spec.get("selector"):
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    for prefix in ("", "batch.kubernetes.io/"):
        labels[f"{prefix}controller-uid"] = uid
        labels[f"{prefix}job-name"] = meta["name"]


def _jobset(spec: Json) -> None:
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)
    for row in spec.get("replicatedJobs") or ():
        row.setdefault("groupName", "default")
        row.setdefault("replicas", 1)
        job = row["template"]["spec"]
        job.setdefault("completionMode", "Indexed")
        job["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    policy = spec.get("failurePolicy")
    if policy is not None:
        policy.setdefault("restartStrategy", "Recreate")
        policy.setdefault("maxRestarts", 0)


def _secret(body: Json) -> None:
    body.setdefault("type", "Opaque")
    texts = body.pop("stringData", None)
    if texts:
        data = body.setdefault("data", {})
        for name, text in texts.items():
            data[name] = base64.b64encode(text.encode()).decode("ascii")


def _service(body: Json) -> None:
    spec = body["spec"]
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if "clusterIP" not in spec and spec["type"] != "ExternalName":
        spec["clusterIP"] = "10.96.0.100"
    if "clusterIP" in spec:
        spec["clusterIPs"] = [spec["clusterIP"]]


def _namespace(body: Json) -> None:
    body["spec"] = {"finalizers": ["kubernetes"]}
    body["status"] = {"phase": "Active"}
    labels = body["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = body["metadata"]["name"]
