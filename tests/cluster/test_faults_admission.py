"""A cluster that refuses some object of a gang: told in its own words, and nothing stays."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from attrs import evolve
from faultcases import assert_nothing_left
from gfcluster import layout, pki
from gfcluster.api import ApiError
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.errors import BackendError, QuotaError, Remedy

pytestmark = pytest.mark.cluster

JOBSET = ()
INDEXED_JOB = ("jobset",)


def _quota(namespace, **hard):
    return {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "taken", "namespace": namespace},
        "spec": {"hard": {name.replace("_", "/", 1): value for name, value in hard.items()}},
    }  # fmt: skip


def _limits(namespace, **limits):
    return {
        "apiVersion": "v1", "kind": "LimitRange",
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **limits}]},
    }  # fmt: skip


@pytest.fixture
def give(cluster):
    """Makes an object that stays until the test ends."""
    made = []

    def create(item):
        cluster.api.create(item)
        made.append(item)

    yield create
    for item in reversed(made):
        cluster.api.delete(item)


@pytest.fixture
def refused(cluster, namespace, backend):
    """Applies a plan that must fail with this error and these words, and leave nothing."""

    def check(plan, kind, words):
        with pytest.raises(kind, match=words) as caught:
            backend.apply(plan)
        assert caught.value.leftovers == ()
        assert_nothing_left(cluster, namespace)
        assert list(backend.jobs()) == []
        return caught.value

    return check


@pytest.fixture
def until_refusing(cluster, namespace):
    """Waits until a policy is in force, which takes some time after it was made."""

    def wait(plural):
        item = _probe(cluster, namespace, plural)

        def refusing():
            try:
                cluster.api.create(item, dry_run=True)
            except ApiError as exc:
                return str(exc)
            return ""

        wait_until(f"{plural} are refused", refusing, timeout_s=20)

    return wait


def _probe(cluster, namespace, plural):
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": cluster.image}]}
    job = {"template": {"spec": pod}}
    jobset = {"replicatedJobs": [{"name": "n", "template": {"spec": job}}]}
    probes = {
        "pods": {"apiVersion": "v1", "kind": "Pod", "spec": pod},
        "jobs": {"apiVersion": "batch/v1", "kind": "Job", "spec": job},
        "jobsets": {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": jobset},
        "secrets": {"apiVersion": "v1", "kind": "Secret"},
    }
    return {**probes[plural], "metadata": {"name": "probe", "namespace": namespace}}


@pytest.mark.parametrize(
    "case",
    [
        (JOBSET, {"pods": "1"}),
        (INDEXED_JOB, {"pods": "1"}),
        (JOBSET, {"count_jobsets.jobset.x-k8s.io": "0"}),
        (JOBSET, {"count_jobs.batch": "0"}),
        (INDEXED_JOB, {"count_jobs.batch": "0"}),
        (JOBSET, {"count_secrets": "0"}),
        (JOBSET, {"services": "0"}),
        (INDEXED_JOB, {"services": "0"}),
    ],
    ids=lambda case: f"{'indexed-job' if case[0] else 'jobset'}-{next(iter(case[1]))}",
)
def test_a_quota_that_is_taken_after_the_plan_is_told(cluster, backend, refused, give, case):
    without, hard = case
    namespace = backend._where()[1]
    plan = plan_of(backend, without=without, secrets={"TOKEN": "x"})
    give(_quota(namespace, **hard))
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/taken"
    wait_until(
        "the quota is in force",
        lambda: (cluster.api.get(path).get("status") or {}).get("used") is not None,
        timeout_s=20,
    )
    error = refused(plan, QuotaError, "exceeded quota: taken")
    assert error.remedy is Remedy.ELSEWHERE


@pytest.mark.parametrize(
    ("limits", "words", "remedy"),
    [
        ({"max": {"cpu": "100m"}}, "must be less than or equal to cpu limit of 100m", "fix-setup"),
        ({"min": {"memory": "4Ti"}}, "minimum memory usage per Container is 4Ti", "elsewhere"),
        ({"default": {"cpu": "100m"}}, "must be less than or equal to cpu limit", "fix-setup"),
    ],
    ids=["maximum", "minimum", "default-below-request"],
)
def test_a_limit_range_that_refuses_pods_is_told(backend, refused, give, *, limits, words, remedy):
    plan = plan_of(backend, resources={"cpus": 1, "memory_gib": 1})
    give(_limits(backend._where()[1], **limits))
    error = refused(plan, BackendError, words)
    assert error.remedy is Remedy(remedy)


def _policy(namespace, group, plural):
    name = f"{namespace}-{plural}"
    group_name = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"],
            "resources": [plural]}  # fmt: skip
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    yield {
        "apiVersion": group_name, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"namespaceSelector": only_here, "resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "not in this house"}],
        },
    }  # fmt: skip
    yield {
        "apiVersion": group_name, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        (JOBSET, "jobset.x-k8s.io", "jobsets"),
        (JOBSET, "batch", "jobs"),
        (JOBSET, "", "pods"),
        (JOBSET, "", "secrets"),
        (INDEXED_JOB, "batch", "jobs"),
        (INDEXED_JOB, "", "pods"),
    ],
    ids=lambda case: f"{'indexed-job' if case[0] else 'jobset'}-{case[2]}",
)
def test_a_policy_that_refuses_an_object_is_told(backend, refused, give, until_refusing, case):
    without, group, plural = case
    plan = plan_of(backend, without=without, secrets={"TOKEN": "x"})
    for item in _policy(backend._where()[1], group, plural):
        give(item)
    until_refusing(plural)
    error = refused(plan, BackendError, "not in this house")
    assert error.remedy is Remedy.FIX_SETUP


def test_pod_security_that_is_raised_after_the_plan_is_told(cluster, namespace, backend, refused):
    plan = plan_of(backend)
    cluster.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    error = refused(plan, BackendError, "violates PodSecurity")
    assert error.remedy is Remedy.FIX_SETUP


# ---- a webhook of a stranger


class _Webhook(ThreadingHTTPServer):
    """Answers admission reviews over TLS on this machine's address of the cluster's network."""

    daemon_threads = True

    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.asked = threading.Event()
        self.let_go = threading.Event()
        super().__init__((layout.HOST_ADDRESS, 0), _Answer)
        name = "test-webhook"
        pki.server(name, [], [layout.HOST_ADDRESS])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(layout.pki(f"{name}.crt"), layout.pki(f"{name}.key"))
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request, client_address):
        """Says nothing of connections that the API server gave up."""


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.set()
        if self.server.behaviour == "hangs":
            self.server.let_go.wait(60)
            return
        if self.server.behaviour == "breaks":
            self.send_error(500)
            return
        answer = {"uid": review["request"]["uid"], "allowed": False,
                  "status": {"code": 403, "message": "ask the platform team"}}  # fmt: skip
        data = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"],
                           "response": answer}).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Says nothing."""


