"""FakeBackend: a backend of a simulated cloud. It runs nothing and needs no network."""

import threading
from collections.abc import Iterable, Iterator
from typing import ClassVar, cast

from gpufabric._frozen import FrozenDict, evolve
from gpufabric.backends.base import Capability, CheckItem, CheckReport, Pool, Site, check_rank
from gpufabric.errors import GpuFabricError, NotFoundError, SpecError, TransientError
from gpufabric.job import JobRef, JobState, JobStatus, LogLine
from gpufabric.plan import EnvVar, LaunchPlan, NetworkItem, Offer, Resolution, Step
from gpufabric.task import PythonCall, Task
from gpufabric.testing._apply import Launch, remove
from gpufabric.testing._cloud import FakeCloud
from gpufabric.testing._pools import resolve
from gpufabric.testing._timeline import lines_of, status_at

__all__ = ["FakeBackend"]

_PORT = 29500
_TRIES = 3


class FakeBackend:
    """A backend of a simulated cloud: plans, launches, states and logs without any machine.

    Args:
        name: the backend's name, also of its places and jobs.
        cloud: the `FakeCloud` it uses; a new one without.
        pools: what the new cloud has (`gpufabric.testing.pool`).
        gang_timeout_s: after this long a gang that is not whole is `LOST`; a plan's own wins.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.LAUNCH, Capability.FOLLOW_LOGS, Capability.RESTARTS}
    )

    def __init__(
        self,
        name: str = "fake",
        *,
        cloud: FakeCloud | None = None,
        pools: Iterable[Pool] | None = None,
        gang_timeout_s: float = 600.0,
    ) -> None:
        if cloud is not None and pools is not None:
            raise SpecError("give pools to the FakeCloud, or none")
        self._name = name
        self.cloud = cloud if cloud is not None else FakeCloud(pools)
        self.gang_timeout_s = gang_timeout_s
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._name

    def __repr__(self) -> str:
        return f"FakeBackend({self._name!r})"

    def check(self) -> CheckReport:
        """Says whether the cloud answers."""
        try:
            self.cloud.call("check access", lambda _: None, backend=self._name)
        except GpuFabricError as exc:
            item = CheckItem(name="access", ok=False, message=str(exc))
        else:
            item = CheckItem(name="access", ok=True)
        return CheckReport(backend=self._name, items=(item,))

    def discover(self) -> Site:
        """Reads what the cloud has now."""
        self.cloud.call("list pools", lambda _: None, backend=self._name)
        return Site(
            backend=self._name,
            pools=tuple(self._own(there) for there in self.cloud.pools),
            facts=FrozenDict[str, object]({"simulated": True}),
        )

    def _own(self, there: Pool) -> Pool:
        place = evolve(there.place, backend=self._name)
        net = there.interconnect
        return evolve(
            there,
            place=place,
            interconnect=None
            if net is None
            else evolve(net, place=evolve(net.place, backend=self._name)),
        )

    def offers(self, task: Task, site: Site) -> Resolution:
        """Every pool that keeps what the task asks, and why each other does not."""
        return resolve(task, site, backend=self._name)

    def plan(self, task: Task, offer: Offer, site: Site, *, run: str = "") -> LaunchPlan:  # noqa: ARG002  # the offer says all that this place needs
        """Gives every call that a launch will make, as data."""
        if offer.backend != self._name:
            raise SpecError(f"the offer is of {offer.backend}, not of {self._name}")
        socket = EnvVar(
            name="NCCL_SOCKET_IFNAME",
            value=task.envs.get("NCCL_SOCKET_IFNAME", "eth0"),
            why="simulated nodes have one interface for sockets",
            overridden="eth0" if "NCCL_SOCKET_IFNAME" in task.envs else None,
        )
        bare = LaunchPlan(
            backend=self._name,
            task=task,
            offer=offer,
            steps=(),
            env=(socket,) if offer.gpus_per_node else (),
            network=_network(offer),
            warnings=_warnings(task),
            lower_tier=offer.tier < offer.resources.network_tier,
            run=run,
        )
        return evolve(bare, steps=tuple(_steps(bare)))

    def apply(self, plan: LaunchPlan) -> JobRef:
        """Makes what the plan says; on any failure it removes it again."""
        ref = _ref(plan)
        if plan.backend != self._name:
            raise SpecError(f"the plan is for {plan.backend}, not for {self._name}")
        absent = [name for name, secret in plan.task.secrets.items() if secret.value is None]
        if absent:
            raise SpecError(f"no value was supplied for the secret {absent[0]}")
        Launch(self.cloud, plan, backend=self._name).run()
        return ref

    def status(self, ref: JobRef) -> JobStatus:
        """Reads the job's state. With an automatic clock, the next look sees the next change."""
        gang, now = self.cloud.read(ref.name, "read gang", backend=self._name, looks=True)
        if gang is None or _place(gang.gang.body) != ref.place:
            return JobStatus(ref=ref, state=JobState.GONE, reason="no such job is on record")
        return status_at(gang, ref, now, gang_timeout_s=self.gang_timeout_s)

    def logs(
        self,
        ref: JobRef,
        *,
        node_rank: int | None = None,
        follow: bool = False,
        since: float | None = None,
    ) -> Iterator[LogLine]:
        """Gives the lines in order of time; `since` leaves out those before that time.

        A connection that is lost while following is made again, without loss or doubles.
        """
        gang, _ = self.cloud.peek(ref.name)
        if gang is None or _place(gang.gang.body) != ref.place:
            raise NotFoundError(f"no job {ref}", backend=self._name, operation="logs")
        size = cast("int", gang.gang.body["num_nodes"])
        if node_rank is not None:
            check_rank(node_rank, size)
        return self._lines(ref, node_rank=node_rank, follow=follow, since=since)

    def _lines(
        self, ref: JobRef, *, node_rank: int | None, follow: bool, since: float | None
    ) -> Iterator[LogLine]:
        given, tries = 0, 0
        while True:
            try:
                gang, now = self.cloud.read(ref.name, "read logs", backend=self._name)
            except TransientError:
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            tries = 0
            if gang is None:  # torn down meanwhile
                return
            for line in lines_of(gang, node_rank=node_rank, until=now, after=given):
                given += 1
                if since is None or cast("float", line.time) >= since:
                    yield line
            state = status_at(gang, ref, now, gang_timeout_s=self.gang_timeout_s).state
            if not follow or state.ended or self._closed.is_set():
                return
            if not self.cloud.pass_time(gang, now):
                before = (gang, now)
                self.cloud.wait_for_change(
                    self._closed.is_set,
                    lambda: self.cloud.peek(ref.name) != before,  # noqa: B023  # used at once
                )

    def cancel(self, ref: JobRef) -> None:
        """Stops the job's processes; what has ended stays so."""
        for left in reversed(range(_TRIES)):
            try:
                self.cloud.stop(ref.name, backend=self._name)
            except TransientError:
                if not left:
                    raise
            else:
                return

    def teardown(self, ref: JobRef) -> None:
        """Removes everything that has the job's tag."""
        remove(self.cloud, ref.name, backend=self._name)

    def jobs(self) -> Iterable[JobRef]:
        """Every job that has an object, whole or not."""
        made = self.cloud.listed(backend=self._name)
        found = {o.job: JobRef(backend=self._name, place=_place(o.body), name=o.job) for o in made}
        return tuple(found.values())

    def close(self) -> None:
        """Ends every call that waits, here only; jobs go on."""
        self._closed.set()
        self.cloud.release()
        self.cloud.wake()


