"""The objects of one gang, as plain data: pod, Job or JobSet, Service, Secret, claims."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping

from gpufabric._frozen import frozen, thaw
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._script import CODE, WORK
from gpufabric.catalog.rows import Container, KubernetesRow, Mount

__all__ = [
    "ATTEMPT_LABEL",
    "CANCELLED",
    "CONTAINER",
    "JOB_LABEL",
    "NODES",
    "QUEUE_LABEL",
    "REPLICA",
    "Gang",
    "merged",
]

JOB_LABEL = "gpufabric.io/job"
CANCELLED = "gpufabric.io/cancelled"
NODES = "gpufabric.io/num-nodes"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
CONTAINER = "job"
REPLICA = "n"
_CODE_FILES = ("workdir.tar.gz", "files.tar.gz", "function.pickle")


@frozen(kw_only=True)
class Gang:
    """What the objects are made from."""

    name: str
    namespace: str
    num_nodes: int
    image: str
    script: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    code: tuple[str, ...]
    resources: Mapping[str, str]
    selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    apart: bool
    near: str | None
    way: KubernetesRow | None
    volumes: Mapping[str, str]
    ports: tuple[int, ...]
    timeout_s: int | None
    max_restarts: int
    grace_s: int
    restricted: bool
    jobset: str | None
    queue: str | None
    pod_patch: Mapping[str, object]

    @property
    def host(self) -> str:
        """The pods' host name without the rank."""
        return f"{self.name}-{REPLICA}-0" if self.jobset else self.name

    @property
    def labels(self) -> dict[str, str]:
        """On every object."""
        return {"app.kubernetes.io/managed-by": "gpufabric", JOB_LABEL: self.name}

    def metadata(self, name: str | None = None) -> Json:
        """Of an object that the gang's owner owns; `uid` is put in while it is sent."""
        kind = "JobSet" if self.jobset else "Job"
        version = f"jobset.x-k8s.io/{self.jobset}" if self.jobset else "batch/v1"
        owner = {
            "apiVersion": version, "kind": kind, "name": self.name, "uid": {"uid_of": kind},
            "blockOwnerDeletion": False, "controller": False,
        }  # fmt: skip
        return {
            "name": name or self.name, "namespace": self.namespace, "labels": self.labels,
            "ownerReferences": [owner],
        }  # fmt: skip

    # ---- the owner

    def owner(self) -> Json:
        """The JobSet or Job, suspended until everything else is there."""
        meta: Json = {
            "name": self.name, "namespace": self.namespace, "labels": self.labels,
            "annotations": {NODES: str(self.num_nodes)},
        }  # fmt: skip
        if self.queue:
            meta["labels"][QUEUE_LABEL] = self.queue
        if not self.jobset:
            spec = {**self.job_spec(), "suspend": True}
            return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
        replicated = {
            "name": REPLICA,
            "replicas": 1,
            "template": {"metadata": {"labels": self.labels}, "spec": self.job_spec()},
        }
        return {
            "apiVersion": f"jobset.x-k8s.io/{self.jobset}",
            "kind": "JobSet",
            "metadata": meta,
            "spec": {
                "suspend": True,
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True,
                            "subdomain": self.name},
                "failurePolicy": {"maxRestarts": self.max_restarts},
                "replicatedJobs": [replicated],
            },
        }  # fmt: skip

    def job_spec(self) -> Json:
        """An Indexed Job that fails as one."""
        spec: Json = {
            "completions": self.num_nodes,
            "parallelism": self.num_nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "metadata": {
                    "labels": {**self.labels, **(self.way.labels if self.way else {})},
                    "annotations": dict(self.way.annotations) if self.way else {},
                },
                "spec": merged(self.pod(), self.pod_patch),
            },
        }
        if self.timeout_s is not None:
            spec["activeDeadlineSeconds"] = self.timeout_s
        return spec

    # ---- the pod

    def pod(self) -> Json:
        """A pod's spec: no more rights than the network needs."""
        way = self.way
        spec: Json = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": self.grace_s,
            "securityContext": self._pod_security(),
            "containers": [self._container()],
            "volumes": list(self._volumes()),
        }
        if self.num_nodes > 1 and not self.jobset:
            spec["subdomain"] = self.name
        if self.selector:
            spec["nodeSelector"] = dict(self.selector)
        if self.tolerations:
            spec["tolerations"] = [dict(one) for one in self.tolerations]
        affinity = self._affinity()
        if affinity:
            spec["affinity"] = affinity
        if way is None:
            return spec
        first = [self._sidecar(one) for one in (*way.init_containers, *way.sidecars)]
        if first:
            spec["initContainers"] = first
        if way.claims:
            spec["resourceClaims"] = [
                {"name": name, "resourceClaimTemplateName": f"{self.name}-{name}"}
                for name in way.claims
            ]
        for key, value in (
            ("hostNetwork", way.host_network), ("hostIPC", way.host_ipc),
            ("runtimeClassName", way.runtime_class), ("schedulerName", way.scheduler),
        ):  # fmt: skip
            if value:
                spec[key] = value
        if way.host_network:
            spec["dnsPolicy"] = "ClusterFirstWithHostNet"
        return spec

    def _pod_security(self) -> Json:
        context: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
        if self.restricted:
            context |= {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}
        return context

    def _container(self) -> Json:
        way = self.way
        security: Json = {"allowPrivilegeEscalation": False}
        if self.restricted:
            security["capabilities"] = {"drop": ["ALL"]}
        if way is not None and way.privileged:
            security = {"privileged": True}
        elif way is not None and way.capabilities:
            security["capabilities"] = {"add": list(way.capabilities)}
        resources: Json = {
            "requests": dict(self.resources),
            "limits": {n: v for n, v in self.resources.items() if "/" in n},
        }
        if way is not None and way.claims:
            resources["claims"] = [{"name": name} for name in way.claims]
        container: Json = {
            "name": CONTAINER,
            "image": self.image,
            "command": [literal(word) for word in ("/bin/sh", "-c", self.script, "gpufabric")],
            "args": [literal(word) for word in self.command],
            "env": [*self._env()],
            "resources": resources,
            "securityContext": security,
            "volumeMounts": [*self._mounts()],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        if self.ports:
            container["ports"] = [{"containerPort": port} for port in self.ports]
        return container

    def _env(self) -> Iterator[Json]:
        for name, value in self.env:
            yield {"name": name, "value": literal(value)}
        for name in self.secrets:
            yield {"name": name, "valueFrom": {"secretKeyRef": {"name": self.name, "key": name}}}
        yield _field("GPUFABRIC_POD_IP", "status.podIP")
        if self.jobset:
            yield _field("GPUFABRIC_ATTEMPT", f"metadata.labels['{ATTEMPT_LABEL}']")

    def _mounts(self) -> Iterator[Json]:
        yield {"name": "gpufabric-work", "mountPath": WORK}
        if self.code:
            yield {"name": "gpufabric-code", "mountPath": CODE, "readOnly": True}
        for number, path in enumerate(self.volumes):
            yield {"name": f"volume-{number}", "mountPath": path}
        for mount in self.way.mounts if self.way else ():
            if CONTAINER in mount.containers:
                yield _mounted(mount)

    def _volumes(self) -> Iterator[Json]:
        yield {"name": "gpufabric-work", "emptyDir": {}}
        if self.code:
            items = [{"key": key, "path": key} for key in self.code]
            yield {"name": "gpufabric-code", "secret": {"secretName": self.name, "items": items}}
        for number, claim in enumerate(self.volumes.values()):
            yield {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for mount in self.way.mounts if self.way else ():
            yield {"name": mount.name, **_volume_source(mount)}

    def _sidecar(self, one: Container) -> Json:
        made: Json = {
            "name": one.name,
            "image": one.image,
            "env": [{"name": name, "value": value} for name, value in one.env.items()],
            "volumeMounts": [
                _mounted(mount)
                for mount in (self.way.mounts if self.way else ())
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
        if self.way is not None and one in self.way.sidecars:
            made["restartPolicy"] = "Always"  # a native sidecar: the Job can end beside it
        return made

    def _affinity(self) -> Json:
        mine = {"labelSelector": {"matchLabels": {JOB_LABEL: self.name}}}
        found: Json = {}
        if self.apart:
            apart = {**mine, "topologyKey": "kubernetes.io/hostname"}
            found["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        if self.near is not None:
            near = {"weight": 100, "podAffinityTerm": {**mine, "topologyKey": self.near}}
            found["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [near]}
        return found

    # ---- what the owner owns

    def owned(self) -> Iterator[Json]:
        """Secret, Service and claims, in the order in which they are made."""
        data: Json = {name: {"secret": name} for name in self.secrets}
        data |= {name: {"content": name} for name in self.code}
        if data:
            yield {
                "apiVersion": "v1", "kind": "Secret", "metadata": self.metadata(), "type": "Opaque",
                "immutable": True, "data": data,
            }  # fmt: skip
        if self.num_nodes > 1 and not self.jobset:
            spec = {
                "clusterIP": "None", "publishNotReadyAddresses": True,
                "selector": {JOB_LABEL: self.name},
            }  # fmt: skip
            yield {"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(), "spec": spec}
        for name, claim in (self.way.claims if self.way else {}).items():
            yield {
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                "metadata": self.metadata(f"{self.name}-{name}"), "spec": {"spec": thaw(claim)},
            }  # fmt: skip


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


_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
    "volumeMounts": "mountPath", "ports": "containerPort", "imagePullSecrets": "name",
    "hostAliases": "ip", "resourceClaims": "name",
}  # fmt: skip


def merged(base: Json, patch: Mapping[str, object]) -> Json:
    """A strategic merge: objects merge, lists with a merge key merge by it, others are replaced.

    A null removes a field. Tolerations are added, since they have no key of their own.
    https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
    """
    made = dict(base)
    for name, value in patch.items():
        there = made.get(name)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, Mapping):
            made[name] = merged(there if isinstance(there, dict) else {}, value)
        elif isinstance(value, list | tuple) and name in _MERGE_KEYS and isinstance(there, list):
            made[name] = _merged_list(there, value, _MERGE_KEYS[name])
        elif isinstance(value, list | tuple) and name == "tolerations" and isinstance(there, list):
            made[name] = [*there, *(thaw(one) for one in value)]
        else:
            made[name] = thaw(value)
    return made


def _merged_list(base: list[Json], patch: "list[Json] | tuple[Json, ...]", key: str) -> list[Json]:
    made = list(base)
    for one in patch:
        at = next((i for i, old in enumerate(made) if old.get(key) == one.get(key)), None)
        if at is None:
            made.append(merged({}, one))
        else:
            made[at] = merged(made[at], one)
    return made
