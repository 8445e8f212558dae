"""The Kubernetes backend: one namespace of one cluster, as one user."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from gpufabric._frozen import evolve
from gpufabric.backends.base import Capability, CheckReport, Site, check_rank
from gpufabric.backends.kubernetes import _logs
from gpufabric.backends.kubernetes._api import Api, Json, contexts, in_cluster_namespace
from gpufabric.backends.kubernetes._apply import Launch, again, remove
from gpufabric.backends.kubernetes._events import (
    Events,
    listed,
    why_no_pods,
    why_restarted,
    why_stopped,
)
from gpufabric.backends.kubernetes._follow import Follower
from gpufabric.backends.kubernetes._given import place_of, refuse_namespace, taken_patch
from gpufabric.backends.kubernetes._listing import jobs_everywhere, jobs_in
from gpufabric.backends.kubernetes._live import Node, NodeCommand, NodeConnection
from gpufabric.backends.kubernetes._manifest import (
    CANCELLED,
    QUEUE_LABEL,
)
from gpufabric.backends.kubernetes._objects import (
    JOBSET_VERSION,
    LWS_VERSION,
    Found,
    find,
    path_of,
    pods_of,
    rank_of,
    workloads_of,
)
from gpufabric.backends.kubernetes._official import OfficialClient
from gpufabric.backends.kubernetes._patience import Patience
from gpufabric.backends.kubernetes._serve import HELD
from gpufabric.backends.kubernetes._status import (
    failed_container,
    first_failed,
    job_status,
    last_words,
)
from gpufabric.backends.kubernetes.check import check_cluster
from gpufabric.backends.kubernetes.discover import read_site
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.catalog.index import Catalog
from gpufabric.config import Settings
from gpufabric.errors import (
    GpuFabricError,
    NotFoundError,
    SpecError,
    TransientError,
)
from gpufabric.job import JobRef, JobState, JobStatus, LogLine
from gpufabric.plan import LaunchPlan, Offer, Resolution
from gpufabric.task import Task

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

__all__ = ["Kubernetes"]

_NAME = "kubernetes"
_JOBSETS = JOBSET_VERSION.partition("/")[0]
_SETS = LWS_VERSION.partition("/")[0]
_TAIL = 20
_GONE = "a pod of it was deleted or evicted, and is gone with its log"


class Kubernetes:
    """Runs gangs in one namespace of one cluster.

    Args:
        context: of the kubeconfig; the current one, or the cluster that this process runs in,
            which `in-cluster` asks for by name.
        namespace: the context's own by default.
        kubeconfig: a file; KUBECONFIG and ~/.kube/config by default.
        name: what offers and errors say; `kubernetes`, or `kubernetes:<context>` with a context,
            and `:serve` behind it where tasks serve.
        settings: how the library behaves.
        pod_patch: a strategic merge patch of every pod's spec, applied last.
        image: what pods run where a task names none.
        scheduler: the pods' scheduler, the cluster's own by default; with `volcano` a gang has a
            PodGroup of Volcano, and `Resources(capacity=...)` may name a queue of it.
        priority: the PriorityClass of the pods, or Kueue's WorkloadPriorityClass of that name.
        serve: tasks serve. A gang is a group of a LeaderWorkerSet, which starts all its nodes again
            whenever one ends, for ever: it ends, and stops costing, by `cancel` or `teardown` only.
        client: an `ApiClient` of the `kubernetes` package, whose server, login and proxy are used
            instead of a kubeconfig's. `context` then is a name of your choice for that cluster.
        catalog: rows to judge nodes by; what ships by default.

    Raises `SpecError` where both a client and a kubeconfig are given, where a namespace cannot have
    that name, and where `pod_patch` is no patch of a pod's spec.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.LAUNCH,
            Capability.FOLLOW_LOGS,
            Capability.RESTARTS,
            Capability.EXEC,
            Capability.PORT_FORWARD,
        }
    )

    def __init__(  # noqa: PLR0913, PLR0917  # settings of one place, all optional
        self,
        context: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        name: str | None = None,
        settings: Settings | None = None,
        pod_patch: Mapping[str, object] | None = None,
        *,
        image: str | None = None,
        scheduler: str | None = None,
        priority: str | None = None,
        serve: bool = False,
        client: "ApiClient | None" = None,
        catalog: Catalog | None = None,
    ) -> None:
        """Reads nothing yet."""
        if client is not None and kubeconfig is not None:
            raise SpecError("a client has its own login: give kubeconfig or client, not both")
        refuse_namespace(namespace)
        self._settings = settings if settings is not None else Settings.load()
        known = ":".join((_NAME, *([context] if context else ()), *(["serve"] if serve else ())))
        self._name = name or known
        self._serve = serve
        self._context = context
        self._namespace = namespace
        self._kubeconfig = kubeconfig
        self._patch = taken_patch(pod_patch)
        self._image = image
        self._scheduler = scheduler
        self._priority = priority
        self._catalog = catalog
        self._place: tuple[str, str] | None = None
        self._api = Api(
            backend=self._name, context=context, kubeconfig=kubeconfig,
            trust_env=self._settings.trust_env,
            client=cast("OfficialClient | None", client),
        )  # fmt: skip
        self._served: Mapping[str, str] | None = None

    @classmethod
    def found(cls, settings: Settings) -> tuple["Kubernetes", ...]:
        """One for each context of the kubeconfig, or the cluster that this process runs in.

        Raises `ConfigError` where the kubeconfig cannot be read.
        """
        if not settings.trust_env:
            return ()
        names, _ = contexts()
        if not names and in_cluster_namespace():
            return (cls(settings=settings),)
        return tuple(cls(context, settings=settings) for context in names)

    @classmethod
    def from_ref(cls, ref: JobRef, settings: Settings) -> "Kubernetes":
        """The backend of a job's context and namespace."""
        context, namespace = place_of(ref)
        return cls(context, namespace, settings=settings)

    def owns(self, ref: JobRef) -> bool:
        """Whether a job is one of this context and namespace."""
        return ref.backend == _NAME and ref.place == "/".join(self._where())

    def reaches(self, ref: JobRef) -> bool:
        """Whether a job is one of this context, in whatever namespace, so that it can be asked."""
        return ref.backend == _NAME and place_of(ref)[0] == self._where()[0]

    @property
    def name(self) -> str:
        """The name that offers and errors carry."""
        return self._name

    @property
    def attach_env(self) -> Mapping[str, str]:
        """What another process needs in its environment to find jobs by their refs."""
        return {"KUBECONFIG": str(Path(self._kubeconfig).absolute())} if self._kubeconfig else {}

    def _where(self) -> tuple[str, str]:
        """Context and namespace, as every ref of a job has them."""
        if self._place is None:
            context, space = self._api.place()
            self._place = (context, self._namespace or space)
        return self._place

    def _has_jobsets(self) -> bool:
        return _JOBSETS in self._groups()

    def _has_sets(self) -> bool:
        return _SETS in self._groups()

    def _groups(self) -> Mapping[str, str]:
        """The API groups that are served, each with its preferred `group/version`.

        Asked again until JobSet, and for what serves LeaderWorkerSet, is one of them: what is
        installed while this backend lives makes jobs that it has to find.
        """
        needed = {_JOBSETS, *((_SETS,) if self._serve else ())}
        if self._served is None or not needed <= self._served.keys():
            groups = again(lambda: self._api.get("/apis")).get("groups") or ()
            self._served = {
                str(one["name"]): str(one["preferredVersion"]["groupVersion"]) for one in groups
            }
        return self._served

    @property
    def _rows(self) -> Catalog:
        return self._catalog if self._catalog is not None else Catalog.shipped()

    # ---- reading and thinking

    def check(self) -> CheckReport:
        """Whether gangs can run here: login, each permission, and what the cluster lacks."""
        return check_cluster(
            self._api, self._name, self._where, self.discover, self._rows, serve=self._serve
        )

    def discover(self) -> Site:
        """Reads what the cluster has."""
        context, namespace = self._where()
        patience = Patience(min(self._settings.retry_s, self._settings.discover_timeout_s / 4))
        site = patience.again(lambda: read_site(
            self._api, name=self._name, context=context, namespace=namespace, catalog=self._rows
        ))  # fmt: skip
        return evolve(site, as_of=dt.datetime.now(dt.UTC).replace(microsecond=0))

    def offers(self, task: Task, site: Site) -> Resolution:
        """All ways to run a task on the pools of the cluster."""
        return make_offers(
            task, site, self._rows, image=self._image, patch=self._patch,
            scheduler=self._scheduler, priority=self._priority, serve=self._serve,
        )  # fmt: skip

    def plan(self, task: Task, offer: Offer, site: Site, *, run: str = "") -> LaunchPlan:
        """Every object that `apply` will make."""
        return make_plan(
            task, offer, site, self._rows, run=run, image=self._image, patch=self._patch,
            grace_s=self._settings.stop_grace_s, scheduler=self._scheduler, priority=self._priority,
            serve=self._serve,
        )  # fmt: skip

    # ---- writing

    def apply(self, plan: LaunchPlan) -> JobRef:
        """Makes the gang, and gives when every node has started; else nothing of it stays."""
        context, namespace = self._where()
        launch = Launch(
            api=self._api,
            plan=plan,
            namespace=namespace,
            workdir_limit_bytes=self._settings.workdir_limit_mb * 1e6,
            jobsets=self._has_jobsets(),
            retry_s=self._settings.retry_s,
        )
        launch.run()
        return JobRef(backend=_NAME, place=f"{context}/{namespace}", name=launch.name)

    def cancel(self, ref: JobRef) -> None:
        """Stops the pods. The cluster removes a pod that it stops, and with it its log."""
        found = self._found(ref, "cancel")
        if found.condition("Complete", "Completed", "Failed"):
            return
        queued = QUEUE_LABEL in (found.owner["metadata"].get("labels") or {})
        # again where a launcher, which had not seen it, has let the gang go since
        if found.cancelled is None or not (queued or found.held):
            now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body: Json = {"metadata": {"annotations": {CANCELLED: found.cancelled or now}}}
            if not queued:
                body["spec"] = HELD if found.serves else {"suspend": True}
            again(lambda: self._api.merge(found.path, body))
        if queued:  # also again: one that died after the write above has stopped nothing
            for load in again(lambda: self._loads(ref, found)):
                again(partial(self._api.merge, load, {"spec": {"active": False}}))

    def _loads(self, ref: JobRef, found: Found) -> list[str]:
        """Kueue's records of a job, by which alone it is stopped."""
        _, namespace = self._at(ref)
        loads = workloads_of(self._api, namespace, found)
        if not loads:
            raise TransientError(
                f"Kueue has made no Workload for {ref} yet, and only by that it is stopped: cancel"
                " it again, or tear it down", backend=self._name, operation="cancel",
            )  # fmt: skip
        return loads

    def teardown(self, ref: JobRef) -> None:
        """Removes every object of the job. Of what is gone it succeeds."""
        _, namespace = self._at(ref)
        remove(
            self._api, namespace, ref.name, jobsets=self._has_jobsets(), sets=self._has_sets(),
            domains=self._groups().get("resource.nvidia.com"),
            patience=Patience(self._settings.retry_s),
        )  # fmt: skip

    # ---- jobs

    def status(self, ref: JobRef) -> JobStatus:
        """The job by its objects."""
        _, namespace = self._at(ref)
        found = self._look(ref)
        if found is None:
            return JobStatus(ref=ref, state=JobState.GONE)
        pods = again(lambda: pods_of(self._api, namespace, ref.name))
        status = job_status(ref, found, pods, now=time.time())
        if status.state is JobState.FAILED and first_failed(status.nodes) is None:
            words = why_stopped(self._api, namespace, found) or _GONE  # its pod is not there
            return evolve(status, reason="; ".join(filter(None, (words, status.reason))))
        if status.state is JobState.FAILED:
            return evolve(status, tail=self._tail(namespace, status, pods))
        if status.state is JobState.PENDING and not status.reason and not pods:
            status = evolve(status, reason=why_no_pods(self._api, namespace, found))
        if found.serves and not status.state.ended:
            words = why_restarted(self._api, namespace, found)
            return evolve(status, reason="; ".join(filter(None, (status.reason, words))))
        return status

    def _tail(self, namespace: str, status: JobStatus, pods: list[Json]) -> tuple[str, ...]:
        first = first_failed(status.nodes)
        mine = [pod for pod in pods if first is not None and rank_of(pod) == first.node_rank]
        if not mine:
            return ()
        path = path_of("v1", "Pod", namespace, str(mine[-1]["metadata"]["name"])) + "/log"
        query = {"container": failed_container(mine[-1]), "tailLines": str(_TAIL)}
        try:
            *lines, rest = self._api.raw(path, query).split(b"\n")
        except GpuFabricError:  # its node is lost, or the log may not be read
            return last_words(mine[-1])[-_TAIL:]
        lines += [rest] if rest else []
        return tuple(line.decode("utf-8", "backslashreplace") for line in lines)

    def logs(
        self,
        ref: JobRef,
        *,
        node_rank: int | None = None,
        follow: bool = False,
        since: float | None = None,
    ) -> Iterator[LogLine]:
        """The lines of every node, or of one, of all pods that the cluster still has."""
        found = self._found(ref, "logs")
        if node_rank is not None:
            check_rank(node_rank, found.num_nodes)
        return self._lines(ref, found, node_rank, follow=follow, since=since)

    def _lines(
        self, ref: JobRef, found: Found, node_rank: int | None, *, follow: bool,
        since: float | None,
    ) -> Iterator[LogLine]:  # fmt: skip
        _, namespace = self._at(ref)
        if follow:
            lines = Follower(
                self._api, namespace, ref, jobsets=self._has_jobsets(), serves=found.serves,
                node_rank=node_rank, since=since,
            ).lines()  # fmt: skip
        else:
            lines = self._written(ref, namespace, node_rank, since)
        if since is None:
            yield from lines
        else:
            yield from (line for line in lines if line.time is None or line.time >= since)

    def exec(
        self, ref: JobRef, command: Sequence[str], *, node_rank: int = 0, stdin: bool = False
    ) -> NodeCommand:
        """Starts a command in a node's container. See `Live`."""
        return NodeCommand(self._node(ref, node_rank), command, stdin=stdin)

    def connect(self, ref: JobRef, port: int, *, node_rank: int = 0) -> NodeConnection:
        """Opens a connection to a port of a node's pod. See `Live`."""
        return NodeConnection(self._node(ref, node_rank), port)

    def _written(
        self, ref: JobRef, namespace: str, node_rank: int | None, since: float | None
    ) -> Iterator[LogLine]:
        pods = again(lambda: pods_of(self._api, namespace, ref.name))
        told = Events(ref.name)
        found = self._look(ref)
        if found is not None:
            told.know(found.owner, pods)
        ranks = None if node_rank is None else [node_rank]
        events = told.lines(again(lambda: listed(self._api, namespace)), ranks)
        mine = [pod for pod in pods if node_rank in {None, rank_of(pod)}]
        return _logs.read(self._api, namespace, mine, events, since=since)

    def jobs(self, *, all_namespaces: bool = False) -> Iterable[JobRef]:
        """Every job of ours in the namespace, by name.

        With `all_namespaces` in every namespace whose jobs this user may list: what a sweep asks.
        Namespaces that may not be looked into are logged as a warning.
        """
        context, namespace = self._where()
        look = jobs_everywhere if all_namespaces else jobs_in
        found = look(
            self._api, namespace, jobsets=self._has_jobsets(), sets=self._has_sets()
        )  # fmt: skip
        return tuple(
            JobRef(backend=_NAME, place=f"{context}/{space}", name=name)
            for space, name in sorted(found)
        )

    def close(self) -> None:
        """Closes every connection."""
        self._api.close()

    # ---- inside

    def _node(self, ref: JobRef, node_rank: int) -> Node:
        found, (_, namespace) = self._found(ref, "exec"), self._at(ref)
        return Node(self._api, namespace, ref=ref, found=found, node_rank=node_rank)

    def _at(self, ref: JobRef) -> tuple[str, str]:
        if ref.backend != _NAME:
            raise SpecError(f"{ref} is no job of Kubernetes")
        return place_of(ref)

    def _look(self, ref: JobRef) -> Found | None:
        _, namespace = self._at(ref)
        jobsets, sets = self._has_jobsets(), self._has_sets()
        return again(lambda: find(self._api, namespace, ref.name, jobsets=jobsets, sets=sets))

    def _found(self, ref: JobRef, operation: str) -> Found:
        found = self._look(ref)
        if found is None:
            raise NotFoundError(
                f"{ref} is gone: torn down, or it never was",
                backend=self._name, operation=operation,
            )  # fmt: skip
        return found
