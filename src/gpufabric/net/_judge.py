"""One alternative of a task against what is sold: each thing an offer, or a rejection with why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow
from gpufabric.catalog.spelling import read_model, spellings
from gpufabric.net._market import Alike, Group, Market, market_of
from gpufabric.net._offered import Sold, nearest_gpudirect
from gpufabric.net._reach import READS, Network
from gpufabric.net.interconnect import Place
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Offer, Rejection
from gpufabric.resources import Accelerator, Resources
from gpufabric.task import Task

__all__ = ["Case", "Judged", "Sold"]


class Judged(NamedTuple):
    """The offers and rejections of one alternative."""

    offers: list[Offer]
    rejections: list[Rejection]


class Case:
    """One alternative of one task, in the eyes of one backend."""

    def __init__(self, task: Task, resources: Resources, backend: str, catalog: Catalog) -> None:
        self.task = task
        self.resources = resources
        self.backend = backend
        self.catalog = catalog
        self.accelerator = resources.accelerator
        self.alone = task.num_nodes == 1
        self._picky = resources.max_usd_hour is not None or bool(resources.places)

    def judge(self, have: Sequence[Sold]) -> Judged:
        """Every thing sold that is of the accelerator asked for, judged."""
        if not have:
            return Judged([], [self._reject(self._why_nothing(have, Market(())))])
        fits = self._fits(have)
        market = market_of(sold for sold in have if fits(sold.row))
        if not self._wanted(market):
            return Judged([], [self._reject(self._why_nothing(have, market))])
        return self.judge_market(market)

    def judge_market(self, market: Market) -> Judged:
        """Everything of one market, judged; the market is of the accelerator asked for."""
        judged = Judged([], [])
        refused: set[tuple[str, str]] = set()
        for group in self._wanted(market):
            unfit = self._unfit(group.first)
            if unfit:
                self._refuse(judged, refused, group.first, unfit)
                continue
            gpus = self.accelerator.count if self.accelerator else group.first.row.gpu.count
            alike = group.alike(gpus, alone=self.alone)
            verdicts = [self._verdict(alike, group, n) for n in range(len(group.rivals))]
            for number, which in enumerate(group.which):
                tier, refusal = verdicts[which]
                sold = group.members[number]
                reason = self._not_here(sold, group) if self._picky else None
                if reason is None and not refusal:
                    judged.offers.append(self._offer(sold, alike, number, tier))
                elif reason is None or reason:
                    self._refuse(judged, refused, sold, reason or refusal)
        return judged

    def _refuse(
        self, judged: Judged, refused: set[tuple[str, str]], sold: Sold, reason: str
    ) -> None:
        if (sold.row.name, reason) not in refused:
            refused.add((sold.row.name, reason))
            judged.rejections.append(self._reject(reason, sold))

    # ---- which rows

    def _fits(self, have: Sequence[Sold]) -> Callable[[InstanceTypeRow], bool]:
        asked = self.accelerator
        if asked is None:
            name = self.resources.instance_type
            models = {s.row.gpu.model for s in have if name and _is_named(s.row, name)}
            return lambda row: row.gpu.model in models
        if asked.model is not None:
            wanted = read_model(asked.model, spellings({sold.row.gpu.model for sold in have}))
            return lambda row: wanted is not None and wanted.fits(row.gpu)
        return lambda row: _memory_fits(asked, row)

    def _wanted(self, market: Market) -> Sequence[Group]:
        name = self.resources.instance_type
        if name is None:
            return market.groups
        return [group for group in market.groups if _is_named(group.first.row, name)]

    def _why_nothing(self, have: Sequence[Sold], market: Market) -> str:
        name, asked = self.resources.instance_type, self.accelerator
        if self._assumed and not self.catalog.cloud(self.backend).type_names:
            return "no node is listed here: lay a catalog file with your own types over it"
        if name is not None:
            row = _find(name, (self.catalog.cloud(self.backend),)) if self._assumed else None
            if row is not None and asked is not None and not market.groups:
                return f"{row.name} has {row.gpu.count} x {row.gpu.model}, not {asked}"
            named = next((s.row for s in have if _is_named(s.row, name)), row)
            if named is not None and asked is not None:
                return f"{named.name} has {named.gpu.count} x {named.gpu.model}, not {asked}"
            return f"there is no instance type {name!r} here{self._near_type(name)}"
        if asked is None:
            return "no accelerator was asked for: the catalog has nodes with accelerators only"
        return self._why_no_accelerator(asked)

    @property
    def _assumed(self) -> bool:
        return self.backend in self.catalog.clouds

    def _near_type(self, name: str) -> str:
        from gpufabric._convert import near

        clouds = [self.catalog.cloud(self.backend)] if self._assumed else list(self.catalog)
        return near(name, [known for cloud in clouds for known in cloud.spellings])

    def _why_no_accelerator(self, asked: Accelerator) -> str:
        from gpufabric._convert import near

        if asked.model is None:
            return f"no accelerator with {asked.name} is sold here"
        known = self.catalog.model_spellings
        wanted = read_model(asked.model, known)
        if wanted is None:
            models = {model for cloud in self.catalog for model in cloud.models}
            return f"no accelerator {asked.model!r} is known{near(asked.model, models)}"
        if self._assumed:
            return f"{asked.name} is not sold here"
        return f"no node here has {asked.name}"

    # ---- one thing sold

    def _reject(self, reason: str, sold: Sold | None = None) -> Rejection:
        return Rejection(
            backend=self.backend,
            reason=reason,
            place=None if sold is None else Place(backend=sold.place.backend),
            instance_type=None if sold is None else sold.row.name,
        )

    def _not_here(self, sold: Sold, group: Group) -> str | None:
        """Why not in this place; empty where another place of the same type says it all."""
        return self._too_dear(sold) or self._outside(sold, group)

    def _verdict(self, alike: Alike, group: Group, which: int) -> tuple[NetworkTier, str]:
        """The tier that is reached beside these rivals, and why that is not enough, if so."""
        tier, why = alike.reached(which, self.task.num_nodes)
        asked = self.resources.network_tier
        if tier < asked:
            nearest = self._nearest(group.first, asked)
            return tier, f"{asked.value} cannot be kept: {why}{nearest}"
        return tier, self._too_slow(group.first.row, alike.network)

    def _unfit(self, sold: Sold) -> str:
        row, asked = sold.row, self.accelerator
        pods = sold.platform.kind == "kubernetes"
        if row.gpu.fraction is not None:
            return f"it has a part of one {row.gpu.model} ({row.gpu.fraction:g}), not a whole one"
        count = asked.count if asked else row.gpu.count
        if count > row.gpu.count or (count < row.gpu.count and not pods):
            return f"it has {row.gpu.count} x {row.gpu.model}, not {count}"
        for what, wish, has in (
            ("vCPUs", self.resources.cpus, row.vcpus),
            ("GiB of memory", self.resources.memory_gib, row.memory_gib),
        ):
            if wish is None or wish.admits(has) or (pods and has is not None and has > wish.amount):
                continue
            known = "an unknown number of" if has is None else f"{has:g}"
            return f"it has {known} {what}, {wish} were asked for"
        if sold.spot and row.markets and "spot" not in row.markets:
            return f"it is not sold as spot (sold as: {', '.join(row.markets)})"
        return self._too_many(sold)

    def _too_dear(self, sold: Sold) -> str:
        ceiling = self.resources.max_usd_hour
        if ceiling is None:
            return ""
        if sold.usd_hour is None:
            return f"its price is not known, so that the ceiling of {ceiling:g} USD/h is not kept"
        if sold.usd_hour > ceiling:
            return f"it costs {sold.usd_hour:g} USD/h a node, above the ceiling of {ceiling:g}"
        return ""

    def _too_many(self, sold: Sold) -> str:
        wanted = self.task.num_nodes
        if sold.nodes is not None and wanted > sold.nodes:
            return f"{wanted} nodes were asked for, {sold.nodes} can be had"
        if wanted < sold.row.min_nodes:
            return f"it is sold from {sold.row.min_nodes} nodes on, not {wanted}"
        limit = sold.row.max_nodes or sold.cloud.interconnect(sold.row).max_nodes
        found = sold.interconnect.max_nodes if sold.interconnect else None
        for most in (limit, found):
            if most is not None and wanted > most and not self.alone:
                kind = sold.row.interconnect
                return f"{wanted} nodes exceed the {most} that one {kind} network here holds"
        return ""

    def _outside(self, sold: Sold, group: Group) -> str | None:
        """Why its place is not allowed; empty where the same type has a place that is."""
        places = self.resources.places
        if not places or any(place.admits(sold.place) for place in places):
            return None
        mine = [other.place for other in group.members]
        if any(place.admits(other) for place in places for other in mine):
            return ""
        allowed = f"only these places are allowed: {', '.join(map(str, places))}"
        if not any(p.backend in ("*", sold.place.backend) for p in places):
            return allowed + self._near_backend()
        regions = sorted({place.region for place in mine if place.region})
        if not regions:
            return f"where it is sold is not known, {allowed}"
        return f"it is sold in {', '.join(regions)}; {allowed}{self._near_region(sold)}"

    def _near_backend(self) -> str:
        from gpufabric._convert import near

        known = (*self.catalog.clouds, self.backend)
        wrong = [p.backend for p in self.resources.places if p.backend not in known]
        return near(wrong[0], known) if wrong else ""

    def _near_region(self, sold: Sold) -> str:
        from gpufabric._convert import near

        known = sold.cloud.regions
        wrong = [p.region for p in self.resources.places if p.region and p.region not in known]
        return near(wrong[0], known) if wrong else ""

    def _too_slow(self, row: InstanceTypeRow, network: Network) -> str:
        least = self.resources.min_gbps_per_gpu
        if least is None or self.alone:
            return ""
        if network.gbps is None:
            return f"its speed is not known, {least:g} Gb/s a GPU were asked for"
        have = network.gbps / row.gpu.count
        return f"it has {have:g} Gb/s a GPU, {least:g} were asked for" if have < least else ""

    def _nearest(self, sold: Sold, asked: NetworkTier) -> str:
        if sold.row.nics.gpudirect in READS:
            return ""
        if self.alone or asked is NetworkTier.STANDARD:
            return ""
        near = nearest_gpudirect(sold.cloud, sold.row)
        return f"; the nearest here that has one: {near}" if near else ""

    # ---- the offer

    def _offer(self, sold: Sold, alike: Alike, number: int, tier: NetworkTier) -> Offer:
        row, gbps = sold.row, None if self.alone else alike.network.gbps
        interconnect, limits = alike.placed[number]
        return Offer(
            backend=self.backend,
            place=sold.place,
            instance_type=row.name,
            resources=self.resources,
            num_nodes=self.task.num_nodes,
            gpus_per_node=alike.gpus,
            interconnect=interconnect,
            nics=alike.nics,
            tier=tier,
            accelerator=alike.accelerator,
            gbps_per_gpu=gbps / row.gpu.count if gbps else None,
            gbps_per_node=gbps,
            usd_hour=sold.usd_hour,
            price_from=sold.price_from,
            spot=sold.spot,
            platform=sold.platform.name,
            pool=sold.pool,
            limits=limits,
            warnings=alike.warnings,
            sources=alike.sources,
        )


def _is_named(row: InstanceTypeRow, name: str) -> bool:
    lower = name.lower()
    return lower == row.name.lower() or any(lower == alias.lower() for alias in row.aliases)


def _find(name: str, clouds: Iterable[CloudCatalog]) -> InstanceTypeRow | None:
    return next((row for cloud in clouds if (row := cloud.find_type(name)) is not None), None)


def _memory_fits(asked: Accelerator, row: InstanceTypeRow) -> bool:
    gb = row.gpu.label_gb or row.gpu.memory_gib_each
    if gb is None or asked.memory_gb is None:
        return False
    if asked.vendor is not None and asked.vendor != row.gpu.vendor:
        return False
    return gb >= asked.memory_gb if asked.memory_at_least else gb == asked.memory_gb
