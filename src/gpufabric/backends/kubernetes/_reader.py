"""Reads of one discovery, each of which may be refused: what could not be read is told."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from gpufabric.backends.kubernetes._api import Api, ExpiredError, Json
from gpufabric.backends.kubernetes._paging import paged
from gpufabric.errors import CredentialsError, NotFoundError, TransientError

__all__ = ["Reader"]

T = TypeVar("T")
_AUTOSCALER = "the cluster autoscaler's status, which names node groups without a node"


class Reader:
    """Reads of one discovery, and in `unseen` what could not be read, in words."""

    def __init__(self, api: Api) -> None:
        """Reads nothing yet."""
        self.api = api
        self.unseen: list[str] = []
        self.list = api.items
        self.get = api.get
        self._groups: list[Json] | None = None

    def tolerated(
        self, what: str, read: Callable[[], T], *, verb: str = "list", needed: bool = False
    ) -> T | None:
        """What `read` gives; None where it may not be read or is not there, which is told.

        What fails is read once more, a list whose pages expired from its start. What fails again is
        told, unless it is `needed`: then the error is raised.
        """
        for last in (False, True):
            try:
                return read()
            except CredentialsError as exc:
                if "not allowed" not in str(exc):
                    raise
                self.unseen.append(f"{what}: not allowed to {verb} them")
            except NotFoundError:
                self.unseen.append(f"{what}: the server does not have them")
            except ExpiredError as exc:
                if not last:
                    continue
                self.unseen.append(
                    f"{what}: the list expired twice while it was read ({exc}): the server drops"
                    " old versions faster than it gives pages; discover again"
                )
            except TransientError as exc:
                if not last:
                    continue
                if needed:
                    raise
                self.unseen.append(f"{what}: the server failed twice: {exc}")
            return None
        return None

    def autoscaler(self, read: Callable[[], T]) -> T | None:
        """What `read` gives of the cluster autoscaler; None where it is not there or refused."""
        known = len(self.unseen)
        found = self.tolerated(_AUTOSCALER, read, verb="get")
        if any("does not have" in text for text in self.unseen[known:]):
            del self.unseen[known:]  # most clusters have none
        return found

    def many(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Json]:
        """Every item of a list that may be large; raises as `list` does."""
        return paged(self.api, path, query)

    def listed(self, what: str, path: str, *, needed: bool = False) -> list[Json] | None:
        """Every item of a list; None where it may not be read."""
        return self.tolerated(what, lambda: list(self.list(path)), needed=needed)

    def one(self, what: str, path: str) -> Json | None:
        """One object; None where it may not be read or is not there."""
        return self.tolerated(what, lambda: self.get(path), verb="get")

    @property
    def api_groups(self) -> list[Json]:
        """The groups of `/apis`, each with its versions."""
        if self._groups is None:
            self._groups = cast("list[Json]", list(self.get("/apis").get("groups") or ()))
        return self._groups

    @property
    def groups(self) -> Mapping[str, str]:
        """API group -> its preferred version."""
        return {
            str(group["name"]): str(group["preferredVersion"]["version"])
            for group in self.api_groups
        }
