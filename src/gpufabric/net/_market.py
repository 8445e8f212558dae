"""What is sold of one accelerator: grouped by type and platform, each place with its rivals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from gpufabric.catalog.rows import InstanceTypeRow
from gpufabric.net._offered import Sold, Used, sources_of, warnings_of
from gpufabric.net._reach import attached, network_of, reached, reached_alone, strongest
from gpufabric.net.interconnect import Interconnect, Place
from gpufabric.net.nics import NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Source
from gpufabric.resources import Accelerator

__all__ = ["Alike", "Group", "Market", "market_of"]

Rivals = tuple[InstanceTypeRow, ...]


class Group:
    """One type on one platform, or one pool: every place of it, with the types it is up against.

    It keeps what offers of it share, so that a question asks each row once in a catalog's life.
    """

    def __init__(self, members: Sequence[Sold], rivals: Iterable[Rivals]) -> None:
        self.first = members[0]
        self.members = tuple(members)
        numbers: dict[int, int] = {}
        distinct: list[Rivals] = []
        which: list[int] = []
        for one in rivals:  # places with the same rivals share one tuple of them
            if id(one) not in numbers:
                numbers[id(one)] = len(distinct)
                distinct.append(one)
            which.append(numbers[id(one)])
        self.rivals = tuple(distinct)
        self.which = tuple(which)
        """For each member which of `rivals` are its."""
        self._alike: dict[tuple[int, bool], Alike] = {}

    def alike(self, gpus: int, *, alone: bool) -> Alike:
        """What offers of so many GPUs a node share here."""
        found = self._alike.get((gpus, alone))
        if found is None:
            found = self._alike[gpus, alone] = Alike(self, gpus, alone=alone)
        return found


class Alike:
    """What offers of one type on one platform share, wherever they are."""

    def __init__(self, group: Group, gpus: int, *, alone: bool) -> None:
        sold, row = group.first, group.first.row
        network = network_of(sold.cloud, row, sold.platform, whole=gpus == row.gpu.count)
        if sold.attached is not None:
            network = attached(network, row, sold.attached)
        self.gpus = gpus
        self.network = network
        self.accelerator = Accelerator(model=row.gpu.model, count=gpus)
        self._used = Used(sold, network, gpus, alone)
        self._group = group
        self._reached: dict[int, tuple[NetworkTier, str]] = {}

    def reached(self, which: int, num_nodes: int) -> tuple[NetworkTier, str]:
        """The tier that so many nodes reach beside these rivals, and why not a higher one."""
        domain = self.network.nvlink_nodes
        if domain is not None and num_nodes > domain:  # the reason tells the number
            return self._judged(which, num_nodes)
        found = self._reached.get(which)
        if found is None:
            found = self._reached[which] = self._judged(which, num_nodes)
        return found

    def _judged(self, which: int, num_nodes: int) -> tuple[NetworkTier, str]:
        row, rivals = self._used.sold.row, self._group.rivals[which]
        if self._used.alone:
            return reached_alone(row, self.gpus, rivals)
        return reached(row, self.network, num_nodes, rivals)

    @cached_property
    def nics(self) -> NicLayout:
        """A node's NICs."""
        return self._used.nics()

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """How sure the row is."""
        return warnings_of(self._used.sold.row, self._used.sold.cloud)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the row."""
        return sources_of(self._used.sold.cloud, self._used.sold.row)

    @cached_property
    def placed(self) -> tuple[tuple[Interconnect, tuple[str, ...]], ...]:
        """For each member of the group the network that a gang shares there, and the limits."""
        used, limits = self._used, self._used.limits()
        places = [member.place for member in self._group.members]
        return tuple((used.interconnect(at), (*limits, *used.fabrics(at))) for at in places)


class Market(NamedTuple):
    """Everything sold of one accelerator."""

    groups: tuple[Group, ...]


def market_of(same: Iterable[Sold]) -> Market:
    """Groups what is sold, in the order given."""
    sold = list(same)
    rivals = _Rivals(sold)
    groups: dict[tuple[str, str, str | None], list[Sold]] = {}
    for one in sold:
        groups.setdefault((one.row.name, one.platform.name, one.pool), []).append(one)
    return Market(tuple(Group(members, map(rivals.of, members)) for members in groups.values()))


class _Rivals:
    """The types of one accelerator by place. A type of unknown regions may be sold anywhere."""

    def __init__(self, same: Iterable[Sold]) -> None:
        self._rows: dict[Place, dict[str, InstanceTypeRow]] = {}
        self._anywhere: dict[str, InstanceTypeRow] = {}
        self._all: dict[str, InstanceTypeRow] = {}
        for sold in same:
            rows = self._rows.setdefault(sold.place, {})
            rows[sold.row.name] = self._all[sold.row.name] = sold.row
            if sold.place.region is None:
                self._anywhere[sold.row.name] = sold.row
        self._lists: dict[tuple[Place, str], list[InstanceTypeRow]] = {}
        self._shared: dict[tuple[str, ...], Rivals] = {}

    def of(self, sold: Sold) -> Rivals:
        """The other types of this accelerator here that a promise must hold against."""
        key = (sold.place, sold.row.gpu.model)
        found = self._lists.get(key)
        if found is None:
            rows = self._all if sold.place.region is None else self._rows[sold.place]
            here = {**rows, **self._anywhere}.values()
            found = self._lists[key] = strongest(r for r in here if r.gpu.model == key[1])
        others = tuple(row for row in found if row is not sold.row)
        names = (sold.row.name, *(row.name for row in others))
        return self._shared.setdefault(names, others)
