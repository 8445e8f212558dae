"""What the local backend offers and plans: pure functions over a `Site`."""

from collections.abc import Iterator, Mapping
from typing import cast

from gpufabric._frozen import FrozenDict
from gpufabric.backends.base import Pool, Site
from gpufabric.errors import BackendError, Remedy
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.nics import NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import (
    EnvVar,
    LaunchPlan,
    NetworkItem,
    Offer,
    Rejection,
    Resolution,
    Source,
    Step,
    plan_key,
)
from gpufabric.resources import Accelerator, Resources
from gpufabric.task import PythonCall, Task

__all__ = ["MAX_NODES", "make_offers", "make_plan"]

MAX_NODES = 256  # one process, two pipes and a log each: what one supervisor serves well
INSTANCE_TYPE = "localhost"
SHELL = "/bin/sh"
_ARGUMENT_BYTES = 100_000  # Linux takes 131,071 bytes as one argument
_CALL = (
    "import pickle, sys\n"
    "with open(sys.argv[1], 'rb') as file:\n"
    "    function, args, kwargs = pickle.load(file)\n"
    "function(*args, **kwargs)\n"
)
_TORCHRUN = Source(url="https://docs.pytorch.org/docs/stable/elastic/run.html")
_CUDA = Source(
    url="https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
)


def make_offers(task: Task, site: Site, name: str) -> Resolution:
    """Every alternative that this machine can keep, and why it cannot keep the others."""
    offers: list[Offer] = []
    rejections: list[Rejection] = []
    place = Place(backend=name)
    if not site.pools:
        reasons = site.unseen or ("this machine cannot run gangs",)
        return Resolution(
            rejections=tuple(Rejection(backend=name, reason=text, place=place) for text in reasons)
        )
    for resources in task.resources.alternatives():
        faults = list(_faults(task, resources, site, site.pools[0]))
        if faults:
            rejections += [Rejection(backend=name, reason=text, place=place) for text in faults]
        else:
            offers.append(_offer(task, resources, site, site.pools[0]))
    return Resolution(offers=tuple(offers), rejections=tuple(rejections))


def _faults(task: Task, resources: Resources, site: Site, pool: Pool) -> Iterator[str]:
    if resources.places and not any(place.admits(pool.place) for place in resources.places):
        allowed = ", ".join(str(place) for place in resources.places)
        yield f"not among the places allowed ({allowed})"
    if task.num_nodes > MAX_NODES:
        yield f"{task.num_nodes} nodes: one machine runs {MAX_NODES} at most"
    if task.volumes:
        yield "volumes: a local node has no mounts of its own; use the paths of this machine"
    for field, value, found in (
        ("image", resources.image, "local nodes run in no container"),
        ("capacity", resources.capacity, "there are no reservations on this machine"),
        ("use_spot", resources.use_spot, "there is no spot capacity on this machine"),
        (
            "instance_type",
            resources.instance_type not in {None, INSTANCE_TYPE} and resources.instance_type,
            f"this machine is {INSTANCE_TYPE}",
        ),
        (
            "min_gbps_per_gpu",
            resources.min_gbps_per_gpu,
            "no speed is published for the links inside this machine",
        ),
    ):
        if value:
            yield f"{field}: {found}"
    yield from _amount_faults(task, resources, site, pool)
    yield from _gpu_faults(task, resources, site)


def _amount_faults(task: Task, resources: Resources, site: Site, pool: Pool) -> Iterator[str]:
    disk = cast("float | None", site.facts.get("disk_free_gib"))
    for what, wish, has in (
        ("cpus", resources.cpus, pool.cpus),
        ("memory_gib", resources.memory_gib, pool.memory_gib),
        ("disk_gib", resources.disk_gib, disk),
    ):
        if wish is None:
            continue
        need = wish.amount * task.num_nodes
        if has is None or need > has:
            here = "unknown" if has is None else f"{has:.4g}"
            yield f"{what}: {task.num_nodes} x {wish.amount:g} asked, this machine has {here}"


