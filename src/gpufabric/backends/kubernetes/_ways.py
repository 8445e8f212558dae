"""How pods of a pool get its NICs, or why they cannot."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
from collections.abc import Iterator, Mapping

from gpufabric._frozen import field, frozen
from gpufabric.backends.kubernetes._nodes import Node
from gpufabric.backends.kubernetes._usage import quantity
from gpufabric.catalog.rows import KubernetesRow
from gpufabric.net.netplan import fitting_way

__all__ = ["Served", "asked_devices", "networks_of", "way_of"]

_NO_DRIVERS: Mapping[str, Mapping[str, int]] = {}


@frozen(kw_only=True)
class Served:
    """What the cluster has beside its nodes that a way to its NICs may need."""

    custom_resources: tuple[str, ...] = ()
    class_drivers: Mapping[str, str] = field(factory=dict[str, str])
    """DeviceClass -> the driver that its selector names, where it names one."""
    devices: Mapping[str, Mapping[str, int]] | None = None
    """Node -> driver -> devices; None where ResourceSlices could not be read."""
    devices_free: Mapping[str, Mapping[str, int]] | None = None
    """The same without those that claims hold; None where claims could not be read."""


def way_of(node: Node, served: Served) -> tuple[KubernetesRow | None, str]:
    """How pods get this node's NICs, or why they do not.

    Where several ways fit, one that leaves the pod out of the host's network comes first.
    """
    devices = (served.devices or _NO_DRIVERS).get(node.name, {})
    has = [*node.nics, *(f"{count} by DRA of {name}" for name, count in devices.items())]
    seen = f"; NIC resources seen: {', '.join(has)}" if has else ""
    if node.row is None:
        if node.type is None:
            return None, f"the nodes carry no instance type that a catalog could know{seen}"
        return None, f"the catalog of {node.cloud.name} has no instance type {node.type!r}{seen}"
    reasons: list[str] = []
    ways = node.cloud.kubernetes_rows(node.row.name, node.platform)
    for way in sorted(ways, key=lambda one: one.host_network):
        reason = _unfit(way, node, served)
        if not reason:
            return way, ""
        reasons.append(f"{way.name}: {reason}")
    return None, "; ".join(reasons) or f"no way to give pods NICs of {node.row.name} is known"


def _unfit(way: KubernetesRow, node: Node, served: Served) -> str:
    nics = str(node.row.nics.count or 0) if node.row else "0"
    for name, wanted in way.requests.items():
        need, have = quantity(wanted.replace("{nics}", nics)), node.count(name)
        if have < need:
            return f"nodes have {have} {name}, pods need {need:g}"
    for name, value in way.detect.labels.items():
        if not _labelled(node.labels, name, value):
            told = f"={value}" if value else ""
            return f"nodes lack the label {name}{told}"
    for name, value in way.detect.without_labels.items():
        if _labelled(node.labels, name, value):
            return f"nodes have the label {name}={node.labels[name]}"
    for network in networks_of(way):
        if not node.count(f"networking.gke.io.networks/{network}"):
            return f"nodes are not in the network {network!r}"
    classes = {name for claim in way.claims.values() for name, _ in asked_devices(claim)}
    needed = {*way.detect.custom_resources, *(f"deviceclass/{name}" for name in classes)}
    absent = sorted(needed - set(served.custom_resources))
    if absent or fitting_way(
        (way,), node.allocatable, custom_resources=served.custom_resources
    ) is None:  # fmt: skip
        return f"the cluster lacks {', '.join(absent)}" if absent else "resources are missing"
    return _no_devices(way, node, served)


def _labelled(labels: Mapping[str, str], name: str, value: str) -> bool:
    return name in labels and (not value or labels[name] in value.split("|"))


def _no_devices(way: KubernetesRow, node: Node, served: Served) -> str:
    """Why claims of this way find nothing on the node. What could not be read counts as there."""
    if served.devices is None:
        return ""
    have = served.devices.get(node.name, {})
    for claim in way.claims.values():
        for name, count in asked_devices(claim):
            driver = served.class_drivers.get(name)
            if driver is not None and have.get(driver, 0) < count:
                return (
                    f"nodes have {have.get(driver, 0)} devices of {driver} (DeviceClass {name}),"
                    f" a pod claims {count}"
                )
    return ""


def asked_devices(claim: object) -> Iterator[tuple[str, int]]:
    """DeviceClass and least number of each request of a claim's spec."""
    devices = claim.get("devices") if isinstance(claim, Mapping) else None
    for request in (devices or {}).get("requests") or ():
        exact = request.get("exactly") or request
        name = exact.get("deviceClassName")
        if name:
            yield str(name), int(exact.get("count") or 1)


def networks_of(way: KubernetesRow) -> Iterator[str]:
    """GKE's Networks that pods of this way are attached to."""
    text = way.annotations.get("networking.gke.io/interfaces")
    for one in json.loads(text) if text else ():
        if one.get("network") != "default":
            yield str(one["network"])
