"""Where the nodes of a gang must be together, since their fabric ends there, or should be near."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Mapping
from typing import cast

from gpufabric._frozen import evolve
from gpufabric.backends._pools import cloud_of, row_of
from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._gang import Nearness
from gpufabric.backends.kubernetes._queues import levels_for
from gpufabric.backends.kubernetes._reading import facts_of, queue_of
from gpufabric.catalog.index import Catalog
from gpufabric.net.netplan import NetworkPlan
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Offer

__all__ = ["CLIQUE", "kept_together", "must_share", "nearness_of", "rooms_of"]

#: Nodes with one value of it share an NVLink domain; NVIDIA's DRA driver and GPU feature
#: discovery set it. https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-cds.html
CLIQUE = "nvidia.com/gpu.clique"
_HOST = "kubernetes.io/hostname"
_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
_UNCONSTRAINED = "kueue.x-k8s.io/podset-unconstrained-topology"
_MOST_VALUES = 64


def must_share(offer: Offer, site: Site, catalog: Catalog) -> str | None:
    """The label that all nodes of the gang must share to keep the offer's tier, None without.

    The best network of a rack-scale type is the NVLink of one domain.
    """
    if offer.num_nodes == 1 or offer.tier < NetworkTier.BEST:
        return None
    pool = _pool(offer, site)
    row = row_of(pool, cloud_of(pool, catalog), catalog)
    return CLIQUE if (row.nvlink_domain_nodes or 1) > 1 else None


def kept_together(offer: Offer, site: Site, catalog: Catalog) -> tuple[Offer, str]:
    """The offer as the free nodes of the pool can keep it; with a reason where they cannot.

    Where less than the best was asked, nodes of several domains serve too: by the wider network.
    """
    label = must_share(offer, site, catalog)
    if label is None or queue_of(offer.resources, site) is not None:
        return offer, ""
    rooms = rooms_of(offer, site, label)
    most = max((rooms or {}).values(), default=0)
    if most >= offer.num_nodes:
        return offer, ""
    if rooms:
        words = (
            f"{offer.num_nodes} nodes were asked for, and the fullest NVLink domain ({label})"
            f" has {most} of them free: {_told(rooms)}"
        )
    else:
        words = f"its nodes lack the label {label}, which tells those that share an NVLink domain"
    if offer.resources.network_tier >= NetworkTier.BEST or not offer.nics.gpudirect:
        return offer, f"best cannot be kept: {words}"
    warning = f"not best, as the nodes are of several NVLink domains: {words}"
    tier = NetworkTier.GPUDIRECT
    return evolve(offer, tier=tier, warnings=(*offer.warnings, warning)), ""


def _told(rooms: Mapping[str, int]) -> str:
    most = sorted(rooms.items(), key=lambda one: (-one[1], one[0]))
    named = ", ".join(f"{value} {free}" for value, free in most[:5])
    return named + (f" and {len(most) - 5} more with no more" if len(most) > 5 else "")


def rooms_of(offer: Offer, site: Site, label: str) -> Mapping[str, int] | None:
    """Value of a label -> how many free nodes of the pool carry it; None where not known."""
    topology = facts_of(site, offer.pool).get("topology") or {}
    rooms = topology.get(label)
    return None if rooms is None else cast("Mapping[str, int]", rooms)


def nearness_of(
    offer: Offer, site: Site, catalog: Catalog, network: NetworkPlan, *, firm: bool = True
) -> Nearness:
    """Where the pods of a gang go in relation to each other."""
    pool = _pool(offer, site)
    apart, queue = _apart(offer, pool), queue_of(offer.resources, site)
    levels, needed = levels_for(site, queue, pool, gpus=bool(offer.gpus_per_node))
    if offer.num_nodes == 1 or network.way is None or not network.way.fabric:
        return Nearness(apart=apart, annotations={_UNCONSTRAINED: "true"} if needed else {})
    near = cast("str | None", facts_of(site, offer.pool).get("near"))
    together = must_share(offer, site, catalog)
    annotations = _annotations(together, near, levels)
    if needed and not annotations:
        annotations = {_UNCONSTRAINED: "true"}
    elif annotations:
        near = None  # Kueue chooses the nodes: a second opinion could only disagree
        together = None if _REQUIRED in annotations else together
    among: tuple[str, ...] = ()
    if together is not None and queue is None:  # in a queue, room is what there is in its turn
        rooms = rooms_of(offer, site, together) or {}
        fitting = [value for value, free in rooms.items() if free >= offer.num_nodes]
        among = tuple(sorted(sorted(fitting, key=lambda v: -rooms[v])[:_MOST_VALUES]))
    return Nearness(
        apart=apart, together=together, among=among, firm=firm, near=near, annotations=annotations
    )


def _annotations(together: str | None, near: str | None, levels: tuple[str, ...]) -> dict[str, str]:
    """What Kueue reads: the level at which the fabric ends is required, any other preferred.

    https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/
    """
    if together in levels:
        return {_REQUIRED: str(together)}
    if near in levels:
        return {_PREFERRED: str(near)}
    above = [level for level in levels if level != _HOST]
    return {_PREFERRED: above[-1]} if above else {}


def _apart(offer: Offer, pool: Pool) -> bool:
    """Whether two pods of the gang could land on one node without being told not to."""
    if offer.num_nodes == 1:
        return False
    whole = pool.accelerator is not None and offer.gpus_per_node * 2 > pool.accelerator.count
    return not whole


def _pool(offer: Offer, site: Site) -> Pool:
    return next(one for one in site.pools if one.name == offer.pool)
