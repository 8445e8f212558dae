"""Every fault that the cluster can be given, and that it is whole again afterwards."""

import pytest
from gfcluster import control, daemons, lifecycle
from gfcluster.api import MERGE, ApiError
from gfcluster.shell import wait_until

pytestmark = pytest.mark.cluster


def _pod(cluster, namespace, node):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "runs", "namespace": namespace},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": cluster.image,
                    "command": ["bash", "-c", "cat /proc/sys/kernel/random/uuid; sleep 600"],
                }
            ],
        },
    }


@pytest.fixture
def pod(own_cluster, namespace):
    """A pod that runs on node-1, and has said one line that no other run says."""
    api = own_cluster.api
    item = _pod(own_cluster, namespace, "node-1")
    api.create(item)
    path = api.object_path(item)
    api.wait_true(path, "Ready", timeout_s=40)
    return path


def _restarts(api, pod):
    return api.get(pod)["status"]["containerStatuses"][0]["restartCount"]


@pytest.mark.parametrize("program", ["apiserver", "etcd"])
def test_the_cluster_keeps_its_objects_and_pods_over_a_crash_of(own_cluster, pod, program):
    api = own_cluster.api
    before = api.text("GET", f"{pod}/log")
    with own_cluster.fault("kill", program):
        assert daemons.state(program) == "ended"
        with pytest.raises((ApiError, OSError)):
            # a write: what is only read may still come from the API server's memory
            api.call("PATCH", pod, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE,
                     timeout_s=3)  # fmt: skip
    assert api.text("GET", f"{pod}/log") == before
    assert _restarts(api, pod) == 0


def test_a_paused_etcd_answers_nothing_and_goes_on_after_it(own_cluster, pod):
    api = own_cluster.api
    with own_cluster.fault("pause", "etcd"):
        assert daemons.state("etcd") == "paused"
        with pytest.raises(OSError, match="timed out"):
            api.call("PATCH", pod, {"metadata": {"labels": {"a": "b"}}},
                     content_type=MERGE, timeout_s=3)  # fmt: skip
    assert _restarts(api, pod) == 0


@pytest.mark.parametrize(
    ("fault", "target"), [("kill", "node-1/kubelet"), ("pause", "node-1/kubelet")]
)
def test_a_node_without_kubelet_is_not_ready_and_its_pods_run_on(own_cluster, pod, fault, target):
    api = own_cluster.api
    with own_cluster.fault(fault, target):
        wait_until(
            "node-1 is not ready",
            lambda: not api.is_true("/api/v1/nodes/node-1", "Ready"),
            timeout_s=60,
        )
    assert api.is_true("/api/v1/nodes/node-1", "Ready")
    assert _restarts(api, pod) == 0


def test_pods_of_a_node_that_lost_its_network_are_given_up(own_cluster, pod):
    api = own_cluster.api
    with own_cluster.fault("cut", "node-1"):
        api.wait_gone(pod)


def test_a_node_that_crashed_boots_again_and_runs_its_pods_anew(own_cluster, pod):
    api = own_cluster.api
    with own_cluster.fault("crash", "node-1"):
        assert daemons.state("node-1/kubelet") == "ended"
        assert daemons.state("node-1/containerd") == "ended"
    wait_until("the pod runs again", lambda: _restarts(api, pod) == 1, timeout_s=60)


def test_dressed_nodes_keep_their_resources_when_a_kubelet_starts_anew(own_cluster):
    own_cluster.dress("eks-p5", "node-1")
    with own_cluster.fault("kill", "node-1/kubelet"):
        pass
    allocatable = own_cluster.api.get("/api/v1/nodes/node-1")["status"]["allocatable"]
    assert allocatable["vpc.amazonaws.com/efa"] == "32"


@pytest.mark.parametrize("program", ["jobset", "kueue", "lws", "scheduler", "coredns"])
def test_a_program_that_crashed_is_started_again(own_cluster, program):
    with own_cluster.fault("kill", program):
        assert control.health(own_cluster.api)[program] == "ended"
    assert control.health(own_cluster.api) == {}
    assert lifecycle.status()["state"] == "up"
