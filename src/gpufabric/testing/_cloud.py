"""FakeCloud: a simulated cloud with capacity, faults to order, a clock, and a record of calls."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from attrs import evolve

from gpufabric._convert import enum_of
from gpufabric.backends.base import Pool
from gpufabric.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    QuotaError,
    TransientError,
)
from gpufabric.job import JobRef
from gpufabric.plan import Step
from gpufabric.testing._pools import default_pools
from gpufabric.testing._records import (
    Behaviour,
    Call,
    ClockMode,
    CloudObject,
    Fault,
    FaultKind,
    Moment,
    Phase,
    Preemption,
    Run,
)
from gpufabric.testing._store import FolderStore, MemoryStore, State
from gpufabric.testing._timeline import Gang, next_change

__all__ = ["FakeCloud"]

T = TypeVar("T")

_START = 1_767_225_600.0  # 2026-01-01, 00:00 UTC
_LOOK_AGAIN_S = 0.02  # how often a follower looks at a cloud that other processes change


class FakeCloud:
    """A simulated cloud. Several backends may use one, from several processes too.

    Args:
        pools: what it has; `gpufabric.testing.pool` makes one. Made-up machines by default.
        path: a folder for its state, so that other processes share it and a killed process
            leaves behind what it had made. In memory without.
        clock: `"auto"`: a look at a job moves the clock to the job's next change, so nothing
            waits; `"manual"`: only `advance` moves it.
        boot_s: how long nodes take to start, in the cloud's time.
        tells_free: whether it tells how many nodes are free; real clouds do not.
    """

    def __init__(
        self,
        pools: Iterable[Pool] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        clock: ClockMode | str = ClockMode.AUTO,
        boot_s: float = 30.0,
        tells_free: bool = True,
    ) -> None:
        given = None if pools is None else list(pools)
        made = default_pools() if given is None else given
        names = [pool.name for pool in made]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two pools have the name {twice[0]!r}: give each its own name")
        state = State(
            pools=made,
            capacity={pool.name: pool.nodes_total for pool in made},
            clock=enum_of(ClockMode, clock),
            boot_s=boot_s,
            tells_free=tells_free,
            now=_START,
        )
        self.path = None if path is None else Path(path)
        self._store = MemoryStore(state) if self.path is None else FolderStore(self.path, state)
        self._changed = threading.Condition()
        self._released = threading.Event()
        if given is not None and self.path is not None and list(self.pools) != given:
            raise ConfigError(f"{self.path} has a cloud with other pools: give no pools to join it")

    def __reduce__(self) -> tuple[object, ...]:
        if self.path is None:
            raise TypeError("a FakeCloud in memory stays in its process: give it a path")
        return (_joined, (str(self.path),))

    # What it has, and what happened in it

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Its pools, with what is free now."""
        with self._store.open() as state:
            return tuple(_with_free(state, pool) for pool in state.pools)

    @property
    def objects(self) -> tuple[CloudObject, ...]:
        """Everything that exists and would be billed."""
        with self._store.open() as state:
            return tuple(state.objects.values())

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls so far, oldest first."""
        with self._store.open() as state:
            return tuple(state.calls)

    @property
    def now(self) -> float:
        """Its clock, in seconds since 1970."""
        with self._store.open() as state:
            return state.now

    # What a test may do to it

    def advance(self, seconds: float) -> None:
        """Moves the clock on."""
        if seconds < 0:
            raise ConfigError("time does not go back")
        with self._store.open() as state:
            state.now += seconds
        self._notify()

    def fail(  # noqa: PLR0913  # keyword-only facts of one fault
        self,
        operation: str = "*",
        kind: FaultKind | str = FaultKind.TRANSIENT,
        *,
        call: int = 1,
        times: int | None = 1,
        moment: Moment | str = Moment.BEFORE,
        delay_s: float = 0.0,
    ) -> Fault:
        """Orders a fault for a call to come (see `Fault`); gives it back."""
        fault = Fault(
            kind=enum_of(FaultKind, kind),
            operation=operation,
            call=call,
            times=times,
            moment=enum_of(Moment, moment),
            delay_s=delay_s,
        )
        if fault.kind is FaultKind.KILL and self.path is None:
            raise ConfigError("a cloud in memory dies with its process: give it a path to use KILL")
        with self._store.open() as state:
            state.faults.append((fault, 0))
        return fault

    def heal(self) -> None:
        """Takes back every fault that was ordered, and lets go of calls that hang."""
        with self._store.open() as state:
            state.faults.clear()
        self.release()

    def release(self) -> None:
        """Lets every call of this process that hangs come back, and hangs none any more."""
        self._released.set()

    def script(self, *behaviours: Behaviour) -> None:
        """Says what the nodes of tasks started from now on do; a later word wins."""
        with self._store.open() as state:
            state.behaviours.extend(behaviours)

    def resize(self, pool: str, nodes: int | None) -> None:
        """Sets how many nodes a pool has in all (None: any number); running nodes stay."""
        with self._store.open() as state:
            if pool not in state.capacity:
                raise ConfigError(f"no pool {pool!r}: there are {', '.join(state.capacity)}")
            state.capacity[pool] = nodes
        self._notify()

    def preempt(self, job: JobRef | str, node_rank: int = 0) -> None:
        """Takes a node of a running job back, now."""
        name = job.name if isinstance(job, JobRef) else job
        with self._store.open() as state:
            run = state.runs.get(name)
            if run is None or run.started_at is None:
                raise NotFoundError(f"no job {name} runs", backend="fake", operation="preempt")
            taken = Preemption(node_rank=node_rank, at=state.now)
            state.runs[name] = evolve(run, preemptions=(*run.preemptions, taken))
        self._notify()

    # The cloud's interface, which FakeBackend calls. Each is one call of the record.

    def call(
        self,
        operation: str,
        act: Callable[[State], T],
        *,
        backend: str,
        name: str = "",
        job: str = "",
    ) -> T:
        """Answers one call: counts it, strikes it where a fault was ordered, or acts."""
        answer: list[T] = []
        refused: BackendError | None = None
        with self._store.open() as state:
            fault = state.strike(operation)
            if fault is not None:
                state.now += fault.delay_s
            acts = fault is None or fault.moment is Moment.AFTER or fault.kind is FaultKind.DELAY
            if acts:
                try:
                    answer.append(act(state))
                except BackendError as exc:
                    refused = exc
            state.call_count += 1
            outcome = type(refused).__name__ if refused else fault.kind.value if fault else "ok"
            state.record(
                Call(
                    number=state.call_count,
                    operation=operation,
                    name=name,
                    job=job,
                    outcome=outcome,
                    pid=os.getpid(),
                )
            )
        self._notify()
        if fault is not None and fault.kind is not FaultKind.DELAY:
            self._suffer(fault, operation, backend)
        if refused is not None:
            raise refused
        if not answer:  # it hung before the cloud acted, and was let go
            with self._store.open() as state:
                answer.append(act(state))
            self._notify()
        return answer[0]

    def _suffer(self, fault: Fault, operation: str, backend: str) -> None:
        match fault.kind:
            case FaultKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.HANG:
                self._released.wait()
            case FaultKind.PERMISSION:
                raise CredentialsError(
                    f"not allowed: grant the permission {operation!r}",
                    backend=backend,
                    operation=operation,
                )
            case FaultKind.QUOTA:
                raise QuotaError(
                    "the account's limit is reached: ask for more, or go elsewhere",
                    backend=backend,
                    operation=operation,
                )
            case FaultKind.CAPACITY:
                raise CapacityError("none left", backend=backend, operation=operation)
            case FaultKind.TIMEOUT:
                raise TransientError(
                    f"no answer within {fault.delay_s:g} s", backend=backend, operation=operation
                )
            case _:
                raise TransientError("connection reset", backend=backend, operation=operation)

    def create(  # keyword-only facts of one object
        self,
        step: Step,
        *,
        job: str,
        backend: str,
        secrets: dict[str, str],
        gang_timeout_s: float | None = None,
    ) -> None:
        """Makes an object. Raises `ConflictError` if there is one of this name."""
        operation = f"create {step.kind}"

        def act(state: State) -> None:
            key = f"{step.kind}/{step.name}"
            run = state.runs.get(job)
            if key in state.objects:
                raise ConflictError(f"{step.name} exists", backend=backend, operation=operation)
            if step.kind != "gang" and (run is None or run.phase is not Phase.BUILDING):
                raise ConflictError(
                    f"gang {job} is not being built", backend=backend, operation=operation
                )
            if step.kind == "node":
                _take(state, str(step.body["pool"]), backend)
            state.serial += 1
            state.objects[key] = CloudObject(
                kind=step.kind,
                name=step.name,
                job=job,
                uid=state.serial,
                body=step.body,
                created_at=state.now,
            )
            if step.kind == "secret":
                state.secrets[job] = secrets
            if step.kind == "gang":
                state.runs[job] = Run(
                    job=job,
                    uid=state.serial,
                    created_at=state.now,
                    boot_s=state.boot_s,
                    gang_timeout_s=gang_timeout_s,
                )

        self.call(operation, act, backend=backend, name=step.name, job=job)

    def start(self, job: str, *, backend: str) -> None:
        """Starts a gang that is whole; does nothing to one that was started."""

        def act(state: State) -> None:
            run, gang = state.runs.get(job), state.objects.get(f"gang/{job}")
            if run is None or gang is None or run.phase is Phase.REMOVING:
                raise ConflictError(
                    f"gang {job} is not being built", backend=backend, operation="start gang"
                )
            if run.phase is Phase.STARTED:
                return
            nodes = [o for o in state.objects.values() if o.job == job and o.kind == "node"]
            if len(nodes) != gang.body["num_nodes"]:
                raise ConflictError(
                    f"gang {job} has {len(nodes)} of {gang.body['num_nodes']} nodes",
                    backend=backend,
                    operation="start gang",
                )
            state.runs[job] = evolve(
                run,
                phase=Phase.STARTED,
                started_at=state.now,
                behaviours=tuple(state.behaviours),
            )

        self.call("start gang", act, backend=backend, name=job, job=job)

    def give_up(self, job: str, *, backend: str) -> Phase | None:
        """Turns a gang that is being built into one that is being removed; gives its phase."""

        def act(state: State) -> Phase | None:
            run = state.runs.get(job)
            if run is not None and run.phase is Phase.BUILDING:
                run = state.runs[job] = evolve(run, phase=Phase.REMOVING)
            return None if run is None else run.phase

        return self.call("give up gang", act, backend=backend, name=job, job=job)

    def stop(self, job: str, *, backend: str) -> None:
        """Stops the processes of a gang; does nothing where they have ended."""

        def act(state: State) -> None:
            run = state.runs.get(job)
            if run is None:
                raise NotFoundError(f"no job {job}", backend=backend, operation="stop gang")
            if run.phase is Phase.BUILDING:
                state.runs[job] = evolve(run, phase=Phase.REMOVING)
            elif run.stopped_at is None:
                state.runs[job] = evolve(run, stopped_at=state.now)

        self.call("stop gang", act, backend=backend, name=job, job=job)

    def listed(self, *, backend: str, job: str = "") -> tuple[CloudObject, ...]:
        """The objects with the tag of `job`, or of any job."""

        def act(state: State) -> tuple[CloudObject, ...]:
            return tuple(o for o in state.objects.values() if not job or o.job == job)

        return self.call("list objects", act, backend=backend, job=job)

    def delete(self, made: CloudObject, *, backend: str) -> None:
        """Removes an object, if it is still this one and not another of the same name."""

        def act(state: State) -> None:
            key = f"{made.kind}/{made.name}"
            there = state.objects.get(key)
            if there is None or there.uid != made.uid:
                return
            rest = [o for o in state.objects.values() if o.job == made.job and o.uid != made.uid]
            if made.kind == "gang" and rest:
                raise ConflictError(
                    f"{made.name} still has {rest[0]}", backend=backend, operation="delete gang"
                )
            run = state.runs.get(made.job)
            if run is not None:
                state.runs[made.job] = evolve(run, phase=Phase.REMOVING)
            del state.objects[key]
            if made.kind == "secret":
                state.secrets.pop(made.job, None)
            if made.kind == "gang":
                state.runs.pop(made.job, None)

        self.call(f"delete {made.kind}", act, backend=backend, name=made.name, job=made.job)

    def read(
        self, job: str, operation: str, *, backend: str, looks: bool = False
    ) -> tuple[Gang | None, float]:
        """One job and the time. A look that `looks` moves an automatic clock on afterwards."""

        def act(state: State) -> tuple[Gang | None, float]:
            gang, now = _gang(state, job), state.now
            if looks and gang is not None and state.clock is ClockMode.AUTO:
                state.now = next_change(gang, now, with_lines=False) or now
            return gang, now

        return self.call(operation, act, backend=backend, name=job, job=job)

    def peek(self, job: str) -> tuple[Gang | None, float]:
        """One job and the time, without a call: how a follower notices that something changed."""
        with self._store.open() as state:
            return _gang(state, job), state.now

    def pass_time(self, gang: Gang, now: float) -> bool:
        """Moves an automatic clock on to the job's next line or change, if it can."""
        then = next_change(gang, now, with_lines=True)
        with self._store.open() as state:
            if state.clock is not ClockMode.AUTO or then is None:
                return False
            state.now = max(state.now, then)
        self._notify()
        return True

    def wait_for_change(self, ended: Callable[[], bool], seen: Callable[[], bool]) -> None:
        """Waits until something was changed that `seen` tells, or `ended`."""
        with self._changed:
            while not ended() and not seen():
                self._changed.wait(_LOOK_AGAIN_S if self.path is not None else None)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        """Makes everything in this process that waits for a change look again."""
        self._notify()


