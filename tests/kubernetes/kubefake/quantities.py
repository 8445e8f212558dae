"""Quantities, and what a pod asks for."""

import re
from fractions import Fraction

from .errors import Json

_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_FORM = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]|[KMGTPE]i)?$")
Amounts = dict[str, Fraction]


def quantity(value: object) -> Fraction:
    """A quantity as a number; raises `ValueError`."""
    found = _FORM.match(str(value))
    if found is None:
        raise ValueError(
            "quantities must match the regular expression"
            " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    return Fraction(found[1]) * _SUFFIX[found[2] or ""]


def told(amount: Fraction) -> str:
    """A number as a quantity."""
    if amount.denominator == 1:
        return str(amount.numerator)
    return f"{int(amount * 1000)}m"


def amounts(listed: Json | None) -> Amounts:
    """A resource list as numbers."""
    return {name: quantity(value) for name, value in (listed or {}).items()}


def requests_of(spec: Json) -> Amounts:
    """Containers and sidecars together, or the largest init container where that is more."""
    total: Amounts = {}
    first: Amounts = {}
    for one in spec.get("containers") or ():
        _add(total, _asked(one))
    for one in spec.get("initContainers") or ():
        mine = _asked(one)
        if one.get("restartPolicy") == "Always":
            _add(total, mine)
        for name, amount in mine.items():
            first[name] = max(first.get(name, Fraction(0)), amount)
    return {
        name: max(total.get(name, Fraction(0)), first.get(name, Fraction(0)))
        for name in {*total, *first}
    }


def limits_of(spec: Json) -> Amounts:
    """The sum of the containers' limits."""
    total: Amounts = {}
    for one in spec.get("containers") or ():
        _add(total, amounts((one.get("resources") or {}).get("limits")))
    return total


def _asked(container: Json) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount
