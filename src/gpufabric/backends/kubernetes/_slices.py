"""Devices by dynamic resource allocation: how many each node has, and how many are not claimed.

ResourceSlice and ResourceClaim of resource.k8s.io:
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Iterable, Iterator, Mapping

from gpufabric.backends.kubernetes._api import Json

__all__ = ["claimed_of", "class_driver", "counted", "devices_of"]

Device = tuple[str, str, str]
"""Driver, pool and name, which together are unique in a cluster."""

_DRIVER = re.compile(r"""device\.driver\s*==\s*(["'])([^"']+)\1""")


def class_driver(device_class: Json) -> str | None:
    """The driver that a DeviceClass takes devices of, where one selector says so outright."""
    for selector in (device_class.get("spec") or {}).get("selectors") or ():
        match = _DRIVER.search(str((selector.get("cel") or {}).get("expression") or ""))
        if match is not None:
            return match[2]
    return None


def devices_of(slices: Iterable[Json]) -> dict[str, dict[str, list[Device]]]:
    """Node -> driver -> its devices, of the newest generation of each pool.

    Devices of the network, which any node may use, belong to none and are left out.
    """
    newest: dict[tuple[str, str], tuple[int, list[tuple[str, Device]]]] = {}
    for one in slices:
        spec = one.get("spec") or {}
        driver, pool = str(spec.get("driver")), spec.get("pool") or {}
        key, generation = (driver, str(pool.get("name"))), int(pool.get("generation") or 0)
        known = newest.get(key)
        if known is None or known[0] < generation:
            known = newest[key] = (generation, [])
        if known[0] == generation:
            known[1].extend(_placed(spec, key))
    found: dict[str, dict[str, list[Device]]] = {}
    for _, placed in newest.values():
        for node, device in placed:
            found.setdefault(node, {}).setdefault(device[0], []).append(device)
    return found


def _placed(spec: Json, key: tuple[str, str]) -> Iterator[tuple[str, Device]]:
    for device in spec.get("devices") or ():
        node = spec.get("nodeName") or device.get("nodeName")
        if node:
            yield str(node), (*key, str(device.get("name")))


def claimed_of(claims: Iterable[Json]) -> set[Device]:
    """The devices that claims hold for themselves; administrators' access holds none."""
    held: set[Device] = set()
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for one in (allocation.get("devices") or {}).get("results") or ():
            if not one.get("adminAccess"):
                held.add((str(one.get("driver")), str(one.get("pool")), str(one.get("device"))))
    return held


def counted(
    devices: Mapping[str, Mapping[str, list[Device]]], held: set[Device]
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """How many each node has of each driver, and how many of them are not claimed."""
    total = {
        node: {driver: len(every) for driver, every in sorted(of_node.items())}
        for node, of_node in devices.items()
    }
    free = {
        node: {
            driver: sum(one not in held for one in every)
            for driver, every in sorted(of_node.items())
        }
        for node, of_node in devices.items()
    }
    return total, free
