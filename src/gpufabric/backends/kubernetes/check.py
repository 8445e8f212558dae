"""Whether a cluster is usable: as whom it is asked, what it is, what may be done, what it lacks."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence

from gpufabric.backends.base import CheckItem, CheckReport, Site
from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._equipment import equipment, namespace_item
from gpufabric.backends.kubernetes._login import Credential
from gpufabric.backends.kubernetes._rights import Right, missing_in_cluster, missing_in_namespace
from gpufabric.backends.kubernetes._role import (
    CLUSTER,
    NEEDED,
    SERVING,
    SERVING_WISHED,
    WISHED,
    without,
)
from gpufabric.backends.kubernetes._target import Target
from gpufabric.catalog.index import Catalog
from gpufabric.errors import CredentialsError, GpuFabricError, NotFoundError

__all__ = ["TESTED", "check_cluster"]

TESTED = "1.36"
"""The minor version of Kubernetes that the library's tests run on."""
_SOON_S = 86400.0


def check_cluster(  # noqa: PLR0913  # what is asked, and how it is read
    api: Api,
    name: str,
    where: Callable[[], tuple[str, str]],
    look: Callable[[], Site],
    catalog: Catalog,
    *,
    serve: bool = False,
    clock: Callable[[], float] = time.time,
) -> CheckReport:
    """Asks the server; never raises."""
    items: list[CheckItem] = []
    steps: tuple[tuple[str, Callable[[], Iterator[CheckItem]]], ...] = (
        ("context", lambda: _context(where)),
        ("login", lambda: _login(api, clock())),
        ("API server", lambda: _server(api)),
        ("namespace", lambda: _namespace(api, where()[1])),
        ("permissions", lambda: _permissions(api, where()[1], serve=serve)),
        ("nodes", lambda: _equipped(look(), catalog, serve=serve)),
    )
    for step, ask in steps:
        try:
            items += ask()
        except GpuFabricError as exc:
            items.append(CheckItem(name=step, ok=False, message=str(exc)))
            break  # what comes after needs it, and would fail for the same reason
    return CheckReport(backend=name, items=tuple(items))


def _context(where: Callable[[], tuple[str, str]]) -> Iterator[CheckItem]:
    context, namespace = where()
    yield CheckItem(name="context", ok=True, message=f"{context}, namespace {namespace}")


# ---- as whom, and over which way


def _login(api: Api, now: float) -> Iterator[CheckItem]:
    yield _credential(api.credential(), now)
    yield from _transport(api.target())


def _credential(made: Credential, now: float) -> CheckItem:
    if made.expires is None:
        return CheckItem(name="login", ok=True, message=made.how)
    when = dt.datetime.fromtimestamp(made.expires, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    if made.renews:
        told = f"{made.how}; it ends at {when} and is renewed by then"
        return CheckItem(name="login", ok=True, message=told)
    if made.expires <= now:
        told = f"{made.how}; it ended at {when}: {made.again}"
        return CheckItem(name="login", ok=False, message=told)
    soon = made.expires - now < _SOON_S
    told = f"{made.how}; it ends at {when}, and nothing renews it"
    return CheckItem(name="login", ok=True, warn=soon, message=told)


def _transport(target: Target) -> Iterator[CheckItem]:
    over = f"{target.server} through the proxy {target.proxy.origin}" if target.proxy else (
        target.server
    )  # fmt: skip
    if not target.encrypted:
        told = f"{over} is spoken to without TLS: whoever is between reads the login and secrets"
        yield CheckItem(name="TLS", ok=True, warn=True, message=told)
    elif not target.verified:
        told = (
            f"{over} is not verified, because the kubeconfig says insecure-skip-tls-verify: whoever"
            " is between can read the login and secrets"
        )
        yield CheckItem(name="TLS", ok=True, warn=True, message=told)
    else:
        by = "the kubeconfig's authority" if target.authority else "this machine's authorities"
        yield CheckItem(name="TLS", ok=True, message=f"{over}, verified by {by}")


def _server(api: Api) -> Iterator[CheckItem]:
    version = str(api.get("/version").get("gitVersion"))
    known = version.removeprefix("v").startswith(f"{TESTED}.")
    told = version if known else f"{version}; gpufabric is tested with {TESTED}"
    yield CheckItem(name="API server", ok=True, message=told)


def _namespace(api: Api, namespace: str) -> Iterator[CheckItem]:
    try:
        item = namespace_item(api.get(f"/api/v1/namespaces/{namespace}"), namespace)
    except NotFoundError:
        item = namespace_item(None, namespace)
    except CredentialsError as exc:
        if "not allowed" not in str(exc):
            raise
        item = None  # told with the other rights
    if item is not None:
        yield item


# ---- rights


def _served(api: Api, rights: Sequence[Right]) -> list[Right]:
    """Those whose objects the server has."""
    wanted = {group for group, _, _ in rights if group}
    known: set[tuple[str, str]] = set()
    for one in api.get("/apis").get("groups") or ():
        group = str(one["name"])
        for version in one["versions"] if group in wanted else ():
            for kind in api.get(f"/apis/{version['groupVersion']}").get("resources") or ():
                known.add((group, str(kind["name"])))
    return [right for right in rights if not right[0] or right[:2] in known]


def _permissions(api: Api, namespace: str, *, serve: bool) -> Iterator[CheckItem]:
    must_have = (*NEEDED, *SERVING) if serve else NEEDED
    nice = (*WISHED, *SERVING_WISHED) if serve else WISHED
    every = set(_served(api, [*must_have, *nice, *CLUSTER]))
    needed = [right for right in must_have if right in every]
    wished = [right for right in nice if right in every]
    inside = missing_in_namespace(api, namespace, [*needed, *wished])
    cluster = missing_in_cluster(api, [right for right in CLUSTER if right in every])
    must = {(group, resource, verb) for group, resource, verbs in needed for verb in verbs}
    enough = True
    for at, rights in ((namespace, inside), (None, cluster)):
        for group, resource, verbs in rights:
            fatal = [v for v in verbs if at is not None and (group, resource, v) in must]
            enough = enough and not fatal
            yield _lacking(group, resource, verbs, at, fatal=bool(fatal))
    if enough:
        yield CheckItem(name="permissions", ok=True, message=f"enough in {namespace}")


def _lacking(
    group: str, resource: str, verbs: tuple[str, ...], namespace: str | None, *, fatal: bool
) -> CheckItem:
    label = f"{resource}.{group}" if group else resource
    at = f"in {namespace}" if namespace else "in the cluster"
    told = f"may not {', '.join(verbs)} {label} {at}"
    if fatal:
        told += (
            "; this prints the Role that would do: python -m gpufabric kubernetes-role --namespace"
            f" {namespace}{' --serve' if resource == 'leaderworkersets' else ''}"
        )
    else:
        told += f": {without(resource, verbs, cluster=namespace is None)}"
    return CheckItem(name=f"{label} {at}", ok=not fatal, warn=not fatal, message=told)


# ---- nodes and controllers


def _equipped(site: Site, catalog: Catalog, *, serve: bool) -> Iterator[CheckItem]:
    yield from equipment(site, catalog, serve=serve)
    for told in site.unseen:
        if "not allowed" not in told:  # those are among the rights
            yield CheckItem(name="not seen", ok=True, warn=True, message=told)
