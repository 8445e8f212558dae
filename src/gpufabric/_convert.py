"""Values to and from plain data. The only user of cattrs.

`from_dict` reports every fault with its path and near misses; `to_dict` gives JSON-safe data that
carries `schema` and leaves out what has its default.
"""

import datetime as dt
import difflib
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar, cast

import attrs

from gpufabric._frozen import FrozenDict, freeze, thaw
from gpufabric.errors import Problem, SpecError

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["enum_of", "from_dict", "near", "to_dict"]

T = TypeVar("T")
E_ = TypeVar("E_", bound=StrEnum)


def near(word: str, words: Iterable[str]) -> str:
    """Gives `, did you mean X?` for the nearest of `words`, or nothing."""
    by_lower = {known.lower(): known for known in words}
    hits = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f", did you mean {by_lower[hits[0]]}?" if hits else ""


def enum_of(cls: type[E_], value: object) -> E_:
    """Reads a member of `cls` from its text, any case. Raises `SpecError` with the near miss."""
    if isinstance(value, cls):
        return value
    if isinstance(value, str):
        try:
            return cls(value.strip().lower())
        except ValueError:
            pass
    known = [member.value for member in cls]
    hint = near(value, known) if isinstance(value, str) else ""
    raise SpecError(f"{value!r} is none of {', '.join(known)}{hint}")


def schema_of(cls: type) -> str:
    """The `schema` that `to_dict` writes for `cls`."""
    return f"gpufabric/{cls.__name__}/1"


def to_dict(value: attrs.AttrsInstance) -> dict[str, object]:
    """Gives `value` as JSON-safe data with `schema`, without fields that have their default."""
    return {"schema": schema_of(type(value)), **_plain_fields(value)}


def _plain_fields(value: attrs.AttrsInstance) -> dict[str, object]:
    found: dict[str, object] = {}
    for attribute in attrs.fields(type(value)):
        item = getattr(value, attribute.name)
        default = _default(attribute)
        if default is not attrs.NOTHING and attribute.converter is not None:
            convert = cast("Callable[[object], object]", attribute.converter)
            default = convert(default) if default is not None else None
        if default is not attrs.NOTHING and item == default and type(item) is type(default):
            continue
        found[attribute.name] = plain(item)
    return found


def _default(attribute: "attrs.Attribute[object]") -> object:
    factory = getattr(attribute.default, "factory", None)
    if factory is None:
        return attribute.default
    return None if getattr(attribute.default, "takes_self", False) else factory()


def plain(value: object) -> object:  # noqa: PLR0911  # one return a kind of value
    """Gives any value of the model as plain JSON-safe data."""
    as_plain = getattr(value, "__plain__", None)
    if as_plain is not None:
        return cast("Callable[[], object]", as_plain)()
    if isinstance(value, StrEnum):
        return value.value
    if attrs.has(type(value)):
        return _plain_fields(cast("attrs.AttrsInstance", value))
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {str(key): plain(item) for key, item in mapping.items()}
    if isinstance(value, list | tuple | frozenset | set):
        items = [plain(item) for item in cast("Iterable[object]", value)]
        return sorted(items, key=str) if isinstance(value, frozenset | set) else items
    if isinstance(value, dt.date | dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value


def from_dict(cls: type[T], data: object) -> T:
    """Builds a `cls` from plain data. Raises `SpecError` listing every fault with its path."""
    if not isinstance(data, Mapping):
        raise SpecError(f"expected a mapping of {cls.__name__}'s fields, found {_kind(data)}")
    body = dict(cast("Mapping[str, object]", data))
    schema = body.pop("schema", None)
    if schema is not None and schema != schema_of(cls):
        raise SpecError([Problem(path="schema", message=f"{schema!r} is not {schema_of(cls)!r}")])
    try:
        return structure(cls, body)
    except SpecError as exc:
        raise SpecError(exc.problems, what=cls.__name__) from exc


def structure(cls: type[T], data: Mapping[str, object]) -> T:
    """`from_dict` for a part of a larger value: no schema, paths relative to it."""
    return _converter().structure(data, cls)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _under(path: str, exc: Exception) -> Iterable[Problem]:
    if isinstance(exc, SpecError):
        return exc.under(path)
    return (Problem(path=path, message=str(exc)),)


@cache
def _converter() -> "Converter":
    from cattrs import Converter

    converter = Converter()
    # By identity: a hook registered for a class would take its subclasses too, enums for one.
    for kind in (str, int, float, bool):
        converter.register_structure_hook_func(partial(operator.is_, kind), _strict(kind))
    converter.register_structure_hook_func(partial(operator.is_, dt.date), _date)
    converter.register_structure_hook_func(partial(operator.is_, dt.datetime), _datetime)
    converter.register_structure_hook_func(lambda t: t is object, lambda value, _: freeze(value))
    converter.register_structure_hook_factory(_is_enum, _enum_hook)
    converter.register_structure_hook_factory(
        _is_frozen_dict, lambda t: _mapping_hook(converter, t)
    )
    converter.register_structure_hook_factory(_is_tuple, lambda t: _tuple_hook(converter, t))
    converter.register_structure_hook_factory(_is_union, lambda t: _union_hook(converter, t))
    converter.register_structure_hook_factory(attrs.has, lambda t: _class_hook(converter, t))
    return converter


def _class_hook(converter: "Converter", cls: type) -> Callable[[object, object], object]:
    attributes = {a.name: a for a in attrs.fields(cast("type[attrs.AttrsInstance]", cls)) if a.init}
    needed = {name for name, a in attributes.items() if a.default is attrs.NOTHING}
    parse = cast("Callable[[object], object] | None", getattr(cls, "__parse__", None))

    def structure(value: object, _: object) -> object:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            if parse is not None:
                return parse(value)
            raise SpecError(f"expected {cls.__name__}'s fields, found {_kind(value)}")
        found: dict[str, object] = {}
        problems: list[Problem] = []
        for name, item in cast("Mapping[object, object]", value).items():
            attribute = attributes.get(cast("str", name))
            if attribute is None:
                hint = near(str(name), attributes)
                problems.append(Problem(path=str(name), message=f"unknown field{hint}"))
                continue
            try:
                found[attribute.name] = (
                    cast("Callable[[object], object]", attribute.converter)(item)
                    if attribute.converter is not None
                    else converter.structure(item, cast("type[object]", attribute.type))
                )
            except (ValueError, TypeError) as exc:
                problems.extend(_under(attribute.name, exc))
        problems.extend(
            Problem(path=name, message="needed, but missing")
            for name in attributes
            if name in needed and name not in cast("Mapping[object, object]", value)
        )
        if problems:
            raise SpecError(problems)
        return cls(**found)

    return structure


def _strict(kind: type) -> Callable[[object, object], object]:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}

    def structure(value: object, _: object) -> object:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return str(value) if kind is str else value
        raise SpecError(f"expected {names[kind]}, found {_kind(value)}")

    return structure


