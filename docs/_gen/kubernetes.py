"""Writes docs/how-to/kubernetes-*.md from the catalog: `python docs/_gen/kubernetes.py`.

The example of what check() says is made by the same code that a cluster's check runs, over nodes
of `tests/cluster/profiles.json` to which nothing gives their NICs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clouds import cell, table, write_or_check

from gpufabric._frozen import freeze
from gpufabric.backends.base import CheckReport, Site
from gpufabric.backends.kubernetes._equipment import PAGES, equipment
from gpufabric.backends.kubernetes._node_pools import pools_of
from gpufabric.catalog import Catalog, CloudCatalog
from gpufabric.catalog.rows import Component, Detect, KubernetesRow, PlatformRow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "how-to"
INDEX = "kubernetes-platforms"
NOTE = "<!-- written by docs/_gen/kubernetes.py from the catalog: do not edit -->\n"
ORDINARY = ("cpu", "memory", "pods", "ephemeral-storage", "nvidia.com/gpu")

#: Page -> the profile whose nodes the example of check() has, without their NICs.
EXAMPLES = {
    "kubernetes-eks": "eks-p5",
    "kubernetes-hyperpod": "hyperpod-p5",
    "kubernetes-gke": "gke-a3-mega",
    "kubernetes-aks": "aks-nd-h100",
    "kubernetes-coreweave": "coreweave-h100",
    "kubernetes-nebius": "nebius-h100-no-cluster",
    "kubernetes-crusoe": "crusoe-h100",
    "kubernetes-on-premises": "gpu-operator-h100-ib",
}
#: Page -> its title, where the catalog's does not name the cloud.
TITLES = {
    "kubernetes-lambda": "Lambda Managed Kubernetes",
    "kubernetes-nebius": "Nebius Managed Kubernetes",
    "kubernetes-on-premises": "your own Kubernetes, with NVIDIA's network operator",
}
#: Page -> how the pitfalls begin that belong on it, the likeliest first.
FAULTS = {
    "kubernetes-eks": (
        "EFA device plugin shows DESIRED 0", "EFA plugin pods not on GPU nodes",
        "plugin absent on EKS Auto Mode", "pod Pending with insufficient hugepages-2Mi",
        "EFA stops working in GPU pods", "fi_info finds no device",
        "Karpenter static-interface node", "vpc.amazonaws.com/efa is 10 on p6-b200",
    ),
    "kubernetes-hyperpod": (
        "HyperPod cluster creation fails", "HyperPod instance lookup returns nothing",
        "EFA plugin pods not on GPU nodes",
    ),
    "kubernetes-gke": (
        "pod refused at admission, or attached", "TCPXO failures after an upgrade",
        "only 7 of 8 GPUs work with TCPXO", "pod stays Pending with a DRA claim for mrdma",
        "RDMA NICs of a GKE cluster appear twice", "hostNetwork pod cannot get RDMA",
        "pods never schedule on A4X", "A4X, A4X Max: 'CUDA failure 800'",
    ),
    "kubernetes-aks": (
        "NicClusterPolicy stays notReady", "New nodes of a large AKS pool",
        "all_reduce about 4 GB/s on AKS", "GPU Operator and AKS both manage",
        "InfiniBand works on AKS Hopper", "ibv_reg_mr fails", "Slow all-reduce across a large",
    ),
    "kubernetes-oke": (
        "VF resources never appear on OKE", "VF resource missing on AMD nodes",
        "RDMA node pool rejected with Oracle Linux", "Jobs spread over network blocks",
        "Cuda failure 801 or unhandled system error", "Topology labels read no-imds-data",
    ),
    "kubernetes-coreweave": (
        "pod runs but NCCL falls to sockets", "RoCE pod has rdma/ib but no working GID",
        "Kueue job stays pending", "cluster API stops answering", "a free node looks busy",
        "node pool for GB200 or GB300 refused",
    ),
    "kubernetes-nebius": (
        "two node sets on the same fabric name", "node group will not take a new platform",
        "NCCL on GB300 fails in NVLS", "a job that claims InfiniBand NICs by DRA",
    ),
    "kubernetes-crusoe": ("NCCL takes devices that were not listed",),
}  # fmt: skip


class Stale(Exception):  # noqa: N818  # not an error of a program: a page to be mended
    """The generator names what the catalog does not have any more."""


def homes(catalog: Catalog) -> Iterator[tuple[str, CloudCatalog, PlatformRow]]:
    """Each page with the cloud and the platform that it is about."""
    for cloud in catalog:
        for name, row in cloud.platforms.items():
            if row.kind == "kubernetes":
                yield PAGES[name], cloud, row


def marks(detect: Detect) -> Iterator[str]:
    """By what nodes are recognised."""
    for name, value in detect.labels.items():
        yield f"the label `{name}" + (f"={value}`" if value else "`")
    if detect.label_prefix:
        yield f"a label that begins with `{detect.label_prefix}`"
    if detect.provider_id_prefix:
        yield f"a provider id that begins with `{detect.provider_id_prefix}`"


def known_by(row: PlatformRow) -> str:
    """All sets of marks, each of which is enough."""
    every = [" and ".join(marks(one)) for one in (row.detect, *row.detect_also)]
    told = "; or ".join(filter(None, every))
    if row.generic:
        told += "; and every node of which no other platform is known"
    return told


def page(name: str, catalog: Catalog, cloud: CloudCatalog, row: PlatformRow) -> Iterator[str]:
    """The page of one platform."""
    ways = [way for way in cloud.rows("kubernetes") if way.platform == row.name]
    yield f"# Run on {TITLES.get(name, row.title)}\n"
    yield NOTE
    by = known_by(row)
    yield (
        f"Nodes are taken for `{row.name}` by {by}."
        if by
        else "No mark of these nodes is known, so they are judged as `onprem-k8s`."
    )
    yield (
        "What holds for every cluster is in [Run gangs on Kubernetes](kubernetes.md); instance"
        " types, settings and prices are in"
        f" [the catalog's page](../reference/clouds/{cloud.name}.md).\n"
    )
    if row.detect.note:
        yield f"{sentence(row.detect.note)}\n"
    if row.gpu_taint:
        yield f"GPU nodes carry the taint `{row.gpu_taint}` here by default; pods tolerate it.\n"
    yield from needed(ways)
    yield from shown(name, catalog)
    yield from labels(ways)
    yield from faults(name, cloud)
    yield from sources(cloud, row, ways)


def sentence(text: str) -> str:
    """Words of the catalog as a sentence."""
    whole = cell(text)
    return whole[:1].upper() + whole[1:].rstrip(".") + "."


def version(part: Component) -> str:
    """Which versions of a part are known to work."""
    known = [f"from {part.minimum}"] if part.minimum else []
    known += [f"{part.recommended} recommended"] if part.recommended else []
    known += [f"not {', '.join(part.broken)}"] if part.broken else []
    return "; ".join(known) or "not known"


def grouped(
    pairs: Iterable[tuple[tuple[str, ...], KubernetesRow]], of: int
) -> dict[tuple[str, ...], str]:
    """What is alike of several of `of` ways once, with the names of the ways."""
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for key, way in pairs:
        found.setdefault(key, {})[way.name] = None
    return {key: "all" if len(n) == of else few(tuple(n)) for key, n in found.items()}


def types(ways: list[KubernetesRow]) -> tuple[str, ...]:
    """The instance types of several ways."""
    names = tuple(dict.fromkeys(name for way in ways for name in way.applies_to))
    return ("every type",) if "*" in names else names


def needed(ways: list[KubernetesRow]) -> Iterator[str]:
    """Ways to the NICs, and what each needs in the cluster."""
    yield "## What must be in the cluster\n"
    if not ways:
        yield "The catalog knows no way to give pods the NICs here: tasks get `standard`.\n"
        return
    yield "A *way* is how pods get the NICs; the first that fits the nodes is taken.\n"
    alike: dict[tuple[str, str], list[KubernetesRow]] = {}
    for way in ways:
        where = (way.when or "ordinary") + ("" if way.fabric else "; no RDMA")
        alike.setdefault((", ".join(way.requests) or "nothing", where), []).append(way)
    yield from table(
        ("way", "for", "pods ask for", "where"),
        [
            (few(tuple(one.name for one in same)), few(types(same)), asked, where)
            for (asked, where), same in alike.items()
        ],
    )
    parts = grouped(
        (((one.name, version(one), one.why), way) for way in ways for one in way.daemons), len(ways)
    )
    if parts:
        yield from table(
            ("part", "version", "what it does", "for the ways"),
            [(*key, names) for key, names in parts.items()],
        )
    every = ((one, way) for way in ways for one in way.objects if one.made_by == "cluster")
    objects = grouped(
        (((one.kind, ", ".join(one.names), one.note), way) for one, way in every), len(ways)
    )
    if objects:
        yield from table(
            ("object", "names", "what of it", "for the ways"),
            [(*key, names) for key, names in objects.items()],
        )
    yield (
        "[JobSet](https://jobset.sigs.k8s.io/docs/installation/) gives restarts, and"
        " [Kueue](https://kueue.sigs.k8s.io/docs/installation/) queues; both are optional.\n"
    )


def few(names: tuple[str, ...]) -> str:
    """Some names, and how many more."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def shown(name: str, catalog: Catalog) -> Iterator[str]:
    """What check() says where the NICs are given by nothing."""
    profile = EXAMPLES.get(name)
    if profile is None:
        return
    yield "## How `check()` says that it is missing\n"
    yield f"```text\n{report(profile, catalog)}\n```\n"
    yield (
        "`warn` does not stop tasks of tier `standard`; a task that asks for more is refused on"
        " these nodes, with the same words.\n"
    )


