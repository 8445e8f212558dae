"""The network plan: everything that makes an offer's network work, each with reason and source."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpufabric._frozen import FrozenDict, field, frozen
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import (
    Component,
    Confidence,
    EnvRow,
    Evidence,
    InstanceTypeRow,
    KubernetesRow,
    Mount,
    PlatformRow,
    Toleration,
)
from gpufabric.errors import CatalogError
from gpufabric.net._pod_items import pod_items
from gpufabric.net._reach import network_of
from gpufabric.net.env import Where, environment_of
from gpufabric.net.interconnect import FabricKind
from gpufabric.net.nics import Nic
from gpufabric.plan import EnvVar, NetworkItem, Offer, Source

__all__ = ["NetworkPlan", "fitting_way", "network_plan"]


@frozen(kw_only=True)
class NetworkPlan:
    """What a launch must do for its network.

    `items` are for people and tests; `way`, `requests` and `script` are what a backend builds its
    requests from. `way` is None for machines; `way.fabric` is false where pods ask for
    nothing of the fabric.
    """

    items: tuple[NetworkItem, ...] = ()
    env: tuple[EnvVar, ...] = ()
    possible_env: tuple[EnvVar, ...] = ()
    warnings: tuple[str, ...] = ()
    requests: FrozenDict[str, str] = field(factory=FrozenDict[str, str])
    way: KubernetesRow | None = None
    script: str | None = None


def network_plan(  # noqa: PLR0913  four are keywords that live backends alone give
    offer: Offer,
    cloud: CloudCatalog,
    catalog: Catalog,
    *,
    envs: Mapping[str, str] | None = None,
    row: InstanceTypeRow | None = None,
    way: KubernetesRow | None = None,
    fabric: bool = True,
) -> NetworkPlan:
    """The network plan of an offer. `envs` are the user's; they win.

    `row` is for a type that was found and has no row in the catalog; `way` is how the cluster gives
    pods their NICs, where that was found out (`fitting_way`), else the preferred one; `fabric` is
    false where it was found that they cannot have them.
    """
    row = row or cloud.find_type(offer.instance_type)
    platform = cloud.platforms.get(offer.platform)
    if row is None or platform is None:
        what = f"instance type {offer.instance_type!r}" if row is None else offer.platform
        raise CatalogError(f"the catalog of {cloud.name} has no {what}")
    if envs or platform.kind != "kubernetes":
        return _network_plan(
            offer, cloud, catalog, row, platform, envs=envs, way=way, fabric=fabric
        )
    nics = offer.nics.fabric
    key = (
        "pods", platform.name, way.name if way else None, fabric, offer.num_nodes > 1,
        offer.gpus_per_node, offer.place.region, len(nics), nics[0] if nics else None,
    )  # fmt: skip
    return cloud.kept(
        row,
        key,
        lambda: _network_plan(offer, cloud, catalog, row, platform, way=way, fabric=fabric),
    )


def _network_plan(  # noqa: PLR0913  see network_plan
    offer: Offer,
    cloud: CloudCatalog,
    catalog: Catalog,
    row: InstanceTypeRow,
    platform: PlatformRow,
    *,
    envs: Mapping[str, str] | None = None,
    way: KubernetesRow | None,
    fabric: bool,
) -> NetworkPlan:
    whole = offer.gpus_per_node == row.gpu.count
    network = network_of(cloud, row, platform, whole=whole)
    several = offer.num_nodes > 1
    used = several and network.fabric and fabric
    pods = platform.kind == "kubernetes"
    found = way or network.way
    where = Where(
        catalog, cloud, row.name, platform.name,
        network.kind.value if fabric else FabricKind.ETHERNET.value, row.gpu.vendor,
        way=found.name if found else None,
    )  # fmt: skip
    env = environment_of(where, user=envs, several_nodes=several)
    way = found if used else _plain(found, platform) if pods else None
    filled = _filled(way, platform, row) if way else None
    requests = dict(filled.requests) if filled else {}
    if pods:
        requests.setdefault(_gpu_resource(platform, row), str(offer.gpus_per_node))
    items = [
        *_nic_items(offer, cloud, row, platform),
        *(_together(cloud, row, platform, offer) if used else ()),
        *(pod_items(cloud, filled, requests) if pods else ()),
        *(() if pods else _machine_items(cloud, row)),
        *(_versions(where) if used else ()),
    ]
    if env.script is not None:
        why = f"{env.script.why}; what you set yourself is set again after it"
        items.append(_item("script", "source", env.script.path, why, env.script_source))
    items += [_item("not set", var.name, var.value, var.why, var.source) for var in env.possible]
    return NetworkPlan(
        items=tuple(items),
        env=env.vars,
        possible_env=env.possible,
        warnings=env.warnings,
        requests=FrozenDict(requests),
        way=filled,
        script=env.script.path if env.script else None,
    )


def fitting_way(
    ways: Sequence[KubernetesRow],
    allocatable: Mapping[str, str],
    *,
    custom_resources: Collection[str] = (),
) -> KubernetesRow | None:
    """The preferred way that a cluster supports, None where it supports none.

    `allocatable` is a node's `status.allocatable`; `custom_resources` names the CRDs and, as
    `deviceclass/<name>`, the DeviceClasses that exist.
    """
    for way in ways:
        needed = (*way.requests, *way.detect.allocatable)
        has_all = all(allocatable.get(name, "0") not in ("", "0") for name in needed)
        if has_all and set(way.detect.custom_resources) <= set(custom_resources):
            return way
    return None


def _plain(way: KubernetesRow | None, platform: PlatformRow) -> KubernetesRow:
    """What pods need that ask for nothing of the fabric: to be let onto the node, and memory."""
    if way is not None:
        return KubernetesRow(
            name=way.name,
            platform=way.platform,
            applies_to=way.applies_to,
            fabric=False,
            node_selector=way.node_selector,
            tolerations=way.tolerations,
            mounts=tuple(mount for mount in way.mounts if mount.source == "empty_dir"),
            runtime_class=way.runtime_class,
            sources=way.sources,
            checked=way.checked,
            confidence=way.confidence,
        )
    taint = (Toleration(key=platform.gpu_taint),) if platform.gpu_taint else ()
    why = "NCCL shares memory between the processes of a node"
    return KubernetesRow(
        name="plain",
        platform=platform.name,
        applies_to=("*",),
        fabric=False,
        node_selector=FrozenDict({"node.kubernetes.io/instance-type": "{type}"}),
        tolerations=taint,
        mounts=(Mount(name="shm", mount_path=_SHM, source="empty_dir", medium="Memory", why=why),),
        sources=platform.sources,
        checked=platform.checked,
        confidence=platform.confidence,
    )


_SHM = "/dev/shm"  # noqa: S108  a path in the pod, not a file of ours
_REPEATED = re.compile(r"\{nics\*([^{}]+)\}")


def _filled(way: KubernetesRow, platform: PlatformRow, row: InstanceTypeRow) -> KubernetesRow:
    """The row with what depends on the type put in: its name on this platform, its NICs."""
    nics = row.nics.count or 0

    def fill(values: Mapping[str, str]) -> FrozenDict[str, str]:
        return FrozenDict({key: put(value) for key, value in values.items()})

    def put(value: str) -> str:
        value = _REPEATED.sub(lambda match: ",".join([match[1]] * nics), value)
        return value.replace("{type}", f"{platform.type_prefix}{row.name}").replace(
            "{nics}", str(nics)
        )

    return way.but(
        requests=fill(way.requests),
        annotations=fill(way.annotations),
        node_selector=fill(way.node_selector),
    )


def _gpu_resource(platform: PlatformRow, row: InstanceTypeRow) -> str:
    return {"nvidia": platform.gpu_resource, "amd": "amd.com/gpu", "aws": "aws.amazon.com/neuron"}[
        row.gpu.vendor
    ]


def _item(kind: str, name: str, value: str, why: str, source: Source | None) -> NetworkItem:
    return NetworkItem(kind=kind, name=name, value=value, why=why, source=source)


def source_of(cloud: CloudCatalog, row: Evidence, own: tuple[str, ...] = ()) -> Source | None:
    """The first source of a row, or of a part of it that has its own."""
    name = next(iter(own or row.sources), None)
    if name is None:
        return None
    return Source(url=cloud.address(name), checked=row.checked, confidence=row.confidence.value)


def _nic_items(
    offer: Offer, cloud: CloudCatalog, row: InstanceTypeRow, platform: PlatformRow
) -> Iterator[NetworkItem]:
    listed = cloud.nic_layout(row.name, platform.name)
    source = source_of(cloud, listed or row)
    if platform.kind == "kubernetes":
        fabric = offer.nics.fabric
        if fabric:
            speed = _speed(fabric[0])
            why = "the node has them; the pod gets them by what it requests"
            yield _item("nic", "fabric", f"{len(fabric)} x {fabric[0].model}{speed}", why, source)
        return
    for run in _runs(offer.nics.nics):
        nic = run[0]
        why = "carries GPU traffic" if nic.role == "fabric" else "addresses, ssh and all else"
        numbers = str(nic.index) if len(run) == 1 else f"{nic.index}..{run[-1].index}"
        yield _item("nic", numbers, _run_text(run), why, source)


def _runs(nics: Sequence[Nic]) -> list[list[Nic]]:
    """NICs that differ by their card alone, one line of the plan; `offer.nics` has each."""
    runs: list[list[Nic]] = []
    for nic in nics:
        last = runs[-1][-1] if runs else None
        if last is not None and _alike(last) == _alike(nic):
            runs[-1].append(nic)
        else:
            runs.append([nic])
    return runs


def _alike(nic: Nic) -> tuple[object, ...]:
    return (nic.role, nic.model, nic.gbps, nic.device, nic.type, nic.subnet)


def _speed(nic: Nic) -> str:
    return "" if nic.gbps is None else f", {nic.gbps:g} Gb/s each"


def _run_text(run: Sequence[Nic]) -> str:
    nic, many = run[0], len(run) > 1
    cards = ",".join(str(n.card) for n in run)
    if many and [n.card for n in run] == list(range(nic.card or 0, (nic.card or 0) + len(run))):
        cards = f"{nic.card}..{run[-1].card}"
    at = f"card{'s' if many else ''} {cards}"
    at += f" device {nic.device}" if nic.device is not None else ""
    count = f"{len(run)} x " if many else ""
    words = [f"{count}{nic.type or nic.model}", nic.role, at]
    words += [f"{nic.subnet} subnet"] if nic.subnet else []
    return ", ".join(words) + (_speed(nic) if many else _speed(nic).removesuffix(" each"))


def _together(
    cloud: CloudCatalog, row: InstanceTypeRow, platform: PlatformRow, offer: Offer
) -> Iterator[NetworkItem]:
    """What holds the nodes together, and what must exist before the network works."""
    shared = cloud.interconnect(row)
    source = source_of(cloud, shared)
    yield _item("network", shared.kind, f"all nodes in {shared.scope}", "they share it", source)
    placed = cloud.placement(shared.placement)
    markets = set(row.markets)
    if placed is not None and platform.kind == "vm" and not (markets & set(placed.not_with)):
        need = "required" if placed.required else "advised"
        yield _item(
            "placement",
            placed.object,
            f"{placed.api} ({need})",
            placed.why,
            source_of(cloud, placed),
        )
    for number, need in enumerate((*shared.needs, *row.needs)):
        own = number >= len(shared.needs)
        yield _item("need", str(number), need, "the network does not work without it",
                    source_of(cloud, row) if own else source)  # fmt: skip
    names = row.fabrics.get(offer.place.region or "")
    if names:
        why = "nodes of different fabrics cannot talk; the choice is yours"
        yield _item("fabric", "one of", ", ".join(names), why, source_of(cloud, row))


def _machine_items(cloud: CloudCatalog, row: InstanceTypeRow) -> Iterator[NetworkItem]:
    for vm in cloud.vm_rows(row.name):
        if vm.when or vm.confidence is Confidence.INFERRED:
            continue
        source = source_of(cloud, vm)
        for image in vm.images:
            yield _item("image", image.name, image.find, "carries the drivers", source)


def _versions(where: Where) -> Iterator[NetworkItem]:
    """One line a component: what a row of few types says stands before what one of many does."""
    said: dict[str, list[tuple[EnvRow, Component]]] = {}
    for env in where.env_rows():
        if not env.when and env.confidence is not Confidence.INFERRED:
            for part in env.versions:
                said.setdefault(part.name, []).append((env, part))
    for name, parts in said.items():
        least = _last(part.minimum for _, part in parts)
        current = _last(part.recommended for _, part in parts)
        words = [
            f"{least} or later" if least else "",
            f"{current} is current" if current else "",
            *(f"not {', '.join(part.broken)}" for _, part in parts if part.broken),
        ]
        env, deciding = next(((e, p) for e, p in reversed(parts) if p.minimum), parts[-1])
        why = "; ".join(dict.fromkeys(p.why for _, p in parts if p.minimum in (None, least)))
        value = "; ".join(word for word in words if word) or "needed"
        yield _item("version", name, value, why, source_of(where.cloud, env, deciding.sources))


def _last(versions: Iterable[str | None]) -> str | None:
    found = [version for version in versions if version]
    return found[-1] if found else None
