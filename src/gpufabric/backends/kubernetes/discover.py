"""What a cluster has: one paged pass over nodes and pods, and what its controllers are.

Only `read_site` asks the API server; `_nodes`, `_node_pools`, `_slices`, `_quotas` and
`_autoscalers` make of its objects, without asking anything, what plans need.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from gpufabric._frozen import FrozenDict, freeze
from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._api import Api, ExpiredError, Json
from gpufabric.backends.kubernetes._node_pools import pools_of
from gpufabric.backends.kubernetes._nodes import GPU_RESOURCES
from gpufabric.backends.kubernetes._slices import claimed_of, class_driver, counted, devices_of
from gpufabric.backends.kubernetes._usage import quantity, usage_of
from gpufabric.backends.kubernetes._ways import Served
from gpufabric.catalog.index import Catalog
from gpufabric.catalog.rows import KubernetesRow
from gpufabric.errors import CredentialsError, NotFoundError
from gpufabric.net.interconnect import Place

T = TypeVar("T")
Counts = dict[str, dict[str, int]]

__all__ = ["CONTROLLERS", "GPU_RESOURCES", "pools_of", "quantity", "read_site", "usage_of"]

CONTROLLERS = {
    "jobset": "jobset.x-k8s.io",
    "kueue": "kueue.x-k8s.io",
    "volcano": "batch.volcano.sh",
    "lws": "leaderworkerset.x-k8s.io",
}
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
_DRA = "resource.k8s.io"


def read_site(  # what is asked, and as whom
    api: Api, *, name: str, context: str, namespace: str, catalog: Catalog
) -> Site:
    """Reads a cluster, with what may be read; what may not is told in `unseen`."""
    see = _Reader(api)
    groups = see.groups()
    served = _served(see, groups, catalog)
    used = _usage(see, namespace)

    def read_nodes() -> tuple[tuple[Pool, ...], dict[str, Json]]:
        return pools_of(
            see.list("/api/v1/nodes"), used, catalog=catalog, context=context, served=served
        )

    pools, by_pool = see.tolerated("nodes", read_nodes) or ((), {})
    if not pools and see.unseen:
        place = Place(backend="kubernetes", region=context)
        pools = (Pool(name="any", place=place, platform="onprem-k8s"),)
    facts: Json = {
        "context": context,
        "namespace": namespace,
        "controllers": {
            key: groups[group] for key, group in CONTROLLERS.items() if group in groups
        },
        "custom_resources": list(served.custom_resources),
        "queues": _queues(see, groups, namespace),
        "quotas": _quotas(see, namespace),
        "pod_security": _pod_security(see, namespace),
        "pools": by_pool,
    }
    return Site(
        backend=name,
        pools=pools,
        unseen=tuple(see.unseen),
        facts=cast("FrozenDict[str, object]", freeze(facts)),
    )


class _Reader:
    """Reads of one discovery, and in words what could not be read."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.unseen: list[str] = []
        self.list = api.items
        self.get = api.get

    def tolerated(self, what: str, read: Callable[[], T]) -> T | None:
        """What `read` gives; None where it may not be read or is not there, which is told.

        A list whose pages expired while it was read is read once more from its start.
        """
        for last in (False, True):
            try:
                return read()
            except CredentialsError as exc:
                if "not allowed" not in str(exc):
                    raise
                self.unseen.append(f"{what}: not allowed to list them")
            except NotFoundError:
                self.unseen.append(f"{what}: the server does not have them")
            except ExpiredError as exc:
                if not last:
                    continue
                self.unseen.append(
                    f"{what}: the list expired twice while it was read ({exc}): the server drops"
                    " old versions faster than it gives pages; discover again"
                )
            return None
        return None

    def groups(self) -> dict[str, str]:
        """API group -> its preferred version."""
        listed = self.get("/apis").get("groups") or ()
        return {str(g["name"]): str(g["preferredVersion"]["version"]) for g in listed}


def _usage(see: _Reader, namespace: str) -> dict[str, dict[str, float]]:
    query = {"fieldSelector": _LIVE}
    every = see.tolerated(
        "pods of all namespaces", lambda: usage_of(see.list("/api/v1/pods", query))
    )
    if every is not None:
        return every
    see.unseen[-1] += "; what other namespaces use of the nodes is not subtracted"
    path = f"/api/v1/namespaces/{namespace}/pods"
    own = see.tolerated(f"pods of {namespace}", lambda: usage_of(see.list(path, query)))
    return own or {}


def _served(see: _Reader, groups: Mapping[str, str], catalog: Catalog) -> Served:
    """Which of the CRDs that the catalog asks about exist; DeviceClasses and devices."""
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
    classes = see.tolerated("DeviceClasses", lambda: list(see.list(f"{path}/deviceclasses"))) or ()
    drivers = {str(one["metadata"]["name"]): class_driver(one) for one in classes}
    total, free = _devices(see, path)
    return Served(
        custom_resources=(*found, *(f"deviceclass/{name}" for name in drivers)),
        class_drivers={name: driver for name, driver in drivers.items() if driver},
        devices=total,
        devices_free=free,
    )


def _devices(see: _Reader, path: str) -> tuple[Counts | None, Counts | None]:
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


def _queues(see: _Reader, groups: Mapping[str, str], namespace: str) -> list[str]:
    version = groups.get("kueue.x-k8s.io")
    if version is None:
        return []
    path = f"/apis/kueue.x-k8s.io/{version}/namespaces/{namespace}/localqueues"
    listed = see.tolerated("LocalQueues", lambda: list(see.list(path))) or ()
    return sorted(str(one["metadata"]["name"]) for one in listed)


def _quotas(see: _Reader, namespace: str) -> list[Json]:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    listed = see.tolerated("ResourceQuotas", lambda: list(see.list(path))) or ()
    return [
        {
            "name": one["metadata"]["name"],
            "hard": (one.get("status") or {}).get("hard") or one["spec"].get("hard") or {},
            "used": (one.get("status") or {}).get("used") or {},
        }
        for one in listed
    ]


def _pod_security(see: _Reader, namespace: str) -> str | None:
    space = see.tolerated(
        f"namespace {namespace}", lambda: see.get(f"/api/v1/namespaces/{namespace}")
    )
    labels = ((space or {}).get("metadata") or {}).get("labels") or {}
    level = labels.get("pod-security.kubernetes.io/enforce")
    return str(level) if level else None