def report(profile: str, catalog: Catalog) -> str:
    """The lines of a check about nodes of a profile."""
    profiles = json.loads((ROOT / "tests/cluster/profiles.json").read_text(encoding="utf-8"))
    body = profiles["profiles"][profile]
    pools, facts = pools_of([node(body)], {}, catalog=catalog, context="prod")
    site = Site(
        backend="kubernetes", pools=pools,
        facts=freeze({"pools": facts, "controllers": {}, "pod_security": None}),
    )  # fmt: skip
    items = tuple(one for one in equipment(site, catalog) if one.name.startswith("nodes "))
    return "\n".join(folded(str(CheckReport(backend="kubernetes", items=items))))


def folded(text: str) -> Iterator[str]:
    """Lines of at most 110 characters."""
    import textwrap

    for line in text.splitlines():
        yield from textwrap.wrap(line, 110, subsequent_indent=" " * 7, drop_whitespace=True) or [""]


def node(body: Mapping[str, Any]) -> dict[str, Any]:
    """A node of a profile that no plug-in gives NICs."""
    words = {"node": "node-1", "index": "1", **body.get("words", {})}

    def fill(text: str) -> str:
        for word, value in words.items():
            text = text.replace("{" + word + "}", str(value))
        return text

    capacity = {
        key: value
        for key, value in body.get("capacity", {}).items()
        if key in ORDINARY or key.startswith("hugepages-") or "gpu-operator" in words
    }
    return {
        "metadata": {
            "name": "node-1",
            "labels": {key: fill(value) for key, value in body.get("labels", {}).items()},
        },
        "spec": {"providerID": fill(body.get("provider_id", "")), "taints": body.get("taints", [])},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "192", "memory": "2Ti", **capacity},
        },
    }


