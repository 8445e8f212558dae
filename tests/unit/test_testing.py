"""FakeBackend and FakeCloud: what their users count on."""

import pickle
import subprocess
import sys
import threading

import pytest

import gpufabric as gf
from gpufabric.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    CredentialsError,
    NotFoundError,
    QuotaError,
    SpecError,
    TransientError,
)
from gpufabric.testing import Behaviour, FakeBackend, FakeCloud, pool
from gpufabric.testing._shell import UnknownCommand, simulate


def task(run="echo hi", **fields):
    return gf.Task.from_dict({"run": run, "num_nodes": 2, **fields})


def plan_of(backend, job):
    site = backend.discover()
    offer = backend.offers(job, site).best
    assert offer is not None
    return backend.plan(job, offer, site)


def launch(backend, run="echo hi", **fields):
    return backend.apply(plan_of(backend, task(run, **fields)))


@pytest.fixture
def backend():
    made = FakeBackend()
    yield made
    made.close()


def test_importing_it_loads_no_pytest():
    code = "import sys, gpufabric.testing as t; t.FakeBackend(); assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="FakeFabric"):
        _ = gf.testing.FakeFabric


def test_a_tier_that_no_pool_keeps_is_rejected():
    backend = FakeBackend(pools=[pool("H100:8", network="ethernet", gbps=100)])
    resolution = backend.offers(
        task(resources={"accelerators": "H100:8", "network_tier": "best"}), backend.discover()
    )
    assert not resolution.offers
    assert "network tier best was asked" in resolution.rejections[0].reason


def test_best_is_the_fastest_gpudirect_network_of_the_accelerator_in_its_region():
    slow = pool("H100:8", network="roce", gbps=800, name="slow")
    fast = pool("H100:8", network="infiniband", gbps=3200, name="fast")
    alone = pool("H100:8", network="roce", gbps=800, region="sim-9", name="alone")
    backend = FakeBackend(pools=[slow, fast, alone])
    offers = backend.offers(task(resources={"accelerators": "H100:8"}), backend.discover())
    assert {o.pool: o.tier.value for o in offers} == {
        "slow": "gpudirect", "fast": "best", "alone": "best",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"accelerators": "A100:8"}, "has H100:8"),
        ({"accelerators": "80GB+:8"}, "memory"),
        ({"max_usd_hour": 5}, "price 10"),
        ({"places": "fake/nowhere"}, "not in"),
        ({"min_gbps_per_gpu": 999, "accelerators": "H100:8"}, "999 Gbit/s"),
        ({"cpus": 7}, "cpus: 7 was asked"),
        ({"disk_gib": "10+"}, "disk_gib"),
        ({"instance_type": "p5"}, "is not p5"),
        ({"capacity": "cr-1"}, "cr-1"),
    ],
)
def test_what_a_pool_has_not_is_said_in_the_rejection(asked, word):
    backend = FakeBackend(pools=[pool("H100:8", usd_hour=10)])
    resolution = backend.offers(task(resources=asked), backend.discover())
    assert not resolution.offers
    assert word in resolution.rejections[0].reason


def test_spot_capacity_is_offered_to_those_who_take_it():
    backend = FakeBackend(pools=[pool("H100:8", spot=True)])
    site = backend.discover()
    assert not backend.offers(task(resources={"accelerators": "H100:8"}), site).offers
    asked = {"accelerators": "H100:8", "use_spot": True}
    assert backend.offers(task(resources=asked), site).offers[0].spot


def test_capacity_that_runs_out_during_the_launch_is_released_and_told(backend):
    plan = plan_of(backend, task(resources={"accelerators": "H100:8", "network_tier": "best"}))
    backend.cloud.resize(plan.offer.pool, 1)
    with pytest.raises(CapacityError) as caught:
        backend.apply(plan)
    assert (caught.value.wanted, caught.value.got, caught.value.leftovers) == (2, 1, ())
    assert backend.cloud.objects == ()


def test_running_jobs_use_capacity_and_give_it_back():
    backend = FakeBackend(pools=[pool("H100:8", nodes=3)])
    ref = launch(backend, "sleep infinity")
    assert backend.discover().pools[0].nodes_free == 1
    resolution = backend.offers(task(), backend.discover())
    assert "1 of 2 nodes free" in resolution.rejections[0].reason
    backend.teardown(ref)
    assert backend.discover().pools[0].nodes_free == 3


def test_a_cloud_may_keep_its_free_nodes_to_itself():
    backend = FakeBackend(cloud=FakeCloud([pool(nodes=1)], tells_free=False))
    plan = plan_of(backend, task())
    with pytest.raises(CapacityError):
        backend.apply(plan)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("permission", CredentialsError),
        ("quota", QuotaError),
        ("capacity", CapacityError),
        ("timeout", TransientError),
        ("transient", TransientError),
    ],
)
def test_each_kind_of_fault_is_its_error(backend, kind, error):
    backend.cloud.fail("list pools", kind)
    with pytest.raises(error) as caught:
        backend.discover()
    assert caught.value.backend == "fake"
    backend.discover()


