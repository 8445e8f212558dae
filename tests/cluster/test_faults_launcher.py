"""A launcher that is killed at its k-th write, before or after the server acted."""

import itertools
import multiprocessing

import pytest
from faultcases import assert_nothing_left, ended, launch
from faultproxy import DONE_HANGS, HANGS, FaultProxy
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.job import JobRef, JobState

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

SHAPES = {"jobset": (), "indexed-job": ("jobset",)}
WRITES = {"jobset": 3, "indexed-job": 5}


def _cases(usual):
    """Every shape, write and side of it; those that `usual` is true of run by default."""
    for shape, fault in itertools.product(SHAPES, (HANGS, DONE_HANGS)):
        for k in range(1, WRITES[shape] + 1):
            marks = () if usual(shape, fault) else (pytest.mark.slow,)
            when = "after" if fault.acts else "before"
            yield pytest.param((shape, fault, k), marks=marks, id=f"{shape}-{when}-{k}")


@pytest.fixture
def killed(cluster, namespace, make, tmp_path):
    """Launches in a process that is killed while the server has its k-th write; the plan's ref."""

    def kill(case):
        shape, fault, k = case
        backend = make()
        plan = plan_of(
            backend, "echo ${#TOKEN}", without=SHAPES[shape], secrets={"TOKEN": "s3cr3t"}
        )
        with FaultProxy.before(cluster.kubeconfig) as proxy:
            proxy.strike(fault, at=k, writes=True)
            path = str(proxy.kubeconfig(tmp_path, context="gpufabric-test"))
            spawn = multiprocessing.get_context("spawn")
            process = spawn.Process(target=launch, args=(path, namespace, cluster.image, plan))
            process.start()
            try:
                wait_until(
                    f"the server has write {k}",
                    lambda: any(one.fault is fault for one in proxy.writes),
                    timeout_s=60,
                    diagnose=lambda: f"{proxy.writes} {process.exitcode}",
                )
                if fault.acts:
                    wait_until("it has acted", lambda: _acted(backend, plan, k), timeout_s=20)
            finally:
                process.kill()
                process.join()
                process.close()
        context, _ = backend._where()
        ref = JobRef(backend="kubernetes", place=f"{context}/{namespace}", name=plan.name)
        return plan, ref

    return kill


def _acted(backend, plan, k):
    """The first write makes the owner: whether it is there tells that the server has acted."""
    return k > 1 or any(ref.name == plan.name for ref in backend.jobs())


@pytest.mark.parametrize(
    "case", list(_cases(lambda shape, fault: shape == "indexed-job" and fault.acts))
)
def test_another_process_removes_all_of_it(cluster, namespace, make, killed, case):
    _, ref = killed(case)
    make().teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize(
    "case", list(_cases(lambda shape, fault: (shape == "jobset") is not fault.acts))
)
def test_the_same_plan_makes_one_job_of_it(cluster, namespace, make, killed, case):
    plan, ref = killed(case)
    other = make()
    assert other.apply(plan) == ref
    assert list(other.jobs()) == [ref]
    assert ended(other, ref).state is JobState.SUCCEEDED
    lines = [line for line in other.logs(ref) if line.stream == "stdout"]
    assert sorted((line.node_rank, line.text) for line in lines) == [(0, "6"), (1, "6")]
    other.teardown(ref)
    assert_nothing_left(cluster, namespace)
