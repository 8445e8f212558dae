"""The three kinds of patches that an API server takes and the library sends."""

import copy
from collections.abc import Sequence
from typing import Any

from .errors import Json, Refusal, bad_request
from .schemas import resolved

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def patched(base: Json, patch: Any, content_type: str, schema: Json | None) -> Json:
    """The object with the patch applied."""
    if content_type == MERGE and isinstance(patch, dict):
        return merged(base, patch)
    if content_type == JSON_PATCH and isinstance(patch, list):
        return _json_patched(base, patch)
    if content_type == STRATEGIC and isinstance(patch, dict):
        if schema is None:
            raise _unsupported(content_type)
        return _strategic(base, patch, schema)
    if content_type in {MERGE, JSON_PATCH, STRATEGIC}:
        raise bad_request("the patch is of another form than its content type says")
    raise _unsupported(content_type)


def _unsupported(content_type: str) -> Refusal:
    told = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{JSON_PATCH}, {MERGE}; got {content_type!r}"
    )
    return Refusal(415, "UnsupportedMediaType", told)


def merged(base: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made


# ---- RFC 6902


def _json_patched(base: Json, steps: Sequence[Json]) -> Json:
    made = copy.deepcopy(base)
    for step in steps:
        path = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        try:
            _step(made, step, path)
        except (KeyError, IndexError, ValueError, TypeError) as exc:
            told = f"the server rejected our request due to an error in our request: {step}"
            raise Refusal(422, "Invalid", told) from exc
    return made


def _step(made: Any, step: Json, path: list[str]) -> None:
    *way, last = path
    at = made
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    operation = step["op"]
    if operation == "test":
        there = at[int(last)] if isinstance(at, list) else at[last]
        if there != step["value"]:
            raise ValueError("test failed")
    elif operation == "remove":
        at.pop(int(last) if isinstance(at, list) else last)
    elif operation in {"add", "replace"}:
        value = copy.deepcopy(step["value"])
        if not isinstance(at, list):
            if operation == "replace":
                at[last]  # must be there
            at[last] = value
        elif operation == "add":
            at.insert(len(at) if last == "-" else int(last), value)
        else:
            at[int(last)] = value
    else:
        raise ValueError(f"no such operation here: {operation}")


# ---- strategic merge


def _strategic(base: Json, patch: Json, schema: Json) -> Json:
    """Lists with a merge key in the schema merge by it; `$patch: delete` removes an item."""
    fields = resolved(schema).get("properties") or {}
    made = dict(base)
    for name, value in patch.items():
        if name == "$patch":
            continue
        inner = fields.get(name, {})
        there = made.get(name)
        key = inner.get("x-kubernetes-patch-merge-key")
        if value is None:
            made.pop(name, None)
        elif isinstance(value, list) and key and isinstance(there, list):
            made[name] = _strategic_list(there, value, key, inner.get("items", {}))
        elif isinstance(value, dict):
            made[name] = _strategic(there if isinstance(there, dict) else {}, value, inner)
        else:
            made[name] = copy.deepcopy(value)
    return made


def _strategic_list(base: list[Json], patch: list[Json], key: str, schema: Json) -> list[Json]:
    made = list(base)
    for one in patch:
        at = next((n for n, old in enumerate(made) if old.get(key) == one.get(key)), None)
        if one.get("$patch") == "delete":
            if at is not None:
                made.pop(at)
        elif at is None:
            made.append(_strategic({}, one, schema))
        else:
            made[at] = _strategic(made[at], one, schema)
    return made
