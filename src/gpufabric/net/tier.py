"""NetworkTier: what a user asks of the network between nodes."""

from enum import StrEnum

__all__ = ["NetworkTier"]


class NetworkTier(StrEnum):
    """A promise about the network between nodes, kept or refused. Ordered: STANDARD is lowest.

    - `STANDARD`: any network.
    - `GPUDIRECT`: NICs read GPU memory (EFA with RDMA, InfiniBand, RoCE, TCPX, TCPXO).
    - `BEST`: the fastest interconnect that this accelerator is sold with in that place, with
      every NIC of it attached.
    """

    STANDARD = "standard"
    GPUDIRECT = "gpudirect"
    BEST = "best"

    @property
    def level(self) -> int:
        """0 for STANDARD, 1 for GPUDIRECT, 2 for BEST."""
        return _LEVELS[self]

    def __lt__(self, other: object) -> bool:
        return self.level < other.level if isinstance(other, NetworkTier) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.level <= other.level if isinstance(other, NetworkTier) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.level > other.level if isinstance(other, NetworkTier) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.level >= other.level if isinstance(other, NetworkTier) else NotImplemented


_LEVELS = {"standard": 0, "gpudirect": 1, "best": 2}
