"""Values to and from plain data. The only user of cattrs.

`from_dict` reports every fault with its path and near misses; `to_dict` gives JSON-safe data that
carries `schema` and leaves out what has its default.
"""

import base64
import datetime as dt
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar, cast

import attrs

from gpufabric._frozen import FrozenDict, freeze
from gpufabric.errors import Problem, SpecError, shown

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["enum_of", "from_dict", "near", "to_dict"]

T = TypeVar("T")
_CUT_SHORT = 4
E_ = TypeVar("E_", bound=StrEnum)


def near(word: str, words: Iterable[str]) -> str:
    """Gives `, did you mean X?` for the nearest of `words`, or nothing."""
    by_lower = {known.lower(): known for known in words}
    longer = sorted((name for name in by_lower if name.startswith(word.lower())), key=len)
    if longer and len(word) >= _CUT_SHORT:  # a name cut short, more likely than one mistyped
        return f", did you mean {by_lower[longer[0]]}?"
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
    raise SpecError(f"{shown(value)} is none of {', '.join(known)}{hint}")


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
        return base64.b64encode(value).decode("ascii")
    return value


def from_dict(cls: type[T], data: object) -> T:
    """Builds a `cls` from plain data. Raises `SpecError` listing every fault with its path."""
    if not isinstance(data, Mapping):
        kind = "nothing" if data is None else type(data).__name__  # its text may hold secrets
        raise SpecError(f"expected a mapping of {cls.__name__}'s fields, found {kind}")
    body = dict(cast("Mapping[str, object]", data))
    schema = body.pop("schema", None)
    if schema is not None and schema != schema_of(cls):
        raise SpecError(
            [Problem(path="schema", message=f"{shown(schema)} is not {schema_of(cls)!r}")]
        )
    try:
        return structure(cls, body)
    except SpecError as exc:
        raise SpecError(exc.problems, what=cls.__name__) from exc
    except RecursionError as exc:
        raise SpecError("nested too deep", what=cls.__name__) from exc


def structure(cls: type[T], data: Mapping[str, object]) -> T:
    """`from_dict` for a part of a larger value: no schema, paths relative to it."""
    return _converter().structure(data, cls)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return f"{type(value).__name__} {shown(value)}"


def _under(path: str, exc: Exception) -> Iterable[Problem]:
    if isinstance(exc, SpecError):
        return exc.under(path)
    return (Problem(path=path, message=str(exc)),)


@cache
def _converter() -> "Converter":
    from cattrs import Converter

    converter = Converter()
    # cattrs finds these by subclass: enums of text come to that of str, times to that of dates.
    for kind in (str, int, float, bool):
        converter.register_structure_hook(kind, _strict(kind))
    converter.register_structure_hook(bytes, _bytes)
    converter.register_structure_hook(dt.date, _date)
    converter.register_structure_hook_func(_is_object, _frozen_object)
    for admits, make in (
        (_is_frozen_dict, _mapping_hook),
        (_is_tuple, _tuple_hook),
        (_is_union, _union_hook),
        (attrs.has, _class_hook),
    ):
        converter.register_structure_hook_factory(admits, partial(make, converter))
    return converter


def _is_object(kind: object) -> bool:
    return kind is object


def _frozen_object(value: object, _: object) -> object:
    return freeze(value)


def _class_hook(converter: "Converter", cls: type) -> Callable[[object, object], object]:
    fields = attrs.fields(cast("type[attrs.AttrsInstance]", cls))
    if any(isinstance(a.type, str) for a in fields):  # annotations of a postponed module
        attrs.resolve_types(cls)
        fields = attrs.fields(cast("type[attrs.AttrsInstance]", cls))
    attributes = {a.name: a for a in fields if a.init}
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
                    converter.structure(item, cast("type[object]", attribute.type))
                    if attribute.converter is None or _is_frozen_dict(attribute.converter)
                    else cast("Callable[[object], object]", attribute.converter)(item)
                )
            except (ValueError, TypeError, OverflowError) as exc:
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

    def structure(value: object, target: object) -> object:
        if isinstance(target, type) and issubclass(target, StrEnum):
            return enum_of(target, value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if kind is float and (whole or isinstance(value, float)):
            return _finite(cast("float", value))
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return cast("Callable[[object], object]", kind)(value)  # no subclass stays
        raise SpecError(f"expected {names[kind]}, found {_kind(value)}")

    return structure


def _finite(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(f"expected a finite number, found {_kind(value)}")
    return number


def _bytes(value: object, _: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.isascii():
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise SpecError(f"expected bytes as base64, found {_kind(value)}")


def _date(value: object, target: object) -> dt.date:
    kind = dt.datetime if target is dt.datetime else dt.date
    if type(value) is kind:
        return value
    if isinstance(value, str):
        try:
            return kind.fromisoformat(value)
        except ValueError:
            pass
    example = "2026-11-30T12:00:00+00:00" if kind is dt.datetime else "2026-11-30"
    raise SpecError(f"expected a {kind.__name__} such as {example}, found {_kind(value)}")


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
            except (ValueError, TypeError, OverflowError) as exc:
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
            raise SpecError(f"expected a list, found {_kind(value)}")  # pyright: ignore[reportUnknownArgumentType]  # narrowed to what is no list
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
            except (ValueError, TypeError, OverflowError) as exc:
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
            except (ValueError, TypeError, OverflowError) as exc:
                first = first or exc
        if first is None:
            raise SpecError(f"expected nothing, found {_kind(value)}")
        raise first

    return structure
