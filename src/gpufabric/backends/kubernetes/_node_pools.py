"""Nodes that are alike, as pools; and by pool's name what a plan must know of them."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpufabric._frozen import FrozenDict, evolve
from gpufabric.backends._pools import sold_in
from gpufabric.backends.base import Pool
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._nodes import (
    MODEL_LABELS,
    NEAR_LABELS,
    TOPOLOGY_LABELS,
    TYPE_LABELS,
    ZONE,
    Node,
    is_nic,
)
from gpufabric.backends.kubernetes._usage import quantity
from gpufabric.backends.kubernetes._ways import Served, way_of
from gpufabric.catalog.index import Catalog
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.resolve import resolve
from gpufabric.resources import Resources
from gpufabric.task import Task

__all__ = ["note_tiers", "pool_name", "pools_of"]

Usage = Mapping[str, Mapping[str, float]]


def pools_of(  # noqa: PLR0913  # what the cluster has beside its nodes, by keyword
    nodes: Iterable[Json],
    used: Usage,
    *,
    catalog: Catalog,
    context: str,
    custom_resources: Sequence[str] = (),
    served: Served | None = None,
    labels: Collection[str] = (),
) -> tuple[tuple[Pool, ...], dict[str, Json]]:
    """Pools of nodes that are alike, and the facts of each.

    `labels` are those whose value is kept where all nodes of a pool have the same.
    """
    has = served or Served(custom_resources=tuple(custom_resources))
    groups: dict[tuple[object, ...], list[Node]] = {}
    for raw in nodes:
        node = Node(raw, catalog)
        devices = (has.devices or {}).get(node.name, {})
        groups.setdefault((*node.key(), tuple(devices.items())), []).append(node)
    pools: list[Pool] = []
    facts: dict[str, Json] = {}
    for members in groups.values():
        alike = _Alike(members, used, has)
        pool = alike.pool(pool_name(members[0], facts), catalog, context)
        pools.append(pool)
        facts[pool.name] = alike.facts(labels)
    note_tiers(pools, facts, catalog)
    return tuple(pools), facts


def pool_name(node: Node, taken: Collection[str]) -> str:
    """A name of the pool's own, of what tells it from others."""
    fabric = node.fabric[1] if node.fabric else None
    kind = node.type or ("cpu" if not node.gpus else "gpu")
    base = "-".join(part for part in (kind, node.zone, fabric) if part).replace(" ", "-")
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


class _Alike:
    """Nodes of one pool, and what pods of others have left of them."""

    def __init__(self, members: Sequence[Node], used: Usage, served: Served) -> None:
        self.first = next((node for node in members if not node.unusable), members[0])
        self.members = members
        self.way, self.why = way_of(self.first, served)
        self.unusable = {
            node.name: why for node in members if (why := node.unusable or self._not_selected(node))
        }
        self.usable = [node for node in members if node.name not in self.unusable]
        self.free = [_free(node, used) for node in self.usable]
        gpu = self.first.gpu_resource
        self.gpus_free = tuple(int(one.get(gpu, 0)) for one in self.free) if gpu else ()
        self._served = served

    def _not_selected(self, node: Node) -> str:
        """Why pods of the way to the NICs never go to a node: its selector asks for another."""
        for name, value in (self.way.node_selector if self.way else {}).items():
            if "{" not in value and node.labels.get(name) != value:
                return f"{name}={node.labels.get(name, '')}, and pods select {value}"
        return ""

    def pool(self, name: str, catalog: Catalog, context: str) -> Pool:
        """What every backend says of a pool."""
        first, members = self.first, self.members
        place = Place(backend="kubernetes", region=context, zone=first.zone)
        whole = sum(self._whole())
        return Pool(
            name=name,
            place=place,
            platform=first.platform,
            instance_type=first.type,
            accelerator=first.accelerator(catalog),
            nodes_total=len(self.usable),
            nodes_free=whole,
            gpus_free=self.gpus_free,
            cpus=min((quantity(n.allocatable.get("cpu", "0")) for n in members), default=None),
            memory_gib=min(quantity(n.allocatable.get("memory", "0")) / 2**30 for n in members),
            interconnect=_interconnect(
                first, place, attached=self.way is not None and self.way.fabric
            ),
            labels=FrozenDict(_selector(first, members)),
            spot=first.spot,
        )

    def _whole(self) -> list[bool]:
        if self.first.gpu_resource is None:
            return [True] * len(self.usable)
        return [count == self.first.gpus for count in self.gpus_free]

    def _connected(self) -> list[bool]:
        """Of each node, whether a pod could have all that its way to the NICs asks for."""
        nics = str(self.first.row.nics.count or 0) if self.first.row else "0"
        needs = {
            name: quantity(amount.replace("{nics}", nics))
            for name, amount in (self.way.requests if self.way else {}).items()
            if is_nic(name)
        }
        return [all(one.get(name, 0) >= need for name, need in needs.items()) for one in self.free]

    def facts(self, labels: Collection[str]) -> Json:
        """What plans and offers must know beside."""
        first, members, connected = self.first, self.members, self._connected()
        fact: Json = {
            "gpu_resource": first.gpu_resource,
            "gpus": first.gpus,
            "nics": dict(first.nics),
            "taints": [list(taint) for taint in first.taints],
            "way": self.way.name if self.way else None,
            "no_fabric": self.why if first.gpu_resource else "",
            "near": next((n for n in NEAR_LABELS if all(m.labels.get(n) for m in members)), None),
            "unusable": sorted(self.unusable),
            "why_unusable": self.unusable,
            "topology": _topology(
                self.usable, [*map(all, zip(self._whole(), connected, strict=True))]
            ),
            "labels": _common(members, labels),
            "shared": first.shared,
            "lacks": first.lacks,
            "other_accelerators": sorted(filter(_is_slice, first.allocatable)),
            "free": [
                {
                    "cpus": one.get("cpu", 0),
                    "memory_gib": one.get("memory", 0) / 2**30,
                    "gpus": count,
                    "pods": int(one.get("pods", 1)),
                    "nics": nics,
                }
                for one, count, nics in zip(
                    self.free, self.gpus_free or [0] * len(self.free), connected, strict=True
                )
            ],
        }
        if any(node.labels.get("karpenter.sh/nodepool") for node in members):
            fact["disrupts"] = "karpenter"
        if self.way is not None and self.way.fabric and first.fabric is None:
            fact["warnings"] = list(_unknown_fabric(first))
        devices = (self._served.devices or {}).get(first.name)
        if devices:
            fact["devices"] = dict(devices)
            fact["devices_free"] = self._devices_free(devices)
        return fact

    def _devices_free(self, devices: Mapping[str, int]) -> dict[str, int] | None:
        """Driver -> nodes of which no device is claimed; None where claims could not be read."""
        free_of = self._served.devices_free
        if free_of is None:
            return None
        free = [free_of.get(node.name, {}) for node in self.usable]
        return {
            name: sum(one.get(name) == count for one in free) for name, count in devices.items()
        }