def _gpu_faults(task: Task, resources: Resources, site: Site) -> Iterator[str]:
    asked, tier = resources.accelerator, resources.network_tier
    if asked is None:
        if tier > NetworkTier.STANDARD:
            yield (
                f"network_tier {tier.value} is about the GPUs' network, and no accelerator is asked"
            )
        return
    gpus = _gpus(site)
    fit = [gpu for gpu in gpus if _fits(asked, gpu)]
    need = asked.count * task.num_nodes
    here = _counted(gpus) or "no NVIDIA GPU"
    if len(fit) < need:
        yield f"{task.num_nodes} x {asked} asked, this machine has {here}"
        return
    free = [gpu for gpu in fit if gpu["free"]]
    if len(free) < need:
        yield f"{task.num_nodes} x {asked} asked, {len(free)} free of {here}: other local jobs run"
    reached, why = _tier(task.num_nodes, asked.count, site)
    if tier > reached:
        yield f"network_tier {tier.value}: {why}"


def _tier(num_nodes: int, gpus_per_node: int, site: Site) -> tuple[NetworkTier, str]:
    if num_nodes > 1:
        return NetworkTier.STANDARD, (
            "nodes on one machine have no NICs between them; ask for one node with all GPUs"
        )
    if gpus_per_node == 1 or site.facts.get("nvlink"):
        return NetworkTier.BEST, "nothing leaves the node"
    return NetworkTier.STANDARD, "no NVLink was found between all GPUs of this machine"


def _gpus(site: Site) -> list[Mapping[str, object]]:
    return list(cast("tuple[Mapping[str, object], ...]", site.facts.get("gpus", ())))


def _counted(gpus: list[Mapping[str, object]]) -> str:
    models = [str(gpu["name"]) for gpu in gpus]
    return ", ".join(f"{models.count(name)} x {name}" for name in dict.fromkeys(models))


def _words(text: str) -> set[str]:
    import re

    return set(re.split(r"[^a-z0-9]+", text.lower())) - {""}


def _fits(asked: Accelerator, gpu: Mapping[str, object]) -> bool:
    """Whether a GPU is what was asked for.

    A model fits if all its words stand in the name: `H100` in `NVIDIA H100 80GB HBM3`. Memory is
    compared as vendors name it: a card of "24 GB" shows 22.5 GiB.
    """
    if asked.vendor not in {None, "nvidia"}:
        return False
    if asked.model is not None:
        return _words(asked.model) <= _words(str(gpu["name"]))
    memory = cast("float | None", gpu["memory_mib"])
    wish = asked.memory_gb
    if memory is None or wish is None:
        return False
    if asked.memory_at_least:
        return memory * 2**20 >= wish * 1e9
    return abs(memory / 1024 - wish) <= 0.08 * wish


def _offer(task: Task, resources: Resources, site: Site, pool: Pool) -> Offer:
    asked = resources.accelerator
    count = asked.count if asked else 0
    if asked is None:
        reached, kind = NetworkTier.STANDARD, FabricKind.LOOPBACK
    else:
        reached, _ = _tier(task.num_nodes, count, site)
        inside = task.num_nodes == 1 and count > 1 and bool(site.facts.get("nvlink"))
        kind = FabricKind.NVLINK if inside else FabricKind.LOOPBACK
    limits = ["the nodes are processes of this machine: they share its network"]
    if resources.cpus or resources.memory_gib or resources.disk_gib:
        limits.append("cpus, memory and disk are there, but not reserved for a node")
    warnings: list[str] = []
    if task.ports and task.num_nodes > 1:
        ports = ", ".join(map(str, task.ports))
        warnings.append(f"port {ports}: all nodes have one address, so one of them can serve it")
    return Offer(
        backend=site.backend,
        place=pool.place,
        instance_type=INSTANCE_TYPE,
        resources=resources,
        num_nodes=task.num_nodes,
        gpus_per_node=count,
        accelerator=asked,
        interconnect=Interconnect(kind=kind, place=pool.place, max_nodes=MAX_NODES),
        nics=NicLayout(),
        tier=reached,
        usd_hour=0.0,
        platform="local",
        pool=pool.name,
        limits=tuple(limits),
        warnings=tuple(warnings),
    )