def _joined(path: str) -> FakeCloud:
    return FakeCloud(path=path)


def _used(state: State, pool: str) -> int:
    return sum(o.kind == "node" and o.body["pool"] == pool for o in state.objects.values())


def _with_free(state: State, pool: Pool) -> Pool:
    total = state.capacity[pool.name]
    if total is None or not state.tells_free:
        return evolve(pool, nodes_total=total if state.tells_free else None, nodes_free=None)
    return evolve(pool, nodes_total=total, nodes_free=max(total - _used(state, pool.name), 0))


def _take(state: State, pool: str, backend: str) -> None:
    if pool not in state.capacity:
        raise NotFoundError(f"no pool {pool!r}", backend=backend, operation="create node")
    total = state.capacity[pool]
    if total is not None and _used(state, pool) >= total:
        raise CapacityError(f"pool {pool} is full", backend=backend, operation="create node")


def _gang(state: State, job: str) -> Gang | None:
    run, gang = state.runs.get(job), state.objects.get(f"gang/{job}")
    if run is None or gang is None:
        return None
    nodes = sorted(
        (o for o in state.objects.values() if o.job == job and o.kind == "node"),
        key=lambda o: int(str(o.body["node_rank"])),
    )
    secrets = tuple(sorted(state.secrets.get(job, {}).items()))
    return Gang(run=run, gang=gang, nodes=tuple(nodes), secrets=secrets)
