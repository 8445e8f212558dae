"""A type's NICs, one by one, from the slots of the catalog."""

from __future__ import annotations

from gpufabric.catalog.index import CloudCatalog
from gpufabric.catalog.rows import GpuDirect, InstanceTypeRow, NicSlot
from gpufabric.net.nics import Nic, NicLayout

__all__ = ["layout_of", "slot_names"]

_NO_GPUDIRECT = (GpuDirect.NONE, GpuDirect.UNKNOWN)


def layout_of(
    cloud: CloudCatalog, row: InstanceTypeRow, platform: str, *, fabric: bool
) -> NicLayout:
    """Every NIC of a node; without `fabric` the front end alone."""
    return cloud.kept(
        row, ("nics", platform, fabric), lambda: _layout(cloud, row, platform, fabric=fabric)
    )


def _layout(cloud: CloudCatalog, row: InstanceTypeRow, platform: str, *, fabric: bool) -> NicLayout:
    listed = cloud.nic_layout(row.name, platform)
    if listed is None:
        return NicLayout(nics=_counted(row) if fabric else ())
    nics: list[Nic] = []
    for slot in listed.slots:
        if slot.role == "fabric" and not fabric:
            continue
        for index in indexes(slot):
            nics.append(_nic(row, slot, index, len(nics)))
    return NicLayout(nics=tuple(nics))


def indexes(slot: NicSlot) -> range:
    """The indexes of a run of NICs."""
    return range(slot.index, (slot.to_index or slot.index) + 1, slot.step)


def slot_names(slot: NicSlot) -> list[str]:
    """What the guest calls the NICs of a run."""
    return [slot.name.format(i=i, n=n) for i, n in enumerate(indexes(slot))] if slot.name else []


def _nic(row: InstanceTypeRow, slot: NicSlot, index: int, position: int) -> Nic:
    fabric = slot.role == "fabric"
    sure = "nics.gbps_each" not in row.inferred and row.confidence.value != "inferred"
    speed = row.nics.gbps_each if sure else None
    return Nic(
        index=position,
        model=row.nics.model if fabric else row.frontend.model or "front end",
        gbps=slot.gbps or (speed if fabric else row.frontend.gbps),
        gpudirect=fabric and row.nics.gpudirect not in _NO_GPUDIRECT,
        role=slot.role,
        card=index,
        device=slot.device,
        type=slot.kind,
        subnet=slot.subnet or None,
    )


def _counted(row: InstanceTypeRow) -> tuple[Nic, ...]:
    """NICs of a type whose layout has no row: as many as are counted, in no known order."""
    if row.interconnect == "ethernet" or row.nics.count is None:
        return ()
    slot = NicSlot(index=0, to_index=row.nics.count - 1, kind="", role="fabric")
    return tuple(_nic(row, slot, index, index) for index in indexes(slot))
