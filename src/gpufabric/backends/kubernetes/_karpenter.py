"""Pools that Karpenter holds at zero nodes: only where the instance type is certain.

NodePool (karpenter.sh/v1): pkg/apis/v1/nodepool.go in
https://github.com/kubernetes-sigs/karpenter. What its providers know of an instance type before
a node of it exists: pkg/apis/v1/labels.go in https://github.com/aws/karpenter-provider-aws.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpufabric._frozen import FrozenDict, frozen
from gpufabric.backends.base import Pool
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._nodes import GPU_RESOURCES, ZONE, is_nic
from gpufabric.backends.kubernetes._usage import quantity
from gpufabric.backends.kubernetes._ways import Served
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow, KubernetesRow
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.resources import Accelerator

__all__ = ["KARPENTER", "NODEPOOL", "karpenter_pools"]

KARPENTER = "karpenter.sh"
_TYPE = "node.kubernetes.io/instance-type"
NODEPOOL = "karpenter.sh/nodepool"
_CAPACITY = "karpenter.sh/capacity-type"
_AWS_TYPE = re.compile(r"^(?P<category>[a-z]+)(?P<generation>\d+)")


@frozen(kw_only=True)
class _Provider:
    """A provider of Karpenter: the platform of its nodes, and resources it knows beforehand."""

    platform: str
    resources: frozenset[str]
    domain: str


#: By the group of a NodePool's node class. A pod that asks for any other resource gets no node.
_PROVIDERS = {
    "karpenter.k8s.aws": _Provider(
        platform="eks",
        resources=frozenset(
            {"nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"}
        ),
        domain="karpenter.k8s.aws/",
    ),
    # EKS Auto Mode serves EFA as the device plug-in does. How many interfaces its nodes get can be
    # set in their NodeClass; a pod that asks for more gets no node, and so no lower tier.
    # https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html
    "eks.amazonaws.com": _Provider(
        platform="eks",
        resources=frozenset({"nvidia.com/gpu", "vpc.amazonaws.com/efa"}),
        domain="eks.amazonaws.com/",
    ),
    "karpenter.azure.com": _Provider(
        platform="aks", resources=frozenset({"nvidia.com/gpu"}), domain="karpenter.azure.com/"
    ),
}


def karpenter_pools(
    nodepools: Iterable[Json], existing: Mapping[str, tuple[Pool, Json]], catalog: Catalog,
    context: str, served: Served,
) -> tuple[dict[str, tuple[Pool, Json]], list[str]]:  # fmt: skip
    """Pools of nodes that Karpenter would make, with their facts, and what is not offered.

    `existing` are the pools of nodes that there are, with theirs.
    """
    found: dict[str, tuple[Pool, Json]] = {}
    unseen: list[str] = []
    for item in nodepools:
        name = str(item["metadata"]["name"])
        try:
            for pool, fact in _pools_of(item, existing, catalog, context, served):
                found[pool.name] = (pool, fact)
        except _UncertainError as exc:
            unseen.append(f"NodePool {name} of Karpenter: {exc}")
    return found, unseen


class _UncertainError(Exception):
    """Which nodes would come cannot be told."""


def _pools_of(
    item: Json, existing: Mapping[str, tuple[Pool, Json]], catalog: Catalog, context: str,
    served: Served,
) -> Iterator[tuple[Pool, Json]]:  # fmt: skip
    spec = item.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    group = str((template.get("nodeClassRef") or {}).get("group") or "")
    provider = _PROVIDERS.get(group)
    if provider is None:
        raise _UncertainError(f"which nodes its class ({group or 'none'}) makes is not known")
    cloud = next(one for one in catalog if provider.platform in one.platforms)
    requirements = _requirements(spec, template)
    rows = _rows(requirements, provider, cloud)
    if not rows:
        return
    _must_be_dynamic_and_ready(item)
    for row in rows:
        zones: list[str | None] = [*_values(requirements, ZONE)] or [None]
        for zone in zones:
            for capacity in _capacities(requirements):
                yield _pool(
                    item, row, cloud, provider, zone=zone, capacity=capacity,
                    type_label=_spelled(row.name, requirements),
                    taints=template.get("taints") or (), existing=existing, context=context,
                    served=served,
                )  # fmt: skip


def _must_be_dynamic_and_ready(item: Json) -> None:
    if (item.get("spec") or {}).get("replicas") is not None:
        raise _UncertainError("it keeps a fixed number of nodes; those that exist are seen")
    for one in (item.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") == "False":
            raise _UncertainError(f"not ready: {one.get('message') or one.get('reason')}")


# ---- which types


def _requirements(spec: Json, template: Json) -> list[Json]:
    """The requirements, and the labels that every node gets, as requirements too."""
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    fixed = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    return [*(template.get("requirements") or ()), *fixed]


def _rows(
    requirements: Sequence[Json], provider: _Provider, cloud: CloudCatalog
) -> list[InstanceTypeRow]:
    """The catalog's types that fit; raises where one that fits might not come."""
    strange = sorted(
        str(one["key"])
        for one in requirements
        if str(one["key"]) not in _READ
        and str(one["key"]).startswith((provider.domain, "node.kubernetes.io/", *_AZURE_SPOT))
    )
    rows = [
        row
        for row in cloud.types()
        if all(_fits(row, one) for one in requirements if one["key"] in _READ)
        and (not row.platforms or provider.platform in row.platforms)
    ]
    if not rows:
        return []
    bounded = any(one["key"] in _BOUNDS and one["operator"] == "In" for one in requirements)
    if not bounded:
        raise _UncertainError(
            "it names no instance types, so which nodes come is not certain; those without a"
            f" node yet are not offered: name them in its requirements ({_TYPE})"
        )
    if strange:
        raise _UncertainError(
            f"what {', '.join(strange)} leaves of {', '.join(row.name for row in rows)} is not"
            " known here, so that types without a node yet are not offered"
        )
    return rows


