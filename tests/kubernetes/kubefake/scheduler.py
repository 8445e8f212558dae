"""Which node a pod goes to: resources, selectors, taints, affinities; and the scheduler's words."""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from .errors import Json
from .events import Events, reference
from .objects import Objects, now
from .quantities import Amounts, amounts, requests_of
from .selectors import fits_selector

_HOST = "kubernetes.io/hostname"


class _Node:
    """A node and the pods that are on it."""

    def __init__(self, node: Json) -> None:
        self.name = str(node["metadata"]["name"])
        self.labels: Json = node["metadata"].get("labels") or {}
        self.spec: Json = node.get("spec") or {}
        status = node.get("status") or {}
        self.free: Amounts = amounts(status.get("allocatable"))
        self.ready = any(
            row["type"] == "Ready" and row["status"] == "True"
            for row in status.get("conditions") or ()
        )
        self.pods: list[Json] = []

    def take(self, pod: Json) -> None:
        """The pod is on this node."""
        self.pods.append(pod)
        for name, amount in requests_of(pod["spec"]).items():
            self.free[name] = self.free.get(name, Fraction(0)) - amount
        self.free["pods"] = self.free.get("pods", Fraction(110)) - 1


class Scheduler:
    """Gives pods to nodes."""

    def __init__(self, objects: Objects, events: Events) -> None:
        self._objects = objects
        self._events = events

    def run(self) -> None:
        """One look at every pod that has no node."""
        store = self._objects.store
        waiting = [
            entry.obj for entry in store.all("pods")
            if not entry.obj["spec"].get("nodeName")
            and not entry.obj["metadata"].get("deletionTimestamp")
            and entry.obj["spec"].get("schedulerName") == "default-scheduler"
            and not entry.obj["spec"].get("schedulingGates")
            and (entry.obj.get("status") or {}).get("phase") == "Pending"
        ]  # fmt: skip
        if not waiting:
            return
        nodes = [_Node(entry.obj) for _, entry in store.sorted("nodes")]
        by_name = {node.name: node for node in nodes}
        for entry in store.all("pods"):
            pod = entry.obj
            ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
            if not ended and pod["spec"].get("nodeName") in by_name:
                by_name[pod["spec"]["nodeName"]].take(pod)
        waiting.sort(key=lambda pod: (-pod["spec"].get("priority", 0),
                                      int(pod["metadata"]["resourceVersion"])))  # fmt: skip
        for gang in _gangs(waiting):
            self._place(gang, nodes)

    def _place(self, gang: Sequence[Json], nodes: Sequence[_Node]) -> None:
        """All pods of a gang, or none; a pod without a group is a gang of its own."""
        group = _group_of(gang[0])
        if group and not self._group_ready(gang, group):
            return
        chosen: list[tuple[Json, _Node]] = []
        for pod in gang:
            node, why = _choose(pod, nodes)
            if node is None:
                if not group:
                    self._unschedulable(pod, why)
                    return
                continue
            node.take(pod)
            chosen.append((pod, node))
        if group and not self._enough(gang, group, len(chosen)):
            for pod, node in chosen:
                _give_back(pod, node)
            _, why = _choose(gang[-1], nodes)
            for pod in gang:
                self._unschedulable(pod, why or "the gang does not fit as a whole")
            return
        for pod, node in chosen:
            self._bind(pod, node.name)

    # ---- the scheduler's own gangs

    def _podgroup(self, pod: Json, name: str) -> Json | None:
        table = "podgroups.scheduling.k8s.io"
        found = self._objects.store.find(table, pod["metadata"]["namespace"], name)
        return found.obj if found is not None else None

    def _least(self, pod: Json, group: str) -> int | None:
        found = self._podgroup(pod, group)
        if found is None:
            return None
        policy = found["spec"].get("schedulingPolicy") or {}
        return int((policy.get("gang") or {}).get("minCount", 0))

    def _group_ready(self, gang: Sequence[Json], group: str) -> bool:
        """Whether its PodGroup exists, and enough of its pods."""
        least = self._least(gang[0], group)
        if least is None:
            self._unschedulable(gang[0], f'waiting for pod group "{group}" to be created')
            return False
        return len(gang) + self._placed(gang[0], group) >= least

    def _placed(self, pod: Json, group: str) -> int:
        every = self._objects.store.all("pods", pod["metadata"]["namespace"])
        return sum(_group_of(e.obj) == group and bool(e.obj["spec"].get("nodeName")) for e in every)

    def _enough(self, gang: Sequence[Json], group: str, chosen: int) -> bool:
        least = self._least(gang[0], group) or 0
        whole = chosen + self._placed(gang[0], group) >= least
        condition: Json = {
            "type": "PodGroupScheduled", "status": "True" if whole else "False",
            "reason": "Scheduled" if whole else "Unschedulable", "message": "",
            "lastTransitionTime": now(),
        }  # fmt: skip

        def change(one: Json) -> None:
            rows = (one.get("status") or {}).get("conditions") or []
            if not any(r["type"] == condition["type"] and r["status"] == condition["status"]
                       for r in rows):  # fmt: skip
                one["status"] = {"conditions": [condition]}

        self._objects.mutate(
            "podgroups.scheduling.k8s.io", gang[0]["metadata"]["namespace"], group, change
        )
        return whole

    # ---- telling

    def _bind(self, pod: Json, node: str) -> None:
        meta = pod["metadata"]

        def change(one: Json) -> None:
            one["spec"]["nodeName"] = node
            _scheduled(one, {"type": "PodScheduled", "status": "True", "lastProbeTime": None,
                             "lastTransitionTime": now()})  # fmt: skip

        made = self._objects.mutate("pods", meta["namespace"], meta["name"], change)
        if made is not None:
            self._events.tell(
                reference(made.obj), "Scheduled",
                f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}",
                component="default-scheduler",
            )  # fmt: skip

    def _unschedulable(self, pod: Json, why: str) -> None:
        rows = (pod.get("status") or {}).get("conditions") or ()
        if any(row["type"] == "PodScheduled" and row.get("message") == why for row in rows):
            return
        meta = pod["metadata"]
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
            "lastProbeTime": None, "lastTransitionTime": now(),
        }  # fmt: skip
        made = self._objects.mutate(
            "pods", meta["namespace"], meta["name"], lambda one: _scheduled(one, condition)
        )
        if made is not None:
            self._events.tell(
                reference(made.obj), "FailedScheduling", why, warning=True,
                component="default-scheduler",
            )  # fmt: skip


