"""What Kubernetes gangs keep beyond the contract, on the fake and on a real cluster."""

import pytest
import yaml
from attrs import evolve
from given import ended, launched_at_once, lines_of, nothing_left, plan_of

from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.backends.kubernetes._manifest import CANCELLED
from gpufabric.backends.kubernetes._meeting import PORT
from gpufabric.backends.kubernetes._role import NEEDED, WISHED
from gpufabric.config import Settings
from gpufabric.errors import BackendError, CapacityError, QuotaError
from gpufabric.job import JobState
from gpufabric.task import Task


@pytest.mark.parametrize("without", [(), ("jobset",)], ids=["jobset", "indexed-job"])
def test_a_gang_has_names_code_and_secrets_on_every_node(backend, tmp_path, without):
    (tmp_path / "train.sh").write_text(
        "cat data/x.txt; echo; echo ${#TOKEN}; getent hosts $MASTER_ADDR; sleep infinity"
    )
    plan = plan_of(
        backend, "sh train.sh", without=without, workdir=str(tmp_path),
        files={"data/x.txt": "from files"}, secrets={"TOKEN": "s3cr3t"},
    )  # fmt: skip
    ref = backend.apply(plan)
    lines = {0: [], 1: []}
    followed = (x for x in backend.logs(ref, follow=True) if x.stream == "stdout")
    while min(map(len, lines.values())) < 3:  # both run on, so that both names are known
        line = next(followed)
        lines[line.node_rank].append(line.text)
    followed.close()
    for rank in (0, 1):
        assert lines[rank][:2] == ["from files", "6"]
        assert lines[rank][2].split()[0] == lines[0][2].split()[0]
    backend.teardown(ref)
    nothing_left(backend)


def test_an_indexed_job_fails_as_one_with_the_first_code(backend):
    run = '[ "$NODE_RANK" = 1 ] && echo broken && exit 3; sleep infinity'
    ref = backend.apply(plan_of(backend, run, without=("jobset",)))
    status = ended(backend, ref)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert "broken" in status.tail
    backend.teardown(ref)
    nothing_left(backend)


def test_a_gang_that_only_half_fits_is_rolled_back_with_the_schedulers_words(backend, own_cluster):
    own_cluster.dress("eks-p5")
    gpus = {"resources": {"accelerators": "H100:8", "network_tier": "best"}}
    wide = plan_of(backend, "sleep infinity", **gpus)
    narrow = plan_of(
        backend, "sleep infinity", num_nodes=1, resources={"accelerators": "H100:8"}, name="first"
    )
    taken = backend.apply(narrow)
    with pytest.raises(CapacityError, match=r"Insufficient (nvidia|vpc)") as caught:
        backend.apply(evolve(wide, gang_timeout_s=3.0))
    assert (caught.value.wanted, caught.value.got, caught.value.leftovers) == (2, 1, ())
    assert list(backend.jobs()) == [taken]
    backend.teardown(taken)
    nothing_left(backend)


def test_a_gang_on_dressed_nodes_has_what_its_platform_needs(backend, own_cluster):
    own_cluster.dress("eks-p5")
    plan = plan_of(
        backend, "echo $GPUFABRIC_GPUS_PER_NODE $FI_PROVIDER",
        resources={"accelerators": "H100:8", "network_tier": "best"},
    )  # fmt: skip
    ref = backend.apply(plan)
    provider = next((v.value for v in plan.env if v.name == "FI_PROVIDER"), "")
    assert lines_of(backend, ref) == {rank: [f"8 {provider}".strip()] for rank in (0, 1)}
    backend.teardown(ref)
    nothing_left(backend)


def test_two_launchers_with_one_plan_make_one_job(backend, make):
    plan, other = plan_of(backend), make()
    refs = launched_at_once(plan, backend, other)
    assert len(refs) == 2
    assert len(set(refs)) == 1
    assert list(backend.jobs()) == refs[:1]
    assert lines_of(backend, refs[0]) == {0: ["hi"], 1: ["hi"]}
    backend.teardown(refs[0])
    nothing_left(backend)


def test_a_quota_taken_meanwhile_is_told_and_nothing_stays(backend, cluster, namespace):
    plan = plan_of(backend)
    cluster.kubectl("-n", namespace, "create", "quota", "none", "--hard=pods=1")
    with pytest.raises(QuotaError, match="exceeded quota"):
        backend.apply(plan)
    nothing_left(backend)


def test_admission_that_refuses_pods_is_told_and_nothing_stays(backend, cluster, namespace):
    plan = plan_of(backend, volumes={}, envs={"A": "b"})
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, level)
    with pytest.raises(BackendError, match="violates PodSecurity"):
        backend.apply(plan)
    nothing_left(backend)


@pytest.mark.cluster  # the fake's pods are processes of whoever runs the tests
def test_restricted_pods_pass_pod_security_restricted(backend, cluster, namespace):
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, level)
    ref = backend.apply(plan_of(backend, "id -u"))
    assert lines_of(backend, ref) == {0: ["1000"], 1: ["1000"]}
    backend.teardown(ref)
    nothing_left(backend)


def test_an_image_that_can_never_be_pulled_ends_the_launch(backend):
    with pytest.raises(BackendError, match="InvalidImageName"):
        backend.apply(plan_of(backend, resources={"image": "UPPER CASE//no"}))
    nothing_left(backend)