def _aws(part: str) -> Callable[[InstanceTypeRow], str | None]:
    def read(row: InstanceTypeRow) -> str | None:
        match = _AWS_TYPE.match(row.name)
        return match[part] if match else None

    return read


def _gpu_count(row: InstanceTypeRow) -> str | None:
    return str(row.gpu.count) if row.gpu.vendor in {"nvidia", "amd"} else None


def _arch(row: InstanceTypeRow) -> str:
    return {"x86_64": "amd64"}.get(row.arch, row.arch)


_AWS: Mapping[str, Callable[[InstanceTypeRow], str | None]] = {
    "family": lambda row: row.name.partition(".")[0],
    "size": lambda row: row.name.partition(".")[2],
    "category": _aws("category"),
    "generation": _aws("generation"),
    "gpu-count": _gpu_count,
    "gpu-manufacturer": lambda row: row.gpu.vendor if _gpu_count(row) else None,
}
#: Requirement -> what it asks of a type. Others are judged where the pool is made, or are strange.
_READ: Mapping[str, Callable[[InstanceTypeRow], str | None] | None] = {
    _TYPE: lambda row: row.name,
    "karpenter.azure.com/sku-name": lambda row: row.name,
    "kubernetes.io/arch": _arch,
    "kubernetes.io/os": lambda _: "linux",
    **{
        f"{domain}/instance-{name}": read
        for domain in ("karpenter.k8s.aws", "eks.amazonaws.com")
        for name, read in _AWS.items()
    },
    ZONE: None,
    _CAPACITY: None,
}
#: Azure's other names for how nodes are bought: a pod that asks by Karpenter's may find none.
_AZURE_SPOT = ("kubernetes.azure.com/scalesetpriority", "kubernetes.azure.com/priority")
_BOUNDS = (
    _TYPE,
    "karpenter.azure.com/sku-name",
    "karpenter.k8s.aws/instance-family",
    "eks.amazonaws.com/instance-family",
)


def _fits(row: InstanceTypeRow, requirement: Json) -> bool:
    read = _READ[requirement["key"]]
    return read is None or _holds(read(row), requirement)


def _holds(value: str | None, requirement: Json) -> bool:
    operator, values = requirement["operator"], [str(v) for v in requirement.get("values") or ()]
    if operator == "In":
        return value is not None and value.lower() in {one.lower() for one in values}
    if operator == "NotIn":
        return value is None or value.lower() not in {one.lower() for one in values}
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if value is None or not value.isdigit():
        return False
    number, bound = int(value), int(values[0])
    return {
        "Gt": number > bound, "Lt": number < bound, "Gte": number >= bound, "Lte": number <= bound,
    }.get(operator, False)  # fmt: skip


def _values(requirements: Sequence[Json], key: str) -> list[str]:
    """The values that all requirements of a key leave, in order; empty where none bounds it."""
    named = [one for one in requirements if one["key"] == key]
    bounds = [one for one in named if one["operator"] == "In"]
    if not bounds:
        return []
    values = [str(value) for value in bounds[0]["values"]]
    return [value for value in values if all(_holds(value, one) for one in named)]


def _spelled(name: str, requirements: Sequence[Json]) -> str:
    """A type as the NodePool writes it: labels are compared letter by letter."""
    for key in (_TYPE, "karpenter.azure.com/sku-name"):
        for value in _values(requirements, key):
            if value.lower() == name.lower():
                return value
    return name


def _capacities(requirements: Sequence[Json]) -> list[str | None]:
    """How nodes are bought, each a pool: None where the NodePool's own order may decide.

    A NodePool that does not say is taken for on demand, and pods are made to ask for that.
    """
    named = _values(requirements, _CAPACITY)
    if not named:
        return ["on-demand"]
    return [None] if "spot" not in named else [*named]


# ---- the pool


