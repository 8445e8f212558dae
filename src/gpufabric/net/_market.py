"""What is sold of one accelerator: grouped by type and platform, each place with its rivals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpufabric.catalog.rows import InstanceTypeRow
from gpufabric.net._offered import Sold
from gpufabric.net._reach import strongest
from gpufabric.net.interconnect import Place

__all__ = ["Group", "Market", "market_of"]


class Group(NamedTuple):
    """One type on one platform, or one pool: every place of it, with the types it is up against.

    Places with the same rivals share one tuple of them, so that they are judged once.
    """

    first: Sold
    places: tuple[tuple[Sold, tuple[InstanceTypeRow, ...]], ...]


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
    return Market(
        tuple(
            Group(members[0], tuple((one, rivals.of(one)) for one in members))
            for members in groups.values()
        )
    )


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
        self._shared: dict[tuple[str, ...], tuple[InstanceTypeRow, ...]] = {}

    def of(self, sold: Sold) -> tuple[InstanceTypeRow, ...]:
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
