"""The pod of a gang's node, as plain data."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator
from typing import cast

from gpufabric.backends.kubernetes import _carry
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._gang import ATTEMPT_LABEL, CONTAINER, JOB_LABEL, REPLICA, Gang
from gpufabric.backends.kubernetes._script import WORK
from gpufabric.catalog.rows import Container, Mount

__all__ = ["literal", "pod"]


def pod(gang: Gang) -> Json:
    """A pod's spec: no more rights than the network needs."""
    way = gang.way
    spec: Json = {
        "restartPolicy": "Always" if gang.serve else "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": gang.grace_s,
        "securityContext": _pod_security(gang),
        "containers": [_container(gang)],
        "volumes": list(_volumes(gang)),
    }
    if gang.num_nodes > 1 and gang.kind == "Job":
        spec["subdomain"] = gang.name
    if gang.selector:
        spec["nodeSelector"] = dict(gang.selector)
    if gang.tolerations:
        spec["tolerations"] = [dict(one) for one in gang.tolerations]
    affinity = _affinity(gang)
    if affinity:
        spec["affinity"] = affinity
    if gang.claims:
        spec["resourceClaims"] = [
            {"name": name, "resourceClaimTemplateName": template}
            for name, template in gang.claims.items()
        ]
    spec |= _group_reference(gang)
    host, scheduler = way is not None and way.host_network, way.scheduler if way else None
    for key, value in (
        ("hostNetwork", host), ("hostIPC", way is not None and way.host_ipc),
        ("dnsPolicy", "ClusterFirstWithHostNet" if host else None),
        ("runtimeClassName", way.runtime_class if way else None),
        ("schedulerName", gang.scheduler or scheduler), ("priorityClassName", gang.priority),
        ("initContainers", list(_sidecars(gang))),
    ):  # fmt: skip
        if value:
            spec[key] = value
    return spec


def _group_reference(gang: Gang) -> Json:
    """How a pod names the group that the scheduler places as one.

    https://pkg.go.dev/k8s.io/api@v0.36.3/core/v1#PodSchedulingGroup
    https://pkg.go.dev/k8s.io/api@v0.35.3/core/v1#WorkloadReference
    """
    if gang.group == "scheduling.k8s.io/v1alpha2":
        return {"schedulingGroup": {"podGroupName": gang.name}}
    if gang.group == "scheduling.k8s.io/v1alpha1":
        return {"workloadRef": {"name": gang.name, "podGroup": REPLICA}}
    return {}


def _pod_security(gang: Gang) -> Json:
    context: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if gang.restricted:
        context |= {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}
    return context


