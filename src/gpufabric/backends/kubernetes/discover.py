"""What a cluster has: one paged pass over nodes and pods, and what its controllers are.

The functions over plain objects are pure; `read_site` alone asks the API server.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from gpufabric._frozen import FrozenDict, freeze
from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.catalog.detect import fits, platform_of
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow, KubernetesRow
from gpufabric.catalog.spelling import read_model, spellings
from gpufabric.errors import CredentialsError, NotFoundError
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.netplan import fitting_way
from gpufabric.resources import Accelerator

T = TypeVar("T")

__all__ = ["GPU_RESOURCES", "pools_of", "quantity", "read_site", "usage_of"]

#: Resource -> vendor in the catalog's words. Each is what that vendor's device plug-in names.
GPU_RESOURCES = {
    "nvidia.com/gpu": "nvidia",
    "amd.com/gpu": "amd",
    "aws.amazon.com/neuron": "aws",
    "habana.ai/gaudi": "intel",
    "gpu.intel.com/i915": "intel",
    "gpu.intel.com/xe": "intel",
    "google.com/tpu": "google",
}
_NIC = re.compile(
    r"^(rdma/|vpc\.amazonaws\.com/efa$|networking\.gke\.io\.networks/(?!.*\.IP$)"
    r"|nvidia\.com/(hostdev|rdma_|sriov|mlnx)|amd\.com/v?nic|intel\.com/.*sriov|openshift\.io/)"
)
#: Labels with the accelerator's model in words, the most telling first.
_MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.nvidia.com/class",
    "cloud.google.com/gke-accelerator",
    "nebius.com/gpu-name",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
)
_TYPE_LABELS = (
    "node.coreweave.cloud/type",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
)
#: Nodes with different values of one of these share no fabric.
_FABRIC_LABELS = (
    "topology.nebius.com/gpu-cluster-id",
    "backend.coreweave.cloud/fabric",
    "crusoe.ai/ib.partition.id",
    "oci.oraclecloud.com/rdma.hpc_island_id",
)
#: Nodes with one value of these are near each other on the fabric; pods are asked to be so too.
_NEAR_LABELS = (
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-subblock",
    "backend.coreweave.cloud/leafgroup",
    "topology.nebius.com/tier-1",
    "oci.oraclecloud.com/rdma.local_block_id",
    "crusoe.ai/pod.id",
)
_ZONE = "topology.kubernetes.io/zone"
_SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "nebius.com/preemptible": "true",
}
_SUFFIX = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_QUANTITY = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]i?|Ki)?$")
#: Set by the cluster itself on nodes that are not usable for now; not part of what a node is.
_TRANSIENT_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
CONTROLLERS = {
    "jobset": "jobset.x-k8s.io",
    "kueue": "kueue.x-k8s.io",
    "volcano": "batch.volcano.sh",
    "lws": "leaderworkerset.x-k8s.io",
}


def quantity(text: object) -> float:
    """A quantity (`500m`, `1k`, `2Ti`) as a number; raises `ValueError`.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    match = _QUANTITY.match(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    return float(match[1]) * _SUFFIX[match[2] or ""]


def usage_of(pods: Iterable[Json]) -> dict[str, dict[str, float]]:
    """Node -> resource -> how much the pods on it ask for. Pods that have ended use nothing."""
    used: dict[str, dict[str, float]] = {}
    for pod in pods:
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        node = spec.get("nodeName")
        if not node or phase in {"Succeeded", "Failed"}:
            continue
        mine = used.setdefault(str(node), {})
        for name, amount in _pod_requests(spec).items():
            mine[name] = mine.get(name, 0) + amount
    return used


def _pod_requests(spec: Json) -> dict[str, float]:
    """The sum of containers and sidecars, or the largest init container where that is more."""
    total: dict[str, float] = {}
    first: dict[str, float] = {}
    for container in spec.get("containers") or ():
        _add(total, container)
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(total, container)
            continue
        mine: dict[str, float] = {}
        _add(mine, container)
        for name, amount in mine.items():
            first[name] = max(first.get(name, 0), amount)
    return {name: max(total.get(name, 0), first.get(name, 0)) for name in {*total, *first}}


def _add(total: dict[str, float], container: Json) -> None:
    resources = container.get("resources") or {}
    for name, amount in {
        **(resources.get("limits") or {}),
        **(resources.get("requests") or {}),
    }.items():
        total[name] = total.get(name, 0) + quantity(amount)


# ---- nodes


class _Node:
    """What matters of one node."""

    def __init__(self, node: Json, catalog: Catalog) -> None:
        meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        self.name = str(meta["name"])
        self.labels: dict[str, str] = dict(meta.get("labels") or {})
        self.allocatable: dict[str, str] = {
            name: str(value) for name, value in (status.get("allocatable") or {}).items()
        }
        provider = str(spec.get("providerID") or "")
        found = platform_of(
            catalog, labels=self.labels, provider_id=provider, allocatable=self.allocatable
        )
        self.cloud: CloudCatalog = found[0] if found else catalog.cloud("onprem")
        self.platform = found[1].name if found else "onprem-k8s"
        prefix = found[1].type_prefix if found else ""
        self.row, self.type = _type_of(self.labels, self.cloud, prefix)
        self.gpu_resource = next(
            (name for name in GPU_RESOURCES if _count(self.allocatable, name)), None
        )
        self.gpus = _count(self.allocatable, self.gpu_resource)
        self.nics = {
            name: _count(self.allocatable, name)
            for name in sorted(self.allocatable)
            if _NIC.match(name) and _count(self.allocatable, name)
        }
        self.taints = tuple(
            (str(t["key"]), str(t.get("value") or ""), str(t["effect"]))
            for t in sorted(spec.get("taints") or (), key=lambda t: str(t["key"]))
            if not str(t["key"]).startswith(_TRANSIENT_TAINTS)
        )
        ready = any(
            c.get("type") == "Ready" and c.get("status") == "True"
            for c in status.get("conditions") or ()
        )
        self.usable = ready and not spec.get("unschedulable") and not _held_back(spec)
        self.spot = any(self.labels.get(name) == value for name, value in _SPOT.items())
        self.fabric = next(
            ((name, self.labels[name]) for name in _FABRIC_LABELS if self.labels.get(name)), None
        )
        self.zone = self.labels.get(_ZONE)

    def key(self) -> tuple[object, ...]:
        """Nodes with one key are alike, and share a fabric where they have one."""
        return (
            self.platform, self.type, self.gpu_resource, self.gpus, tuple(self.nics.items()),
            self.zone, self.fabric, self.taints, self.spot, self.labels.get("kubernetes.io/arch"),
            self._model() if self.row is None else None,
        )  # fmt: skip

    def _model(self) -> str | None:
        return next((self.labels[name] for name in _MODEL_LABELS if self.labels.get(name)), None)

    def accelerator(self, catalog: Catalog) -> Accelerator | None:
        """What it has; None without, or where no label tells and no row knows its type."""
        if not self.gpus:
            return None
        if self.row is not None:
            return Accelerator(model=self.row.gpu.model, count=self.gpus)
        said = self._model()
        if said is None:
            return None
        known = spellings({model for cloud in catalog for model in cloud.models})
        read = read_model(said.replace("_NVLINK", ""), known)
        model = read.model if read else re.sub(r"[^A-Za-z0-9 ._-]", "-", said)
        return Accelerator(model=model, count=self.gpus) if model[:1].isalpha() else None


def _held_back(spec: Json) -> bool:
    return any(
        str(t["key"]).startswith(_TRANSIENT_TAINTS) and t["effect"] != "PreferNoSchedule"
        for t in spec.get("taints") or ()
    )


def _count(allocatable: Mapping[str, str], name: str | None) -> int:
    return int(quantity(allocatable.get(name, "0"))) if name else 0


def _type_of(
    labels: Mapping[str, str], cloud: CloudCatalog, prefix: str
) -> tuple[InstanceTypeRow | None, str | None]:
    """The catalog's row of a node's type and its name as the catalog or the node has it."""
    said = [labels[name].removeprefix(prefix) for name in _TYPE_LABELS if labels.get(name)]
    preset = labels.get("nebius.com/resource-preset")
    candidates = [f"{name} {preset}" for name in said if preset] + said
    for name in candidates:
        row = cloud.find_type(name)
        if row is not None:
            return row, row.name
    return None, candidates[0] if candidates else None


def pools_of(
    nodes: Iterable[Json],
    used: Mapping[str, Mapping[str, float]],
    *,
    catalog: Catalog,
    context: str,
    custom_resources: Sequence[str] = (),
) -> tuple[tuple[Pool, ...], dict[str, Json]]:
    """Pools of nodes that are alike, and by pool's name what a plan must know of them."""
    groups: dict[tuple[object, ...], list[_Node]] = {}
    for raw in nodes:
        node = _Node(raw, catalog)
        groups.setdefault(node.key(), []).append(node)
    pools: list[Pool] = []
    facts: dict[str, Json] = {}
    names: dict[str, int] = {}
    for members in groups.values():
        first = members[0]
        base = "-".join(
            part for part in (first.type or ("cpu" if not first.gpus else "gpu"), first.zone,
                              first.fabric[1] if first.fabric else None) if part
        ).replace(" ", "-")  # fmt: skip
        names[base] = names.get(base, 0) + 1
        name = base if names[base] == 1 else f"{base}-{names[base]}"
        pool, fact = _pool(
            name, members, used, catalog=catalog, context=context, custom_resources=custom_resources
        )
        pools.append(pool)
        facts[name] = fact
    return tuple(pools), facts


def _pool(  # noqa: PLR0913  # one caller
    name: str,
    members: Sequence[_Node],
    used: Mapping[str, Mapping[str, float]],
    *,
    catalog: Catalog,
    context: str,
    custom_resources: Sequence[str],
) -> tuple[Pool, Json]:
    first = members[0]
    usable = [node for node in members if node.usable]
    free = [_free(node, used.get(node.name, {})) for node in usable]
    gpu = first.gpu_resource
    gpus_free = tuple(int(one.get(gpu, 0)) for one in free) if gpu else ()
    place = Place(backend="kubernetes", region=context, zone=first.zone)
    way, why = _way(first, custom_resources)
    attached = way is not None and way.fabric
    pool = Pool(
        name=name,
        place=place,
        platform=first.platform,
        instance_type=first.type,
        accelerator=first.accelerator(catalog),
        nodes_total=len(usable),
        nodes_free=sum(count == first.gpus for count in gpus_free) if gpu else len(usable),
        gpus_free=gpus_free,
        cpus=min((quantity(n.allocatable.get("cpu", "0")) for n in members), default=None),
        memory_gib=min(quantity(n.allocatable.get("memory", "0")) / 2**30 for n in members),
        interconnect=_interconnect(first, place, attached=attached),
        labels=FrozenDict(_selector(first, members)),
        spot=first.spot,
    )
    fact: Json = {
        "gpu_resource": gpu,
        "nics": dict(first.nics),
        "taints": [list(taint) for taint in first.taints],
        "way": way.name if way else None,
        "no_fabric": why if gpu else "",
        "near": next((n for n in _NEAR_LABELS if all(m.labels.get(n) for m in members)), None),
        "unusable": sorted(node.name for node in members if not node.usable),
        "free": [
            {"cpus": one.get("cpu", 0), "memory_gib": one.get("memory", 0) / 2**30, "gpus": count}
            for one, count in zip(free, gpus_free or [0] * len(free), strict=True)
        ],
    }
    return pool, fact


def _free(node: _Node, used: Mapping[str, float]) -> dict[str, float]:
    return {name: quantity(value) - used.get(name, 0) for name, value in node.allocatable.items()}


def _interconnect(node: _Node, place: Place, *, attached: bool) -> Interconnect | None:
    """None: what the catalog says of the type, all of it being there."""
    if node.gpus and not attached:
        return Interconnect(kind=FabricKind.ETHERNET, place=place)
    if node.row is not None and node.fabric is not None:
        kind = FabricKind(node.cloud.interconnect(node.row).kind)
        most = node.row.max_nodes or node.cloud.interconnect(node.row).max_nodes
        return Interconnect(kind=kind, place=place, name=node.fabric[1], max_nodes=most)
    return None


def _way(node: _Node, custom_resources: Sequence[str]) -> tuple[KubernetesRow | None, str]:
    """How pods get this node's NICs, or why they do not."""
    if node.row is None:
        seen = f"; NIC resources seen: {', '.join(node.nics)}" if node.nics else ""
        if node.type is None:
            return None, f"the nodes carry no instance type that a catalog could know{seen}"
        return None, f"the catalog of {node.cloud.name} has no instance type {node.type!r}{seen}"
    ways = node.cloud.kubernetes_rows(node.row.name, node.platform)
    reasons: list[str] = []
    for way in ways:
        reason = _unfit(way, node, custom_resources)
        if not reason:
            return way, ""
        reasons.append(f"{way.name}: {reason}")
    return None, "; ".join(reasons) or f"no way to give pods NICs of {node.row.name} is known"


def _unfit(way: KubernetesRow, node: _Node, custom_resources: Sequence[str]) -> str:
    nics = str(node.row.nics.count or 0) if node.row else "0"
    for name, wanted in way.requests.items():
        need, have = quantity(wanted.replace("{nics}", nics)), _count(node.allocatable, name)
        if have < need:
            return f"nodes have {have} {name}, pods need {need:g}"
    for name, value in way.detect.labels.items():
        if not fits(way.detect.but(allocatable=FrozenDict()), node.labels, "", {}):
            told = f"={value}" if value else ""
            return f"nodes lack the label {name}{told}"
    for network in _networks(way):
        if not _count(node.allocatable, f"networking.gke.io.networks/{network}"):
            return f"nodes are not in the network {network!r}"
    if fitting_way((way,), node.allocatable, custom_resources=custom_resources) is None:
        absent = sorted(set(way.detect.custom_resources) - set(custom_resources))
        return f"the cluster lacks {', '.join(absent)}" if absent else "resources are missing"
    return ""


def _networks(way: KubernetesRow) -> Iterator[str]:
    import json

    text = way.annotations.get("networking.gke.io/interfaces")
    for one in json.loads(text) if text else ():
        if one.get("network") != "default":
            yield str(one["network"])


def _selector(node: _Node, members: Sequence[_Node]) -> dict[str, str]:
    """Labels by which pods select this pool, and with it one zone and one fabric."""
    wanted = [*_TYPE_LABELS[:2], _ZONE, "kubernetes.io/arch", *_MODEL_LABELS[:2]]
    wanted += [node.fabric[0]] if node.fabric else []
    if not node.gpus:
        wanted = [_ZONE, "kubernetes.io/arch"]
    found: dict[str, str] = {}
    for name in wanted:
        values = {one.labels.get(name) for one in members}
        if len(values) == 1 and (value := values.pop()):
            found[name] = value
    return found


# ---- reading


def read_site(  # what is asked, and as whom
    api: Api, *, name: str, context: str, namespace: str, catalog: Catalog
) -> Site:
    """Reads a cluster, with what may be read; what may not is told in `unseen`."""
    unseen: list[str] = []
    groups = _groups(api)
    custom = _custom_resources(api, groups, catalog, unseen)
    pods = _tolerated(unseen, "pods of all namespaces", lambda: usage_of(
        api.items("/api/v1/pods", {"fieldSelector": _LIVE}))
    )  # fmt: skip
    if pods is None:
        unseen[-1] += "; what other namespaces use of the nodes is not subtracted"
        pods = _tolerated(unseen, f"pods of {namespace}", lambda: usage_of(
            api.items(f"/api/v1/namespaces/{namespace}/pods", {"fieldSelector": _LIVE}))
        )  # fmt: skip
    used = pods or {}

    def read_nodes() -> tuple[tuple[Pool, ...], dict[str, Json]]:
        return pools_of(
            api.items("/api/v1/nodes"), used,
            catalog=catalog, context=context, custom_resources=custom,
        )  # fmt: skip

    pools, by_pool = _tolerated(unseen, "nodes", read_nodes) or ((), {})
    if not pools and unseen:
        place = Place(backend="kubernetes", region=context)
        pools = (Pool(name="any", place=place, platform="onprem-k8s"),)
    facts: Json = {
        "context": context,
        "namespace": namespace,
        "controllers": {
            key: groups[group] for key, group in CONTROLLERS.items() if group in groups
        },
        "custom_resources": list(custom),
        "queues": _queues(api, groups, namespace, unseen),
        "quotas": _quotas(api, namespace, unseen),
        "pod_security": _pod_security(api, namespace, unseen),
        "pools": by_pool,
    }
    return Site(
        backend=name,
        pools=pools,
        unseen=tuple(unseen),
        facts=cast("FrozenDict[str, object]", freeze(facts)),
    )


_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def _tolerated(unseen: list[str], what: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except CredentialsError as exc:
        if "not allowed" not in str(exc):
            raise
        unseen.append(f"{what}: not allowed to list them")
    except NotFoundError:
        unseen.append(f"{what}: the server does not have them")
    return None


def _groups(api: Api) -> dict[str, str]:
    """API group -> its preferred version."""
    listed = api.get("/apis").get("groups") or ()
    return {str(g["name"]): str(g["preferredVersion"]["version"]) for g in listed}


def _custom_resources(
    api: Api, groups: Mapping[str, str], catalog: Catalog, unseen: list[str]
) -> tuple[str, ...]:
    """Which of the CRDs and DeviceClasses that the catalog asks about exist."""
    wanted = {
        name
        for cloud in catalog
        for row in cloud.rows("kubernetes")
        for name in cast("KubernetesRow", row).detect.custom_resources
    }
    found: list[str] = []
    for group in sorted({name.partition(".")[2] for name in wanted if "/" not in name} & {*groups}):
        served = api.get(f"/apis/{group}/{groups[group]}").get("resources") or ()
        found += [f"{one['name']}.{group}" for one in served if f"{one['name']}.{group}" in wanted]
    if "resource.k8s.io" in groups:
        path = f"/apis/resource.k8s.io/{groups['resource.k8s.io']}/deviceclasses"
        classes = _tolerated(unseen, "DeviceClasses", lambda: list(api.items(path))) or ()
        found += [f"deviceclass/{one['metadata']['name']}" for one in classes]
    return tuple(found)


def _queues(api: Api, groups: Mapping[str, str], namespace: str, unseen: list[str]) -> list[str]:
    version = groups.get("kueue.x-k8s.io")
    if version is None:
        return []
    path = f"/apis/kueue.x-k8s.io/{version}/namespaces/{namespace}/localqueues"
    listed = _tolerated(unseen, "LocalQueues", lambda: list(api.items(path))) or ()
    return sorted(str(one["metadata"]["name"]) for one in listed)


def _quotas(api: Api, namespace: str, unseen: list[str]) -> list[Json]:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    listed = _tolerated(unseen, "ResourceQuotas", lambda: list(api.items(path))) or ()
    return [
        {
            "name": one["metadata"]["name"],
            "hard": (one.get("status") or {}).get("hard") or one["spec"].get("hard") or {},
            "used": (one.get("status") or {}).get("used") or {},
        }
        for one in listed
    ]


def _pod_security(api: Api, namespace: str, unseen: list[str]) -> str | None:
    space = _tolerated(
        unseen, f"namespace {namespace}", lambda: api.get(f"/api/v1/namespaces/{namespace}")
    )
    labels = ((space or {}).get("metadata") or {}).get("labels") or {}
    level = labels.get("pod-security.kubernetes.io/enforce")
    return str(level) if level else None
