"""What a cluster is equipped with, and what it lacks for the nodes it has: pure, over a `Site`."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping
from typing import cast

from gpufabric.backends._pools import cloud_of
from gpufabric.backends.base import CheckItem, Pool, Site
from gpufabric.backends.kubernetes._reading import controllers, facts_of, queues
from gpufabric.backends.kubernetes._serve import INSTALL
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow, KubernetesRow
from gpufabric.net.interconnect import FabricKind

__all__ = ["PAGES", "equipment", "namespace_item", "needs_of"]

#: Platform -> the page of the documentation that says what must be installed there.
PAGES = {
    "eks": "kubernetes-eks",
    "hyperpod-eks": "kubernetes-hyperpod",
    "gke": "kubernetes-gke",
    "aks": "kubernetes-aks",
    "oke": "kubernetes-oke",
    "cks": "kubernetes-coreweave",
    "nebius-mk8s": "kubernetes-nebius",
    "lambda-mk8s": "kubernetes-lambda",
    "crusoe-cmk": "kubernetes-crusoe",
    "doks": "kubernetes-digitalocean",
    "together-k8s": "kubernetes-together",
    "onprem-k8s": "kubernetes-on-premises",
}
_SHOWN = 5
#: How the catalog begins to tell of what a gang does without.
_OPTIONAL = ("optional", "only for", "for MPIJobs")


def equipment(site: Site, catalog: Catalog, *, serve: bool = False) -> Iterator[CheckItem]:
    """One item for each controller, for the namespace, and for each pool with accelerators."""
    yield from _controllers(site)
    if serve:
        yield _serving(site)
    yield _pod_security(site)
    for pool in site.pools:
        item = _pool(pool, site, catalog)
        if item is not None:
            yield item


def _controllers(site: Site) -> Iterator[CheckItem]:
    known = controllers(site)
    version = known.get("jobset")
    told = (
        f"installed, {version}"
        if version
        else "not installed: gangs are Indexed Jobs, and max_restarts is refused"
    )
    yield CheckItem(name="JobSet", ok=True, message=told)
    version, named = known.get("kueue"), queues(site)
    if version and named:
        told = f"installed, {version}; LocalQueues: {', '.join(named)}"
    elif version:
        told = f"installed, {version}; the namespace has no LocalQueue, so jobs go past it"
    else:
        told = "not installed: a gang that does not fit is rolled back, not queued"
    yield CheckItem(name="Kueue", ok=True, message=told)


def _serving(site: Site) -> CheckItem:
    version = controllers(site).get("lws")
    lacks = f"not installed, and serve=True needs it: {INSTALL}"
    told = f"installed, {version}" if version else lacks
    return CheckItem(name="LeaderWorkerSet", ok=version is not None, message=told)


def _pod_security(site: Site) -> CheckItem:
    level = site.facts.get("pod_security")
    if level is None:
        told = "the namespace has no level of its own, or it may not be read"
    elif level == "privileged":
        told = "the namespace enforces 'privileged': nothing is kept out"
    else:
        run = ", and pods run as user 1000" if level == "restricted" else ""
        told = (
            f"the namespace enforces {level!r}: networks that need privileges, capabilities or"
            f" host paths are not offered{run}"
        )
    return CheckItem(name="Pod Security", ok=True, message=told)


def _pool(pool: Pool, site: Site, catalog: Catalog) -> CheckItem | None:
    fact = facts_of(site, pool.name)
    cloud = cloud_of(pool, catalog)
    known = cloud.find_type(pool.instance_type) if pool.instance_type else None
    name = f"nodes {pool.name}"
    if not fact.get("gpu_resource"):
        if known is None or not known.gpu.count or pool.accelerator is not None:
            return None
        return CheckItem(name=name, ok=True, warn=True, message=_no_gpus(known, pool, cloud))
    if not pool.nodes_total:
        away = cast("Mapping[str, str]", fact.get("why_unusable") or {})
        told = "; ".join(f"{node}: {why}" for node, why in [*away.items()][:_SHOWN])
        told = f"none of its nodes is usable now{f' ({told})' if told else ''}"
        return CheckItem(name=name, ok=True, warn=True, message=told)
    nodes = "1 node" if pool.nodes_total == 1 else f"{pool.nodes_total} nodes"
    has = f"{nodes} of {pool.accelerator or fact['gpu_resource']}"
    if known is not None and not _has_fabric(known, cloud):
        kind = cloud.interconnect(known).kind
        return CheckItem(name=name, ok=True, message=f"{has}, on {kind}, as they are sold")
    way = fact.get("way")
    if way and _gives_fabric(str(way), cloud):
        return CheckItem(name=name, ok=True, message=f"{has}, NICs by {way}")
    lacks = str(fact.get("no_fabric") or (f"{way} gives none" if way else "no way is known"))
    told = f"{has}, and pods get no fast network: {lacks}{_needed(known, pool, cloud)}"
    return CheckItem(name=name, ok=True, warn=True, message=told)


def _has_fabric(row: InstanceTypeRow, cloud: CloudCatalog) -> bool:
    return FabricKind(cloud.interconnect(row).kind) is not FabricKind.ETHERNET


def _gives_fabric(way: str, cloud: CloudCatalog) -> bool:
    rows = cast("tuple[KubernetesRow, ...]", cloud.rows("kubernetes"))
    return any(row.name == way and row.fabric for row in rows)


def _no_gpus(row: InstanceTypeRow, pool: Pool, cloud: CloudCatalog) -> str:
    platform = cloud.platforms.get(pool.platform)
    resource = platform.gpu_resource if platform else "nvidia.com/gpu"
    return (
        f"{row.name} has {row.gpu.count} x {row.gpu.model}, and the nodes offer no {resource}: its"
        f" device plug-in is not installed, or not ready yet{_page(pool)}"
    )


def _needed(row: InstanceTypeRow | None, pool: Pool, cloud: CloudCatalog) -> str:
    """What the platform's first way needs in the cluster."""
    if row is None:
        return (
            ". Only `standard` is offered on them: lay a catalog file over it that says what their"
            f" NICs are{_page(pool)}"
        )
    ways = cloud.kubernetes_rows(row.name, pool.platform)
    needed = needs_of(ways[0]) if ways else ()
    return (f". Needed there: {'; '.join(needed)}" if needed else "") + _page(pool)


def needs_of(way: KubernetesRow) -> tuple[str, ...]:
    """What must run in a cluster for a way, with the least version where it is known."""
    return tuple(
        one.name + (f" {one.minimum} or later" if one.minimum else "")
        for one in way.daemons
        if not one.why.startswith(_OPTIONAL)
    )


def _page(pool: Pool) -> str:
    page = PAGES.get(pool.platform)
    return f" (how-to: {page})" if page else ""


def namespace_item(space: Mapping[str, object] | None, namespace: str) -> CheckItem | None:
    """Whether the namespace is there; `space` is its object, None where there is none."""
    if space is None:
        told = f"there is no namespace {namespace}: kubectl create namespace {namespace}"
        return CheckItem(name="namespace", ok=False, message=told)
    phase = cast("Mapping[str, object]", space.get("status") or {}).get("phase")
    if phase == "Terminating":
        told = f"{namespace} is being removed: wait, or name another one"
        return CheckItem(name="namespace", ok=False, message=told)
    return None
