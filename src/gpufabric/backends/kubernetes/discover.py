"""What a cluster has: one paged pass over nodes and pods, and what its controllers are.

Only `read_site` asks the API server; what plans need is made of its answers by functions over
plain objects: `_nodes`, `_node_pools`, `_ways`, `_slices`, `_quotas`, `_queues`, `_autoscalers`.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from gpufabric._frozen import FrozenDict, freeze
from gpufabric._yaml import load_value
from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._autoscalers import groups_at_zero, provisioned_unseen
from gpufabric.backends.kubernetes._karpenter import KARPENTER, NODEPOOL, karpenter_pools
from gpufabric.backends.kubernetes._node_pools import note_tiers, pools_of
from gpufabric.backends.kubernetes._nodes import GPU_RESOURCES
from gpufabric.backends.kubernetes._queues import read_queues
from gpufabric.backends.kubernetes._quotas import limit_records, quota_record
from gpufabric.backends.kubernetes._reader import Reader
from gpufabric.backends.kubernetes._schedulers import gang_apis
from gpufabric.backends.kubernetes._slices import claimed_of, class_driver, counted, devices_of
from gpufabric.backends.kubernetes._usage import quantity, usage_of
from gpufabric.backends.kubernetes._ways import Served
from gpufabric.catalog.index import Catalog
from gpufabric.catalog.rows import KubernetesRow
from gpufabric.errors import SpecError
from gpufabric.net.interconnect import Place

__all__ = ["CONTROLLERS", "GPU_RESOURCES", "pools_of", "quantity", "read_site", "usage_of"]

CONTROLLERS = {
    "jobset": "jobset.x-k8s.io",
    "kueue": "kueue.x-k8s.io",
    "volcano": "batch.volcano.sh",
    "lws": "leaderworkerset.x-k8s.io",
}
Counts = dict[str, dict[str, int]]
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
_DRA = "resource.k8s.io"
_AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_SECURITY = "pod-security.kubernetes.io/enforce"


def read_site(  # what is asked, and as whom
    api: Api, *, name: str, context: str, namespace: str, catalog: Catalog
) -> Site:
    """Reads a cluster, with what may be read; what may not is told in `unseen`."""
    see = Reader(api)
    facts: Json = {
        "context": context,
        "namespace": namespace,
        **_controllers(see, namespace),
        **_namespace(see, namespace),
        **_queue_facts(see, namespace),
        **_priorities(see),
    }
    served = _served(see, catalog)
    pools, by_pool = _pools(see, namespace, catalog, context, served, _labels_of(facts))
    made = _autoscaled(see, pools, by_pool, catalog, context, served)
    pools = (*pools, *(pool for pool, _ in made))
    by_pool |= {pool.name: fact for pool, fact in made}
    note_tiers(pools, by_pool, catalog)
    facts |= {
        "custom_resources": list(served.custom_resources),
        "pools": by_pool,
        "usage_seen": not any(text.startswith("pods of all namespaces") for text in see.unseen),
    }
    see.unseen += _told_of(by_pool)
    if pools:
        labels = [{**by_pool[one.name].get("labels", {}), **one.labels} for one in pools]
        see.unseen += provisioned_unseen(facts["queue_quota"], labels)
    if not pools and any(text.startswith("nodes:") for text in see.unseen):
        place = Place(backend="kubernetes", region=context)
        pools = (Pool(name="any", place=place, platform="onprem-k8s"),)
    return Site(
        backend=name,
        pools=pools,
        unseen=tuple(see.unseen),
        facts=cast("FrozenDict[str, object]", freeze(facts)),
    )


# ---- nodes


def _pools(  # noqa: PLR0913, PLR0917  # one caller
    see: Reader,
    namespace: str,
    catalog: Catalog,
    context: str,
    served: Served,
    labels: Collection[str],
) -> tuple[tuple[Pool, ...], dict[str, Json]]:
    used = _usage(see, namespace)
    found = see.tolerated(
        "nodes",
        needed=True,
        read=lambda: pools_of(
            see.many("/api/v1/nodes"), used,
            catalog=catalog, context=context, served=served, labels=labels,
        ),
    )  # fmt: skip
    return found or ((), {})


def _usage(see: Reader, namespace: str) -> dict[str, dict[str, float]]:
    query = {"fieldSelector": _LIVE}
    every = see.tolerated(
        "pods of all namespaces",
        lambda: usage_of(see.many("/api/v1/pods", query)),
        needed=True,
    )
    if every is not None:
        return every
    see.unseen[-1] += "; what other namespaces use of the nodes is not subtracted"
    path = f"/api/v1/namespaces/{namespace}/pods"
    own = see.tolerated(
        f"pods of {namespace}", lambda: usage_of(see.many(path, query)), needed=True
    )
    return own or {}


def _labels_of(facts: Json) -> set[str]:
    """Labels by which flavors of queues and Karpenter know their nodes."""
    return {
        NODEPOOL,
        *(
            label
            for queue in facts["queue_quota"].values()
            for flavor in queue["flavors"] or ()
            for label in flavor["labels"]
        ),
    }


def _autoscaled(  # noqa: PLR0913, PLR0917  # one caller
    see: Reader,
    pools: tuple[Pool, ...],
    by_pool: Mapping[str, Json],
    catalog: Catalog,
    context: str,
    served: Served,
) -> list[tuple[Pool, Json]]:
    """Pools that are made when pods ask for them, where their type is certain; others are told."""
    status = see.autoscaler(lambda: see.get(_AUTOSCALER))
    if status is not None:
        see.unseen += groups_at_zero(_yaml(str((status.get("data") or {}).get("status") or "")))
    version = see.groups.get(KARPENTER)
    if version is None:
        return []
    items = see.listed("NodePools of Karpenter", f"/apis/{KARPENTER}/{version}/nodepools") or ()
    existing = {pool.name: (pool, by_pool[pool.name]) for pool in pools if pool.name in by_pool}
    made, unseen = karpenter_pools(items, existing, catalog, context, served)
    see.unseen += unseen
    return [one for one in made.values() if one[0].name not in existing]


def _yaml(text: str) -> object:
    try:
        return load_value(dict, text)
    except SpecError:
        return None  # which is told


def _told_of(by_pool: Mapping[str, Json]) -> Iterator[str]:
    """What nodes have that is not offered."""
    for name, fact in by_pool.items():
        drivers = [one for one in fact.get("devices") or () if one.startswith("gpu.")]
        if drivers and not fact["gpu_resource"]:
            yield (
                f"pool {name}: GPUs by DRA alone ({', '.join(drivers)}), which are not offered:"
                " only those are that a device plug-in gives as a resource"
            )
        if fact.get("other_accelerators"):
            yield (
                f"pool {name}: parts of GPUs ({', '.join(fact['other_accelerators'])}), which are"
                " not offered"
            )


def _served(see: Reader, catalog: Catalog) -> Served:
    """Which of the CRDs that the catalog asks about exist; DeviceClasses and devices."""
    groups = see.groups
    wanted = {
        name
        for cloud in catalog
        for row in cloud.rows("kubernetes")
        for name in cast("KubernetesRow", row).detect.custom_resources
    }
    found: list[str] = []
    for group in sorted({name.partition(".")[2] for name in wanted if "/" not in name} & {*groups}):
        served = see.get(f"/apis/{group}/{groups[group]}").get("resources") or ()
        found += [f"{one['name']}.{group}" for one in served if f"{one['name']}.{group}" in wanted]
    if _DRA not in groups:
        return Served(custom_resources=tuple(found))
    path = f"/apis/{_DRA}/{groups[_DRA]}"
    classes = see.listed("DeviceClasses", f"{path}/deviceclasses") or ()
    if groups[_DRA] != "v1":  # our ResourceClaimTemplates are v1
        see.unseen.append(
            f"{_DRA} {groups[_DRA]}: claims are made with v1 alone, which Kubernetes has since"
            " 1.34; networks that are given by device claims are not offered"
        )
        classes = ()
    drivers = {str(one["metadata"]["name"]): class_driver(one) for one in classes}
    total, free = _devices(see, path)
    return Served(
        custom_resources=(*found, *(f"deviceclass/{name}" for name in drivers)),
        class_drivers={name: driver for name, driver in drivers.items() if driver},
        devices=total,
        devices_free=free,
    )


def _devices(see: Reader, path: str) -> tuple[Counts | None, Counts | None]:
    """Node -> driver -> devices, and of these the ones that no claim holds."""
    devices = see.tolerated(
        "ResourceSlices", lambda: devices_of(see.list(f"{path}/resourceslices"))
    )
    if not devices:
        return (None, None) if devices is None else ({}, {})
    held = see.tolerated(
        "ResourceClaims of all namespaces",
        lambda: claimed_of(see.list(f"{path}/resourceclaims")),
    )
    total, free = counted(devices, held or set())
    return total, (None if held is None else free)


# ---- what else decides


def _controllers(see: Reader, namespace: str) -> Json:
    groups = see.groups
    version = see.tolerated("the server's version", lambda: see.get("/version"), verb="get") or {}
    return {
        "controllers": {
            key: groups[group] for key, group in CONTROLLERS.items() if group in groups
        },
        "gang_apis": gang_apis(see.api, see.api_groups, namespace, see.unseen),
        "server_version": version.get("gitVersion"),
    }


def _namespace(see: Reader, namespace: str) -> Json:
    """Quotas, limits and Pod Security. What a cluster sets for all namespaces cannot be read."""
    base = f"/api/v1/namespaces/{namespace}"
    quotas = see.listed("ResourceQuotas", f"{base}/resourcequotas") or ()
    limits = see.listed("LimitRanges", f"{base}/limitranges") or ()
    space = see.one(f"namespace {namespace}", base) or {}
    labels = (space.get("metadata") or {}).get("labels") or {}
    return {
        "quotas": [quota_record(one) for one in quotas],
        "limits": [record for one in limits for record in limit_records(one)],
        "pod_security": labels.get(_SECURITY) or None,
        "pod_security_version": labels.get(f"{_SECURITY}-version") or None,
    }


def _queue_facts(see: Reader, namespace: str) -> Json:
    queues = read_queues(see, namespace)
    return {
        "queues_seen": not any(text.startswith("LocalQueues") for text in see.unseen),
        "queues": list(queues),
        "queue_quota": queues,
        "queue_topology": {
            name: one["topology"] for name, one in queues.items() if one["topology"]
        },
    }


def _priorities(see: Reader) -> Json:
    """The names that a job's priority can have, None where they could not be read."""
    classes = see.listed("PriorityClasses", "/apis/scheduling.k8s.io/v1/priorityclasses")
    found: Json = {
        "priority_classes": None if classes is None else sorted(map(_name, classes)),
        "default_priority_class": next(
            (_name(one) for one in classes or () if one.get("globalDefault")), None
        ),
        "workload_priority_classes": [],
    }
    version = see.groups.get(CONTROLLERS["kueue"])
    if version is not None:
        path = f"/apis/{CONTROLLERS['kueue']}/{version}/workloadpriorityclasses"
        listed = see.listed("WorkloadPriorityClasses", path) or ()
        found["workload_priority_classes"] = sorted(map(_name, listed))
    return found


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])
