"""Where on a cluster a task could run, and why not elsewhere: pure functions over a `Site`."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping
from typing import cast

from gpufabric._frozen import evolve
from gpufabric.backends._pools import site_offers
from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._admission import admitted, privileges_of
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._company import VOLCANO, company_faults, gang_apis_of
from gpufabric.backends.kubernetes._reading import (
    GPU_TAINTS,
    controllers,
    facts_of,
    network_of,
    queue_of,
    queues,
)
from gpufabric.backends.kubernetes._serve import serve_faults
from gpufabric.backends.kubernetes._together import kept_together
from gpufabric.catalog.index import Catalog
from gpufabric.net.interconnect import FabricKind, Interconnect
from gpufabric.net.nics import NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Offer, Rejection, Resolution
from gpufabric.resources import Resources
from gpufabric.task import Task

__all__ = ["make_offers"]

_MOST_TEXT = 100_000  # Linux takes 128 KiB in one argument


def make_offers(  # noqa: PLR0913  # what the backend knows beside the three values, by keyword
    task: Task,
    site: Site,
    catalog: Catalog,
    *,
    image: str | None,
    patch: Mapping[str, object],
    scheduler: str | None = None,
    priority: str | None = None,
    serve: bool = False,
) -> Resolution:
    """All ways to run a task on this cluster, and why not the others."""
    offers: list[Offer] = []
    rejections: list[Rejection] = []
    if not site.pools:
        return Resolution(
            rejections=tuple(
                Rejection(backend=site.backend, reason=text)
                for text in ("the cluster has no nodes", *site.unseen)
            )
        )
    for option in task.resources.alternatives():
        faults = [
            *_faults(task, option, site, image, scheduler=scheduler, serve=serve),
            *company_faults(task, option, site, scheduler=scheduler, priority=priority),
            *(serve_faults(task, option, site) if serve else ()),
        ]
        if faults:
            rejections += [Rejection(backend=site.backend, reason=text) for text in faults]
            continue
        one = evolve(task, resources=option)
        pools, refused = _open_pools(option, site, patch, task.num_nodes)
        rejections += refused
        if option.accelerator is None and not _is_gpu_type(option, pools):
            made = _plain_offers(one, option, site, pools)
        else:
            found = site_offers(one, evolve(site, pools=tuple(pools)), catalog)
            made = _with_ways(found, site, catalog, one)
        made = admitted(made, one, site, catalog, serve=serve)
        offers += made.offers
        rejections += made.rejections
    return Resolution(offers=tuple(offers), rejections=tuple(dict.fromkeys(rejections)))


def _is_gpu_type(option: Resources, pools: list[Pool]) -> bool:
    name = option.instance_type
    return name is not None and any(
        pool.accelerator is not None and (pool.instance_type or "").lower() == name.lower()
        for pool in pools
    )


def _faults(  # noqa: PLR0913  # what is asked, and the backend's wishes by keyword
    task: Task,
    option: Resources,
    site: Site,
    image: str | None,
    *,
    scheduler: str | None,
    serve: bool,
) -> Iterator[str]:
    if option.image is None and image is None:
        yield "image: pods run an image; name one in Resources(image=...) or Kubernetes(image=...)"
    if task.max_restarts and "jobset" not in controllers(site) and not serve:
        yield "max_restarts: restarting a whole gang needs JobSet, which is not installed here"
    texts = [task.run] if isinstance(task.run, str) else []
    texts += list(task.run) if isinstance(task.run, tuple) else []
    if any(len(text.encode()) > _MOST_TEXT for text in (*texts, task.setup or "")):
        yield f"run, setup: texts above {_MOST_TEXT} bytes do not fit into a pod; use files"
    if option.accelerator is None and option.network_tier > NetworkTier.STANDARD:
        yield (
            f"network_tier {option.network_tier.value} is about the GPUs' network, and no"
            " accelerator is asked"
        )
    own = scheduler == VOLCANO  # whose queues `capacity` may name
    if option.capacity is not None and option.capacity not in queues(site) and not own:
        known = ", ".join(queues(site)) or "none"
        yield f"capacity: no LocalQueue {option.capacity!r} in the namespace (there are: {known})"
    elif len(queues(site)) > 1 and queue_of(option, site) is None:
        yield f"capacity: name one of the LocalQueues {', '.join(queues(site))}"


def _open_pools(
    option: Resources, site: Site, patch: Mapping[str, object], num_nodes: int
) -> tuple[list[Pool], list[Rejection]]:
    """Pools that pods may go to, with `nodes_free` as many as have room for one of them."""
    pools: list[Pool] = []
    refused: list[Rejection] = []

    def refuse(pool: Pool, reason: str) -> None:
        refused.append(
            Rejection(
                backend=site.backend, reason=reason, place=pool.place,
                instance_type=pool.instance_type or pool.name,
            )
        )  # fmt: skip

    for pool in site.pools:
        fact = facts_of(site, pool.name)
        if fact.get("lacks") and not pool.accelerator and _wants_gpu(option):
            refuse(pool, f"{fact['lacks']}: is the device plug-in running there?")
            continue
        taint = _keeps_out(fact, gpu=bool(fact.get("gpu_resource")) and _wants_gpu(option))
        if taint and "tolerations" not in patch:
            refuse(pool, f"its nodes have the taint {taint}; tolerate it with pod_patch")
            continue
        if fact.get("autoscaler") and not _wants_gpu(option):
            refuse(pool, "its nodes would be made for a task that asks for no accelerator")
            continue
        if option.use_spot != pool.spot:
            refuse(pool, "it is spot: ask for use_spot" if pool.spot else "it is not spot")
            continue
        if fact.get("gpu_resource") and pool.accelerator is None and _wants_gpu(option):
            shared = fact.get("shared")
            why = f"its GPUs are shared ({shared}): a pod would get parts of them"
            refuse(pool, why if shared else "no label of its nodes tells the accelerator's model")
            continue
        queued = queue_of(option, site) is not None
        fits = pool.nodes_total if queued else _room(option, fact, pool, gang=num_nodes > 1)
        pools.append(evolve(pool, nodes_free=fits))
    return pools, refused


def _wants_gpu(option: Resources) -> bool:
    return option.accelerator is not None or option.instance_type is not None


def _keeps_out(fact: Json, *, gpu: bool) -> str:
    for key, value, effect in fact.get("taints") or ():
        other = key == "sku" and value != "gpu"  # a name that anybody may use for something else
        if effect == "PreferNoSchedule" or (gpu and key in GPU_TAINTS and not other):
            continue
        return f"{key}={value}:{effect}" if value else f"{key}:{effect}"
    return ""


def _room(option: Resources, fact: Json, pool: Pool, *, gang: bool) -> int | None:
    """How many nodes have room for one pod now; of a gang, with NICs that others have left it."""
    free = cast("tuple[Json, ...] | None", fact.get("free"))
    if free is None:
        return pool.nodes_total
    gpus = option.accelerator.count if option.accelerator else 0
    if not gpus and _wants_gpu(option) and pool.accelerator:
        gpus = pool.accelerator.count
    cpus = option.cpus.amount if option.cpus else 0
    memory = option.memory_gib.amount if option.memory_gib else 0
    fitting = [
        one
        for one in free
        if one["gpus"] >= gpus and one["cpus"] >= cpus and one["memory_gib"] >= memory
        if one.get("pods", 1) > 0 and (one.get("nics", True) or not (gang and gpus))
    ]
    return len(fitting)


def _most_free(fact: Json) -> str:
    """What the emptiest node has left, in words."""
    free = cast("tuple[Json, ...] | None", fact.get("free"))
    if not free:
        return ""
    cpus, memory = (max(float(one[name]) for one in free) for name in ("cpus", "memory_gib"))
    return f" (the most that a node has free: {cpus:g} CPUs, {memory:.0f} GiB)"


def _plain_offers(task: Task, option: Resources, site: Site, pools: list[Pool]) -> Resolution:
    """Offers for a task that asks for no accelerator: nodes without one first."""
    offers: list[Offer] = []
    refused: list[Rejection] = []
    for pool in sorted(pools, key=lambda one: one.accelerator is not None):
        name = pool.instance_type or pool.name
        reason = ""
        if option.instance_type not in {None, pool.instance_type}:
            reason = f"it is no {option.instance_type}"
        elif option.places and not any(place.admits(pool.place) for place in option.places):
            allowed = ", ".join(map(str, option.places))
            reason = f"only these places are allowed: {allowed}"
        elif option.max_usd_hour is not None:
            reason = "its price is not known, so that max_usd_hour is not kept"
        elif option.min_gbps_per_gpu is not None:
            reason = "min_gbps_per_gpu: no accelerator is asked"
        elif pool.nodes_free is not None and pool.nodes_free < task.num_nodes:
            reason = (
                f"{task.num_nodes} nodes were asked for, {pool.nodes_free} of {pool.nodes_total}"
                f" have room{_most_free(facts_of(site, pool.name))}"
            )
        if reason:
            refused.append(
                Rejection(backend=site.backend, reason=reason, place=pool.place, instance_type=name)
            )
            continue
        kind = FabricKind.ETHERNET if task.num_nodes > 1 else FabricKind.LOOPBACK
        offers.append(
            Offer(
                backend=site.backend,
                place=pool.place,
                instance_type=name,
                resources=option,
                num_nodes=task.num_nodes,
                gpus_per_node=0,
                interconnect=Interconnect(kind=kind, place=pool.place),
                nics=NicLayout(),
                tier=NetworkTier.STANDARD,
                platform=pool.platform,
                pool=pool.name,
                spot=pool.spot,
            )
        )
    return Resolution(offers=tuple(offers), rejections=tuple(refused))


def _with_ways(found: Resolution, site: Site, catalog: Catalog, task: Task) -> Resolution:
    """The resolver's offers as this backend can keep them."""
    offers: list[Offer] = []
    here = evolve(site.pools[0].place, zone=None)
    refused = [evolve(one, backend=site.backend, place=here) for one in found.rejections]
    for offer in found.offers:
        lacks = str(facts_of(site, offer.pool).get("no_fabric") or "")
        told = (f"no fabric for pods: {lacks}",) if lacks and task.num_nodes > 1 else ()
        kept, far = kept_together(
            evolve(offer, warnings=(*offer.warnings, *told)), site, catalog
        )  # fmt: skip
        why = _cannot(offer, site, catalog) or far
        if why:
            refused.append(
                Rejection(
                    backend=site.backend, reason=why, place=offer.place,
                    instance_type=offer.instance_type,
                )
            )  # fmt: skip
            continue
        offers.append(kept)
    return Resolution(offers=tuple(offers), rejections=tuple(refused))


def _cannot(offer: Offer, site: Site, catalog: Catalog) -> str:
    way, level = network_of(offer, site, catalog, {})[0].way, site.facts.get("pod_security")
    if way is None:
        return ""
    if way.compute_domain and "resource.nvidia.com" not in gang_apis_of(site):
        return (
            "its NVLink between nodes needs a ComputeDomain (resource.nvidia.com), which the"
            " cluster lacks or this user may not create: install the NVIDIA DRA driver"
        )
    needs = privileges_of(way)
    if needs and level in {"baseline", "restricted"}:
        return (
            f"its network needs {', '.join(needs)}, and the namespace enforces Pod Security"
            f" {level!r}"
        )
    return ""
