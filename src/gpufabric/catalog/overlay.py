"""What a user's own file must keep beyond its fields: names that exist, prices that hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import date
from typing import TYPE_CHECKING

from gpufabric.catalog._structure import Fault
from gpufabric.catalog.load import CatalogFile, Lines
from gpufabric.errors import CatalogError

if TYPE_CHECKING:
    from gpufabric.catalog.index import CloudCatalog

__all__ = ["check_overlay"]


def check_overlay(cloud: CloudCatalog, file: CatalogFile, *, today: date, text: str = "") -> None:
    """Raises `CatalogError` with every fault of a file as it now stands over its cloud."""
    where = Lines(file.origin, text)
    faults = [
        where.tell(table, number, Fault((field,), message))
        for table, number, field, message in (*_names(cloud, file), *_prices(file, today))
    ]
    if faults:
        raise CatalogError("\n".join(faults))


_Told = tuple[str, int, str, str]


def _names(cloud: CloudCatalog, file: CatalogFile) -> Iterator[_Told]:
    known: dict[str, Collection[str]] = {
        "interconnect": {row.name for row in cloud.rows("interconnect")},
        "platform": cloud.platforms,
        "type": set(cloud.type_names),
    }
    for table, number, field, what, name in _named(file):
        if name != "*" and name not in known[what]:
            from gpufabric._convert import near

            hint = near(name, known[what])
            yield table, number, field, f"no {what} {name!r} in {cloud.name}{hint}"


def _named(file: CatalogFile) -> Iterator[tuple[str, int, str, str, str]]:
    """Every name that a row uses: table, number, field, what it names, the name."""
    for number, row in enumerate(file.rows("instance_type")):
        yield "instance_type", number, "interconnect", "interconnect", row.interconnect
        for name in row.platforms:
            yield "instance_type", number, "platforms", "platform", name
    for number, row in enumerate(file.rows("price")):
        yield "price", number, "instance_type", "type", row.instance_type
    for table in ("nic_layout", "vm", "kubernetes", "env"):
        for number, row in enumerate(file.rows(table)):
            for name in row.applies_to:
                yield table, number, "applies_to", "type", name


def _prices(file: CatalogFile, today: date) -> Iterator[_Told]:
    for number, row in enumerate(file.rows("price")):
        if row.usd_hour <= 0:
            yield "price", number, "usd_hour", f"must be above 0, is {row.usd_hour:g}"
        if row.until is not None and row.until < today:
            yield "price", number, "until", f"{row.until} is in the past: this price holds no more"
