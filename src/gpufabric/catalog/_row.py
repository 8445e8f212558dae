"""`Row`: what every row of the catalog is.

A frozen value like the attrs classes elsewhere (comparable, hashable, picklable, printable), but
without generated code: making forty attrs classes takes 50 ms, twice the budget for the first use
of the whole catalog. Defaults stay on the class, so a row only holds what its table says.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import get_annotations as inspect_annotations
from typing import Any, ClassVar, Self, dataclass_transform

__all__ = ["Row"]

_MISSING: Any = object()
_new = object.__new__
_set = object.__setattr__


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Row:
    """A frozen record; subclasses annotate their fields, with plain immutable defaults."""

    row_fields: ClassVar[Mapping[str, object]] = {}
    """Field -> default, in order."""
    row_required: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = [name for name in inspect_annotations(cls) if not name.startswith("row_")]
        cls.row_fields = {**cls.row_fields, **{n: cls.__dict__.get(n, _MISSING) for n in own}}
        cls.row_required = tuple(n for n, d in cls.row_fields.items() if d is _MISSING)

    def __init__(self, **values: Any) -> None:
        fields = self.row_fields
        if not fields.keys() >= values.keys():
            raise TypeError(f"{type(self).__name__} has no {sorted(values.keys() - fields.keys())}")
        for name in self.row_required:
            if name not in values:
                raise TypeError(f"{type(self).__name__} needs {name}")
        self.__dict__.update(values)

    @classmethod
    def made(cls, values: dict[str, Any]) -> Self:
        """A row of values that were checked already; what the loader uses."""
        row = _new(cls)
        _set(row, "__dict__", values)  # taken over, not copied
        return row

    def but(self, **values: Any) -> Self:
        """The same row with other values."""
        return type(self)(**{**self.__dict__, **values})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.row_fields)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.row_fields)))

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({said})"
