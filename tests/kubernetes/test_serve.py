"""Gangs that serve: started again as a whole whenever a node ends, until someone ends them."""

import pytest
from attrs import evolve
from gfcluster.shell import wait_until
from given import launched_at_once, nothing_left, plan_of

import gpufabric as gf
from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.backends.kubernetes._objects import path_of
from gpufabric.backends.kubernetes._role import (
    CLUSTER,
    NEEDED,
    SERVING,
    SERVING_WISHED,
    WISHED,
)
from gpufabric.errors import CapacityError, CredentialsError, QuotaError
from gpufabric.job import JobRef, JobState

SMALL = {"cpus": 0.1}
#: Ends with the code that a file says, once someone has written it.
UNTIL = (
    'echo "rank $NODE_RANK of $NNODES, master $MASTER_ADDR, $(cat word 2>/dev/null)";'
    " until [ -e code ]; do sleep 0.1; done; exit $(cat code)"
)


@pytest.fixture
def serving(make):
    """A backend of the test's namespace whose tasks serve."""
    return make(serve=True)


def serve(backend, run=UNTIL, **fields):
    return backend.apply(plan_of(backend, run, resources=SMALL, **fields))


def pods_of(backend):
    _, namespace = backend._where()
    return list(backend._api.items(path_of("v1", "Pod", namespace)))


def uids(backend):
    return {pod["metadata"]["uid"] for pod in pods_of(backend)}


def whole(status):
    return all(node.state is JobState.RUNNING for node in status.nodes)


def attached(backend, ref):
    fabric = gf.Fabric(backend, settings=gf.Settings(trust_env=False))
    return fabric.attach(ref)


def end(backend, ref, *, rank, code):
    """Lets a node end; gives what each node printed before and after, and what was said between."""
    lines = (x for x in backend.logs(ref, follow=True) if x.stream == "stdout")
    first = [next(lines) for _ in range(2)]
    attached(backend, ref).exec(f"echo {code} >code.new; mv code.new code", node_rank=rank)
    said = next(lines)
    second = [next(lines) for _ in range(2)]
    lines.close()
    both = [sorted((x.node_rank, x.text) for x in of) for of in (first, second)]
    return *both, (said.node_rank, said.text)


def test_what_serves_is_found_by_others_and_ends_by_cancel_alone(serving, backend):
    ref = serve(serving)
    status = backend.status(ref)
    assert (status.state, whole(status), status.reason) == (JobState.RUNNING, True, "")
    assert list(backend.jobs()) == [ref]
    job = attached(backend, ref)
    told = job.exec('echo $GPUFABRIC_NODE_RANK "$GPUFABRIC_NODE_IPS"', node_rank=1).stdout
    rank, first, second = told.split()
    assert (rank, first != second) == (b"1", True)
    backend.cancel(ref)
    assert job.wait(timeout=60).state is JobState.CANCELLED
    assert pods_of(backend) == []
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.parametrize(("rank", "code"), [(1, 3), (0, 0)])
def test_where_a_node_ends_all_start_again_as_they_were(serving, tmp_path, rank, code):
    (tmp_path / "word").write_text("hello")
    ref = serve(serving, workdir=str(tmp_path))
    before = uids(serving)
    first, second, said = end(serving, ref, rank=rank, code=code)
    master = f"{ref.name}-0.{ref.name}"
    assert first == [(n, f"rank {n} of 2, master {master}, hello") for n in (0, 1)]
    told = f"gpufabric: this node has ended with exit code {code}, and all nodes start again"
    assert said == (rank, told)
    assert second == first  # in a fresh folder, with code that was verified again
    assert not uids(serving) & before
    wait_until("it is whole", lambda: whole(serving.status(ref)), timeout_s=60)
    status = serving.status(ref)
    assert (status.state, status.attempt) == (JobState.RUNNING, 0)
    assert status.reason.startswith("started again at least once, last at ")
    assert status.reason.endswith(f", when node {rank} ended")
    told = [x.text for x in serving.logs(ref) if x.stream == "event" and x.node_rank == -1]
    assert any(text.startswith("RecreateGroupOnPodRestart: ") for text in told), told
    serving.teardown(ref)
    nothing_left(serving)


def test_a_crash_loop_is_told_and_can_be_torn_down(serving, backend):
    ref = serve(serving, "exit 7")
    again = "started again at least 2 times"
    wait_until(again, lambda: again in backend.status(ref).reason, timeout_s=60)
    assert not backend.status(ref).state.ended
    backend.teardown(ref)
    nothing_left(backend)
    assert backend.status(ref).state is JobState.GONE


def test_a_set_whose_launcher_died_has_no_pods_and_is_let_go_by_the_next(serving, backend):
    plan = plan_of(serving, UNTIL, resources=SMALL)
    context, namespace = serving._where()
    ref = JobRef(backend="kubernetes", place=f"{context}/{namespace}", name=plan.name)
    for died_again in (False, True):
        (step,) = (step for step in plan.steps if step.kind == "LeaderWorkerSet"
                   and step.verb == "create")  # fmt: skip
        body = thaw(step.body)
        template = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        for row in template["spec"]["containers"][0]["env"]:
            if row.get("value") == {"launched": "seconds"}:
                row["value"] = "0"
        root = path_of(body["apiVersion"], step.kind, namespace)
        serving._api.request("POST", root, body=body)
        assert backend.status(ref).state is JobState.PENDING
        assert pods_of(backend) == []
        if not died_again:
            backend.teardown(ref)
            assert list(backend.jobs()) == []
    assert serving.apply(plan) == ref
    assert whole(backend.status(ref))
    backend.teardown(ref)
    nothing_left(backend)


