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
    return sorted(offers, key=_KEYS[policy.rank_by if policy else RankBy.PRICE])


def _by_price(offer: Offer) -> tuple[int, float, float]:
    usd, gbps = offer.usd_hour, offer.gbps_per_gpu or offer.gbps_per_node
    price = _UNKNOWN if usd is None else usd * offer.num_nodes
    return -offer.tier.level, price, _UNKNOWN if gbps is None else -gbps


def _by_bandwidth(offer: Offer) -> tuple[int, float, float]:
    tier, price, slowness = _by_price(offer)
    return tier, slowness, price


def _by_price_per_gbps(offer: Offer) -> tuple[int, float, float]:
    tier, price, _ = _by_price(offer)
    usd, gbps = offer.usd_hour, offer.gbps_per_node
    return tier, _UNKNOWN if usd is None or not gbps else usd / gbps, price


_KEYS = {
    RankBy.PRICE: _by_price,
    RankBy.BANDWIDTH: _by_bandwidth,
    RankBy.PRICE_PER_GBPS: _by_price_per_gbps,
}
