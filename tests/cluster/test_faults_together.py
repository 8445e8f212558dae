"""Several processes with one job at the same time, and calls at every stage of its life."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from attrs import evolve
from faultcases import assert_nothing_left, ended, pods_of, until
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.errors import BackendError, CapacityError
from gpufabric.job import JobRef, JobState

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

FOR_EVER = "echo up; sleep infinity"
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 9))]


def _at_once(*calls, seed=None):
    """What each call gives or raises, all begun together or some moments apart."""
    dice = random.Random(seed)  # noqa: S311  # a test that repeats
    delays = [0.0 if seed is None else dice.uniform(0, 2.5) for _ in calls]

    def run(call, delay):
        threading.Event().wait(delay)
        try:
            return call()
        except BackendError as exc:
            return exc

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls, delays))


@pytest.mark.parametrize("without", [(), ("jobset",)], ids=["jobset", "indexed-job"])
@pytest.mark.parametrize("seed", SEEDS)
def test_launchers_with_one_plan_make_one_job(cluster, namespace, make, seed, without):
    backends = [make() for _ in range(3)]
    plan = plan_of(backends[0], "echo ${#TOKEN}", without=without, secrets={"TOKEN": "s3cr3t"})
    answers = _at_once(*(lambda b=b: b.apply(plan) for b in backends), seed=seed)
    assert len(set(answers)) == 1, answers
    [ref] = set(answers)
    assert list(backends[0].jobs()) == [ref]
    assert ended(backends[0], ref).state is JobState.SUCCEEDED
    _at_once(*(lambda b=b: b.teardown(ref) for b in backends), seed=seed)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_launch_and_a_teardown_at_once_leave_a_whole_job_or_nothing(
    cluster, namespace, make, seed
):
    launcher, remover = make(), make()
    plan = plan_of(launcher, FOR_EVER)
    context, _ = launcher._where()
    ref = JobRef(backend="kubernetes", place=f"{context}/{namespace}", name=plan.name)
    launched, removed = _at_once(
        lambda: launcher.apply(plan), lambda: remover.teardown(ref), seed=seed
    )
    assert removed is None, removed
    if isinstance(launched, BackendError):
        assert launched.leftovers == ()
        assert_nothing_left(cluster, namespace)
    else:
        assert launched == ref
        assert launcher.status(ref).state in {JobState.RUNNING, JobState.GONE}
    remover.teardown(ref)
    assert_nothing_left(cluster, namespace)


def test_teardowns_at_once_all_succeed(cluster, namespace, make):
    backends = [make() for _ in range(4)]
    ref = backends[0].apply(plan_of(backends[0], FOR_EVER))
    assert _at_once(*(lambda b=b: b.teardown(ref) for b in backends)) == [None] * 4
    assert_nothing_left(cluster, namespace)
    backends[0].teardown(ref)


# ---- a gang that only half fits, and cancel at every stage

_PORT = {"containerPort": 30999, "hostPort": 30999}  # a node has it once


@pytest.mark.parametrize("without", [(), ("jobset",)], ids=["jobset", "indexed-job"])
def test_a_gang_of_which_one_of_two_fits_is_rolled_back(own_cluster, namespace, make, without):
    backend = make(pod_patch={"containers": [{"name": "job", "ports": [_PORT]}]})
    plan = evolve(plan_of(backend, FOR_EVER, without=without), gang_timeout_s=5.0)
    container = {"name": "main", "image": own_cluster.image, "ports": [_PORT],
                 "command": ["sleep", "600"]}  # fmt: skip
    taken = {"apiVersion": "v1", "kind": "Pod",
             "metadata": {"name": "taken", "namespace": namespace},
             "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 0,
                      "containers": [container]}}  # fmt: skip
    own_cluster.api.create(taken)
    with pytest.raises(CapacityError, match="have free ports") as caught:
        backend.apply(plan)
    # the scheduler's own gang places none, else one waits for the other until it is rolled back
    assert (caught.value.wanted, caught.value.got) == (2, 0 if without else 1)
    assert caught.value.leftovers == ()
    own_cluster.api.delete(taken)
    own_cluster.api.wait_gone(own_cluster.api.object_path(taken))
    assert_nothing_left(own_cluster, namespace)


def test_a_job_that_waits_for_room_can_be_cancelled(cluster, namespace, make):
    backend, other = make(pod_patch={"nodeSelector": {"there-is": "none"}}), make()
    plan = evolve(plan_of(backend, FOR_EVER), gang_timeout_s=60.0)
    with ThreadPoolExecutor() as pool:
        launch = pool.submit(backend.apply, plan)
        wait_until("the pods wait", lambda: len(pods_of(cluster, namespace)) == 2, timeout_s=30)
        [ref] = other.jobs()
        assert other.status(ref).state is JobState.PENDING
        other.cancel(ref)
        assert launch.result(timeout=30) == ref  # it was made, and has ended
    assert ended(other, ref).state is JobState.CANCELLED
    other.cancel(ref)
    other.teardown(ref)
    assert_nothing_left(cluster, namespace)


def test_a_job_that_has_ended_stays_as_it_ended_when_it_is_cancelled(cluster, namespace, backend):
    ref = backend.apply(plan_of(backend, "echo hi"))
    before = ended(backend, ref)
    backend.cancel(ref)
    assert backend.status(ref) == before
    backend.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.fixture
def queue(cluster, namespace):
    """A LocalQueue of the namespace that has room for one gang of two nodes with a CPU each."""
    flavor = {"name": namespace, "resources": [{"name": "cpu", "nominalQuota": "2"}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [
        {"coveredResources": ["cpu"], "flavors": [flavor]}]}  # fmt: skip
    version = "kueue.x-k8s.io/v1beta2"
    made = [
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": namespace},
         "spec": {}},
        {"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": namespace},
         "spec": spec},
        {"apiVersion": version, "kind": "LocalQueue",
         "metadata": {"name": "team", "namespace": namespace},
         "spec": {"clusterQueue": namespace}},
    ]  # fmt: skip
    for one in made:
        cluster.api.create(one)
    yield
    for one in reversed(made):
        cluster.api.delete(one)


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("call", ["cancel", "teardown"])
def test_a_job_that_is_queued_can_be_stopped(cluster, namespace, make, call):
    backend, other = make(), make()
    first, plan = (
        plan_of(backend, FOR_EVER, resources={"cpus": 1}, run_id=run) for run in ("a", "b")
    )
    holds = backend.apply(first)
    with ThreadPoolExecutor() as pool:
        launch = pool.submit(backend.apply, plan)
        made = wait_until("it is made", lambda: set(other.jobs()) - {holds}, timeout_s=30)
        [ref] = made
        until(other, ref, JobState.PENDING)
        getattr(other, call)(ref)
        if call == "cancel":
            assert launch.result(timeout=30) == ref
            assert ended(other, ref).state is JobState.CANCELLED
            other.teardown(ref)
        else:
            with pytest.raises(BackendError, match="removed"):
                launch.result(timeout=30)
    other.teardown(holds)
    assert_nothing_left(cluster, namespace)
