"""The objects of one list, kept up to date: by a watch, or by listing where none is permitted.

A watch begins at the version of the list, and goes on after a break from the last version it has
seen; bookmarks keep that young. Where the server has forgotten it (410), the list is read anew.
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from typing import cast

from gpufabric.backends.kubernetes._api import Api, ExpiredError, Json, error_of
from gpufabric.backends.kubernetes._streams import Loop
from gpufabric.errors import CredentialsError, GpuFabricError, NotFoundError, TransientError

__all__ = ["Watch"]

_log = logging.getLogger(__name__)
_PAGE = "500"
_TIMEOUT_S = 290  # the server ends a watch after so long, and it is opened anew
_DEAD_S = _TIMEOUT_S + 30.0  # without a word for longer: the connection is dead
_LIST_EVERY_S = 2.0
_PAUSE_S = (0.05, 3.0)  # before a request that failed is tried again
_told: "weakref.WeakKeyDictionary[Api, set[str]]" = weakref.WeakKeyDictionary()


class Watch:
    """Keeps `objects`, by uid. `changed` is called in the loop's thread after every change."""

    def __init__(  # noqa: PLR0913  # what, where from, and who is told
        self,
        loop: Loop,
        api: Api,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        changed: Callable[[], None],
        keep: Callable[[Json], bool] = lambda _: True,
    ) -> None:
        """Begins to list. Objects that `keep` does not want are not held."""
        self.objects: dict[str, Json] = {}
        #: Whether it has been listed once, so that what is not in `objects` does not exist.
        self.synced = False
        #: What ended it for good: credentials that are not accepted, a list that is not permitted.
        self.error: GpuFabricError | None = None
        #: Why the last request brought nothing; None again as soon as one does.
        self.trouble: GpuFabricError | None = None
        #: Whether changes come by themselves.
        self.watching = False
        self._loop = loop
        self._api = api
        self._path = path
        self._query = dict(query or {})
        self._changed = changed
        self._keep = keep
        self._version = ""
        self._rest = b""
        self._pause = _PAUSE_S[0]
        self._may_watch = True
        self._faults = 0
        self._heard = 0.0
        self._opened = False
        self._list()

    # ---- the list

    def _list(self) -> None:
        self.watching = self._opened = False
        self._loop.call(self._listed, self._took)

    def _listed(self) -> tuple[dict[str, Json], str]:
        """Every object and the version of the list; runs in a helper of the loop."""
        found: dict[str, Json] = {}
        token = ""
        while True:
            query = {"limit": _PAGE, **self._query, **({"continue": token} if token else {})}
            page = self._api.get(self._path, query)
            for one in cast("list[Json]", page.get("items") or ()):
                if self._keep(one):
                    found[str(one["metadata"]["uid"])] = one
            meta = page.get("metadata") or {}
            token = str(meta.get("continue") or "")
            if not token:
                return found, str(meta.get("resourceVersion") or "")

    def _took(self, result: tuple[dict[str, Json], str] | GpuFabricError) -> None:
        if isinstance(result, TransientError):  # and a page that expired on the way
            self.trouble = result
            self._later(self._list)
            self._changed()
            return
        if isinstance(result, NotFoundError):  # the kind is not served, or not any more
            result = ({}, "")
        if isinstance(result, GpuFabricError):
            self.error = result
            self._changed()
            return
        self.objects, self._version = result
        self.synced, self.trouble = True, None
        self._changed()
        if self._may_watch and self._version:
            self._watch()
        else:
            self._loop.later(_LIST_EVERY_S, self._list)

    # ---- the watch

    def _watch(self) -> None:
        query = {
            **self._query, "watch": "true", "allowWatchBookmarks": "true",
            "resourceVersion": self._version, "timeoutSeconds": str(_TIMEOUT_S),
        }  # fmt: skip
        self._rest = b""
        self._opened = True
        self._hear()
        self._loop.open(lambda: self._api.open(self._path, query), self)

    def _hear(self) -> None:
        if not self._heard:
            self._loop.later(_DEAD_S, self._look)
        self._heard = time.monotonic()

    def _look(self) -> None:
        """Ends a connection on which nothing has come for longer than the server keeps one."""
        quiet = time.monotonic() - self._heard
        if quiet < _DEAD_S - 1.0 or not self._opened:
            self._loop.later(max(_DEAD_S - quiet, 1.0), self._look)
            return
        self._heard = 0.0
        self._loop.drop_reader(self)
        self._watch()

    def began(self) -> None:
        """From now on changes come by themselves."""
        self.watching, self.trouble = True, None
        self._changed()

    def received(self, data: bytes) -> None:
        """Takes the events in it."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._hear()
        fault: GpuFabricError | None = None
        changed = False
        for line in lines:
            if not line.strip():
                continue
            try:
                event = cast("Json", json.loads(line))
                kind, one = str(event["type"]), cast("Json", event["object"])
            except (ValueError, KeyError, TypeError):
                fault = self._fault({"message": "what the watch brought is no event"})
                break
            if kind == "ERROR":
                fault = self._fault(one)
                break
            self._pause, self._faults, self.trouble = _PAUSE_S[0], 0, None
            changed |= self._event(kind, one)
        if changed:
            self._changed()
        if fault is not None:
            self._loop.drop_reader(self)
            self.ended(fault, 200)

    def _event(self, kind: str, one: Json) -> bool:
        """Takes one event; gives whether something that is held has changed."""
        meta = one["metadata"]
        self._version = str(meta.get("resourceVersion") or self._version)
        if kind == "BOOKMARK":
            return False
        uid = str(meta["uid"])
        if kind == "DELETED" or not self._keep(one):
            return self.objects.pop(uid, None) is not None
        self.objects[uid] = one
        return True

    def _fault(self, status: Json) -> GpuFabricError:
        return error_of(
            int(status.get("code") or 500), str(status.get("reason") or ""),
            str(status.get("message") or ""), backend=self._api.backend,
            operation=f"WATCH {self._path}",
        )  # fmt: skip

    def ended(self, error: GpuFabricError | None, status: int) -> None:
        """Goes on: from the last version, from a new list, or without a watch."""
        self.watching = self._opened = False
        if isinstance(error, ExpiredError):
            self._faults += 1
            if self._faults > 1:  # a list that is old at once: not in a tight loop
                self._later(self._list)
            else:
                self._list()
        elif error is None or isinstance(error, TransientError):
            self._faults += error is not None
            self.trouble = error or self.trouble
            self._changed()
            again = self._list if self._faults > 3 else self._watch
            self._later(again)
        elif isinstance(error, CredentialsError) and status == 401:
            self._faults += 1
            if self._faults > 2:
                self.error = error
                self._changed()
            else:
                self._list()  # which renews them, or tells that they are not accepted
        elif status in {403, 404, 405}:
            self._may_watch = False
            if status != 404:
                self._tell(error)
            self._loop.later(_LIST_EVERY_S, self._list)
        else:
            self.error = error
            self._changed()

    def _later(self, what: Callable[[], None]) -> None:
        self._loop.later(self._pause, what)
        self._pause = min(self._pause * 2, _PAUSE_S[1])

    def _tell(self, error: GpuFabricError) -> None:
        """Says once what is not permitted."""
        kind = self._path.rsplit("/", 1)[-1]
        told = _told.setdefault(self._api, set())
        if kind not in told:
            told.add(kind)
            _log.warning(
                "%s: may not watch %s, so they are listed every %g s instead: %s",
                self._api.backend, kind, _LIST_EVERY_S, error,
            )  # fmt: skip
