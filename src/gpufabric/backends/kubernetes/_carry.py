"""The objects that carry a gang's code, as plain data: a Secret, or a pod that serves it.

They are named by what they hold, so that gangs with equal code share them; each gang that does is
one of their owners. What is known only when the code is packed stands as `{"packed": WHAT}`.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._gang import CONTAINER, Gang
from gpufabric.backends.kubernetes._helper import PORT, SERVE
from gpufabric.backends.kubernetes._script import CODE, FETCHED

__all__ = [
    "CODE_LABEL",
    "CODE_NAME",
    "CODE_WRITES",
    "FOLDER",
    "SERVED_BY",
    "code_objects",
    "env",
    "mounts",
    "volumes",
]

CODE_LABEL = "gpufabric.io/code"
"""On the objects that hold code; as an annotation of a gang the name of those that it uses."""
CODE_NAME = "gpufabric-code-<hash>"
"""How the plan writes the name of what is not packed yet."""
CODE_WRITES = 2
"""The most that code adds to a launch: a pod that serves it, and a Secret that says where."""
FOLDER = "/gpufabric/served"
SERVED_BY = "gpufabric.io/served-by"
"""On a Secret that has no code but says where it is: the uid of the pod that has."""
PYTHON = "python3"
_KEPT = ("imagePullSecrets", "serviceAccountName", "priorityClassName", "tolerations")


def env(gang: Gang) -> Iterator[Json]:
    """What every node holds the code against: the hash and name of each part."""
    if gang.code:
        yield {"name": "GPUFABRIC_CODE", "value": {"packed": "manifest"}}


def mounts(gang: Gang) -> Iterator[Json]:
    """Where a node finds the code, and where it lays what it had to fetch."""
    if gang.code:
        yield {"name": "gpufabric-code", "mountPath": CODE, "readOnly": True}
        yield {"name": "gpufabric-fetched", "mountPath": FETCHED}


def volumes(gang: Gang) -> Iterator[Json]:
    """See `mounts`."""
    if gang.code:
        yield {"name": "gpufabric-code", "secret": {"secretName": {"packed": "name"}}}
        yield {"name": "gpufabric-fetched", "emptyDir": {}}


def code_objects(
    gang: Gang, *, tolerations: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, Json]]:
    """Gives verb and object: `share` for code that a Secret holds, `serve` for more.

    `tolerations` are of the pod that serves.
    """
    if not gang.code:
        return
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(gang), "type": "Opaque"}
    data = {key: {"content": key} for key in gang.code}
    yield "share", {**secret, "immutable": True, "data": data}
    yield "serve", _pod(gang, tolerations)
    where = {"annotations": {SERVED_BY: {"packed": "pod_uid"}}}
    data = {key: {"served": key} for key in ("address", "token", "pod")}
    yield "serve", {**secret, "metadata": {**_metadata(gang), **where}, "data": data}


def _metadata(gang: Gang) -> Json:
    labels = {"app.kubernetes.io/managed-by": "gpufabric", CODE_LABEL: {"packed": "name"}}
    return {**gang.metadata(), "name": {"packed": "name"}, "labels": labels}


def _pod(gang: Gang, tolerations: Sequence[Mapping[str, str]]) -> Json:
    """It asks for no GPU and no right, also where its namespace would allow more."""
    resources = {
        "requests": {
            "cpu": "100m", "memory": "64Mi", "ephemeral-storage": {"packed": "storage"},
        },
        "limits": {"memory": "512Mi"},
    }  # fmt: skip
    container = {
        "name": CONTAINER,
        "image": gang.image,
        "command": [PYTHON, "-c", SERVE, FOLDER, str(PORT)],
        "ports": [{"containerPort": PORT}],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "served", "mountPath": FOLDER}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }  # fmt: skip
    spec: Json = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "served", "emptyDir": {}}],
    }  # fmt: skip
    arch = gang.selector.get("kubernetes.io/arch")  # the image need not be there for another
    if arch:
        spec["nodeSelector"] = {"kubernetes.io/arch": arch}
    spec |= {name: thaw(gang.pod_patch[name]) for name in _KEPT if name in gang.pod_patch}
    every = [*map(dict, tolerations), *cast("list[Json]", spec.get("tolerations") or [])]
    if every:
        spec["tolerations"] = every
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(gang), "spec": spec}
