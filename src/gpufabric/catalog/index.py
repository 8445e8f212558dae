"""`Catalog`: the rows of every cloud, found by accelerator, name and platform.

A cloud's file is opened when one of its rows is asked for, and a row becomes an object when it is
looked at; both are kept. Rows are immutable, so one catalog serves every thread and tenant.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from gpufabric.catalog._structure import build
from gpufabric.catalog.load import (
    LINES,
    TABLES,
    CatalogFile,
    parse_text,
    read_raw,
    read_text,
    uncollected,
)
from gpufabric.catalog.overlay import check_overlay
from gpufabric.catalog.rows import (
    CloudRow,
    EnvRow,
    InstanceTypeRow,
    InterconnectRow,
    KubernetesRow,
    NicLayoutRow,
    Placement,
    PlatformRow,
    PriceRow,
    SourceRow,
    VmRow,
)
from gpufabric.catalog.spelling import spellings
from gpufabric.errors import CatalogError

__all__ = ["Catalog", "CloudCatalog"]

_COMPILED = Path(__file__).parent / "data" / "compiled"
_LINE_OF = {table: number for number, tables in enumerate(LINES) for table in tables}
_EVERY = "*"
K = TypeVar("K")


class _Shipped:
    """The raw tables of one compiled file, each line parsed when first asked for."""

    def __init__(self, path: Path) -> None:
        self.origin = f"catalog:{path.stem}.toml"
        self._path = path
        self._lines: dict[int, dict[str, Any]] = {}

    def raw(self, table: str) -> Any:
        number = _LINE_OF[table]
        if number not in self._lines:
            with self._path.open("rb") as file:
                for _ in range(number + 1):
                    file.readline()
                self._lines[number] = json.loads(file.readline())
        return self._lines[number].get(table, [] if table in TABLES else {})


class CloudCatalog:
    """The rows of one cloud: the shipped file's, then those of overlays (which win by name)."""

    def __init__(
        self, name: str, shipped: _Shipped | None, overlays: tuple[CatalogFile, ...] = ()
    ) -> None:
        self.name = name
        self._shipped = shipped
        self._overlays = overlays
        self._rows: dict[str, tuple[Any, ...]] = {}
        self._types: dict[str, InstanceTypeRow] = {}
        self._kept: dict[tuple[str, object], Any] = {}
        self._lists: dict[str, list[Any]] = {}
        self._of_type: dict[str, dict[str, list[int]]] = {}

    def __repr__(self) -> str:
        return f"CloudCatalog({self.name!r})"

    def with_overlay(self, file: CatalogFile) -> CloudCatalog:
        """The same cloud with the rows of one more file over it."""
        return CloudCatalog(self.name, self._shipped, (*self._overlays, file))

    @functools.cached_property
    def row(self) -> CloudRow:
        """The cloud itself."""
        if self._shipped is None:
            return self._overlays[-1].cloud
        return build(CloudRow, {**self._shipped.raw("cloud"), "origin": self._shipped.origin})

    @functools.cached_property
    def sources(self) -> dict[str, SourceRow]:
        """Sources by name."""
        raw: dict[str, Any] = self._shipped.raw("source") if self._shipped else {}
        found = {name: build(SourceRow, {**body, "name": name}) for name, body in raw.items()}
        for file in self._overlays:
            found.update(file.sources)
        return found

    def kept(self, row: InstanceTypeRow | None, key: object, make: Callable[[], K]) -> K:
        """What `make` derives from this catalog's rows, made once; for other rows each time."""
        name = row.name if row is not None else ""
        if row is not None and self._types.get(name) is not row:
            return make()
        found = self._kept.get((name, key))
        if found is None:
            found = self._kept[name, key] = make()
        return found

    def address(self, source: str) -> str:
        """The address of a source, or its title where it has none."""
        row = self.sources.get(source)
        return source if row is None else row.url or row.title

    def rows(self, table: str) -> tuple[Any, ...]:
        """All rows of one table."""
        if table not in self._rows:
            listed = self._listed(table)
            self._rows[table] = tuple(self._built(listed, n, table) for n in range(len(listed)))
        return self._rows[table]

    def _listed(self, table: str) -> list[Any]:
        """The shipped file's raw tables and the overlays' rows; an overlay wins by name."""
        if table not in self._lists:
            over = [row for file in self._overlays for row in file.rows(table)]
            raws = list(self._shipped.raw(table)) if self._shipped else []
            if over and hasattr(over[0], "name"):
                by_name = {raw["name"]: raw for raw in raws}
                by_name.update({row.name: row for row in over})
                self._lists[table] = list(by_name.values())
            else:
                self._lists[table] = [*raws, *over]
        return self._lists[table]

    def _built(self, listed: list[Any], number: int, table: str) -> Any:
        """One row of a list, made from its raw table when it is first looked at."""
        found = listed[number]
        if isinstance(found, dict):
            origin = self._shipped.origin if self._shipped else ""
            raw = cast("dict[str, object]", found)
            found = listed[number] = build(TABLES[table], {**raw, "origin": origin})
        return found

    # ---- instance types

    @functools.cached_property
    def _raw_types(self) -> dict[str, Any]:
        """Name -> raw table of the shipped file, or the row of an overlay."""
        raws = self._shipped.raw("instance_type") if self._shipped else ()
        found: dict[str, Any] = {raw["name"]: raw for raw in raws}
        for file in self._overlays:
            found.update({row.name: row for row in file.rows("instance_type")})
        return found

    @functools.cached_property
    def _by_model(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, raw in self._raw_types.items():
            model = raw.gpu.model if isinstance(raw, InstanceTypeRow) else raw["gpu"]["model"]
            found.setdefault(model, []).append(name)
        return found

    @functools.cached_property
    def _by_alias(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, raw in self._raw_types.items():
            aliases = raw.aliases if isinstance(raw, InstanceTypeRow) else raw.get("aliases", ())
            for spelling in (name, *aliases):
                found.setdefault(spelling.lower(), name)
        return found

    def _type(self, name: str) -> InstanceTypeRow:
        row = self._types.get(name)
        if row is None:
            raw = self._raw_types[name]
            origin = self._shipped.origin if self._shipped else ""
            row = (
                raw
                if isinstance(raw, InstanceTypeRow)
                else build(InstanceTypeRow, {**raw, "origin": origin})
            )
            self._types[name] = row
        return row

    @property
    def models(self) -> tuple[str, ...]:
        """The accelerator models that this cloud has."""
        return tuple(self._by_model)

    @functools.cached_property
    def model_spellings(self) -> dict[str, str]:
        """The accelerator models of this cloud by their spellings."""
        return spellings(self.models)

    @functools.cached_property
    def regions(self) -> tuple[str, ...]:
        """Every region that a row names."""
        found = dict.fromkeys(self.row.regions)
        for row in self.types():
            found.update(dict.fromkeys(self.regions_of(row)))
        return tuple(found)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name and alias of an instance type."""
        return tuple(self._by_alias)

    @property
    def type_names(self) -> tuple[str, ...]:
        """Every instance type's name."""
        return tuple(self._raw_types)

    def types(self, model: str | None = None) -> tuple[InstanceTypeRow, ...]:
        """The instance types with this accelerator model, or all."""
        names = self._raw_types if model is None else self._by_model.get(model, ())
        return tuple(self._type(name) for name in names)

    def find_type(self, name: str) -> InstanceTypeRow | None:
        """The type of this name or alias, in any case."""
        found = self._by_alias.get(name.lower())
        return self._type(found) if found else None

    # ---- what belongs to a type

    @functools.cached_property
    def platforms(self) -> dict[str, PlatformRow]:
        """Platforms by name."""
        return {row.name: row for row in self.rows("platform")}

    @functools.cached_property
    def _interconnects(self) -> dict[str, InterconnectRow]:
        plain = InterconnectRow(name="ethernet", kind="ethernet", scope="one network")
        return {plain.name: plain, **{row.name: row for row in self.rows("interconnect")}}

    def interconnect(self, row: InstanceTypeRow) -> InterconnectRow:
        """The network between nodes of this type. Plain Ethernet is known everywhere."""
        found = self._interconnects.get(row.interconnect)
        if found is None:
            raise CatalogError(
                f"{row.origin}: {row.name}: interconnect {row.interconnect!r} has no row"
                f" (known: {', '.join(self._interconnects)})"
            )
        return found

    @functools.cached_property
    def _prices(self) -> dict[str, list[Any]]:
        raws = self._shipped.raw("price") if self._shipped else ()
        origin = self._shipped.origin if self._shipped else ""
        found: dict[str, list[Any]] = {}
        for raw in raws:
            found.setdefault(raw["instance_type"], []).append({**raw, "origin": origin})
        for file in self._overlays:
            for row in file.rows("price"):
                found.setdefault(row.instance_type, []).insert(0, row)
        return found

    def prices(self, name: str) -> tuple[PriceRow, ...]:
        """What this type costs, the latest overlay's first."""
        found: list[Any] = self._prices.get(name, [])
        for i, price in enumerate(found):
            if not isinstance(price, PriceRow):
                found[i] = build(PriceRow, price)
        return tuple(found)

    def platforms_of(self, row: InstanceTypeRow) -> tuple[PlatformRow, ...]:
        """Where a type is sold: the platforms it names, or those that take every type."""
        if row.platforms:
            return tuple(self.platforms[name] for name in row.platforms)
        return tuple(platform for platform in self.platforms.values() if platform.any_type)

    def regions_of(self, row: InstanceTypeRow) -> tuple[str, ...]:
        """Where a type was seen or has a price; empty where not known."""
        priced = (price.region for price in self.prices(row.name) if price.region)
        return tuple(dict.fromkeys((*row.regions, *priced)))

    def nic_layout(self, name: str, platform: str) -> NicLayoutRow | None:
        """Every NIC of this type on this platform."""
        return next(self._applying("nic_layout", name, platform), None)

    def vm_rows(self, name: str) -> tuple[VmRow, ...]:
        """How machines of this type are made a cluster."""
        return tuple(self._applying("vm", name, None))

    def kubernetes_rows(self, name: str, platform: str) -> tuple[KubernetesRow, ...]:
        """The ways to give pods this type's NICs on this platform, the preferred first."""
        rows = [r for r in self._applying("kubernetes", name, None) if r.platform == platform]
        return tuple(sorted(rows, key=lambda r: r.preference))

    def env_rows(self, name: str, platform: str) -> tuple[EnvRow, ...]:
        """The environment of this type on this platform, general rows first."""
        return tuple(self._applying("env", name, platform))

    def placement(self, name: str | None) -> Placement | None:
        """The closeness object of this name."""
        return next((row for row in self.rows("placement") if row.name == name), None)

    def _applying(self, table: str, name: str, platform: str | None) -> Iterator[Any]:
        listed = self._listed(table)
        per_type = self._per_type(table)
        for number in per_type.get(name, per_type[_EVERY]):
            row = self._built(listed, number, table)
            wanted: tuple[str, ...] = () if platform is None else row.platforms
            if not wanted or platform in wanted or _EVERY in wanted:
                yield row

    def _per_type(self, table: str) -> dict[str, list[int]]:
        """Type -> which rows of a table apply to it, `*` for types that have no row."""
        if table not in self._of_type:
            found: dict[str, list[int]] = {_EVERY: []}
            for number, row in enumerate(self._listed(table)):
                raw: Any = row  # a raw table or a row, told apart by its type alone
                applies: Sequence[str] = (
                    raw["applies_to"] if isinstance(row, dict) else raw.applies_to
                )
                every = _EVERY in applies
                for name in (*self._raw_types, _EVERY) if every else applies:
                    found.setdefault(name, []).append(number)
            self._of_type[table] = found
        return self._of_type[table]


class Catalog:
    """Every cloud's rows. `Catalog.shipped()` is what the package brings."""

    def __init__(self, clouds: Iterable[CloudCatalog]) -> None:
        self._clouds = {cloud.name: cloud for cloud in clouds}

    @classmethod
    def shipped(cls) -> Catalog:
        """The catalog of the package; files are opened when asked for."""
        return _shipped()

    def with_overlays(self, *paths: Path | str, today: date | None = None) -> Catalog:
        """This catalog with the rows of own files over it, the last one winning.

        `today` is what the last days of prices are compared with; the clock's unless given.
        Raises `CatalogError` with every fault: file, line, field, near miss.
        """
        catalog = self
        for path in paths:
            text = read_text(Path(path))
            with uncollected():
                file = read_raw(parse_text(text, str(path)), origin=str(path), text=text)
                catalog = catalog.with_file(file, today=today, text=text)
        return catalog

    def with_file(self, file: CatalogFile, *, today: date | None = None, text: str = "") -> Catalog:
        """This catalog with one more file's rows over it."""
        clouds = dict(self._clouds)
        known = clouds.get(file.cloud.name, CloudCatalog(file.cloud.name, None))
        clouds[file.cloud.name] = made = known.with_overlay(file)
        check_overlay(made, file, today=today or datetime.now(tz=UTC).date(), text=text)
        return Catalog(clouds.values())

    @functools.cached_property
    def nccl(self) -> CloudCatalog:
        """What is true of NCCL everywhere: variables, results, limits."""
        return CloudCatalog("nccl", _Shipped(_COMPILED / "nccl.jsonl"))

    @property
    def clouds(self) -> tuple[str, ...]:
        """The clouds' names."""
        return tuple(self._clouds)

    @functools.cached_property
    def model_spellings(self) -> dict[str, str]:
        """The accelerator models of all clouds by their spellings."""
        return spellings({model for cloud in self for model in cloud.models})

    def cloud(self, name: str) -> CloudCatalog:
        """One cloud's rows. Raises `CatalogError` with the near miss."""
        found = self._clouds.get(name)
        if found is None:
            from gpufabric._convert import near

            hint = near(name, self._clouds) or f"; known: {', '.join(self._clouds)}"
            raise CatalogError(f"the catalog has no cloud {name!r}{hint}")
        return found

    def __iter__(self) -> Iterator[CloudCatalog]:
        return iter(self._clouds.values())


@functools.cache
def _shipped() -> Catalog:
    files = sorted(_COMPILED.glob("*.jsonl"))
    return Catalog(CloudCatalog(f.stem, _Shipped(f)) for f in files if f.stem != "nccl")