# --- the plan -----------------------------------------------------------------------------------


def make_plan(  # noqa: PLR0913  # what the backend knows beside the three values, by keyword
    task: Task, offer: Offer, site: Site, *, run: str, root: str, grace_s: float, trust_env: bool
) -> LaunchPlan:
    """Everything that `apply` will do, as data."""
    name = f"{task.safe_name}-{plan_key(task, offer, run=run)}"
    job = f"{offer.backend}://{root}/{name}"
    gpus = _divide(offer, site)
    env = tuple(_variables(task, offer, job, gpus, site=site, trust_env=trust_env))
    own = {var.name: var.value for var in env if var.name not in task.envs}
    by_rank: dict[str, object] = {}
    if gpus and own.pop("CUDA_VISIBLE_DEVICES", None) is not None:
        by_rank["CUDA_VISIBLE_DEVICES"] = tuple(",".join(map(str, gpu)) for gpu in gpus)
    body: dict[str, object] = {
        "job": job,
        "num_nodes": task.num_nodes,
        "argv": _argv(task, site, f"{root}/{name}"),
        "setup": _shell(task.setup, f"{root}/{name}/setup.sh") if task.setup else None,
        "files": dict(task.files),
        "env": own,
        "env_by_rank": by_rank,
        "envs": dict(task.envs),
        "secrets": {secret: {"secret": secret} for secret in task.secrets},
        "gpus": gpus,
        "ports": task.ports,
        "timeout_s": task.timeout_s,
        "max_restarts": task.max_restarts,
        "stop_grace_s": grace_s,
    }
    steps = [Step(verb="create", kind="folder", name=f"{root}/{name}")]
    if task.workdir is not None:
        steps.append(Step(verb="pack", kind="workdir", name=_absolute(task.workdir, site)))
    if isinstance(task.run, PythonCall):
        steps.append(Step(verb="write", kind="function", name=task.run.name))
    steps += _scripts(task, f"{root}/{name}")
    steps.append(Step(verb="start", kind="gang", name=name, body=FrozenDict(body)))
    return LaunchPlan(
        backend=offer.backend,
        task=task,
        offer=offer,
        steps=tuple(steps),
        env=env,
        network=tuple(_network(offer, gpus)),
        lower_tier=offer.tier < offer.resources.network_tier,
        run=run,
    )


def _absolute(workdir: str, site: Site) -> str:
    import posixpath

    if workdir == "~" or workdir.startswith("~/"):
        workdir = str(site.facts["home"]) + workdir[1:]
    return posixpath.normpath(posixpath.join(str(site.facts["cwd"]), workdir))


def _shell(text: str, file: str) -> tuple[str, ...]:
    """How a shell runs `text`: as an argument, or from a file where it is too long for one."""
    return (SHELL, file) if _is_long(text) else (SHELL, "-c", text)


def _is_long(text: object) -> bool:
    return isinstance(text, str) and len(text.encode("utf-8", "surrogateescape")) > _ARGUMENT_BYTES


def _scripts(task: Task, folder: str) -> list[Step]:
    texts = {"setup.sh": task.setup, "run.sh": task.run}
    return [
        Step(verb="write", kind="script", name=f"{folder}/{name}", body=FrozenDict({"text": text}))
        for name, text in texts.items()
        if _is_long(text)
    ]


def _argv(task: Task, site: Site, folder: str) -> tuple[str, ...]:
    if isinstance(task.run, str):
        return _shell(task.run, f"{folder}/run.sh")
    if isinstance(task.run, PythonCall):
        return (str(site.facts["python"]), "-c", _CALL, f"{folder}/function.pickle")
    return task.run