def test_two_launchers_with_one_plan_make_one_set(serving, make):
    plan, other = plan_of(serving, UNTIL, resources=SMALL), make(serve=True)
    refs = launched_at_once(plan, serving, other)
    assert len(refs) == 2
    assert list(serving.jobs()) == refs[:1] == refs[1:]
    assert len(pods_of(serving)) == 2
    other.teardown(refs[0])
    nothing_left(serving)


def test_a_set_that_only_half_fits_is_rolled_back_with_the_schedulers_words(make, own_cluster):
    own_cluster.dress("eks-p5")
    serving, backend = make(serve=True), make()
    gpus = {"accelerators": "H100:8", "network_tier": "best"}
    plan = evolve(plan_of(serving, UNTIL, resources=gpus), gang_timeout_s=3.0)
    taken = backend.apply(plan_of(backend, "sleep 300", num_nodes=1, resources=gpus))
    with pytest.raises(CapacityError, match=r"Insufficient (nvidia|vpc)") as caught:
        serving.apply(plan)
    assert (caught.value.wanted, caught.value.got, caught.value.leftovers) == (2, 1, ())
    assert list(backend.jobs()) == [taken]
    backend.teardown(taken)
    nothing_left(backend)


def test_pods_of_a_set_that_are_refused_are_told_and_nothing_stays(serving, cluster, namespace):
    plan = plan_of(serving, UNTIL, resources=SMALL)
    cluster.kubectl("-n", namespace, "create", "quota", "none", "--hard=pods=1")
    with pytest.raises(QuotaError, match="exceeded quota"):
        serving.apply(plan)
    nothing_left(serving)


def test_a_job_and_a_server_of_one_task_are_two_whatever_their_backends_are_called(make, backend):
    serving = make(serve=True, name=backend.name)
    refs = [of.apply(plan_of(of, "sleep 300", resources=SMALL)) for of in (backend, serving)]
    assert set(backend.jobs()) == set(refs)
    assert len(set(refs)) == 2
    serving.teardown(refs[0])
    assert list(backend.jobs()) == [refs[1]]
    assert whole(backend.status(refs[1]))
    backend.teardown(refs[1])
    nothing_left(backend)


@pytest.mark.parametrize("serves", [True, False], ids=["server", "job"])
def test_a_gang_let_go_after_its_cancel_is_stopped_by_the_next_cancel(make, backend, serves):
    of = make(serve=serves)
    ref = of.apply(plan_of(of, "sleep 300", resources=SMALL))
    backend.cancel(ref)
    found = backend._look(ref)
    late = {"replicas": 1} if serves else {"suspend": False}
    backend._api.merge(found.path, {"spec": late})  # of a launcher that had looked before
    backend.cancel(ref)
    assert attached(backend, ref).wait(timeout=60).state is JobState.CANCELLED
    backend.teardown(ref)
    nothing_left(backend)


@pytest.mark.cluster  # the fake's pods are processes of whoever runs the tests
def test_a_set_passes_pod_security_restricted(serving, cluster, namespace):
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, level)
    ref = serve(serving, "id -u; exec sleep 300")
    assert whole(serving.status(ref))
    serving.teardown(ref)
    nothing_left(serving)


def rules_of(*rows):
    return [{"apiGroups": [row[0]], "resources": [row[1]], "verbs": list(row[-1])} for row in rows]


def test_the_role_for_serving_is_enough_and_check_names_what_lacks(make, limited_user):
    plain = (*NEEDED, *WISHED)
    rights = {"cluster_rules": rules_of(*CLUSTER)}
    user = limited_user(*rules_of(*plain), **rights)
    lacking = make(serve=True, kubeconfig=str(user)).check()
    assert not lacking.ok
    assert "may not create, delete, patch leaderworkersets" in str(lacking)
    assert "kubernetes-role --namespace" in str(lacking)
    assert " --serve" in str(lacking)
    user = limited_user(*rules_of(*plain, *SERVING, *SERVING_WISHED), **rights)
    serving = make(serve=True, kubeconfig=str(user))
    assert serving.check().ok, str(serving.check())
    ref = serve(serving)
    serving.cancel(ref)
    serving.teardown(ref)
    nothing_left(serving)


def test_who_may_not_see_sets_sees_the_rest_and_is_told(make, limited_user, serving, caplog):
    ref = serve(serving)
    rows = [row for row in (*NEEDED, *WISHED) if row[1] != "leaderworkersets"]
    blind_config = str(limited_user(*rules_of(*rows)))
    blind = make(kubeconfig=blind_config)
    assert list(blind.jobs()) == []
    assert "that serve may not be listed" in caplog.text
    before = uids(serving)
    for call in (blind.status, blind.cancel, blind.teardown):
        with pytest.raises(CredentialsError, match="leaderworkersets"):
            call(ref)
    assert uids(serving) == before, "what it may not see it does not touch"
    with pytest.raises(CredentialsError, match="leaderworkersets"):
        serve(make(serve=True, kubeconfig=blind_config))
    serving.teardown(ref)
    assert blind.status(ref).state is JobState.GONE
    assert leftovers(serving._api, serving._where()[1], ref.name, jobsets=True, sets=True) == []