def _place(body: FrozenDict[str, object]) -> str:
    return cast("str", body["place"])


def _ref(plan: LaunchPlan) -> JobRef:
    place = plan.offer.place
    return JobRef(
        backend=plan.backend,
        place="/".join(part for part in (place.region, place.zone) if part) or "-",
        name=plan.name,
    )


def _network(offer: Offer) -> tuple[NetworkItem, ...]:
    nics = offer.nics.fabric
    if not nics:
        return ()
    why = f"every NIC of {offer.instance_type}, as simulated"
    return (NetworkItem(kind="nic", name=nics[0].model, value=str(len(nics)), why=why),)


def _warnings(task: Task) -> tuple[str, ...]:
    if task.workdir is not None or task.files:
        return ("workdir and files are not copied: the nodes are simulated",)
    return ()


def _command(run: str | tuple[str, ...] | PythonCall) -> object:
    return {"function": run.name} if isinstance(run, PythonCall) else run


def _address(rank: int) -> str:
    return f"10.{rank >> 16 & 255}.{rank >> 8 & 255}.{rank & 255}"


def _steps(plan: LaunchPlan) -> Iterator[Step]:
    task, offer, job = plan.task, plan.offer, plan.name
    ref = _ref(plan)
    common = {"job": job, "place": ref.place}
    body: dict[str, object] = {
        **common,
        "task": task.name,
        "num_nodes": offer.num_nodes,
        "run": _command(task.run),
        "env": {**_gang_env(plan, str(ref)), **{v.name: v.value for v in plan.env}, **task.envs},
        "max_restarts": task.max_restarts,
    }
    if task.setup:
        body["setup"] = task.setup
    if task.timeout_s is not None:
        body["timeout_s"] = task.timeout_s
    yield Step(verb="create", kind="gang", name=job, body=FrozenDict(body))
    if task.secrets:
        values = {name: {"secret": name} for name in sorted(task.secrets)}
        body = {**common, "values": values}
        yield Step(verb="create", kind="secret", name=f"{job}-secrets", body=FrozenDict(body))
    for rank in range(offer.num_nodes):
        own = {name: str(rank) for name in ("GPUFABRIC_NODE_RANK", "NODE_RANK", "PET_NODE_RANK")}
        body = {
            **common,
            "node_rank": rank,
            "pool": offer.pool,
            "instance_type": offer.instance_type,
            "address": _address(rank),
            "nics": len(offer.nics.nics),
            "env": {name: text for name, text in own.items() if name not in task.envs},
        }
        yield Step(verb="create", kind="node", name=f"{job}-{rank}", body=FrozenDict(body))
    yield Step(verb="start", kind="gang", name=job, body=FrozenDict(common))


def _gang_env(plan: LaunchPlan, job: str) -> dict[str, str]:
    offer = plan.offer
    size, gpus = str(offer.num_nodes), str(offer.gpus_per_node)
    env = {
        "GPUFABRIC_NUM_NODES": size,
        "GPUFABRIC_GPUS_PER_NODE": gpus,
        "GPUFABRIC_NODE_IPS": "\n".join(_address(rank) for rank in range(offer.num_nodes)),
        "GPUFABRIC_JOB": job,
        "MASTER_ADDR": _address(0),
        "MASTER_PORT": str(_PORT),
        "NNODES": size,
        "PET_NNODES": size,
        "PET_MASTER_ADDR": _address(0),
        "PET_MASTER_PORT": str(_PORT),
    }
    if offer.gpus_per_node:
        env["PET_NPROC_PER_NODE"] = gpus
    return env
