"""Offers and plans of a cluster: pure functions over a `Site`."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
from collections.abc import Iterator, Mapping
from typing import cast

from gpufabric._frozen import FrozenDict, evolve, thaw
from gpufabric.backends._pools import cloud_of, row_of, site_offers
from gpufabric.backends.base import Pool, Site
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._manifest import Gang
from gpufabric.backends.kubernetes._script import CODE, RANK, start_script
from gpufabric.backends.kubernetes.discover import quantity
from gpufabric.catalog.index import Catalog
from gpufabric.catalog.rows import KubernetesRow, PlatformRow, Toleration
from gpufabric.errors import SpecError
from gpufabric.net.interconnect import FabricKind, Interconnect
from gpufabric.net.netplan import NetworkPlan, network_plan
from gpufabric.net.nics import NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import (
    EnvVar,
    LaunchPlan,
    Offer,
    Rejection,
    Resolution,
    Source,
    Step,
    plan_key,
)
from gpufabric.resources import Resources
from gpufabric.task import PythonCall, Task

__all__ = ["make_offers", "make_plan", "object_name"]

_MOST_TEXT = 100_000  # Linux takes 128 KiB in one argument
_GPU_TAINTS = ("nvidia.com/gpu", "amd.com/gpu", "sku", "aws.amazon.com/neuron", "gpu")
_MASTER_PORT = "29400"
_CALL = (
    "import pickle, sys\n"
    "with open(sys.argv[1], 'rb') as file:\n"
    "    function, args, kwargs = pickle.load(file)\n"
    "function(*args, **kwargs)\n"
)
_TORCHRUN = Source(url="https://docs.pytorch.org/docs/stable/elastic/run.html")


def _facts(site: Site, pool: str | None) -> Json:
    """What `discover` noted of a pool that `Pool` has no field for."""
    pools = cast("Mapping[str, Json]", site.facts.get("pools") or {})
    return pools.get(pool or "", {})


# ---- offers


def make_offers(
    task: Task, site: Site, catalog: Catalog, *, image: str | None, patch: Mapping[str, object]
) -> Resolution:
    """All ways to run a task on this cluster, and why not the others."""
    offers: list[Offer] = []
    rejections: list[Rejection] = []
    if not site.pools:
        return Resolution(
            rejections=tuple(
                Rejection(backend=site.backend, reason=text)
                for text in site.unseen or ("the cluster has no nodes",)
            )
        )
    for option in task.resources.alternatives():
        faults = list(_faults(task, option, site, image))
        if faults:
            rejections += [Rejection(backend=site.backend, reason=text) for text in faults]
            continue
        one = evolve(task, resources=option)
        pools, refused = _open_pools(option, site, patch)
        rejections += refused
        if option.accelerator is None and not _is_gpu_type(option, pools):
            made = _plain_offers(one, option, site, pools)
        else:
            found = site_offers(one, evolve(site, pools=tuple(pools)), catalog)
            made = _with_ways(found, site, catalog, one)
        offers += made.offers
        rejections += made.rejections
    return Resolution(offers=tuple(offers), rejections=tuple(dict.fromkeys(rejections)))


def _is_gpu_type(option: Resources, pools: list[Pool]) -> bool:
    name = option.instance_type
    return name is not None and any(
        pool.accelerator is not None and (pool.instance_type or "").lower() == name.lower()
        for pool in pools
    )


def _faults(task: Task, option: Resources, site: Site, image: str | None) -> Iterator[str]:
    if option.image is None and image is None:
        yield "image: pods run an image; name one in Resources(image=...) or Kubernetes(image=...)"
    if task.max_restarts and "jobset" not in _controllers(site):
        yield "max_restarts: restarting a whole gang needs JobSet, which is not installed here"
    texts = [task.run] if isinstance(task.run, str) else []
    texts += list(task.run) if isinstance(task.run, tuple) else []
    if any(len(text.encode()) > _MOST_TEXT for text in (*texts, task.setup or "")):
        yield f"run, setup: texts above {_MOST_TEXT} bytes do not fit into a pod; use files"
    if option.accelerator is None and option.network_tier > NetworkTier.STANDARD:
        yield (
            f"network_tier {option.network_tier.value} is about the GPUs' network, and no"
            " accelerator is asked"
        )
    if option.capacity is not None and option.capacity not in _queues(site):
        known = ", ".join(_queues(site)) or "none"
        yield f"capacity: no LocalQueue {option.capacity!r} in the namespace (there are: {known})"
    elif len(_queues(site)) > 1 and _queue(option, site) is None:
        yield f"capacity: name one of the LocalQueues {', '.join(_queues(site))}"
    yield from _quota_faults(task, option, site)


def _quota_faults(task: Task, option: Resources, site: Site) -> Iterator[str]:
    asked: dict[str, float] = {"pods": task.num_nodes, "count/jobs.batch": 1}
    if option.cpus:
        asked["requests.cpu"] = asked["cpu"] = option.cpus.amount * task.num_nodes
    if option.accelerator:
        asked["requests.nvidia.com/gpu"] = option.accelerator.count * task.num_nodes
    for one in cast("tuple[Json, ...]", site.facts.get("quotas") or ()):
        for name, hard in one["hard"].items():
            left = quantity(hard) - quantity(one["used"].get(name, "0"))
            if asked.get(name, 0) > left:
                yield (
                    f"the ResourceQuota {one['name']} leaves {left:g} {name}, "
                    f"{asked[name]:g} are needed"
                )


def _controllers(site: Site) -> Mapping[str, str]:
    return cast("Mapping[str, str]", site.facts.get("controllers") or {})


def _queues(site: Site) -> tuple[str, ...]:
    return tuple(cast("tuple[str, ...]", site.facts.get("queues") or ()))


def _queue(option: Resources, site: Site) -> str | None:
    queues = _queues(site)
    if option.capacity in queues:
        return option.capacity
    if len(queues) == 1:
        return queues[0]
    return "default" if "default" in queues else None


def _open_pools(
    option: Resources, site: Site, patch: Mapping[str, object]
) -> tuple[list[Pool], list[Rejection]]:
    """Pools that pods may go to, with `nodes_free` as many as have room for one of them."""
    pools: list[Pool] = []
    refused: list[Rejection] = []

    def refuse(pool: Pool, reason: str) -> None:
        refused.append(
            Rejection(
                backend=site.backend, reason=reason, place=pool.place,
                instance_type=pool.instance_type or pool.name,
            )
        )  # fmt: skip

    for pool in site.pools:
        fact = _facts(site, pool.name)
        taint = _keeps_out(fact, gpu=bool(fact.get("gpu_resource")) and _wants_gpu(option))
        if taint and "tolerations" not in patch:
            refuse(pool, f"its nodes have the taint {taint}; tolerate it with pod_patch")
            continue
        if option.use_spot != pool.spot:
            refuse(pool, "it is spot: ask for use_spot" if pool.spot else "it is not spot")
            continue
        if fact.get("gpu_resource") and pool.accelerator is None and _wants_gpu(option):
            refuse(pool, "no label of its nodes tells the accelerator's model")
            continue
        fits = pool.nodes_total if _queue(option, site) else _room(option, fact, pool)
        pools.append(evolve(pool, nodes_free=fits))
    return pools, refused


def _wants_gpu(option: Resources) -> bool:
    return option.accelerator is not None or option.instance_type is not None


def _keeps_out(fact: Json, *, gpu: bool) -> str:
    for key, value, effect in fact.get("taints") or ():
        if effect == "PreferNoSchedule" or (gpu and key in _GPU_TAINTS):
            continue
        return f"{key}={value}:{effect}" if value else f"{key}:{effect}"
    return ""


def _room(option: Resources, fact: Json, pool: Pool) -> int | None:
    """How many nodes have room for one pod now."""
    free = cast("tuple[Json, ...] | None", fact.get("free"))
    if free is None:
        return pool.nodes_total
    gpus = option.accelerator.count if option.accelerator else 0
    if not gpus and _wants_gpu(option) and pool.accelerator:
        gpus = pool.accelerator.count
    cpus = option.cpus.amount if option.cpus else 0
    memory = option.memory_gib.amount if option.memory_gib else 0
    fitting = [
        one
        for one in free
        if one["gpus"] >= gpus and one["cpus"] >= cpus and one["memory_gib"] >= memory
    ]
    return len(fitting)


def _plain_offers(task: Task, option: Resources, site: Site, pools: list[Pool]) -> Resolution:
    """Offers for a task that asks for no accelerator: nodes without one first."""
    offers: list[Offer] = []
    refused: list[Rejection] = []
    for pool in sorted(pools, key=lambda one: one.accelerator is not None):
        name = pool.instance_type or pool.name
        reason = ""
        if option.instance_type not in {None, pool.instance_type}:
            reason = f"it is no {option.instance_type}"
        elif option.places and not any(place.admits(pool.place) for place in option.places):
            allowed = ", ".join(map(str, option.places))
            reason = f"only these places are allowed: {allowed}"
        elif option.max_usd_hour is not None:
            reason = "its price is not known, so that max_usd_hour is not kept"
        elif option.min_gbps_per_gpu is not None:
            reason = "min_gbps_per_gpu: no accelerator is asked"
        elif pool.nodes_free is not None and pool.nodes_free < task.num_nodes:
            reason = f"{task.num_nodes} nodes were asked for, {pool.nodes_free} have room"
        if reason:
            refused.append(
                Rejection(backend=site.backend, reason=reason, place=pool.place, instance_type=name)
            )
            continue
        kind = FabricKind.ETHERNET if task.num_nodes > 1 else FabricKind.LOOPBACK
        offers.append(
            Offer(
                backend=site.backend,
                place=pool.place,
                instance_type=name,
                resources=option,
                num_nodes=task.num_nodes,
                gpus_per_node=0,
                interconnect=Interconnect(kind=kind, place=pool.place),
                nics=NicLayout(),
                tier=NetworkTier.STANDARD,
                platform=pool.platform,
                pool=pool.name,
                spot=pool.spot,
            )
        )
    return Resolution(offers=tuple(offers), rejections=tuple(refused))


def _with_ways(found: Resolution, site: Site, catalog: Catalog, task: Task) -> Resolution:
    """The resolver's offers as this backend can keep them."""
    offers: list[Offer] = []
    refused = [evolve(one, backend=site.backend) for one in found.rejections]
    for offer in found.offers:
        why = _cannot(offer, site, catalog)
        if why:
            refused.append(
                Rejection(
                    backend=site.backend, reason=why, place=offer.place,
                    instance_type=offer.instance_type,
                )
            )  # fmt: skip
            continue
        lacks = str(_facts(site, offer.pool).get("no_fabric") or "")
        if lacks and task.num_nodes > 1:
            offer = evolve(offer, warnings=(*offer.warnings, f"no fabric for pods: {lacks}"))  # noqa: PLW2901  # the same offer, with what must be told
        offers.append(offer)
    return Resolution(offers=tuple(offers), rejections=tuple(refused))


