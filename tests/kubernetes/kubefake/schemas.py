"""Shapes of objects: Kubernetes' own from its OpenAPI description, JobSet's and Kueue's by hand.

Unknown fields are refused in any case. A real server does so only with fieldValidation=Strict, and
warns otherwise; code that sends what nobody reads is wrong in both.
"""

import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import Json, bad_request
from .kinds import Resource
from .shapes import SHAPES

VERSION = "1.36.0"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "object": (dict,), "array": (list,),
}  # fmt: skip


@functools.cache
def definitions() -> Json:
    """Kubernetes' own definitions, from the package kubernetes-validate."""
    root = importlib.resources.files("kubernetes_validate")
    path = root / "kubernetes-json-schema" / f"v{VERSION}-local" / "_definitions.json"
    found: Json = json.loads(path.read_text(encoding="utf-8"))["$defs"]
    return found


@functools.cache
def _by_kind() -> dict[tuple[str, str, str], str]:
    return {
        (row["group"], row["version"], row["kind"]): name
        for name, one in definitions().items()
        for row in one.get("x-kubernetes-group-version-kind") or ()
    }


def schema_of(resource: Resource) -> Json | None:
    """The schema of a kind; None for one of a definition that a test made."""
    if resource.custom:
        return SHAPES.get(resource.kind)
    name = _by_kind().get((resource.group, resource.version, resource.kind))
    if name is None:
        raise LookupError(f"Kubernetes {VERSION} describes no {resource.qualified_kind}")
    return definitions()[name]  # type: ignore[no-any-return]


def resolved(schema: Json) -> Json:
    """A schema without a reference at its top."""
    while "$ref" in schema:
        schema = definitions()[schema["$ref"].rpartition("/")[2]]
    return schema


def check(body: Json, resource: Resource) -> None:
    """Refuses what the kind does not have."""
    schema = schema_of(resource)
    if schema is None:
        return
    unknown: list[str] = []
    for path, problem in _faults(body, schema, ""):
        if problem:
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a'
                f" {resource.kind}: json: cannot unmarshal {problem} into field {path}"
            )
        unknown.append(f'unknown field "{path}"')
    if unknown:
        raise bad_request(f"strict decoding error: {', '.join(unknown)}")


def _faults(value: Any, schema: Json, path: str) -> Iterator[tuple[str, str]]:
    """Paths of fields that are unknown (no problem) or of another type (which)."""
    schema = resolved(schema)
    if value is None:
        return
    if "oneOf" in schema:
        if not any(_is(value, one.get("type")) for one in schema["oneOf"]):
            yield path, _name(value)
        return
    if "type" in schema and not _is(value, schema["type"]):
        yield path, f"{_name(value)}, wanted {schema['type']},"
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(item, schema.get("items", {}), f"{path}[{number}]")
    elif isinstance(value, dict):
        yield from _object_faults(value, schema, path)


def _object_faults(value: Json, schema: Json, path: str) -> Iterator[tuple[str, str]]:
    rest = schema.get("additionalProperties")
    fields = schema.get("properties")
    for name, item in value.items():
        at = f"{path}.{name}" if path else name
        if fields is not None and name in fields:
            yield from _faults(item, fields[name], at)
        elif isinstance(rest, dict):
            yield from _faults(item, rest, at)
        elif fields is not None and not schema.get("x-any"):
            yield at, ""


def _is(value: object, wanted: str | list[str] | None) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted or []
    if not names:
        return True
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES.get(name, ())) for name in names)


def _name(value: object) -> str:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def missing(body: Any, schema: Json | None, path: str = "") -> Iterator[str]:
    """Paths of fields that must be there and are not."""
    if schema is None or body is None:
        return
    schema = resolved(schema)
    if isinstance(body, list):
        for number, item in enumerate(body):
            yield from missing(item, schema.get("items", {}), f"{path}[{number}]")
    elif isinstance(body, dict):
        for name in schema.get("required") or ():
            if body.get(name) is None:
                yield f"{path}.{name}" if path else name
        for name, item in body.items():
            inner = (schema.get("properties") or {}).get(name)
            if inner is not None:
                yield from missing(item, inner, f"{path}.{name}" if path else name)