def _is_slice(resource: str) -> bool:
    """Parts of accelerators that have a resource of their own."""
    return resource.startswith("nvidia.com/mig-") or resource == "nvidia.com/gpu.shared"


def _unknown_fabric(node: Node) -> Iterator[str]:
    label = node.fabric_label
    if label is not None:
        yield (
            f"the nodes carry no label {label}, which tells separate fabrics apart here: that all"
            " of them share one is not known"
        )


def _free(node: Node, used: Usage) -> dict[str, float]:
    mine = used.get(node.name, {})
    return {name: quantity(value) - mine.get(name, 0) for name, value in node.allocatable.items()}


def _topology(usable: Sequence[Node], whole: Sequence[bool]) -> dict[str, dict[str, int]]:
    """Label -> value -> nodes with all their accelerators free; a value with none is told as 0."""
    found: dict[str, dict[str, int]] = {}
    for label in TOPOLOGY_LABELS:
        counts: dict[str, int] = {}
        for node, free in zip(usable, whole, strict=True):
            value = node.labels.get(label)
            if value:
                counts[value] = counts.get(value, 0) + free
        if counts:
            found[label] = dict(sorted(counts.items()))
    return found


def _common(members: Sequence[Node], labels: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in sorted(labels):
        values = {node.labels.get(name) for node in members}
        if len(values) == 1 and (value := values.pop()) is not None:
            found[name] = value
    return found


def _interconnect(node: Node, place: Place, *, attached: bool) -> Interconnect | None:
    """None: what the catalog says of the type, all of it being there."""
    if node.gpus and not attached:
        return Interconnect(kind=FabricKind.ETHERNET, place=place)
    if node.row is not None and node.fabric is not None:
        kind = FabricKind(node.cloud.interconnect(node.row).kind)
        most = node.row.max_nodes or node.cloud.interconnect(node.row).max_nodes
        return Interconnect(kind=kind, place=place, name=node.fabric[1], max_nodes=most)
    return None


def _selector(node: Node, members: Sequence[Node]) -> dict[str, str]:
    """Labels by which pods select this pool, and with it one zone and one fabric.

    The values are the nodes' own: the scheduler compares them letter by letter, so that the
    catalog's spelling of a type would match no node that writes it another way.
    """
    wanted = [*TYPE_LABELS[:2], ZONE, "kubernetes.io/arch", *MODEL_LABELS[:2]]
    wanted += [node.fabric[0]] if node.fabric else []
    if not node.gpus:
        wanted = [ZONE, "kubernetes.io/arch"]
    found: dict[str, str] = {}
    for name in wanted:
        values = {one.labels.get(name) for one in members}
        if len(values) == 1 and (value := values.pop()):
            found[name] = value
    return found


def note_tiers(pools: Sequence[Pool], facts: Mapping[str, Json], catalog: Catalog) -> None:
    """Writes into each pool's facts the tier that two whole nodes of it reach, and on what.

    It is a property of the pool beside its rivals here, not of what is free: two nodes are assumed.
    """
    for fact in facts.values():
        fact["tier"] = fact["network"] = None
    judged = [pool for pool in pools if pool.accelerator is not None]
    sold = [
        sold_in(evolve(pool, nodes_free=None, nodes_total=None), catalog, spot=pool.spot)
        for pool in judged
    ]
    asked = dict.fromkeys((pool.accelerator, pool.spot) for pool in judged)
    for accelerator, spot in asked:
        task = Task(
            run="true", num_nodes=2,
            resources=Resources(accelerators=accelerator, use_spot=spot),
        )  # fmt: skip
        for offer in resolve(task, sold, backend="kubernetes", catalog=catalog).offers:
            if offer.pool is not None and offer.spot == spot:
                facts[offer.pool]["tier"] = offer.tier.value
                facts[offer.pool]["network"] = offer.interconnect.kind.value
