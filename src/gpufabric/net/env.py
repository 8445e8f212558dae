"""The environment of a job on one type and platform, each variable with its reason and source.

The user's own variables win; what they override is shown, and a value that is known to break the
network, or a name that nothing reads, is warned of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from gpufabric._frozen import evolve
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import Avoid, Confidence, EnvRow, Script, Var
from gpufabric.plan import EnvVar, Source

__all__ = ["Environment", "Where", "environment_of", "user_warnings"]

_PREFIX = "NCCL_"
_TUNED = ("NCCL_ALGO", "NCCL_PROTO")
"""What a tuner plugin chooses for each size, and a user's variable fixes for all."""


class Where(NamedTuple):
    """The nodes whose environment is wanted."""

    catalog: Catalog
    cloud: CloudCatalog
    type_name: str
    platform: str
    kind: str
    """Of their network."""
    vendor: str = "nvidia"
    way: str | None = None
    """How pods get their NICs, a name of `[[kubernetes]]`; None for machines."""

    def env_rows(self) -> tuple[EnvRow, ...]:
        """The rows of the environment that hold here, general ones first."""
        rows = self.cloud.env_rows(self.type_name, self.platform)
        return tuple(row for row in rows if self.holds(row))

    def holds(self, row: EnvRow) -> bool:
        """Whether a row of this type and platform is for how its pods get their NICs."""
        return not row.ways or self.way in row.ways


class Environment(NamedTuple):
    """What is set, what could be set and is not, and what to be warned of."""

    vars: tuple[EnvVar, ...]
    possible: tuple[EnvVar, ...]
    """Only inferred, or for a special use: shown, not set."""
    script: Script | None
    script_source: Source | None
    warnings: tuple[str, ...]


def environment_of(
    where: Where, *, user: Mapping[str, str] | None = None, several_nodes: bool = True
) -> Environment:
    """The environment of these nodes.

    With `several_nodes` false there is no network between nodes to set up.
    """
    catalog, cloud = where.catalog, where.cloud
    user = user or {}
    uses_nccl = where.vendor in ("nvidia", "amd")  # RCCL reads NCCL's variables
    rows: tuple[EnvRow, ...] = catalog.nccl.rows("env") if uses_nccl else ()
    own = cloud.env_rows(where.type_name, where.platform) if several_nodes else ()
    if where.kind == "ethernet" and not _is_plain(where):
        own = ()  # the rows are for its fabric, which is not used
    found: dict[str, EnvVar] = {}
    possible: dict[str, EnvVar] = {}
    script, script_source = None, None
    for owner, row in (*((catalog.nccl, r) for r in rows), *((cloud, r) for r in own)):
        holds = owner is catalog.nccl or where.holds(row)
        if row.script is not None and holds and _is_default(row):
            script, script_source = row.script, _source(owner, row, ())
        for var in row.vars:
            made = _made(owner, row, var)
            if holds and _is_default(row, var):
                found[var.name] = made
            else:
                why = _why_not_set(row, var) if holds else _why_not_here(row, var)
                possible.setdefault(var.name, evolve(made, why=why))
    if script is not None:
        found = dict(_with_script(script, script_source, found))
    return Environment(
        vars=tuple(_overridden(found, user)),
        possible=tuple(var for name, var in possible.items() if name not in found),
        script=script,
        script_source=script_source,
        warnings=tuple(user_warnings(where, user)) if several_nodes else (),
    )


def _is_plain(where: Where) -> bool:
    """Says whether ordinary Ethernet is all that this type has, so that its rows are for that."""
    row = where.cloud.find_type(where.type_name)
    return row is not None and where.cloud.interconnect(row).kind == "ethernet"


def _is_default(row: EnvRow, var: Var | None = None) -> bool:
    wanted = var is None or var.default
    return wanted and not row.when and not _is_inferred(row, var)


def _is_inferred(row: EnvRow, var: Var | None) -> bool:
    return ((var.confidence if var else None) or row.confidence) is Confidence.INFERRED


def _why_not_here(row: EnvRow, var: Var) -> str:
    return f"only for pods that get their NICs the way {' or '.join(row.ways)}: {var.why}"


def _why_not_set(row: EnvRow, var: Var) -> str:
    if row.when:
        return f"only when {row.when}: {var.why}"
    return f"{'inferred' if _is_inferred(row, var) else 'optional'}: {var.why}"


