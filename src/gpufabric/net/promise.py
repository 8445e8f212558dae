"""What a place was sold with: the network that a report is held against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol, cast

from gpufabric._frozen import frozen

if TYPE_CHECKING:
    from gpufabric.catalog.index import CloudCatalog
    from gpufabric.catalog.rows import InstanceTypeRow, ReferenceRow
    from gpufabric.net.interconnect import Interconnect
    from gpufabric.net.nics import NicLayout
    from gpufabric.resources import Accelerator


class HasNetwork(Protocol):
    """What an offer must have to be held against a report (`gpufabric.plan.Offer` has it)."""

    @property
    def instance_type(self) -> str:
        """The provider's name."""
        ...

    @property
    def num_nodes(self) -> int:
        """Nodes of the gang."""
        ...

    @property
    def gpus_per_node(self) -> int:
        """GPUs that the task takes of each node."""
        ...

    @property
    def accelerator(self) -> Accelerator | None:
        """What a node has."""
        ...

    @property
    def interconnect(self) -> Interconnect:
        """The network between the nodes."""
        ...

    @property
    def nics(self) -> NicLayout:
        """A node's side of it."""
        ...


@frozen(kw_only=True)
class Reference:
    """A published result for this instance type."""

    collective: str
    busbw_gbytes_s: float
    size_bytes: int | None = None
    nodes: int | None = None
    library: str = ""
    source: str = ""


@frozen(kw_only=True)
class Promise:
    """The network that was promised. None: not known, so nothing is checked against it."""

    instance_type: str
    fabric: str
    gpu: str | None = None
    gpus_per_node: int | None = None
    node_gpus: int | None = None
    num_nodes: int | None = None
    n_nics: int | None = None
    gbps_per_node: float | None = None
    gpudirect: bool | None = None
    plugins: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def tcp_only(self) -> bool:
        """Whether plain TCP is all that was promised."""
        return self.fabric in {"ethernet", "loopback"}

    @property
    def nic_limit_gbytes_s(self) -> float | None:
        """What the NICs of a node carry in one direction, in 10^9 bytes/s."""
        return None if self.gbps_per_node is None else self.gbps_per_node / 8

    @property
    def nvlink_limit_gbytes_s(self) -> float | None:
        """About what all_reduce reaches over NVLink inside a node (with NVLink SHARP)."""
        return _NVLINK_LIMITS.get(self.gpu or "")

    @classmethod
    def of_offer(cls, offer: HasNetwork) -> Promise:
        """The promise of an offer; references come from the catalog's row of its type, if any."""
        kind = str(offer.interconnect.kind)
        fabric = offer.nics.fabric
        found = _find(offer.instance_type)
        return cls(
            instance_type=offer.instance_type,
            fabric=kind,
            gpu=offer.accelerator.model if offer.accelerator else None,
            gpus_per_node=offer.gpus_per_node,
            node_gpus=offer.accelerator.count if offer.accelerator else None,
            num_nodes=offer.num_nodes,
            n_nics=len(fabric) or None,
            gbps_per_node=offer.nics.gbps if fabric else None,
            gpudirect=offer.nics.gpudirect if fabric else None,
            plugins=plugins_of(kind, found[0].name if found else ""),
            references=_references(*found) if found else (),
        )

    @classmethod
    def of_instance_type(cls, name: str) -> Promise:
        """The promise of the catalog's row. Raises `CatalogError` where there is none."""
        found = _find(name)
        if found is None:
            from gpufabric._convert import near
            from gpufabric.catalog import Catalog
            from gpufabric.errors import CatalogError

            known = [known for cloud in Catalog.shipped() for known in cloud.type_names]
            raise CatalogError(
                f"the catalog has no instance type {name!r}{near(name, known) or ''}"
            )
        cloud, row = found
        kind = cloud.interconnect(row).kind
        nics = row.nics
        total = nics.total_gbps
        if total is None and nics.count is not None and nics.gbps_each is not None:
            total = nics.count * nics.gbps_each
        direct = {"rdma": True, "tcpx": True, "tcpxo": True, "none": False}
        return cls(
            instance_type=row.name,
            fabric=str(kind),
            gpu=row.gpu.model,
            node_gpus=row.gpu.count,
            n_nics=nics.count,
            gbps_per_node=total,
            gpudirect=direct.get(str(nics.gpudirect)),
            plugins=plugins_of(str(kind), cloud.name),
            references=_references(cloud, row),
        )


_NVLINK_LIMITS: Final = {"A100": 230.0, "H100": 480.0, "H200": 480.0, "B200": 700.0}
"""GB/s of bus bandwidth; https://github.com/NVIDIA/nccl-tests/issues/290 and issues/212."""
_PLUGINS: Final = {
    "efa": ("aws-ofi-nccl",),
    "gpudirect-tcpxo": ("FasTrak",),
    "gpudirect-tcpx": ("GPUDirectTCPX",),
    "infiniband": ("internal", "NCCL RDMA Plugin"),
    "roce": ("internal", "NCCL RDMA Plugin", "gIB"),
}


def plugins_of(fabric: str, cloud: str) -> tuple[str, ...]:
    """The plugins, by the report's `net_plugin`, that serve this network. Empty: any.

    GCP's RoCE machines come with gIB (Google Cloud documentation, NCCL/gIB).
    """
    if fabric == "roce" and cloud == "gcp":
        return ("gIB",)
    return _PLUGINS.get(fabric, ())


def find_promise(name: str) -> Promise | None:
    """The promise of a type that a log itself names; None where the catalog has no such row."""
    return None if _find(name) is None else Promise.of_instance_type(name)


def _find(name: str) -> tuple[CloudCatalog, InstanceTypeRow] | None:
    from gpufabric.catalog import Catalog

    for cloud in Catalog.shipped():
        row = cloud.find_type(name)
        if row is not None:
            return cloud, row
    return None


def _references(cloud: CloudCatalog, row: InstanceTypeRow) -> tuple[Reference, ...]:
    rows = cast("Iterable[ReferenceRow]", cloud.rows("reference"))
    return tuple(
        Reference(
            collective=each.collective,
            busbw_gbytes_s=each.busbw_gbytes_s,
            size_bytes=each.size_bytes,
            nodes=each.nodes,
            library=each.library,
            source=cloud.address(each.sources[0]) if each.sources else "",
        )
        for each in rows
        if each.instance_type == row.name
        and each.busbw_gbytes_s is not None
        and str(each.confidence) != "inferred"
    )