def _cannot(offer: Offer, site: Site, catalog: Catalog) -> str:
    plan, _ = _network(offer, site, catalog, {})
    way, level = plan.way, site.facts.get("pod_security")
    if way is None:
        return ""
    if way.compute_domain:
        return "its NVLink between nodes needs a ComputeDomain, which is not made yet"
    host = any(mount.source == "host_path" for mount in way.mounts)
    needs = [
        word
        for word, wanted in (
            ("privileged", way.privileged),
            (f"capabilities {', '.join(way.capabilities)}", way.capabilities),
            ("hostPath mounts", host),
            ("hostNetwork", way.host_network),
            ("sidecars with capabilities", any(s.capabilities for s in way.sidecars)),
        )
        if wanted
    ]
    if needs and level in {"baseline", "restricted"}:
        return (
            f"its network needs {', '.join(needs)}, and the namespace enforces Pod Security"
            f" {level!r}"
        )
    return ""


def _network(
    offer: Offer, site: Site, catalog: Catalog, envs: Mapping[str, str]
) -> tuple[NetworkPlan, PlatformRow | None]:
    pool = next((one for one in site.pools if one.name == offer.pool), None)
    if pool is None:
        raise SpecError(f"the site has no pool {offer.pool!r}: discover again")
    if not offer.gpus_per_node:
        return NetworkPlan(), None
    cloud = cloud_of(pool, catalog)
    row = row_of(pool, cloud, catalog)
    name = _facts(site, pool.name).get("way")
    ways = [one for one in cloud.kubernetes_rows(row.name, pool.platform) if one.name == name]
    made = network_plan(offer, cloud, catalog, envs=envs, row=row, way=ways[0] if ways else None)
    return made, cloud.platforms.get(pool.platform)


