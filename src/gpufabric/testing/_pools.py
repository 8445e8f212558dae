"""Pools of a simulated cloud, and which of them keep what a task asks."""

from collections.abc import Iterator

from gpufabric._frozen import evolve
from gpufabric.backends.base import Pool, Site
from gpufabric.errors import SpecError
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.nics import Nic, NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Offer, Rejection, Resolution
from gpufabric.resources import Accelerator, Resources
from gpufabric.task import Task

__all__ = ["default_pools", "pool", "resolve"]

_DIRECT = frozenset(
    {
        FabricKind.EFA,
        FabricKind.INFINIBAND,
        FabricKind.ROCE,
        FabricKind.GPUDIRECT_TCPX,
        FabricKind.GPUDIRECT_TCPXO,
    }
)


def pool(  # noqa: PLR0913  # keyword-only facts of one pool
    accelerator: str | None = None,
    *,
    nodes: int | None = 4,
    network: FabricKind | str = FabricKind.ETHERNET,
    gbps: float = 100.0,
    nics: int = 1,
    gpudirect: bool | None = None,
    usd_hour: float | None = None,
    region: str = "sim-1",
    zone: str | None = None,
    spot: bool = False,
    cpus: float = 96,
    memory_gib: float = 1024,
    max_nodes: int | None = None,
    instance_type: str | None = None,
    name: str | None = None,
    backend: str = "fake",
) -> Pool:
    """Makes a pool of a simulated cloud: `pool("H100:8", nodes=4, network="infiniband")`.

    `gbps` is of one node, shared evenly by its `nics`; `nodes` None means any number.
    Raises `SpecError`.
    """
    from gpufabric._convert import enum_of

    if nics < 1:
        raise SpecError("a node has one NIC at least")
    kind = enum_of(FabricKind, network)
    has = Accelerator.parse(accelerator) if accelerator else None
    if has is not None and has.model is None:
        raise SpecError(f"{accelerator!r} names no model: a pool has accelerators of one model")
    direct = kind in _DIRECT if gpudirect is None else gpudirect
    place = Place(backend=backend, region=region, zone=zone)
    shape = f"sim-{has.name.lower()}x{has.count}" if has else f"sim-cpu{cpus:g}"
    layout = tuple(
        Nic(index=i, model=f"sim-{kind.value}", gbps=gbps / nics, gpudirect=direct)
        for i in range(nics)
    )
    return Pool(
        name=name or "-".join([shape, kind.value, zone or region, *(["spot"] if spot else [])]),
        place=place,
        platform="simulated",
        instance_type=instance_type or shape,
        accelerator=has,
        nodes_total=nodes,
        nodes_free=nodes,
        cpus=cpus,
        memory_gib=memory_gib,
        nics=NicLayout(nics=layout),
        interconnect=Interconnect(kind=kind, place=place, max_nodes=max_nodes),
        usd_hour=usd_hour,
        spot=spot,
    )


def default_pools() -> list[Pool]:
    """The pools of a simulated cloud that was given none. The machines and prices are made up."""
    return [
        pool("H100:8", nodes=8, network="infiniband", gbps=3200, nics=8, usd_hour=30.0),
        pool("H100:8", nodes=8, network="ethernet", gbps=100, usd_hour=24.0),
        pool("A100:8", nodes=16, network="roce", gbps=1600, nics=8, usd_hour=12.0),
        pool("L4:1", nodes=None, network="ethernet", gbps=25, usd_hour=0.8, region="sim-2"),
        pool(nodes=None, network="ethernet", gbps=25, usd_hour=0.4, region="sim-2"),
    ]


def resolve(task: Task, site: Site, *, backend: str) -> Resolution:
    """Offers for a task, cheapest first within a tier, and a rejection for each other pool."""
    offers: list[Offer] = []
    rejections: dict[tuple[str, str], Rejection] = {}
    taken: set[str] = set()
    for wanted in task.resources.alternatives():
        for there in site.pools:
            reason = next(_faults(there, wanted, task.num_nodes, site), None)
            if reason is None:
                if there.name not in taken:
                    offers.append(_offer(there, wanted, task.num_nodes, site, backend))
                taken.add(there.name)
            else:
                rejections.setdefault(
                    (there.name, reason),
                    Rejection(
                        backend=backend,
                        reason=reason,
                        place=there.place,
                        instance_type=there.instance_type,
                    ),
                )
    offers.sort(key=lambda o: (-o.tier.level, o.usd_hour is None, o.usd_hour or 0.0))
    if not site.pools:
        rejections["", ""] = Rejection(backend=backend, reason="it has no nodes at all")
    return Resolution(
        offers=tuple(offers),
        rejections=tuple(r for (name, _), r in rejections.items() if name not in taken),
    )


