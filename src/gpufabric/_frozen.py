"""What every value is made of: frozen attrs classes and an immutable, hashable mapping."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar, cast

from attrs import evolve, field, frozen

__all__ = ["FrozenDict", "Json", "evolve", "field", "freeze", "frozen", "thaw"]

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)

#: What JSON can hold, frozen or as the standard library reads it; narrowed by its readers.

Json = object


class FrozenDict(Mapping[K, V_co]):
    """A mapping that never changes: hashable when its values are, picklable, order kept.

    Equal to any mapping with the same items, whatever their order.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[K, V_co] | None = None) -> None:
        object.__setattr__(self, "_items", dict(items) if items is not None else {})
        object.__setattr__(self, "_hash", None)

    _items: dict[K, V_co]
    _hash: int | None

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def items(self) -> ItemsView[K, V_co]:
        """Views of the dict itself: those of `Mapping` look every key up again."""
        return self._items.items()

    def values(self) -> ValuesView[V_co]:
        """Views of the dict itself."""
        return self._items.values()

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(frozenset(self._items.items())))
        return cast("int", self._hash)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenDict):
            return self._items == cast("FrozenDict[K, V_co]", other)._items
        if isinstance(other, Mapping):
            return self._items == dict(cast("Mapping[K, V_co]", other))
        return NotImplemented

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"FrozenDict is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"FrozenDict is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[type["FrozenDict[K, V_co]"], tuple[dict[K, V_co]]]:
        return (type(self), (dict(self._items),))

    def __copy__(self) -> "FrozenDict[K, V_co]":
        return self

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"


_PLAIN = frozenset({str, int, float, bool, type(None)})  # most of what JSON holds, told at once


def freeze(value: object) -> object:
    """Gives `value` with every mapping as a `FrozenDict` and every list as a tuple."""
    return value if type(value) in _PLAIN else _frozen_json(value)


def _frozen_json(value: Any) -> Any:  # a plan holds hundreds of parts: each is looked at once
    kind = cast("type[object]", type(value))
    if kind is not dict and issubclass(kind, list | tuple):
        return tuple([v if type(v) in _PLAIN else _frozen_json(v) for v in value])
    if kind is dict or issubclass(kind, Mapping):
        return FrozenDict(
            {k: v if type(v) in _PLAIN else _frozen_json(v) for k, v in value.items()}
        )
    return value


def thaw(value: object) -> object:
    """Gives `value` with plain dicts and lists, as `json` and `yaml` want it."""
    return value if type(value) in _PLAIN else _thawed_json(value)


def _thawed_json(value: Any) -> Any:
    kind = cast("type[object]", type(value))
    if kind is not FrozenDict and issubclass(kind, list | tuple):
        return [v if type(v) in _PLAIN else _thawed_json(v) for v in value]
    if kind is FrozenDict or issubclass(kind, Mapping):
        return {k: v if type(v) in _PLAIN else _thawed_json(v) for k, v in value.items()}
    return value
