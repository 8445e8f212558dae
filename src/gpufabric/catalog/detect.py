"""Which platform a Kubernetes node belongs to, by what the catalog says to look at."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import Detect, PlatformRow

__all__ = ["fits", "platform_of"]


def platform_of(
    catalog: Catalog,
    *,
    labels: Mapping[str, str],
    provider_id: str = "",
    allocatable: Mapping[str, str] | None = None,
) -> tuple[CloudCatalog, PlatformRow] | None:
    """The cloud and platform of a node; None where no row fits.

    Where several fit (HyperPod is EKS too), the one that more was said of; a generic platform only
    where no other fits.
    """
    best: tuple[tuple[bool, int], CloudCatalog, PlatformRow] | None = None
    names = "\n".join(("", *labels))  # one look for a prefix instead of one a label
    for detect, cloud, platform in _marks(catalog):
        if detect.label_prefix is not None and f"\n{detect.label_prefix}" not in names:
            continue
        weight = fits(detect, labels, provider_id, allocatable or {})
        if not weight:
            continue
        rank = (not platform.generic, weight)
        if best is None or rank > best[0]:
            best = (rank, cloud, platform)
    return None if best is None else best[1:]


@lru_cache(maxsize=8)
def _marks(catalog: Catalog) -> tuple[tuple[Detect, CloudCatalog, PlatformRow], ...]:
    """Every set of marks of a platform whose nodes are of Kubernetes."""
    return tuple(
        (detect, cloud, platform)
        for cloud in catalog
        for platform in cloud.platforms.values()
        if platform.kind == "kubernetes"
        for detect in (platform.detect, *platform.detect_also)
    )


def fits(
    detect: Detect, labels: Mapping[str, str], provider_id: str, allocatable: Mapping[str, str]
) -> int:
    """How much of a node's marks a row names, 0 where one does not hold or none is named."""
    weight = 0
    if detect.provider_id_prefix is not None:  # the cheapest first: most rows fit no node
        if not provider_id.startswith(detect.provider_id_prefix):
            return 0
        weight += 1
    for name, wanted in detect.labels.items():
        if not _labelled(labels, name, wanted):
            return 0
        weight += 2
    for name, wanted in detect.without_labels.items():
        if _labelled(labels, name, wanted):
            return 0
    if detect.label_prefix is not None:
        prefix = detect.label_prefix
        for name in labels:
            if name.startswith(prefix):
                break
        else:
            return 0
        weight += 2
    for name, wanted in detect.allocatable.items():
        found = allocatable.get(name, "0")
        if found in ("", "0") or (wanted and found != wanted):
            return 0
        weight += 1
    return weight


def _labelled(labels: Mapping[str, str], name: str, wanted: str) -> bool:
    return name in labels and (not wanted or labels[name] in wanted.split("|"))
