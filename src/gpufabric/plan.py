"""From asked to intended: what is possible (`Offer`), and what will be done (`LaunchPlan`)."""

import datetime as dt
import json
import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import cast

from gpufabric._frozen import FrozenDict, field, freeze, frozen
from gpufabric.errors import Problem, Remedy, SpecError, shown
from gpufabric.net.interconnect import Interconnect, Place
from gpufabric.net.nics import NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.resources import Accelerator, Resources
from gpufabric.task import Task

__all__ = [
    "Attempt",
    "EnvVar",
    "LaunchPlan",
    "LaunchPolicy",
    "NetworkItem",
    "Offer",
    "RankBy",
    "Rejection",
    "Resolution",
    "Source",
    "Step",
]


class RankBy(StrEnum):
    """What decides between offers that reach the same tier."""

    PRICE = "price"
    BANDWIDTH = "bandwidth"
    PRICE_PER_GBPS = "price_per_gbps"


@frozen(kw_only=True)
class Source:
    """Where a fact comes from: the page or file that says it, when it was read, how sure it is.

    `confidence` is `documented`, `observed` or `inferred`.
    """

    url: str
    checked: dt.date | None = None
    confidence: str = "documented"

    def __str__(self) -> str:
        return self.url


def _rank_by(value: RankBy | str) -> RankBy:
    from gpufabric._convert import enum_of

    return value if isinstance(value, RankBy) else enum_of(RankBy, value)


@frozen(kw_only=True)
class LaunchPolicy:
    """How a launch chooses and how long it tries.

    Fields:
        rank_by: what decides between offers that reach the same tier.
        allow_lower_tier: take a lower tier where none keeps the promise; it is written on the
            plan, the handle and the log.
        max_attempts: how many offers are tried.
        require_proof: end the job early when its own logs refute the tier's promise.
        gang_timeout_s: how long a gang may take to be whole on one offer before it is rolled back
            and the next is tried; None for the backend's own rule.
    """

    rank_by: RankBy = field(default=RankBy.PRICE, converter=_rank_by)
    allow_lower_tier: bool = False
    max_attempts: int = 10
    require_proof: bool = False
    gang_timeout_s: float | None = None

    def __attrs_post_init__(self) -> None:
        problems = [
            Problem(path=name, message=f"{shown(getattr(self, name))} is not true or false")
            for name in ("allow_lower_tier", "require_proof")
            if not isinstance(getattr(self, name), bool)
        ]
        tries, limit = cast("object", self.max_attempts), cast("object", self.gang_timeout_s)
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
            told = f"{shown(tries)} is not a number of offers, 1 or more"
            problems.append(Problem(path="max_attempts", message=told))
        number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (number and 0 < cast("float", limit) < math.inf):
            told = f"{shown(limit)} is not a number of seconds above 0"
            problems.append(Problem(path="gang_timeout_s", message=told))
        if problems:
            raise SpecError(problems, what="LaunchPolicy")