def _datetime(value: object, _: object) -> dt.datetime:
    if isinstance(value, dt.datetime):
        return value
    if isinstance(value, str):
        try:
            return dt.datetime.fromisoformat(value)
        except ValueError:
            pass
    raise SpecError(f"expected a time such as 2026-11-30T12:00:00+00:00, found {_kind(value)}")


def _date(value: object, _: object) -> dt.date:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    if isinstance(value, str):
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            pass
    raise SpecError(f"expected a date such as 2026-11-30, found {_kind(value)}")


def _is_enum(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _enum_hook(kind: type[StrEnum]) -> Callable[[object, object], StrEnum]:
    return lambda value, _: enum_of(kind, value)


def _is_frozen_dict(kind: object) -> bool:
    return typing.get_origin(kind) is FrozenDict


def _mapping_hook(converter: "Converter", kind: type) -> Callable[[object, object], object]:
    _, item_type = typing.get_args(kind)

    def structure(value: object, _: object) -> object:
        if not isinstance(value, Mapping):
            raise SpecError(f"expected a mapping, found {_kind(value)}")
        found: dict[str, object] = {}
        problems: list[Problem] = []
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                problems.append(Problem(path=str(key), message="a name must be text"))
                continue
            try:
                found[key] = converter.structure(item, item_type)
            except (ValueError, TypeError) as exc:
                problems.extend(_under(key, exc))
        if problems:
            raise SpecError(problems)
        return FrozenDict(found)

    return structure


def _is_tuple(kind: object) -> bool:
    return typing.get_origin(kind) is tuple


def _tuple_hook(converter: "Converter", kind: type) -> Callable[[object, object], object]:
    args = typing.get_args(kind)

    def structure(value: object, _: object) -> object:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise SpecError(f"expected a list, found {_kind(value)}")
        items = cast("Sequence[object]", value)
        many = len(args) == 2 and args[1] is Ellipsis
        if not many and len(items) != len(args):
            raise SpecError(f"expected {len(args)} items, found {len(items)}")
        kinds = [args[0]] * len(items) if many else args
        found: list[object] = []
        problems: list[Problem] = []
        for i, (item, item_type) in enumerate(zip(items, kinds, strict=True)):
            try:
                found.append(converter.structure(item, item_type))
            except (ValueError, TypeError) as exc:
                problems.extend(_under(f"[{i}]", exc))
        if problems:
            raise SpecError(problems)
        return tuple(found)

    return structure


def _is_union(kind: object) -> bool:
    return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def _union_hook(converter: "Converter", kind: object) -> Callable[[object, object], object]:
    members = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    optional = len(members) < len(typing.get_args(kind))

    def structure(value: object, _: object) -> object:
        if value is None and optional:
            return None
        first: Exception | None = None
        for member in members:
            try:
                return converter.structure(value, member)
            except (ValueError, TypeError) as exc:
                first = first or exc
        if first is None:
            raise SpecError(f"expected nothing, found {_kind(value)}")
        raise first

    return structure


def thawed(value: object) -> object:
    """`plain` with plain containers, for `json` and `yaml`."""
    return thaw(plain(value))
