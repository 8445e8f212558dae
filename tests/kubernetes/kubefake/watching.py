"""Watches: what has changed since a version, and what changes from now on."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from .errors import Json, expired
from .kinds import Resource
from .store import Change, Entry, Store

Fits = Callable[[Json], bool]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a watch is told."""

    resource: Resource
    namespace: str
    name: str
    fits: Fits


def line(kind: str, raw: bytes) -> bytes:
    """One event as it is sent."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


def bookmark(wanted: Wanted, version: int) -> bytes:
    """How far a watch has come, where nothing of its own has changed."""
    body: Json = {
        "kind": wanted.resource.kind, "apiVersion": wanted.resource.api_version,
        "metadata": {"resourceVersion": str(version)},
    }  # fmt: skip
    return line("BOOKMARK", json.dumps(body).encode())


def event_of(change: Change, wanted: Wanted) -> bytes | None:
    """What a watch is told of a change: nothing where it is of another object."""
    if change.table != wanted.resource.table:
        return None
    meta = change.entry.obj["metadata"]
    if wanted.namespace and meta.get("namespace") != wanted.namespace:
        return None
    if wanted.name and meta["name"] != wanted.name:
        return None
    was = change.before is not None and wanted.fits(change.before.obj)
    if change.type == "DELETED":
        return line("DELETED", change.entry.raw) if was else None
    fits = wanted.fits(change.entry.obj)
    if fits:
        return line("MODIFIED" if was else "ADDED", change.entry.raw)
    return line("DELETED", change.entry.raw) if was else None


class Watch:
    """One watch: lines in a queue."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._store = store
        self._wanted = wanted
        self._end: Callable[[], None] | None = None

    def begin(self, version: str) -> None:
        """From a version on; from what there is now without one."""
        wanted, store = self._wanted, self._store
        if version in {"", "0"}:
            for _, entry in store.sorted(wanted.resource.table, wanted.namespace):
                if self._mine(entry):
                    self.lines.put_nowait(line("ADDED", entry.raw))
        else:
            since = int(version)
            if since < store.forgotten:
                raise expired(f"too old resource version: {since} ({store.forgotten})")
            for change in store.since(since, wanted.resource.table):
                self._tell(change)
        self._end = store.listen(self._tell)

    def _mine(self, entry: Entry) -> bool:
        return self._wanted.fits(entry.obj) and (
            not self._wanted.name or entry.obj["metadata"]["name"] == self._wanted.name
        )

    def _tell(self, change: Change) -> None:
        told = event_of(change, self._wanted)
        if told is not None:
            self.lines.put_nowait(told)

    def close(self) -> None:
        """Is told nothing more."""
        if self._end is not None:
            self._end()
            self._end = None
