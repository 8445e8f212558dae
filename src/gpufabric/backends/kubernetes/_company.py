"""Who does a gang's work beside its pods' owner: queue, gang scheduler, NVLink domain, priority."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping
from typing import TypedDict, cast

from gpufabric._frozen import evolve
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._carry import CODE_WRITES
from gpufabric.backends.kubernetes._gang import UNDISTURBED, Gang
from gpufabric.backends.kubernetes._manifest import owned
from gpufabric.backends.kubernetes._reading import controllers, queue_of, queues
from gpufabric.errors import SpecError
from gpufabric.net.netplan import NetworkPlan
from gpufabric.plan import NetworkItem, Offer, Source
from gpufabric.resources import Resources
from gpufabric.task import Task

__all__ = [
    "VOLCANO",
    "company_faults",
    "company_of",
    "gang_apis_of",
    "gang_items",
    "priority_of",
    "within_writes",
]

VOLCANO = "volcano"
_SCHEDULING = "scheduling.k8s.io"
_NVIDIA = "resource.nvidia.com"
_VOLCANO_API = "scheduling.volcano.sh"
_MOST_WRITES = 6


class _Company(TypedDict):
    group: str | None
    group_queue: str | None
    domain: str | None
    scheduler: str | None
    priority: str | None
    queue_priority: str | None


def gang_apis_of(site: Site) -> Mapping[str, str]:
    """API group -> version of what is served for gangs and may be created."""
    return cast("Mapping[str, str]", site.facts.get("gang_apis") or {})


def company_of(  # noqa: PLR0913  # what is offered where, and the backend's wishes by keyword
    offer: Offer,
    site: Site,
    network: NetworkPlan,
    *,
    scheduler: str | None,
    priority: str | None,
    serve: bool = False,
) -> _Company:
    """What stands beside the pods' owner, as fields of a `Gang`."""
    apis, several = gang_apis_of(site), offer.num_nodes > 1
    queue = queue_of(offer.resources, site)
    pod, queued = priority_of(priority, site, queue)
    group, group_queue = None, None
    if scheduler == VOLCANO and offer.resources.capacity not in queues(site):
        group_queue = offer.resources.capacity
    if several and scheduler == VOLCANO:
        version = apis.get(_VOLCANO_API)
        if version is None:
            raise SpecError("the site has no PodGroups of Volcano: discover again")
        group = f"{_VOLCANO_API}/{version}"
    elif (
        several and scheduler is None and _SCHEDULING in apis
        and queue is None and "jobset" not in controllers(site) and not serve
    ):  # fmt: skip
        group = f"{_SCHEDULING}/{apis[_SCHEDULING]}"
    domain = None
    if several and network.way is not None and network.way.compute_domain:
        domain = apis.get(_NVIDIA)
        if domain is None:
            raise SpecError("the site has no ComputeDomains: discover again")
    return {
        "group": group, "group_queue": group_queue, "domain": domain, "scheduler": scheduler,
        "priority": pod, "queue_priority": queued,
    }  # fmt: skip


def priority_of(wished: str | None, site: Site, queue: str | None) -> tuple[str | None, str | None]:
    """The pods' PriorityClass and Kueue's WorkloadPriorityClass, each None where it is not that."""
    if wished is None:
        return None, None
    of_pods = cast("tuple[str, ...] | None", site.facts.get("priority_classes"))
    of_queue = cast("tuple[str, ...]", site.facts.get("workload_priority_classes") or ())
    queued = wished if queue is not None and wished in of_queue else None
    if of_pods is None:  # not known: the API server refuses pods of a class that is not there
        return (None if queued else wished), queued
    return (wished if wished in of_pods else None), queued


def company_faults(
    task: Task, option: Resources, site: Site, *, scheduler: str | None, priority: str | None
) -> Iterator[str]:
    """Why the scheduler or priority that the backend was given cannot serve a task here."""
    if scheduler == VOLCANO and task.num_nodes > 1 and _VOLCANO_API not in gang_apis_of(site):
        yield (
            f"scheduler: {VOLCANO} needs PodGroups of {_VOLCANO_API}, which the cluster does not"
            " have or this user may not create"
        )
    of_pods = cast("tuple[str, ...] | None", site.facts.get("priority_classes"))
    queue = queue_of(option, site)
    if priority is None or of_pods is None or priority_of(priority, site, queue) != (None, None):
        return
    names = list(of_pods)
    if queue is not None:
        names += cast("tuple[str, ...]", site.facts.get("workload_priority_classes") or ())
    known = ", ".join(sorted(set(names))) or "none"
    yield f"priority: the cluster has no PriorityClass {priority!r} (there are: {known})"