def test_a_permission_fault_names_the_permission(backend):
    backend.cloud.fail("create node", "permission")
    with pytest.raises(CredentialsError, match="create node"):
        launch(backend)


def test_a_fault_strikes_the_call_it_was_ordered_for(backend):
    backend.cloud.fail("list *", call=2, times=2)
    backend.discover()
    for _ in range(2):
        with pytest.raises(TransientError):
            backend.discover()
    backend.discover()


def test_a_delay_moves_the_clouds_clock_only(backend):
    before = backend.cloud.now
    backend.cloud.fail("list pools", "delay", delay_s=3600)
    backend.discover()
    assert backend.cloud.now == before + 3600


def test_a_call_that_hangs_comes_back_when_it_is_released(backend):
    backend.cloud.fail("list pools", "hang")
    found = []
    caller = threading.Thread(target=lambda: found.append(backend.discover()))
    caller.start()
    assert not found
    backend.cloud.release()
    caller.join(30)
    assert found[0].pools


def test_killing_needs_a_cloud_that_outlives_the_process(backend):
    with pytest.raises(ConfigError, match="path"):
        backend.cloud.fail("*", "kill")


def test_faults_that_stay_leave_what_the_error_names(backend):
    backend.cloud.fail("delete node", times=None)
    backend.cloud.fail("create node", "permission", call=2)
    with pytest.raises(CredentialsError) as caught:
        launch(backend)
    assert any(name.startswith("node ") for name in caught.value.leftovers)
    assert backend.cloud.objects
    backend.cloud.heal()
    for ref in backend.jobs():
        backend.teardown(ref)
    assert backend.cloud.objects == ()


def test_ctrl_c_during_a_launch_undoes_it(backend, monkeypatch):
    plan = plan_of(backend, task())

    def interrupted(job, *, backend):
        raise KeyboardInterrupt

    monkeypatch.setattr(backend.cloud, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.apply(plan)
    assert backend.cloud.objects == ()


def test_a_manual_clock_moves_only_when_it_is_told_to():
    backend = FakeBackend(cloud=FakeCloud(clock="manual", boot_s=30))
    ref = launch(backend, "sleep 60")
    seen = [backend.status(ref).state.value for _ in range(2)]
    for seconds in (30, 59, 1):
        backend.cloud.advance(seconds)
        seen.append(backend.status(ref).state.value)
    assert seen == ["starting", "starting", "running", "running", "succeeded"]
    with pytest.raises(ConfigError):
        backend.cloud.advance(-1)


def test_a_follower_waits_for_a_manual_clock():
    backend = FakeBackend(cloud=FakeCloud(clock="manual"))
    ref = launch(backend, "echo hi")
    seen = []
    follower = threading.Thread(target=lambda: seen.extend(backend.logs(ref, follow=True)))
    follower.start()
    backend.cloud.advance(60)
    follower.join(30)
    assert [line.text for line in seen] == ["hi", "hi"]


def test_close_ends_a_follower(backend):
    ref = launch(backend, "echo up; sleep infinity")
    lines = backend.logs(ref, follow=True)
    assert [next(lines).text, next(lines).text] == ["up", "up"]
    rest = []
    follower = threading.Thread(target=lambda: rest.extend(lines))
    follower.start()
    backend.close()
    follower.join(30)
    assert not follower.is_alive()
    assert rest == []


def test_a_script_speaks_for_commands_that_cannot_be_simulated(backend):
    backend.cloud.script(
        Behaviour(task="train", lines="step 1\nstep 2", seconds=10),
        Behaviour(task="train", node_rank=1, stderr=["CUDA error"], exit_code=9, seconds=5),
    )
    ref = launch(backend, "torchrun train.py", name="train")
    lines = list(backend.logs(ref, follow=True))
    status = backend.status(ref)
    assert (status.state.value, status.exit_code) == ("failed", 9)
    assert status.tail == ("CUDA error",)
    assert [line.text for line in lines if line.node_rank == 0] == ["step 1", "step 2"]


def test_a_command_beyond_the_tiny_shell_says_that_it_was_not_run(backend):
    ref = launch(backend, "torchrun --nnodes 2 train.py | tee log")
    lines = list(backend.logs(ref, node_rank=0, follow=True))
    assert [(line.stream, line.text) for line in lines] == [
        ("event", "simulated, not run: torchrun --nnodes 2 train.py | tee log")
    ]
    assert backend.status(ref).exit_code == 0


def test_a_preempted_node_ends_its_gang_or_restarts_it(backend):
    for restarts, state in ((0, "failed"), (1, "running")):
        ref = launch(backend, "echo up; sleep infinity", max_restarts=restarts)
        lines = backend.logs(ref, follow=True)
        assert next(lines).text == "up"
        backend.cloud.preempt(ref, node_rank=1)
        seen = [backend.status(ref) for _ in range(3)][-1]
        assert seen.state.value == state
        assert seen.attempt == restarts
        assert restarts or "preempted" in seen.reason
    with pytest.raises(NotFoundError):
        backend.cloud.preempt("nothing")


def test_a_gang_that_never_becomes_whole_is_lost_in_time():
    cloud = FakeCloud(clock="manual")
    backend = FakeBackend(cloud=cloud, gang_timeout_s=100)
    plan = plan_of(backend, task())
    cloud.create(plan.steps[0], job=plan.name, backend="fake", secrets={})
    (ref,) = backend.jobs()
    assert backend.status(ref).state.value == "pending"
    cloud.advance(100)
    assert backend.status(ref).state.value == "lost"
    assert "0 of 2 nodes" in backend.status(ref).reason


def test_a_plans_own_time_for_a_gang_to_be_whole_wins():
    cloud = FakeCloud(clock="manual")
    backend = FakeBackend(cloud=cloud, gang_timeout_s=100)
    plan = gf.Fabric(backend).plan(task(), policy=gf.LaunchPolicy(gang_timeout_s=10))
    backend.teardown(backend.apply(plan))
    cloud.create(plan.steps[0], job=plan.name, backend="fake", secrets={},
                 gang_timeout_s=plan.gang_timeout_s)  # fmt: skip
    (ref,) = backend.jobs()
    cloud.advance(10)
    assert backend.status(ref).state.value == "lost"
    assert "not whole in 10 s" in backend.status(ref).reason


def test_the_record_tells_every_call_and_how_it_ended(backend):
    backend.cloud.fail("create node", moment="after")
    ref = launch(backend)
    calls = [(c.operation, c.outcome) for c in backend.cloud.calls if c.job == ref.name]
    assert calls == [
        ("list objects", "ok"),
        ("create gang", "ok"),
        ("create node", "transient"),
        ("list objects", "ok"),
        ("create node", "ok"),
        ("start gang", "ok"),
    ]


def test_a_cloud_in_a_folder_is_shared_and_pickles(tmp_path):
    first = FakeBackend(cloud=FakeCloud([pool(nodes=2)], path=tmp_path / "cloud"))
    second = FakeBackend(cloud=FakeCloud(path=tmp_path / "cloud"))
    third = pickle.loads(pickle.dumps(second.cloud))  # noqa: S301  # our own bytes
    ref = launch(first, secrets={"TOKEN": "hush"})
    assert list(second.jobs()) == [ref]
    assert third.objects == first.cloud.objects
    assert (tmp_path / "cloud" / "cloud.json").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="other pools"):
        FakeCloud([pool(nodes=99)], path=tmp_path / "cloud")


