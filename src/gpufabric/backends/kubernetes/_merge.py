"""Strategic merge of a user's patch into a pod's spec."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Mapping

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes._api import Json

__all__ = ["merged"]

_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
    "volumeMounts": "mountPath", "ports": "containerPort", "imagePullSecrets": "name",
    "hostAliases": "ip", "resourceClaims": "name",
}  # fmt: skip


def merged(base: Json, patch: Mapping[str, object]) -> Json:
    """A strategic merge: objects merge, lists with a merge key merge by it, others are replaced.

    A null removes a field. Tolerations are added, since they have no key of their own.
    https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
    """
    made = dict(base)
    for name, value in patch.items():
        there = made.get(name)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, Mapping):
            made[name] = merged(there if isinstance(there, dict) else {}, value)
        elif isinstance(value, list | tuple) and name in _MERGE_KEYS and isinstance(there, list):
            made[name] = _merged_list(there, value, _MERGE_KEYS[name])
        elif isinstance(value, list | tuple) and name == "tolerations" and isinstance(there, list):
            made[name] = [*there, *(thaw(one) for one in value)]
        else:
            made[name] = thaw(value)
    return made


def _merged_list(base: list[Json], patch: "list[Json] | tuple[Json, ...]", key: str) -> list[Json]:
    made = list(base)
    for one in patch:
        at = next((i for i, old in enumerate(made) if old.get(key) == one.get(key)), None)
        if at is None:
            made.append(merged({}, one))
        else:
            made[at] = merged(made[at], one)
    return made
