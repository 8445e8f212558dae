"""SIGKILL at random moments: of the caller, the supervisor, its guard, both, a rank."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufabric.backends import _supervisor as supervisor
from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.job import JobRef, JobState, JobStatus
from gpufabric.plan import LaunchPlan
from gpufabric.task import Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MOMENTS = 20
SETTINGS = Settings(stop_grace_s=0.3)
# A node as bad as they come: deaf to SIGTERM, with children in sessions of their own, one of them
# without the environment that marks it.
STUBBORN = (
    "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000' & "
    "env -i setsid sleep 1000 & echo up; sleep 1000"
)
LAUNCH = (
    "import pickle, sys; from gpufabric.backends.local import Local; print('go', flush=True);"
    "root, settings, plan = pickle.load(sys.stdin.buffer); Local(root, settings).apply(plan)"
)


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path / "jobs", SETTINGS)


def plan_of(local: Local, number: int, run: str = STUBBORN, **fields: object) -> LaunchPlan:
    task, site = Task(name=f"hostile-{number}", run=run, num_nodes=3, **fields), local.discover()
    return local.plan(task, local.offers(task, site).offers[0], site)


def until_ended(local: Local, ref: JobRef) -> JobStatus:
    while not (status := local.status(ref)).state.ended:
        time.sleep(0.005)
    return status


def processes(ref: JobRef) -> Iterator[int]:
    """All that belongs to a job, also what has cleared its environment: by the work folder."""
    folder = f"{ref.place}/{ref.name}/"
    yield from supervisor.marked(f"GPUFABRIC_JOB={ref}".encode())
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(cwd.readlink()).startswith(folder):
                yield int(cwd.parent.name)
        except OSError:
            continue


def assert_nothing_left(local: Local, ref: JobRef) -> None:
    assert sorted(set(processes(ref))) == []
    assert list(local.root.iterdir()) == []


def pids(local: Local, ref: JobRef) -> dict[str, int]:
    state = local._folder(ref).state()
    return {"guard": state["guard"], "supervisor": state["pid"]}


@pytest.mark.parametrize("seed", range(MOMENTS))
@pytest.mark.parametrize("then", ["teardown", "launch again"])
def test_a_caller_killed_at_any_moment_leaves_nothing_that_teardown_does_not_find(
    local, seed, then
):
    plan = plan_of(local, seed)
    ref = JobRef(backend="local", place=str(local.root), name=plan.name)
    caller = subprocess.Popen(
        [sys.executable, "-c", LAUNCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with caller:
        caller.stdout.readline()
        caller.stdin.write(pickle.dumps((str(local.root), SETTINGS, plan)))
        caller.stdin.close()
        time.sleep(random.Random(seed).uniform(0, 0.2))  # noqa: S311  # the moment of the attack
        caller.kill()
    if then == "launch again":
        assert local.apply(plan) == ref
        assert local.status(ref).state is JobState.RUNNING
        assert list(local.jobs()) == [ref]
    local.teardown(ref)
    assert_nothing_left(local, ref)


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_supervisor_killed_at_any_moment_takes_every_process_with_it(local, seed):
    ref = local.apply(plan_of(local, seed))
    time.sleep(random.Random(seed).uniform(0, 0.1))  # noqa: S311  # the moment of the attack
    os.kill(pids(local, ref)["supervisor"], signal.SIGKILL)
    status = until_ended(local, ref)
    assert (status.state, status.reason) == (JobState.LOST, "its supervisor was killed")
    assert {node.state for node in status.nodes} == {JobState.LOST}
    assert sorted(set(processes(ref))) == []  # before any teardown
    local.teardown(ref)
    assert_nothing_left(local, ref)


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_guard_killed_at_any_moment_changes_nothing(local, seed):
    ref = local.apply(plan_of(local, seed))
    time.sleep(random.Random(seed).uniform(0, 0.1))  # noqa: S311  # the moment of the attack
    os.kill(pids(local, ref)["guard"], signal.SIGKILL)
    assert local.status(ref).state is JobState.RUNNING
    local.cancel(ref)
    assert local.status(ref).state is JobState.CANCELLED
    assert sorted(set(processes(ref))) == []
    local.teardown(ref)
    assert_nothing_left(local, ref)


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_supervisor_and_guard_killed_together_leave_what_teardown_finds(local, seed):
    ref = local.apply(plan_of(local, seed))
    assert next(local.logs(ref, follow=True)).text == "up"
    both = list(pids(local, ref).values())
    random.Random(seed).shuffle(both)  # noqa: S311  # the order of the attack
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    assert until_ended(local, ref).state is JobState.LOST
    local.teardown(ref)
    assert_nothing_left(local, ref)


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_rank_killed_at_any_moment_ends_the_gang_with_its_code(local, seed):
    dice = random.Random(seed)  # noqa: S311  # the moment of the attack
    ref = local.apply(plan_of(local, seed, run="trap '' TERM; echo up; while :; do sleep 1; done"))
    rank = dice.randrange(3)
    time.sleep(dice.uniform(0, 0.1))
    victims = [
        pid
        for pid in supervisor.children(pids(local, ref)["supervisor"])
        if f"GPUFABRIC_NODE_RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    os.kill(victims[0], signal.SIGKILL)
    status = until_ended(local, ref)
    assert (status.state, status.exit_code) == (JobState.FAILED, 137)
    assert status.reason == f"node {rank}: killed by SIGKILL"
    local.teardown(ref)
    assert_nothing_left(local, ref)


def test_a_supervisor_that_is_stopped_does_not_keep_teardown_from_its_work(local):
    ref = local.apply(plan_of(local, 0))
    for pid in pids(local, ref).values():
        os.kill(pid, signal.SIGSTOP)
    local.teardown(ref)
    assert_nothing_left(local, ref)


def test_nodes_that_write_without_end_are_survived_with_flat_memory(local):
    run = [sys.executable, "-c", "import os\nwhile True: os.write(1, b'y\\n' * 32768)"]
    ref = local.apply(plan_of(local, 0, run=run, timeout_s=5))
    pid = pids(local, ref)["supervisor"]
    sizes = []
    for lines, line in enumerate(local.logs(ref, follow=True)):
        assert line.data == b"y"
        if lines % 200_000 == 0 and Path(f"/proc/{pid}").exists():
            sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096)
        if lines == 3_000_000:
            break
    assert max(sizes) < sizes[0] + 8 * 2**20
    local.teardown(ref)
    assert_nothing_left(local, ref)
