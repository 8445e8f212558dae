"""What `Fabric` thinks: a task with lower wishes, and why nothing fits."""

from collections.abc import Sequence

from gpufabric._frozen import evolve
from gpufabric.errors import PlacementError
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Attempt, Resolution
from gpufabric.task import Task

__all__ = ["lowered", "nowhere"]


def lowered(task: Task, tier: NetworkTier) -> Task:
    """The task with every wish for the network cut down to `tier`."""
    options = [
        evolve(
            option,
            network_tier=min(option.network_tier, tier),
            min_gbps_per_gpu=option.min_gbps_per_gpu if tier is NetworkTier.BEST else None,
        )
        for option in task.resources.alternatives()
    ]
    resources = options[0] if len(options) == 1 else evolve(task.resources, any_of=options)
    return evolve(task, resources=resources)


def nowhere(task: Task, resolution: Resolution, attempts: Sequence[Attempt] = ()) -> PlacementError:
    """The error of a task that no place took, with every reason."""
    wanted = ", or ".join(str(r.accelerator or "no GPU") for r in task.resources.alternatives())
    lines = [f"no place took {task.name!r}: {task.num_nodes} x ({wanted})"]
    lines += [f"  tried {attempt}" for attempt in attempts]
    lines += [f"  rejected {rejection}" for rejection in resolution.rejections[:20]]
    more = len(resolution.rejections) - 20
    if more > 0:
        lines.append(f"  and {more} more in .rejections")
    if not attempts and not resolution.rejections:
        lines.append("  the fabric has no backend: Fabric(Local()), or Fabric.discover()")
    return PlacementError(
        "\n".join(lines), rejections=resolution.rejections, attempts=tuple(attempts)
    )
