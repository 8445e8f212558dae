"""What serves, on a real cluster whose parts fail: one gang that starts again, or nothing."""

import contextlib
import multiprocessing

import pytest
from faultcases import assert_nothing_left, impatient, launch, objects_in
from faultproxy import CUT, DONE_HANGS, FAULTS, HANGS, LOST
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.errors import BackendError, ConflictError, TransientError
from gpufabric.job import JobRef, JobState

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

WRITES = 3  # the set, the Secret, the release


@pytest.fixture
def proxied(make, proxy, tmp_path):
    """A backend whose tasks serve, whose requests go through the proxy, and give up soon."""
    return impatient(make, proxy.kubeconfig(tmp_path, context="gpufabric-test"), serve=True)


def _plan(backend):
    run = "echo ${#TOKEN}; exec sleep 600"
    return plan_of(backend, run, secrets={"TOKEN": "s3cr3t"}, resources={"cpus": 0.1})


def _ref(backend, namespace, plan):
    return JobRef(backend="kubernetes", place=f"{backend._where()[0]}/{namespace}", name=plan.name)


def _serves(backend, ref):
    """Whether all nodes run."""
    return all(node.state is JobState.RUNNING for node in backend.status(ref).nodes)


def _whole_and_once(backend, ref):
    assert list(backend.jobs()) == [ref]
    assert _serves(backend, ref)


def _faults(usual):
    for fault in FAULTS:
        for k in range(1, WRITES + 1):
            marks = () if usual(fault, k) else (pytest.mark.slow,)
            yield pytest.param(fault, k, marks=marks, id=f"{fault}-{k}")


@pytest.mark.parametrize(("fault", "k"), list(_faults(lambda fault, _: fault is LOST)))
def test_a_write_that_fails_once_costs_nothing(cluster, namespace, proxied, proxy, fault, k):  # noqa: PLR0917
    plan = _plan(proxied)
    proxy.strike(fault, at=k, writes=True)
    ref = proxied.apply(plan)
    assert [one.fault for one in proxy.writes if one.fault] == [fault]
    _whole_and_once(proxied, ref)
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize(("fault", "k"), list(_faults(lambda fault, k: fault is CUT and k == 3)))
def test_writes_that_fail_for_good_leave_nothing_untold(  # noqa: PLR0917
    cluster, namespace, proxied, make, proxy, fault, k
):
    plan = _plan(proxied)
    proxy.strike(fault, at=k, writes=True, lasting=True)
    with pytest.raises((TransientError, ConflictError)) as caught:
        proxied.apply(plan)
    left = objects_in(cluster, namespace)
    proxy.heal()
    assert bool(caught.value.leftovers) or not left, f"{caught.value} names nothing of {left}"
    make().teardown(_ref(proxied, namespace, plan))
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("k", range(1, WRITES + 1))
@pytest.mark.parametrize("fault", [HANGS, DONE_HANGS], ids=["before", "after"])
def test_a_launcher_that_is_killed_leaves_what_another_removes_or_ends(  # noqa: PLR0917
    cluster, namespace, proxied, make, proxy, tmp_path, fault, k
):
    plan, other = _plan(proxied), make(serve=True)
    ref = _ref(proxied, namespace, plan)
    proxy.strike(fault, at=k, writes=True)
    path = str(proxy.kubeconfig(tmp_path, context="gpufabric-test"))
    process = multiprocessing.get_context("spawn").Process(
        target=launch, args=(path, namespace, cluster.image, plan)
    )
    process.start()
    try:
        wait_until(
            f"the server has write {k}", lambda: any(x.fault is fault for x in proxy.writes),
            timeout_s=60,
        )  # fmt: skip
    finally:
        process.kill()
        process.join()
        process.close()
    if fault is HANGS:
        assert not [one for one in objects_in(cluster, namespace) if one.startswith("pods/")]
        make().teardown(ref)
    assert other.apply(plan) == ref
    _whole_and_once(other, ref)
    make().teardown(ref)
    assert_nothing_left(cluster, namespace)


def _uids(cluster, namespace):
    pods = cluster.api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {pod["metadata"]["uid"] for pod in pods}


def _anew(cluster, namespace, before):
    """Whether two other pods are there than before."""
    now = _uids(cluster, namespace)
    return len(now) == 2 and not now & before


def test_a_pod_that_is_removed_makes_all_nodes_start_again(cluster, namespace, make):
    backend = make(serve=True)
    ref = backend.apply(_plan(backend))
    before = _uids(cluster, namespace)
    cluster.kubectl("-n", namespace, "delete", "pod", f"{ref.name}-0-1", "--wait=false")
    wait_until("both are new", lambda: _anew(cluster, namespace, before), timeout_s=60)
    wait_until("it serves", lambda: _serves(backend, ref), timeout_s=60)
    assert "when node 1 ended" in backend.status(ref).reason
    backend.teardown(ref)
    assert_nothing_left(cluster, namespace)


def test_a_controller_that_comes_back_starts_the_gang_whose_node_ended(
    own_cluster, namespace, make
):
    backend = make(serve=True)
    ref = backend.apply(_plan(backend))
    before = _uids(own_cluster, namespace)
    with own_cluster.fault("kill", "lws"):
        killing = backend.exec(ref, ["/bin/sh", "-c", "kill -9 -1"], node_rank=1)
        with contextlib.closing(killing), contextlib.suppress(BackendError):
            killing.wait(timeout_s=20)  # it ends itself too; closed before, it may not have begun
        wait_until(
            "it is told", lambda: "node 1: exit code" in backend.status(ref).reason, timeout_s=30,
            diagnose=lambda: str(backend.status(ref)),
        )  # fmt: skip
        assert _uids(own_cluster, namespace) == before
        assert backend.status(ref).state is JobState.RUNNING
    wait_until("both are new", lambda: _anew(own_cluster, namespace, before), timeout_s=60)
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)
