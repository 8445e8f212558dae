"""ResourceQuotas and LimitRanges of a namespace, and whether they let a gang in.

https://kubernetes.io/docs/concepts/policy/resource-quotas/ and
https://kubernetes.io/docs/concepts/policy/limit-range/
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping
from typing import cast

from gpufabric._frozen import frozen
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._usage import quantity

__all__ = ["Asked", "limit_records", "quota_faults", "quota_record"]

#: Scopes of pods like ours: they run to an end by their Job's clock, not their own, and ask for
#: something. Others (Terminating, BestEffort, PriorityClass, ...) are not for them.
_OURS = ("NotTerminating", "NotBestEffort")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


@frozen(kw_only=True)
class Asked:
    """What a gang asks of the namespace."""

    num_nodes: int
    requests: Mapping[str, float]
    """Of each pod."""
    objects: Mapping[str, int]
    """Other objects, by their plural and group: `jobs.batch`."""
    devices: Mapping[str, int]
    """DeviceClass -> devices that each pod claims."""

    def amounts(self) -> dict[str, float]:
        """By the names that a ResourceQuota has for them."""
        nodes = self.num_nodes
        found: dict[str, float] = {"pods": nodes, "count/pods": nodes}
        for name, amount in self.requests.items():
            found[f"requests.{name}"] = amount * nodes
            if name in _COMPUTE:
                found[name] = amount * nodes
        for name, count in self.objects.items():
            found[f"count/{name}"] = found[name] = count
        for name, count in self.devices.items():
            found[f"{name}.deviceclass.resource.k8s.io/devices"] = count * nodes
        return found


def quota_record(item: Json) -> Json:
    """What a plan must know of one ResourceQuota."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    selector = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return {
        "name": str(item["metadata"]["name"]),
        "hard": dict(status.get("hard") or spec.get("hard") or {}),
        "used": dict(status.get("used") or {}),
        "scopes": [*(spec.get("scopes") or ()), *(str(one["scopeName"]) for one in selector)],
    }


def limit_records(item: Json) -> Iterator[Json]:
    """What a plan must know of one LimitRange, one record for each of its limits."""
    for one in (item.get("spec") or {}).get("limits") or ():
        yield {
            "name": str(item["metadata"]["name"]),
            "type": str(one.get("type")),
            **{
                name: dict(one.get(key) or {})
                for name, key in (
                    ("max", "max"),
                    ("min", "min"),
                    ("limit", "default"),
                    ("request", "defaultRequest"),
                )
            },
        }


def quota_faults(site: Site, asked: Asked) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why the namespace refuses a gang's pods, and what it changes in them."""
    limits = cast("tuple[Json, ...]", site.facts.get("limits") or ())
    refused = [*_over_limits(limits, asked), *_over_quota(site, asked, limits)]
    return tuple(refused), tuple(_changed(limits, asked))


def _over_quota(site: Site, asked: Asked, limits: tuple[Json, ...]) -> Iterator[str]:
    amounts = asked.amounts()
    for name, amount in _defaults(limits, "request").items():
        amounts.setdefault(f"requests.{name}", amount * asked.num_nodes)
        amounts.setdefault(name, amount * asked.num_nodes)
    for name, amount in _defaults(limits, "limit").items():
        amounts[f"limits.{name}"] = amount * asked.num_nodes
    for one in cast("tuple[Json, ...]", site.facts.get("quotas") or ()):
        if not set(one.get("scopes") or ()) <= set(_OURS):
            continue
        for name, hard in one["hard"].items():
            resource = name.removeprefix("requests.").removeprefix("limits.")
            if name not in amounts and resource in _COMPUTE[:2]:
                yield _unsaid(one["name"], name, resource)
                continue
            left = quantity(hard) - quantity(one["used"].get(name, "0"))
            if amounts.get(name, 0) > left:
                yield (
                    f"the ResourceQuota {one['name']} leaves {left:g} {name}, "
                    f"{amounts[name]:g} are needed"
                )


def _unsaid(quota: str, name: str, resource: str) -> str:
    """The server refuses pods that are silent on what a quota counts."""
    if name.startswith("limits."):
        do = "give them one with pod_patch, or a LimitRange's default"
    else:
        do = f"say Resources({'cpus' if resource == 'cpu' else 'memory_gib'}=...)"
    return f"the ResourceQuota {quota} refuses pods that do not say {name}: {do}"


def _defaults(limits: tuple[Json, ...], kind: str) -> dict[str, float]:
    return {
        name: quantity(amount)
        for one in limits
        if one["type"] == "Container"
        for name, amount in one[kind].items()
    }


def _over_limits(limits: tuple[Json, ...], asked: Asked) -> Iterator[str]:
    given, wanted = _defaults(limits, "limit"), _defaults(limits, "request")
    for one in limits:
        if one["type"] not in {"Container", "Pod"}:
            continue
        where = f"the LimitRange {one['name']} lets a {one['type'].lower()} have"
        for name, most in one["max"].items():
            amount = asked.requests.get(name, 0)
            if amount > quantity(most):
                yield f"{where} at most {most} {name}, {amount:g} are asked"
            elif one["type"] == "Pod" and name in _COMPUTE and name not in given:
                yield (
                    f"{where} at most {most} {name} and refuses those without a limit: give them"
                    " one with pod_patch"
                )
        for name, least in one["min"].items():
            said = asked.requests.get(name)
            if said is not None and said < quantity(least):
                yield f"{where} no less than {least} {name}, {said:g} are asked"
            elif said is None and one["type"] == "Pod" and name not in wanted:
                yield f"{where} no less than {least} {name}, and none is asked"
    for name, limit in given.items():
        amount = asked.requests.get(name, 0)
        if name in _COMPUTE and amount > limit:
            yield (
                f"a LimitRange gives containers a limit of {limit:g} {name}, and {amount:g} are"
                " asked: set the limit with pod_patch"
            )


def _changed(limits: tuple[Json, ...], asked: Asked) -> Iterator[str]:
    for kind, word in (("limit", "a limit"), ("request", "a request")):
        for name, amount in _defaults(limits, kind).items():
            own = name in asked.requests
            if own and (kind == "request" or name not in _COMPUTE):
                continue
            in_bytes = name in _COMPUTE and name != "cpu"
            shown = f"{amount / 2**30:g} GiB" if in_bytes else f"{amount:g}"
            yield f"a LimitRange gives containers that do not say it {word} of {shown} {name}"
