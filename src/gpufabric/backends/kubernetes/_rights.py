"""Which of the rights that are needed a user has, as the API server itself says."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import logging
from collections.abc import Sequence
from typing import Any, cast

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.errors import CredentialsError, NotFoundError

__all__ = ["Right", "missing_in_cluster", "missing_in_namespace"]

Right = tuple[str, str, tuple[str, ...]]
"""API group, resource (with its subresource), verbs."""

_log = logging.getLogger(__name__)
_API = "authorization.k8s.io/v1"


def missing_in_namespace(api: Api, namespace: str, rights: Sequence[Right]) -> list[Right]:
    """What of `rights` the user lacks in a namespace, row by row.

    One SelfSubjectRulesReview tells; where an authorizer cannot list its rules (it says
    `incomplete`), what is not among them is asked for one by one.
    https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/self-subject-rules-review-v1/
    """
    status: Json = {"incomplete": True}
    try:
        status = _review(api, "SelfSubjectRulesReview", {"namespace": namespace})
    except (CredentialsError, NotFoundError):
        _log.debug("the server does not list rights; they are asked for one by one")
    rules = cast("Sequence[Json]", status.get("resourceRules") or ())
    unsure = bool(status.get("incomplete"))
    missing: list[Right] = []
    for group, resource, verbs in rights:
        lacking = tuple(
            verb
            for verb in verbs
            if not any(_gives(rule, group, resource, verb) for rule in rules)
            and not (unsure and _may(api, namespace, group, resource, verb))
        )
        if lacking:
            missing.append((group, resource, lacking))
    return missing


def missing_in_cluster(api: Api, rights: Sequence[Right]) -> list[Right]:
    """What of `rights` the user lacks in the whole cluster, row by row."""
    missing: list[Right] = []
    for group, resource, verbs in rights:
        lacking = tuple(verb for verb in verbs if not _may(api, None, group, resource, verb))
        if lacking:
            missing.append((group, resource, lacking))
    return missing


def _gives(rule: Json, group: str, resource: str, verb: str) -> bool:
    if rule.get("resourceNames"):
        return False
    _, _, sub = resource.partition("/")
    resources: Sequence[str] = rule.get("resources") or ()
    return (
        _among(rule.get("apiGroups"), group)
        and _among(rule.get("verbs"), verb)
        and (_among(resources, resource) or bool(sub and f"*/{sub}" in resources))
    )


def _among(listed: Any, name: str) -> bool:
    return "*" in (listed or ()) or name in (listed or ())


def _may(api: Api, namespace: str | None, group: str, resource: str, verb: str) -> bool:
    name, _, sub = resource.partition("/")
    asked = {"group": group, "resource": name, "verb": verb}
    if sub:
        asked["subresource"] = sub
    if namespace:
        asked["namespace"] = namespace
    return bool(
        _review(api, "SelfSubjectAccessReview", {"resourceAttributes": asked}).get("allowed")
    )


def _review(api: Api, kind: str, spec: Json) -> Json:
    answer = api.request(
        "POST",
        f"/apis/{_API}/{kind.lower()}s",
        body={"apiVersion": _API, "kind": kind, "spec": spec},
    )
    status: Json = answer.get("status") or {}
    return status
