"""What becomes of a simulated gang, as a pure function of its objects and its run."""

import bisect
import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import cast

from gpufabric._frozen import frozen
from gpufabric.job import JobRef, JobState, JobStatus, LogLine, NodeStatus
from gpufabric.testing._records import Behaviour, CloudObject, Phase, Run
from gpufabric.testing._shell import Output, UnknownCommand, simulate

__all__ = ["Gang", "history", "lines_of", "next_change", "status_at"]

TERMINATED = 128 + 15
_LEAST_S = 1.0  # a command takes a second at least, so that RUNNING can be seen
_TAIL = 10


@frozen(kw_only=True)
class Gang:
    """All that the cloud has of one job."""

    run: Run
    gang: CloudObject
    nodes: tuple[CloudObject, ...]
    secrets: tuple[tuple[str, str], ...] = ()


@frozen(kw_only=True)
class NodeHistory:
    """One node in one start of the gang. `end` is infinite for what never ends by itself."""

    node_rank: int
    lines: tuple[tuple[float, str, bytes], ...]
    end: float
    exit_code: int | None
    reason: str = ""
    stopped: bool = False


@frozen(kw_only=True)
class AttemptHistory:
    """One start of the gang: `start`, all nodes `up`, `end`, and the state that it ends in."""

    number: int
    start: float
    up: float
    end: float
    state: JobState
    nodes: tuple[NodeHistory, ...]
    failed: int | None = None


def history(gang: Gang) -> tuple[AttemptHistory, ...]:
    """Gives every start of the gang that will have been, as far as is known now."""
    return _history(gang)


@lru_cache(maxsize=256)
def _history(gang: Gang) -> tuple[AttemptHistory, ...]:
    run, body = gang.run, gang.gang.body
    if run.started_at is None:
        return ()
    timeout = cast("float | None", body.get("timeout_s"))
    deadline = math.inf if timeout is None else run.started_at + timeout
    stop = math.inf if run.stopped_at is None else run.stopped_at
    restarts = cast("int", body.get("max_restarts", 0))
    found: list[AttemptHistory] = []
    start = run.started_at
    for number in itertools.count():
        up = start + run.boot_s
        nodes = [_node(gang, node, number, start, up) for node in gang.nodes]
        failed = min(
            ((n.end, n.node_rank) for n in nodes if n.exit_code != 0 and n.end < math.inf),
            default=None,
        )
        end = failed[0] if failed else max(node.end for node in nodes)
        state = JobState.FAILED if failed else JobState.SUCCEEDED
        if min(deadline, stop) < end or (math.isinf(end) and min(deadline, stop) < math.inf):
            end = min(deadline, stop)
            state = JobState.CANCELLED if stop <= deadline else JobState.TIMED_OUT
            failed = None
        why = _why_stopped(state, failed[1] if failed else None)
        found.append(
            AttemptHistory(
                number=number,
                start=start,
                up=up,
                end=end,
                state=state,
                nodes=tuple(_cut(node, end, failed[1] if failed else None, why) for node in nodes),
                failed=failed[1] if failed else None,
            )
        )
        if state is not JobState.FAILED or number >= restarts:
            return tuple(found)
        start = end
    raise AssertionError  # itertools.count never ends


def _why_stopped(state: JobState, failed: int | None) -> str:
    if failed is not None:
        return f"stopped: node {failed} failed"
    return "cancelled" if state is JobState.CANCELLED else "the task's timeout_s ran out"


def _cut(node: NodeHistory, end: float, failed: int | None, why: str) -> NodeHistory:
    if math.isinf(end) or node.end < end or node.node_rank == failed:
        return node
    if node.end == end and node.exit_code == 0:
        return node
    kept = tuple(line for line in node.lines if line[0] <= end)
    return NodeHistory(
        node_rank=node.node_rank,
        lines=kept,
        end=end,
        exit_code=TERMINATED,
        reason=why,
        stopped=True,
    )


