"""What rights the backend needs, and the smallest Role that gives them."""

import argparse
import sys
from collections.abc import Sequence

__all__ = ["CLUSTER", "NAMED", "NEEDED", "WISHED", "role_main", "role_text"]

#: API group, resource, verbs: without these no gang can run.
NEEDED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "delete", "get", "list", "patch")),
    ("jobset.x-k8s.io", "jobsets", ("create", "delete", "get", "list", "patch")),
    ("", "secrets", ("create", "delete", "get", "list", "patch")),
    ("", "services", ("create", "delete", "list")),
    ("", "pods", ("delete", "get", "list")),
    ("", "pods/log", ("get",)),
)
#: Without these less is known: quotas, queues, why a pod waits; a job in a queue cannot be
#: cancelled, only torn down; and code above 900 kB cannot travel.
WISHED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "pods", ("create", "patch")),
    ("", "pods/exec", ("create", "get")),
    ("", "events", ("list",)),
    ("", "resourcequotas", ("list",)),
    ("", "limitranges", ("list",)),
    ("kueue.x-k8s.io", "localqueues", ("list",)),
    ("kueue.x-k8s.io", "workloads", ("list", "patch")),
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


def role_text(namespace: str, *, cluster: bool) -> str:
    """The smallest Role as YAML, with the ClusterRole that lets nodes be seen if asked for."""
    head = "apiVersion: rbac.authorization.k8s.io/v1"
    lines = [head, "kind: Role", "metadata:", "  name: gpufabric", f"  namespace: {namespace}"]
    lines += ["rules:", *_rules((*NEEDED, *WISHED))]
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
    args = parser.parse_args(argv)
    sys.stdout.write(role_text(args.namespace, cluster=args.cluster))
    return 0
