"""What other autoscalers than Karpenter could make, and why it is not offered: told in words."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterable, Iterator, Mapping

from gpufabric.backends.kubernetes._api import Json

__all__ = ["groups_at_zero", "provisioned_unseen"]


def groups_at_zero(status: object) -> Iterator[str]:
    """Of the status that the cluster autoscaler writes (since 1.30, YAML): its empty groups.

    It has no instance types, so none is offered.
    https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/clusterstate/api
    """
    groups = status.get("nodeGroups") if isinstance(status, Mapping) else None
    if groups is None:
        yield (
            "the cluster autoscaler's status is not as it is since 1.30: its node groups without a"
            " node are not known"
        )
        return
    names = [
        f"{one.get('name')} (up to {health.get('maxSize')})"
        for one in groups
        if isinstance(one, Mapping) and isinstance(health := one.get("health") or {}, Mapping)
        if not _registered(health) and not health.get("cloudProviderTarget")
    ]
    if names:
        yield (
            "node groups of the cluster autoscaler without a node: "
            f"{', '.join(names)}: its status does not tell their instance types, so that they are"
            " not offered until they have a node"
        )


def _registered(health: Mapping[str, object]) -> object:
    counts = health.get("nodeCounts")
    registered = counts.get("registered") if isinstance(counts, Mapping) else None
    return registered.get("total") if isinstance(registered, Mapping) else None


def provisioned_unseen(
    queues: Mapping[str, Json], labels: Iterable[Mapping[str, str]]
) -> Iterator[str]:
    """Flavors of queues that make nodes on request (ProvisioningRequest), of which none exists.

    `labels` are those of each pool.
    """
    pools = list(labels)
    for queue, record in queues.items():
        if not record["provisioning"]:
            continue
        for flavor in record["flavors"] or ():
            wanted = flavor["labels"].items()
            if wanted and not any(wanted <= pool.items() for pool in pools):
                told = ", ".join(f"{name}={value}" for name, value in wanted)
                yield (
                    f"queue {queue}: nodes of flavor {flavor['name']} ({told}) are made when a job"
                    " is admitted; none exists yet, so that what they have is not known and they"
                    " are not offered"
                )
