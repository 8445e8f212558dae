"""Pools that a backend found, judged by the catalog: what live backends answer `offers` with."""

from __future__ import annotations

from gpufabric.backends.base import Pool, Site
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import (
    Confidence,
    Gpu,
    GpuDirect,
    InstanceTypeRow,
    NetworkCards,
    PlatformRow,
)
from gpufabric.catalog.spelling import read_model, spellings
from gpufabric.net.interconnect import FabricKind
from gpufabric.net.resolve import Sold, resolve
from gpufabric.plan import LaunchPolicy, Resolution
from gpufabric.task import Task

__all__ = ["cloud_of", "row_of", "site_offers", "sold_in"]

_OWN = "onprem"
"""Whose rows serve nodes that no cloud's rows describe."""


def site_offers(
    task: Task, site: Site, catalog: Catalog, *, policy: LaunchPolicy | None = None
) -> Resolution:
    """All ways to run a task on the pools of a site, each pool judged by itself."""
    sold = [sold_in(pool, catalog, spot=pool.spot) for pool in site.pools]
    return resolve(task, sold, backend=site.backend, catalog=catalog, policy=policy)


def sold_in(pool: Pool, catalog: Catalog, *, spot: bool = False) -> Sold:
    """A pool as a thing that can be had: the catalog's row, with what was found put over it."""
    cloud = cloud_of(pool, catalog)
    row = row_of(pool, cloud, catalog)
    platform = cloud.platforms.get(pool.platform)
    if platform is None:
        platform = PlatformRow(
            name=pool.platform,
            title=pool.platform,
            kind="vm" if pool.platform in {"vm", "ssh", "local"} else "kubernetes",
        )
    free = pool.nodes_free if pool.nodes_free is not None else pool.nodes_total
    return Sold(
        cloud=cloud,
        row=row,
        platform=platform,
        place=pool.place,
        usd_hour=pool.usd_hour,
        spot=spot,
        pool=pool.name,
        nodes=free,
        interconnect=pool.interconnect,
        nics=pool.nics if pool.nics.nics else None,
        attached=_attached(pool),
    )


def cloud_of(pool: Pool, catalog: Catalog) -> CloudCatalog:
    """The cloud whose rows describe this pool: the one that has its platform, and its type."""
    named = [cloud for cloud in catalog if pool.platform in cloud.platforms]
    named = [cloud for cloud in named if pool.platform != "vm" or cloud.name == pool.place.backend]
    if pool.instance_type is not None:
        for cloud in named:
            if cloud.find_type(pool.instance_type) is not None:
                return cloud
    return named[0] if named else catalog.cloud(_OWN)


def row_of(pool: Pool, cloud: CloudCatalog, catalog: Catalog) -> InstanceTypeRow:
    """The catalog's row of a pool's type, or one made of what was found."""
    known = cloud.find_type(pool.instance_type) if pool.instance_type else None
    return _found_row(pool, cloud, catalog) if known is None else known


def _attached(pool: Pool) -> int | None:
    """Fabric NICs that were found; None where nothing was said of NICs."""
    if pool.interconnect is not None and pool.interconnect.kind is FabricKind.ETHERNET:
        return 0
    return len(pool.nics.fabric) if pool.nics.nics else None


def _found_row(pool: Pool, cloud: CloudCatalog, catalog: Catalog) -> InstanceTypeRow:
    """A row for a type that has none: nothing is added to what was found."""
    asked = pool.accelerator
    models = {model for one in catalog for model in one.models}
    read = read_model(asked.model, spellings(models)) if asked and asked.model else None
    fabric = pool.nics.fabric
    kind = pool.interconnect.kind.value if pool.interconnect else FabricKind.ETHERNET.value
    shared = kind if any(row.name == kind for row in cloud.rows("interconnect")) else "ethernet"
    return InstanceTypeRow(
        name=pool.instance_type or pool.name,
        gpu=Gpu(
            model=read.model if read else (asked.name if asked else "none"),
            count=asked.count if asked else 1,
            label_gb=read.gb if read else None,
            form=read.form if read else None,
            vendor=(asked.vendor if asked and asked.vendor else "nvidia"),
        ),
        interconnect=shared,
        nics=NetworkCards(
            model=fabric[0].model if fabric else "front end",
            count=len(fabric) or None,
            total_gbps=pool.nics.gbps or None,
            gpudirect=GpuDirect.RDMA if pool.nics.gpudirect else GpuDirect.NONE,
        ),
        platforms=(pool.platform,),
        vcpus=int(pool.cpus) if pool.cpus is not None else None,
        memory_gib=pool.memory_gib,
        confidence=Confidence.OBSERVED,
        origin="found",
    )
