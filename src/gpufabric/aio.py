"""AsyncFabric: the calls of `Fabric`, awaited. They run in its own thread pool."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, BinaryIO, ParamSpec, Self, TypeVar, cast, overload

from gpufabric._pause import WaitingEnded, pause, stoppable
from gpufabric.backends.base import Backend, CheckReport, Site
from gpufabric.config import Settings
from gpufabric.fabric import Event, Fabric
from gpufabric.handle import JobHandle
from gpufabric.job import ExecResult, JobRef, JobStatus, LogLine
from gpufabric.plan import Attempt, LaunchPlan, LaunchPolicy, Offer, Rejection, Resolution
from gpufabric.task import Task

if TYPE_CHECKING:
    from gpufabric._forward import PortForward
    from gpufabric._jupyter import Jupyter
    from gpufabric.bench import BenchReport
    from gpufabric.net.proof import NetworkProof

__all__ = ["AsyncFabric", "AsyncJobHandle"]

P = ParamSpec("P")
T = TypeVar("T")
_LINES_AHEAD = 1000
_NO_ROOM_S = 0.01
_END_WAITING_S = 5.0


class _Pool:
    """Runs blocking calls in threads that end with their owner.

    Short calls share workers. A call that waits for a job has a thread of its own, so that many
    waiting ones hold up nothing, and ends when nobody awaits it any more.
    """

    def __init__(self, workers: int) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="gpufabric-aio")
        self._waiting: dict[threading.Thread, threading.Event] = {}

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self.submit(call, *args, **kwargs))

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        return self._executor.submit(call, *args, **kwargs)

    async def run_or_undo(
        self, call: Callable[[], T], undo: Callable[[T], None], *, waits: bool = False
    ) -> T:
        """Runs a call; what it makes after the await was cancelled is undone."""
        future, stop = self._begun(call) if waits else (self.submit(call), threading.Event())
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if waits or not future.cancel():  # it has begun
                future.add_done_callback(partial(_undo_unseen, undo))
            raise
        finally:
            stop.set()

    async def wait_for(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a call that waits for a job; cancelling the await ends it."""
        future, stop = self._begun(partial(call, *args, **kwargs))
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        finally:
            stop.set()

    def _begun(self, call: Callable[[], T]) -> "tuple[Future[T], threading.Event]":
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except WaitingEnded:
                future.cancel()
            except BaseException as exc:  # noqa: BLE001  # whoever awaits it is told
                future.set_exception(exc)

        return future, self.start(work)

    def start(self, work: Callable[[], None]) -> threading.Event:
        """Starts a thread for `work`; the event that it gives ends the thread's waiting."""
        stop = threading.Event()

        def run() -> None:
            try:
                with stoppable(stop):
                    work()
            finally:
                self._waiting.pop(threading.current_thread(), None)

        thread = threading.Thread(target=run, name="gpufabric-aio-wait", daemon=True)
        self._waiting[thread] = stop
        thread.start()
        return stop

    def close(self) -> None:
        waiting = dict(self._waiting)
        for stop in waiting.values():
            stop.set()
        for thread in waiting:
            thread.join(_END_WAITING_S)
        self._executor.shutdown(wait=True, cancel_futures=True)


class _Lines:
    """Lines that a thread reads ahead, `_LINES_AHEAD` at most, for one asynchronous reader."""

    def __init__(self, lines: Iterator[LogLine], pool: _Pool) -> None:
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[LogLine | _End] = asyncio.Queue()
        self._room = threading.Semaphore(_LINES_AHEAD)
        self._stop = pool.start(self._read)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for line in self._lines:
                while not self._room.acquire(blocking=False):
                    pause(_NO_ROOM_S)
                pause(0)  # ends here when nobody reads any more
                self._put(line)
        except WaitingEnded:
            pass
        except BaseException as exc:  # noqa: BLE001  # the reader is told
            error = exc
        finally:
            close: Callable[[], None] | None = getattr(self._lines, "close", None)
            if close is not None:
                close()
            self._put(_End(error))

    def _put(self, item: "LogLine | _End") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def read(self) -> AsyncGenerator[LogLine]:
        try:
            while not isinstance(item := await self._queue.get(), _End):
                self._room.release()
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self._stop.set()


