"""Amounts as Kubernetes writes them, and what the pods of a cluster ask of its nodes."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Iterable
from functools import lru_cache

from gpufabric.backends.kubernetes._api import Json

__all__ = ["amount_of", "quantity", "usage_of"]

_SUFFIX = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_QUANTITY = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]i?|Ki)?$")
_ENDED = ("Succeeded", "Failed")


def quantity(text: object) -> float:
    """A quantity (`500m`, `1k`, `2Ti`) as a number; raises `ValueError`.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    return _quantity(str(text))


@lru_cache(maxsize=4096)  # a cluster's pods ask for few different amounts
def _quantity(text: str) -> float:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    return float(match[1]) * _SUFFIX[match[2] or ""]


def amount_of(amounts: Json, name: str | None) -> float:
    """One of a list of amounts, 0 where it is not in it."""
    return quantity(amounts.get(name, "0")) if name else 0


def usage_of(pods: Iterable[Json]) -> dict[str, dict[str, float]]:
    """Node -> resource -> how much the pods on it ask for. Pods that have ended use nothing."""
    used: dict[str, dict[str, float]] = {}
    for pod in pods:
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        node = spec.get("nodeName")
        if not node or phase in _ENDED:
            continue
        mine = used.setdefault(str(node), {})
        mine["pods"] = mine.get("pods", 0) + 1
        for name, amount in _pod_requests(spec).items():
            mine[name] = mine.get(name, 0) + amount
    return used


def _pod_requests(spec: Json) -> dict[str, float]:
    """The sum of containers and sidecars, or what an init container needs where that is more.

    An init container runs beside the sidecars that were started before it.
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    total: dict[str, float] = {}
    sidecars: dict[str, float] = {}
    first: dict[str, float] = {}
    for container in spec.get("containers") or ():
        _add(total, container)
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(sidecars, container)
            continue
        mine = dict(sidecars)
        _add(mine, container)
        for name, amount in mine.items():
            first[name] = max(first.get(name, 0), amount)
    for name, amount in sidecars.items():
        total[name] = total.get(name, 0) + amount
    pod_level = (spec.get("resources") or {}).get("requests") or {}
    made = {name: max(total.get(name, 0), first.get(name, 0)) for name in {*total, *first}}
    made |= {name: quantity(amount) for name, amount in pod_level.items()}
    for name, amount in (spec.get("overhead") or {}).items():
        made[name] = made.get(name, 0) + quantity(amount)
    return made


def _add(total: dict[str, float], container: Json) -> None:
    resources = container.get("resources") or {}
    for name, amount in {
        **(resources.get("limits") or {}),
        **(resources.get("requests") or {}),
    }.items():
        total[name] = total.get(name, 0) + quantity(amount)
