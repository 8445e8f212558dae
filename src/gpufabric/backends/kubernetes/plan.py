"""The plan of a gang on a cluster: a pure function of task, offer and `Site`."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from gpufabric._frozen import FrozenDict, evolve, thaw
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._carry import CODE_NAME, code_objects
from gpufabric.backends.kubernetes._code import CODE_LIMIT, code_keys
from gpufabric.backends.kubernetes._company import company_of, gang_items, within_writes
from gpufabric.backends.kubernetes._gang import Gang
from gpufabric.backends.kubernetes._manifest import owned, owner
from gpufabric.backends.kubernetes._reading import (
    GPU_TAINTS,
    controllers,
    facts_of,
    network_of,
    queue_of,
)
from gpufabric.backends.kubernetes._script import CODE, FETCHED, RANK, start_script
from gpufabric.backends.kubernetes._serve import FOR_EVER, RELEASED
from gpufabric.backends.kubernetes._together import nearness_of
from gpufabric.catalog.index import Catalog
from gpufabric.catalog.rows import KubernetesRow, PlatformRow, Toleration
from gpufabric.net.netplan import NetworkPlan
from gpufabric.plan import EnvVar, LaunchPlan, Offer, Source, Step, plan_key
from gpufabric.task import PythonCall, Task

__all__ = ["make_plan", "object_name"]

_MASTER_PORT = "29400"
_CALL = (
    "import os, pickle, sys\n"
    "with open(next(filter(os.path.exists, sys.argv[1:])), 'rb') as file:\n"
    "    function, args, kwargs = pickle.load(file)\n"
    "function(*args, **kwargs)\n"
)
_TORCHRUN = Source(url="https://docs.pytorch.org/docs/stable/elastic/run.html")


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
    scheduler: str | None = None,
    priority: str | None = None,
    serve: bool = False,
) -> LaunchPlan:
    """Every object that `apply` will make, as data."""
    if serve:  # so that a job of the same task has another name, and neither is taken for the other
        run = f"{run}:serve"
    name = object_name(task, offer, run=run)
    network, platform = network_of(offer, site, catalog, task.envs)
    job = f"kubernetes://{site.facts['context']}/{site.facts['namespace']}/{name}"
    jobset = None if serve else controllers(site).get("jobset")
    variables = list(
        _variables(task, offer, job, name, jobset=jobset is not None, serve=serve)
    )  # fmt: skip
    gang = _gang(task, offer, site, network, variables, name, jobset=jobset, serve=serve)
    gang = evolve(
        gang,
        image=offer.resources.image or image or "",
        tolerations=tuple(_tolerations(network.way, facts_of(site, offer.pool), offer, platform)),
        nearness=nearness_of(offer, site, catalog, network, firm=not (task.max_restarts or serve)),
        undisturbed=facts_of(site, offer.pool).get("disrupts") == "karpenter",
        grace_s=max(1, math.ceil(grace_s)),
        pod_patch=cast("Mapping[str, object]", thaw(patch)),
        **company_of(offer, site, network, scheduler=scheduler, priority=priority, serve=serve),
    )
    gang, words = within_writes(gang)
    warnings = [*([FOR_EVER] if serve else ()), *network.warnings, *words]
    if gang.restricted:
        warnings.append("Pod Security 'restricted': the image runs as user 1000")
    if patch:
        warnings.append(f"pod_patch changes {', '.join(sorted(patch))} of the pods")
    given = {v.name for v in network.env}
    return LaunchPlan(
        backend=offer.backend,
        task=task,
        offer=offer,
        steps=tuple(_steps(task, gang, _helper_tolerations(site))),
        env=(*network.env, *(v for v in variables if v.name not in given)),
        network=(*network.items, *gang_items(gang, site)),
        warnings=tuple(warnings),
        lower_tier=offer.tier < offer.resources.network_tier,
        run=run,
    )


def _gang(  # noqa: PLR0913, PLR0917  # one caller
    task: Task,
    offer: Offer,
    site: Site,
    network: NetworkPlan,
    variables: Sequence[EnvVar],
    name: str,
    *,
    jobset: str | None,
    serve: bool,
) -> Gang:
    """The gang by task, pool and network; the backend's own wishes are put over it."""
    pool = next(one for one in site.pools if one.name == offer.pool)
    own = [(v.name, v.value) for v in network.env if v.name not in task.envs]
    return Gang(
        name=name,
        namespace=str(site.facts["namespace"]),
        num_nodes=task.num_nodes,
        script=_script(task, network, variables, name, jobset=bool(jobset), serve=serve),
        command=(task.setup or "", *_command(task)),
        env=(*own, *task.envs.items()),
        secrets=tuple(task.secrets),
        code=tuple(code_keys(task)),
        resources=_amounts(offer, network),
        # the nodes' own values win: the scheduler compares them letter by letter
        selector={**(network.way.node_selector if network.way else {}), **pool.labels},
        way=network.way,
        volumes=task.volumes,
        ports=task.ports,
        timeout_s=None if task.timeout_s is None else math.ceil(task.timeout_s),
        max_restarts=task.max_restarts,
        restricted=site.facts.get("pod_security") == "restricted",
        jobset=jobset,
        serve=serve,
        queue=queue_of(offer.resources, site),
    )