def _with_script(
    script: Script, source: Source | None, found: Mapping[str, EnvVar]
) -> Iterator[tuple[str, EnvVar]]:
    for name, value in script.before.items():
        why = f"must be set before {script.path} is sourced"
        yield name, EnvVar(name=name, value=value, why=why, source=source)
    for name, var in found.items():
        if name not in script.sets and name not in script.before:
            yield name, var


def _made(owner: CloudCatalog, row: EnvRow, var: Var) -> EnvVar:
    return EnvVar(
        name=var.name,
        value=var.value,
        why=var.why,
        source=_source(owner, row, var.sources),
        since=_version(var, var.since),
        until=_version(var, var.until),
    )


def _version(var: Var, version: str | None) -> str | None:
    return None if version is None else f"{var.component} {version}"


def _source(owner: CloudCatalog, row: EnvRow, names: tuple[str, ...]) -> Source | None:
    name = next(iter(names or row.sources), None)
    if name is None:
        return None
    return Source(url=owner.address(name), checked=row.checked, confidence=row.confidence.value)


def _overridden(found: Mapping[str, EnvVar], user: Mapping[str, str]) -> Iterator[EnvVar]:
    for name, var in found.items():
        if name not in user:
            yield var
    for name, value in user.items():
        ours = found.get(name)
        yield EnvVar(
            name=name,
            value=value,
            why=f"yours; without it: {ours.why}" if ours else "yours",
            source=ours.source if ours else None,
            overridden=ours.value if ours and ours.value != value else None,
        )


# ---- what a user's variables do to the network


def user_warnings(where: Where, user: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable of the user's that breaks, costs or does nothing here."""
    catalog, cloud = where.catalog, where.cloud
    rows = where.env_rows()
    local: list[Avoid] = [avoid for row in rows if not row.when for avoid in row.avoid]
    known = _known_names(catalog, cloud)
    for name, value in user.items():
        if name.startswith(_PREFIX) and not _is_known(name, known):
            yield _misspelled(name, known)
            continue
        bad = list(_matching((*_everywhere(catalog, name), *local), name, value, where.kind))
        ours = _default_value(rows, name)
        if not bad and ours is not None and ours.value != value:
            yield f"{name}={value} replaces {ours.value}: {ours.why}"
        if not bad and ours is None and name in _TUNED and _has_tuner(rows):
            yield f"{name}={value} narrows what the tuner of this platform may choose by size"
        for avoid in bad:
            word = "is known to break the network" if avoid.breaks else "is advised against here"
            yield f"{name}={value} {word}: {avoid.why}"


def _has_tuner(rows: Iterable[EnvRow]) -> bool:
    names = {var.name for row in rows if not row.when for var in row.vars if var.default}
    names.update(name for row in rows if row.script and not row.when for name in row.script.sets)
    return any(name.startswith("NCCL_TUNER_") for name in names)


def _default_value(rows: Iterable[EnvRow], name: str) -> Var | None:
    found = (var for row in rows for var in row.vars if var.name == name and _is_default(row, var))
    return next(found, None)


def _everywhere(catalog: Catalog, name: str) -> Iterator[Avoid]:
    for row in catalog.nccl.rows("variable"):
        if row.name == name:
            yield from row.bad_values


def _matching(avoids: Iterable[Avoid], name: str, value: str, kind: str) -> Iterator[Avoid]:
    for avoid in avoids:
        if not fnmatchcase(name, avoid.name):
            continue
        if avoid.kinds and kind not in avoid.kinds:
            continue
        if avoid.value is None or _same_value(avoid.value, value):
            yield avoid


def _same_value(bad: str, value: str) -> bool:
    return bad.strip().lower() == value.strip().lower()


def _known_names(catalog: Catalog, cloud: CloudCatalog) -> frozenset[str]:
    def make() -> frozenset[str]:
        names = {row.name for row in catalog.nccl.rows("variable")}
        for row in cloud.rows("env"):
            names.update(var.name for var in row.vars)
            names.update(row.script.before if row.script else ())
        return frozenset(names)

    return cloud.kept(None, "variables", make)


def _is_known(name: str, known: frozenset[str]) -> bool:
    return name in known or any(fnmatchcase(name, k) for k in known if k.endswith("*"))


def _misspelled(name: str, known: frozenset[str]) -> str:
    from gpufabric._convert import near

    hint = near(name, [word for word in known if not word.endswith("*")])
    return f"nothing reads {name}, and NCCL ignores names it does not know{hint}"
