"""Whether a cluster is usable, verb by verb."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Callable

from gpufabric.backends.base import CheckItem, CheckReport
from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._role import CLUSTER, NEEDED, WISHED
from gpufabric.errors import GpuFabricError

__all__ = ["check_cluster"]


def check_cluster(api: Api, name: str, where: Callable[[], tuple[str, str]]) -> CheckReport:
    """Asks the server; never raises."""
    items: list[CheckItem] = []
    try:
        context, namespace = where()
        items.append(CheckItem(name="context", ok=True, message=f"{context}, {namespace}"))
        version = api.get("/version").get("gitVersion")
        items.append(CheckItem(name="API server", ok=True, message=str(version)))
        groups = {str(one["name"]) for one in api.get("/apis").get("groups") or ()}
        for controller, group in (("JobSet", "jobset.x-k8s.io"), ("Kueue", "kueue.x-k8s.io")):
            told = "installed" if group in groups else "not installed (works without)"
            items.append(CheckItem(name=controller, ok=True, message=told))
        items += _permissions(api, namespace, groups)
    except GpuFabricError as exc:
        items.append(CheckItem(name="answers", ok=False, message=str(exc)))
    return CheckReport(backend=name, items=tuple(items))


def _permissions(api: Api, namespace: str, groups: set[str]) -> list[CheckItem]:
    items: list[CheckItem] = []
    for rules, space, needed in (
        (NEEDED, namespace, True), (WISHED, namespace, False), (CLUSTER, None, False),
    ):  # fmt: skip
        for group, resource, verbs in rules:
            if group and group not in groups:
                continue
            missing = [verb for verb in verbs if not _may(api, space, group, resource, verb)]
            label = f"{resource}.{group}" if group else resource
            at = f"in {space}" if space else "in the cluster"
            if not missing:
                continue
            words = f"may not {', '.join(missing)} {label} {at}"
            if needed:
                words += "; python -m gpufabric kubernetes-role prints the Role that would do"
            else:
                words += ": less is known, and the rest works"
            items.append(CheckItem(name=f"{label} {at}", ok=not needed, message=words))
    if all(item.ok for item in items):
        items.append(CheckItem(name="permissions", ok=True, message=f"enough in {namespace}"))
    return items


def _may(api: Api, namespace: str | None, group: str, resource: str, verb: str) -> bool:
    name, _, sub = resource.partition("/")
    asked = {"group": group, "resource": name, "verb": verb}
    if sub:
        asked["subresource"] = sub
    if namespace:
        asked["namespace"] = namespace
    answer = api.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        },
    )
    return bool((answer.get("status") or {}).get("allowed"))