def _faults(there: Pool, wanted: Resources, num_nodes: int, site: Site) -> Iterator[str]:
    if wanted.places and not any(place.admits(there.place) for place in wanted.places):
        yield f"not in {', '.join(map(str, wanted.places))}"
    if wanted.instance_type and wanted.instance_type != there.instance_type:
        yield f"is not {wanted.instance_type}"
    if wanted.accelerator is not None:
        yield from _accelerator_faults(there, wanted.accelerator)
    if there.spot and not wanted.use_spot:
        yield "is spot capacity, and use_spot was not asked"
    if wanted.capacity:
        yield f"has no reservation or queue {wanted.capacity!r}"
    for what, asked, has in (
        ("cpus", wanted.cpus, there.cpus),
        ("memory_gib", wanted.memory_gib, there.memory_gib),
        ("disk_gib", wanted.disk_gib, None),
    ):
        if asked is not None and not asked.admits(has):
            shown = "unknown" if has is None else f"{has:g}"
            yield f"{what}: {asked} was asked, it has {shown}"
    yield from _size_faults(there, num_nodes)
    yield from _network_faults(there, wanted, site)
    if wanted.max_usd_hour is not None and (
        there.usd_hour is None or there.usd_hour > wanted.max_usd_hour
    ):
        price = "unknown" if there.usd_hour is None else f"{there.usd_hour:g} USD/h"
        yield f"price {price}, at most {wanted.max_usd_hour:g} USD/h was asked"


def _accelerator_faults(there: Pool, wanted: Accelerator) -> Iterator[str]:
    has = there.accelerator
    if has is None or has.model is None:
        yield f"has no accelerators, {wanted} was asked"
    elif wanted.model is None:
        yield f"the memory of {has.name} is not known here: ask for a model"
    elif has.model.lower() != wanted.model.lower() or has.count < wanted.count:
        yield f"has {has}, {wanted} was asked"


def _size_faults(there: Pool, num_nodes: int) -> Iterator[str]:
    if there.nodes_free is not None and there.nodes_free < num_nodes:
        yield f"has {there.nodes_free} of {num_nodes} nodes free"
    net = there.interconnect
    if net is not None and net.max_nodes is not None and net.max_nodes < num_nodes:
        yield f"its {net.kind} joins {net.max_nodes} nodes at most, {num_nodes} were asked"


def _network_faults(there: Pool, wanted: Resources, site: Site) -> Iterator[str]:
    reached = _tier(there, site) if wanted.accelerator else NetworkTier.STANDARD
    if reached < wanted.network_tier:
        kind = there.interconnect.kind.value if there.interconnect else "no known network"
        yield f"network tier {wanted.network_tier} was asked, {kind} here reaches {reached}"
    if wanted.min_gbps_per_gpu is not None:
        speed = _gbps_per_gpu(there)
        if speed is None or speed < wanted.min_gbps_per_gpu:
            shown = "unknown" if speed is None else f"{speed:g}"
            yield f"{wanted.min_gbps_per_gpu:g} Gbit/s a GPU was asked, it has {shown}"


def _gbps_per_gpu(there: Pool) -> float | None:
    if there.accelerator is None or there.nics.gbps is None:
        return None
    return there.nics.gbps / there.accelerator.count


def _tier(there: Pool, site: Site) -> NetworkTier:
    """`best` is the fastest GPUDirect network that the accelerator is sold with in that region."""
    if there.accelerator is None or not there.nics.gpudirect:
        return NetworkTier.STANDARD
    rivals = [
        _gbps_per_gpu(other) or 0.0
        for other in site.pools
        if other.accelerator is not None
        and other.accelerator.model == there.accelerator.model
        and other.place.region == there.place.region
    ]
    fastest = (_gbps_per_gpu(there) or 0.0) >= max(rivals)
    return NetworkTier.BEST if fastest else NetworkTier.GPUDIRECT


def _offer(there: Pool, wanted: Resources, num_nodes: int, site: Site, backend: str) -> Offer:
    asked = wanted.accelerator
    count = asked.count if asked else 0
    has = evolve(there.accelerator, count=count) if asked and there.accelerator else None
    return Offer(
        backend=backend,
        place=there.place,
        instance_type=there.instance_type or there.name,
        resources=wanted,
        num_nodes=num_nodes,
        gpus_per_node=count,
        interconnect=there.interconnect
        or Interconnect(kind=FabricKind.ETHERNET, place=there.place),
        nics=there.nics,
        tier=_tier(there, site) if asked else NetworkTier.STANDARD,
        accelerator=has,
        gbps_per_gpu=_gbps_per_gpu(there) if asked else None,
        gbps_per_node=there.nics.gbps,
        usd_hour=there.usd_hour,
        spot=there.spot,
        platform=there.platform,
        pool=there.name,
        warnings=("simulated: nothing will run",),
    )
