"""What a site says of a pool, and the network of an offer in it."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Mapping
from typing import cast

from gpufabric.backends._pools import cloud_of, row_of
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._api import Json
from gpufabric.catalog.index import Catalog
from gpufabric.catalog.rows import PlatformRow
from gpufabric.errors import SpecError
from gpufabric.net.netplan import NetworkPlan, network_plan
from gpufabric.plan import Offer
from gpufabric.resources import Resources

__all__ = ["GPU_TAINTS", "controllers", "facts_of", "network_of", "queue_of", "queues"]

#: Taints that keep pods without accelerators out: those named as the resource, which clouds and
#: the plug-ins' guides use, and sku=gpu, of the guide of AKS:
#: https://learn.microsoft.com/azure/aks/use-nvidia-gpu
GPU_TAINTS = ("nvidia.com/gpu", "amd.com/gpu", "sku", "aws.amazon.com/neuron")


def facts_of(site: Site, pool: str | None) -> Json:
    """What `discover` noted of a pool that `Pool` has no field for."""
    pools = cast("Mapping[str, Json]", site.facts.get("pools") or {})
    return pools.get(pool or "", {})


def controllers(site: Site) -> Mapping[str, str]:
    """The controllers that are installed, with their API versions."""
    return cast("Mapping[str, str]", site.facts.get("controllers") or {})


def queues(site: Site) -> tuple[str, ...]:
    """The LocalQueues of the namespace."""
    return tuple(cast("tuple[str, ...]", site.facts.get("queues") or ()))


def queue_of(option: Resources, site: Site) -> str | None:
    """The LocalQueue that a gang goes through, None where it goes through none."""
    known = queues(site)
    if option.capacity in known:
        return option.capacity
    if len(known) == 1:
        return known[0]
    return "default" if "default" in known else None


def network_of(
    offer: Offer, site: Site, catalog: Catalog, envs: Mapping[str, str]
) -> tuple[NetworkPlan, PlatformRow | None]:
    """The network plan of an offer in its pool, and the pool's platform."""
    pool = next((one for one in site.pools if one.name == offer.pool), None)
    if pool is None:
        raise SpecError(f"the site has no pool {offer.pool!r}: discover again")
    if not offer.gpus_per_node:
        return NetworkPlan(), None
    cloud = cloud_of(pool, catalog)
    row = row_of(pool, cloud, catalog)
    name = facts_of(site, pool.name).get("way")
    ways = [one for one in cloud.kubernetes_rows(row.name, pool.platform) if one.name == name]
    way = ways[0] if ways else None
    made = network_plan(offer, cloud, catalog, envs=envs, row=row, way=way, fabric=way is not None)
    return made, cloud.platforms.get(pool.platform)
