"""Pools that a live backend found are judged one by one, by the catalog and by what was found."""

from gpufabric._frozen import evolve
from gpufabric.backends._pools import site_offers, sold_in
from gpufabric.backends.base import Pool, Site
from gpufabric.catalog import Catalog
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.nics import Nic, NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Resolution
from gpufabric.resources import Accelerator, Resources
from gpufabric.task import Task

CATALOG = Catalog.shipped()
PLACE = Place(backend="kubernetes", region="prod")


def nics(count: int, gbps: float = 100, *, gpudirect: bool = True) -> NicLayout:
    return NicLayout(
        nics=tuple(Nic(index=i, model="EFA", gbps=gbps, gpudirect=gpudirect) for i in range(count))
    )


def pool(name: str = "gpu", **over: object) -> Pool:
    fields: dict[str, object] = {
        "name": name,
        "place": PLACE,
        "platform": "eks",
        "instance_type": "p5.48xlarge",
        "nodes_total": 4,
        "nodes_free": 4,
        **over,
    }
    return Pool(**fields)  # type: ignore[arg-type]


def ask(*pools: Pool, nodes: int = 2, **resources: object) -> Resolution:
    task = Task(run="x", num_nodes=nodes, resources=Resources(**resources))  # type: ignore[arg-type]
    return site_offers(task, Site(backend="kubernetes", pools=pools), CATALOG)


BEST = {"accelerators": "H100:8", "network_tier": "best"}


def test_a_pool_of_a_known_type_keeps_what_its_row_says():
    (offer,) = ask(pool(), **BEST).offers
    assert offer.tier is NetworkTier.BEST
    assert (offer.pool, offer.platform, offer.place) == ("gpu", "eks", PLACE)
    assert offer.backend == "kubernetes"


def test_a_pool_without_nics_keeps_no_promise_though_its_type_has_them():
    ethernet = Interconnect(kind=FabricKind.ETHERNET, place=PLACE)
    found = ask(pool(interconnect=ethernet), **BEST)
    assert not found.offers
    assert "none of its 32 efa NICs is attached to the nodes" in found.rejections[0].reason


def test_a_pool_with_some_of_its_nics_is_gpudirect_and_not_best():
    short = pool(nics=nics(4))
    assert "4 of 32 NICs are attached" in ask(short, **BEST).rejections[0].reason
    (offer,) = ask(short, accelerators="H100:8", network_tier="gpudirect").offers
    assert offer.gbps_per_node == 400
    assert len(offer.nics.fabric) == 4


def test_pools_of_one_cluster_are_judged_one_by_one():
    good, bad = pool("good"), pool("bad", nics=nics(4))
    found = ask(good, bad, accelerators="H100:8")
    assert {o.pool: o.tier for o in found} == {
        "good": NetworkTier.BEST,
        "bad": NetworkTier.GPUDIRECT,
    }


def test_a_gang_larger_than_the_free_nodes_of_a_pool_is_refused():
    assert (
        "5 nodes were asked for, 4 can be had" in ask(pool(), nodes=5, **BEST).rejections[0].reason
    )


def test_a_platform_writes_the_type_in_its_own_way():
    assert ask(pool(platform="hyperpod-eks", instance_type="ml.p5.48xlarge"), **BEST).offers


def test_a_type_without_a_row_is_judged_by_what_was_found():
    own = pool(
        platform="onprem-k8s",
        instance_type=None,
        accelerator=Accelerator(model="NVIDIA-H100-80GB-HBM3", count=8),
        nics=nics(8, 400),
        interconnect=Interconnect(kind=FabricKind.INFINIBAND, place=PLACE, name="ib0"),
    )
    (offer,) = ask(own, accelerators="H100:8", network_tier="best").offers
    assert offer.gbps_per_gpu == 400
    assert offer.interconnect.name == "ib0"
    blind = evolve(own, nics=nics(8, 400, gpudirect=False))
    assert "do not read GPU memory" in (
        ask(blind, accelerators="H100:8", network_tier="gpudirect").rejections[0].reason
    )


def test_nothing_is_added_to_a_type_without_a_row():
    row = sold_in(pool(platform="onprem-k8s", instance_type="box"), CATALOG).row
    assert row.nics.count is None
    assert row.interconnect == "ethernet"
    assert row.origin == "found"


def test_two_pools_of_one_type_do_not_share_what_was_found():
    first = ask(pool("a", nics=nics(4)), accelerators="H100:8").offers[0]
    second = ask(pool("b"), accelerators="H100:8").offers[0]
    assert len(first.nics.fabric) == 4
    assert len(second.nics.fabric) == 32


def test_a_pools_price_and_spot_are_its_own():
    (offer,) = ask(pool(usd_hour=10.0, spot=True), **BEST).offers
    assert (offer.usd_hour, offer.spot) == (10.0, True)