@frozen(kw_only=True)
class Offer:
    """One instance type on one interconnect, which would keep what was asked.

    Fields:
        backend: the name of the backend that made it.
        place: where it is.
        instance_type: the provider's name for it.
        resources: the alternative of the task's resources that it satisfies.
        num_nodes, gpus_per_node: the gang.
        accelerator: what a node has, in the catalog's spelling; None without.
        interconnect, nics: the network between nodes, and a node's side of it.
        tier: what is reached, which may be more than was asked.
        gbps_per_gpu, gbps_per_node: of the fabric, Gbit/s; None where unknown.
        usd_hour: price of one node; None where unknown.
        price_from: how it is billed, who says so and when: `negotiated, our contract, 2026-11-01`.
        platform: what kind of place it is: `local`, `vm`, `eks`, `gke`, ...
        pool: the node pool it would land on, where the place has such.
        limits, warnings: in words.
    """

    backend: str
    place: Place
    instance_type: str
    resources: Resources
    num_nodes: int
    gpus_per_node: int
    interconnect: Interconnect
    nics: NicLayout
    tier: NetworkTier
    accelerator: Accelerator | None = None
    gbps_per_gpu: float | None = None
    gbps_per_node: float | None = None
    usd_hour: float | None = None
    price_from: str = ""
    spot: bool = False
    platform: str = "vm"
    pool: str | None = None
    limits: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def billing(self) -> str:
        """How the price is billed: `on demand`, `spot`, `negotiated`, `capacity block`."""
        return self.price_from.partition(",")[0] or ("spot" if self.spot else "on demand")

    @property
    def usd_hour_total(self) -> float | None:
        """The price of the gang an hour; None where unknown."""
        return None if self.usd_hour is None else self.usd_hour * self.num_nodes

    def __str__(self) -> str:
        price = "price unknown" if self.usd_hour is None else f"{self.usd_hour_total:.2f} USD/h"
        speed = "speed unknown" if self.gbps_per_node is None else f"{self.gbps_per_node:g} Gbit/s"
        return (
            f"{self.num_nodes} x {self.instance_type} on {self.interconnect}"
            f" ({self.tier.value}, {speed} a node, {price})"
        )


@frozen(kw_only=True)
class Attempt:
    """One offer that a launch tried, and how it ended. `error` is None for the one that took."""

    offer: Offer
    backend: str
    error: str | None = None
    error_type: str | None = None
    remedy: Remedy | None = None
    leftovers: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Attempt":
        """Builds it from plain data. Raises `SpecError`."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def __str__(self) -> str:
        return f"{self.offer.interconnect}: {self.error or 'launched'}"


@frozen(kw_only=True)
class Rejection:
    """Why a place or an instance type cannot keep what was asked, in one line to act on."""

    backend: str
    reason: str
    place: Place | None = None
    instance_type: str | None = None

    def __str__(self) -> str:
        where = str(self.place or self.backend)
        what = f" {self.instance_type}" if self.instance_type else ""
        return f"{where}{what}: {self.reason}"


def _offer_row(offer: Offer) -> tuple[object, ...]:
    def number(value: float | None, form: str) -> str:
        return "unknown" if value is None else format(value, form)

    return (
        str(offer.place),
        offer.platform,
        offer.instance_type,
        f"{offer.num_nodes} x {offer.accelerator or 'no GPU'}",
        str(offer.interconnect.kind),
        offer.tier.value,
        number(offer.gbps_per_gpu, "g"),
        number(offer.gbps_per_node, "g"),
        number(offer.usd_hour, ".2f"),
        number(offer.usd_hour_total, ".2f"),
        offer.billing,
    )


_OFFER_HEADERS = (
    "place", "platform", "type", "nodes", "network", "tier", "Gb/s a GPU", "Gb/s a node",
    "USD/h a node", "USD/h in all", "billing",
)  # fmt: skip


@frozen(kw_only=True)
class Resolution:
    """All ways to run a task, best first, and every rejection with its reason."""

    offers: tuple[Offer, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    @property
    def best(self) -> Offer | None:
        """The first offer, None where there is none."""
        return self.offers[0] if self.offers else None

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    def __len__(self) -> int:
        return len(self.offers)

    def __bool__(self) -> bool:
        return bool(self.offers)

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Resolution":
        """Builds it from plain data. Raises `SpecError`."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def __str__(self) -> str:
        from gpufabric._display import text_table

        parts: list[str] = []
        if self.offers:
            parts.append(text_table(_OFFER_HEADERS, [_offer_row(offer) for offer in self.offers]))
        else:
            parts.append("no offers")
        if self.rejections:
            parts.append("rejected:\n" + "\n".join(f"  {r}" for r in self.rejections))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        from gpufabric._display import html_table

        offers = html_table(
            _OFFER_HEADERS, [_offer_row(offer) for offer in self.offers], caption="offers"
        )
        rejections = html_table(
            ("where", "type", "reason"),
            [(r.place or r.backend, r.instance_type or "", r.reason) for r in self.rejections],
            caption="rejections",
        )
        return offers + (rejections if self.rejections else "")