# ---- the plan


def object_name(task: Task, offer: Offer, *, run: str = "") -> str:
    """The name of every object of a job: short enough for JobSet's pods of 999 nodes."""
    key = plan_key(task, offer, run=run)
    return f"{task.safe_name[:36].rstrip('-')}-{key}"


def make_plan(  # noqa: PLR0913  # what the backend knows beside the three values, by keyword
    task: Task,
    offer: Offer,
    site: Site,
    catalog: Catalog,
    *,
    run: str,
    image: str | None,
    patch: Mapping[str, object],
    grace_s: float,
) -> LaunchPlan:
    """Every object that `apply` will make, as data."""
    name = object_name(task, offer, run=run)
    network, platform = _network(offer, site, catalog, task.envs)
    namespace = str(site.facts["namespace"])
    job = f"kubernetes://{site.facts['context']}/{namespace}/{name}"
    jobset = _controllers(site).get("jobset")
    variables = list(_variables(task, offer, job, name, jobset=bool(jobset)))
    fact = _facts(site, offer.pool)
    pool = next(one for one in site.pools if one.name == offer.pool)
    restricted = site.facts.get("pod_security") == "restricted"
    gang = Gang(
        name=name,
        namespace=namespace,
        num_nodes=task.num_nodes,
        image=offer.resources.image or image or "",
        script=start_script(
            host=f"{name}-n-0" if jobset else name,
            subdomain=name,
            num_nodes=task.num_nodes,
            variables=[(v.name, v.value) for v in variables if v.name not in _EARLY
                       and v.name not in task.envs and v.name not in task.secrets],
            source=network.script,
            envs=task.envs,
        ),
        command=(task.setup or "", *_command(task)),
        env=tuple(
            (v.name, v.value) for v in network.env if v.name not in task.envs
        ) + tuple(task.envs.items()),
        secrets=tuple(task.secrets),
        code=tuple(_code(task)),
        resources=_amounts(offer, network),
        selector={**pool.labels, **(network.way.node_selector if network.way else {})},
        tolerations=tuple(_tolerations(network.way, fact, offer, platform)),
        apart=_apart(offer, pool),
        near=cast("str | None", fact.get("near")) if _uses_fabric(network) else None,
        way=network.way,
        volumes=task.volumes,
        ports=task.ports,
        timeout_s=None if task.timeout_s is None else math.ceil(task.timeout_s),
        max_restarts=task.max_restarts,
        grace_s=max(1, math.ceil(grace_s)),
        restricted=restricted,
        jobset=jobset,
        queue=_queue(offer.resources, site),
        pod_patch=cast("Mapping[str, object]", thaw(patch)),
    )  # fmt: skip
    warnings = list(network.warnings)
    if restricted:
        warnings.append("Pod Security 'restricted': the image runs as user 1000")
    if patch:
        warnings.append(f"pod_patch changes {', '.join(sorted(patch))} of the pods")
    given = {v.name for v in network.env}
    return LaunchPlan(
        backend=offer.backend,
        task=task,
        offer=offer,
        steps=tuple(_steps(task, gang)),
        env=(*network.env, *(v for v in variables if v.name not in given)),
        network=network.items,
        warnings=tuple(warnings),
        lower_tier=offer.tier < offer.resources.network_tier,
        run=run,
    )


