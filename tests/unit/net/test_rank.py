"""The order of offers where prices and speeds are missing or nothing."""

import pytest

from gpufabric import Interconnect, LaunchPolicy, NetworkTier, NicLayout, Offer, Place, Resources
from gpufabric.net.rank import rank


def _offer(name, usd_hour, gbps):
    place = Place(backend="x")
    return Offer(
        backend="x",
        place=place,
        instance_type=name,
        resources=Resources(),
        num_nodes=2,
        gpus_per_node=8,
        interconnect=Interconnect(kind="ethernet", place=place),
        nics=NicLayout(),
        tier=NetworkTier.STANDARD,
        gbps_per_gpu=None if gbps is None else gbps / 8,
        gbps_per_node=gbps,
        usd_hour=usd_hour,
    )


@pytest.mark.parametrize("by", ["price", "price_per_gbps"])
def test_a_free_machine_is_first_and_one_of_unknown_price_last(by):
    offers = [_offer("unknown", None, 800.0), _offer("dear", 9.0, 800.0), _offer("own", 0.0, 80.0)]
    ranked = rank(offers, LaunchPolicy(rank_by=by))
    assert [offer.instance_type for offer in ranked] == ["own", "dear", "unknown"]


def test_an_unknown_speed_is_last_by_bandwidth_and_ties_stay_as_given():
    offers = [_offer("unknown", 1.0, None), _offer("a", 2.0, 100.0), _offer("b", 2.0, 100.0)]
    ranked = rank(offers, LaunchPolicy(rank_by="bandwidth"))
    assert [offer.instance_type for offer in ranked] == ["a", "b", "unknown"]
