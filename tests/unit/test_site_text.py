"""What is shown of places: from what was read, and nothing else."""

import datetime as dt

import pytest

from gpufabric import Fabric
from gpufabric._frozen import freeze
from gpufabric.backends.base import Pool, Site
from gpufabric.errors import TransientError
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.resources import Accelerator
from gpufabric.testing import FakeBackend

PLACE = Place(backend="kubernetes", region="prod", zone="a")


def _pool(**fields):
    given = {
        "name": "p5-a", "place": PLACE, "platform": "eks", "instance_type": "p5.48xlarge",
        "accelerator": Accelerator(model="H100", count=8), "nodes_total": 4, "nodes_free": 2,
        "gpus_free": (8, 8, 1, 0),
    }  # fmt: skip
    return Pool(**{**given, **fields})


def _site(*pools, unseen=(), **facts):
    when = dt.datetime(2026, 11, 30, 10, 0, tzinfo=dt.UTC)
    return Site(
        backend="kubernetes:prod", pools=pools, unseen=unseen, as_of=when, facts=freeze(facts)
    )


def test_a_site_as_text_has_what_is_free_and_which_network_it_has():
    fact = {"nics": {"vpc.amazonaws.com/efa": 32}, "tier": "best", "network": "efa",
            "unusable": ["n9"]}  # fmt: skip
    text = str(_site(_pool(), namespace="ml", pools={"p5-a": fact}))
    for words in (
        "as of 2026-11-30 10:00:00 UTC",
        "namespace ml",
        "2 of 4, 1 unusable",
        "17 of 32",
        "32 vpc.amazonaws.com/efa",
        "efa",
        "best",
    ):
        assert words in text


def test_resources_of_one_domain_are_shown_together():
    nics = {f"networking.gke.io.networks/vpc{n}": 1 for n in range(8)}
    text = str(_site(_pool(), pools={"p5-a": {"nics": nics}}))
    assert "8 networking.gke.io.networks/*" in text


def test_what_is_not_known_is_shown():
    queue = {
        "cluster_queue": "cq", "stopped": "Hold",
        "flavors": [{"name": "f", "resources": {
            "nvidia.com/gpu": {"used": 8.0, "nominal": 32.0, "most": None}}}],
    }  # fmt: skip
    site = _site(
        _pool(spot=True, interconnect=Interconnect(kind=FabricKind.ETHERNET, place=PLACE)),
        unseen=("pods of all namespaces: not allowed to list them",),
        pools={"p5-a": {"no_fabric": "the plug-in is missing"}},
        queue_quota={"team": queue},
    )
    text = str(site)
    for words in (
        "p5-a (spot)",
        "ethernet",
        "no fabric for pods of p5-a: the plug-in is missing",
        "queue team: ClusterQueue cq; on hold (Hold); flavor f: 8 of 32 nvidia.com/gpu used",
        "not seen: pods of all namespaces: not allowed to list them",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("total", "there", "told"),
    [(8, 1, "1, up to 8 made when asked"), (None, 0, "0, any number made when asked")],
)
def test_nodes_that_would_be_made_are_shown_as_such(total, there, told):
    fact = {"autoscaler": "karpenter", "nodes_there": there, "nics_assumed": {"efa": "32"}}
    text = str(_site(_pool(nodes_total=total, gpus_free=()), pools={"p5-a": fact}))
    assert told in text
    assert "32 efa (assumed)" in text


def test_a_site_of_any_backend_is_shown():
    site = FakeBackend().discover()
    assert site.pools[0].name in str(site)
    assert site.pools[0].name in site._repr_html_()


def test_markup_in_what_a_cluster_says_is_escaped():
    site = _site(_pool(platform="<script>"), unseen=("<b>",))
    assert "<script>" not in site._repr_html_()
    assert "<b>" not in site._repr_html_()


def test_a_fabric_shows_what_was_last_read_and_reads_nothing(fabric_of_two):
    fabric, calls = fabric_of_two
    before = fabric._repr_html_()
    assert before.count("not read yet") == 2
    assert calls == []
    fabric.sites()
    shown = fabric._repr_html_()
    assert fabric._repr_html_() == shown
    assert len(calls) == 2
    assert "good" in shown
    assert "could not be read: " in shown
    assert "the cluster sleeps" in shown


@pytest.fixture
def fabric_of_two():
    calls = []

    class Counted(FakeBackend):
        def discover(self):
            calls.append(self.name)
            return super().discover()

    class Asleep(FakeBackend):
        def discover(self):
            calls.append(self.name)
            raise TransientError("the cluster sleeps", backend=self.name, operation="discover")

    return Fabric(Counted(name="good"), Asleep(name="asleep")), calls