@frozen(kw_only=True)
class EnvVar:
    """One environment variable of the network plan, with its reason and source.

    `since` and `until` are the versions of the software that reads it between which it holds.
    `overridden` is what the plan would have set, where the user's own value won.
    """

    name: str
    value: str
    why: str
    source: Source | None = None
    since: str | None = None
    until: str | None = None
    overridden: str | None = None


@frozen(kw_only=True)
class NetworkItem:
    """One thing that makes the network work: a NIC, a placement, a plugin, a mount, ...

    `kind` groups them; `value` is what is asked for; `why` and `source` say who says so.
    """

    kind: str
    name: str
    value: str
    why: str
    source: Source | None = None


def _frozen_body(body: Mapping[str, object]) -> FrozenDict[str, object]:
    return cast("FrozenDict[str, object]", freeze(body))


@frozen(kw_only=True)
class Step:
    """One request of a plan, as data: what is sent is exactly `body`.

    A secret stands as `{"secret": NAME}` in the body and is put in place while it is sent.
    `owned` is False for what the plan uses but must not remove.
    """

    verb: str
    kind: str
    name: str
    body: FrozenDict[str, object] = field(
        factory=FrozenDict[str, object],
        converter=_frozen_body,
    )
    owned: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}"


@frozen(kw_only=True)
class LaunchPlan:
    """Everything a launch will make, as data, with the reason of each network setting.

    `run` tells launches of one task apart: a plan with another `run` is another job. Names and
    tags come from `key`, so applying one plan twice, from any process, makes one job.
    `gang_timeout_s` is the policy's: after so long a gang that is not whole is rolled back.
    """

    backend: str
    task: Task
    offer: Offer
    steps: tuple[Step, ...]
    env: tuple[EnvVar, ...] = ()
    network: tuple[NetworkItem, ...] = ()
    warnings: tuple[str, ...] = ()
    lower_tier: bool = False
    run: str = ""
    gang_timeout_s: float | None = None

    @property
    def key(self) -> str:
        """Eight hexadecimal digits made from backend, task, offer's place and `run`."""
        return plan_key(self.task, self.offer, run=self.run)

    @property
    def name(self) -> str:
        """The job's name in its place: the task's safe name and the key."""
        return f"{self.task.safe_name}-{self.key}"

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`; secrets without their values."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "LaunchPlan":
        """Builds it from plain data. Raises `SpecError`."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def to_yaml(self) -> str:
        """The same as `to_dict`, as YAML, below a comment with the job's name."""
        from gpufabric._yaml import dump

        return f"# {self.name}\n{dump(self.to_dict())}"

    @classmethod
    def from_yaml(cls, text: str) -> "LaunchPlan":
        """Builds it from YAML text. Raises `SpecError`."""
        from gpufabric._yaml import load_value

        return load_value(cls, text)

    def diff(self, other: "LaunchPlan") -> str:
        """The lines by which `other` differs, as a unified diff of the two YAML texts."""
        import difflib

        return "\n".join(
            difflib.unified_diff(
                self.to_yaml().splitlines(),
                other.to_yaml().splitlines(),
                self.name,
                other.name,
                lineterm="",
            )
        )

    def __str__(self) -> str:
        from gpufabric._display import one_line
        from gpufabric._plan_text import plan_lines

        return "\n".join(one_line(line, 10_000) for line in plan_lines(self))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def plan_key(task: Task, offer: Offer, *, run: str = "") -> str:
    """Eight hexadecimal digits that name a job, the same in every process.

    Made from the task without the values of its secrets, the offer's place and type, and `run`.
    """
    import hashlib  # loads OpenSSL, which a look at offers does without

    from gpufabric._convert import plain

    body = {
        "task": task.to_dict(),
        "offer": [
            offer.backend, str(offer.place), offer.instance_type, offer.num_nodes, offer.pool,
            plain(offer.interconnect), offer.spot,
        ],
        "run": run,
    }  # fmt: skip
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
