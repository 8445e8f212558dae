"""All that exists of a job, and removing it: by the cluster's own records, from any process."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial

from gpufabric._frozen import frozen
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._carry import CODE_LABEL
from gpufabric.backends.kubernetes._objects import (
    JOBSET_VERSION,
    LWS_VERSION,
    find,
    path_of,
    selector,
)
from gpufabric.backends.kubernetes._patience import Patience
from gpufabric.errors import (
    BackendError,
    CredentialsError,
    NotFoundError,
    TransientError,
)

__all__ = ["leftovers", "remove"]

_SERVICE_OF = ("jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name")
_SET = (LWS_VERSION, "LeaderWorkerSet")
_GONE_S = 90.0
_KINDS = (("batch/v1", "Job"), ("v1", "Pod"), ("v1", "Service"), ("v1", "Secret"))
_OWNERS = ((JOBSET_VERSION, "JobSet"), ("batch/v1", "Job"), _SET)
_SHARED = (("v1", "Secret"), ("v1", "Pod"))


def remove(  # noqa: PLR0913  # one job, by keyword
    api: Api,
    namespace: str,
    name: str,
    *,
    jobsets: bool,
    sets: bool = False,
    domains: str | None = None,
    timeout_s: float = _GONE_S,
    patience: Patience | None = None,
    uid: str | None = None,
) -> None:
    """Removes a job: its owner, and with it all that it owns. Gives when all is gone.

    With `uid` only the job whose owner has it: one of the same name that someone else has made
    since stays. With `sets` one that serves is looked for too. `domains` is the API version of
    ComputeDomains where the cluster has such: one that is not gone yet holds its nodes, and the
    next gang on them would wait for it. Raises `BackendError` with `.leftovers` for what is still
    there.
    """
    again = (patience or Patience()).again
    owners = [path_of(version, kind, namespace, name) for version, kind in _OWNERS]
    look = partial(find, api, namespace, name, jobsets=jobsets)
    look_around = partial(_all_left, api, namespace, name, jobsets=jobsets, domains=domains)
    deadline = time.monotonic() + timeout_s
    pause = 0.05
    while True:
        found = again(partial(look, sets=sets))
        sets = sets and (found is None or found.serves)
        meta: Json = found.owner["metadata"] if found is not None else {}
        if uid is not None and meta.get("uid") not in {uid, None}:
            return
        trouble: TransientError | None = None
        if found is not None and not meta.get("deletionTimestamp"):
            try:
                again(partial(api.delete, found.path, str(meta["uid"]), policy="Foreground"))
            except TransientError as exc:  # it may have been done nevertheless
                trouble = exc
                found = again(partial(look, sets=sets))
                meta = found.owner["metadata"] if found is not None else {}
        late = time.monotonic() > deadline
        if found is not None and trouble is None and not late:
            time.sleep(pause)  # the owner goes last, so that nothing else need be looked at yet
            pause = min(pause * 1.5, 1.0)
            continue
        left = again(partial(look_around, sets=sets))
        if not left:
            return
        if trouble is not None and not meta.get("deletionTimestamp"):
            trouble.leftovers = tuple(one.path for one in left)
            raise trouble
        if found is None:  # what a killed teardown left, or what the collector has not yet seen
            for one in left:
                if one.path not in owners:  # one that has come since is found on the next turn
                    gone = partial(api.delete, one.path, one.uid, version=one.version)
                    again(partial(gone, policy="Background"))
        if late:
            paths = [one.path for one in left]
            raise BackendError(
                f"still there after {timeout_s:g} s: {', '.join(paths)}",
                backend=api.backend, operation="teardown", leftovers=paths,
            )  # fmt: skip
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def leftovers(
    api: Api, namespace: str, name: str, *, jobsets: bool, sets: bool = False
) -> list[str]:
    """The paths of all that exists of a job; of what it shares, what no other job uses."""
    return [one.path for one in _all_left(api, namespace, name, jobsets=jobsets, sets=sets)]


@frozen(kw_only=True)
class _Left:
    path: str
    uid: str
    version: str | None = None


def _all_left(  # noqa: PLR0913  # one job, by keyword
    api: Api,
    namespace: str,
    name: str,
    *,
    jobsets: bool,
    sets: bool,
    domains: str | None = None,
) -> list[_Left]:
    rare = [_SET] if sets else []
    rare += [(domains, "ComputeDomain")] if domains is not None else []
    return [*_left(api, namespace, name, jobsets=jobsets, rare=rare)]


def _left(
    api: Api, namespace: str, name: str, *, jobsets: bool, rare: Sequence[tuple[str, str]]
) -> Iterator[_Left]:
    kinds = [(JOBSET_VERSION, "JobSet"), *_KINDS] if jobsets else [*_KINDS]
    mine = selector(name)["labelSelector"]
    found = [(kind, one) for kind in kinds for one in _listed(api, *kind, namespace, mine)]
    for kind in rare:
        with contextlib.suppress(CredentialsError, NotFoundError):  # not this user's, none is
            found += [(kind, one) for one in _listed(api, *kind, namespace, mine)]
    if jobsets or _SET in rare:
        found += [(("v1", "Service"), one) for one in _names_of(api, namespace, name)]
    for (version, plural), one in found:
        meta = one["metadata"]
        path = path_of(version, plural, namespace, str(meta["name"]))
        yield _Left(path=path, uid=str(meta["uid"]))
    for version, shared in _SHARED:
        for one in _listed(api, version, shared, namespace, CODE_LABEL):
            meta = one["metadata"]
            if _only_of(api, namespace, meta.get("ownerReferences") or [], name):
                path = path_of(version, shared, namespace, str(meta["name"]))
                uid, at = str(meta["uid"]), str(meta["resourceVersion"])
                yield _Left(path=path, uid=uid, version=at)


def _names_of(api: Api, namespace: str, name: str) -> list[Json]:
    """The Service that JobSet makes for a JobSet, or LeaderWorkerSet for one, without our label.

    https://github.com/kubernetes-sigs/jobset/blob/v0.11.0/pkg/controllers/jobset_controller.go#L703
    https://github.com/kubernetes-sigs/lws/blob/v0.7.0/pkg/utils/controller/controller_utils.go
    """
    query = {"fieldSelector": f"metadata.name={name}"}
    return [
        one
        for one in api.items(path_of("v1", "Service", namespace), query)
        if one["metadata"]["name"] == name
        and name in map(((one.get("spec") or {}).get("selector") or {}).get, _SERVICE_OF)
    ]


def _listed(api: Api, version: str, kind: str, namespace: str, label: str) -> Iterator[Json]:
    """Without their content: a list of Secrets is as large as all that they hold."""
    query = {"labelSelector": label}
    yield from api.items(path_of(version, kind, namespace), query, metadata_only=True)


def _only_of(api: Api, namespace: str, owners: list[Json], name: str) -> bool:
    """Whether an object is of this job, or of none at all, and no other job lives that has it."""
    if owners and all(one["name"] != name for one in owners):
        return False
    return not any(one["name"] != name and _lives(api, namespace, one) for one in owners)


def _lives(api: Api, namespace: str, owner: Json) -> bool:
    path = path_of(str(owner["apiVersion"]), str(owner["kind"]), namespace, str(owner["name"]))
    try:
        found = api.get(path, metadata_only=True)
    except NotFoundError:
        return False
    except CredentialsError:  # not ours to see: whoever owns it with us keeps it
        return True
    return str(found["metadata"]["uid"]) == str(owner["uid"])
