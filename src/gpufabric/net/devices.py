"""What a node's RDMA devices say of themselves, from the tools' texts and from sysfs.

Each format has its reader; all readers of one text write into one `DeviceTable`, so that `ibstat`,
`show_gids` and a counter dump pasted together describe one set of devices.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpufabric.net._device_table import DeviceReader, DeviceTable
from gpufabric.net._devices_net import (
    EthtoolStatistics,
    FiInfo,
    Ibdev2netdev,
    RdmaLink,
    ShowGids,
)
from gpufabric.net._devices_verbs import Ibstat, IbvDevinfo
from gpufabric.net.launcher import Launcher
from gpufabric.net.perftest import Perftest
from gpufabric.net.records import Devices, HcaState
from gpufabric.net.sysfs import HostFacts, SysfsText

__all__ = [
    "DeviceReader",
    "DeviceTable",
    "EthtoolStatistics",
    "FiInfo",
    "Ibdev2netdev",
    "Ibstat",
    "IbvDevinfo",
    "RdmaLink",
    "ShowGids",
    "device_readers",
    "fabric_ports",
    "failed_ports",
]


def device_readers() -> tuple[DeviceReader, ...]:
    """A fresh reader of each device format, all writing into one table.

    The launcher's is last: it looks at what no other reader took, and takes nothing itself.
    """
    table = DeviceTable()
    return (
        Ibstat(table),
        IbvDevinfo(table),
        Ibdev2netdev(table),
        ShowGids(table),
        RdmaLink(table),
        FiInfo(table),
        EthtoolStatistics(table),
        SysfsText(table),
        HostFacts(table),
        Perftest(table),
        Launcher(table),
    )


def fabric_ports(devices: Devices) -> tuple[HcaState, ...]:
    """The ports that are the node's GPU network, as far as the text tells them apart.

    A node has other RDMA-capable NICs too (storage, management). The GPU network is the group of
    equal card and link layer with the fastest active ports; the larger group where two tie.
    """
    groups: dict[tuple[str | None, str | None], list[HcaState]] = {}
    for hca in devices.hcas or ():
        if hca.state is not None:
            groups.setdefault((hca.hca_type, hca.link_layer), []).append(hca)
    if not groups:
        return ()
    sized = [(_speed_and_size(ports), ports) for ports in groups.values()]
    return tuple(max(sized, key=lambda pair: pair[0])[1])


def failed_ports(devices: Devices) -> tuple[HcaState, ...]:
    """Ports of the GPU network that are not up and ought to be.

    The second port of a two-port card is often not cabled; where every card has one port up and
    one down, that is how the node is built.
    """
    ports = fabric_ports(devices)
    down = [port for port in ports if not is_up(port)]
    up = [port for port in ports if is_up(port)]
    if up and len(down) == len(up) and _are_second_ports(down, up):
        return ()
    return tuple(down)


def is_up(port: HcaState) -> bool:
    """Whether the port passes traffic ("Active", also while it defers)."""
    return (port.state or "").startswith("Active")


def _speed_and_size(ports: list[HcaState]) -> tuple[float, int]:
    rates = [port.rate_gbps or 0.0 for port in ports if is_up(port)]
    return max(rates, default=0.0), len(ports)


def _are_second_ports(down: Iterable[HcaState], up: Iterable[HcaState]) -> bool:
    """Whether each down port shares its card with exactly one that is up."""
    cards_up = sorted(card for port in up if (card := _card(port)))
    cards_down = sorted(card for port in down if (card := _card(port)))
    return bool(cards_up) and cards_up == cards_down and len(set(cards_up)) == len(cards_up)


def _card(port: HcaState) -> str | None:
    image = port.values.get("sys_image_guid")
    machine = port.name.partition("#")[2]
    if isinstance(image, str):
        return f"{image} {machine}"
    return None
