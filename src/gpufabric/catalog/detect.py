"""Which platform a Kubernetes node belongs to, by what the catalog says to look at."""

from __future__ import annotations

from collections.abc import Mapping

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
    for cloud in catalog:
        for platform in cloud.platforms.values():
            if platform.kind != "kubernetes":
                continue
            weight = max(
                fits(detect, labels, provider_id, allocatable or {})
                for detect in (platform.detect, *platform.detect_also)
            )
            rank = (not platform.generic, weight)
            if weight and (best is None or rank > best[0]):
                best = (rank, cloud, platform)
    return None if best is None else best[1:]


def fits(
    detect: Detect, labels: Mapping[str, str], provider_id: str, allocatable: Mapping[str, str]
) -> int:
    """How much of a node's marks a row names, 0 where one does not hold or none is named."""
    weight = 0
    if any(_labelled(labels, *one) for one in detect.without_labels.items()):
        return 0
    for one in detect.labels.items():
        if not _labelled(labels, *one):
            return 0
        weight += 2
    if detect.label_prefix is not None:
        if not any(name.startswith(detect.label_prefix) for name in labels):
            return 0
        weight += 2
    if detect.provider_id_prefix is not None:
        if not provider_id.startswith(detect.provider_id_prefix):
            return 0
        weight += 1
    for name, wanted in detect.allocatable.items():
        found = allocatable.get(name, "0")
        if found in ("", "0") or (wanted and found != wanted):
            return 0
        weight += 1
    return weight


def _labelled(labels: Mapping[str, str], name: str, wanted: str) -> bool:
    return name in labels and (not wanted or labels[name] in wanted.split("|"))