def _container(gang: Gang) -> Json:
    way = gang.way
    security: Json = {"allowPrivilegeEscalation": False}
    if gang.restricted:
        security["capabilities"] = {"drop": ["ALL"]}
    if way is not None and way.privileged:
        security = {"privileged": True}
    elif way is not None and way.capabilities:
        security["capabilities"] = {"add": list(way.capabilities)}
    resources: Json = {
        "requests": dict(gang.resources),
        "limits": {n: v for n, v in gang.resources.items() if "/" in n},
    }
    if gang.claims:
        resources["claims"] = [{"name": name} for name in gang.claims]
    container: Json = {
        "name": CONTAINER,
        "image": gang.image,
        "command": [literal(word) for word in ("/bin/sh", "-c", gang.script, "gpufabric")],
        "args": [literal(word) for word in gang.command],
        "env": [*_env(gang)],
        "resources": resources,
        "securityContext": security,
        "volumeMounts": [*_mounts(gang)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if gang.ports:
        container["ports"] = [{"containerPort": port} for port in gang.ports]
    return container


def _env(gang: Gang) -> Iterator[Json]:
    for name, value in gang.env:
        yield {"name": name, "value": literal(value)}
    for name in gang.secrets:
        yield {"name": name, "valueFrom": {"secretKeyRef": {"name": gang.name, "key": name}}}
    yield from _carry.env(gang)
    yield _field("GPUFABRIC_POD_IP", "status.podIP")
    if gang.serve and gang.num_nodes > 1:
        yield {"name": "GPUFABRIC_LAUNCHED", "value": {"launched": "seconds"}}
    if gang.kind == "JobSet":
        yield _field("GPUFABRIC_ATTEMPT", f"metadata.labels['{ATTEMPT_LABEL}']")


def _mounts(gang: Gang) -> Iterator[Json]:
    yield {"name": "gpufabric-work", "mountPath": WORK}
    yield from _carry.mounts(gang)
    for number, path in enumerate(gang.volumes):
        yield {"name": f"volume-{number}", "mountPath": path}
    for mount in gang.way.mounts if gang.way else ():
        if CONTAINER in mount.containers:
            yield _mounted(mount)


def _volumes(gang: Gang) -> Iterator[Json]:
    yield {"name": "gpufabric-work", "emptyDir": {}}
    yield from _carry.volumes(gang)
    for number, claim in enumerate(gang.volumes.values()):
        yield {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
    for mount in gang.way.mounts if gang.way else ():
        yield {"name": mount.name, **_volume_source(mount)}


def _sidecars(gang: Gang) -> Iterator[Json]:
    """Init containers first: a native sidecar is one that does not end."""
    if gang.way is not None:
        for one in (*gang.way.init_containers, *gang.way.sidecars):
            yield _sidecar(gang, one)


def _sidecar(gang: Gang, one: Container) -> Json:
    made: Json = {
        "name": one.name,
        "image": one.image,
        "env": [{"name": name, "value": value} for name, value in one.env.items()],
        "volumeMounts": [
            _mounted(mount)
            for mount in (gang.way.mounts if gang.way else ())
            if one.name in mount.containers
        ],
    }
    if one.command:
        made["command"] = list(one.command)
    if one.args:
        made["args"] = list(one.args)
    if one.privileged:
        made["securityContext"] = {"privileged": True}
    elif one.capabilities:
        made["securityContext"] = {"capabilities": {"add": list(one.capabilities)}}
    elif gang.restricted:
        drop = {"drop": ["ALL"]}
        made["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": drop}
    if gang.way is not None and one in gang.way.sidecars:
        made["restartPolicy"] = "Always"  # a native sidecar: the Job can end beside it
    return made


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _affinity(gang: Gang) -> Json:
    """A gang's first pod waits for no other: it is near to itself.

    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
    """
    mine = {"labelSelector": {"matchLabels": {JOB_LABEL: gang.name}}}
    near, found = gang.nearness, cast("Json", {})
    if near.apart:
        apart = {**mine, "topologyKey": "kubernetes.io/hostname"}
        found["podAntiAffinity"] = {_REQUIRED: [apart]}
    pods: Json = {}
    if near.together is not None:
        pods[_REQUIRED] = [{**mine, "topologyKey": near.together}]
    if near.near is not None:
        term = {**mine, "topologyKey": near.near}
        pods[_PREFERRED] = [{"weight": 100, "podAffinityTerm": term}]
    if pods:
        found["podAffinity"] = pods
    if near.together is not None and near.among:
        rule: Json = {"key": near.together, "operator": "In", "values": list(near.among)}
        wanted: Json = {"matchExpressions": [rule]}
        found["nodeAffinity"] = (
            {_REQUIRED: {"nodeSelectorTerms": [wanted]}}
            if near.firm
            else {_PREFERRED: [{"weight": 100, "preference": wanted}]}
        )
    return found


def literal(text: str) -> str:
    """Text that Kubernetes gives to a program as it is: `$$` stands for `$`.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return text.replace("$", "$$")


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _mounted(mount: Mount) -> Json:
    made: Json = {"name": mount.name, "mountPath": mount.mount_path}
    if mount.read_only:
        made["readOnly"] = True
    if mount.key:
        made["subPath"] = mount.key
    return made


def _volume_source(mount: Mount) -> Json:
    if mount.source == "host_path":
        return {"hostPath": {"path": mount.path}}
    if mount.source == "config_map":
        return {"configMap": {"name": mount.path, "optional": mount.optional}}
    body: Json = {}
    if mount.medium:
        body["medium"] = mount.medium
    if mount.size_limit:
        body["sizeLimit"] = mount.size_limit
    return {"emptyDir": body}
