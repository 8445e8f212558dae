"""What a whole life asks of the API server is what the Role gives: no more, and no less."""

import os
import re
import socket
import urllib.parse
import urllib.request

import pytest
import yaml
from faultproxy import LOST, FaultProxy
from gfcluster.shell import wait_until
from given import ended, lines_of, nothing_left, plan_of

import gpufabric as gf
from gpufabric.backends.kubernetes._manifest import JOB_LABEL
from gpufabric.backends.kubernetes._role import CLUSTER, NAMED, NEEDED, WISHED, role_text
from gpufabric.errors import CredentialsError
from gpufabric.job import JobState

_OBJECT = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<space>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}
#: What every user may ask: https://kubernetes.io/docs/reference/access-authn-authz/rbac/#discovery-roles
_OPEN = ("/api", "/apis", "/version")
_REVIEWS = "authorization.k8s.io"


def right_of(method, target):
    """Group, resource, verb, whether of a namespace; None for what every user may ask."""
    path, _, text = target.partition("?")
    query = urllib.parse.parse_qs(text)
    found = _OBJECT.match(path)
    if path in _OPEN or found is None:
        return None
    group, resource, sub = found["group"] or "", found["resource"], found["sub"]
    if group == _REVIEWS or (path.startswith("/apis/") and path.count("/") == 3):
        return None
    name, space = found["name"], found["space"] is not None
    if method == "GET":
        watched = query.get("watch", ["false"])[0] in {"true", "1"}
        verb = "get" if name else "watch" if watched else "list"
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    else:
        verb = _VERBS[method]
    return group, f"{resource}/{sub}" if sub else resource, verb, space


@pytest.mark.parametrize(
    ("request_line", "right"),
    [
        ("GET /api/v1/nodes?limit=500", ("", "nodes", "list", False)),
        ("GET /api/v1/namespaces/ml", ("", "namespaces", "get", False)),
        ("GET /api/v1/namespaces/ml/pods?watch=true", ("", "pods", "watch", True)),
        ("GET /api/v1/namespaces/ml/pods/p/log?follow=true", ("", "pods/log", "get", True)),
        ("GET /api/v1/namespaces/ml/pods/p/exec?command=x", ("", "pods/exec", "get", True)),
        ("POST /apis/batch/v1/namespaces/ml/jobs", ("batch", "jobs", "create", True)),
        ("DELETE /apis/batch/v1/namespaces/ml/jobs/j", ("batch", "jobs", "delete", True)),
        ("PATCH /api/v1/namespaces/ml/secrets/s", ("", "secrets", "patch", True)),
        ("GET /apis/jobset.x-k8s.io/v1alpha2", None),
        ("GET /version", None),
        ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", None),
    ],
)
def test_requests_are_read_as_the_server_authorizes_them(request_line, right):
    method, _, target = request_line.partition(" ")
    assert right_of(method, target) == right


def rows_of(rows, *, space):
    return {
        (row[0], row[1], verb, space)
        for row in rows
        for verb in row[-1]
    }  # fmt: skip


GIVEN = (
    rows_of((*NEEDED, *WISHED), space=True)
    | rows_of(CLUSTER, space=False)
    | rows_of(NAMED, space=True)
)
#: Upgrades to a websocket are a GET, and from Kubernetes 1.35 on must also be allowed as create.
TWINS = {
    ("", name, "create", True): ("", name, "get", True)
    for name in ("pods/exec", "pods/portforward")
}


#: Only where the platform's NICs or the cluster's scheduler need them: see the golden plans.
ELSEWHERE = {
    ("", "configmaps"), ("resource.k8s.io", "resourceclaimtemplates"),
    ("resource.nvidia.com", "computedomains"), ("scheduling.k8s.io", "podgroups"),
    ("scheduling.k8s.io", "workloads"), ("scheduling.volcano.sh", "podgroups"),
}  # fmt: skip


#: Asked for only where a flavor, a ClusterQueue, Karpenter or a ResourceSlice leads there.
ONLY_WHERE_USED = {"topologies", "admissionchecks", "nodepools", "resourceclaims"}


def rules_of(*rows):
    made = []
    for row in rows:
        rule = {"apiGroups": [row[0]], "resources": [row[1]], "verbs": list(row[-1])}
        if len(row) == 4:
            rule["resourceNames"] = [row[2]]
        made.append(rule)
    return made


@pytest.fixture
def recorded(limited_user, make, tmp_path):
    """A backend of a user who has just the Role, and a proxy that records what it asks."""
    user = limited_user(
        *rules_of(*NEEDED, *WISHED), cluster_rules=rules_of(*CLUSTER, *NAMED)
    )  # fmt: skip
    with FaultProxy.before(user) as proxy:
        yield make(kubeconfig=str(proxy.kubeconfig(tmp_path))), proxy


