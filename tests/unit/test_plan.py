"""Offers, resolutions, plans and attempts as values and as text."""

import json
import pickle

import pytest

import gpufabric as gf
from gpufabric._frozen import evolve
from gpufabric.plan import plan_key
from gpufabric.testing import FakeBackend, FakeCloud, pool

H100 = pool("H100:8", network="infiniband", gbps=3200, nics=8, usd_hour=30.0)


@pytest.fixture
def fabric() -> gf.Fabric:
    cloud = FakeCloud([H100, pool(name="spare", usd_hour=1.0)])
    return gf.Fabric(FakeBackend(cloud=cloud), settings=gf.Settings(trust_env=False))


def task(**fields: object) -> gf.Task:
    return gf.Task.from_dict({
        "run": "true", "num_nodes": 2, "resources": {"accelerators": "H100:8"}, **fields,
    })  # fmt: skip


def test_an_attempt_comes_back_with_its_offer(fabric):
    offer = fabric.offers(task()).best
    attempt = gf.Attempt(
        offer=offer,
        backend="fake",
        error="none left",
        error_type="CapacityError",
        remedy=gf.Remedy.ELSEWHERE,
        leftovers=("node a",),
        started_at=1.0,
    )
    back = gf.Attempt.from_dict(json.loads(json.dumps(attempt.to_dict())))
    assert back == attempt
    assert isinstance(back.offer, gf.Offer)
    assert back.remedy is gf.Remedy.ELSEWHERE
    assert pickle.loads(pickle.dumps(attempt)) == attempt  # noqa: S301  # made here
    assert str(attempt).endswith(": none left")


def test_a_resolution_is_true_when_there_is_an_offer(fabric):
    found = fabric.offers(task())
    assert found
    assert len(found) == len(list(found))
    assert not gf.Resolution()
    assert gf.Resolution().best is None
    assert str(gf.Resolution()) == "no offers"


def test_a_resolution_tells_platforms_apart(fabric):
    head = str(fabric.offers(task())).splitlines()[0]
    assert head.split()[:3] == ["place", "platform", "type"]


def test_a_resolution_comes_back_from_json(fabric):
    found = fabric.offers(task())
    assert gf.Resolution.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    "change", [{"name": "b"}, {"num_nodes": 3}, {"run": "false"}, {"envs": {"A": "1"}}]
)
def test_another_task_is_another_job(fabric, change):
    assert fabric.plan(task()).key != fabric.plan(task(**change)).key


def test_the_value_of_a_secret_does_not_name_the_job_nor_stand_in_the_plan(fabric):
    plans = [fabric.plan(task(secrets={"TOKEN": value})) for value in ("s3cr3t", "0ther")]
    assert plans[0].key == plans[1].key
    for text in (str(plans[0]), repr(plans[0]), plans[0].to_yaml(), plans[0]._repr_html_()):
        assert "s3cr3t" not in text
        assert "TOKEN" in text


def test_the_key_is_a_function_of_task_offer_and_run(fabric):
    plan = fabric.plan(task(), run="a")
    assert plan.key == plan_key(plan.task, plan.offer, run="a")
    assert plan.key != plan_key(plan.task, plan.offer)
    assert plan.name == f"task-{plan.key}"


def test_a_plan_shows_its_difference_to_another(fabric):
    plan, other = fabric.plan(task()), fabric.plan(task(num_nodes=3))
    assert plan.diff(plan) == ""
    assert "+  num_nodes: 3" in plan.diff(other).splitlines()


def test_the_policys_time_for_a_gang_to_be_whole_is_part_of_the_plan(fabric):
    plan = fabric.plan(task(), policy=gf.LaunchPolicy(gang_timeout_s=90))
    assert gf.LaunchPlan.from_yaml(plan.to_yaml()).gang_timeout_s == 90
    assert "not whole within 90 s" in str(plan)
    assert plan.name == fabric.plan(task()).name


def test_a_price_that_is_not_known_is_said_to_be_so(fabric):
    offer = fabric.offers(task()).best
    assert "60.00 USD/h" in str(offer)
    assert "price unknown" in str(evolve(offer, usd_hour=None))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"gang_timeout_s": 0}, "gang_timeout_s"),
        ({"gang_timeout_s": float("nan")}, "gang_timeout_s"),
        ({"allow_lower_tier": "no"}, "allow_lower_tier"),
        ({"require_proof": 1}, "require_proof"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields, path):
    with pytest.raises(gf.SpecError) as caught:
        gf.LaunchPolicy(**fields)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_ranking_is_written_as_text_or_refused_with_the_near_miss():
    assert gf.LaunchPolicy(rank_by="bandwidth").rank_by is gf.RankBy.BANDWIDTH
    with pytest.raises(gf.SpecError, match="did you mean bandwidth"):
        gf.LaunchPolicy(rank_by="bandwith")


@pytest.mark.parametrize(
    "place",
    [
        gf.Place(backend="aws", zone="use1-az4"),
        gf.Place(backend="aws", region="us-east-1", zone="use1-az4"),
        gf.Place(backend="*", region="us-east-1"),
        gf.Place(backend="kubernetes", region="arn:aws:eks:eu-1:1:cluster/prod"),
    ],
)
def test_a_place_survives_its_text(place):
    assert gf.Place.parse(str(place)) == place
