"""Which APIs beside Jobs the cluster serves for gangs, and whether this user may use them."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Sequence

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.errors import CredentialsError, NotFoundError

__all__ = ["gang_apis"]

#: API group -> the resource that a gang would be made with, in the versions whose shape is known.
_KNOWN = {
    "scheduling.k8s.io": {"v1alpha2": "podgroups", "v1alpha1": "workloads"},
    "scheduling.volcano.sh": {"v1beta1": "podgroups"},
    "resource.nvidia.com": {"v1beta1": "computedomains"},
}


def gang_apis(api: Api, groups: Sequence[Json], namespace: str, unseen: list[str]) -> Json:
    """API group -> version to use, of those that are served and that this user may create.

    `groups` are those of `/apis`. A version whose shape is not known, and a right that is missing,
    are told in `unseen`.
    """
    found: Json = {}
    for group in groups:
        name = str(group["name"])
        known = _KNOWN.get(name)
        if known is None:
            continue
        served = [str(one["version"]) for one in group["versions"]]
        version = next((one for one in known if one in served), None)
        if version is None:
            strange = [one for one in served if one not in {"v1", "v1beta1"}]
            if strange:
                unseen.append(f"{name} {', '.join(strange)}: a shape not known yet, not used")
            continue
        resource = known[version]
        if not _has(api, f"/apis/{name}/{version}", resource):
            continue
        if not _may_create(api, namespace, name, resource):
            unseen.append(f"{resource}.{name}: not allowed to create them, so gangs do without")
            continue
        found[name] = version
    return found


def _has(api: Api, path: str, resource: str) -> bool:
    try:
        listed = api.get(path).get("resources") or ()
    except NotFoundError:
        return False
    return any(one.get("name") == resource for one in listed)


def _may_create(api: Api, namespace: str, group: str, resource: str) -> bool:
    asked = {"group": group, "resource": resource, "verb": "create", "namespace": namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }  # fmt: skip
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    try:
        answer = api.request("POST", path, body=body)
    except CredentialsError:
        return False
    return bool((answer.get("status") or {}).get("allowed"))
