"""How code reaches the nodes of a gang: by its hash, shared while it is used, then gone.

What takes long, or asks for a kubelet's own work, runs on a real cluster only.
"""

import functools
import os
import subprocess
import sys

import pytest
from gfcluster.shell import wait_until
from given import ended, lines_of, nothing_left, plan_of

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._carry import CODE_LABEL, SERVED_BY
from gpufabric.backends.kubernetes._role import NEEDED
from gpufabric.config import Settings
from gpufabric.errors import CapacityError, ConflictError, CredentialsError, QuotaError, SpecError
from gpufabric.job import JobState
from gpufabric.testing._other import OtherProcess, seeded_moments, shared_interpreter


def secret(backend, name, text, **labels):
    """A Secret that someone else has made."""
    import base64

    _, namespace = backend._where()
    body = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels},
        "data": {"workdir.tar.gz": base64.b64encode(text.encode()).decode()},
    }  # fmt: skip
    backend._api.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body=body)


def delete(backend, kind, name, **options):
    _, namespace = backend._where()
    body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
    backend._api.request("DELETE", f"/{kind[0]}/namespaces/{namespace}/{kind[1]}/{name}", body=body)


def carriers(backend):
    """Kind and name of all that holds code in the namespace, with the names of its owners."""
    _, namespace = backend._where()
    found = {}
    for kind in ("secrets", "pods"):
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        for one in backend._api.items(path, {"labelSelector": CODE_LABEL}):
            owners = [ref["name"] for ref in one["metadata"].get("ownerReferences", [])]
            found[kind, one["metadata"]["name"]] = sorted(owners)
    return found


@pytest.fixture(params=[10, 2_000_000], ids=["in-a-secret", "served"])
def workdir(request, tmp_path):
    """A folder whose packed size is below and above what a Secret holds."""
    (tmp_path / "train.sh").write_text("cksum data.bin")
    (tmp_path / "data.bin").write_bytes(os.urandom(request.param))
    return tmp_path


def test_equal_code_is_uploaded_once_and_goes_with_its_last_user(backend, workdir):
    first, second = (
        plan_of(backend, "sh train.sh; sleep infinity", workdir=str(workdir), run_id=run)
        for run in ("a", "b")
    )
    one = backend.apply(first)
    before = carriers(backend)
    versions = held(backend)
    two = backend.apply(second)
    assert set(carriers(backend)) == set(before)
    assert all(owners == sorted([one.name, two.name]) for owners in carriers(backend).values())
    assert held(backend) == versions
    backend.teardown(one)
    wait_until(
        "the first has gone from the owners",
        lambda: all(owners == [two.name] for owners in carriers(backend).values()),
        timeout_s=30,
    )
    assert set(carriers(backend)) == set(before)
    assert backend.status(two).state is JobState.RUNNING
    backend.teardown(two)
    nothing_left(backend)


def held(backend):
    """What holds code, by uid and content: it changes when something is uploaded again."""
    _, namespace = backend._where()
    query = {"labelSelector": CODE_LABEL}
    secrets = backend._api.items(f"/api/v1/namespaces/{namespace}/secrets", query)
    pods = backend._api.items(f"/api/v1/namespaces/{namespace}/pods", query)
    return [(one["metadata"]["uid"], one.get("data")) for one in (*secrets, *pods)]


def test_code_arrives_on_every_node_as_it_was(backend, workdir):
    wanted = subprocess.run(
        ["cksum", "data.bin"], cwd=workdir, check=True, capture_output=True, text=True
    ).stdout.strip()
    ref = backend.apply(plan_of(backend, "sh train.sh", workdir=str(workdir)))
    assert lines_of(backend, ref) == {0: [wanted], 1: [wanted]}
    backend.teardown(ref)
    nothing_left(backend)


def test_code_above_the_limit_is_refused_before_anything_is_made(make, tmp_path):
    backend = make(settings=Settings(workdir_limit_mb=1.0, trust_env=False))
    (tmp_path / "data.bin").write_bytes(os.urandom(1_100_000))
    with pytest.raises(SpecError, match=r"more than the limit of 1 MB.*data\.bin"):
        backend.apply(plan_of(backend, workdir=str(tmp_path)))
    nothing_left(backend)


# ---- what is not as it was left


def test_a_work_folder_that_has_changed_is_not_taken_for_the_job_that_runs(backend, workdir):
    plan = plan_of(backend, "sleep infinity", workdir=str(workdir))
    ref = backend.apply(plan)
    assert backend.apply(plan) == ref
    (workdir / "train.sh").write_text("echo other")
    with pytest.raises(ConflictError, match="exists with other code"):
        backend.apply(plan)
    assert backend.status(ref).state is JobState.RUNNING
    backend.teardown(ref)
    nothing_left(backend)


