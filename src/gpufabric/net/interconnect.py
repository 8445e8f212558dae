"""Interconnect: one network that a gang can share, and the place it is in."""

from enum import StrEnum

from attrs import frozen

from gpufabric.errors import SpecError

__all__ = ["FabricKind", "Interconnect", "Place"]


class FabricKind(StrEnum):
    """The kind of network between nodes."""

    EFA = "efa"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    GPUDIRECT_TCPX = "gpudirect-tcpx"
    GPUDIRECT_TCPXO = "gpudirect-tcpxo"
    FALCON = "falcon"
    NVLINK = "nvlink"
    ETHERNET = "ethernet"
    LOOPBACK = "loopback"


@frozen(kw_only=True)
class Place:
    """Where something is: a backend and, as far as it goes, region and zone.

    For Kubernetes and ssh `region` is the context or the host group. As a filter
    (`Resources.places`) an empty field means any.
    """

    backend: str
    region: str | None = None
    zone: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Reads `aws`, `aws/us-east-1`, `aws/us-east-1/use1-az4`, `aws/*/use1-az4`, `*/us-east-1`.

        What follows `kubernetes/` is the context, slashes and colons included.
        Raises `SpecError`.
        """
        head, _, rest = text.strip().strip("/").partition("/")
        backend = head.strip().lower()
        if backend == "k8s":
            backend = "kubernetes"
        if not backend:
            raise SpecError(f"{text!r} is not a place: write backend, backend/region or */region")
        if backend in {"kubernetes", "ssh"}:
            return cls(backend=backend, region=rest if rest not in {"", "*"} else None)
        parts = rest.split("/") if rest else []
        if len(parts) > 2 or any(not part for part in parts):
            raise SpecError(f"{text!r} is not a place: write backend/region/zone at most")
        region, zone = (*parts, None, None)[:2]
        return cls(
            backend=backend,
            region=None if region == "*" else region,
            zone=None if zone == "*" else zone,
        )

    def admits(self, other: "Place") -> bool:
        """Says whether `other` lies in this place, read as a filter."""
        return (
            self.backend in {"*", other.backend}
            and self.region in {None, other.region}
            and self.zone in {None, other.zone}
        )

    def __str__(self) -> str:
        region = self.region or ("*" if self.zone else None)
        return "/".join(part for part in (self.backend, region, self.zone) if part)


@frozen(kw_only=True)
class Interconnect:
    """One network that a gang can share, and the place it is in.

    `max_nodes` is the largest gang on it, where known. `name` is the place's own word for it
    (a fabric, block or cluster name), where there is one.
    """

    kind: FabricKind
    place: Place
    name: str | None = None
    max_nodes: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.name} in {self.place}"
            if self.name
            else f"{self.kind} in {self.place}"
        )