def _pool(  # noqa: PLR0913  # what a pool is made of
    item: Json,
    row: InstanceTypeRow,
    cloud: CloudCatalog,
    provider: _Provider,
    *,
    zone: str | None,
    capacity: str | None,
    type_label: str,
    taints: Iterable[Json],
    existing: Mapping[str, tuple[Pool, Json]],
    context: str,
    served: Served,
) -> tuple[Pool, Json]:
    nodepool = str(item["metadata"]["name"])
    gpu = _gpu_resource(row)
    place = Place(backend="kubernetes", region=context, zone=zone)
    way, why = _way(row, cloud, provider, served)
    attached = way is not None and way.fabric
    labels = {
        NODEPOOL: nodepool,
        _TYPE: type_label,
        "kubernetes.io/arch": _arch(row),
        **({ZONE: zone} if zone else {}),
        **({_CAPACITY: capacity} if capacity else {}),
    }
    there = _there(existing, labels)
    more = _remaining(item, row, gpu)
    parts = (row.name, zone, capacity if capacity == "spot" else None, "karpenter", nodepool)
    pool = Pool(
        name="-".join(part for part in parts if part),
        place=place,
        platform=provider.platform,
        instance_type=row.name,
        accelerator=Accelerator(model=row.gpu.model, count=row.gpu.count),
        nodes_total=None if more is None else more + there,
        cpus=row.vcpus,
        memory_gib=row.memory_gib,
        interconnect=None if attached else Interconnect(kind=FabricKind.ETHERNET, place=place),
        labels=FrozenDict(labels),
        spot=capacity == "spot",
    )
    assumed = {name: n for name, n in (way.requests if way else {}).items() if is_nic(name)}
    fact: Json = {
        "gpu_resource": gpu,
        "gpus": row.gpu.count,
        "nics": {},
        "nics_assumed": assumed,
        "taints": [[str(t["key"]), str(t.get("value") or ""), str(t["effect"])] for t in taints],
        "way": way.name if way else None,
        "no_fabric": why,
        "autoscaler": "karpenter",
        "disrupts": "karpenter",
        "nodes_there": there,
        "notes": [_note(there, more, nodepool, assumed)],
    }
    if zone is None:
        fact["one_node_only"] = (
            f"the NodePool {nodepool} names no zone, so nodes of a gang could come in several,"
            f" which share no fabric: name one in its requirements ({ZONE})"
        )
    return pool, fact


def _note(there: int, more: int | None, nodepool: str, assumed: Mapping[str, str]) -> str:
    exist = (
        f"{there} nodes exist with all their accelerators free" if there else "no node exists yet"
    )
    bound = "" if more is None else f", {more} at most by its limits"
    nics = f"; that they give pods {', '.join(assumed)} is assumed" if assumed else ""
    nics += ", unless their node class sets other network interfaces" if assumed else ""
    return f"{exist}; Karpenter makes the others of NodePool {nodepool}{bound}{nics}"


def _gpu_resource(row: InstanceTypeRow) -> str:
    vendor = row.gpu.vendor
    return next((name for name, made in GPU_RESOURCES.items() if made == vendor), "nvidia.com/gpu")


def _way(
    row: InstanceTypeRow, cloud: CloudCatalog, provider: _Provider, served: Served
) -> tuple[KubernetesRow | None, str]:
    """How pods would get the NICs: only by resources that make Karpenter make such a node."""
    reasons: list[str] = []
    for way in cloud.kubernetes_rows(row.name, provider.platform):
        unknown = sorted(set(way.requests) - provider.resources)
        absent = sorted(set(way.detect.custom_resources) - set(served.custom_resources))
        if way.claims or way.compute_domain:
            reasons.append(f"{way.name}: Karpenter is not known to make nodes for pods with claims")
        elif unknown:
            told = ", ".join(unknown)
            reasons.append(
                f"{way.name}: Karpenter is not known to make nodes for pods that ask for {told}"
            )
        elif absent:
            reasons.append(f"{way.name}: the cluster lacks {', '.join(absent)}")
        else:
            return way, ""
    return None, "; ".join(reasons) or f"no way to give pods NICs of {row.name} is known"


def _there(existing: Mapping[str, tuple[Pool, Json]], labels: Mapping[str, str]) -> int:
    """Whole free nodes of this NodePool, type and zone that exist."""
    count = 0
    for pool, fact in existing.values():
        has = {**fact.get("labels", {}), **pool.labels}
        if all(has.get(name) == labels.get(name) for name in (NODEPOOL, _TYPE, ZONE)):
            count += pool.nodes_free or 0
    return count


def _remaining(item: Json, row: InstanceTypeRow, gpu: str) -> int | None:
    """How many more nodes of a type the NodePool's limits leave; None without limits."""
    limits = (item.get("spec") or {}).get("limits") or {}
    used = (item.get("status") or {}).get("resources") or {}
    each = {
        "cpu": row.vcpus,
        "memory": None if row.memory_gib is None else row.memory_gib * 2**30,
        "nodes": 1,
        gpu: row.gpu.count,
    }
    left = [
        int((quantity(limit) - quantity(used.get(name, "0"))) // one)
        for name, limit in limits.items()
        if (one := each.get(name))
    ]
    return max(0, min(left)) if left else None
