"""The order of offers: the one rule that `Fabric`, the catalog and the shell rank by."""

from __future__ import annotations

from collections.abc import Iterable

from gpufabric.plan import LaunchPolicy, Offer, RankBy

__all__ = ["rank"]

_UNKNOWN = float("inf")


def rank(offers: Iterable[Offer], policy: LaunchPolicy | None = None) -> list[Offer]:
    """Offers by tier reached, then by what the policy ranks by; unknown last, ties as given.

    A price of 0 is a price (a machine of one's own), not an unknown one.
    """
    measure = _MEASURES[policy.rank_by if policy else RankBy.PRICE]
    return sorted(offers, key=lambda offer: (-offer.tier.level, measure(offer)))


def _price(offer: Offer) -> float:
    return _UNKNOWN if offer.usd_hour is None else offer.usd_hour * offer.num_nodes


def _slowness(offer: Offer) -> float:
    """Less is faster; a node without GPUs has its speed a node."""
    gbps = offer.gbps_per_gpu or offer.gbps_per_node
    return _UNKNOWN if gbps is None else -gbps


def _by_price(offer: Offer) -> tuple[float, float]:
    return _price(offer), _slowness(offer)


def _by_bandwidth(offer: Offer) -> tuple[float, float]:
    return _slowness(offer), _price(offer)


def _by_price_per_gbps(offer: Offer) -> tuple[float, float]:
    known = offer.usd_hour is not None and offer.gbps_per_node
    per_gbps = (offer.usd_hour or 0.0) / (offer.gbps_per_node or 1.0) if known else _UNKNOWN
    return per_gbps, _price(offer)


_MEASURES = {
    RankBy.PRICE: _by_price,
    RankBy.BANDWIDTH: _by_bandwidth,
    RankBy.PRICE_PER_GBPS: _by_price_per_gbps,
}
