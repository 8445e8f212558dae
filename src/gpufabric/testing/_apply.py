"""How a launch is done on a simulated cloud: look first, create second, undo on any failure."""

from gpufabric._frozen import thaw
from gpufabric.errors import BackendError, CapacityError, ConflictError, TransientError
from gpufabric.plan import LaunchPlan, Step
from gpufabric.testing._cloud import FakeCloud
from gpufabric.testing._records import CloudObject, Phase

__all__ = ["Launch", "remove"]

_TRIES = 3


class Launch:
    """One launch of one plan. Another process may be doing the same at the same time."""

    def __init__(self, cloud: FakeCloud, plan: LaunchPlan, *, backend: str) -> None:
        self._cloud = cloud
        self._plan = plan
        self._backend = backend
        self._asked: list[str] = []
        self._left: tuple[str, ...] = ()
        self._foreign = False

    def run(self) -> None:
        """Makes the job, or finds it made."""
        try:
            self._make()
        except BaseException as exc:
            if self._foreign:
                raise
            if self._undo() and isinstance(exc, Exception):
                return  # whole after all, by another's hand
            self._note_leftovers(exc)
            if isinstance(exc, CapacityError):
                raise self._told(exc) from exc
            raise

    def _make(self) -> None:
        there = self._listed()
        gang = there.get(("gang", self._plan.name))
        if there and (gang is None or self._is_removing()):
            remove(self._cloud, self._plan.name, backend=self._backend)
            there = {}
        for step in self._plan.steps:
            if step.verb == "start":
                self._start(step)
                continue
            found = there.get((step.kind, step.name))
            if found is None:
                self._create(step)
            elif thaw(found.body) != thaw(step.body):
                self._foreign = True
                raise ConflictError(
                    f"{found} exists and was made from another plan",
                    backend=self._backend,
                    operation=f"create {step.kind}",
                )

    def _listed(self) -> dict[tuple[str, str], CloudObject]:
        for left in reversed(range(_TRIES)):
            try:
                made = self._cloud.listed(backend=self._backend, job=self._plan.name)
            except TransientError:
                if not left:
                    raise
                continue
            return {(o.kind, o.name): o for o in made}
        raise AssertionError  # the last try returns or raises

    def _is_removing(self) -> bool:
        gang, _ = self._cloud.peek(self._plan.name)
        return gang is not None and gang.run.phase is Phase.REMOVING

    def _create(self, step: Step) -> None:
        """Creates an object; an answer that was lost is made up for by looking."""
        self._asked.append(f"{step.kind} {step.name}")
        secrets = {n: s.value or "" for n, s in self._plan.task.secrets.items()}
        for left in reversed(range(_TRIES)):
            try:
                self._cloud.create(
                    step,
                    job=self._plan.name,
                    backend=self._backend,
                    secrets=secrets,
                    gang_timeout_s=self._plan.gang_timeout_s,
                )
            except TransientError:
                if (step.kind, step.name) in self._listed():
                    return
                if not left:
                    raise
            except ConflictError:  # another process applies the same plan
                if (step.kind, step.name) not in self._listed():
                    raise
                return
            else:
                return

    def _start(self, step: Step) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._cloud.start(step.name, backend=self._backend)
            except TransientError:
                if not left:
                    raise
            else:
                return

    def _undo(self) -> bool:
        """Removes what was made. True where the gang is whole and was started."""
        try:
            phase = self._give_up()
            if phase is Phase.REMOVING:
                remove(self._cloud, self._plan.name, backend=self._backend)
        except BackendError as failed:
            self._left = failed.leftovers or tuple(self._asked)
            return False
        return phase is Phase.STARTED

    def _note_leftovers(self, exc: BaseException) -> None:
        if isinstance(exc, BackendError):
            exc.leftovers = self._left
        elif self._left:
            exc.add_note(f"not removed: {', '.join(self._left)}")

    def _give_up(self) -> Phase | None:
        for left in reversed(range(_TRIES)):
            try:
                return self._cloud.give_up(self._plan.name, backend=self._backend)
            except TransientError:
                if not left:
                    raise
        raise AssertionError  # the last try returns or raises

    def _told(self, exc: CapacityError) -> CapacityError:
        offer = self._plan.offer
        got = max(sum(name.startswith("node ") for name in self._asked) - 1, 0)
        after = "not all released" if exc.leftovers else "released"
        return CapacityError(
            f"no capacity for {offer.num_nodes} x {offer.instance_type} in {offer.place}"
            f" (got {got}, {after})",
            backend=self._backend,
            operation="launch",
            wanted=offer.num_nodes,
            got=got,
            leftovers=exc.leftovers,
        )


def remove(cloud: FakeCloud, job: str, *, backend: str) -> None:
    """Removes everything with the job's tag, the gang last.

    Raises the last error, with `.leftovers`, where something stays.
    """
    trouble: BackendError | None = None
    left: dict[int, CloudObject] = {}
    for _ in range(_TRIES):
        try:
            left = {made.uid: made for made in cloud.listed(backend=backend, job=job)}
        except BackendError as exc:
            trouble = exc
            continue
        if not left:
            return
        for made in sorted(left.values(), key=lambda o: (o.kind == "gang", o.uid)):
            try:
                cloud.delete(made, backend=backend)
            except BackendError as exc:
                trouble = exc
            else:
                del left[made.uid]
    if left or trouble is not None:
        told = trouble or ConflictError(
            "it is being made again meanwhile", backend=backend, operation="teardown"
        )
        told.leftovers = tuple(str(made) for made in left.values())
        raise told