def _script(  # noqa: PLR0913  # one caller
    task: Task,
    network: NetworkPlan,
    variables: Sequence[EnvVar],
    name: str,
    *,
    jobset: bool,
    serve: bool,
) -> str:
    users = {*_EARLY, *task.envs, *task.secrets}
    return start_script(
        host=f"{name}-n-0" if jobset else f"{name}-0" if serve else name,
        subdomain=name,
        num_nodes=task.num_nodes,
        variables=[(v.name, v.value) for v in variables if v.name not in users],
        source=network.script,
        envs=task.envs,
        code=any(code_keys(task)),
        secrets=tuple(task.secrets),
        serves=serve,
    )


def _steps(task: Task, gang: Gang, bare: Sequence[dict[str, str]]) -> Iterator[Step]:
    if task.workdir is not None:
        yield Step(verb="pack", kind="workdir", name=task.workdir)
    released = {"spec": RELEASED if gang.serve else {"suspend": False}}
    yield Step(verb="create", kind=gang.kind, name=gang.name, body=FrozenDict(owner(gang)))
    for one in owned(gang):
        made = str(one["metadata"]["name"])
        yield Step(verb="create", kind=str(one["kind"]), name=made, body=FrozenDict(one))
    for verb, one in code_objects(gang, tolerations=bare):
        size = f"{'above' if verb == 'serve' else 'up to'} {CODE_LIMIT // 1000} kB"
        name = f"{CODE_NAME}, for code {size} packed"
        yield Step(verb=verb, kind=str(one["kind"]), name=name, body=FrozenDict(one))
    if gang.queue is None:  # else Kueue lets it go when its turn has come
        yield Step(verb="patch", kind=gang.kind, name=gang.name, body=FrozenDict(released))


def _helper_tolerations(site: Site) -> list[dict[str, str]]:
    """Of a pod without a GPU: those of GPU nodes, where there are no others that would take it."""
    taints = [facts_of(site, pool.name).get("taints") or () for pool in site.pools]
    if not taints or any(not kept for kept in taints):
        return []
    keys = {str(key) for kept in taints for key, *_ in kept} & set(GPU_TAINTS)
    return [{"key": key, "operator": "Exists"} for key in sorted(keys)]


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
        if key in GPU_TAINTS and key not in keys:
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
        return ("python3", "-c", _CALL, *(f"{at}/function.pickle" for at in (CODE, FETCHED)))
    return task.run


_EARLY = ("GPUFABRIC_NODE_RANK", "GPUFABRIC_NUM_NODES", "GPUFABRIC_ATTEMPT", "GPUFABRIC_NODE_IPS")


def _attempt(*, serve: bool) -> tuple[str, str]:
    if serve:
        return "0", "a LeaderWorkerSet does not count how often the gang starts again"
    return "the JobSet's restarts", "how often the gang started again"


def _variables(  # noqa: PLR0913  # one caller
    task: Task, offer: Offer, job: str, name: str, *, jobset: bool, serve: bool
) -> Iterator[EnvVar]:
    host = f"{name}-n-0-0" if jobset else f"{name}-0"
    master = f"{host}.{name}" if task.num_nodes > 1 else "127.0.0.1"
    nodes, index = str(task.num_nodes), "worker" if serve else "completion"
    rows: list[tuple[str, str, str, Source | None]] = [
        ("GPUFABRIC_JOB", job, "the name of the job", None),
        ("GPUFABRIC_ATTEMPT", *_attempt(serve=serve), None),
        ("GPUFABRIC_NODE_RANK", f"the pod's {index} index", "the index of the node", None),
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