def _divide(offer: Offer, site: Site) -> tuple[tuple[int, ...], ...]:
    asked = offer.accelerator
    if asked is None:
        return ()
    free = [int(str(gpu["index"])) for gpu in _gpus(site) if gpu["free"] and _fits(asked, gpu)]
    each = offer.gpus_per_node
    if len(free) < each * offer.num_nodes:
        raise BackendError(
            f"the site shows {len(free)} free GPUs, the offer needs {each * offer.num_nodes}",
            backend=offer.backend, operation="plan", remedy=Remedy.RETRY,
        )  # fmt: skip
    return tuple(tuple(free[i * each : (i + 1) * each]) for i in range(offer.num_nodes))


def _network(offer: Offer, gpus: tuple[tuple[int, ...], ...]) -> Iterator[NetworkItem]:
    yield NetworkItem(
        kind="network",
        name=str(offer.interconnect.kind),
        value="127.0.0.1",
        why="all nodes are on this machine",
    )
    for rank, own in enumerate(gpus):
        yield NetworkItem(
            kind="gpus",
            name=f"node {rank}",
            value=", ".join(map(str, own)),
            why="the GPUs of this machine, divided among the nodes",
        )


def _variables(  # noqa: PLR0913  # the facts that the table of variables is made from
    task: Task,
    offer: Offer,
    job: str,
    gpus: tuple[tuple[int, ...], ...],
    *,
    site: Site,
    trust_env: bool,
) -> Iterator[EnvVar]:
    for name, value, why, source in _rows(task, offer, job, gpus, site=site, trust_env=trust_env):
        own = task.envs.get(name)
        yield EnvVar(
            name=name,
            value=value if own is None else own,
            why=why,
            source=source,
            overridden=None if own is None else value,
        )


def _rows(  # noqa: PLR0913  # see _variables
    task: Task,
    offer: Offer,
    job: str,
    gpus: tuple[tuple[int, ...], ...],
    *,
    site: Site,
    trust_env: bool,
) -> Iterator[tuple[str, str, str, Source | None]]:
    nodes, each = str(task.num_nodes), offer.gpus_per_node
    if not trust_env:
        yield "PATH", "/usr/local/bin:/usr/bin:/bin", "trust_env is off: nothing is inherited", None
        yield "HOME", str(site.facts["home"]), "trust_env is off: nothing is inherited", None
    yield "GPUFABRIC_JOB", job, "the name of the job", None
    yield "GPUFABRIC_ATTEMPT", "{attempt}", "how often the gang started again", None
    yield "GPUFABRIC_NODE_RANK", "{node_rank}", "the index of the node", None
    yield "GPUFABRIC_NUM_NODES", nodes, "the size of the gang", None
    yield "GPUFABRIC_GPUS_PER_NODE", str(each), "GPUs that each node has", None
    yield "GPUFABRIC_NODE_IPS", "\n".join(["127.0.0.1"] * task.num_nodes), "by rank", None
    port = "a free port, held from the start of the gang to its end"
    for prefix, source in (("", None), ("PET_", _TORCHRUN)):
        twin = "for a bare torchrun" if prefix else "for torchrun's flags"
        yield f"{prefix}MASTER_ADDR", "127.0.0.1", f"node 0, {twin}", source
        yield f"{prefix}MASTER_PORT", "{master_port}", f"{port}, {twin}", source
        yield f"{prefix}NODE_RANK", "{node_rank}", twin, source
        yield f"{prefix}NNODES", nodes, twin, source
    if each:
        yield "PET_NPROC_PER_NODE", str(each), "a process for each GPU", _TORCHRUN
        yield "CUDA_DEVICE_ORDER", "PCI_BUS_ID", "so that indexes mean what they mean here", _CUDA
    if gpus:
        shares = " | ".join(",".join(map(str, own)) for own in gpus)
        yield "CUDA_VISIBLE_DEVICES", shares, "each node's GPUs, by rank", _CUDA
    elif _gpus(site):
        yield "CUDA_VISIBLE_DEVICES", "", "no accelerator was asked for", _CUDA
