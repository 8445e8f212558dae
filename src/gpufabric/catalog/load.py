"""Files to rows: strict reading of TOML or JSON, and of the compiled form that ships.

TOML is the source of truth, written and reviewed by people. `tomllib` reads about 1 MB/s, so the
package also ships each file compiled to JSON lines (`compile.py`; a test compares the two).
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from gpufabric._frozen import FrozenDict
from gpufabric.catalog._row import Row
from gpufabric.catalog._structure import Fault, FaultsFound, build
from gpufabric.catalog.rows import (
    CloudRow,
    DiscoveryRow,
    EnvRow,
    InstanceTypeRow,
    InterconnectRow,
    KubernetesRow,
    LimitRow,
    NcclVariableRow,
    NicLayoutRow,
    Pitfall,
    Placement,
    PlatformRow,
    PriceRow,
    ReferenceRow,
    SourceRow,
    VmRow,
)
from gpufabric.errors import CatalogError

__all__ = [
    "LINES",
    "TABLES",
    "CatalogFile",
    "Lines",
    "parse_text",
    "read_file",
    "read_raw",
    "read_text",
    "uncollected",
]

TABLES: Mapping[str, type[Row]] = {
    "platform": PlatformRow,
    "interconnect": InterconnectRow,
    "placement": Placement,
    "instance_type": InstanceTypeRow,
    "price": PriceRow,
    "nic_layout": NicLayoutRow,
    "vm": VmRow,
    "kubernetes": KubernetesRow,
    "env": EnvRow,
    "reference": ReferenceRow,
    "pitfall": Pitfall,
    "discovery": DiscoveryRow,
    "variable": NcclVariableRow,
    "limit": LimitRow,
}
"""Every `[[table]]` that a file may have; beside them `[cloud]` and `[source.<name>]`."""


LINES = (
    ("cloud", "source", "platform", "interconnect", "instance_type", "price"),
    ("placement", "nic_layout", "vm", "kubernetes", "env"),
    ("reference", "pitfall", "discovery", "variable", "limit"),
)
"""The tables of each line of a compiled file, after its header."""


class CatalogFile(Row):
    """One file, read and checked: its cloud, sources and rows by table."""

    origin: str
    cloud: CloudRow
    sources: FrozenDict[str, SourceRow]
    tables: FrozenDict[str, tuple[Any, ...]]

    def rows(self, table: str) -> tuple[Any, ...]:
        """The rows of one table, in the file's order."""
        return self.tables.get(table, ())


def read_file(path: Path, *, origin: str | None = None) -> CatalogFile:
    """Reads a `.toml` or `.json` file of the catalog; every fault is in the error."""
    text = read_text(path)
    origin = origin or str(path)
    return read_raw(parse_text(text, origin), origin=origin, text=text)


def read_text(path: Path) -> str:
    """A file's text. Raises `CatalogError`."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise CatalogError(f"{path}: cannot be read: {exc}") from exc


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Pauses the search for reference cycles: rows have none, and it costs more than they do."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def parse_text(text: str, origin: str) -> dict[str, Any]:
    """The raw tables of a file's text, by the ending of its name."""
    import tomllib

    try:
        raw: object = json.loads(text) if origin.endswith(".json") else tomllib.loads(text)
    except ValueError as exc:
        raise CatalogError(f"{origin}: not readable: {exc}") from exc
    if not isinstance(raw, dict):
        raise CatalogError(f"{origin}: must hold tables, holds {type(raw).__name__}")
    return cast("dict[str, Any]", raw)


def read_raw(raw: Mapping[str, Any], *, origin: str, text: str = "") -> CatalogFile:
    """Checks raw tables and gives their rows; `text` is what line numbers are counted in."""
    faults: list[str] = []
    where = Lines(origin, text)
    cloud = _one(raw.get("cloud"), CloudRow, where, faults)
    sources = _sources(raw.get("source", {}), where, faults)
    tables: dict[str, tuple[Any, ...]] = {}
    for table, rows in raw.items():
        if table in {"cloud", "source"}:
            continue
        cls = TABLES.get(table)
        if cls is None:
            faults.append(_unknown_table(table, where))
            continue
        tables[table] = _table(table, rows, cls, where, faults)
    if faults or cloud is None:
        raise CatalogError("\n".join(faults))
    return CatalogFile(
        origin=origin, cloud=cloud, sources=FrozenDict(sources), tables=FrozenDict(tables)
    )


