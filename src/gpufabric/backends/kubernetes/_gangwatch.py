"""One job's own objects, kept up to date: its owner, its Job and its pods."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Sequence

from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._manifest import JOB_LABEL, NODES
from gpufabric.backends.kubernetes._objects import (
    JOBSET_VERSION,
    LWS_VERSION,
    Found,
    path_of,
    selector,
)
from gpufabric.backends.kubernetes._streams import Loop
from gpufabric.backends.kubernetes._watch import Watch
from gpufabric.errors import GpuFabricError

__all__ = ["GangWatch"]


class GangWatch:
    """Watches one job. `changed` is called in the loop's thread after every change."""

    def __init__(  # noqa: PLR0913  # which job, and who is told
        self,
        loop: Loop,
        api: Api,
        namespace: str,
        name: str,
        *,
        jobsets: bool,
        serves: bool = False,
        changed: Callable[[], None],
    ) -> None:
        """Begins to watch. What `serves` is a LeaderWorkerSet and has no Job."""
        self._namespace = namespace
        self._name = name

        def watch(version: str, kind: str, query: dict[str, str]) -> Watch:
            return Watch(loop, api, path_of(version, kind, namespace), query, changed=changed)

        mine = dict(selector(name))
        named = {"fieldSelector": f"metadata.name={name}"}
        self._last = (LWS_VERSION, "LeaderWorkerSet") if serves else ("batch/v1", "Job")
        self._owners = [watch(*self._last, named if serves else mine)]
        if jobsets and not serves:
            self._owners.insert(0, watch(JOBSET_VERSION, "JobSet", named))
        self._pods = watch("v1", "Pod", mine)

    @property
    def _watches(self) -> list[Watch]:
        return [*self._owners, self._pods]

    @property
    def synced(self) -> bool:
        """Whether all was listed once."""
        return all(one.synced for one in self._watches)

    @property
    def error(self) -> GpuFabricError | None:
        """Why nothing more can be known."""
        return next((one.error for one in self._watches if one.error is not None), None)

    @property
    def trouble(self) -> GpuFabricError | None:
        """Why nothing is known at the moment."""
        return next((one.trouble for one in self._watches if one.trouble is not None), None)

    def pods(self) -> list[Json]:
        """The job's pods, the latest of each rank last."""
        pods = self._pods.objects.values()
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, uid: str) -> Json | None:
        """One pod; None where it was removed."""
        return self._pods.objects.get(uid)

    def learn(self, pods: Sequence[Json]) -> None:
        """Takes pods that were listed elsewhere and are not known yet."""
        for pod in pods:
            self._pods.objects.setdefault(str(pod["metadata"]["uid"]), pod)

    def found(self) -> Found | None:
        """The job's owner and its Job; None where there is none (any more)."""
        version, kind = self._last
        jobs = self._owners[-1].objects.values()
        if len(self._owners) > 1:
            for owner in self._owners[0].objects.values():
                if self._ours(owner):
                    live = [one for one in jobs if not one["metadata"].get("deletionTimestamp")]
                    job = next(iter([*live, *jobs]), None)
                    path = path_of(JOBSET_VERSION, "JobSet", self._namespace, self._name)
                    return Found(kind="JobSet", path=path, owner=owner, job=job)
        for job in jobs:
            if self._ours(job):
                path = path_of(version, kind, self._namespace, self._name)
                return Found(kind=kind, path=path, owner=job, job=job if kind == "Job" else None)
        return None

    def _ours(self, owner: Json) -> bool:
        meta = owner["metadata"]
        return (
            meta["name"] == self._name
            and (meta.get("labels") or {}).get(JOB_LABEL) == self._name
            and NODES in (meta.get("annotations") or {})
        )
