"""Resources: what one node of a gang needs, in words no cloud owns."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from gpufabric._frozen import FrozenDict, evolve, field, freeze, frozen
from gpufabric._units import AtLeast, decimal, parse_amount, parse_gib
from gpufabric.errors import Problem, SpecError, shown
from gpufabric.net.interconnect import Place
from gpufabric.net.tier import NetworkTier

__all__ = ["Accelerator", "Resources"]

_MEMORY = re.compile(r"^([0-9]{1,12}(?:\.[0-9]+)?)\s*GI?B(\+?)$", re.IGNORECASE)
_MODEL = re.compile(r"^[A-Za-z][A-Za-z0-9 ._-]*$")
_MAX_COUNT = 1024
_MOST = 1e18  # more is a slip


@frozen(kw_only=True)
class Accelerator:
    """The accelerators of one node: a model (`H100`) or a memory size (`80GB+`), and how many.

    `model` is kept as written; the catalog matches it with its spellings.
    """

    model: str | None = None
    count: int = 1
    memory_gb: float | None = None
    memory_at_least: bool = False
    vendor: str | None = None

    def __attrs_post_init__(self) -> None:
        if (self.model is None) == (self.memory_gb is None):
            raise SpecError("an accelerator is a model or a memory size")
        if not 1 <= self.count <= _MAX_COUNT:
            raise SpecError(
                [
                    Problem(
                        path="count", message=f"{shown(self.count)} is not within 1 to {_MAX_COUNT}"
                    )
                ]
            )

    @classmethod
    def parse(cls, text: str) -> "Accelerator":
        """Reads `H100`, `H100:8`, `80GB+:8`, `nvidia:80GB:4`. Raises `SpecError`."""
        parts = [part.strip() for part in text.split(":")]
        if "," in text:
            raise SpecError(
                f'{shown(text)} has a comma: write alternatives as a list ["H100", "A100"]'
            )
        vendor = parts.pop(0).lower() if len(parts) > 1 and _MEMORY.match(parts[1]) else None
        name, *rest = parts
        if not name or len(rest) > 1:
            raise SpecError(f'{shown(text)} is not an accelerator: write "H100:8" or "80GB+:8"')
        count = _count(text, rest[0]) if rest else 1
        memory = _MEMORY.match(name)
        if memory:
            return cls(
                memory_gb=float(memory[1]),
                memory_at_least=bool(memory[2]),
                count=count,
                vendor=vendor,
            )
        if not _MODEL.match(name):
            raise SpecError(f'{shown(text)} is not an accelerator: write "H100:8" or "80GB+:8"')
        return cls(model=name, count=count)

    @classmethod
    def __parse__(cls, value: object) -> "Accelerator":
        if isinstance(value, str):
            return cls.parse(value)
        raise SpecError(f'{shown(value)} is not an accelerator: write "H100:8"')

    def __plain__(self) -> str:
        return str(self)

    @property
    def name(self) -> str:
        """The model or memory size, without the count."""
        if self.model is not None:
            return self.model
        vendor = f"{self.vendor}:" if self.vendor else ""
        return f"{vendor}{decimal(self.memory_gb or 0.0)}GB{'+' if self.memory_at_least else ''}"

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


def _count(text: str, written: str) -> int:
    if not (written.isascii() and written.isdecimal() and len(written) < 10):
        raise SpecError(
            f"{shown(text)}: {shown(written)} is not a whole number of accelerators"
            " (a part of one has no network of its own)"
        )
    return int(written)


def _accelerators(value: object) -> tuple[Accelerator, ...]:
    if value is None or value in ((), []):
        return ()
    if isinstance(value, Accelerator):
        return (value,)
    if isinstance(value, str):
        return (Accelerator.parse(value),)
    problems: list[Problem] = []
    found: list[Accelerator] = []
    if isinstance(value, Mapping):
        for name, count in cast("Mapping[object, object]", value).items():
            try:
                found.append(_from_pair(name, count))
            except SpecError as exc:
                problems.extend(exc.under(name if isinstance(name, str) else shown(name)))
    elif isinstance(value, Sequence):
        for i, item in enumerate(cast("Sequence[object]", value)):
            try:
                found.extend(_alternative(item))
            except SpecError as exc:
                problems.extend(exc.under(f"[{i}]"))
    else:
        raise SpecError(f'{shown(value)} is not an accelerator: write "H100:8"')
    if problems:
        raise SpecError(problems)
    return tuple(found)


def _alternative(item: object) -> tuple[Accelerator, ...]:
    if isinstance(item, list | tuple):
        raise SpecError("a list of alternatives does not nest")
    return _accelerators(item)


def _from_pair(name: object, count: object) -> Accelerator:
    if not isinstance(name, str):
        raise SpecError(f"{shown(name)} is not the name of an accelerator")
    parsed = Accelerator.parse(name)
    if count is None:
        return parsed
    if isinstance(count, bool) or not isinstance(count, int):
        raise SpecError(f"{shown(count)} is not a whole number of accelerators")
    return evolve(parsed, count=count)


def _tier(value: object) -> NetworkTier:
    from gpufabric._convert import enum_of

    return value if isinstance(value, NetworkTier) else enum_of(NetworkTier, value)


def _amount(value: object) -> AtLeast | None:
    return None if value is None else parse_amount(value)


def _gib(value: object) -> AtLeast | None:
    return None if value is None else parse_gib(value)


def _positive(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{shown(value)} is not a number")
    if not 0 < value <= _MOST:
        raise SpecError(f"{shown(value)} must be a number above 0")
    return float(value)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{shown(value)} is not text")
    return value.strip()


def _places(value: object) -> tuple[Place, ...]:
    if value is None:
        return ()
    items: Sequence[object] = (value,)
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = cast("Sequence[object]", value)
    found: list[Place] = []
    problems: list[Problem] = []
    for i, item in enumerate(items):
        try:
            found.append(_place(item))
        except SpecError as exc:
            problems.extend(exc.under(f"[{i}]"))
    if problems:
        raise SpecError(problems)
    return tuple(found)


def _place(item: object) -> Place:
    if isinstance(item, Place):
        return item
    if isinstance(item, str):
        return Place.parse(item)
    if isinstance(item, Mapping):
        from gpufabric._convert import from_dict

        return from_dict(Place, cast("Mapping[str, object]", item))
    raise SpecError(f"{shown(item)} is not a place: write backend/region")


def _any_of(value: object) -> tuple[FrozenDict[str, object], ...]:
    if value is None:
        return ()
    if isinstance(value, str | Mapping | Resources) or not isinstance(value, Sequence):
        raise SpecError("any_of is a list of alternatives")
    found: list[FrozenDict[str, object]] = []
    for i, item in enumerate(cast("Sequence[object]", value)):
        if isinstance(item, Resources):
            from gpufabric._convert import to_dict

            data: Mapping[str, object] = to_dict(item)
        elif isinstance(item, Mapping):
            data = cast("Mapping[str, object]", item)
        else:
            raise SpecError([Problem(path=f"[{i}]", message=f"{shown(item)} is not a mapping")])
        body = {key: data[key] for key in data if key != "schema"}
        if "any_of" in body:
            raise SpecError([Problem(path=f"[{i}].any_of", message="alternatives do not nest")])
        found.append(cast("FrozenDict[str, object]", freeze(body)))
    return tuple(found)


@frozen(kw_only=True)
class Resources:
    """What one node needs, in words no cloud owns.

    Fields:
        accelerators: `"H100:8"`, `{"H100": 8}`, or alternatives in order `["H100:8", "H200:8"]`.
        cpus: vCPUs, `8` or `"8+"`.
        memory_gib, disk_gib: GiB, `64`, `"64+"`, `"256GB"` (10^9 bytes), `"256GiB"`.
        instance_type: the provider's own name, where only that will do.
        network_tier, min_gbps_per_gpu: what the network between nodes must keep; Gbit/s.
        use_spot: take capacity that may be taken back.
        max_usd_hour: ceiling of the price of one node; an unknown price does not keep it.
        places: which backends, regions, zones or contexts are allowed; empty means all.
        image: container or machine image.
        capacity: a reservation, capacity block or queue to use.
        any_of: alternatives in order; each is laid over the fields above, none over another.
    """

    accelerators: tuple[Accelerator, ...] = field(default=(), converter=_accelerators)
    cpus: AtLeast | None = field(default=None, converter=_amount)
    memory_gib: AtLeast | None = field(default=None, converter=_gib)
    disk_gib: AtLeast | None = field(default=None, converter=_gib)
    instance_type: str | None = field(default=None, converter=_text)
    network_tier: NetworkTier = field(default=NetworkTier.STANDARD, converter=_tier)
    min_gbps_per_gpu: float | None = field(default=None, converter=_positive)
    use_spot: bool = False
    max_usd_hour: float | None = field(default=None, converter=_positive)
    places: tuple[Place, ...] = field(default=(), converter=_places)
    image: str | None = field(default=None, converter=_text)
    capacity: str | None = field(default=None, converter=_text)
    any_of: tuple[FrozenDict[str, object], ...] = field(default=(), converter=_any_of)

    def __attrs_post_init__(self) -> None:
        if not isinstance(cast("object", self.use_spot), bool):
            raise SpecError(
                [Problem(path="use_spot", message=f"{shown(self.use_spot)} is not a bool")]
            )
        if self.any_of:
            self._overlaid()

    @property
    def accelerator(self) -> Accelerator | None:
        """The first accelerator asked for, None for a node without."""
        return self.accelerators[0] if self.accelerators else None

    def alternatives(self) -> tuple["Resources", ...]:
        """Every way to satisfy this, in order: each with one accelerator at most, no `any_of`."""
        return tuple(
            evolve(option, accelerators=(accelerator,) if accelerator else ())
            for option in self._overlaid()
            for accelerator in option.accelerators or (None,)
        )

    def _overlaid(self) -> tuple["Resources", ...]:
        from gpufabric._convert import from_dict, to_dict

        if not self.any_of:
            return (self,)
        base = {k: v for k, v in to_dict(self).items() if k not in {"any_of", "schema"}}
        found: list[Resources] = []
        problems: list[Problem] = []
        for i, overlay in enumerate(self.any_of):
            try:
                found.append(from_dict(Resources, {**base, **overlay}))
            except SpecError as exc:
                problems.extend(exc.under(f"any_of[{i}]"))
        if problems:
            raise SpecError(problems)
        return tuple(found)

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Resources":
        """Builds it from plain data. Raises `SpecError` with every fault and its path."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)
