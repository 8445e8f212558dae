"""Gangs that end by no fault of their code: the right state, the cluster's own words, no rest."""

import pytest
from attrs import evolve
from faultcases import assert_nothing_left, ended, pods_of, until
from gfcluster import layout, lifecycle, nodes
from gfcluster.shell import run, wait_until
from given import plan_of

from gpufabric.errors import BackendError, GpuFabricError
from gpufabric.job import JobState

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

JOBSET = ()
INDEXED_JOB = ("jobset",)
SHAPES = pytest.mark.parametrize("without", [JOBSET, INDEXED_JOB], ids=["jobset", "indexed-job"])
FOR_EVER = "echo up; exec sleep infinity"
# The first attempt stays until something ends it; the second says so and ends well.
TWICE = f'[ "$GPUFABRIC_ATTEMPT" = 0 ] || {{ echo again $NODE_RANK; exit 0; }}; {FOR_EVER}'


def _kill_container(cluster, namespace, rank):
    """SIGKILL to the first process of a node's container, from outside as the kernel does it."""
    pod = pods_of(cluster, namespace)[rank]
    [state] = pod["status"]["containerStatuses"]
    node = layout.node(pod["spec"]["nodeName"])
    name = state["containerID"].removeprefix("containerd://")
    run([*nodes._ctr(node), "tasks", "kill", "--signal", "SIGKILL", name])


def _evict(cluster, namespace, rank):
    name = pods_of(cluster, namespace)[rank]["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace}}  # fmt: skip
    cluster.api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)


def _delete_pod(cluster, namespace, rank):
    cluster.kubectl("-n", namespace, "delete", "pod", "--wait=false",
                    pods_of(cluster, namespace)[rank]["metadata"]["name"])  # fmt: skip


ENDS = [
    pytest.param(_kill_container, 137, "137", id="a container is killed"),
    pytest.param(_evict, None, "deleted or evicted|EvictionByEvictionAPI", id="a pod is evicted"),
    pytest.param(_delete_pod, None, "deleted or evicted|exit code", id="a pod is deleted"),
]


@SHAPES
@pytest.mark.parametrize(("end", "code", "words"), ENDS)
def test_a_gang_that_loses_a_node_fails_as_one(own_cluster, backend, without, end, code, words):  # noqa: PLR0917
    namespace = backend._where()[1]
    ref = backend.apply(plan_of(backend, FOR_EVER, without=without))
    end(own_cluster, namespace, 1)
    status = ended(backend, ref)
    assert status.state is JobState.FAILED, status
    assert status.exit_code in {code, 143, 137, None}
    if code is not None:
        assert status.exit_code == code, status
    assert any(word in status.reason for word in words.split("|")), status
    assert all(node.state.ended for node in status.nodes)
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)


@pytest.mark.parametrize("end", [pytest.param(end.values[0], id=end.id) for end in ENDS])
@pytest.mark.slow
def test_a_gang_that_may_restart_does_so_with_the_same_ranks(own_cluster, backend, end):
    namespace = backend._where()[1]
    ref = backend.apply(plan_of(backend, TWICE, max_restarts=1))
    end(own_cluster, namespace, 1)
    status = ended(backend, ref, timeout_s=100)
    assert (status.state, status.attempt) == (JobState.SUCCEEDED, 1), status
    said = [line for line in backend.logs(ref) if line.stream == "stdout" and line.attempt == 1]
    assert sorted((line.node_rank, line.text) for line in said) == [(0, "again 0"), (1, "again 1")]
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)


# ---- what one node needs another takes


def test_a_gang_that_a_higher_priority_preempts_says_so(own_cluster, namespace, backend, request):
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": namespace}, "value": 1000}  # fmt: skip
    own_cluster.api.create(high)
    request.addfinalizer(lambda: own_cluster.api.delete(high))
    ref = backend.apply(plan_of(backend, FOR_EVER, resources={"cpus": 150}))
    container = {"name": "main", "image": own_cluster.image, "command": ["sleep", "600"],
                 "resources": {"requests": {"cpu": "150"}}}  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wins", "namespace": namespace},
           "spec": {"priorityClassName": namespace, "terminationGracePeriodSeconds": 0,
                    "containers": [container]}}  # fmt: skip
    own_cluster.api.create(pod)
    status = ended(backend, ref)
    own_cluster.api.delete(pod)
    own_cluster.api.wait_gone(own_cluster.api.object_path(pod))
    assert status.state is JobState.FAILED, status
    assert "reempt" in status.reason, status
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)


# ---- limits