def within_writes(gang: Gang) -> tuple[Gang, tuple[str, ...]]:
    """Leaves the scheduler's own group out where the launch would take more than six writes.

    A launch makes the owner, what it owns, and lets the owner go.
    """
    writes = 1 + sum(1 for _ in owned(gang)) + CODE_WRITES * bool(gang.code) + (gang.queue is None)
    own = gang.group is not None and gang.group.startswith(_SCHEDULING)
    if own and writes > _MOST_WRITES:
        words = f"no {gang.group} PodGroup: the launch would take {writes} writes"
        return evolve(gang, group=None), (words,)
    return gang, ()


_OWNERS = {
    "JobSet": (
        "it is installed, and starts a gang again as a whole",
        "https://jobset.sigs.k8s.io/docs/",
    ),
    "Job": (
        "JobSet is not installed; a node that fails ends the gang, and nothing starts it again",
        "https://kubernetes.io/docs/concepts/workloads/controllers/job/",
    ),
    "LeaderWorkerSet": (
        "serve: it starts all nodes again whenever one ends, for ever, until cancel or teardown",
        "https://lws.sigs.k8s.io/docs/concepts/",
    ),
}


def gang_items(gang: Gang, site: Site) -> Iterator[NetworkItem]:
    """Lines of the plan: who makes, queues, places and joins the gang, and why."""

    def item(name: str, value: str, why: str, url: str | None = None) -> NetworkItem:
        source = Source(url=url) if url else None
        return NetworkItem(kind="gang", name=name, value=value, why=why, source=source)

    yield item("controller", gang.kind, *_OWNERS[gang.kind])
    if gang.queue:
        why = "the namespace has this LocalQueue of Kueue, which lets the gang go in its turn"
        yield item("queue", gang.queue, why, "https://kueue.sigs.k8s.io/docs/concepts/local_queue/")
    if gang.group_queue:
        why = "a Queue of Volcano, which lets the pods go in its turn"
        yield item("queue", gang.group_queue, why, "https://volcano.sh/en/docs/queue/")
    if gang.group:
        why = "this scheduler places all pods of the gang or none"
        yield item("scheduler", gang.group, why)
    elif gang.num_nodes > 1:
        yield item("scheduler", gang.scheduler or "no group", _why_no_group(gang, site))
    if gang.domain:
        why = "one for the gang, owned by it; the pods claim their node's channel to it"
        yield item("nvlink", f"ComputeDomain of {gang.num_nodes} nodes", why)
    if gang.undisturbed:
        why = "Karpenter would else drain nodes to use fewer or newer ones, and end the job"
        url = "https://karpenter.sh/docs/concepts/disruption/#pod-level-controls"
        yield item(UNDISTURBED, "true", why, url)
    near = gang.nearness
    for key, value in near.annotations.items():
        yield item(key, value, "Kueue chooses nodes that share this label")
    if near.together is not None:
        among = f" among {len(near.among)} that have room" if near.among else ""
        why = "the fabric of this tier ends where the label's value changes"
        yield item("together", near.together, f"all nodes share one value{among}: {why}")
    if near.near is not None:
        yield item("near", near.near, "preferred, not required: the fabric is wider")


def _why_no_group(gang: Gang, site: Site) -> str:
    rolled = "a gang that is not whole in time is rolled back"
    if gang.scheduler is None and _SCHEDULING in gang_apis_of(site):
        if gang.queue:
            return f"the scheduler's own PodGroups are not used beside a queue; {rolled}"
        if gang.jobset:
            return f"JobSet's pods cannot name the scheduler's own PodGroup; {rolled}"
        if gang.serve:
            return f"the scheduler's own PodGroups are not used for what starts again; {rolled}"
    return rolled