def test_code_that_someone_has_changed_is_not_unpacked(backend, tmp_path):
    (tmp_path / "train.sh").write_text("echo mine")
    plan = plan_of(backend, "sh train.sh", workdir=str(tmp_path), num_nodes=1)
    ref = backend.apply(plan)
    assert lines_of(backend, ref)[0] == ["mine"]
    ((_, name),) = carriers(backend)
    backend.teardown(ref)
    secret(backend, name, "evil", **{CODE_LABEL: name})
    status = ended(backend, backend.apply(plan))
    assert (status.state, status.exit_code) == (JobState.FAILED, 66)
    assert "is not what was launched" in " ".join(status.tail)
    backend.teardown(ref)
    nothing_left(backend)


def test_what_an_earlier_job_of_the_name_has_left_is_replaced(backend):
    plan = plan_of(backend, 'echo "$TOKEN"', secrets={"TOKEN": "new"}, num_nodes=1)
    name = next(step.name for step in plan.steps if step.kind == "JobSet")
    secret(backend, name, "x", **{"gpufabric.io/job": name})
    ref = backend.apply(plan)
    assert lines_of(backend, ref)[0] == ["new"]
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.cluster
def test_a_job_whose_owner_was_orphaned_leaves_nothing_after_teardown(backend, workdir):
    plan = plan_of(backend, "sleep infinity", workdir=str(workdir), secrets={"TOKEN": "x"})
    ref = backend.apply(plan)
    delete(
        backend, ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"), ref.name, propagationPolicy="Orphan"
    )
    backend.teardown(ref)
    nothing_left(backend)


# ---- launchers that die, and several at once


@pytest.fixture
def factory(cluster, namespace):
    return functools.partial(
        Kubernetes, namespace=namespace, kubeconfig=str(cluster.kubeconfig),
        settings=Settings(stop_grace_s=1.0, trust_env=False), image=cluster.image,
    )  # fmt: skip


@pytest.fixture
def other(factory):
    return OtherProcess(factory, shared_interpreter())


@pytest.mark.cluster
@pytest.mark.parametrize("again", [False, True], ids=["removed", "completed"])
def test_a_launcher_that_is_killed_on_the_way_leaves_what_another_removes_or_completes(
    backend, other, workdir, again
):
    plan = plan_of(backend, "cat train.sh; sleep 1", workdir=str(workdir), num_nodes=1)
    for _ in range(2):  # the first imports what a launch imports
        measured = other.moments("apply", plan)
        ref = measured.get()
        backend.teardown(ref)
    for moment in seeded_moments(measured.moments, 4, seed=5 + again):
        other.killed("apply", plan, at=moment)
        if again:
            assert backend.apply(plan) == ref
            assert ended(backend, ref).state is JobState.SUCCEEDED
        backend.teardown(ref)
        nothing_left(backend)


@pytest.mark.cluster
def test_several_launchers_with_one_plan_serve_its_code_once(backend, other, workdir):
    plan = plan_of(backend, "cat train.sh", workdir=str(workdir), num_nodes=1)
    refs = {outcome.get() for outcome in other.at_once("apply", plan, copies=3)}
    assert len(refs) == 1
    (ref,) = refs
    assert all(owners == [ref.name] for owners in carriers(backend).values())
    assert lines_of(backend, ref)[0] == ["cksum data.bin"]
    backend.teardown(ref)
    nothing_left(backend)


# ---- code that a pod serves


@pytest.fixture
def large(tmp_path):
    (tmp_path / "data.bin").write_bytes(os.urandom(1_500_000))
    return str(tmp_path)


def served_by(backend):
    _, namespace = backend._where()
    query = {"labelSelector": CODE_LABEL}
    (secret,) = backend._api.items(f"/api/v1/namespaces/{namespace}/secrets", query)
    return secret["metadata"]["annotations"][SERVED_BY], secret["data"]["address"]


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["deleted", "failed"])
def test_a_launch_replaces_the_pod_that_is_lost_for_all_jobs_of_that_code(backend, large, how):
    one = backend.apply(plan_of(backend, "sleep infinity", workdir=large, num_nodes=1))
    before = served_by(backend)
    pod = next(name for kind, name in carriers(backend) if kind == "pods")
    if how == "deleted":
        delete(backend, ("api/v1", "pods"), pod)
    else:
        backend._api.request(
            "PATCH", f"/api/v1/namespaces/{backend._where()[1]}/pods/{pod}/status",
            body={"status": {"phase": "Failed", "reason": "Evicted"}},
            content_type="application/merge-patch+json",
        )  # fmt: skip
    two = backend.apply(
        plan_of(backend, "cksum data.bin", workdir=large, num_nodes=1, run_id="second")
    )
    assert len(lines_of(backend, two)[0]) == 1
    assert served_by(backend)[0] != before[0]
    for ref in (one, two):
        backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.cluster
