"""Large lists: the next page is on its way while the last one is read."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.errors import BackendError

__all__ = ["paged"]

_PAGE = "500"
#: The token of the next page stands in the list's own metadata, which the server writes first.
_HEAD = 4096
_TOKEN = re.compile(rb'"metadata":\{[^{}]*"continue":"([^"\\]*)"')
#: A list of who owns which field: objects and strings alone, no list within. In a text that is
#: itself JSON the first quote is escaped, so that it is no match.
_MANAGED = re.compile(rb'"managedFields":\[(?:[^\[\]"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+\]')


def paged(api: Api, path: str, query: Mapping[str, str] | None = None) -> Iterator[Json]:
    """Every item of a list, without who owns which field. Two pages are in memory at a time."""
    asked = {"limit": _PAGE, **(query or {})}
    with ThreadPoolExecutor(1, thread_name_prefix="gpufabric-pages") as ahead:
        coming = ahead.submit(api.raw, path, asked)
        while True:
            data = coming.result()
            early = _TOKEN.search(data, 0, _HEAD)
            token = early[1].decode() if early else ""
            if token:
                coming = ahead.submit(api.raw, path, {**asked, "continue": token})
            page = _parsed(api, path, data)
            yield from cast("list[Json]", page.get("items") or ())
            said = str((page.get("metadata") or {}).get("continue") or "")
            if not said:
                return
            if said != token:  # a server that writes its metadata last
                coming = ahead.submit(api.raw, path, {**asked, "continue": said})


def _parsed(api: Api, path: str, data: bytes) -> Json:
    """A page; what nobody reads of pods, a third of their text, is dropped before it is parsed."""
    try:
        return cast("Json", json.loads(_MANAGED.sub(b'"managedFields":[]', data)))
    except ValueError as exc:
        raise BackendError(
            f"answered with no JSON ({exc}): {data[:80]!r}",
            backend=api.backend, operation=f"GET {path}",
        ) from exc  # fmt: skip
