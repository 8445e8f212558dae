"""Parts of the cluster that fail while a gang waits, runs and is removed: nothing is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from faultcases import assert_nothing_left, ended, pods_of
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.backends.kubernetes import _wait
from gpufabric.handle import JobHandle
from gpufabric.job import JobState

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

_PAUSE_S = 10.0  # longer than an election of etcd, shorter than the patience of anybody
FAULTS = [
    ("kill", "apiserver"),
    ("pause", "etcd"),
    ("kill", "node-1/kubelet"),
    pytest.param(("kill", "etcd"), marks=pytest.mark.slow),
    pytest.param(("kill", "scheduler"), marks=pytest.mark.slow),
    pytest.param(("kill", "controller-manager"), marks=pytest.mark.slow),
    pytest.param(("kill", "jobset"), marks=pytest.mark.slow),
    pytest.param(("pause", "apiserver"), marks=pytest.mark.slow),
]


def _ids(fault):
    return " ".join(fault)


def _suffer(cluster, fault):
    """A program that is killed starts again at once, one that is paused goes on after a while."""
    with cluster.fault(*fault):
        if fault[0] == "pause":
            threading.Event().wait(_PAUSE_S)


@pytest.mark.parametrize("fault", FAULTS, ids=_ids)
def test_a_running_gang_is_waited_for_over(own_cluster, namespace, backend, fault):
    ref = backend.apply(plan_of(backend, "echo up; sleep 14; echo done"))
    handle = JobHandle(ref, backend, settings=backend._settings)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(handle.wait, timeout=90)
        _suffer(own_cluster, fault)
        assert waiting.result(timeout=90).state is JobState.SUCCEEDED
    said = [line.text for line in backend.logs(ref, node_rank=0) if line.stream == "stdout"]
    assert said == ["up", "done"]
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)


@pytest.fixture
def gated(own_cluster, namespace, make, monkeypatch):
    """A backend whose pods wait until `let_go` is called, however long that is."""
    monkeypatch.setitem(_wait.LIMITS_S, "unschedulable", 120.0)
    label = f"gpufabric.test/{namespace}"

    def let_go():
        own_cluster.kubectl("label", "nodes", "--all", f"{label}=yes")

    yield make(pod_patch={"nodeSelector": {label: "yes"}}), let_go
    own_cluster.kubectl("label", "nodes", "--all", f"{label}-")


@pytest.mark.parametrize("fault", FAULTS, ids=_ids)
def test_a_launch_that_waits_goes_on_over(own_cluster, namespace, gated, fault):
    backend, let_go = gated
    plan = plan_of(backend, "echo hi")
    with ThreadPoolExecutor() as pool:
        launch = pool.submit(backend.apply, plan)
        wait_until("the pods wait", lambda: len(pods_of(own_cluster, namespace)) == 2, timeout_s=30)
        _suffer(own_cluster, fault)
        let_go()
        ref = launch.result(timeout=90)
    assert list(backend.jobs()) == [ref]
    assert ended(backend, ref).state is JobState.SUCCEEDED
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)


CALLS = [
    pytest.param("cancel", JobState.CANCELLED, id="cancel"),
    pytest.param("teardown", JobState.GONE, id="teardown"),
]


@pytest.mark.parametrize(("call", "state"), CALLS)
@pytest.mark.parametrize("fault", FAULTS[:2], ids=_ids)
def test_a_job_is_stopped_over(own_cluster, namespace, backend, fault, call, state):  # noqa: PLR0917
    ref = backend.apply(plan_of(backend, "echo up; sleep infinity"))
    with ThreadPoolExecutor() as pool:
        with own_cluster.fault(*fault):
            calling = pool.submit(getattr(backend, call), ref)
            if fault[0] == "pause":
                threading.Event().wait(_PAUSE_S)
        calling.result(timeout=90)
    assert ended(backend, ref).state is state
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)