def labels(ways: list[KubernetesRow]) -> Iterator[str]:
    """Labels of nodes that are read."""
    told: dict[str, str] = {}
    for way in ways:
        for name, meaning in way.node_labels.items():
            told.setdefault(name, meaning)
    if told:
        yield "## Labels of nodes that tell\n"
        yield from table(("label", "what it tells"), list(told.items()))


def faults(name: str, cloud: CloudCatalog) -> Iterator[str]:
    """Typical faults with their remedies."""
    wanted = FAULTS.get(name, ())
    rows: list[tuple[object, ...]] = []
    for start in wanted:
        found = [row for row in cloud.rows("pitfall") if row.symptom.startswith(start)]
        if len(found) != 1:
            raise Stale(f"{name}: {len(found)} pitfalls of {cloud.name} begin with {start!r}")
        rows.append((found[0].symptom, found[0].cause, found[0].fix))
    if rows:
        yield "## Typical faults\n"
        yield from table(("symptom", "cause", "remedy"), rows)


def sources(cloud: CloudCatalog, row: PlatformRow, ways: list[KubernetesRow]) -> Iterator[str]:
    """The pages that say all this."""
    names = dict.fromkeys([*row.sources, *(name for way in ways for name in way.sources)])
    yield "## Sources\n"
    for name in names:
        source = cloud.sources[name]
        yield f"- {cell(source.title)}" + (f" <{source.url}>" if source.url else "")
    yield ""


def index(catalog: Catalog) -> Iterator[str]:
    """The page that leads to all of them."""
    yield "# Platforms that Kubernetes clusters run on\n"
    yield NOTE
    yield (
        "Every pool of nodes is judged for itself: by its marks it belongs to a platform, and that"
        " has its own way of giving pods the NICs. `python -m gpufabric doctor` and"
        " `fabric.check()` say what a cluster lacks; the pages below say what to install.\n"
    )
    rows = [
        (TITLES.get(name, row.title), name, known_by(row), row.name)
        for name, _, row in sorted(homes(catalog), key=lambda one: one[0])
    ]
    yield "| platform | in offers | recognised by |\n|---|---|---|"
    for title, name, by, short in rows:
        yield f"| [{title}]({name}.md) | `{short}` | {by or 'no mark of it is known'} |"
    yield ""


def main() -> int:
    """Writes every page; with --check says which are stale instead."""
    catalog = Catalog.shipped()
    texts = {name: "\n".join(page(name, catalog, c, row)) for name, c, row in homes(catalog)}
    texts[INDEX] = "\n".join(index(catalog))
    return write_or_check(texts, FOLDER, "docs/_gen/kubernetes.py")


if __name__ == "__main__":
    raise SystemExit(main())
