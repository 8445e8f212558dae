"""Kueue: what a queue could ever give, what of it is used, and the levels of its topology.

Fields: apis/kueue in https://github.com/kubernetes-sigs/kueue, v1beta1 and v1beta2.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._nodes import GPU_RESOURCES
from gpufabric.backends.kubernetes._reader import Reader
from gpufabric.backends.kubernetes._usage import quantity

__all__ = ["GROUP", "levels_for", "queue_faults", "queue_record", "read_queues"]

GROUP = "kueue.x-k8s.io"
_PROVISIONING = "kueue.x-k8s.io/provisioning-request"
_HOLDS = ("Hold", "HoldAndDrain")


def read_queues(see: Reader, namespace: str) -> dict[str, Json]:
    """LocalQueue of the namespace -> its quotas and flavors, as far as they may be read."""
    version = see.groups.get(GROUP)
    if version is None:
        return {}
    base = f"/apis/{GROUP}/{version}"
    path = f"{base}/namespaces/{namespace}/localqueues"
    listed = see.listed("LocalQueues", path, needed=True) or []  # a queue is never bypassed
    cache: dict[str, Json | None] = {}

    def read(kind: str, name: str) -> Json | None:
        path = f"{base}/{kind}/{name}"
        if path not in cache:
            cache[path] = see.one(f"{kind} {name}", path)
        return cache[path]

    found: dict[str, Json] = {}
    for local in sorted(listed, key=lambda one: str(one["metadata"]["name"])):
        name = str((local.get("spec") or {}).get("clusterQueue") or "")
        cluster_queue = read("clusterqueues", name) if name else None
        spec = (cluster_queue or {}).get("spec") or {}
        names = [str(one["name"]) for group in spec.get("resourceGroups") or ()
                 for one in group.get("flavors") or ()]  # fmt: skip
        flavors = {one: read("resourceflavors", one) for one in dict.fromkeys(names)}
        topologies = {
            one: read("topologies", one)
            for flavor in flavors.values()
            if (one := ((flavor or {}).get("spec") or {}).get("topologyName"))
        }
        checks = {one: read("admissionchecks", one) for one in dict.fromkeys(_check_names(spec))}
        found[str(local["metadata"]["name"])] = queue_record(
            local, cluster_queue, flavors, topologies, checks
        )
    return found


def _check_names(spec: Json) -> Iterator[str]:
    """Of both ways to name admission checks; the first is gone from v1beta2."""
    yield from (str(one) for one in spec.get("admissionChecks") or ())
    for rule in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ():
        yield str(rule["name"])


def queue_record(
    local: Json,
    cluster_queue: Json | None,
    flavors: Mapping[str, Json | None],
    topologies: Mapping[str, Json | None],
    checks: Mapping[str, Json | None],
) -> Json:
    """What a plan must know of one LocalQueue. `flavors` is None where quotas were not seen."""
    spec = (cluster_queue or {}).get("spec") or {}
    status = (cluster_queue or {}).get("status") or {}
    stops = (
        (local.get("spec") or {}).get("stopPolicy") or "None",
        spec.get("stopPolicy") or "None",
    )
    used = _usage(status)
    record: Json = {
        "cluster_queue": (local.get("spec") or {}).get("clusterQueue"),
        "stopped": next((one for one in stops if one in _HOLDS), ""),
        "pending": (local.get("status") or {}).get("pendingWorkloads") or 0,
        "cohort": spec.get("cohortName") or spec.get("cohort"),
        "flavors": None,
        "topology": list(_levels(local, flavors, topologies)),
        "provisioning": sorted(
            name
            for name, check in checks.items()
            if ((check or {}).get("spec") or {}).get("controllerName") == _PROVISIONING
        ),
    }
    if cluster_queue is not None:
        record["flavors"] = [
            {**one, "topology": list(_levels_of(flavors.get(one["name"]), topologies))}
            for one in _flavors(spec, flavors, used, cohort=bool(record["cohort"]))
        ]
    return record


def _usage(status: Json) -> dict[tuple[str, str], float]:
    """(flavor, resource) -> what admitted and reserving workloads hold."""
    return {
        (str(flavor["name"]), str(one["name"])): quantity(one.get("total") or "0")
        for flavor in status.get("flavorsReservation") or ()
        for one in flavor.get("resources") or ()
    }


def _flavors(
    spec: Json,
    flavors: Mapping[str, Json | None],
    used: Mapping[tuple[str, str], float],
    *,
    cohort: bool,
) -> Iterator[Json]:
    """Every flavor of every group of resources, with the most it could ever give.

    Without a cohort nothing can be borrowed; in one, without a limit, as much as the others have.
    https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
    """
    groups: list[Json] = list(spec.get("resourceGroups") or ())
    for number, group in enumerate(groups):
        for one in group.get("flavors") or ():
            name = str(one["name"])
            body = (flavors.get(name) or {}).get("spec") or {}
            resources: Json = {}
            quotas: list[Json] = list(one.get("resources") or ())
            for quota in quotas:
                nominal = quantity(quota.get("nominalQuota") or "0")
                limit = quota.get("borrowingLimit")
                most = nominal if not cohort else None
                if cohort and limit is not None:
                    most = nominal + quantity(limit)
                resources[str(quota["name"])] = {
                    "nominal": nominal,
                    "most": most,
                    "used": used.get((name, str(quota["name"])), 0),
                }
            yield {
                "name": name,
                "group": number,
                "labels": dict(body.get("nodeLabels") or {}),
                "seen": flavors.get(name) is not None,
                "resources": resources,
            }


def _levels(
    local: Json, flavors: Mapping[str, Json | None], topologies: Mapping[str, Json | None]
) -> Iterator[str]:
    """The node labels of the first topology among the flavors, the widest level first."""
    for flavor in flavors.values():
        levels = list(_levels_of(flavor, topologies))
        if levels:
            yield from levels
            return
    of_status: list[Json] = list((local.get("status") or {}).get("flavors") or ())
    for one in of_status:  # v1beta1 says it itself
        said = (one.get("topology") or {}).get("levels")
        if said:
            yield from map(str, said)
            return


def _levels_of(flavor: Json | None, topologies: Mapping[str, Json | None]) -> Iterator[str]:
    name = ((flavor or {}).get("spec") or {}).get("topologyName")
    topology = (topologies.get(name) if name else None) or {}
    for level in (topology.get("spec") or {}).get("levels") or ():
        yield str(level["nodeLabel"])


# ---- judging


def levels_for(
    site: Site, queue: str | None, pool: Pool, *, gpus: bool
) -> tuple[tuple[str, ...], bool]:
    """The levels by which a queue places gangs on a pool, the widest first.

    Only those that every flavor for the pool's nodes has, as a wish for a level shuts the others
    out; and whether each of these flavors has a topology, so that pods without any wish are out.
    """
    known = cast("Mapping[str, tuple[str, ...]]", site.facts.get("queue_topology") or {})
    records = cast("Mapping[str, Json]", site.facts.get("queue_quota") or {})
    flavors = (records.get(queue or "") or {}).get("flavors")
    if flavors is None:
        return tuple(known.get(queue or "", ())), False
    labels = _labels_of(site, pool)
    fitting = [
        one for one in cast("Iterable[Json]", flavors)
        if all(labels.get(name) == value for name, value in one["labels"].items())
    ]  # fmt: skip
    of_gpus = [one for one in fitting if gpus and GPU_RESOURCES.keys() & one["resources"].keys()]
    mine: list[tuple[str, ...]] = [one.get("topology") or () for one in of_gpus or fitting]
    if not mine:
        return (), False
    common = tuple(level for level in mine[0] if all(level in other for other in mine))
    return common, all(mine)


def queue_faults(
    site: Site, queue: str | None, pool: Pool, requests: Mapping[str, float], num_nodes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why a queue can never give this gang its resources, and what it must wait for.

    One flavor of each group of resources must take the whole gang.
    """
    records = cast("Mapping[str, Json]", site.facts.get("queue_quota") or {})
    record = records.get(queue or "")
    if record is None:
        return (), ()
    name = f"the ClusterQueue {record['cluster_queue']}"
    warnings: list[str] = []
    if record["stopped"]:
        warnings.append(f"{name} is on hold ({record['stopped']}): the job waits until it is not")
    if record.get("provisioning"):
        checks = ", ".join(record["provisioning"])
        warnings.append(f"{name} makes nodes when it admits a job (admission check {checks})")
    if record["flavors"] is None:
        return (), (*warnings, f"{name} may not be read: whether its quota suffices is not known")
    labels = _labels_of(site, pool)
    by_group: dict[int, list[Json]] = {}
    for flavor in cast("Iterable[Json]", record["flavors"]):
        by_group.setdefault(flavor["group"], []).append(flavor)
    covered = {r for flavors in by_group.values() for one in flavors for r in one["resources"]}
    gang = {r: amount * num_nodes for r, amount in {**requests, "pods": 1}.items() if amount}
    missing = sorted(r for r in gang if r not in covered and r != "pods")
    if missing:
        warnings.append(
            f"{name} has no quota for {', '.join(missing)}: it admits the job only where Kueue is"
            " set up to leave these out (excludeResourcePrefixes)"
        )
    for flavors in by_group.values():
        asked = {r: a for r, a in gang.items() if any(r in one["resources"] for one in flavors)}
        if not asked:
            continue
        never, now = _group_faults(flavors, asked, labels)
        if never:
            return (f"{name} can never give it: {'; '.join(never)}",), tuple(warnings)
        if now:
            warnings.append(
                f"{name} has not enough free now, so the job may queue: {'; '.join(now)}"
            )
    return (), tuple(warnings)


