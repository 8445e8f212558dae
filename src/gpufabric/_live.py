"""What a person does in a node that runs, over any backend's `Live`."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import BinaryIO, cast

from gpufabric._pause import pause, stoppable
from gpufabric.backends._streams import communicate
from gpufabric.backends.base import Backend, Live, check_rank
from gpufabric.errors import (
    BackendError,
    JobTimeoutError,
    NotFoundError,
    Problem,
    Remedy,
    SpecError,
    TransientError,
    shown,
)
from gpufabric.job import ExecResult, JobRef, JobState, JobStatus

__all__ = ["exec_on", "exec_on_all", "live_of", "require_running", "words_of"]

_AT_ONCE = 16
_LOOK_S = 0.02

Input = bytes | str | BinaryIO | Iterator[bytes] | None


def live_of(backend: Backend, operation: str) -> Live:
    """The backend, where running nodes can be entered. Raises `BackendError` that names it."""
    if isinstance(backend, Live):
        return backend
    raise BackendError(
        "this backend cannot enter nodes that run; what the job prints is in logs(), and"
        " Capability.EXEC is on the backends that can (Kubernetes, Local)",
        backend=backend.name, operation=operation, remedy=Remedy.FIX_REQUEST,
    )  # fmt: skip


def require_running(status: JobStatus, node_rank: int, operation: str) -> None:
    """Raises what `Live` raises where a node does not run; without a request of its own."""
    if status.state is JobState.GONE:
        raise NotFoundError(
            f"{status.ref} is gone: torn down, or it never was",
            backend=status.ref.backend, operation=operation,
        )  # fmt: skip
    check_rank(node_rank, len(status.nodes))
    node = status.nodes[node_rank]
    told = f"{node.state.value}{f': {node.reason}' if node.reason else ''}"
    if node.state.ended:
        raise NotFoundError(
            f"node {node_rank} of {status.ref} runs no more: {told}",
            backend=status.ref.backend, operation=operation,
        )  # fmt: skip
    if node.state is not JobState.RUNNING:
        raise TransientError(
            f"node {node_rank} of {status.ref} has not started: {told}",
            backend=status.ref.backend, operation=operation,
        )  # fmt: skip


def words_of(command: Sequence[str] | str) -> list[str]:
    """A command as an argument list; text is for a shell. Raises `SpecError`."""
    given = cast("object", command)
    words = ["/bin/sh", "-c", given] if isinstance(given, str) else list(command)
    if not words or not all(isinstance(word, str) for word in cast("list[object]", words)):
        told = f"{shown(command)} is neither shell text nor a list of words"
        raise SpecError([Problem(path="command", message=told)])
    if any("\0" in word for word in words):
        raise SpecError([Problem(path="command", message="a word has a NUL byte")])
    return words


def exec_on(  # noqa: PLR0913  # one command on one node
    live: Live,
    ref: JobRef,
    command: Sequence[str] | str,
    *,
    node_rank: int,
    stdin: Input = None,
    timeout_s: float | None = None,
) -> ExecResult:
    """Runs a command on one node to its end. Raises `JobTimeoutError` after `timeout_s`."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    words = words_of(command)
    running = live.exec(ref, words, node_rank=node_rank, stdin=data is not None)
    try:
        code, out, err = communicate(running, data or b"", timeout_s=timeout_s)
    except TimeoutError as exc:
        raise JobTimeoutError(
            f"{shown(command)} on node {node_rank} of {ref} did not end within {timeout_s:g} s, and"
            " was ended; the job goes on",
            ref=ref,
        ) from exc
    finally:
        running.close()
    return ExecResult(exit_code=code, stdout=out, stderr=err, node_rank=node_rank)


def exec_on_all(ranks: Sequence[int], call: Callable[[int], ExecResult]) -> tuple[ExecResult, ...]:
    """The same command on every node, sixteen at once; the first error is raised."""
    stop = threading.Event()

    def one(rank: int) -> ExecResult:
        with stoppable(stop):
            return call(rank)

    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(ranks)))) as pool:
        calls = [pool.submit(one, rank) for rank in ranks]
        try:
            waiting = set(calls)
            while waiting:
                done, waiting = wait(waiting, timeout=0)
                for one_done in done:
                    one_done.result()  # raises its error
                pause(_LOOK_S if waiting else 0)
            return tuple(made.result() for made in calls)
        finally:
            stop.set()  # whoever still runs is ended
            for made in calls:
                made.cancel()