@pytest.fixture
def webhook(cluster, namespace, give, until_refusing):
    """Starts a webhook that judges one kind of object in the test's namespace."""
    if not cluster.own:
        pytest.skip("needs the cluster of tests/cluster/cluster.py, which reaches this machine")
    servers = []

    def start(behaviour, group, plural, *, failure_policy="Fail"):
        server = _Webhook(behaviour)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        servers.append((server, thread))
        rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"],
                "resources": [plural]}  # fmt: skip
        url = f"https://{layout.HOST_ADDRESS}:{server.server_address[1]}/"
        hook = {
            "name": "stranger.gpufabric.test", "admissionReviewVersions": ["v1"],
            "sideEffects": "None", "failurePolicy": failure_policy, "timeoutSeconds": 1,
            "clientConfig": {"url": url, "caBundle": pki.text64("ca.crt")},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [rule],
        }  # fmt: skip
        give({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration", "metadata": {"name": namespace},
            "webhooks": [hook],
        })  # fmt: skip
        if behaviour == "is gone":
            stop(server, thread)
        if failure_policy == "Fail":
            until_refusing(plural)
        return server

    def stop(server, thread):
        server.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()

    yield start
    for server, thread in servers:
        stop(server, thread)


FAILED = "failed calling webhook"


@pytest.mark.parametrize("what", [("jobset.x-k8s.io", "jobsets"), ("", "pods")], ids=lambda w: w[1])
@pytest.mark.parametrize(
    "case",
    [
        ("refuses", "ask the platform team"),
        ("breaks", FAILED),
        ("hangs", FAILED),
        ("is gone", FAILED),
    ],
    ids=lambda case: case[0].replace(" ", "-"),
)
def test_a_webhook_that_refuses_or_fails_is_told(backend, refused, webhook, case, what):
    behaviour, words = case
    plan = evolve(plan_of(backend), gang_timeout_s=4.0)
    webhook(behaviour, *what)
    refused(plan, BackendError, words)


def test_a_webhook_that_fails_open_does_not_stop_a_gang(cluster, namespace, backend, webhook):
    plan = plan_of(backend)
    server = webhook("breaks", "", "pods", failure_policy="Ignore")
    ref = backend.apply(plan)
    assert server.asked.is_set()
    backend.teardown(ref)
    assert_nothing_left(cluster, namespace)