#: Nodes of the fake share this machine's ports, so one of them serves.
SERVE = "cat x; [ $NODE_RANK = 0 ] || exec sleep 300; exec timeout 300 python3 -m http.server"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def fetched(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/x", timeout=10) as answer:
            return answer.read()
    except OSError:  # it does not listen yet
        return None


def leave(cluster, namespace, name):
    """What a launch that was killed may leave: objects of a job whose owner is gone."""
    meta = {"name": f"{name}-left", "namespace": namespace, "labels": {JOB_LABEL: name}}
    pod = {"containers": [{"name": "main", "image": cluster.image, "command": ["sleep", "300"]}]}
    for kind, rest in (
        ("Secret", {}), ("Pod", {"spec": pod}),
        ("Service", {"spec": {"clusterIP": "None", "selector": {"a": "b"}}}),
    ):  # fmt: skip
        cluster.api.create({"apiVersion": "v1", "kind": kind, "metadata": meta, **rest})


def live(backend, folder, without=()):
    """Launches, follows, looks into, runs a command in, and removes a gang with code."""
    port = free_port()
    plan = plan_of(
        backend, f"{SERVE} {port}", without=without, workdir=str(folder),
        secrets={"TOKEN": "x"}, resources={"cpus": 0.1}, run_id=f"r{len(without)}",
    )  # fmt: skip
    ref = backend.apply(plan)
    again = plan_of(  # shares the code
        backend, "true", num_nodes=1, without=without, workdir=str(folder),
        resources={"cpus": 0.1}, run_id=f"again{len(without)}",
    )  # fmt: skip
    backend.teardown(backend.apply(again))
    next(iter(backend.logs(ref, follow=True)))
    with gf.Fabric(backend, settings=gf.Settings(trust_env=False)) as fabric:
        job = fabric.attach(ref)
        assert job.exec("echo hi").stdout == b"hi\n"
        with job.port_forward(port) as reached:
            wait_until("the port answers", lambda: fetched(reached.port) == b"here\n", timeout_s=30)
    list(backend.logs(ref))
    assert ref in list(backend.jobs())
    backend.cancel(ref)
    assert ended(backend, ref).state is JobState.CANCELLED
    backend.teardown(ref)


def test_a_life_asks_for_what_the_role_gives_and_nothing_else(recorded, tmp_path, queue, cluster):
    backend, proxy = recorded
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, size in ((small, 10), (large, 2_000_000)):
        folder.mkdir()
        (folder / "x").write_text("here\n")
        (folder / "data").write_bytes(os.urandom(size))
    assert backend.check().ok, str(backend.check())
    live(backend, small)
    live(backend, large, without=("jobset",))
    failing = backend.apply(plan_of(backend, "exit 3", resources={"cpus": 0.1}, run_id="f"))
    assert lines_of(backend, failing) == {0: [], 1: []}
    assert ended(backend, failing).exit_code == 3
    backend.teardown(failing)
    leave(cluster, backend._where()[1], failing.name)
    backend.teardown(failing)
    nothing_left(backend)
    asked = {right_of(one.method, one.path) for one in proxy.requests} - {None}
    refused = {right_of(r.method, r.path) for r in proxy.requests if r.code == 403}
    told = "\n".join(map(str, sorted(asked - GIVEN)))
    assert asked - GIVEN == set(), f"asked and not in the Role:\n{told}"
    assert refused == set()
    seen = asked | {twin for twin, one in TWINS.items() if one in asked}
    inside = {right for right in GIVEN if right[3] and right[:2] not in ELSEWHERE}
    unused = inside - seen
    assert unused == set(), f"in the Role and never asked:\n{unused}"
    wide = {right for right in GIVEN if not right[3] and right[1] not in ONLY_WHERE_USED}
    assert wide - asked == set(), f"in the ClusterRole and never asked:\n{wide - asked}"


@pytest.mark.parametrize("number", range(1, 6))
def test_whose_answer_is_lost_is_seen_with_the_role_alone(recorded, number):
    backend, proxy = recorded
    plan = plan_of(backend, "echo hi", without=("jobset",), secrets={"TOKEN": "x"})
    proxy.strike(LOST, at=number, writes=True)
    ref = backend.apply(plan)
    proxy.heal()
    assert lines_of(backend, ref) == {0: ["hi"], 1: ["hi"]}
    backend.teardown(ref)
    nothing_left(backend)
    assert [r.path for r in proxy.requests if r.code == 403] == []


def test_without_any_wished_right_a_gang_lives_and_dies(limited_user, make):
    backend = make(kubeconfig=str(limited_user(*rules_of(*NEEDED))))
    report = backend.check()
    assert report.ok, str(report)
    lost = [item.message for item in report.items if item.warn]
    assert any("may not list nodes in the cluster: no GPUs can be offered" in m for m in lost)
    ref = backend.apply(plan_of(backend))
    assert lines_of(backend, ref) == {0: ["hi"], 1: ["hi"]}
    assert ended(backend, ref).state is JobState.SUCCEEDED
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.parametrize(
    ("group", "resource", "verb"), [(row[0], row[1], row[2][-1]) for row in NEEDED]
)
def test_a_needed_verb_that_is_missing_is_named(limited_user, make, group, resource, verb):
    rows = [
        (g, r, tuple(v for v in verbs if (g, r, v) != (group, resource, verb)))
        for g, r, verbs in (*NEEDED, *WISHED)
    ]
    report = make(kubeconfig=str(limited_user(*rules_of(*(row for row in rows if row[2]))))).check()
    label = f"{resource}.{group}" if group else resource
    (failed,) = [item for item in report.items if not item.ok]
    assert failed.message.startswith(f"may not {verb} {label} in ")


def test_a_user_without_any_right_is_told_all_of_them(limited_user, make):
    backend = make(kubeconfig=str(limited_user()))
    report = backend.check()
    failed = {item.name.split()[0] for item in report.items if not item.ok}
    assert failed == {f"{r}.{g}" if g else r for g, r, _ in NEEDED}
    with pytest.raises(CredentialsError, match="not allowed"):
        backend.apply(plan_of(make(), resources={"cpus": 0.1}))


def test_the_role_that_is_printed_is_taken_by_the_server(cluster, namespace, tmp_path):
    role = yaml.safe_load(role_text(namespace, cluster=False))
    made = cluster.api.create(role)
    assert made["rules"] == role["rules"]
