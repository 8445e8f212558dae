"""Several clusters as one fabric: those that are dead, full or refuse are passed over and told."""

import base64
import socket
import ssl
import threading

import pytest
import yaml
from faultcases import assert_nothing_left
from faultproxy import CUT, UNAVAILABLE, FaultProxy
from gfcluster import layout, pki

import gpufabric as gf
from gpufabric.config import Settings
from gpufabric.errors import PlacementError, Remedy
from gpufabric.job import JobState

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

TASK = gf.Task(run="echo hi", num_nodes=2, name="gang")
POLICY = gf.LaunchPolicy(gang_timeout_s=10.0)
NOWHERE = {"nodeSelector": {"there-is": "none"}}


@pytest.fixture
def fabric(make):
    """Makes a fabric of backends that give up soon."""

    def compose(*backends):
        return gf.Fabric(*backends, settings=Settings(trust_env=False, discover_timeout_s=8.0))

    return compose


# ---- dead clusters: what the kubeconfig says is there, and is not


class _Silent:
    """Takes connections and never says a word."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.url = f"https://127.0.0.1:{self.server.getsockname()[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()


class _Stranger(_Silent):
    """Speaks TLS with a certificate of another cluster's authority."""

    def __init__(self):
        super().__init__()
        pki.authority("stranger")  # signs itself
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(layout.pki("stranger.crt"), layout.pki("stranger.key"))
        self.context = context
        self.ended = threading.Event()
        self.server.settimeout(0.1)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while not self.ended.is_set():
            try:
                connection, _ = self.server.accept()
            except TimeoutError:
                continue
            connection.settimeout(5)
            try:
                self.context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        super().__exit__()


def _kubeconfig_of(cluster, folder, **changes):
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"] |= changes
    path = folder / "dead.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.fixture(params=["refuses", "black hole", "silent", "stranger", "no longer lets us in"])
def dead(request, cluster, make, tmp_path):
    """A backend whose cluster is dead in one of several ways, and the words that tell it."""
    kind = request.param
    if kind == "refuses":
        yield make(kubeconfig=_kubeconfig_of(cluster, tmp_path, server="https://127.0.0.1:1"),
                   name="dead"), "refuses connections"  # fmt: skip
    elif kind == "black hole":  # an address of the cluster's network that nobody has
        url = "https://10.240.0.99"
        yield (
            make(kubeconfig=_kubeconfig_of(cluster, tmp_path, server=url), name="dead"),
            ("No route|cannot be reached|no answer"),
        )
    elif kind == "silent":
        with _Silent() as server:
            path = _kubeconfig_of(cluster, tmp_path, server=server.url)
            yield make(kubeconfig=path, name="dead"), "no answer within 8 s|nothing in time"
    elif kind == "stranger":
        with _Stranger() as server:
            path = _kubeconfig_of(cluster, tmp_path, server=server.url)
            yield make(kubeconfig=path, name="dead"), "Verification is never turned off"
    else:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": base64.b64encode(b"expired").decode()}
        path = tmp_path / "dead.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield make(kubeconfig=str(path), name="dead"), "does not accept the credentials"


def test_a_dead_cluster_and_a_full_one_are_passed_over_and_told(
    cluster, namespace, make, fabric, dead
):
    backend, words = dead
    with fabric(backend, make(name="full", pod_patch=NOWHERE), make(name="good")) as all_of_them:
        job = all_of_them.launch(TASK, policy=POLICY)
        full, good = job.attempts
        assert [full.backend, good.backend] == ["full", "good"]
        assert (full.error_type, full.remedy, full.leftovers) == (
            "CapacityError", Remedy.ELSEWHERE, ()
        )  # fmt: skip
        assert "didn't match Pod's node affinity/selector" in full.error
        assert good.error is None
        [rejection] = [one for one in job.rejections if one.backend == "dead"]
        assert any(word in rejection.reason for word in words.split("|")), rejection
        assert job.wait(timeout=60).state is JobState.SUCCEEDED
        job.teardown()
    assert_nothing_left(cluster, namespace)


def test_where_none_is_good_all_are_told_and_nothing_stays(
    cluster, namespace, make, fabric, tmp_path
):
    dead = make(kubeconfig=_kubeconfig_of(cluster, tmp_path, server="https://127.0.0.1:1"),
                name="dead")  # fmt: skip
    with (
        fabric(dead, make(name="full", pod_patch=NOWHERE)) as both,
        pytest.raises(PlacementError) as caught,
    ):
        both.launch(TASK, policy=POLICY)
    assert [one.backend for one in caught.value.attempts] == ["full"]
    assert "dead" in [one.backend for one in caught.value.rejections]
    assert "refuses connections" in str(caught.value)
    assert "didn't match" in str(caught.value)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("fault", [UNAVAILABLE, CUT], ids=str)
def test_a_cluster_that_dies_after_it_was_read_is_passed_over_and_its_rest_is_told(  # noqa: PLR0917
    cluster, namespace, make, fabric, tmp_path, fault
):
    with FaultProxy.before(cluster.kubeconfig) as proxy:
        dying = make(kubeconfig=str(proxy.kubeconfig(tmp_path)), name="dying")
        with fabric(dying, make(name="good")) as both:
            proxy.strike(fault, at=2, writes=True, lasting=True)  # the owner is made, no more
            job = both.launch(TASK, policy=POLICY)
            first, second = job.attempts
            assert (first.backend, second.backend) == ("dying", "good")
            assert first.remedy is Remedy.RETRY
            assert any("gang-" in path for path in first.leftovers), first
            proxy.heal()
            assert job.wait(timeout=60).state is JobState.SUCCEEDED
            for ref in dying.jobs():  # both are one cluster here: what was left, and the job
                dying.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("what", ["absent", "terminating"])
def test_a_cluster_without_the_namespace_is_passed_over(cluster, namespace, make, fabric, what):
    name = f"{namespace}-{what}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    if what == "terminating":  # for as long as it holds something with a finalizer
        cluster.api.create(body)
        meta = {"name": "kept", "namespace": name, "finalizers": ["gpufabric.test/keeps"]}
        kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        cluster.api.create(kept)
        cluster.api.delete(body)
    without = make(name="without")
    without._namespace = name
    try:
        with fabric(without, make(name="good")) as both:
            job = both.launch(TASK, policy=POLICY)
            told = {one.backend: one.error for one in job.attempts} | {
                one.backend: one.reason for one in job.rejections
            }
            assert name in told["without"], told
            assert job.attempts[-1].backend == "good"
            job.teardown()
    finally:
        if what == "terminating":
            cluster.api.call("PATCH", cluster.api.object_path(kept),
                             {"metadata": {"finalizers": None}},
                             content_type="application/merge-patch+json")  # fmt: skip
    assert_nothing_left(cluster, namespace)