def _scheduled(pod: Json, condition: Json) -> None:
    rows = [row for row in pod["status"].get("conditions") or () if row["type"] != "PodScheduled"]
    pod["status"]["conditions"] = [*rows, condition]


def _group_of(pod: Json) -> str:
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def _gangs(pods: Sequence[Json]) -> Iterator[list[Json]]:
    groups: dict[tuple[str, str], list[Json]] = {}
    for pod in pods:
        name = _group_of(pod)
        if not name:
            yield [pod]
        else:
            groups.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
    yield from groups.values()


def _give_back(pod: Json, node: _Node) -> None:
    node.pods.remove(pod)
    for name, amount in requests_of(pod["spec"]).items():
        node.free[name] = node.free.get(name, Fraction(0)) + amount
    node.free["pods"] += 1


# ---- filters, in the scheduler's order


def _choose(pod: Json, nodes: Sequence[_Node]) -> tuple[_Node | None, str]:
    """The emptiest node that fits, or the scheduler's words of why none does."""
    reasons: Counter[str] = Counter()
    fitting: list[_Node] = []
    for node in nodes:
        why = _why_not(pod, node, nodes)
        reasons.update(why)
        if not why:
            fitting.append(node)
    if fitting:
        wanted = _preferred(pod, fitting, nodes)
        return max(wanted, key=lambda node: node.free.get("cpu", Fraction(0))), ""
    total = len(nodes)
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    short = ("Insufficient", "Too many")
    hopeless = sum(not any(r.startswith(short) for r in _why_not(pod, n, nodes)) for n in nodes)
    parts = []
    if hopeless:
        parts.append(f"{hopeless} Preemption is not helpful for scheduling")
    if total - hopeless:
        parts.append(f"{total - hopeless} No preemption victims found for incoming pod")
    last = f"preemption: 0/{total} nodes are available: {', '.join(sorted(parts))}."
    return None, (f"0/{total} nodes are available: {listed}. no new claims to deallocate, {last}")


