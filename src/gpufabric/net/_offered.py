"""What is sold, and what an offer of it uses: interconnect, NICs, limits, warnings, sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpufabric.catalog.index import CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow, PlatformRow
from gpufabric.net._layout import layout_of
from gpufabric.net._reach import READS, Network
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.nics import NicLayout
from gpufabric.plan import Source

__all__ = ["Sold", "Used", "nearest_gpudirect", "sources_of", "warnings_of"]


class Sold(NamedTuple):
    """One instance type on one platform in one place: what a backend can rent or has."""

    cloud: CloudCatalog
    row: InstanceTypeRow
    platform: PlatformRow
    place: Place
    usd_hour: float | None = None
    spot: bool = False
    pool: str | None = None
    nodes: int | None = None
    """How many there are at most; None where not known."""
    interconnect: Interconnect | None = None
    """What was found; None: what the catalog says."""
    nics: NicLayout | None = None
    """A node's NICs as they were found; None: as the catalog lists them."""
    attached: int | None = None
    """Fabric NICs that a node was found to have; None: as many as the type has."""
    price_from: str = ""
    """How the price is billed, who says so and when."""


class Used(NamedTuple):
    """What of a node's network an offer uses."""

    sold: Sold
    network: Network
    gpus: int
    alone: bool
    """The gang is one node."""

    def interconnect(self, place: Place) -> Interconnect:
        """The network that the gang shares, in this place."""
        sold, row = self.sold, self.sold.row
        if self.alone:
            inside = FabricKind.NVLINK if row.nvlink and self.gpus > 1 else FabricKind.LOOPBACK
            return Interconnect(kind=inside, place=place, max_nodes=1)
        if sold.interconnect is not None and self.network.fabric:
            return sold.interconnect
        return Interconnect(kind=self.network.kind, place=place, max_nodes=self.network.max_nodes)

    def fabrics(self, place: Place) -> tuple[str, ...]:
        """That one of several fabrics must be chosen in this place."""
        names = self.sold.row.fabrics.get(place.region or "") if not self.alone else None
        return (f"one of the fabrics {', '.join(names)} must be chosen",) if names else ()

    def nics(self) -> NicLayout:
        """A node's NICs; none where they are not needed."""
        if self.alone:
            return NicLayout()
        if self.sold.nics is not None:
            return self.sold.nics
        return layout_of(
            self.sold.cloud, self.sold.row, self.sold.platform.name, fabric=self.network.fabric
        )

    def limits(self) -> tuple[str, ...]:
        """What bounds the gang, in words."""
        row, found = self.sold.row, list[str]()
        if not self.alone:
            if self.network.scope:
                found.append(f"all nodes in {self.network.scope}")
            if self.network.max_nodes:
                found.append(f"at most {self.network.max_nodes} nodes on one network")
            if self.network.nvlink_nodes:
                found.append(f"one NVLink domain holds {self.network.nvlink_nodes} nodes")
        if row.markets and "on_demand" not in row.markets:
            found.append(f"sold only as: {', '.join(row.markets).replace('_', ' ')}")
        if self.gpus < row.gpu.count:
            found.append(
                f"takes {self.gpus} of the node's {row.gpu.count} accelerators;"
                " the price is of the whole node"
            )
        return tuple(found)


def nearest_gpudirect(cloud: CloudCatalog, row: InstanceTypeRow) -> str | None:
    """The type of this cloud that is most like `row` and has NICs that read GPU memory."""
    return cloud.kept(row, "nearest", lambda: _nearest(cloud, row))


def _nearest(cloud: CloudCatalog, row: InstanceTypeRow) -> str | None:
    able = [r for r in cloud.types() if r.nics.gpudirect in READS and not r.inferred]
    able.sort(key=lambda r: (r.gpu.model != row.gpu.model, abs(r.gpu.count - row.gpu.count)))
    return f"{able[0].name} ({able[0].gpu.count} x {able[0].gpu.model})" if able else None


def warnings_of(row: InstanceTypeRow, cloud: CloudCatalog) -> tuple[str, ...]:
    """What a user should know of how sure the row is."""
    return cloud.kept(row, "warnings", lambda: tuple(_warnings(row)))


def _warnings(row: InstanceTypeRow) -> Iterable[str]:
    if row.confidence.value == "inferred":
        yield "what the catalog says of this type is inferred"
    if row.inferred:
        yield f"inferred, not documented: {', '.join(row.inferred)}"
    for one in row.disagreement:
        yield f"sources disagree on {one.about}: {one.ours} is taken, {one.theirs} is also said"


def sources_of(cloud: CloudCatalog, row: InstanceTypeRow) -> tuple[Source, ...]:
    """The sources of a type's row."""
    return cloud.kept(
        row,
        "sources",
        lambda: tuple(
            Source(url=cloud.address(name), checked=row.checked, confidence=row.confidence.value)
            for name in row.sources
        ),
    )
