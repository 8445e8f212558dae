"""Faults in what a caller gives the backend, found before a cluster is asked."""

# A patch is plain JSON, whose parts have no types of their own.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import re
from collections.abc import Iterator, Mapping
from typing import cast

from gpufabric._frozen import FrozenDict, freeze
from gpufabric.errors import Problem, SpecError
from gpufabric.job import JobRef

__all__ = ["place_of", "refuse_namespace", "taken_patch"]

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-label-names
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OF_A_POD = {"apiVersion", "kind", "metadata", "spec", "status"}


def refuse_namespace(namespace: str | None) -> None:
    """Raises `SpecError` where a namespace cannot have that name."""
    if namespace is not None and not _LABEL.fullmatch(namespace):
        told = f"{namespace!r} names no namespace: a-z, 0-9 and - inside, at most 63 letters"
        raise SpecError([Problem(path="namespace", message=told)])


def taken_patch(patch: Mapping[str, object] | None) -> FrozenDict[str, object]:
    """A pod's patch, frozen. Raises `SpecError` where it is none, or asks what is not done."""
    given = cast("object", {} if patch is None else patch)  # of callers without types
    if not isinstance(given, Mapping):
        told = f"a patch is a mapping of fields of a pod's spec, not a {type(given).__name__}"
        raise SpecError([Problem(path="pod_patch", message=told)])
    frozen = cast("FrozenDict[str, object]", freeze(given))
    problems = [*_whole_pod(frozen), *_directives(frozen, "pod_patch")]
    if problems:
        raise SpecError(problems)
    return frozen


def _whole_pod(patch: Mapping[str, object]) -> Iterator[Problem]:
    for name in sorted(_OF_A_POD & set(patch)):
        told = "it patches the pod's spec, not the pod: write what is inside of `spec`"
        yield Problem(path=f"pod_patch.{name}", message=told)


def _directives(value: object, path: str) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            where = f"{path}.{name}"
            if str(name).startswith("$"):
                told = "directives are not taken: write null to remove a field"
                yield Problem(path=where, message=told)
            else:
                yield from _directives(one, where)
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield from _directives(one, f"{path}[{at}]")


def place_of(ref: JobRef) -> tuple[str, str]:
    """Context and namespace of a job. Raises `SpecError` where its ref lacks one of them.

    A ref that is cut short must not read as a job that is gone.
    """
    context, _, namespace = ref.place.rpartition("/")
    if not context or not _LABEL.fullmatch(namespace):
        raise SpecError(f"{ref} is no job of Kubernetes: write kubernetes://CONTEXT/NAMESPACE/NAME")
    return context, namespace
