"""A gang as this backend makes its objects from it: one value, and the names that objects carry."""

from collections.abc import Mapping

from gpufabric._frozen import field, frozen
from gpufabric.backends.kubernetes._api import Json
from gpufabric.catalog.rows import KubernetesRow

__all__ = [
    "ATTEMPT_LABEL",
    "CANCELLED",
    "CHANNEL",
    "CONTAINER",
    "JOB_LABEL",
    "NODES",
    "PRIORITY_LABEL",
    "QUEUE_LABEL",
    "REPLICA",
    "UNDISTURBED",
    "Gang",
    "Nearness",
]

JOB_LABEL = "gpufabric.io/job"
CANCELLED = "gpufabric.io/cancelled"
NODES = "gpufabric.io/num-nodes"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
#: Karpenter's consolidation and drift pass over nodes that have a pod with it.
#: https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
UNDISTURBED = "karpenter.sh/do-not-disrupt"
CONTAINER = "job"
REPLICA = "n"
#: The pod's claim of its node's channel to the gang's NVLink domain.
CHANNEL = "compute-domain-channel"


@frozen(kw_only=True)
class Nearness:
    """Where the pods of a gang go in relation to each other.

    Fields:
        apart: no two on one node, which their requests alone would not keep.
        together: the label that all their nodes must share, since the fabric ends there.
        among: its values that have room for the gang; empty where that is not known.
        firm: the gang goes to no others. Where it may start again they are a wish: by then
            others may have room.
        near: a label that their nodes should share.
        annotations: the same wishes as Kueue reads them.
    """

    apart: bool = False
    together: str | None = None
    among: tuple[str, ...] = ()
    firm: bool = True
    near: str | None = None
    annotations: Mapping[str, str] = field(factory=dict[str, str])


@frozen(kw_only=True)
class Gang:
    """What the objects are made from.

    `group` is the API version of the PodGroup that a gang scheduler reads, `domain` that of the
    ComputeDomain that joins the nodes' NVLink; None without. `undisturbed` asks Karpenter to leave
    the gang's nodes alone. With `serve` a LeaderWorkerSet owns it, which starts it for ever.
    """

    name: str
    namespace: str
    num_nodes: int
    script: str
    command: tuple[str, ...]
    image: str = ""
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    resources: Mapping[str, str] = field(factory=dict[str, str])
    selector: Mapping[str, str] = field(factory=dict[str, str])
    tolerations: tuple[Mapping[str, str], ...] = ()
    nearness: Nearness = Nearness()
    way: KubernetesRow | None = None
    volumes: Mapping[str, str] = field(factory=dict[str, str])
    ports: tuple[int, ...] = ()
    timeout_s: int | None = None
    max_restarts: int = 0
    grace_s: int = 1
    restricted: bool = False
    jobset: str | None = None
    serve: bool = False
    queue: str | None = None
    pod_patch: Mapping[str, object] = field(factory=dict[str, object])
    group: str | None = None
    group_queue: str | None = None
    domain: str | None = None
    undisturbed: bool = False
    scheduler: str | None = None
    priority: str | None = None
    queue_priority: str | None = None

    @property
    def kind(self) -> str:
        """Of the object that owns all others."""
        return "LeaderWorkerSet" if self.serve else "JobSet" if self.jobset else "Job"

    @property
    def version(self) -> str:
        """The API version of the owner."""
        own = f"jobset.x-k8s.io/{self.jobset}" if self.jobset else "batch/v1"
        return "leaderworkerset.x-k8s.io/v1" if self.serve else own

    @property
    def labels(self) -> dict[str, str]:
        """On every object."""
        return {"app.kubernetes.io/managed-by": "gpufabric", JOB_LABEL: self.name}

    @property
    def claims(self) -> dict[str, str]:
        """The claims of a pod: name -> the ResourceClaimTemplate that each is made from."""
        found = {name: f"{self.name}-{name}" for name in (self.way.claims if self.way else ())}
        if self.domain:
            found[CHANNEL] = f"{self.name}-{CHANNEL}"
        return found

    def metadata(self, name: str | None = None) -> Json:
        """Of an object that the gang's owner owns; `uid` is put in while it is sent."""
        owner = {
            "apiVersion": self.version, "kind": self.kind, "name": self.name,
            "uid": {"uid_of": self.kind},
            "blockOwnerDeletion": False, "controller": False,
        }  # fmt: skip
        return {
            "name": name or self.name, "namespace": self.namespace, "labels": self.labels,
            "ownerReferences": [owner],
        }  # fmt: skip
