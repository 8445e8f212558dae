"""What rights the backend needs, and the smallest Role that gives them."""

import argparse
import sys
from collections.abc import Sequence

__all__ = [
    "CLUSTER",
    "NAMED",
    "NEEDED",
    "SERVING",
    "SERVING_WISHED",
    "WISHED",
    "role_main",
    "role_text",
    "without",
]

#: API group, resource, verbs: without these no gang can run.
NEEDED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "delete", "get", "list", "patch")),
    ("jobset.x-k8s.io", "jobsets", ("create", "delete", "get", "list", "patch")),
    ("", "secrets", ("create", "delete", "get", "list", "patch")),
    ("", "services", ("create", "delete", "list")),
    ("", "pods", ("delete", "get", "list")),
    ("", "pods/log", ("get",)),
)
#: Without these less is known, or one thing does not work: `without` says which.
WISHED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "pods", ("create", "patch", "watch")),
    ("", "pods/exec", ("create", "get")),
    ("", "pods/portforward", ("create", "get")),
    ("batch", "jobs", ("watch",)),
    ("jobset.x-k8s.io", "jobsets", ("watch",)),
    ("", "events", ("list", "watch")),
    ("", "resourcequotas", ("list",)),
    ("", "limitranges", ("list",)),
    ("kueue.x-k8s.io", "localqueues", ("list",)),
    ("kueue.x-k8s.io", "workloads", ("list", "patch")),
    # list, delete: after a lost answer it must be seen whose the object is that is there, and one
    # of an earlier gang of that name goes first
    ("resource.k8s.io", "resourceclaimtemplates", ("create", "delete", "list")),
    ("resource.nvidia.com", "computedomains", ("create", "delete", "list")),
    ("scheduling.k8s.io", "podgroups", ("create", "delete", "list")),
    ("scheduling.k8s.io", "workloads", ("create", "delete", "list")),
    ("scheduling.volcano.sh", "podgroups", ("create", "delete", "list")),
    # to find what serves, whoever made it
    ("leaderworkerset.x-k8s.io", "leaderworkersets", ("get", "list")),
)
#: Of a backend whose tasks serve.
SERVING: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("leaderworkerset.x-k8s.io", "leaderworkersets", ("create", "delete", "get", "list", "patch")),
)
SERVING_WISHED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("leaderworkerset.x-k8s.io", "leaderworkersets", ("watch",)),
)
#: Of the whole cluster; without these nodes cannot be seen, so no GPUs are offered.
CLUSTER: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "nodes", ("list",)),
    ("", "pods", ("list",)),
    ("", "namespaces", ("get",)),
    ("resource.k8s.io", "deviceclasses", ("list",)),
    ("resource.k8s.io", "resourceslices", ("list",)),
    ("resource.k8s.io", "resourceclaims", ("list",)),
    ("scheduling.k8s.io", "priorityclasses", ("list",)),
    ("kueue.x-k8s.io", "clusterqueues", ("get",)),
    ("kueue.x-k8s.io", "resourceflavors", ("get",)),
    ("kueue.x-k8s.io", "topologies", ("get",)),
    ("kueue.x-k8s.io", "admissionchecks", ("get",)),
    ("kueue.x-k8s.io", "workloadpriorityclasses", ("list",)),
    ("karpenter.sh", "nodepools", ("list",)),
)
#: One object of the whole cluster, by its name: what the cluster autoscaler says of its groups.
NAMED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("", "configmaps", "cluster-autoscaler-status", ("get",)),
)

_QUEUED = "why a queue holds a job is not told, and a queued job can be torn down, not cancelled"
_WHOLE = "the scheduler does not place gangs as a whole: one that is not is rolled back"
#: What is lost without one of these, in a namespace (False) or in the cluster (True).
_LOST = {
    ("pods", False): "code above 900 kB cannot travel to the nodes",
    ("pods/exec", False): "commands in nodes, copies, ssh and Jupyter are refused, and code above"
    " 900 kB cannot travel",
    ("pods/portforward", False): "ports of nodes cannot be reached",
    ("events", False): "why a pod waits is known from the pod alone, and logs have no events",
    ("resourcequotas", False): "a launch finds out that a quota is full when it is refused",
    ("limitranges", False): "a launch finds out what a pod may ask for when it is refused",
    ("localqueues", False): "Kueue's queues are not known, and jobs go past them",
    ("workloads", False): _QUEUED,
    ("podgroups", False): _WHOLE,
    ("resourceclaimtemplates", False): "networks that are given by device claims cannot be used",
    ("leaderworkersets", False): "gangs that serve are not found",
    ("computedomains", False): "NVLink between nodes cannot be used",
    ("nodes", True): "no GPUs can be offered, only tasks without accelerators run",
    ("pods", True): "what other namespaces use of the nodes is not subtracted from what is free",
    ("namespaces", True): "the namespace's Pod Security level is not known",
    ("deviceclasses", True): "networks that are given by device claims are not offered",
    ("resourceslices", True): "devices that are given by claims are not counted",
    ("resourceclaims", True): "devices that others hold by claims are not subtracted",
    ("clusterqueues", True): "what a queue may ever give is not known",
    ("nodepools", True): "nodes that Karpenter would make are not offered",
}


def without(resource: str, verbs: Sequence[str], *, cluster: bool) -> str:
    """What is lost where a right that is only wished for is missing."""
    if tuple(verbs) == ("watch",):
        return "what changes is asked for every 2 s instead of being told at once"
    return _LOST.get((resource, cluster), "less is known, and the rest works")


def _rules(rows: Sequence[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    lines: list[str] = []
    for group, resource, verbs in rows:
        lines += [
            f'- apiGroups: ["{group}"]',
            f'  resources: ["{resource}"]',
            "  verbs: [" + ", ".join(f'"{verb}"' for verb in verbs) + "]",
        ]
    return lines


def _named_rules() -> list[str]:
    lines: list[str] = []
    for group, resource, name, verbs in NAMED:
        rule = _rules(((group, resource, verbs),))
        lines += [*rule[:2], f'  resourceNames: ["{name}"]', rule[2]]
    return lines


def role_text(namespace: str, *, cluster: bool, serve: bool = False) -> str:
    """The smallest Role as YAML, with the ClusterRole that lets nodes be seen if asked for."""
    head = "apiVersion: rbac.authorization.k8s.io/v1"
    lines = [head, "kind: Role", "metadata:", "  name: gpufabric", f"  namespace: {namespace}"]
    more = (*SERVING, *SERVING_WISHED) if serve else ()
    lines += ["rules:", *_rules((*NEEDED, *WISHED, *more))]
    if cluster:
        lines += ["---", head, "kind: ClusterRole", "metadata:", "  name: gpufabric-discover"]
        lines += ["rules:", *_rules(CLUSTER), *_named_rules()]
    return "\n".join(lines) + "\n"


def role_main(argv: Sequence[str]) -> int:
    """Prints the Role that a user needs."""
    parser = argparse.ArgumentParser(
        prog="python -m gpufabric kubernetes-role", description=role_main.__doc__
    )
    parser.add_argument("--namespace", default="default", help="where the gangs run")
    parser.add_argument(
        "--cluster", action="store_true", help="also the ClusterRole that lets nodes be seen"
    )
    parser.add_argument(
        "--serve", action="store_true", help="also what Kubernetes(serve=True) needs"
    )
    args = parser.parse_args(argv)
    sys.stdout.write(role_text(args.namespace, cluster=args.cluster, serve=args.serve))
    return 0