def _node(gang: Gang, node: CloudObject, number: int, start: float, up: float) -> NodeHistory:
    rank = cast("int", node.body["node_rank"])
    task = cast("str", gang.gang.body["task"])
    fitting = [b for b in gang.run.behaviours if b.fits(task, rank, number)]
    reason, taken = "", math.inf
    if fitting:
        output = _scripted(fitting[-1])
        after = fitting[-1].preempted_after_s
        taken = math.inf if after is None else up + after
    else:
        output = _command(gang, node, number)
    since = start if number == 0 else math.nextafter(start, math.inf)  # what began this is done
    end = math.inf if output.seconds is None else up + max(output.seconds, _LEAST_S)
    taken = min(
        [taken, *(p.at for p in gang.run.preemptions if p.node_rank == rank and p.at >= since)]
    )
    code: int | None = output.exit_code
    if taken < end:
        end, code, reason = taken, None, "preempted: the spot capacity was taken back"
    lines = tuple(
        (up + after, stream, data) for after, stream, data in output.lines if up + after <= end
    )
    if reason:
        lines = (*lines, (end, "event", reason.encode()))
    return NodeHistory(node_rank=rank, lines=lines, end=end, exit_code=code, reason=reason)


def _scripted(behaviour: Behaviour) -> Output:
    texts = [("stdout", line) for line in behaviour.lines]
    texts += [("stderr", line) for line in behaviour.stderr]
    span = behaviour.seconds if behaviour.seconds is not None else _LEAST_S
    step = span / len(texts) if texts else 0.0
    return Output(
        lines=tuple(
            (i * step, stream, line.encode("utf-8", "surrogateescape"))
            for i, (stream, line) in enumerate(texts)
        ),
        exit_code=behaviour.exit_code,
        seconds=behaviour.seconds,
    )


def _command(gang: Gang, node: CloudObject, number: int) -> Output:
    body = gang.gang.body
    env = {
        **cast("Mapping[str, str]", body["env"]),
        **cast("Mapping[str, str]", node.body["env"]),
        **dict(gang.secrets),
        "GPUFABRIC_ATTEMPT": str(number),
    }
    setup, run = cast("str | None", body.get("setup")), body["run"]
    try:
        first = simulate(setup, env) if setup else Output()
        if first.exit_code != 0 or first.seconds is None:
            return first
        second = _run(run, env)
    except UnknownCommand:
        told = f"simulated, not run: {_shown(run)}"
        return Output(lines=((0.0, "event", told.encode("utf-8", "replace")),), seconds=_LEAST_S)
    gone = first.seconds
    return Output(
        lines=(*first.lines, *((gone + at, stream, data) for at, stream, data in second.lines)),
        exit_code=second.exit_code,
        seconds=None if second.seconds is None else gone + second.seconds,
    )


def _run(run: object, env: Mapping[str, str]) -> Output:
    if isinstance(run, str):
        return simulate(run, env)
    if isinstance(run, tuple):
        return simulate(shlex.join(cast("tuple[str, ...]", run)), env)
    raise UnknownCommand(_shown(run))


def _shown(run: object) -> str:
    if isinstance(run, Mapping):
        return f"function {cast('Mapping[str, object]', run).get('function')}"
    text = run if isinstance(run, str) else shlex.join(cast("tuple[str, ...]", run))
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= 100 else f"{first[:99]}…"


def _current(gang: Gang, now: float) -> AttemptHistory:
    attempts = history(gang)
    for attempt in attempts:
        if now < attempt.end:
            return attempt
    return attempts[-1]


def status_at(gang: Gang, ref: JobRef, now: float, *, gang_timeout_s: float) -> JobStatus:
    """Gives the job's state at `now` of the cloud's clock."""
    run = gang.run
    if run.phase is not Phase.STARTED or run.started_at is None:
        return _unstarted(gang, ref, now, run.gang_timeout_s or gang_timeout_s)
    attempt = _current(gang, now)
    nodes = tuple(_node_status(gang, attempt, node, now) for node in attempt.nodes)
    shown = {
        "ref": ref,
        "nodes": nodes,
        "attempt": attempt.number,
        "started_at": run.started_at,
    }
    if now < attempt.end:
        state = JobState.STARTING if now < attempt.up else JobState.RUNNING
        return JobStatus(**shown, state=state)  # type: ignore[arg-type]  # one dict of many types
    failed = next((n for n in attempt.nodes if n.node_rank == attempt.failed), None)
    code = 0 if attempt.state is JobState.SUCCEEDED else failed.exit_code if failed else None
    return JobStatus(
        **shown,  # type: ignore[arg-type]  # the same
        state=attempt.state,
        exit_code=code,
        reason=_reason(attempt, failed),
        tail=tuple(
            data.decode("utf-8", "backslashreplace")
            for _, stream, data in (failed.lines if failed else ())
            if stream != "event"
        )[-_TAIL:],
        ended_at=attempt.end,
    )


