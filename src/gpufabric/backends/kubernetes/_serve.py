"""A gang that serves: a group of a LeaderWorkerSet, started again as a whole when a node ends.

What the controller does, by its source: https://github.com/kubernetes-sigs/lws/tree/v0.7.0
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Iterable, Iterator

from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._reading import controllers, queue_of
from gpufabric.resources import Resources
from gpufabric.task import Task

__all__ = [
    "FOR_EVER",
    "HELD",
    "INSTALL",
    "RELEASED",
    "RESTARTED",
    "serve_faults",
    "serving_spec",
    "told",
]

#: A set without a replica is what a suspended Job is: its pods do not exist.
HELD, RELEASED = {"replicas": 0}, {"replicas": 1}
INSTALL = "https://lws.sigs.k8s.io/docs/installation/"
#: The policy, and the reason of the event that tells that it was followed, whose message names the
#: pod: `handleRestartPolicy` in pkg/controllers/pod_controller.go.
RESTARTED = "RecreateGroupOnPodRestart"
_POD = re.compile(r"Worker pod (\S+) failed")
FOR_EVER = (
    "it serves: whenever a node of it ends, by itself or not, its LeaderWorkerSet starts all nodes"
    " again, for ever, and it costs until cancel or teardown"
)


def serving_spec(num_nodes: int, template: Json) -> Json:
    """Of a LeaderWorkerSet that waits for its release.

    Group 0 is the gang. All its pods are made at once (`LeaderCreated`) and share one headless
    Service of the set's name (`Shared`): api/leaderworkerset/v1/leaderworkerset_types.go.
    """
    return {
        **HELD,
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "Shared"},
        "leaderWorkerTemplate": {
            "size": num_nodes, "restartPolicy": RESTARTED, "workerTemplate": template,
        },
    }  # fmt: skip


def serve_faults(task: Task, option: Resources, site: Site) -> Iterator[str]:
    """Why a task cannot serve here."""
    if "lws" not in controllers(site):
        yield (
            "serve: it needs LeaderWorkerSet (leaderworkerset.x-k8s.io), which is not installed"
            f" here: {INSTALL}"
        )
    if task.max_restarts:
        yield "max_restarts: what serves starts again without end, which no limit can bound"
    if task.timeout_s is not None:
        yield "timeout_s: a LeaderWorkerSet has no time limit; cancel it when it has served enough"
    queue = queue_of(option, site)
    if queue is not None:
        yield f"serve: jobs go through the queue {queue} of Kueue here, and what serves does not"


def told(name: str, events: Iterable[Json]) -> str:
    """How often a gang has started again, and whose end was the last, by the events of its set."""
    restarts = [one for one in events if one.get("reason") == RESTARTED]
    if not restarts:
        return ""
    times = sum(int(one.get("count") or 1) for one in restarts)
    last = max(restarts, key=lambda one: str(one.get("lastTimestamp") or ""))
    found = _POD.search(str(last.get("message") or ""))
    pod = found[1] if found else ""
    node = f", when node {pod.removeprefix(f'{name}-0').strip('-') or 0} ended" if pod else ""
    at = f", last at {last['lastTimestamp']}" if last.get("lastTimestamp") else ""
    return f"started again at least {'once' if times == 1 else f'{times} times'}{at}{node}"