def test_the_role_that_is_printed_is_enough(make, limited_user, cluster):
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for group, resource, verbs in (*NEEDED, *WISHED)
    ]
    nodes = [{"apiGroups": [""], "resources": ["nodes", "namespaces"], "verbs": ["list", "get"]}]
    backend = make(kubeconfig=str(limited_user(*rules, cluster_rules=nodes)))
    assert backend.check().ok, str(backend.check())
    ref = backend.apply(plan_of(backend, secrets={"TOKEN": "x"}))
    assert lines_of(backend, ref) == {0: ["hi"], 1: ["hi"]}
    assert ended(backend, ref).state is JobState.SUCCEEDED
    backend.teardown(ref)
    nothing_left(backend)


def test_a_missing_right_is_named_with_its_verb(make, limited_user):
    few = [
        {
            "apiGroups": [group],
            "resources": [resource],
            "verbs": [v for v in verbs if v != "create"],
        }
        for group, resource, verbs in NEEDED
    ]
    report = make(kubeconfig=str(limited_user(*few))).check()
    assert not report.ok
    assert any("may not create secrets" in item.message for item in report.items)


def test_without_a_right_to_see_nodes_the_rest_works_and_it_is_told(make, limited_user):
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for group, resource, verbs in NEEDED
    ]
    backend = make(kubeconfig=str(limited_user(*rules)))
    site = backend.discover()
    assert any(text.startswith("nodes: not allowed") for text in site.unseen)
    ref = backend.apply(plan_of(backend))
    assert lines_of(backend, ref) == {0: ["hi"], 1: ["hi"]}
    backend.teardown(ref)
    assert leftovers(backend._api, backend._where()[1], ref.name, jobsets=True) == []


def test_a_gang_goes_through_the_queue_of_its_namespace(backend, queue, monkeypatch):
    from gpufabric.backends.kubernetes import _wait

    first = backend.apply(plan_of(backend, "sleep infinity", resources={"cpus": 1}))
    assert backend.status(first).state is JobState.RUNNING
    monkeypatch.setitem(_wait.LIMITS_S, "queued", 2.0)
    with pytest.raises(QuotaError, match="insufficient unused quota"):
        backend.apply(plan_of(backend, "echo hi", resources={"cpus": 1}, run_id="second"))
    assert list(backend.jobs()) == [first]
    backend.cancel(first)
    assert ended(backend, first).state is JobState.CANCELLED
    second = backend.apply(plan_of(backend, "echo hi", resources={"cpus": 1}, run_id="third"))
    assert lines_of(backend, second) == {0: ["hi"], 1: ["hi"]}
    for ref in (first, second):
        backend.teardown(ref)
    nothing_left(backend)


def test_a_cancel_that_died_on_its_way_to_the_queue_is_finished_by_the_next(backend, queue):
    ref = backend.apply(plan_of(backend, "sleep infinity", resources={"cpus": 1}))
    path = backend._found(ref, "cancel").path
    backend._api.merge(path, {"metadata": {"annotations": {CANCELLED: "2026-01-01T00:00:00Z"}}})
    assert backend.status(ref).state is JobState.RUNNING
    backend.cancel(ref)
    assert ended(backend, ref).state is JobState.CANCELLED
    backend.teardown(ref)
    nothing_left(backend)


def test_a_controller_installed_since_is_known_when_its_jobs_are_made_and_removed(backend):
    plan = plan_of(backend, "sleep infinity")
    backend._served = {"batch": "batch/v1"}  # asked before JobSet was there
    ref = backend.apply(plan)
    assert backend.status(ref).state is JobState.RUNNING
    backend.teardown(ref)
    nothing_left(backend)


def test_a_dead_cluster_and_a_full_one_are_passed_over_for_a_good_one(make, cluster, tmp_path):
    import gpufabric as gf

    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "dead").write_text(yaml.safe_dump(config))
    dead = make(kubeconfig=str(tmp_path / "dead"), name="dead", retry_s=1.0)
    full = make(name="full", pod_patch={"nodeSelector": {"there-is": "none"}})
    fabric = gf.Fabric(dead, full, make(name="good"), settings=Settings(trust_env=False))
    policy = gf.LaunchPolicy(gang_timeout_s=3)
    job = fabric.launch(Task(run="echo hi", num_nodes=2, name="gang"), policy=policy)
    assert [attempt.backend for attempt in job.attempts] == ["full", "good"]
    assert "didn't match Pod's node affinity/selector" in (job.attempts[0].error or "")
    assert "dead" in [rejection.backend for rejection in fabric.offers(Task(run="true")).rejections]
    assert job.wait(timeout=60).state is JobState.SUCCEEDED
    job.teardown()
    nothing_left(full)


@pytest.mark.parametrize("without", [(), ("jobset",)], ids=["jobset", "indexed-job"])
def test_a_late_node_finds_the_others_though_their_command_is_short(
    backend, make, cluster, without
):
    """The late one's init container ends when node 0 awaits it, as an image that is pulled."""
    fields = {"without": without, "run_id": "late"}
    first = next(v.value for v in plan_of(backend, **fields).env if v.name == "MASTER_ADDR")
    knock = f"import socket, sys; socket.create_connection((sys.argv[1], {PORT}), 1)"
    script = (
        '[ "$JOB_COMPLETION_INDEX" = 0 ] ||'
        f" until python3 -c '{knock}' `getent hosts {first}`; do sleep 0.1; done"
    )
    late = {"name": "late", "image": cluster.image, "command": ["/bin/sh", "-c", script]}
    patched = make(pod_patch={"initContainers": [late]})
    ref = patched.apply(plan_of(patched, **fields))
    assert lines_of(patched, ref) == {0: ["hi"], 1: ["hi"]}
    assert ended(patched, ref).state is JobState.SUCCEEDED
    patched.teardown(ref)
    nothing_left(patched)
