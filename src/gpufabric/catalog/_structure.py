"""Raw tables (of TOML or JSON) to row classes, strictly: every fault is told, nothing is guessed.

Builders are made once for each class from its annotations, then cost a few microseconds a row;
that is why this is not cattrs, whose import alone would be half the budget of a first plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from enum import StrEnum
from inspect import get_annotations
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from gpufabric._frozen import FrozenDict, freeze
from gpufabric.catalog._row import Row

__all__ = ["Fault", "FaultsFound", "build"]

T = TypeVar("T", bound=Row)
Builder = Callable[[Any], Any]


class Fault(NamedTuple):
    """One thing that is wrong, and where: keys and list indexes from the row down."""

    path: tuple[str | int, ...]
    message: str


class FaultsFound(Exception):  # noqa: N818  internal carrier of many faults, never seen by users
    """Every fault of one row."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{f.path}: {f.message}" for f in faults))
        self.faults = faults


def build(cls: type[T], raw: object) -> T:
    """Gives the row that a raw table describes, or raises `FaultsFound` with every fault."""
    made: T = _builder_of_class(cls)(raw)  # type: ignore[arg-type]  # mypy: T is hashable
    return made


def _bad(message: str) -> FaultsFound:
    return FaultsFound([Fault((), message)])


_WORDS: Mapping[type, str] = {
    dict: "a table",
    list: "a list",
    str: "text",
    bool: "true/false",
    NoneType: "nothing",
}


def _kind(value: object) -> str:
    return _WORDS.get(type(value), f"{value!r}")


def _text(value: object) -> str:
    if type(value) is not str:
        raise _bad(f"must be text, is {_kind(value)}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise _bad(f"must be a whole number, is {_kind(value)}")
    return value


def _number(value: object) -> float:
    if type(value) is int or type(value) is float:
        return value
    raise _bad(f"must be a number, is {_kind(value)}")


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise _bad(f"must be true or false, is {_kind(value)}")
    return value


def _day(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _bad(f"must be a date such as 2026-11-30, is {_kind(value)}")


_AS_IS = frozenset((str, int, float, bool))
"""Types whose values a row holds as they are; each is looked at without a call."""

_PLAIN: dict[object, Builder] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _flag,
    date: _day,
    object: freeze,
}


def _builder(hint: Any) -> Builder:
    plain = _PLAIN.get(hint)
    if plain is not None:
        return plain
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _member(hint)
    if isinstance(hint, type) and issubclass(hint, Row):
        return _builder_of_class(hint)  # type: ignore[arg-type]  # mypy: Row is hashable
    make = _GENERIC.get(get_origin(hint))
    if make is None:
        raise TypeError(f"the catalog has no builder for {hint!r}")
    return make(get_args(hint))


def _union(args: tuple[Any, ...]) -> Builder:
    (only,) = (a for a in args if a is not NoneType)  # the rows have no other unions
    return _builder(only)  # an absent key is None; TOML has no null


def _one_of(words: tuple[Any, ...]) -> Builder:
    def one_of(value: object) -> object:
        if value not in words:
            raise _bad(f"{value!r} is not one of {', '.join(map(str, words))}")
        return value

    return one_of


def _member(enum: type[StrEnum]) -> Builder:
    members = {m.value: m for m in enum}

    def member(value: object) -> object:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise _bad(f"{value!r} is not one of {', '.join(members)}")
        return found

    return member


def _tuple_of(args: tuple[Any, ...]) -> Builder:
    item = _builder(args[0])
    as_is = args[0] if args[0] in _AS_IS else None

    def tuple_of(value: Any) -> tuple[Any, ...]:
        if type(value) is list and as_is is not None:
            every = cast("list[object]", value)
            for one in every:
                if type(one) is not as_is:
                    break
            else:
                return tuple(every)
        if not isinstance(value, list | tuple):
            raise _bad(f"must be a list, is {_kind(value)}")
        items = cast("list[object]", value)
        try:
            return tuple([item(v) for v in items])
        except FaultsFound:
            raise _each(enumerate(items), item) from None

    return tuple_of


def _dict_of(args: tuple[Any, ...]) -> Builder:
    item = _builder(args[1])

    def dict_of(value: object) -> FrozenDict[str, Any]:
        if not isinstance(value, Mapping):
            raise _bad(f"must be a table, is {_kind(value)}")
        items = cast("Mapping[str, object]", value)
        try:
            return FrozenDict({k: item(v) for k, v in items.items()})
        except FaultsFound:
            raise _each(items.items(), item) from None

    return dict_of


def _each(pairs: Any, item: Builder) -> FaultsFound:
    faults: list[Fault] = []
    for key, value in pairs:
        try:
            item(value)
        except FaultsFound as exc:
            faults += [Fault((key, *f.path), f.message) for f in exc.faults]
    return FaultsFound(faults)


_GENERIC: dict[object, Callable[[tuple[Any, ...]], Builder]] = {
    Union: _union,
    UnionType: _union,
    Literal: _one_of,
    tuple: _tuple_of,
    FrozenDict: _dict_of,
}


def _annotated(cls: type) -> Iterable[tuple[str, Any]]:
    """A class's own annotations; `get_type_hints` would cost a third of a first plan.

    The rows' modules evaluate theirs, so that only a class written elsewhere needs it.
    """
    own = get_annotations(cls)
    if any(isinstance(hint, str) for hint in own.values()):
        return get_type_hints(cls).items()
    return own.items()


def _as_is(hint: Any) -> type | None:
    """The type whose values need no building here: `str` for `str` and `str | None`."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    plain = get_origin(hint) in (None, Union, UnionType) and len(kinds) == 1
    return kinds[0] if plain and kinds[0] in _AS_IS else None


@functools.cache
def _builder_of_class(cls: type[Row]) -> Builder:
    bases = [base for base in reversed(cls.__mro__) if issubclass(base, Row) and base is not Row]
    hints = {name: hint for base in bases for name, hint in _annotated(base)}
    builders = {name: _builder(hints[name]) for name in cls.row_fields}
    as_is = {name: _as_is(hints[name]) for name in cls.row_fields}
    required = cls.row_required
    made = cls.made

    def of_class(raw: Any) -> object:
        if not isinstance(raw, dict):
            raise _bad(f"must be a table, is {_kind(raw)}")
        table = cast("dict[str, Any]", raw)
        try:
            values = {
                key: value if type(value) is as_is[key] else builders[key](value)
                for key, value in table.items()
            }
        except (FaultsFound, KeyError, TypeError):
            raise FaultsFound(_faults(table, builders, required)) from None
        for name in required:
            if name not in values:
                raise FaultsFound(_faults(table, builders, required))
        return made(values)

    return of_class


def _faults(
    raw: dict[str, object], builders: dict[str, Builder], required: tuple[str, ...]
) -> list[Fault]:
    faults: list[Fault] = []
    for key, value in raw.items():
        builder = builders.get(key)
        if builder is None:
            faults.append(Fault((key,), _unknown(str(key), builders)))
            continue
        try:
            builder(value)
        except FaultsFound as exc:
            faults += [Fault((key, *f.path), f.message) for f in exc.faults]
    faults += [Fault((name,), "is missing") for name in required if name not in raw]
    return faults


def _unknown(key: str, known: Mapping[str, object]) -> str:
    from gpufabric._convert import near

    hint = near(key, known) or f" (known: {', '.join(sorted(known))})"
    return f"unknown field{hint}"
