"""Resources to offers and rejections: where a task could run, on which network, and why not.

Pure functions over the catalog and what a backend found (`Sold`). What the tiers mean is in
`docs/explanation/tiers.md`; no cloud is named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import Confidence, InstanceTypeRow, PriceRow
from gpufabric.catalog.spelling import Wanted, read_model
from gpufabric.net._judge import Case, Judged, Sold
from gpufabric.net._market import Market, market_of
from gpufabric.net.interconnect import Place
from gpufabric.net.rank import rank
from gpufabric.plan import LaunchPolicy, Resolution
from gpufabric.resources import Resources
from gpufabric.task import Task

__all__ = ["Sold", "assumed_offers", "rank", "resolve"]


def resolve(
    task: Task,
    sold: Iterable[Sold],
    *,
    backend: str,
    catalog: Catalog,
    policy: LaunchPolicy | None = None,
) -> Resolution:
    """All ways to run a task on what is sold here, best first, and why the others are not."""
    have = list(sold)
    cases = [Case(task, res, backend, catalog) for res in _alternatives(task.resources)]
    return _resolution([case.judge(have) for case in cases], policy)


def assumed_offers(
    task: Task, cloud: CloudCatalog, catalog: Catalog, *, policy: LaunchPolicy | None = None
) -> Resolution:
    """What one cloud sells by the catalog alone: every type, platform and region."""
    judged: list[Judged] = []
    for resources in _alternatives(task.resources):
        case = Case(task, resources, cloud.name, catalog)
        market = _market(resources, cloud)
        if market is not None:
            judged.append(case.judge_market(market))
            continue
        spot = resources.use_spot
        rows = _rows(resources, cloud)
        judged.append(case.judge([sold for row in rows for sold in _sold(row, cloud, spot=spot)]))
    return _resolution(judged, policy)


def _alternatives(resources: Resources) -> tuple[Resources, ...]:
    plain = not resources.any_of and len(resources.accelerators) <= 1
    return (resources,) if plain else resources.alternatives()


def _market(resources: Resources, cloud: CloudCatalog) -> Market | None:
    """What the cloud sells of one accelerator model, kept; None where more must be looked at."""
    asked = resources.accelerator
    if asked is None or asked.model is None or resources.instance_type is not None:
        return None
    wanted = _wanted(asked.model, cloud)
    if wanted is None:
        return None
    spot = resources.use_spot

    def make() -> Market:
        rows = (row for row in cloud.types(wanted.model) if wanted.fits(row.gpu))
        return market_of(sold for row in rows for sold in _sold(row, cloud, spot=spot))

    market = cloud.kept(None, ("market", wanted, spot), make)
    return market if market.groups else None


def _wanted(model: str, cloud: CloudCatalog) -> Wanted | None:
    return read_model(model, cloud.model_spellings)


def _resolution(judged: Iterable[Judged], policy: LaunchPolicy | None) -> Resolution:
    offers = [offer for one in judged for offer in one.offers]
    rejections = dict.fromkeys(r for one in judged for r in one.rejections)
    return Resolution(offers=tuple(rank(offers, policy)), rejections=tuple(rejections))


# ---- what a cloud sells


def _rows(resources: Resources, cloud: CloudCatalog) -> Sequence[InstanceTypeRow]:
    if resources.instance_type is not None:
        row = cloud.find_type(resources.instance_type)
        return () if row is None else (row, *_same_model(row, cloud))
    wanted = resources.accelerator
    if wanted is None:
        return ()
    if wanted.model is None:
        return cloud.types()
    found = _wanted(wanted.model, cloud)
    return () if found is None else cloud.types(found.model)


def _same_model(row: InstanceTypeRow, cloud: CloudCatalog) -> Iterator[InstanceTypeRow]:
    return (other for other in cloud.types(row.gpu.model) if other.name != row.name)


def _sold(row: InstanceTypeRow, cloud: CloudCatalog, *, spot: bool) -> tuple[Sold, ...]:
    return cloud.kept(row, ("sold", spot), lambda: tuple(_each_sold(row, cloud, spot=spot)))


def _each_sold(row: InstanceTypeRow, cloud: CloudCatalog, *, spot: bool) -> Iterator[Sold]:
    firm = (market for market in row.markets or ("on_demand",) if market != "spot")
    markets = ("spot",) if spot else ("negotiated", *firm)
    for platform in cloud.platforms_of(row):
        prices = _sure_prices(cloud.prices(row.name), platform.name)
        for region in cloud.regions_of(row) or (None,):
            price = _price(prices, region, markets)
            yield Sold(
                cloud=cloud,
                row=row,
                platform=platform,
                place=Place(backend=cloud.name, region=region),
                usd_hour=None if price is None else price.usd_hour,
                spot=spot,
                price_from="" if price is None else _price_from(price, cloud),
            )


def _sure_prices(prices: Iterable[PriceRow], platform: str) -> list[PriceRow]:
    return [
        price
        for price in prices
        if price.confidence is not Confidence.INFERRED
        and (not price.platforms or platform in price.platforms)
    ]


def _price(
    prices: Sequence[PriceRow], region: str | None, markets: Iterable[str]
) -> PriceRow | None:
    for market in markets:
        for price in prices:
            if price.market == market and price.region in (None, region):
                return price
    return None


def _price_from(price: PriceRow, cloud: CloudCatalog) -> str:
    day = price.as_of or price.checked
    words = [price.market.replace("_", " "), *map(cloud.address, price.sources[:1])]
    return ", ".join([*words, day.isoformat()] if day else words)
