"""Which jobs of ours there are: in one namespace, or in every one that may be seen."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import logging
from collections.abc import Iterator
from functools import partial

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._manifest import JOB_LABEL, NODES
from gpufabric.backends.kubernetes._objects import JOBSET_VERSION, LWS_VERSION, path_of
from gpufabric.backends.kubernetes._patience import again
from gpufabric.errors import CredentialsError

__all__ = ["jobs_everywhere", "jobs_in"]

_log = logging.getLogger(__name__)


def jobs_in(
    api: Api, namespace: str | None, *, jobsets: bool, sets: bool = False
) -> set[tuple[str, str]]:
    """Namespace and name of every job; None is the whole cluster in one request a kind."""
    kinds = [("batch/v1", "Job"), *([(JOBSET_VERSION, "JobSet")] if jobsets else [])]
    listed = [again(partial(_labelled, api, path_of(*kind, namespace))) for kind in kinds]
    listed += [_serving(api, namespace)] if sets else []
    found: set[tuple[str, str]] = set()
    for items in listed:
        for one in items:
            meta = one["metadata"]
            if NODES in (meta.get("annotations") or {}):
                found.add((str(meta["namespace"]), str(meta["name"])))
    return found


def _labelled(api: Api, path: str) -> list[Json]:
    return list(api.items(path, {"labelSelector": JOB_LABEL}, metadata_only=True))


def _serving(api: Api, namespace: str | None) -> list[Json]:
    try:
        return again(partial(_labelled, api, path_of(LWS_VERSION, "LeaderWorkerSet", namespace)))
    except CredentialsError as exc:
        where = f"of namespace {namespace}" if namespace else "of all namespaces"
        _log.warning("%s: the jobs %s that serve may not be listed: %s", api.backend, where, exc)
        return []


def jobs_everywhere(
    api: Api, own: str, *, jobsets: bool, sets: bool = False
) -> set[tuple[str, str]]:
    """The jobs of every namespace whose jobs may be listed; what is left out is logged."""
    try:
        return jobs_in(api, None, jobsets=jobsets, sets=sets)
    except CredentialsError as exc:
        refused = exc
    found = jobs_in(api, own, jobsets=jobsets, sets=sets)
    try:
        spaces = set(_namespaces(api)) - {own}
    except CredentialsError:
        _log.warning(
            "%s: only the jobs of namespace %s are known; others may not be listed: %s",
            api.backend, own, refused,
        )  # fmt: skip
        return found
    closed: list[str] = []
    for space in sorted(spaces):
        try:
            found |= jobs_in(api, space, jobsets=jobsets, sets=sets)
        except CredentialsError:
            closed.append(space)
    if closed:
        _log.warning(
            "%s: the jobs of %d namespaces may not be listed: %s", api.backend, len(closed),
            ", ".join(closed),
        )  # fmt: skip
    return found


def _namespaces(api: Api) -> Iterator[str]:
    listed = again(lambda: list(api.items("/api/v1/namespaces", metadata_only=True)))
    for one in listed:
        yield str(one["metadata"]["name"])