def _labels_of(site: Site, pool: Pool) -> Mapping[str, str]:
    pools = cast("Mapping[str, Json]", site.facts.get("pools") or {})
    return {**pools.get(pool.name, {}).get("labels", {}), **pool.labels}


def _group_faults(
    flavors: Iterable[Json], asked: Mapping[str, float], labels: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Why no flavor can ever take it; else, why none that could has room now."""
    never: list[str] = []
    now: list[str] = []
    possible = free = False
    for flavor in flavors:
        away = next((f"{k}={v}" for k, v in flavor["labels"].items() if labels.get(k) != v), None)
        if away is not None:
            never.append(f"flavor {flavor['name']} is for nodes with {away}")
            continue
        short = [
            f"flavor {flavor['name']} has at most {most:g} {r}, {amount:g} are needed"
            for r, amount in asked.items()
            if (most := _most(flavor, r)) is not None and most < amount
        ]
        if short:
            never += short
            continue
        possible = True
        busy = [
            f"flavor {flavor['name']} uses {had['used']:g} of {had['nominal']:g} {r}"
            for r, amount in asked.items()
            if (had := flavor["resources"].get(r)) and had["nominal"] - had["used"] < amount
        ]
        free = free or not busy
        now += busy
    return ([] if possible else never), ([] if free else now)


def _most(flavor: Json, resource: str) -> float | None:
    """The most that a flavor could ever give of a resource; None without a bound."""
    quota = flavor["resources"].get(resource)
    return 0 if quota is None else quota["most"]
