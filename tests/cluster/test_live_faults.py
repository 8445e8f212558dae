"""Commands and connections in a gang whose cluster breaks under them, on the real cluster."""

import threading

import pytest

import gpufabric as gf

pytestmark = pytest.mark.cluster


@pytest.fixture
def job(own_cluster, namespace):
    settings = gf.Settings(stop_grace_s=1.0, trust_env=False)
    place = gf.Kubernetes(
        namespace=namespace, kubeconfig=str(own_cluster.kubeconfig), settings=settings,
        image=own_cluster.image,
    )  # fmt: skip
    serve = "exec timeout 300 python3 -m http.server 8000"
    with (
        gf.Fabric(place, settings=settings) as fabric,
        fabric.launch(gf.Task(run=serve, name="live")) as made,
    ):
        made.exec(["bash", "-c", "until : </dev/tcp/127.0.0.1/8000; do sleep 0.1; done"])
        yield made


def test_a_killed_api_server_leaves_no_thread(job, own_cluster):
    before = set(threading.enumerate())
    running = job.backend.exec(job.ref, ["sleep", "300"], stdin=True)
    with own_cluster.fault("kill", "apiserver"), pytest.raises(gf.TransientError):
        running.wait(60)
    running.close()
    assert set(threading.enumerate()) <= before


def test_a_node_whose_pod_is_removed_is_told(job, own_cluster, namespace):
    running = job.backend.exec(job.ref, ["sleep", "300"])
    own_cluster.kubectl("-n", namespace, "delete", "pods", "--all", "--grace-period=0", "--force")
    try:
        assert running.wait(60) == 137  # the runtime may tell that it killed the command
    except gf.NotFoundError as exc:
        assert "ended meanwhile" in str(exc)  # noqa: PT017  # one of two right answers
    running.close()
