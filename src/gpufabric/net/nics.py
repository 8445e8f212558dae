"""NicLayout: a node's side of an interconnect."""

from attrs import frozen

__all__ = ["Nic", "NicLayout"]


@frozen(kw_only=True)
class Nic:
    """One network card of a node, as it is asked for.

    `index` counts from 0. `card` and `device` are the cloud's card and device index, where it has
    such. `role` says what it is for: `fabric` (between GPUs) or `frontend` (all other traffic).
    """

    index: int
    model: str
    gbps: float | None
    gpudirect: bool
    role: str = "fabric"
    card: int | None = None
    device: int | None = None
    type: str | None = None
    subnet: str | None = None


@frozen(kw_only=True)
class NicLayout:
    """The NICs of one node. `gbps` is the sum over the fabric's NICs, None where unknown."""

    nics: tuple[Nic, ...] = ()

    @property
    def fabric(self) -> tuple[Nic, ...]:
        """The NICs that carry GPU traffic."""
        return tuple(nic for nic in self.nics if nic.role == "fabric")

    @property
    def gbps(self) -> float | None:
        """The sum over the fabric's NICs in Gbit/s, None where one is unknown."""
        speeds = [nic.gbps for nic in self.fabric]
        known = [speed for speed in speeds if speed is not None]
        return sum(known) if len(known) == len(speeds) else None

    @property
    def gpudirect(self) -> bool:
        """Whether there are NICs of the fabric and each of them reads GPU memory."""
        return bool(self.fabric) and all(nic.gpudirect for nic in self.fabric)
