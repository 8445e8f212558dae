"""What pods need for their NICs, as lines of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from gpufabric._frozen import thaw
from gpufabric.catalog.index import CloudCatalog
from gpufabric.catalog.rows import Container, KubernetesRow, Mount
from gpufabric.plan import NetworkItem, Source

__all__ = ["pod_items"]


def pod_items(
    cloud: CloudCatalog,
    way: KubernetesRow | None,
    requests: Mapping[str, str],
) -> Iterator[NetworkItem]:
    """Everything a pod asks for, and what the cluster must have; least privilege is said too."""
    source = None
    if way is not None and way.sources:
        source = Source(
            url=cloud.address(way.sources[0]),
            checked=way.checked,
            confidence=way.confidence.value,
        )
    why = "requested and limited alike in the job's container"
    lines = [("resource", name, count, why) for name, count in requests.items()]
    if way is not None:
        lines += [*_labels(way), *_contents(way), *_privilege(way), *_cluster(way)]
    for kind, name, value, reason in lines:
        yield NetworkItem(kind=kind, name=name, value=value, why=reason, source=source)


_Line = tuple[str, str, str, str]


def _labels(way: KubernetesRow) -> Iterator[_Line]:
    if way.when:
        yield "cluster", way.name, way.when, "this way of giving pods their NICs needs it"
    for key, value in way.node_selector.items():
        yield "node", key, value, "the pods go to these nodes alone"
    for one in way.tolerations:
        words = (one.operator, one.value, one.effect)
        yield "toleration", one.key, " ".join(w for w in words if w), "GPU nodes are tainted"
    for key, value in way.annotations.items():
        yield "annotation", key, value, "gives the pod its network interfaces"
    for key, value in way.labels.items():
        yield "label", key, value, "read by the platform"


def _contents(way: KubernetesRow) -> Iterator[_Line]:
    for mount in way.mounts:
        why = mount.why or "the network needs it"
        yield "mount", mount.mount_path, _mount_text(mount), why
    for kind, containers in (("sidecar", way.sidecars), ("init", way.init_containers)):
        for container in containers:
            yield kind, container.name, _container_text(container), container.why
    for name, spec in way.claims.items():
        text = json.dumps(thaw(spec), separators=(",", ":"))
        yield "claim", name, text, "a ResourceClaimTemplate gives the pod its NICs"
    if way.compute_domain:
        why = "NVLink between nodes needs one ComputeDomain a job"
        yield "compute-domain", "ComputeDomain", "numNodes = nodes of the job", why


def _cluster(way: KubernetesRow) -> Iterator[_Line]:
    for made in way.objects:
        count = f"{made.count} x " if made.count else ""
        names = f" ({', '.join(made.names)})" if made.names else ""
        yield "object", made.kind, f"{count}made by the {made.made_by}{names}", made.note
    for daemon in way.daemons:
        words = [f"{daemon.minimum} or later" if daemon.minimum else "", daemon.recommended or ""]
        yield "daemon", daemon.name, "; ".join(w for w in words if w) or "runs", daemon.why


def _privilege(way: KubernetesRow) -> Iterator[_Line]:
    why = way.privilege_why or "the platform's network works without"
    if way.privileged:
        yield "security", "privileged", "true", why
    elif way.capabilities:
        yield "security", "capabilities", ", ".join(way.capabilities), why
    else:
        yield "security", "privileged", "false", "no privilege and no capability is needed"
    if way.host_network:
        yield "security", "hostNetwork", "true", why
    if way.host_ipc:
        yield "security", "hostIPC", "true", why
    if way.runtime_class:
        yield (
            "security",
            "runtimeClassName",
            way.runtime_class,
            "the container runtime of these nodes",
        )
    if way.scheduler:
        yield "security", "schedulerName", way.scheduler, "the platform's own scheduler"


def _mount_text(mount: Mount) -> str:
    if mount.source == "empty_dir":
        size = f" up to {mount.size_limit}" if mount.size_limit else ""
        text = f"emptyDir{' in memory' if mount.medium else ''}{size}"
    elif mount.source == "host_path":
        text = f"hostPath {mount.path}"
    else:
        text = f"configMap {mount.path}" + (f" key {mount.key}" if mount.key else "")
    where = "" if mount.containers == ("job",) else f" in {', '.join(mount.containers)}"
    return text + where + (", read-only" if mount.read_only else "")


def _container_text(one: Container) -> str:
    words = [one.image, " ".join((*one.command, *one.args))]
    if one.privileged:
        words.append("privileged")
    elif one.capabilities:
        words.append(f"capabilities {', '.join(one.capabilities)}")
    return "; ".join(word for word in words if word)
