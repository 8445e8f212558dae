"""Fabric: the places a task may go, as one compute fabric."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self, TypeVar, cast

from gpufabric._asking import ask_all, bug, words_of
from gpufabric._choosing import lowered, nowhere
from gpufabric._frozen import FrozenDict, evolve, field, frozen
from gpufabric.backends.base import Backend, Capability, CheckItem, CheckReport, Site
from gpufabric.config import Settings
from gpufabric.errors import (
    BackendError,
    ConfigError,
    GpuFabricError,
    Remedy,
    SpecError,
    shown,
)
from gpufabric.handle import JobHandle
from gpufabric.job import JobRef
from gpufabric.net.rank import rank
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Attempt, LaunchPlan, LaunchPolicy, Offer, Rejection, Resolution
from gpufabric.task import Task

__all__ = ["Event", "Fabric"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
logging.getLogger("gpufabric").addHandler(logging.NullHandler())
_APPLY_TRIES = 3
_APPLY_S = 10.0  # a backend that bore a failing server this long has been patient enough


@frozen(kw_only=True)
class Event:
    """Something that happened during a call, for progress displays and traces.

    `kind` is `discovered`, `undiscovered`, `attempt`, `failed`, `launched` or `lower-tier`.
    """

    kind: str
    message: str
    backend: str | None = None
    ref: JobRef | None = None
    facts: FrozenDict[str, object] = field(factory=FrozenDict[str, object])


class Fabric:
    """The places a task may go, as one compute fabric: an ordered set of backends.

    `Fabric(Kubernetes("prod"), AWS())` composes; `a | b` joins two; `Fabric.discover()` takes
    every place that this machine is configured for; `Fabric.assumed()` plans on every cloud from
    the catalog alone. Safe to use from several threads. `with Fabric(...)` closes connections.
    """

    def __init__(
        self,
        *backends: Backend,
        settings: Settings | None = None,
        on_event: Callable[[Event], None] | None = None,
        unusable: Sequence[Rejection] = (),
    ) -> None:
        """Composes backends; ties between offers go by their order. Raises `ConfigError`."""
        self.settings = settings if settings is not None else Settings.load()
        self.backends = tuple(backends)
        #: What `discover` found that cannot be used, with the reason.
        self.unusable = tuple(unusable)
        self._on_event = on_event
        self._read: dict[str, Site | str] = {}  # by backend; a text is why it was not
        self._attached: dict[tuple[str, str], Backend] = {}
        self._attaching = threading.Lock()
        for given in self.backends:
            if isinstance(given, type) or not isinstance(cast("object", given), Backend):
                raise ConfigError(f"{shown(given)} is no backend: write Fabric(Local(), ...)")
        names = [backend.name for backend in self.backends]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"two backends of one fabric are named {twice[0]!r}: give one another name="
            )

    @classmethod
    def discover(
        cls,
        *,
        settings: Settings | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> "Fabric":
        """Gives a fabric of every place that this machine is configured for.

        What was found but cannot be used is in `unusable` and among each resolution's
        rejections.
        """
        from gpufabric.backends import TABLE, backend_class, backend_names

        chosen = settings if settings is not None else Settings.load()
        found: list[Backend] = []
        unusable: list[Rejection] = []

        def look(name: str) -> list[Backend]:
            return list(backend_class(name).found(chosen))

        answers = ask_all(
            {name: partial(look, name) for name in backend_names()},
            limit_s=chosen.discover_timeout_s,
            here=TABLE,
        )
        for name, answer in answers.items():
            if isinstance(answer, list):
                found.extend(answer)
            else:
                unusable.append(Rejection(backend=name, reason=words_of(name, answer)))
        return cls(*found, settings=chosen, on_event=on_event, unusable=unusable)

    @classmethod
    def assumed(
        cls,
        clouds: Iterable[str] | None = None,
        *,
        catalog: Iterable[str] = (),
        settings: Settings | None = None,
    ) -> "Fabric":
        """Gives every cloud as the catalog knows it, or the clouds named; offline.

        It plans and launches nothing. `catalog` names files of your own that are laid over what
        ships: a new type, a negotiated price, a private cluster. Raises `ConfigError` for an
        unknown cloud, `CatalogError` for a wrong file.
        """
        from gpufabric.backends.assumed import AssumedBackend
        from gpufabric.catalog.index import Catalog

        rows = Catalog.shipped()
        files = (catalog,) if isinstance(catalog, str) else tuple(catalog)
        if files:
            rows = rows.with_overlays(*files)
        if clouds is None:
            clouds = rows.clouds
        names = (clouds,) if isinstance(clouds, str) else tuple(clouds)
        backends = [AssumedBackend(name, catalog=rows) for name in names]
        return cls(*backends, settings=settings)

    def __or__(self, other: "Fabric") -> "Fabric":
        """Joins two fabrics: these backends first. Settings and events are this one's."""
        if not isinstance(cast("object", other), Fabric):
            return NotImplemented
        mine = [backend for backend in self.backends if backend not in other.backends]
        return Fabric(
            *mine,
            *other.backends,
            settings=self.settings,
            on_event=self._on_event,
            unusable=(*self.unusable, *other.unusable),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every backend's connections and threads. Jobs go on."""
        with ExitStack() as all_of_them:  # one that fails keeps none open
            for backend in (*self.backends, *self._attached.values()):
                all_of_them.callback(backend.close)

    def __repr__(self) -> str:
        return f"Fabric({', '.join(backend.name for backend in self.backends)})"

    def _repr_html_(self) -> str:
        """Every pool that was last read, without reading anything now."""
        from gpufabric._site_text import sites_html

        unusable = [(one.backend, one.reason) for one in self.unusable]
        read = [(backend.name, self._read.get(backend.name)) for backend in self.backends]
        return sites_html([*read, *unusable])

    def check(self) -> tuple[CheckReport, ...]:
        """Asks every backend whether it is usable; never raises."""
        answers = self._ask(lambda backend: backend.check())
        return tuple(
            answer
            if isinstance(answer, CheckReport)
            else CheckReport(
                backend=backend.name,
                items=(CheckItem(name="answers", ok=False, message=str(answer)),),
            )
            for backend, answer in zip(self.backends, answers, strict=True)
        )

    def sites(self) -> dict[str, Site]:
        """Reads what every backend has; one that fails or is slow is left out."""
        return {name: site for name, site, _ in self._discovered() if site is not None}

    def offers(self, task: Task, *, policy: LaunchPolicy | None = None) -> Resolution:
        """Gives every way to run `task`, best first, and every rejection with its reason.

        Reads, never writes. A backend that fails or takes longer than
        `settings.discover_timeout_s` is a rejection.
        """
        _task(task)
        return self._resolve(task, policy or LaunchPolicy())[0]

    def plan(self, task: Task, *, policy: LaunchPolicy | None = None, run: str = "") -> LaunchPlan:
        """Plans `task` on the best offer. Reads, never writes.

        The same task on the same offer is the same plan, and so the same job; another `run` makes
        it another. Raises `PlacementError` with every rejection where no place keeps what was
        asked.
        """
        _task(task)
        chosen = policy or LaunchPolicy()
        resolution, sites, lower = self._resolve_or_lower(task, chosen)
        if not resolution.offers:
            raise nowhere(task, resolution)
        return self._plan(task, resolution.offers[0], sites, chosen, lower=lower, run=run)

    def launch(
        self,
        task: Task | LaunchPlan,
        *,
        policy: LaunchPolicy | None = None,
        run: str | None = None,
    ) -> JobHandle:
        """Starts a gang and gives its handle once it is whole.

        A `LaunchPlan` is applied as it is, with the limits of the policy it was planned with:
        twice is one job. A `Task` is planned on the best offer and, where that has no room, on the
        next; each call is a job of its own unless `run` is given. Raises `PlacementError` with
        rejections and attempts where no place took it, and
        errors of the request itself as they are.
        """
        chosen = policy or LaunchPolicy()
        if isinstance(task, LaunchPlan):
            return self._launch_plan(task)
        _task(task, also=" or LaunchPlan")
        missing = sorted(name for name, secret in task.secrets.items() if secret.value is None)
        if missing:
            raise SpecError(
                f"secrets without a value: {', '.join(missing)}; supply them:"
                " Task(secrets={NAME: value}), or --secret NAME=FILE"
            )
        if run is None:
            import secrets

            run = secrets.token_hex(4)
        resolution, sites, lower = self._resolve_or_lower(task, chosen)
        attempts: list[Attempt] = []
        closed: set[str] = set()
        for offer in resolution.offers:
            if offer.backend in closed or len(attempts) >= chosen.max_attempts:
                continue
            outcome = self._attempt(task, offer, sites, chosen, lower=lower, run=run)
            attempts.append(outcome[0])
            if outcome[1] is not None:
                plan, ref = outcome[1]
                return self._handle(ref, plan, attempts, chosen, resolution.rejections)
            if outcome[0].remedy in {Remedy.FIX_SETUP, Remedy.RETRY}:
                closed.add(offer.backend)
        raise nowhere(task, resolution, attempts)

    def attach(self, ref: JobRef | str) -> JobHandle:
        """Finds a job again, from any process. Does no I/O. Raises `SpecError`, `ConfigError`."""
        parsed = ref if isinstance(ref, JobRef) else JobRef.parse(ref)
        return JobHandle(parsed, self._backend_of(parsed), settings=self.settings)

    def jobs(self) -> tuple[JobRef, ...]:
        """Lists the jobs that every place has on record; a place that fails is told as an event."""
        found: list[JobRef] = []
        answers = self._ask(lambda backend: tuple(backend.jobs()))
        for backend, answer in zip(self.backends, answers, strict=True):
            if isinstance(answer, tuple):
                found.extend(answer)
            else:
                self._tell("undiscovered", f"{backend.name}: {answer}", backend=backend.name)
        return tuple(found)

    # ---- inside

    def _tell(
        self, kind: str, message: str, *, backend: str | None = None, ref: JobRef | None = None
    ) -> None:
        _log.info("%s: %s", kind, message)
        if self._on_event is not None:
            try:
                self._on_event(Event(kind=kind, message=message, backend=backend, ref=ref))
            except Exception:  # noqa: BLE001  # a display that breaks must not cost a job
                _log.exception("on_event failed at: %s", message)

    def _ask(self, call: Callable[[Backend], T]) -> list[T | GpuFabricError]:
        """Asks every backend at once, each within the time limit; a failure is its answer."""
        answers = ask_all(
            {backend.name: partial(call, backend) for backend in self.backends},
            limit_s=self.settings.discover_timeout_s,
            here={b.name for b in self.backends if Capability.OFFLINE in b.capabilities},
        )
        return [answers[backend.name] for backend in self.backends]

    def _discovered(self) -> list[tuple[str, Site | None, str]]:
        found: list[tuple[str, Site | None, str]] = []
        answers = self._ask(lambda backend: backend.discover())
        for backend, answer in zip(self.backends, answers, strict=True):
            if isinstance(answer, Site):
                found.append((backend.name, answer, ""))
                self._read[backend.name] = answer
            else:
                words = words_of(backend.name, answer)
                found.append((backend.name, None, words))
                self._read[backend.name] = words
                self._tell("undiscovered", f"{backend.name}: {words}", backend=backend.name)
        return found

    def _resolve(
        self, task: Task, policy: LaunchPolicy, sites: dict[str, Site] | None = None
    ) -> tuple[Resolution, dict[str, Site]]:
        offers: list[Offer] = []
        rejections = list(self.unusable)
        if sites is None:
            sites = {}
            for name, site, reason in self._discovered():
                if site is None:
                    rejections.append(Rejection(backend=name, reason=reason))
                else:
                    sites[name] = site
        for backend in self.backends:
            if backend.name not in sites:
                continue
            try:
                found = backend.offers(task, sites[backend.name])
            except Exception as exc:  # noqa: BLE001  # a plug-in's bug must not spoil the others
                _log.debug("%s failed", backend.name, exc_info=True)
                said = exc if isinstance(exc, GpuFabricError) else bug(exc)
                reason = words_of(backend.name, said)
                rejections.append(Rejection(backend=backend.name, reason=reason))
                continue
            offers.extend(found.offers)
            rejections.extend(found.rejections)
        return Resolution(offers=tuple(rank(offers, policy)), rejections=tuple(rejections)), sites

    def _resolve_or_lower(
        self, task: Task, policy: LaunchPolicy
    ) -> tuple[Resolution, dict[str, Site], bool]:
        resolution, sites = self._resolve(task, policy)
        if resolution.offers or not policy.allow_lower_tier:
            return resolution, sites, False
        for tier in sorted(NetworkTier, reverse=True):
            lower, _ = self._resolve(lowered(task, tier), policy, sites)
            if lower.offers:
                self._tell("lower-tier", f"no place keeps what was asked; {tier.value} it is")
                both = (*resolution.rejections, *lower.rejections)
                return evolve(lower, rejections=tuple(dict.fromkeys(both))), sites, True
        return resolution, sites, False

    def _plan(  # noqa: PLR0913  # what was decided before, by keyword
        self,
        task: Task,
        offer: Offer,
        sites: dict[str, Site],
        policy: LaunchPolicy,
        *,
        lower: bool,
        run: str,
    ) -> LaunchPlan:
        backend = next(b for b in self.backends if b.name == offer.backend)
        plan = backend.plan(task, offer, sites[offer.backend], run=run)
        if lower or policy.gang_timeout_s is not None:
            plan = evolve(
                plan,
                lower_tier=lower or plan.lower_tier,
                gang_timeout_s=policy.gang_timeout_s,
            )
        return plan

    def _attempt(  # noqa: PLR0913  # see _plan
        self,
        task: Task,
        offer: Offer,
        sites: dict[str, Site],
        policy: LaunchPolicy,
        *,
        lower: bool,
        run: str,
    ) -> tuple[Attempt, tuple[LaunchPlan, JobRef] | None]:
        started = time.time()
        self._tell("attempt", str(offer), backend=offer.backend)
        try:
            plan = self._plan(task, offer, sites, policy, lower=lower, run=run)
            ref = self._apply(plan)
        except GpuFabricError as exc:
            if exc.remedy is Remedy.FIX_REQUEST:
                raise
            self._tell("failed", str(exc), backend=offer.backend)
            failed = Attempt(
                offer=offer,
                backend=offer.backend,
                error=str(exc),
                error_type=type(exc).__name__,
                remedy=exc.remedy,
                leftovers=getattr(exc, "leftovers", ()),
                started_at=started,
                ended_at=time.time(),
            )
            return failed, None
        took = Attempt(offer=offer, backend=offer.backend, started_at=started, ended_at=time.time())
        return took, (plan, ref)

    def _apply(self, plan: LaunchPlan) -> JobRef:
        import tenacity

        backend = next((b for b in self.backends if b.name == plan.backend), None)
        if backend is None:
            raise ConfigError(
                f"the plan is for backend {plan.backend!r}, which is not in {self!r}; add it"
            )

        left: list[str] = []  # of every try: a later one may not know that it is its own

        def again(exc: BaseException) -> bool:
            if isinstance(exc, BackendError):
                left.extend(exc.leftovers)
            return isinstance(exc, GpuFabricError) and exc.remedy is Remedy.RETRY

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(again),
            stop=tenacity.stop_after_attempt(_APPLY_TRIES) | tenacity.stop_after_delay(_APPLY_S),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
            reraise=True,
        )
        try:
            return retrying(backend.apply, plan)
        except BackendError as exc:
            exc.leftovers = tuple(dict.fromkeys(left))
            raise

    def _launch_plan(self, plan: LaunchPlan) -> JobHandle:
        started = time.time()
        ref = self._apply(plan)
        took = Attempt(
            offer=plan.offer, backend=plan.backend, started_at=started, ended_at=time.time()
        )
        return self._handle(ref, plan, [took], LaunchPolicy())

    def _handle(
        self,
        ref: JobRef,
        plan: LaunchPlan,
        attempts: Sequence[Attempt],
        policy: LaunchPolicy,
        rejections: Sequence[Rejection] = (),
    ) -> JobHandle:
        self._tell("launched", f"{ref} on {plan.offer}", backend=plan.backend, ref=ref)
        return JobHandle(
            ref,
            self._backend_of(ref, plan.backend),
            settings=self.settings,
            plan=plan,
            attempts=attempts,
            rejections=rejections,
            policy=policy,
        )

    def _backend_of(self, ref: JobRef, name: str | None = None) -> Backend:
        for backend in self.backends:
            if backend.name == name:
                return backend
        for backend in self.backends:
            owns: Callable[[JobRef], bool] | None = getattr(backend, "owns", None)
            if owns(ref) if owns is not None else backend.name == ref.backend:
                return backend
        for backend in self.backends:  # not its own job, but one that it can ask about
            reaches: Callable[[JobRef], bool] | None = getattr(backend, "reaches", None)
            if reaches is not None and reaches(ref):
                return backend
        from gpufabric.backends import backend_class

        with self._attaching:
            place = (ref.backend, ref.place)
            if place not in self._attached:
                made = backend_class(ref.backend).from_ref(ref, self.settings)
                self._attached[place] = made
            return self._attached[place]


def _task(value: object, *, also: str = "") -> None:
    if not isinstance(value, Task):
        raise SpecError(f"{shown(value)} is no Task{also}: write Task(run=...)")