class _End:
    """The end of the lines, and the error that ended them."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class AsyncJobHandle:
    """A `JobHandle` whose calls are awaited; `async with` tears the job down."""

    def __init__(self, job: JobHandle, pool: _Pool) -> None:
        """Made by `AsyncFabric`."""
        self._job = job
        self._pool = pool

    @property
    def ref(self) -> JobRef:
        """The job's name everywhere."""
        return self._job.ref

    @property
    def plan(self) -> LaunchPlan | None:
        """What was launched; None on a handle that was attached."""
        return self._job.plan

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every offer that was tried, the one that took last."""
        return self._job.attempts

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """What could not be tried, with the reason: a place that did not answer is one of these."""
        return self._job.rejections

    @property
    def policy(self) -> LaunchPolicy:
        """How it was launched; the default on a handle that was attached."""
        return self._job.policy

    @property
    def backend(self) -> Backend:
        """The backend that runs it."""
        return self._job.backend

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.teardown()

    async def status(self) -> JobStatus:
        """See `JobHandle.status`."""
        return await self._pool.run(self._job.status)

    async def wait(self, *, timeout: float | None = None) -> JobStatus:  # noqa: ASYNC109  # as sync
        """See `JobHandle.wait`."""
        return await self._pool.wait_for(self._job.wait, timeout=timeout)

    async def logs(
        self, *, node_rank: int | None = None, follow: bool = False, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        """See `JobHandle.logs`."""
        lines = await self._pool.run(
            self._job.logs, node_rank=node_rank, follow=follow, since=since
        )
        async with contextlib.aclosing(_Lines(lines, self._pool).read()) as ahead:
            async for line in ahead:
                yield line

    async def cancel(self) -> None:
        """See `JobHandle.cancel`."""
        await self._pool.run(self._job.cancel)

    async def teardown(self) -> None:
        """See `JobHandle.teardown`."""
        await self._pool.run(self._job.teardown)

    @overload
    async def exec(
        self, command: Sequence[str] | str, *, node_rank: int = 0,
        stdin: bytes | str | BinaryIO | None = None, timeout_s: float | None = None,
    ) -> ExecResult: ...  # fmt: skip
    @overload
    async def exec(
        self, command: Sequence[str] | str, *, node_rank: None,
        stdin: bytes | str | None = None, timeout_s: float | None = None,
    ) -> tuple[ExecResult, ...]: ...  # fmt: skip
    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        node_rank: int | None = 0,
        stdin: bytes | str | BinaryIO | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult | tuple[ExecResult, ...]:
        """See `JobHandle.exec`. Cancelling the await ends the command."""
        call = cast("Callable[..., ExecResult | tuple[ExecResult, ...]]", self._job.exec)
        return await self._pool.wait_for(
            call, command, node_rank=node_rank, stdin=stdin, timeout_s=timeout_s
        )

    @contextlib.asynccontextmanager
    async def port_forward(
        self, port: int, *, node_rank: int = 0, local_port: int = 0
    ) -> "AsyncGenerator[PortForward]":
        """See `JobHandle.port_forward`: `async with job.port_forward(8888) as at:`."""
        made = await self._pool.run_or_undo(
            lambda: self._job.port_forward(port, node_rank=node_rank, local_port=local_port),
            lambda unseen: unseen.close(),
        )
        try:
            yield made
        finally:
            await self._pool.run(made.close)

    async def cp(self, source: str | PathLike[str], target: str | PathLike[str]) -> None:
        """See `JobHandle.cp`. Cancelling the await ends it."""
        await self._pool.wait_for(self._job.cp, source, target)

    @contextlib.asynccontextmanager
    async def jupyter(
        self, *, node_rank: int = 0, local_port: int = 0, python: str = "python3",
        timeout_s: float = 60.0,
    ) -> "AsyncGenerator[Jupyter]":  # fmt: skip
        """See `JobHandle.jupyter`: `async with job.jupyter() as server:`."""
        made = await self._pool.run_or_undo(
            lambda: self._job.jupyter(
                node_rank=node_rank, local_port=local_port, python=python, timeout_s=timeout_s
            ),
            lambda unseen: unseen.close(),
            waits=True,
        )
        try:
            yield made
        finally:
            await self._pool.run(made.close)

    async def ssh_config(self, *, public_key: str | PathLike[str] | None = None) -> str:
        """See `JobHandle.ssh_config`."""
        return await self._pool.run(self._job.ssh_config, public_key=public_key)

    async def network(self, *, offer: Offer | None = None) -> "NetworkProof":
        """See `JobHandle.network`."""
        return await self._pool.run(self._job.network, offer=offer)

    async def bench(self, *, timeout: float | None = None) -> "BenchReport":  # noqa: ASYNC109  # as sync
        """See `JobHandle.bench`."""
        return await self._pool.wait_for(self._job.bench, timeout=timeout)


def _undo_unseen(undo: Callable[[T], None], future: "Future[T]") -> None:
    if not future.cancelled() and future.exception() is None:
        undo(future.result())


class AsyncFabric:
    """The calls of `Fabric`, awaited. `async with` closes it."""

    def __init__(
        self,
        *backends: Backend,
        settings: Settings | None = None,
        on_event: Callable[[Event], None] | None = None,
        workers: int = 16,
    ) -> None:
        """Composes backends; `workers` is how many calls may be under way at once.

        Those that wait for a job (`wait`, `bench`, `logs`) do not count.
        """
        self._fabric = Fabric(*backends, settings=settings, on_event=on_event)
        self._pool = _Pool(workers)

    @classmethod
    def of(cls, fabric: Fabric, *, workers: int = 16) -> Self:
        """Wraps a `Fabric`, such as `Fabric.assumed()`."""
        made = cls(settings=fabric.settings, workers=workers)
        made._fabric = fabric  # a constructor of this very class
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes connections and threads. Jobs go on."""
        await asyncio.to_thread(self._pool.close)
        await asyncio.to_thread(self._fabric.close)

    async def check(self) -> tuple[CheckReport, ...]:
        """See `Fabric.check`."""
        return await self._pool.run(self._fabric.check)

    async def sites(self) -> dict[str, Site]:
        """See `Fabric.sites`."""
        return await self._pool.run(self._fabric.sites)

    async def offers(self, task: Task, *, policy: LaunchPolicy | None = None) -> Resolution:
        """See `Fabric.offers`."""
        return await self._pool.run(self._fabric.offers, task, policy=policy)

    async def plan(
        self, task: Task, *, policy: LaunchPolicy | None = None, run: str = ""
    ) -> LaunchPlan:
        """See `Fabric.plan`."""
        return await self._pool.run(self._fabric.plan, task, policy=policy, run=run)

    async def launch(
        self,
        task: Task | LaunchPlan,
        *,
        policy: LaunchPolicy | None = None,
        run: str | None = None,
    ) -> AsyncJobHandle:
        """See `Fabric.launch`.

        If the await is cancelled, what the launch makes is torn down as soon as it is made; one
        that has not begun never does.
        """
        job = await self._pool.run_or_undo(
            lambda: self._fabric.launch(task, policy=policy, run=run),
            lambda unseen: unseen.teardown(),
        )
        return AsyncJobHandle(job, self._pool)

    async def attach(self, ref: JobRef | str) -> AsyncJobHandle:
        """See `Fabric.attach`."""
        return AsyncJobHandle(self._fabric.attach(ref), self._pool)

    async def jobs(self) -> Sequence[JobRef]:
        """See `Fabric.jobs`."""
        return await self._pool.run(self._fabric.jobs)
