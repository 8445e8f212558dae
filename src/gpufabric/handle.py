"""JobHandle: a job that runs somewhere, found by its ref, from any process."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from os import PathLike, fspath
from typing import TYPE_CHECKING, BinaryIO, Self, overload

from gpufabric._live import exec_on, exec_on_all, live_of, require_running
from gpufabric._pause import pause
from gpufabric.backends.base import Backend
from gpufabric.config import Settings
from gpufabric.errors import JobFailedError, JobTimeoutError, ParseError, Problem, SpecError
from gpufabric.job import ExecResult, JobRef, JobState, JobStatus, LogLine
from gpufabric.plan import Attempt, LaunchPlan, LaunchPolicy, Offer, Rejection

if TYPE_CHECKING:
    from gpufabric._forward import PortForward
    from gpufabric._jupyter import Jupyter
    from gpufabric.bench import BenchReport
    from gpufabric.net.proof import NetworkProof

__all__ = ["JobHandle"]


_PROOF_LINES = 50_000


class ProofWatch:
    """Looks at a job's lines, less and less often, until they prove or refute its network."""

    def __init__(self, offer: Offer) -> None:
        """Watches for what `offer` promised."""
        self.offer = offer
        self._lines: list[str] = []
        self._next_count = 64
        self._next_time = time.monotonic() + 1.0
        self._pause_s = 1.0
        self._settled = False

    def due(self) -> bool:
        """Whether it is time for another look at the whole log."""
        return not self._settled and time.monotonic() >= self._next_time

    def judge(self, lines: Iterable[LogLine]) -> "NetworkProof":
        """Judges the log so far; the next look is twice as far off, a minute at most."""
        self._pause_s = min(self._pause_s * 2, 60.0)
        self._next_time = time.monotonic() + self._pause_s
        own = (line.text for line in lines if line.stream != "event")
        return self._prove(islice(own, _PROOF_LINES))

    def add(self, text: str) -> "NetworkProof | None":
        """Takes one line; judges all so far whenever they have doubled."""
        if self._settled:
            return None
        self._lines.append(text)
        if len(self._lines) < self._next_count:
            return None
        self._next_count *= 2
        proof = self._prove(self._lines)
        if proof.state == "refuted" or len(self._lines) >= _PROOF_LINES:
            self._settled = True
            self._lines.clear()
        return proof

    def _prove(self, texts: Iterable[str]) -> "NetworkProof":
        from gpufabric.net.proof import prove
        from gpufabric.net.reading import read

        proof = prove(read(texts), self.offer)
        self._settled = proof.state == "refuted"  # what was proven early may be lost later
        return proof


