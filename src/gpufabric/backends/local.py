"""Local: gangs as processes of this machine. The embedded default, and the smallest backend.

Each node is a session of its own below a supervisor that outlives the caller (`_supervisor.py`);
all that is known of a job lies in its folder, so any process can attach to it by its `JobRef`.
"""

import contextlib
import os
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, cast

from gpufabric._frozen import FrozenDict, freeze, thaw
from gpufabric.backends._local_job import JobFolder, default_root, home, make_root
from gpufabric.backends._local_live import LocalCommand, LocalConnection, node_process
from gpufabric.backends._local_plan import SHELL, make_offers, make_plan
from gpufabric.backends._local_start import inherited, secret_values, start
from gpufabric.backends._local_status import has_ended, read_status
from gpufabric.backends.base import Capability, CheckItem, CheckReport, Pool, Site, check_rank
from gpufabric.config import Settings, environment
from gpufabric.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    CredentialsError,
    NotFoundError,
    SpecError,
    TransientError,
)
from gpufabric.job import JobRef, JobState, JobStatus, LogLine
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.plan import LaunchPlan, Offer, Resolution, Step
from gpufabric.task import PythonCall, Task

__all__ = ["Local"]

_STOP_SLACK_S = 15.0
_LOCK_TIMEOUT_S = 180.0


