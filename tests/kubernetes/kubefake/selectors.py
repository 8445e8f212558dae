"""Label and field selectors."""

import re
from collections.abc import Callable, Mapping

from .errors import Json, bad_request

Match = Callable[[Json], bool]

_SPLIT = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"^\s*(\S+?)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUALS = re.compile(r"^\s*([^=!\s]+)\s*(==|=|!=)\s*([^=!,\s]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([A-Za-z0-9._/-]+)\s*$")

_COMMON = {"metadata.name", "metadata.namespace"}
#: Field labels of each kind: k8s.io/kubernetes/pkg/apis/*/v1/conversion.go.
_FIELDS: Mapping[str, frozenset[str]] = {
    "pods": frozenset({
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs",
        "status.nominatedNodeName",
    }),
    "nodes": frozenset({"spec.unschedulable"}),
    "events": frozenset({
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
    }),
    "jobs.batch": frozenset({"status.successful"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "services": frozenset({"spec.clusterIP", "spec.type"}),
    "resourceslices.resource.k8s.io": frozenset({"spec.nodeName", "spec.driver"}),
}  # fmt: skip


def by_labels(text: str) -> Match | None:
    """Whether an object's labels fit; None for all."""
    tests = [_label_test(part) for part in _SPLIT.split(text) if part.strip()]
    if not tests:
        return None

    def fits(one: Json) -> bool:
        labels = one["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return fits


def _label_test(part: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(part):
        key, word, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if word == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUALS.match(part):
        key, sign, value = found.groups()
        if sign == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.match(part):
        absent, key = found.groups()
        return lambda labels: (key in labels) is not bool(absent)
    raise bad_request(f"unable to parse requirement: {part!r}")


def by_fields(text: str, table: str) -> Match | None:
    """Whether an object's fields fit; None for all."""
    tests: list[tuple[str, bool, str]] = []
    for part in text.split(","):
        if not part.strip():
            continue
        found = _EQUALS.match(part)
        if not found:
            raise bad_request(f"invalid field selector: {part!r}")
        key, sign, value = found.groups()
        if key not in _COMMON and key not in _FIELDS.get(table, ()):
            if table in _FIELDS:
                raise bad_request(f"field label not supported: {key}")
            raise bad_request(
                f'"{key}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            )
        tests.append((key, sign == "!=", value))
    if not tests:
        return None
    return lambda one: all((_field(one, key) == value) is not no for key, no, value in tests)


def _field(one: Json, path: str) -> str:
    value: object = one
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):  # an event's `source` stands for its component
        return str(value.get("component") or "")
    return "" if value is None else str(value)


def fits_selector(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether labels fit a LabelSelector; none fits none, an empty one fits all."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_fits(row, labels) for row in selector.get("matchExpressions") or ())


def _fits(row: Json, labels: Mapping[str, str]) -> bool:
    key, operator, values = row["key"], row["operator"], row.get("values") or ()
    there = labels.get(key)
    if operator == "In":
        return there in values
    if operator == "NotIn":
        return there not in values
    if operator == "Exists":
        return there is not None
    if operator == "DoesNotExist":
        return there is None
    if operator in {"Gt", "Lt"} and there is not None:
        return (int(there) > int(values[0])) is (operator == "Gt") and int(there) != int(values[0])
    return False