def test_a_gang_that_starts_again_fetches_the_code_again(backend, large):
    run = '[ "$GPUFABRIC_ATTEMPT" = 1 ] && cksum data.bin && exit 0; rm data.bin; exit 1'
    ref = backend.apply(plan_of(backend, run, workdir=large, num_nodes=1, max_restarts=1))
    wait_until("it has ended", lambda: backend.status(ref).state.ended, timeout_s=90)
    assert backend.status(ref).state is JobState.SUCCEEDED
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.cluster
def test_code_is_served_in_a_restricted_namespace(backend, cluster, namespace, large):
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, level)
    ref = backend.apply(plan_of(backend, "cksum data.bin", workdir=large, num_nodes=1))
    assert ended(backend, ref).state is JobState.SUCCEEDED
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.cluster
def test_a_quota_without_room_for_the_pod_that_serves_is_told(backend, cluster, namespace, large):
    plan = plan_of(backend, workdir=large)
    cluster.kubectl("-n", namespace, "create", "quota", "two", "--hard=pods=2")
    with pytest.raises(QuotaError, match="exceeded quota"):
        backend.apply(plan)
    nothing_left(backend)


def test_a_user_who_may_not_make_pods_is_told_and_nothing_stays(make, limited_user, large):
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for group, resource, verbs in NEEDED
    ]
    backend = make(kubeconfig=str(limited_user(*rules)))
    with pytest.raises(CredentialsError, match=r"cannot create resource .pods."):
        backend.apply(plan_of(backend, workdir=large))
    nothing_left(backend)


def test_an_image_whose_python3_cannot_run_is_told_at_once(backend, make, large, monkeypatch):
    from gpufabric.backends.kubernetes import _carry

    monkeypatch.setattr(_carry, "PYTHON", "python3-is-not-there")
    with pytest.raises(Exception, match=r"cannot run python3 of the image.*not found"):
        backend.apply(plan_of(backend, workdir=large))
    nothing_left(backend)


# ---- images, and secrets


@pytest.mark.cluster
@pytest.mark.parametrize("user", [0, 1234])
def test_an_image_that_is_read_only_runs_as_any_user(make, workdir, user):
    container = {"name": "job", "securityContext": {"readOnlyRootFilesystem": True}}
    patch = {"securityContext": {"runAsUser": user}, "containers": [container]}
    backend = make(pod_patch=patch)
    run = "cat train.sh; echo; id -u; touch /x 2>/dev/null || echo read-only; touch mine"
    ref = backend.apply(plan_of(backend, run, workdir=str(workdir), num_nodes=1))
    assert lines_of(backend, ref)[0] == ["cksum data.bin", str(user), "read-only"]
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.cluster
def test_an_image_without_a_shell_is_told_in_the_runtimes_words(make):
    backend = make(pod_patch={"containers": [{"name": "job", "command": ["/bin/no-shell"]}]})
    ref = backend.apply(plan_of(backend, num_nodes=1))
    status = ended(backend, ref)
    assert status.state is JobState.FAILED
    assert "/bin/no-shell" in status.reason
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.parametrize(
    "value", ["", "two\nlines\n", "ünïcode ☃", "$(HOME) $HOME `id` 'q' \"", "x" * 100_000]
)
def test_any_secret_arrives_as_it_is(backend, value):
    program = "import hashlib, os; print(hashlib.sha256(os.environb[b'TOKEN']).hexdigest())"
    wanted = (
        subprocess.run(
            [sys.executable, "-c", program], env={"TOKEN": value}, check=True, capture_output=True
        )
        .stdout.decode()
        .strip()
    )
    task = {"secrets": {"TOKEN": value}, "num_nodes": 1}
    ref = backend.apply(plan_of(backend, ["python3", "-c", program], **task))
    assert lines_of(backend, ref)[0] == [wanted]
    backend.teardown(ref)
    nothing_left(backend)


def test_a_pod_that_serves_and_finds_no_node_is_told_within_the_plans_time(backend, large):
    from attrs import evolve

    from gpufabric._frozen import freeze, thaw

    plan = plan_of(backend, workdir=large, num_nodes=1)
    steps = thaw([step.body for step in plan.steps])
    for body in steps:
        if body.get("kind") == "Pod":
            body["spec"]["nodeSelector"] = {"there-is": "none"}
    steps = [evolve(step, body=freeze(body)) for step, body in zip(plan.steps, steps, strict=True)]
    with pytest.raises(CapacityError, match=r"which serves the code, is not up \(unschedulable\)"):
        backend.apply(evolve(plan, steps=tuple(steps), gang_timeout_s=2.0))
    nothing_left(backend)