def _reason(attempt: AttemptHistory, failed: NodeHistory | None) -> str:
    if failed is None:
        return "" if attempt.state is JobState.SUCCEEDED else _why_stopped(attempt.state, None)
    return f"node {failed.node_rank} {failed.reason or f'exited with {failed.exit_code}'}"


def _unstarted(gang: Gang, ref: JobRef, now: float, gang_timeout_s: float) -> JobStatus:
    there = {cast("int", node.body["node_rank"]): node for node in gang.nodes}
    state, reason = JobState.PENDING, ""
    if gang.run.phase is Phase.REMOVING:
        state, reason = JobState.CANCELLED, "being removed"
    elif now >= gang.run.created_at + gang_timeout_s:
        wanted = cast("int", gang.gang.body["num_nodes"])
        state = JobState.LOST
        reason = f"the gang was not whole in {gang_timeout_s:g} s: {len(there)} of {wanted} nodes"
    nodes = tuple(
        NodeStatus(node_rank=rank, state=state, host=cast("str", node.body["address"]))
        for rank, node in sorted(there.items())
    )
    return JobStatus(ref=ref, state=state, nodes=nodes, reason=reason)


def _node_status(gang: Gang, attempt: AttemptHistory, node: NodeHistory, now: float) -> NodeStatus:
    host = next(
        cast("str", made.body["address"])
        for made in gang.nodes
        if made.body["node_rank"] == node.node_rank
    )
    if now < min(node.end, attempt.end):
        return NodeStatus(
            node_rank=node.node_rank,
            state=JobState.STARTING if now < attempt.up else JobState.RUNNING,
            host=host,
            started_at=None if now < attempt.up else attempt.up,
        )
    state = JobState.SUCCEEDED if node.exit_code == 0 else JobState.FAILED
    if node.stopped:
        timed_out = attempt.state is JobState.TIMED_OUT
        state = JobState.TIMED_OUT if timed_out else JobState.CANCELLED
    return NodeStatus(
        node_rank=node.node_rank,
        state=state,
        exit_code=node.exit_code,
        reason=node.reason,
        host=host,
        started_at=attempt.up,
        ended_at=node.end,
    )


def lines_of(
    gang: Gang, *, node_rank: int | None, until: float, after: int = 0
) -> Iterator[LogLine]:
    """Gives the lines written by `until`, oldest first; at one time by rank: all but `after`."""
    for line in itertools.islice(_written(gang, node_rank), after, None):
        if _time(line) > until:
            return
        yield line


@lru_cache(maxsize=16)  # a follower asks again at every line
def _written(gang: Gang, node_rank: int | None) -> tuple[LogLine, ...]:
    """All lines that will have been written, as far as is known now."""
    return tuple(
        LogLine(node_rank=rank, data=data, stream=stream, attempt=attempt.number, time=at)
        for attempt in history(gang)
        for at, rank, (stream, data) in _merged(
            [node for node in attempt.nodes if node_rank in {None, node.node_rank}]
        )
    )


def _time(line: LogLine) -> float:
    return cast("float", line.time)  # every line here has one


def _merged(
    nodes: Sequence[NodeHistory],
) -> Iterator[tuple[float, int, tuple[str, bytes]]]:
    import heapq

    feeds = [
        [(at, node.node_rank, i, stream, data) for i, (at, stream, data) in enumerate(node.lines)]
        for node in nodes
    ]
    for at, rank, _, stream, data in heapq.merge(*feeds):
        yield at, rank, (stream, data)


def next_change(gang: Gang, now: float, *, with_lines: bool) -> float | None:
    """Gives when the job's state (or its lines) change next; None where nothing will happen."""
    if gang.run.phase is not Phase.STARTED:
        return None
    times = (t for a in history(gang) for t in (a.up, a.end) if now < t < math.inf)
    first = min(times, default=None)
    if with_lines:
        lines = _written(gang, None)
        later = bisect.bisect_right(lines, now, key=_time)
        if later < len(lines):
            first = min(_time(lines[later]), math.inf if first is None else first)
    return first