def test_a_cloud_in_memory_does_not_pickle():
    with pytest.raises(TypeError, match="path"):
        pickle.dumps(FakeCloud())


def test_an_object_made_from_another_plan_is_not_touched(backend):
    import attrs

    plan = plan_of(backend, task())
    ref = backend.apply(plan)
    before = backend.cloud.objects
    other = attrs.evolve(plan.steps[0], body={**plan.steps[0].body, "num_nodes": 3})
    with pytest.raises(BackendError, match="another plan"):
        backend.apply(attrs.evolve(plan, steps=(other, *plan.steps[1:])))
    assert backend.cloud.objects == before
    backend.teardown(ref)


def test_two_pools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two pools"):
        FakeCloud([pool(), pool()])
    with pytest.raises(SpecError, match="NIC"):
        pool(nics=0)
    with pytest.raises(SpecError, match="model"):
        pool("80GB:8")


@pytest.mark.parametrize(
    ("text", "printed", "code"),
    [
        ("echo a; echo b", ["a", "b"], 0),
        ("false && echo a || echo b", ["b"], 0),
        ("true && echo a &&\necho b", ["a", "b"], 0),
        ("echo 'a  $X' \"$X\" ${X}y ${#X} \\$X", ["a  $X val valy 3 $X"], 0),
        ("exit 300", [], 44),
        ("echo a # b\n# c\necho d", ["a", "d"], 0),
        ("seq 2 4", ["2", "3", "4"], 0),
        ("export Y=1; echo $Y", ["1"], 0),
        ('[ "$X" = val ] && [ 2 -ge 1 ] && [ -n "$X" ] && echo yes', ["yes"], 0),
        ('test -z "$X"', [], 1),
        ("printenv NOPE", [], 1),
        ("sleep 2m; echo late", ["late"], 0),
        ("", [], 0),
    ],
)
def test_the_tiny_shell_does_what_a_shell_does(text, printed, code):
    output = simulate(text, {"X": "val"})
    assert [data.decode() for _, _, data in output.lines] == printed
    assert output.exit_code == code
    real = subprocess.run(
        ["/bin/sh", "-c", text.replace("sleep 2m", "true")],
        env={"X": "val", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (real.stdout.splitlines(), real.returncode) == (printed, code)


@pytest.mark.parametrize(
    "text", ["a | b", "echo $(id)", "echo `id`", "if true; then echo; fi", "echo > f", "echo 'a",
             "echo *", "sleep x", "echo $1", "&& echo", "foo", "(echo)", "[ 1", "seq a"]
)  # fmt: skip
def test_the_tiny_shell_knows_what_it_does_not_know(text):
    with pytest.raises(UnknownCommand):
        simulate(text, {})