def _steps(task: Task, gang: Gang) -> Iterator[Step]:
    kind = "JobSet" if gang.jobset else "Job"
    if task.workdir is not None:
        yield Step(verb="pack", kind="workdir", name=task.workdir)
    owner = gang.owner()
    owned = list(gang.owned())
    released = {"spec": {"suspend": False}}
    yield Step(verb="create", kind=kind, name=gang.name, body=FrozenDict(owner))
    for one in owned:
        made = str(one["metadata"]["name"])
        yield Step(verb="create", kind=str(one["kind"]), name=made, body=FrozenDict(one))
    if gang.queue is None:  # else Kueue lets it go when its turn has come
        yield Step(verb="patch", kind=kind, name=gang.name, body=FrozenDict(released))


def _uses_fabric(network: NetworkPlan) -> bool:
    return network.way is not None and network.way.fabric


def _apart(offer: Offer, pool: Pool) -> bool:
    """Whether two pods of the gang could land on one node without being told not to."""
    if offer.num_nodes == 1:
        return False
    whole = pool.accelerator is not None and offer.gpus_per_node * 2 > pool.accelerator.count
    return not whole


def _amounts(offer: Offer, network: NetworkPlan) -> dict[str, str]:
    wish, found = offer.resources, dict[str, str]()
    for name, amount in (
        ("cpu", wish.cpus and f"{math.ceil(wish.cpus.amount * 1000)}m"),
        ("memory", wish.memory_gib and f"{math.ceil(wish.memory_gib.amount * 1024)}Mi"),
        ("ephemeral-storage", wish.disk_gib and f"{math.ceil(wish.disk_gib.amount * 1024)}Mi"),
    ):
        if amount:
            found[name] = amount
    return {**found, **network.requests}