@SHAPES
def test_a_node_over_its_memory_limit_says_so(cluster, namespace, make, without):
    limit = {"name": "job", "resources": {"limits": {"memory": "64Mi"}}}
    backend = make(pod_patch={"containers": [limit]})
    greedy = '[ "$NODE_RANK" = 1 ] && exec python3 -c "bytearray(300 << 20)"; sleep infinity'
    ref = backend.apply(plan_of(backend, greedy, without=without))
    status = ended(backend, ref)
    assert (status.state, status.exit_code) == (JobState.FAILED, 137), status
    assert "OOMKilled" in status.reason
    assert status.reason.startswith("node 1")
    backend.teardown(ref)
    assert_nothing_left(cluster, namespace)


@SHAPES
def test_a_job_over_its_time_is_timed_out(cluster, namespace, backend, without):
    ref = backend.apply(plan_of(backend, FOR_EVER, without=without, timeout_s=2))
    status = ended(backend, ref)
    assert status.state is JobState.TIMED_OUT, status
    backend.teardown(ref)
    assert_nothing_left(cluster, namespace)


def test_an_image_that_cannot_be_pulled_ends_the_launch_with_the_kubelets_words(
    cluster, namespace, backend
):
    plan = plan_of(backend, resources={"image": "registry.invalid/none:1"})
    with pytest.raises(BackendError, match=r"registry\.invalid/none:1") as caught:
        backend.apply(evolve(plan, gang_timeout_s=15.0))
    assert "ull" in str(caught.value)  # ErrImagePull, Failed to pull, Back-off pulling
    assert_nothing_left(cluster, namespace)


# ---- a node's power


def test_a_gang_whose_node_dies_fails(own_cluster, namespace, backend):
    ref = backend.apply(plan_of(backend, FOR_EVER))
    lost = pods_of(own_cluster, namespace)[0]["spec"]["nodeName"]
    with own_cluster.fault("crash", lost):
        status = ended(backend, ref, timeout_s=120)
        assert status.state is JobState.FAILED, status
        assert "taint" in status.reason or "node" in status.reason.lower(), status
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)
    assert lifecycle.status()["state"] == "up"


def _places(cluster, namespace):
    items = cluster.api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {item["spec"].get("nodeName") for item in items}


@pytest.mark.slow
def test_a_gang_whose_node_dies_restarts_once_the_node_is_given_up(own_cluster, namespace, backend):
    """The cluster keeps the pods of a dead node until its operator, or a cloud, gives it up.

    https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
    """
    taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    ref = backend.apply(plan_of(backend, TWICE, max_restarts=1))
    lost = pods_of(own_cluster, namespace)[0]["spec"]["nodeName"]
    with own_cluster.fault("crash", lost):
        wait_until(
            "the node is not ready",
            lambda: not own_cluster.api.is_true(f"/api/v1/nodes/{lost}", "Ready"),
            timeout_s=60,
        )
        own_cluster.kubectl("taint", "node", lost, taint)
        try:
            wait_until(
                "no pod is kept there", lambda: lost not in _places(own_cluster, namespace),
                timeout_s=90,
            )  # fmt: skip
        finally:
            own_cluster.kubectl("taint", "node", lost, f"{taint}-")
    status = ended(backend, ref, timeout_s=100)
    assert (status.state, status.attempt) == (JobState.SUCCEEDED, 1), status
    backend.teardown(ref)
    assert_nothing_left(own_cluster, namespace)


# ---- a namespace that goes


def test_a_job_whose_namespace_is_deleted_is_gone_and_nobody_hangs(cluster, namespace, backend):
    ref = backend.apply(plan_of(backend, FOR_EVER))
    followed = backend.logs(ref, follow=True)
    assert "up" in (line.text for line in followed)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    rest = [line.text for line in followed if line.stream == "stdout"]
    assert set(rest) <= {"up"}
    status = until(backend, ref, JobState.GONE)
    assert status.nodes == ()
    backend.teardown(ref)
    cluster.api.wait_gone(f"/api/v1/namespaces/{namespace}")
    backend.teardown(ref)
    assert list(backend.jobs()) == []


def test_a_namespace_that_is_deleted_during_a_launch_ends_it(cluster, namespace, make):
    from concurrent.futures import ThreadPoolExecutor

    backend = make(pod_patch={"nodeSelector": {"there-is": "none"}})
    plan = evolve(plan_of(backend), gang_timeout_s=60.0)
    with ThreadPoolExecutor() as pool:
        launch = pool.submit(backend.apply, plan)
        wait_until("the pods wait", lambda: len(pods_of(cluster, namespace)) == 2, timeout_s=30)
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        with pytest.raises(GpuFabricError, match=r"removed|terminated|not found|gone"):
            launch.result(timeout=60)
    cluster.api.wait_gone(f"/api/v1/namespaces/{namespace}")
