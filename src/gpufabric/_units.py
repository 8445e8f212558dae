"""Quantities as users write them: "8+", "64+", "256GB"."""

import re
from decimal import Decimal

from attrs import frozen

from gpufabric.errors import SpecError, shown

__all__ = ["AtLeast", "decimal", "parse_amount", "parse_gib"]

_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*(\+?)\s*$")
_GIB = 2**30
_MOST = 1e18  # more is a slip
_BYTES = {
    "": _GIB,
    **{f"{p}{s}": 1000**n for n, p in enumerate(("k", "m", "g", "t", "p"), 1) for s in ("b",)},
    **{f"{p}i{s}": 1024**n for n, p in enumerate(("k", "m", "g", "t", "p"), 1) for s in ("", "b")},
}


@frozen(kw_only=True)
class AtLeast:
    """An amount that is wished exactly, or at least (`"8+"`)."""

    amount: float
    at_least: bool = False

    def admits(self, value: float | None) -> bool:
        """Says whether `value` keeps the wish; an unknown value does not."""
        if value is None:
            return False
        return value >= self.amount if self.at_least else value == self.amount

    def __plain__(self) -> object:
        if self.at_least:
            return str(self)
        return int(self.amount) if self.amount.is_integer() else self.amount

    def __str__(self) -> str:
        return decimal(self.amount) + ("+" if self.at_least else "")


def decimal(number: float) -> str:
    """Gives `number` in full and without an exponent, as the readers of this module take it."""
    return format(Decimal(repr(number)).normalize(), "f")


def _parse(value: object, units: dict[str, int], base: int, what: str) -> AtLeast:
    if isinstance(value, AtLeast):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SpecError(f"{shown(value)} is not {what}")
    if isinstance(value, int | float):
        if not 0 < value <= _MOST:
            raise SpecError(f"{shown(value)} is not {what}: it must be a number above 0")
        return AtLeast(amount=float(value))
    match = _NUMBER.match(value)
    if match is None:
        raise SpecError(f"{shown(value)} is not {what}")
    number, unit, plus = match.groups()
    factor = units.get(unit.lower())
    if factor is None:
        known = ", ".join(sorted(u for u in units if u))
        raise SpecError(f"{shown(value)}: unknown unit {shown(unit)}; known: {known or 'none'}")
    amount = float(number) * factor / base
    if not 0 < amount <= _MOST:
        raise SpecError(f"{shown(value)} is not {what}: it must be a number above 0")
    return AtLeast(amount=amount, at_least=bool(plus))


def parse_amount(value: object) -> AtLeast:
    """Reads a count such as `8`, `"8"` or `"8+"`. Raises `SpecError`."""
    return _parse(value, {"": 1}, 1, 'a count such as 8 or "8+"')


def parse_gib(value: object) -> AtLeast:
    """Reads a size in GiB: `64`, `"64+"`, `"256GB"` (10^9 bytes each), `"256GiB"`.

    Raises `SpecError`.
    """
    return _parse(value, _BYTES, _GIB, 'a size such as 64, "64+", "256GB" or "256GiB"')