class Local:
    """Runs gangs on this machine.

    `root` is the folder that holds the jobs: argument, then `Settings.local_root`, then the user's
    state folder. It stands in every `JobRef`, so a job is found whatever the settings are.
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

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        settings: Settings | None = None,
        name: str = "local",
    ) -> None:
        self._settings = settings if settings is not None else Settings.load()
        self._name = name
        chosen = root if root is not None else self._settings.local_root
        if chosen is None:
            self._root = default_root(trust_env=self._settings.trust_env)
        else:
            self._root = Path(chosen).absolute()
        if not _writable(str(self._root)):
            raise ConfigError(f"local: {str(self._root)!r} cannot be written in a job's name")

    @classmethod
    def found(cls, settings: Settings) -> tuple["Local", ...]:
        """This machine, where it runs Linux."""
        return (cls(settings=settings),) if sys.platform == "linux" else ()

    @classmethod
    def from_ref(cls, ref: JobRef, settings: Settings) -> "Local":  # noqa: ARG003  # the ref says all
        """The backend that finds the job: any instance does, the ref has the folder."""
        return cls(settings=settings)

    @property
    def name(self) -> str:
        """The name that offers and refs carry."""
        return self._name

    @property
    def root(self) -> Path:
        """The folder of all jobs."""
        return self._root

    # reading

    def check(self) -> CheckReport:
        """Whether gangs can run here."""
        items = [
            CheckItem(name="Linux", ok=sys.platform == "linux", message=sys.platform),
            CheckItem(name="shell", ok=os.access(SHELL, os.X_OK), message=SHELL),
            CheckItem(name="/proc", ok=Path("/proc/self/stat").exists(), message="process table"),
            CheckItem(name="python", ok=bool(sys.executable), message=sys.executable),
        ]
        try:
            make_root(self._root)
            ok, message = os.access(self._root, os.W_OK | os.X_OK), str(self._root)
        except ConfigError as exc:
            ok, message = False, str(exc)
        items.append(CheckItem(name="folder of jobs", ok=ok, message=message))
        return CheckReport(backend=self._name, items=tuple(items))

    def discover(self) -> Site:
        """Reads what this machine has: processors, memory, GPUs, and which of them jobs use."""
        if sys.platform != "linux":
            told = f"the local backend runs on Linux, this is {sys.platform}"
            return Site(backend=self._name, unseen=(told,))
        from gpufabric.backends._local_gpus import find_gpus

        seen = environment(trust_env=self._settings.trust_env)
        found = find_gpus(environ=seen)
        used = self._gpus_in_use(self._root) if found.gpus else frozenset[int]()
        place = Place(backend=self._name)
        pool = Pool(
            name="localhost",
            place=place,
            platform="local",
            nodes_total=1,
            cpus=float(len(os.sched_getaffinity(0))),
            memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
            interconnect=Interconnect(kind=FabricKind.LOOPBACK, place=place),
            gpus_free=(sum(1 for gpu in found.gpus if gpu.index not in used),),
        )
        facts = {
            "cwd": os.getcwd(),  # noqa: PTH109  # text
            "home": home(),
            "python": sys.executable,
            "disk_free_gib": self._disk_free_gib(),
            "nvlink": found.nvlink,
            "gpus": [
                {
                    "index": gpu.index, "uuid": gpu.uuid, "name": gpu.name,
                    "memory_mib": gpu.memory_mib, "free": gpu.index not in used,
                }
                for gpu in found.gpus
            ],
        }  # fmt: skip
        return Site(
            backend=self._name,
            pools=(pool,),
            unseen=found.unseen,
            facts=cast("FrozenDict[str, object]", freeze(facts)),
        )

    def _disk_free_gib(self) -> float | None:
        for path in (self._root, *self._root.parents):
            try:
                found = os.statvfs(path)
            except OSError:
                continue
            return found.f_bavail * found.f_frsize / 2**30
        return None

    def _gpus_in_use(self, root: Path) -> frozenset[int]:
        used: set[int] = set()
        for name in self._names(root):
            folder = JobFolder(root, name, backend=self._name)
            if folder.supervised():
                for own in cast("list[list[int]]", folder.spec().get("gpus", [])):
                    used.update(own)
        return frozenset(used)

    # thinking

    def offers(self, task: Task, site: Site) -> Resolution:
        """What of the task's alternatives this machine can keep."""
        return make_offers(task, site, self._name)

    def plan(self, task: Task, offer: Offer, site: Site, *, run: str = "") -> LaunchPlan:
        """Everything that `apply` will do."""
        return make_plan(
            task,
            offer,
            site,
            run=run,
            root=str(self._root),
            grace_s=self._settings.stop_grace_s,
            trust_env=self._settings.trust_env,
        )

    # writing

    def apply(self, plan: LaunchPlan) -> JobRef:
        """Starts the gang, or finds the job that this plan has made already."""
        gang = _step(plan, "gang")
        root = Path(_step(plan, "folder").name).parent
        ref = JobRef(backend=self._name, place=str(root), name=plan.name)
        secrets = secret_values(plan.task)
        make_root(root)
        folder = JobFolder(root, plan.name, backend=self._name)
        with folder.locked(_LOCK_TIMEOUT_S):
            if self._is_there(folder, ref):
                return ref
            with self._gpus_kept(gang, folder):
                self._start(plan, gang, folder, secrets)
        return ref

    def _is_there(self, folder: JobFolder, ref: JobRef) -> bool:
        """Whether the job exists; what a killed launch left of it is removed."""
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while folder.exists():
            state = (folder.state() or {}).get("state", "pending")
            if state != "pending":
                return True
            if not folder.supervised():
                break
            if time.monotonic() > until:
                raise TransientError(
                    f"{ref} is being started and does not come to an end",
                    backend=self._name, operation="launch",
                )  # fmt: skip
            time.sleep(0.01)
        folder.kill(str(ref))
        folder.remove()
        return False

    def _start(
        self, plan: LaunchPlan, gang: Step, folder: JobFolder, secrets: dict[str, str]
    ) -> None:
        spec = cast("dict[str, object]", thaw(gang.body))
        inherit = inherited(trust_env=self._settings.trust_env)
        try:
            start(
                folder,
                {**spec, "folder": str(folder.path)},
                {"secrets": secrets, "inherit": inherit},
                lambda new: self._fill(plan, new),
                timeout_s=plan.gang_timeout_s,
            )
        except OSError as exc:
            told = f"{exc.strerror}: {exc.filename or folder.path}"
            raise BackendError(
                f"no node was left running: {told}", backend=self._name, operation="launch"
            ) from exc

    @contextlib.contextmanager
    def _gpus_kept(self, gang: Step, folder: JobFolder) -> Generator[None]:
        """Makes sure that the gang's GPUs are free, and stay so until it has started."""
        own = cast("tuple[tuple[int, ...], ...]", gang.body["gpus"])
        if not own:
            yield
            return
        with folder.no_other_start(_LOCK_TIMEOUT_S):
            wanted = {index for node in own for index in node}
            taken = sorted(wanted & self._gpus_in_use(folder.root))
            if taken:
                raise CapacityError(
                    f"GPUs {', '.join(map(str, taken))} are used by other local jobs now",
                    backend=self._name,
                    operation="launch",
                    wanted=len(wanted),
                    got=len(wanted) - len(taken),
                )
            yield

    def _fill(self, plan: LaunchPlan, new: Path) -> dict[str, object]:
        """Puts the packed work folder, the function and scripts into the folder of a new job."""
        added: dict[str, object] = {"packed": False, "events": []}
        if isinstance(plan.task.run, PythonCall):
            (new / "function.pickle").write_bytes(plan.task.run.payload)
        for step in plan.steps:
            if step.kind == "script":
                text = cast("str", step.body["text"])
                (new / Path(step.name).name).write_bytes(text.encode("utf-8", "surrogateescape"))
            if step.kind == "workdir":
                from gpufabric._workdir import pack

                limit = self._settings.workdir_limit_mb * 1e6
                with (new / "workdir.tar").open("wb") as file:
                    packed = pack(step.name, file, limit_bytes=limit, leave_out=new.parent)
                added["packed"] = True
                added["workdir_sha256"] = packed.sha256
                added["events"] = list(packed.skipped)
        return added

    # jobs

    def _folder(self, ref: JobRef) -> JobFolder:
        folder = JobFolder(Path(ref.place), ref.name, backend=self._name)
        if not folder.valid:
            raise NotFoundError(
                f"{ref} is no local job: write {self._name}:///folder/of/jobs/name",
                backend=self._name,
                operation="attach",
            )
        return folder

    def status(self, ref: JobRef) -> JobStatus:
        """The job as it is now, read from its folder."""
        folder = self._folder(ref)
        supervised = folder.supervised()  # before the state: what ended meanwhile has written it
        if not folder.exists():
            return JobStatus(ref=ref, state=JobState.GONE)
        return read_status(ref, folder, supervised=supervised)

    def logs(
        self,
        ref: JobRef,
        *,
        node_rank: int | None = None,
        follow: bool = False,
        since: float | None = None,
    ) -> Iterator[LogLine]:
        """The lines of every node, or of one. `since` leaves out what was written earlier."""
        from gpufabric.backends._local_logs import read_lines

        folder = self._folder(ref)
        if not folder.exists():
            raise NotFoundError(
                f"{ref} is gone: torn down, or it never was", backend=self._name, operation="logs"
            )
        num_nodes = _known_rank(folder, node_rank)
        ranks = list(range(num_nodes)) if node_rank is None else [node_rank]
        return read_lines(
            folder.path, ranks, since=since, follow=follow, ended=lambda: has_ended(folder)
        )

    def exec(
        self, ref: JobRef, command: Sequence[str], *, node_rank: int = 0, stdin: bool = False
    ) -> LocalCommand:
        """Starts a command beside a node. See `Live`."""
        folder, process = self._running(ref, node_rank)
        return LocalCommand(folder, process, command, stdin=stdin)

    def connect(self, ref: JobRef, port: int, *, node_rank: int = 0) -> LocalConnection:
        """Opens a connection to a port of this machine. See `Live`."""
        self._running(ref, node_rank)
        return LocalConnection(self._name, port)

    def _running(self, ref: JobRef, node_rank: int) -> tuple[JobFolder, int]:
        folder = self._folder(ref)
        if not folder.exists():
            raise NotFoundError(
                f"{ref} is gone: torn down, or it never was", backend=self._name, operation="exec"
            )
        _known_rank(folder, node_rank)
        return folder, node_process(folder, node_rank, str(ref))

    def cancel(self, ref: JobRef) -> None:
        """Stops the processes, and gives when they are gone. What they wrote stays."""
        folder = self._folder(ref)
        if not folder.exists():
            raise NotFoundError(f"{ref} is gone", backend=self._name, operation="cancel")
        self._stop(folder, ref)

    def _stop(self, folder: JobFolder, ref: JobRef) -> None:
        grace = cast("float", folder.spec().get("stop_grace_s", self._settings.stop_grace_s))
        if folder.supervised():
            folder.ask_to_stop()
            folder.wait_unsupervised(grace + _STOP_SLACK_S)
        left = folder.kill(str(ref))  # what did not stop, and commands of `exec`
        if left or not folder.wait_unsupervised(_STOP_SLACK_S):
            raise BackendError(
                f"processes of {ref} could not be killed: {left}",
                backend=self._name,
                operation="cancel",
                leftovers=[f"process {pid}" for pid in left],
            )

    def teardown(self, ref: JobRef) -> None:
        """Stops the processes and removes the job's folder. Of what is gone it succeeds."""
        folder = self._folder(ref)
        if not folder.root.is_dir():
            folder.kill(str(ref))  # someone removed the folder of jobs, but perhaps no process
            return
        with folder.locked(_LOCK_TIMEOUT_S):
            if folder.exists():
                self._stop(folder, ref)
            else:
                folder.kill(str(ref))  # someone removed the folder, but perhaps no process
            left = folder.remove()
            if left:
                raise BackendError(
                    f"could not remove {', '.join(left)}",
                    backend=self._name,
                    operation="teardown",
                    leftovers=left,
                )

    def jobs(self) -> Iterable[JobRef]:
        """Every job in the folder of jobs, by name."""
        return tuple(
            JobRef(backend=self._name, place=str(self._root), name=name)
            for name in self._names(self._root)
        )

    def _names(self, root: Path) -> list[str]:
        try:
            names = sorted(os.listdir(root))  # noqa: PTH208  # names are all that is needed
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as exc:
            raise CredentialsError(
                f"{root} is another user's; set local_root to a folder of yours",
                backend=self._name,
                operation="jobs",
            ) from exc
        return [
            name
            for name in names
            if os.access(root / name, os.R_OK) and JobFolder(root, name).exists()
        ]

    def close(self) -> None:
        """Nothing is held open between calls."""


def _known_rank(folder: JobFolder, node_rank: int | None) -> int:
    num_nodes = cast("int", folder.spec()["num_nodes"])
    if node_rank is not None:
        check_rank(node_rank, num_nodes)
    return num_nodes


def _writable(root: str) -> bool:
    try:
        root.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    return "\n" not in root


def _step(plan: LaunchPlan, kind: str) -> Step:
    for step in plan.steps:
        if step.kind == kind:
            return step
    raise SpecError(f"this is no plan of the local backend: it has no {kind}")
