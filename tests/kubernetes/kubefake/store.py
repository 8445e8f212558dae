"""Objects with versions, what changed in them, and who wants to know."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .errors import Json

Key = tuple[str, str]  # namespace (or "") and name
HISTORY = 20_000


def ordered(body: Json) -> Json:
    """Type and metadata first, as servers answer."""
    head = {name: body[name] for name in ("kind", "apiVersion", "metadata")}
    return {**head, **{name: value for name, value in body.items() if name not in head}}


class Entry:
    """One version of an object. What it holds is never changed: a change makes another."""

    __slots__ = ("_raw", "obj")

    def __init__(self, obj: Json) -> None:
        self.obj = obj
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """As JSON, made once."""
        if self._raw is None:
            self._raw = json.dumps(self.obj, separators=(",", ":")).encode()
        return self._raw

    def copy(self) -> Json:
        """The object, to be changed."""
        made: Json = json.loads(self.raw)
        return made


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object. `entry` is it after the change, or as it was deleted."""

    version: int
    table: str
    type: str
    entry: Entry
    before: Entry | None


class Store:
    """All objects of one server."""

    def __init__(self) -> None:
        self.version = 1000
        self.forgotten = 1000  # changes up to this version are known no more
        self._tables: dict[str, dict[Key, Entry]] = {}
        self._history: deque[Change] = deque()
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Calls it at every change; gives what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def find(self, table: str, namespace: str, name: str) -> Entry | None:
        """One object."""
        return self._tables.get(table, {}).get((namespace, name))

    def all(self, table: str, namespace: str = "") -> Iterator[Entry]:
        """Every object of a kind, of one namespace where it is named."""
        for (space, _), entry in tuple(self._tables.get(table, {}).items()):
            if not namespace or space == namespace:
                yield entry

    def sorted(self, table: str, namespace: str = "") -> list[tuple[Key, Entry]]:
        """The same in the order of lists."""
        rows = self._tables.get(table, {}).items()
        return sorted(row for row in rows if not namespace or row[0][0] == namespace)

    def tables(self) -> tuple[str, ...]:
        """Every kind that has objects."""
        return tuple(self._tables)

    def put(self, table: str, obj: Json) -> Entry:
        """Keeps an object under a new version."""
        meta = obj["metadata"]
        key = (meta.get("namespace") or "", meta["name"])
        rows = self._tables.setdefault(table, {})
        before = rows.get(key)
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        rows[key] = entry = Entry(ordered(obj))
        self._tell(table, "MODIFIED" if before else "ADDED", entry, before)
        return entry

    def drop(self, table: str, namespace: str, name: str) -> Entry | None:
        """Forgets an object."""
        before = self._tables.get(table, {}).pop((namespace, name), None)
        if before is None:
            return None
        self.version += 1
        last = before.copy()
        last["metadata"]["resourceVersion"] = str(self.version)
        entry = Entry(last)
        self._tell(table, "DELETED", entry, before)
        return entry

    def load(self, table: str, objects: Iterable[Json]) -> int:
        """Keeps many objects as they are, without any rule and without telling anyone."""
        rows = self._tables.setdefault(table, {})
        before = self.version
        for obj in objects:
            self.version += 1
            meta = obj["metadata"]
            meta["resourceVersion"] = str(self.version)
            rows[meta.get("namespace") or "", meta["name"]] = Entry(ordered(obj))
        self.forget()
        return self.version - before

    def forget(self) -> None:
        """Compacts: no watch can begin before now, and no list can go on."""
        self._history.clear()
        self.forgotten = self.version

    def since(self, version: int, table: str) -> Iterator[Change]:
        """What happened after a version."""
        return (one for one in tuple(self._history) if one.version > version and one.table == table)

    def _tell(self, table: str, kind: str, entry: Entry, before: Entry | None) -> None:
        change = Change(self.version, table, kind, entry, before)
        self._history.append(change)
        if len(self._history) > HISTORY:
            self.forgotten = self._history.popleft().version
        for listener in tuple(self._listeners):
            listener(change)
