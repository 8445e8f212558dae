"""Another process that uses the same place: for tests of what several processes do at once."""

import atexit
import contextlib
import functools
import importlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import FrameType
from typing import cast

from attrs import evolve

from gpufabric._frozen import frozen
from gpufabric.backends.base import Backend

__all__ = ["OtherProcess", "Outcome", "seeded_moments", "serve", "shared_interpreter"]

_SERVE = "import sys; from gpufabric.testing._other import serve; serve(int(sys.argv[1]))"


@frozen(kw_only=True)
class Outcome:
    """How a call in another process ended: an answer, an error, or killed (neither).

    `moments` counts the function calls and returns that Python made on the way; `loaded` are the
    modules that were imported then.
    """

    answer: object = None
    error: BaseException | None = None
    killed: bool = False
    moments: int = 0
    loaded: tuple[str, ...] = ()

    def get(self) -> object:
        """The answer; raises the error."""
        if self.error is not None:
            raise self.error
        if self.killed:
            raise RuntimeError("the process was killed")
        return self.answer


@frozen(kw_only=True)
class _Order:
    factory: Callable[[], Backend]
    operation: str
    arguments: tuple[object, ...]
    copies: int = 1
    kill_at: int | None = None


class Interpreter:
    """A fresh interpreter. Every call runs in a child of it, so that it can be killed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        self._pipe = Connection(ours.detach())

    def close(self) -> None:
        """Ends it."""
        self._pipe.close()
        self._process.wait()

    def ask(self, order: _Order) -> list[Outcome]:
        """Has the order carried out there."""
        self._pipe.send(order)
        return cast("list[Outcome]", self._pipe.recv())


@functools.cache
def shared_interpreter() -> Interpreter:
    """One for all tests: nothing that a call does stays in it."""
    made = Interpreter()
    atexit.register(made.close)
    return made


class OtherProcess:
    """Calls the backend that `factory` makes, in other processes than this one."""

    def __init__(self, factory: Callable[[], Backend], interpreter: Interpreter) -> None:
        self._factory, self._interpreter = factory, interpreter

    def call(self, operation: str, *arguments: object) -> object:
        """Calls the backend there; gives the answer, or raises what it raised."""
        return self._ask(operation, arguments)[0].get()

    def at_once(self, operation: str, *arguments: object, copies: int = 2) -> list[Outcome]:
        """Makes one call from several processes at the same time."""
        return self._ask(operation, arguments, copies=copies)

    def killed(self, operation: str, *arguments: object, at: int) -> Outcome:
        """Makes a call and sends SIGKILL to its process at its `at`-th moment."""
        return self._ask(operation, arguments, kill_at=at)[0]

    def moments(self, operation: str, *arguments: object) -> Outcome:
        """Makes a call and counts its moments."""
        return self.killed(operation, *arguments, at=sys.maxsize)

    def _ask(
        self,
        operation: str,
        arguments: tuple[object, ...],
        *,
        copies: int = 1,
        kill_at: int | None = None,
    ) -> list[Outcome]:
        return self._interpreter.ask(
            _Order(
                factory=self._factory,
                operation=operation,
                arguments=arguments,
                copies=copies,
                kill_at=kill_at,
            )
        )


def seeded_moments(total: int, count: int, *, seed: int) -> list[int]:
    """Gives `count` moments from 1 to `total`: one in each of as many equal parts."""
    dice = random.Random(seed)  # noqa: S311  # tests that repeat, not secrets
    edges = [1 + total * i // count for i in range(count + 1)]
    return [dice.randint(low, max(low, high - 1)) for low, high in itertools.pairwise(edges)]


def serve(handle: int) -> None:
    """Answers orders that come over a socket until its other end is closed.

    What a child imported the next ones find imported: else that would be most of their moments.
    """
    pipe = Connection(handle)
    while True:
        try:
            order = cast("_Order", pipe.recv())
        except EOFError:
            return
        outcomes = list(_outcomes(order))
        pipe.send(outcomes)
        for name in {name for outcome in outcomes for name in outcome.loaded}:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _outcomes(order: _Order) -> Iterator[Outcome]:
    gate_out, gate_in = os.pipe()
    children: list[tuple[int, Connection]] = []
    for _ in range(order.copies):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.close(gate_in)
            _child(order, gate_out, Connection(theirs.detach()))
        theirs.close()
        children.append((pid, Connection(ours.detach())))
    os.close(gate_out)
    os.close(gate_in)  # every child sees the end of the gate at once
    for pid, pipe in children:
        with pipe:
            try:
                yield cast("Outcome", pipe.recv())
            except EOFError:
                yield Outcome(killed=True)
        os.waitpid(pid, 0)


def _child(order: _Order, gate: int, pipe: Connection) -> None:
    """One call in a process of its own; never returns."""
    before = set(sys.modules)
    try:
        backend = order.factory()
        os.read(gate, 1)
        moments = _Moments(order.kill_at)
        try:
            with moments:
                answer = cast("object", getattr(backend, order.operation)(*order.arguments))
                if isinstance(answer, Iterator):
                    answer = list(cast("Iterator[object]", answer))
        except Exception as exc:  # noqa: BLE001  # it is sent to whom asked
            outcome = Outcome(error=exc, moments=moments.count)
        else:
            outcome = Outcome(answer=answer, moments=moments.count)
        pipe.send(evolve(outcome, loaded=tuple(sys.modules.keys() - before)))
        backend.close()
    finally:
        os._exit(0)


class _Moments:
    """Counts the calls and returns of Python and C functions; SIGKILL at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.count = 0

    def _tick(self, frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG002  # the interpreter's signature
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def __enter__(self) -> None:
        if self.kill_at is not None:
            sys.setprofile(self._tick)

    def __exit__(self, *_: object) -> None:
        if self.kill_at is not None:
            sys.setprofile(None)
