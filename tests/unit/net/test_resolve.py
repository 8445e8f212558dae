"""What a tier means, who is rejected and why: over a small cloud of our own and over AWS."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpufabric.backends.assumed import AssumedBackend
from gpufabric.catalog import Catalog
from gpufabric.errors import ConfigError
from gpufabric.job import JobRef
from gpufabric.net.interconnect import FabricKind
from gpufabric.net.resolve import assumed_offers, rank
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import LaunchPolicy, Offer, RankBy, Resolution
from gpufabric.resources import Resources
from gpufabric.task import Task

SOURCE = 'sources = ["https://example.org"]\n'
HEAD = f"""\
[cloud]
name = "lab"
title = "lab"
as_of = 2026-11-30

[[platform]]
name = "vm"
title = "machines"
kind = "vm"
any_type = true
{SOURCE}
[[platform]]
name = "lab-k8s"
title = "pods"
kind = "kubernetes"
{SOURCE}
[[interconnect]]
name = "infiniband"
kind = "infiniband"
scope = "one room"
max_nodes = 64
{SOURCE}
[[interconnect]]
name = "ethernet"
kind = "ethernet"
scope = "one room"
{SOURCE}
"""


def node(name: str, *, more: str = "", **over: str) -> str:
    fields = {
        "gpu": '{ model = "H100", count = 8, label_gb = 80, form = "SXM" }',
        "interconnect": '"infiniband"',
        "nics": '{ model = "CX7", count = 8, gbps_each = 400, gpudirect = "rdma" }',
        "nvlink": "true",
        **over,
    }
    lines = "".join(f"{key} = {value}\n" for key, value in fields.items())
    return f'[[instance_type]]\nname = "{name}"\n{lines}{more}{SOURCE}\n'


ETHERNET = '{ model = "eth", gbps_each = 25, count = 1, gpudirect = "none" }'
SLOW = '{ model = "CX6", count = 4, gbps_each = 200, gpudirect = "rdma" }'


@pytest.fixture
def lab(tmp_path: Path):
    def make(*parts: str) -> Catalog:
        path = tmp_path / "lab.toml"
        path.write_text(HEAD + "".join(parts), encoding="utf-8")
        return Catalog.shipped().with_overlays(path)

    return make


def ask(catalog: Catalog, cloud: str = "lab", nodes: int = 2, **resources: object) -> Resolution:
    task = Task(run="true", num_nodes=nodes, resources=Resources(**resources))  # type: ignore[arg-type]
    return assumed_offers(task, catalog.cloud(cloud), catalog)


def only(resolution: Resolution) -> Offer:
    assert len(resolution.offers) == 1, str(resolution)
    return resolution.offers[0]


def why(resolution: Resolution, name: str | None = None) -> str:
    assert not [o for o in resolution.offers if name in (None, o.instance_type)], str(resolution)
    reasons = [r.reason for r in resolution.rejections if name in (None, r.instance_type)]
    assert len(reasons) == 1, reasons
    return reasons[0]


# ---- tiers between nodes


def test_best_is_the_fastest_network_with_every_nic(lab):
    offer = only(ask(lab(node("fast")), accelerators="H100:8", network_tier="best"))
    assert offer.tier is NetworkTier.BEST
    assert offer.interconnect.kind is FabricKind.INFINIBAND
    assert (offer.gbps_per_node, offer.gbps_per_gpu) == (3200, 400)
    assert len(offer.nics.fabric) == 8
    assert offer.nics.gpudirect


def test_a_slower_network_of_the_same_accelerator_in_the_place_is_not_best(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW))
    found = ask(catalog, accelerators="H100:8", network_tier="best")
    assert only(found).instance_type == "fast"
    assert "fast has 400 Gb/s a GPU, this 100" in why(
        Resolution(rejections=found.rejections), "slow"
    )


def test_the_slower_network_is_gpudirect_all_the_same(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW))
    tiers = {o.instance_type: o.tier for o in ask(catalog, accelerators="H100:8").offers}
    assert tiers == {"fast": NetworkTier.BEST, "slow": NetworkTier.GPUDIRECT}


def test_a_slower_network_is_best_where_the_faster_one_is_not_sold(lab):
    catalog = lab(
        node("fast", more='regions = ["north"]\n'),
        node("slow", nics=SLOW, more='regions = ["north", "south"]\n'),
    )
    found = ask(catalog, accelerators="H100:8", network_tier="best")
    assert {(o.instance_type, o.place.region) for o in found} == {
        ("fast", "north"),
        ("slow", "south"),
    }


def test_a_faster_type_of_unknown_regions_may_be_sold_anywhere(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW, more='regions = ["south"]\n'))
    found = ask(catalog, accelerators="H100:8", network_tier="best")
    assert [o.instance_type for o in found] == ["fast"]


def test_another_accelerator_is_no_rival(lab):
    h200 = '{ model = "H200", count = 8 }'
    catalog = lab(node("fast", gpu=h200), node("slow", nics=SLOW))
    assert only(ask(catalog, accelerators="H100:8", network_tier="best")).instance_type == "slow"


def test_ethernet_is_never_best_even_where_nothing_faster_is_sold(lab):
    catalog = lab(node("plain", interconnect='"ethernet"', nics=ETHERNET))
    assert "it has no NIC that reads GPU memory" in why(
        ask(catalog, accelerators="H100:8", network_tier="best")
    )


def test_a_type_without_gpudirect_names_the_nearest_that_has_it(lab):
    catalog = lab(node("fast"), node("plain", interconnect='"ethernet"', nics=ETHERNET))
    found = ask(catalog, accelerators="H100:8", network_tier="gpudirect")
    reason = next(r.reason for r in found.rejections if r.instance_type == "plain")
    assert reason == (
        "gpudirect cannot be kept: it has no NIC that reads GPU memory;"
        " the nearest here that has one: fast (8 x H100)"
    )


@pytest.mark.parametrize("field", ["nics.gpudirect", "nics.count"])
def test_an_inferred_network_keeps_no_promise(lab, field):
    catalog = lab(node("hearsay", more=f'inferred = ["{field}"]\n'))
    assert "inferred" in why(ask(catalog, accelerators="H100:8", network_tier="gpudirect"))
    offer = only(ask(catalog, accelerators="H100:8"))
    assert offer.tier is NetworkTier.STANDARD
    assert any("inferred" in warning for warning in offer.warnings)


def test_an_inferred_row_keeps_no_promise(lab):
    catalog = lab(node("hearsay", more='confidence = "inferred"\n'))
    assert "inferred" in why(ask(catalog, accelerators="H100:8", network_tier="gpudirect"))
    assert only(ask(catalog, accelerators="H100:8")).gbps_per_gpu is None


def test_an_unknown_gpudirect_keeps_no_promise(lab):
    unknown = '{ model = "CX7", count = 8, gbps_each = 400 }'
    assert "not known whether its NICs read GPU memory" in why(
        ask(lab(node("x", nics=unknown)), accelerators="H100:8", network_tier="gpudirect")
    )


def test_best_needs_the_number_of_nics(lab):
    unknown = '{ model = "CX7", gpudirect = "rdma" }'
    assert "how many NICs" in why(
        ask(lab(node("x", nics=unknown)), accelerators="H100:8", network_tier="best")
    )


def test_a_rival_of_unknown_speed_may_be_faster(lab):
    unknown = '{ model = "CX8", count = 8, gpudirect = "rdma" }'
    found = ask(
        lab(node("known"), node("new", nics=unknown)), accelerators="H100:8", network_tier="best"
    )
    assert not found.offers
    assert {r.instance_type for r in found.rejections} == {"known", "new"}


def test_a_speed_is_asked_for_by_number(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW))
    found = ask(catalog, accelerators="H100:8", min_gbps_per_gpu=200)
    assert only(found).instance_type == "fast"
    assert found.rejections[0].reason == "it has 100 Gb/s a GPU, 200 were asked for"


def test_an_unknown_or_inferred_speed_does_not_keep_a_number(lab):
    catalog = lab(node("x", more='inferred = ["nics.gbps_each"]\n'))
    assert "its speed is not known" in why(ask(catalog, accelerators="H100:8", min_gbps_per_gpu=1))


def test_more_nodes_than_the_network_holds_are_refused(lab):
    catalog = lab(node("fast"))
    assert why(ask(catalog, nodes=65, accelerators="H100:8")) == (
        "65 nodes exceed the 64 that one infiniband network here holds"
    )
    assert only(ask(catalog, nodes=64, accelerators="H100:8", network_tier="best"))


RACK = "nvlink_domain_gpus = 72\nnvlink_domain_nodes = 18\n"
GB200 = '{ model = "GB200", count = 4 }'


def test_best_of_a_rack_is_one_nvlink_domain(lab):
    catalog = lab(node("rack", gpu=GB200, more=RACK))
    offer = only(ask(catalog, nodes=18, accelerators="GB200:4", network_tier="best"))
    assert "one NVLink domain holds 18 nodes" in offer.limits
    assert why(ask(catalog, nodes=20, accelerators="GB200:4", network_tier="best")) == (
        "best cannot be kept: 20 nodes exceed the 18 of one NVLink domain"
    )
    assert only(ask(catalog, nodes=20, accelerators="GB200:4", network_tier="gpudirect"))


# ---- whole nodes, and one node


POD = f"""
[[kubernetes]]
name = "pods"
platform = "lab-k8s"
applies_to = ["fast"]
requests = {{ "nvidia.com/gpu" = "8", "rdma/ib" = "8" }}
{SOURCE}
"""
K8S = 'platforms = ["lab-k8s"]\n'


def test_a_part_of_a_node_gets_no_part_of_the_network(lab):
    catalog = lab(node("fast", more=K8S), POD)
    assert "a part of a node gets no part of its infiniband network: ask for all 8" in why(
        ask(catalog, accelerators="H100:4", network_tier="gpudirect")
    )
    offer = only(ask(catalog, accelerators="H100:4"))
    assert offer.tier is NetworkTier.STANDARD
    assert offer.interconnect.kind is FabricKind.ETHERNET
    assert any("takes 4 of the node's 8" in limit for limit in offer.limits)


def test_a_part_of_a_node_gets_its_part_where_the_row_says_so(lab):
    catalog = lab(node("fast", more=K8S + "whole_node = false\n"), POD)
    assert only(ask(catalog, accelerators="H100:4", network_tier="gpudirect"))


def test_a_machine_is_rented_whole(lab):
    assert why(ask(lab(node("fast")), accelerators="H100:4")) == "it has 8 x H100, not 4"


def test_pods_get_no_network_without_a_row_that_says_how(lab):
    catalog = lab(node("other", more=K8S), node("fast", more=K8S), POD)
    found = ask(catalog, accelerators="H100:8", network_tier="gpudirect")
    assert only(found).instance_type == "fast"
    assert "does not know how pods on lab-k8s get its NICs" in found.rejections[0].reason


def test_a_way_for_pods_that_is_inferred_keeps_no_promise(lab):
    catalog = lab(node("fast", more=K8S), POD + 'confidence = "inferred"\n')
    assert "is inferred, not documented" in why(
        ask(catalog, accelerators="H100:8", network_tier="gpudirect")
    )


@pytest.mark.parametrize("tier", list(NetworkTier))
def test_one_node_with_nvlink_keeps_every_tier_and_asks_for_no_nic(lab, tier):
    offer = only(ask(lab(node("fast")), nodes=1, accelerators="H100:8", network_tier=tier))
    assert offer.tier is NetworkTier.BEST
    assert offer.interconnect.kind is FabricKind.NVLINK
    assert offer.nics.nics == ()
    assert offer.gbps_per_gpu is None


def test_one_gpu_needs_no_network(lab):
    one = '{ model = "L4", count = 1 }'
    catalog = lab(node("small", gpu=one, interconnect='"ethernet"', nics=ETHERNET, nvlink="false"))
    assert only(ask(catalog, nodes=1, accelerators="L4:1", network_tier="best"))


def test_one_node_without_nvlink_is_not_best_where_nvlink_is_sold(lab):
    catalog = lab(node("sxm"), node("pcie", nvlink="false"))
    found = ask(catalog, nodes=1, accelerators="H100:8", network_tier="best")
    assert only(found).instance_type == "sxm"
    assert "sxm here has NVLink" in found.rejections[0].reason


def test_one_node_larger_than_a_network_limit_is_no_gang(lab):
    catalog = lab(node("x", more="max_nodes = 1\n"))
    assert only(ask(catalog, nodes=1, accelerators="H100:8"))


# ---- what else may be asked


def test_memory_and_form_narrow_the_accelerator(lab):
    pcie = '{ model = "H100", count = 8, label_gb = 94, form = "NVL" }'
    catalog = lab(node("sxm"), node("nvl", gpu=pcie))
    for written, name in (("H100-SXM", "sxm"), ("H100-80GB", "sxm"), ("H100-94GB", "nvl")):
        assert only(ask(catalog, accelerators=f"{written}:8")).instance_type == name


def test_a_memory_size_finds_every_accelerator_that_has_it(lab):
    small = '{ model = "A100", count = 8, label_gb = 40 }'
    catalog = lab(node("h100"), node("a100", gpu=small))
    assert only(ask(catalog, accelerators="80GB+:8")).instance_type == "h100"
    assert len(ask(catalog, accelerators="40GB+:8").offers) == 2
    assert why(ask(catalog, accelerators="200GB+:8")) == ("no accelerator with 200GB+ is sold here")


def test_an_unknown_accelerator_is_rejected_with_the_near_miss(lab):
    assert why(ask(lab(node("fast")), accelerators="H10O:8")) == (
        "no accelerator 'H10O' is known, did you mean H100?"
    )


def test_an_accelerator_of_other_clouds_is_not_called_unknown(lab):
    assert why(ask(lab(node("fast")), accelerators="T4:8")) == "T4 is not sold here"


def test_an_instance_type_is_asked_for_by_name(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW))
    assert only(ask(catalog, instance_type="slow", network_tier="gpudirect"))
    assert "not the fastest" in why(ask(catalog, instance_type="slow", network_tier="best"))


def test_an_unknown_instance_type_is_rejected_with_the_near_miss(lab):
    assert why(ask(lab(node("fast")), instance_type="fsat")) == (
        "there is no instance type 'fsat' here, did you mean fast?"
    )


def test_an_instance_type_without_that_accelerator_is_a_contradiction(lab):
    h200 = '{ model = "H200", count = 8 }'
    catalog = lab(node("fast"), node("other", gpu=h200))
    assert why(ask(catalog, instance_type="fast", accelerators="H200:8")) == (
        "fast has 8 x H100, not H200:8"
    )


def test_no_accelerator_is_a_rejection_not_every_type(lab):
    assert "no accelerator was asked for" in why(ask(lab(node("fast"))))


def test_places_are_kept(lab):
    catalog = lab(node("fast", more='regions = ["north", "south"]\n'))
    assert only(ask(catalog, accelerators="H100:8", places=["lab/south"])).place.region == "south"
    assert why(ask(catalog, accelerators="H100:8", places=["lab/suoth"])) == (
        "it is sold in north, south; only these places are allowed: lab/suoth, did you mean south?"
    )
    assert "only these places are allowed: other" in why(
        ask(catalog, accelerators="H100:8", places=["other"])
    )


def test_a_misspelled_cloud_among_the_places_is_told_with_the_near_miss(lab):
    assert why(ask(lab(node("fast")), accelerators="H100:8", places=["lba"])) == (
        "only these places are allowed: lba, did you mean lab?"
    )


def test_a_region_is_not_guessed_where_none_is_known(lab):
    assert "where it is sold is not known" in why(
        ask(lab(node("fast")), accelerators="H100:8", places=["lab/north"])
    )


def price(name: str, usd: float, more: str = "") -> str:
    return f'[[price]]\ninstance_type = "{name}"\nusd_hour = {usd}\n{more}{SOURCE}\n'


def test_prices_rank_and_an_unknown_price_is_last_and_not_zero(lab):
    catalog = lab(node("a"), node("b"), node("c"), price("b", 50.0), price("c", 40.0))
    found = ask(catalog, accelerators="H100:8", network_tier="best")
    assert [o.instance_type for o in found] == ["c", "b", "a"]
    assert [o.usd_hour for o in found] == [40.0, 50.0, None]
    assert [o.usd_hour_total for o in found] == [80.0, 100.0, None]
    assert "price unknown" in str(found.offers[2])


def test_a_higher_tier_ranks_before_a_lower_price(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW), price("slow", 1.0))
    assert [o.instance_type for o in ask(catalog, accelerators="H100:8")] == ["fast", "slow"]


def test_ranking_follows_the_policy(lab):
    catalog = lab(node("fast"), node("slow", nics=SLOW), price("fast", 50.0), price("slow", 10.0))
    offers = ask(catalog, accelerators="H100:8", min_gbps_per_gpu=1).offers
    level = [o for o in offers if o.tier is NetworkTier.GPUDIRECT]
    assert len(level) == 1
    for by, first in (
        (RankBy.PRICE, "fast"),
        (RankBy.BANDWIDTH, "fast"),
        (RankBy.PRICE_PER_GBPS, "fast"),
    ):
        assert rank(offers, LaunchPolicy(rank_by=by))[0].instance_type == first


def test_an_inferred_price_is_an_unknown_price(lab):
    catalog = lab(node("fast"), price("fast", 1.0, 'confidence = "inferred"\n'))
    assert only(ask(catalog, accelerators="H100:8")).usd_hour is None


def test_a_price_of_another_region_is_not_taken(lab):
    catalog = lab(
        node("fast", more='regions = ["north", "south"]\n'),
        price("fast", 9.0, 'region = "north"\n'),
    )
    prices = {o.place.region: o.usd_hour for o in ask(catalog, accelerators="H100:8")}
    assert prices == {"north": 9.0, "south": None}


def test_a_price_of_one_platform_is_not_taken_for_another(lab):
    catalog = lab(
        node("fast", more='platforms = ["vm", "lab-k8s"]\n'),
        POD,
        price("fast", 9.0, 'platforms = ["vm"]\n'),
    )
    prices = {o.platform: o.usd_hour for o in ask(catalog, accelerators="H100:8")}
    assert prices == {"vm": 9.0, "lab-k8s": None}


def test_an_unknown_price_does_not_keep_a_ceiling(lab):
    catalog = lab(node("a"), node("b"), price("b", 50.0))
    found = ask(catalog, accelerators="H100:8", max_usd_hour=50)
    assert only(found).instance_type == "b"
    assert "its price is not known" in found.rejections[0].reason
    assert "above the ceiling of 49" in str(ask(catalog, accelerators="H100:8", max_usd_hour=49))


def test_spot_has_its_own_price(lab):
    catalog = lab(node("a"), price("a", 50.0), price("a", 20.0, 'market = "spot"\n'))
    offer = only(ask(catalog, accelerators="H100:8", use_spot=True))
    assert (offer.usd_hour, offer.spot) == (20.0, True)


def test_a_spot_price_is_not_the_price_of_capacity_that_stays(lab):
    sold = node("a", more='markets = ["spot", "reserved"]\n')
    catalog = lab(sold, price("a", 20.0, 'market = "spot"\n'))
    assert only(ask(catalog, accelerators="H100:8")).usd_hour is None
    assert only(ask(catalog, accelerators="H100:8", use_spot=True)).usd_hour == 20.0


def test_a_type_that_is_not_sold_as_spot_is_refused(lab):
    catalog = lab(node("a", more='markets = ["capacity_block"]\n'))
    assert "not sold as spot" in why(ask(catalog, accelerators="H100:8", use_spot=True))
    assert "sold only as: capacity block" in only(ask(catalog, accelerators="H100:8")).limits


def test_cpus_and_memory_are_kept(lab):
    catalog = lab(node("a", more="vcpus = 96\nmemory_gib = 1000\n"))
    assert only(ask(catalog, accelerators="H100:8", cpus="64+"))
    assert why(ask(catalog, accelerators="H100:8", cpus="128+")) == (
        "it has 96 vCPUs, 128+ were asked for"
    )
    assert "GiB of memory" in why(ask(catalog, accelerators="H100:8", memory_gib="2000+"))
    assert "unknown number" in why(ask(lab(node("b")), accelerators="H100:8", cpus="1+"))


def test_alternatives_are_all_offered(lab):
    h200 = '{ model = "H200", count = 8 }'
    catalog = lab(node("a"), node("b", gpu=h200))
    found = ask(catalog, accelerators=["H200:8", "H100:8"], network_tier="best")
    assert [o.instance_type for o in found] == ["b", "a"]


def test_a_disagreement_of_sources_is_a_warning(lab):
    more = 'disagreement = [{ about = "speed", ours = "400", theirs = "800", why = "safer" }]\n'
    offer = only(ask(lab(node("a", more=more)), accelerators="H100:8"))
    assert offer.warnings == ("sources disagree on speed: 400 is taken, 800 is also said",)


def test_sources_travel_with_the_offer(lab):
    offer = only(ask(lab(node("a")), accelerators="H100:8"))
    assert [str(source) for source in offer.sources] == ["https://example.org"]


# ---- the assumed backend

TWO = Task(run="x", num_nodes=2, resources=Resources(accelerators="H100:8", network_tier="best"))


def test_an_assumed_backend_of_no_cloud_is_a_setup_error():
    with pytest.raises(ConfigError, match="did you mean aws"):
        AssumedBackend("asw")


def test_an_assumed_backend_plans_and_refuses_to_launch():
    backend = AssumedBackend("aws")
    task = TWO
    site = backend.discover()
    assert site.assumed
    assert backend.check().ok
    offer = backend.offers(task, site).best
    assert offer is not None
    plan = backend.plan(task, offer, site)
    ref = JobRef(backend="aws", place="us-east-1", name="x")
    calls: list[Callable[[], object]] = [
        lambda: backend.apply(plan),
        lambda: backend.status(ref),
        lambda: backend.cancel(ref),
        lambda: backend.logs(ref),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="assumed site: planning only"):
            call()
    assert list(backend.jobs()) == []
    backend.teardown(ref)
    backend.close()


def test_planning_is_a_function_of_its_inputs():
    backend = AssumedBackend("aws")
    task = TWO
    offer = backend.offers(task, backend.discover()).best
    assert offer is not None
    first = backend.plan(task, offer, backend.discover())
    again = AssumedBackend("aws").plan(task, offer, backend.discover())
    assert first == again
    assert first.to_yaml() == again.to_yaml()


def test_one_catalog_serves_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    from gpufabric.catalog.index import CloudCatalog, _Shipped

    shipped = Catalog.shipped().cloud("aws")._shipped
    assert shipped is not None
    fresh = Catalog([CloudCatalog("aws", _Shipped(shipped._path))])
    backend = AssumedBackend("aws", catalog=fresh)

    def plan(_: int) -> str:
        offer = backend.offers(TWO, backend.discover()).best
        assert offer is not None
        return backend.plan(TWO, offer, backend.discover()).to_yaml()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(plan, range(16)))) == 1


def test_a_cluster_product_is_sold_from_some_nodes_on(lab):
    catalog = lab(node("cluster", more="min_nodes = 2\n"))
    assert only(ask(catalog, nodes=2, accelerators="H100:8"))
    assert "2" in why(ask(catalog, nodes=1, accelerators="H100:8"))


def test_several_gpus_of_one_inferred_node_are_promised_nothing():
    backend = AssumedBackend("voltagepark")
    task = Task(run="x", resources=Resources(accelerators="H100:8"))
    assert {o.tier.value for o in backend.offers(task, backend.discover())} == {"standard"}
    task = Task(run="x", resources=Resources(accelerators="H100:8", network_tier="best"))
    found = backend.offers(task, backend.discover())
    assert not found.offers
    assert "how its GPUs are joined is inferred" in found.rejections[0].reason