class JobHandle:
    """A job that runs somewhere. As a context manager it tears the job down at the end.

    A plain handle may be dropped: the job goes on, and `Fabric.attach(ref)` finds it again.
    """

    def __init__(  # noqa: PLR0913  # made by Fabric alone
        self,
        ref: JobRef,
        backend: Backend,
        *,
        settings: Settings,
        plan: LaunchPlan | None = None,
        attempts: Sequence[Attempt] = (),
        rejections: Sequence[Rejection] = (),
        policy: LaunchPolicy | None = None,
    ) -> None:
        """Made by `Fabric.launch` and `Fabric.attach`."""
        self.ref = ref
        #: What was launched; None on a handle that was attached.
        self.plan = plan
        #: Every offer that was tried, the one that took last.
        self.attempts = tuple(attempts)
        #: What could not be tried, with the reason: a place that did not answer is one of these.
        self.rejections = tuple(rejections)
        self.policy = policy or LaunchPolicy()
        self._backend = backend
        self._settings = settings

    @property
    def backend(self) -> Backend:
        """The backend that runs it."""
        return self._backend

    def __repr__(self) -> str:
        return f"JobHandle({str(self.ref)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.teardown()

    def status(self) -> JobStatus:
        """Asks the place for the job's state; `GONE` when it has none such."""
        return self._backend.status(self.ref)

    def wait(self, *, timeout: float | None = None) -> JobStatus:
        """Waits until the job has ended and gives its last state.

        Raises `JobTimeoutError` after `timeout` seconds; the job goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        rest = 0.01
        watch = self._proof_watch()
        while True:
            status = self.status()
            if status.state.ended:
                return status
            if watch is not None and watch.due():
                self._end_if_refuted(watch, watch.judge(self.logs()))
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise JobTimeoutError(
                    f"{self.ref} is {status.state.value} after {timeout:g} s of waiting; it goes on"
                    " (cancel() stops it)",
                    ref=self.ref,
                )
            pause(rest if left is None else min(rest, left))
            rest = min(rest * 1.5, self._settings.poll_s)

    def logs(
        self, *, node_rank: int | None = None, follow: bool = False, since: float | None = None
    ) -> Iterator[LogLine]:
        """Gives the lines of all nodes, or of one; `follow` goes on until the job ends.

        `since` leaves out what was written before, in seconds since 1970.
        """
        lines = self._backend.logs(self.ref, node_rank=node_rank, follow=follow, since=since)
        watch = self._proof_watch() if follow else None
        return lines if watch is None else self._watched(lines, watch)

    def cancel(self) -> None:
        """Stops the processes; logs and state stay until `teardown`."""
        self._backend.cancel(self.ref)

    def teardown(self) -> None:
        """Removes everything that the launch made. Of what is gone it succeeds."""
        self._backend.teardown(self.ref)

    @overload
    def exec(
        self, command: Sequence[str] | str, *, node_rank: int = 0,
        stdin: bytes | str | BinaryIO | None = None, timeout_s: float | None = None,
    ) -> ExecResult: ...  # fmt: skip
    @overload
    def exec(
        self, command: Sequence[str] | str, *, node_rank: None,
        stdin: bytes | str | None = None, timeout_s: float | None = None,
    ) -> tuple[ExecResult, ...]: ...  # fmt: skip
    def exec(
        self,
        command: Sequence[str] | str,
        *,
        node_rank: int | None = 0,
        stdin: bytes | str | BinaryIO | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult | tuple[ExecResult, ...]:
        """Runs a command on a node that runs, or on all of them at once with `node_rank=None`.

        It has the environment and the folder of the job's own command. Text is for a shell. The
        exit code is in the result, whatever it is.

        Raises `JobTimeoutError` after `timeout_s` (the command is ended, the job goes on),
        `NotFoundError` where the node has ended, `TransientError` where it has not started.
        """
        live = live_of(self._backend, "exec")

        def call(rank: int) -> ExecResult:
            return exec_on(
                live, self.ref, command, node_rank=rank, stdin=stdin, timeout_s=timeout_s
            )

        if node_rank is not None:
            return call(node_rank)
        return exec_on_all([node.node_rank for node in self.status().nodes], call)

    def port_forward(self, port: int, *, node_rank: int = 0, local_port: int = 0) -> "PortForward":
        """Makes a port of a node a port of this machine: `with job.port_forward(8888) as at:`.

        Connections to `127.0.0.1`, port `at.port`, reach it, any number at once, until the block
        ends.
        """
        from gpufabric._forward import PortForward

        live = live_of(self._backend, "port_forward")
        if not 0 < port < 1 << 16:
            told = f"{port} is no port: 1 to 65535"
            raise SpecError([Problem(path="port", message=told)])
        require_running(self.status(), node_rank, "port_forward")
        return PortForward(
            lambda: live.connect(self.ref, port, node_rank=node_rank),
            node_rank=node_rank, node_port=port, local_port=local_port,
        )  # fmt: skip

    def cp(self, source: str | PathLike[str], target: str | PathLike[str]) -> None:
        """Copies a file or folder to a node or from one: `job.cp("data", "0:/data")`.

        `RANK:PATH` is on a node, `*:PATH` on every node; relative paths there begin in the job's
        work folder. As with `cp -r`: into `target` where that is a folder, else under its name;
        `source/.` is what is in a folder. Symlinks stay symlinks; nothing that comes from a node
        is written outside of `target`.

        Raises `SpecError` for a path that is wrong or refused, `BackendError` with the node's own
        words, also where the image has neither tar nor python3.
        """
        from gpufabric._copy import copy

        live = live_of(self._backend, "cp")
        copy(
            live, self.ref, fspath(source), fspath(target),
            ranks=lambda: [node.node_rank for node in self.status().nodes],
        )  # fmt: skip

    def jupyter(
        self, *, node_rank: int = 0, local_port: int = 0, python: str = "python3",
        timeout_s: float = 60.0,
    ) -> "Jupyter":  # fmt: skip
        """Starts Jupyter in a node and makes it reachable from here alone.

        `with job.jupyter() as server:` gives `server.url`, whose token is made for it and stands
        nowhere else; the block's end stops the server and its kernels. `python` is the node's
        program that has `jupyter_server`; JupyterLab is served where it is installed too.

        Raises `BackendError` where the image has none, with what the node said.
        """
        from gpufabric._jupyter import start_jupyter

        live = live_of(self._backend, "jupyter")
        return start_jupyter(
            live, self.ref, node_rank=node_rank, local_port=local_port, python=python,
            timeout_s=timeout_s,
        )  # fmt: skip

    def ssh_config(self, *, public_key: str | PathLike[str] | None = None) -> str:
        """A configuration for OpenSSH with a host `NAME-RANK` for every node.

        `ssh -F FILE NAME-0`, scp, rsync, an editor: all go through `exec`, to an sshd that each
        connection starts for itself with the job's environment and folder. Nothing listens.
        `public_key` is a key's text or file, by default the first of your own in ~/.ssh.

        Raises `BackendError` where the image has no openssh-server, `SpecError` for a wrong key.
        """
        from gpufabric._ssh import config_text, read_key, remote_user

        live = live_of(self._backend, "ssh")
        key, key_file = read_key(public_key)
        return config_text(
            self.ref,
            ranks=[node.node_rank for node in self.status().nodes],
            user=remote_user(live, self.ref, 0),
            key=key,
            key_file=key_file,
            env=getattr(self._backend, "attach_env", {}),
        )

    def network(self, *, offer: Offer | None = None) -> "NetworkProof":
        """Reads the job's own log: which transport, NICs and GPUDirect state NCCL chose.

        The answer is `proven`, `refuted` or `unknown`, with evidence, against the offer that was
        launched; a handle that was attached needs it as `offer`. Raises `SpecError` without one.
        """
        from gpufabric.net.proof import prove
        from gpufabric.net.reading import read

        promised = offer or (self.plan.offer if self.plan is not None else None)
        if promised is None:
            raise SpecError(
                "an attached handle does not know what was promised: give network(offer=...)"
            )
        return prove(read(line.text for line in self.logs() if line.stream != "event"), promised)

    def _proof_watch(self) -> ProofWatch | None:
        if not self.policy.require_proof or self.plan is None:
            return None
        return ProofWatch(self.plan.offer)

    def _watched(self, lines: Iterator[LogLine], watch: ProofWatch) -> Iterator[LogLine]:
        for line in lines:
            yield line
            if line.stream != "event":
                self._end_if_refuted(watch, watch.add(line.text))

    def _end_if_refuted(self, watch: ProofWatch, proof: "NetworkProof | None") -> None:
        if proof is None or proof.state != "refuted":
            return
        self.cancel()
        raise JobFailedError(
            f"{self.ref} was ended: the promised {watch.offer.tier.value} network is refuted by its"
            f" own log: {'; '.join(proof.reasons)}",
            ref=self.ref,
            tail=[e.text for e in proof.evidence],
        )

    def bench(self, *, timeout: float | None = None) -> "BenchReport":
        """Waits for a benchmark job and reads its table from rank 0's output.

        A benchmark that found wrong data fails as a job, and its whole table is the result: it is
        returned, with `is_correct` False.

        Raises `JobFailedError`, `JobTimeoutError`, and `ParseError` where there is no table.
        """
        from gpufabric.bench import BenchReport

        status = self.wait(timeout=timeout)
        if status.state is JobState.GONE:
            raise JobTimeoutError(f"{self.ref} is gone, and its output with it", ref=self.ref)
        lines = (line.text for line in self.logs(node_rank=0) if line.stream == "stdout")
        try:
            report = BenchReport.from_text(lines)
        except ParseError:
            status.raise_for_state()
            raise
        if not (report.complete and report.is_correct is False):
            status.raise_for_state()
        return report