def _with(raw: object, **more: str) -> object:
    """A raw table with what its place in the file says; anything else as it is, to be refused."""
    return {**cast("dict[str, object]", raw), **more} if isinstance(raw, dict) else raw


def _one(raw: object, cls: type[CloudRow], where: Lines, faults: list[str]) -> CloudRow | None:
    if raw is None:
        faults.append(f"{where.origin}: [cloud] is missing: every file says whose rows it has")
        return None
    try:
        return build(cls, _with(raw, origin=where.origin))
    except FaultsFound as exc:
        faults += [where.tell("cloud", None, fault) for fault in exc.faults]
        return None


def _sources(raw: object, where: Lines, faults: list[str]) -> dict[str, SourceRow]:
    if not isinstance(raw, Mapping):
        faults.append(f"{where.origin}: source must be tables [source.<name>]")
        return {}
    found: dict[str, SourceRow] = {}
    for name, body in cast("Mapping[str, object]", raw).items():
        try:
            found[name] = build(SourceRow, _with(body, name=name))
        except FaultsFound as exc:
            faults += [where.tell(f"source.{name}", None, fault) for fault in exc.faults]
    return found


def _table(
    table: str, rows: object, cls: type[Row], where: Lines, faults: list[str]
) -> tuple[Any, ...]:
    if not isinstance(rows, list):
        faults.append(f"{where.origin}: {table} must be written [[{table}]], once a row")
        return ()
    made: list[Any] = []
    for number, raw in enumerate(cast("list[object]", rows)):
        try:
            made.append(build(cls, _with(raw, origin=where.origin)))
        except FaultsFound as exc:
            faults += [where.tell(table, number, fault) for fault in exc.faults]
    return tuple(made)


def _unknown_table(table: str, where: Lines) -> str:
    from gpufabric._convert import near

    hint = near(table, TABLES) or f" (known: {', '.join(TABLES)})"
    return f"{where.origin}:{where.line(table, 0, ())}: unknown table {table}{hint}"


_HEADER = re.compile(r"^[ \t]*\[\[?[\w.-]+\]\]?[ \t]*(#.*)?$", re.MULTILINE)


class Lines(NamedTuple):
    """Finds the line of a fault by looking for its row's header and then its key."""

    origin: str
    text: str

    def tell(self, table: str, number: int | None, fault: Fault) -> str:
        """A fault with file, line, row and field."""
        line = self.line(table, number, fault.path)
        field = ".".join(str(p) for p in fault.path)
        place = f"{self.origin}:{line}" if line else self.origin
        row = table if number is None else f"{table}[{number}]"
        return (
            f"{place}: {row}.{field}: {fault.message}"
            if field
            else f"{place}: {row}: {fault.message}"
        )

    def line(self, table: str, number: int | None, path: tuple[str | int, ...]) -> int:
        """The line of a field of a row, or of the row where the field is not found; 0: neither."""
        header = re.escape(f"[{table}]" if number is None else f"[[{table}]]")
        starts = list(re.finditer(rf"^[ \t]*{header}.*$", self.text, re.MULTILINE))
        if (number or 0) >= len(starts):
            return 0
        start = starts[number or 0]
        following = _HEADER.search(self.text, start.end())
        end = following.start() if following else len(self.text)
        for key in reversed([part for part in path if isinstance(part, str)]):
            field = re.compile(rf"(?<![\w-]){re.escape(key)}\"?[ \t]*=")
            found = field.search(self.text, start.end(), end)
            if found:
                return self.text.count("\n", 0, found.start()) + 1
        return self.text.count("\n", 0, start.start()) + 1
