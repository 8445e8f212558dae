"""Which offers the namespace's own rules let in: quotas, limits, queues."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
from collections.abc import Iterator, Mapping

from gpufabric._frozen import evolve
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._queues import queue_faults
from gpufabric.backends.kubernetes._quotas import Asked, quota_faults
from gpufabric.backends.kubernetes._reading import controllers, facts_of, network_of, queue_of
from gpufabric.backends.kubernetes._usage import quantity
from gpufabric.backends.kubernetes._ways import asked_devices
from gpufabric.catalog.index import Catalog
from gpufabric.catalog.rows import KubernetesRow
from gpufabric.net.netplan import NetworkPlan
from gpufabric.plan import Offer, Rejection, Resolution
from gpufabric.task import PythonCall, Task

__all__ = ["admitted", "privileges_of"]


def admitted(
    found: Resolution, task: Task, site: Site, catalog: Catalog, *, serve: bool = False
) -> Resolution:
    """The offers that the namespace can let in, with what it will change or wait for."""
    offers: list[Offer] = []
    refused = list(found.rejections)
    for offer in found.offers:
        network, _ = network_of(offer, site, catalog, {})
        faults, warnings = _judged(offer, task, site, network, serve=serve)
        if faults:
            refused += [
                Rejection(
                    backend=site.backend, reason=text, place=offer.place,
                    instance_type=offer.instance_type,
                )
                for text in faults
            ]  # fmt: skip
            continue
        told = tuple(dict.fromkeys((*offer.warnings, *warnings)))
        offers.append(evolve(offer, warnings=told, limits=(*offer.limits, *_bounds(network, site))))
    return Resolution(offers=tuple(offers), rejections=tuple(refused))


def _judged(
    offer: Offer, task: Task, site: Site, network: NetworkPlan, *, serve: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why the namespace never admits it, and what it changes or waits for."""
    requests = _requests(offer, network)
    claims = network.way.claims.values() if network.way else ()
    devices: dict[str, int] = {}
    for claim in claims:
        for name, count in asked_devices(claim):
            devices[name] = devices.get(name, 0) + count
    asked = Asked(
        num_nodes=offer.num_nodes,
        requests=requests,
        objects=_objects(task, site, claims=len(claims), serve=serve),
        devices=devices,
    )
    refused, told = quota_faults(site, asked)
    pool = next(one for one in site.pools if one.name == offer.pool)
    never, waits = queue_faults(
        site, queue_of(offer.resources, site), pool, requests, offer.num_nodes
    )
    fact, noted = facts_of(site, offer.pool), list[str]()
    if offer.num_nodes > 1:
        noted += fact.get("warnings") or ()
        never = (*never, *([str(fact["one_node_only"])] if fact.get("one_node_only") else ()))
    noted += [str(fact["lacks"])] if fact.get("lacks") else []
    noted += fact.get("notes") or ()
    if site.facts.get("usage_seen") is False:
        noted.append("what other namespaces use of the nodes may not be seen: they may be full")
    if site.facts.get("queues_seen") is False:
        noted.append("LocalQueues may not be listed: where there is one, the job goes around it")
    return (*refused, *never), (*noted, *told, *waits)


def _bounds(network: NetworkPlan, site: Site) -> Iterator[str]:
    """On what the offer rests that the site alone cannot tell."""
    needs = privileges_of(network.way) if network.way else []
    if needs and site.facts.get("pod_security") is None and site.facts.get("namespace"):
        yield (
            f"its network needs {', '.join(needs)}: the namespace names no Pod Security level, and"
            " the cluster's own default cannot be read"
        )
    if site.as_of is not None:
        yield f"as the cluster was at {site.as_of:%Y-%m-%d %H:%M:%S} UTC"


def _requests(offer: Offer, network: NetworkPlan) -> Mapping[str, float]:
    """What each pod asks of its node, in Kubernetes' own units."""
    wish = offer.resources
    asked = {
        "cpu": wish.cpus and math.ceil(wish.cpus.amount * 1000) / 1000,
        "memory": wish.memory_gib and math.ceil(wish.memory_gib.amount * 1024) * 2**20,
        "ephemeral-storage": wish.disk_gib and math.ceil(wish.disk_gib.amount * 1024) * 2**20,
    }
    found = {name: float(amount) for name, amount in asked.items() if amount}
    return found | {name: quantity(amount) for name, amount in network.requests.items()}


def _objects(task: Task, site: Site, *, claims: int, serve: bool) -> Mapping[str, int]:
    """The objects that a launch makes beside pods, by plural and group."""
    jobset, several = "jobset" in controllers(site), task.num_nodes > 1
    code = task.workdir is not None or task.files or isinstance(task.run, PythonCall)
    owners = {"jobs.batch": 1, "jobsets.jobset.x-k8s.io": int(jobset), "services": int(several)}
    if serve:  # its controller makes one StatefulSet for node 0, and one for the others
        sets = {"statefulsets.apps": 1 + several, "controllerrevisions.apps": 2 + several}
        owners = {"leaderworkersets.leaderworkerset.x-k8s.io": 1, "services": 1, **sets}
    return {
        **owners,
        "secrets": int(bool(task.secrets or code)),
        "resourceclaimtemplates.resource.k8s.io": claims,
        "resourceclaims.resource.k8s.io": claims * task.num_nodes,
    }


def privileges_of(way: KubernetesRow) -> list[str]:
    """What a network needs of a pod that Pod Security's levels below `privileged` refuse."""
    host = any(mount.source == "host_path" for mount in way.mounts)
    return [
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
