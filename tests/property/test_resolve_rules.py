"""Rules that hold for every question to every cloud of the catalog."""

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufabric.backends.assumed import AssumedBackend
from gpufabric.catalog import Catalog
from gpufabric.catalog.rows import Confidence, GpuDirect
from gpufabric.net.resolve import assumed_offers
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import LaunchPlan, Offer, Resolution
from gpufabric.resources import Resources
from gpufabric.task import Task

CATALOG = Catalog.shipped()
CLOUDS = st.sampled_from(CATALOG.clouds)
MODELS = sorted({model for cloud in CATALOG for model in cloud.models})
READS = {GpuDirect.RDMA, GpuDirect.TCPX, GpuDirect.TCPXO}


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    model = draw(st.sampled_from(MODELS))
    count = draw(st.sampled_from([1, 2, 4, 8, 16]))
    return Task(
        run="true",
        num_nodes=draw(st.sampled_from([1, 2, 3, 9, 18, 20, 101, 5000])),
        envs=draw(st.sampled_from([{}, {"NCCL_PROTO": "Simple"}, {"NCCL_IB_DISABLE": "1"}])),
        resources=Resources(
            accelerators=f"{model}:{count}",
            network_tier=draw(st.sampled_from(list(NetworkTier))),
            min_gbps_per_gpu=draw(st.none() | st.sampled_from([1.0, 100.0, 400.0, 1e6])),
            max_usd_hour=draw(st.none() | st.sampled_from([0.5, 20.0, 60.0, 1e6])),
            use_spot=draw(st.booleans()),
        ),
    )


def offers(task: Task, cloud: str) -> Resolution:
    return assumed_offers(task, CATALOG.cloud(cloud), CATALOG)


def identity(offer: Offer) -> tuple[object, ...]:
    return (offer.instance_type, offer.platform, offer.place)


def asked(task: Task, **more: object) -> Task:
    return attrs.evolve(task, resources=attrs.evolve(task.resources, **more))


@given(task=tasks(), cloud=CLOUDS)
@settings(max_examples=60, deadline=None)
def test_more_demands_never_give_more_offers(task, cloud):
    fewer = {identity(o) for o in offers(task, cloud)}
    for weaker in (
        asked(task, network_tier=NetworkTier.STANDARD),
        asked(task, min_gbps_per_gpu=None),
        asked(task, max_usd_hour=None),
    ):
        assert fewer <= {identity(o) for o in offers(weaker, cloud)}
    if task.resources.network_tier is NetworkTier.BEST:
        weaker = asked(task, network_tier=NetworkTier.GPUDIRECT)
        assert fewer <= {identity(o) for o in offers(weaker, cloud)}


@given(task=tasks(), cloud=CLOUDS)
@settings(max_examples=60, deadline=None)
def test_a_tier_never_resolves_to_less_than_its_promise(task, cloud):
    for offer in offers(task, cloud):
        assert offer.tier >= task.resources.network_tier
        row = CATALOG.cloud(cloud).find_type(offer.instance_type)
        assert row is not None
        if task.num_nodes > 1 and offer.tier > NetworkTier.STANDARD:
            assert row.nics.gpudirect in READS
            assert row.confidence is not Confidence.INFERRED
            assert not {"nics.gpudirect", "nics.count"} & set(row.inferred)
            assert offer.nics.gpudirect or row.nics.count is None
        if task.num_nodes > 1 and offer.tier is NetworkTier.BEST:
            assert len(offer.nics.fabric) == row.nics.count
        least = task.resources.min_gbps_per_gpu
        if least is not None and task.num_nodes > 1:
            assert offer.gbps_per_gpu is not None
            assert offer.gbps_per_gpu >= least


@given(task=tasks(), cloud=CLOUDS)
@settings(max_examples=40, deadline=None)
def test_nothing_is_dropped_in_silence(task, cloud):
    found = offers(task, cloud)
    assert found.offers or found.rejections
    for rejection in found.rejections:
        assert rejection.reason
        assert "\n" not in rejection.reason


@given(task=tasks(), cloud=CLOUDS)
@settings(max_examples=40, deadline=None)
def test_offers_are_ranked_and_unknown_prices_are_last_in_their_tier(task, cloud):
    found = offers(task, cloud).offers
    levels = [o.tier.level for o in found]
    assert levels == sorted(levels, reverse=True)
    for tier in NetworkTier:
        prices = [o.usd_hour for o in found if o.tier is tier]
        known = [p for p in prices if p is not None]
        assert prices[: len(known)] == sorted(known)
        assert all(p > 0 for p in known)


@given(task=tasks(), cloud=CLOUDS)
@settings(max_examples=60, deadline=None)
def test_a_plan_is_a_function_of_its_inputs_and_survives_text(task, cloud):
    backend = AssumedBackend(cloud)
    site = backend.discover()
    best = backend.offers(task, site).best
    if best is None:
        return
    plan = backend.plan(task, best, site)
    assert AssumedBackend(cloud).plan(task, best, site) == plan
    assert LaunchPlan.from_dict(plan.to_dict()) == plan
    for name, value in task.envs.items():
        assert [v.value for v in plan.env if v.name == name] == [value]
    for var in plan.env:
        assert var.why
        assert var.source is not None or var.name in task.envs


@given(text=st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_no_spelling_of_an_accelerator_breaks_the_reader(text):
    from gpufabric.catalog.spelling import read_model, spellings

    wanted = read_model(text, spellings(MODELS))
    assert wanted is None or wanted.model in MODELS