def _tolerations(
    way: KubernetesRow | None, fact: Json, offer: Offer, platform: PlatformRow | None
) -> Iterator[dict[str, str]]:
    if not offer.gpus_per_node:
        return
    said = list(way.tolerations) if way else []
    if platform and platform.gpu_taint and platform.gpu_taint not in {one.key for one in said}:
        said.append(Toleration(key=platform.gpu_taint))
    keys = {one.key for one in said}
    for key, _, effect in fact.get("taints") or ():
        if key in _GPU_TAINTS and key not in keys:
            said.append(Toleration(key=key, effect=effect))
    for one in said:
        made = {"key": one.key, "operator": str(one.operator)}
        if one.value is not None:
            made["value"] = one.value
        if one.effect is not None:
            made["effect"] = one.effect
        yield made


def _command(task: Task) -> tuple[str, ...]:
    if isinstance(task.run, str):
        return ("/bin/sh", "-c", task.run)
    if isinstance(task.run, PythonCall):
        return ("python3", "-c", _CALL, f"{CODE}/function.pickle")
    return task.run


def _code(task: Task) -> Iterator[str]:
    if task.workdir is not None:
        yield "workdir.tar.gz"
    if task.files:
        yield "files.tar.gz"
    if isinstance(task.run, PythonCall):
        yield "function.pickle"


_EARLY = ("GPUFABRIC_NODE_RANK", "GPUFABRIC_NUM_NODES", "GPUFABRIC_ATTEMPT", "GPUFABRIC_NODE_IPS")


def _variables(task: Task, offer: Offer, job: str, name: str, *, jobset: bool) -> Iterator[EnvVar]:
    host = f"{name}-n-0-0" if jobset else f"{name}-0"
    master = f"{host}.{name}" if task.num_nodes > 1 else "127.0.0.1"
    nodes = str(task.num_nodes)
    rows: list[tuple[str, str, str, Source | None]] = [
        ("GPUFABRIC_JOB", job, "the name of the job", None),
        ("GPUFABRIC_ATTEMPT", "the JobSet's restarts", "how often the gang started again", None),
        ("GPUFABRIC_NODE_RANK", "the pod's completion index", "the index of the node", None),
        ("GPUFABRIC_NUM_NODES", nodes, "the size of the gang", None),
        ("GPUFABRIC_GPUS_PER_NODE", str(offer.gpus_per_node), "GPUs that each node has", None),
        ("GPUFABRIC_NODE_IPS", "the pods' addresses", "by rank, one a line", None),
    ]
    for prefix, source in (("", None), ("PET_", _TORCHRUN)):
        twin = "for a bare torchrun" if prefix else "for torchrun's flags"
        rows += [
            (f"{prefix}MASTER_ADDR", master, f"node 0, {twin}", source),
            (f"{prefix}MASTER_PORT", _MASTER_PORT, f"of node 0's own pod, {twin}", source),
            (f"{prefix}NODE_RANK", RANK, twin, source),
            (f"{prefix}NNODES", nodes, twin, source),
        ]
    if offer.gpus_per_node:
        each = str(offer.gpus_per_node)
        rows.append(("PET_NPROC_PER_NODE", each, "a process for each GPU", _TORCHRUN))
    for variable, value, why, source in rows:
        own = task.envs.get(variable)
        yield EnvVar(
            name=variable,
            value=value if own is None else own,
            why=why,
            source=source,
            overridden=None if own is None else value,
        )