def _why_not(pod: Json, node: _Node, nodes: Sequence[_Node]) -> list[str]:
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or ()
    if node.spec.get("unschedulable") or not node.ready:
        return ["node(s) were unschedulable" if node.ready else "node(s) had untolerated taint(s)"]
    for taint in node.spec.get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not any(
            _tolerates(t, taint) for t in tolerations
        ):
            return ["node(s) had untolerated taint(s)"]
    if not _selected(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    short = [
        f"Insufficient {name}" for name, amount in requests_of(spec).items()
        if amount > node.free.get(name, Fraction(0))
    ]  # fmt: skip
    if node.free.get("pods", Fraction(110)) < 1:
        short.insert(0, "Too many pods")
    if short:
        return short
    return _affinity(pod, node, nodes)


def _tolerates(row: Json, taint: Json) -> bool:
    if row.get("effect") and row["effect"] != taint["effect"]:
        return False
    if row.get("key") and row["key"] != taint["key"]:
        return False
    if row.get("operator") == "Exists":
        return True
    return bool(row.get("key")) and (row.get("value") or "") == (taint.get("value") or "")


def _selected(spec: Json, node: _Node) -> bool:
    wanted = spec.get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_term(term, node) for term in required["nodeSelectorTerms"])


def _term(term: Json, node: _Node) -> bool:
    fields = {"metadata.name": node.name}
    return fits_selector(
        {"matchExpressions": term.get("matchExpressions")}, node.labels
    ) and fits_selector({"matchExpressions": term.get("matchFields")}, fields)


def _affinity(pod: Json, node: _Node, nodes: Sequence[_Node]) -> list[str]:
    affinity = pod["spec"].get("affinity") or {}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    for term in (affinity.get("podAffinity") or {}).get(key) or ():
        if not _near(pod, term, node, nodes):
            return ["node(s) didn't match pod affinity rules"]
    for term in (affinity.get("podAntiAffinity") or {}).get(key) or ():
        if _with(pod, term, node, nodes):
            return ["node(s) didn't match pod anti-affinity rules"]
    for other in nodes:
        for there in other.pods:
            rules = (there["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
            for term in rules.get(key) or ():
                same = _same_place(term, other, node)
                if same and _matches(term, there, pod):
                    return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def _near(pod: Json, term: Json, node: _Node, nodes: Sequence[_Node]) -> bool:
    """The first pod of all that match may go anywhere where the label is."""
    if term["topologyKey"] not in node.labels:
        return False
    if _with(pod, term, node, nodes):
        return True
    anywhere = any(_matches(term, pod, there) for one in nodes for there in one.pods)
    return not anywhere and _matches(term, pod, pod)


def _with(pod: Json, term: Json, node: _Node, nodes: Sequence[_Node]) -> bool:
    """Whether a pod that the term means is in the node's part of the topology."""
    return any(
        _same_place(term, other, node) and any(_matches(term, pod, there) for there in other.pods)
        for other in nodes
    )


def _same_place(term: Json, one: _Node, other: _Node) -> bool:
    key = term["topologyKey"]
    return key in one.labels and one.labels.get(key) == other.labels.get(key)


def _matches(term: Json, owner: Json, pod: Json) -> bool:
    spaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
    if pod["metadata"]["namespace"] not in spaces:
        return False
    return fits_selector(term.get("labelSelector"), pod["metadata"].get("labels") or {})


def _preferred(pod: Json, fitting: list[_Node], nodes: Sequence[_Node]) -> list[_Node]:
    """Those near pods that this one would rather be near."""
    rules = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
    for row in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        near = [n for n in fitting if _with(pod, row["podAffinityTerm"], n, nodes)]
        if near:
            return near
    return fitting
