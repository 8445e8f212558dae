"""Fabric: composing, ranking, failing over, attaching; on simulated clouds."""

import asyncio
import inspect
import threading

import pytest

import gpufabric as gf
from gpufabric.aio import AsyncFabric, AsyncJobHandle
from gpufabric.handle import JobHandle
from gpufabric.testing import FakeBackend, FakeCloud, pool


def task(**fields: object) -> gf.Task:
    return gf.Task.from_dict({"run": "echo hi", "num_nodes": 2, **fields})


def h100(**resources: object) -> gf.Task:
    return task(resources={"accelerators": "H100:8", **resources})


def infiniband(name: str, **fields: object) -> FakeBackend:
    cloud = FakeCloud([
        pool("H100:8", network="infiniband", gbps=3200, nics=8, backend=name, **fields)
    ])  # fmt: skip
    return FakeBackend(name, cloud=cloud)


def ethernet(name: str, **fields: object) -> FakeBackend:
    return FakeBackend(name, cloud=FakeCloud([pool("H100:8", gbps=100, backend=name, **fields)]))


@pytest.fixture
def settings() -> gf.Settings:
    return gf.Settings(discover_timeout_s=5.0, poll_s=0.01)


def fabric(settings: gf.Settings, *backends: FakeBackend, **more: object) -> gf.Fabric:
    return gf.Fabric(*backends, settings=settings, **more)


def test_offers_of_all_backends_rank_by_tier_then_price(settings):
    cheap = ethernet("cheap", usd_hour=10)
    dear = infiniband("dear", usd_hour=90)
    fast = infiniband("fast", usd_hour=50)
    offers = fabric(settings, cheap, dear, fast).offers(h100()).offers
    assert [offer.backend for offer in offers] == ["fast", "dear", "cheap"]


def test_unknown_prices_come_last_and_ties_go_by_the_order_given(settings):
    unknown = infiniband("unknown", usd_hour=None)
    first = infiniband("first", usd_hour=50)
    second = infiniband("second", usd_hour=50)
    offers = fabric(settings, unknown, first, second).offers(h100()).offers
    assert [offer.backend for offer in offers] == ["first", "second", "unknown"]
    assert offers[-1].usd_hour_total is None


def test_ranking_by_bandwidth_prefers_the_faster_of_one_tier(settings):
    slow = ethernet("slow", usd_hour=1)
    wide = FakeBackend("wide", cloud=FakeCloud([pool("H100:8", gbps=400, backend="wide")]))
    policy = gf.LaunchPolicy(rank_by=gf.RankBy.BANDWIDTH)
    offers = fabric(settings, slow, wide).offers(h100(), policy=policy).offers
    assert offers[0].backend == "wide"


def test_a_dead_backend_is_a_rejection_and_spoils_nothing(settings):
    dead, good = infiniband("dead"), infiniband("good")
    dead.cloud.fail("*", "permission", times=None)
    resolution = fabric(settings, dead, good).offers(h100())
    assert [offer.backend for offer in resolution.offers] == ["good"]
    (told,) = [r.reason for r in resolution.rejections if r.backend == "dead"]
    assert told
    assert not told.startswith("dead"), "a rejection is printed with its backend's name already"


def test_a_backend_that_hangs_is_a_rejection_within_the_limit():
    slow, good = infiniband("slow"), infiniband("good")
    slow.cloud.fail("*", "hang", times=None)
    limited = gf.Settings(discover_timeout_s=0.2)
    with gf.Fabric(slow, good, settings=limited) as composed:
        resolution = composed.offers(h100())
        assert [offer.backend for offer in resolution.offers] == ["good"]
        told = next(r for r in resolution.rejections if r.backend == "slow")
        assert "0.2 s" in told.reason
        assert "discover_timeout_s" in told.reason
        slow.cloud.release()


def test_a_bug_in_a_plug_in_is_a_rejection_with_its_type(settings):
    class Broken(FakeBackend):
        def discover(self):
            raise ZeroDivisionError("by the plug-in")

    resolution = fabric(settings, Broken("broken"), infiniband("good")).offers(h100())
    assert len(resolution) == 1
    assert "ZeroDivisionError" in str(resolution.rejections)


def test_launch_moves_on_when_a_place_has_no_capacity_and_keeps_the_history(settings):
    full, free = infiniband("full", usd_hour=1), infiniband("free", usd_hour=2)
    full.cloud.fail("*", "capacity", times=None, call=2)
    with fabric(settings, full, free).launch(h100()) as job:
        assert job.ref.backend == "free"
        assert [attempt.backend for attempt in job.attempts] == ["full", "free"]
        assert job.attempts[0].error_type == "CapacityError"
        assert job.attempts[0].remedy == "elsewhere"
        assert job.attempts[1].error is None
    assert not full.cloud.objects
    assert not free.cloud.objects


def test_launch_tries_a_transient_error_again_in_the_same_place(settings):
    backend = infiniband("a")
    backend.cloud.fail("create *", "transient", times=1)
    backend.cloud.fail("*", "transient", times=1, call=3)
    with fabric(settings, backend).launch(h100()) as job:
        assert len(job.attempts) == 1


def test_a_place_with_a_broken_setup_is_not_asked_again(settings):
    broken = FakeBackend(
        "broken",
        cloud=FakeCloud([
            pool("H100:8", network="infiniband", nics=8, backend="broken", zone=zone)
            for zone in ("a", "b")
        ]),
    )  # fmt: skip
    made = fabric(settings, broken)
    original = broken.apply

    def refuse(plan):
        raise gf.CredentialsError("expired", backend="broken", operation="apply")

    broken.apply = refuse  # the backend under test is the fake itself
    with pytest.raises(gf.PlacementError) as caught:
        made.launch(h100())
    broken.apply = original
    assert len(caught.value.attempts) == 1
    assert "expired" in str(caught.value)


def test_a_wrong_request_is_raised_as_it_is_and_tried_nowhere_else(settings):
    class Picky(FakeBackend):
        def apply(self, plan):
            raise gf.SpecError(f"volumes are not known here: {plan.name}")

    with pytest.raises(gf.SpecError, match="volumes are not known"):
        fabric(settings, Picky("picky"), infiniband("other")).launch(task())


def test_nothing_fits_is_a_placement_error_that_names_every_reason(settings):
    with pytest.raises(gf.PlacementError) as caught:
        fabric(settings, ethernet("a")).plan(h100(network_tier="best", min_gbps_per_gpu=900))
    assert caught.value.rejections
    assert caught.value.remedy is gf.Remedy.ELSEWHERE
    assert "H100:8" in str(caught.value)


def test_a_lower_tier_is_taken_only_when_allowed_and_is_written_on_the_plan(settings):
    composed = fabric(settings, ethernet("a"))
    asked = h100(network_tier="gpudirect")
    with pytest.raises(gf.PlacementError):
        composed.plan(asked)
    plan = composed.plan(asked, policy=gf.LaunchPolicy(allow_lower_tier=True))
    assert plan.lower_tier
    assert "LOWER TIER: gpudirect was asked" in str(plan)


def test_a_kept_tier_is_never_marked_lower(settings):
    policy = gf.LaunchPolicy(allow_lower_tier=True)
    plan = fabric(settings, infiniband("a")).plan(h100(network_tier="gpudirect"), policy=policy)
    assert not plan.lower_tier


def test_plan_is_a_function_of_its_inputs_and_launch_is_not(settings):
    composed = fabric(settings, infiniband("a", nodes=8))
    assert composed.plan(h100()) == composed.plan(h100())
    assert composed.plan(h100(), run="x").key != composed.plan(h100()).key
    with composed.launch(h100()) as one, composed.launch(h100()) as two:
        assert one.ref != two.ref


def test_one_idempotency_key_is_one_job(settings):
    composed = fabric(settings, infiniband("a"))
    with composed.launch(h100(), run="request-1") as one:
        assert composed.launch(h100(), run="request-1").ref == one.ref


def test_a_plan_travels_as_yaml_and_makes_the_same_job(settings):
    composed = fabric(settings, infiniband("a"))
    plan = composed.plan(h100())
    again = gf.LaunchPlan.from_yaml(plan.to_yaml())
    assert again == plan
    assert again.key == plan.key


def test_a_plan_for_a_backend_that_is_not_here_says_so(settings):
    plan = fabric(settings, infiniband("a")).plan(h100())
    with pytest.raises(gf.ConfigError, match="'a', which is not in Fabric"):
        fabric(settings, infiniband("b")).launch(plan)


def test_a_secret_without_value_is_refused_before_anything_is_made(settings):
    backend = infiniband("a")
    with pytest.raises(gf.SpecError, match="TOKEN"):
        fabric(settings, backend).launch(task(secrets={"TOKEN": None}))
    assert not backend.cloud.objects


def test_attach_finds_the_job_from_its_text_in_another_fabric(settings):
    backend = infiniband("a")
    with fabric(settings, backend).launch(h100()) as job:
        other = fabric(settings, FakeBackend("a", cloud=backend.cloud)).attach(str(job.ref))
        assert job.wait().state is gf.JobState.SUCCEEDED
        assert other.status().state is gf.JobState.SUCCEEDED
        assert [line.text for line in other.logs(node_rank=0) if line.stream == "stdout"] == ["hi"]


def test_attach_to_an_unknown_backend_names_the_known_ones(settings):
    with pytest.raises(gf.ConfigError, match="no backend 'locla', did you mean local"):
        fabric(settings).attach("locla://here/x")


def test_waiting_too_long_says_that_the_job_goes_on(settings):
    backend = infiniband("a")
    asked = gf.Task(run="sleep 1000000", num_nodes=2, resources=h100().resources)
    with fabric(settings, backend).launch(asked) as job:
        job.status()
        with pytest.raises(gf.JobTimeoutError, match="it goes on"):
            job.wait(timeout=0)


def test_two_backends_of_one_name_are_refused(settings):
    with pytest.raises(gf.ConfigError, match="'a'"):
        fabric(settings, infiniband("a"), infiniband("a"))


def test_fabrics_join_in_order(settings):
    joined = fabric(settings, infiniband("a")) | fabric(settings, infiniband("b"))
    assert [backend.name for backend in joined.backends] == ["a", "b"]


def test_an_empty_fabric_says_what_to_add(settings):
    with pytest.raises(gf.PlacementError, match="no backend"):
        fabric(settings).plan(task())


def test_jobs_lists_every_place_and_tells_the_one_that_fails(settings):
    good, dead = infiniband("good"), infiniband("dead")
    events: list[gf.Event] = []
    composed = fabric(settings, good, dead, on_event=events.append)
    with composed.launch(h100()) as job:
        dead.cloud.fail("*", "permission", times=None)
        assert composed.jobs() == (job.ref,)
        assert any(event.backend == "dead" for event in events if event.kind == "undiscovered")


def test_events_tell_attempts_and_the_launch(settings):
    events: list[gf.Event] = []
    with fabric(settings, infiniband("a"), on_event=events.append).launch(h100()) as job:
        assert [event.kind for event in events] == ["attempt", "launched"]
        assert events[-1].ref == job.ref


def test_check_never_raises(settings):
    dead = infiniband("dead")
    dead.cloud.fail("*", "permission", times=None)
    reports = fabric(settings, dead, infiniband("good")).check()
    assert [report.backend for report in reports] == ["dead", "good"]


def test_discover_tells_what_is_not_usable(monkeypatch, settings):
    composed = gf.Fabric.discover(settings=settings)
    assert "local" in [backend.name for backend in composed.backends]
    for rejection in composed.unusable:
        assert rejection.reason


def test_ranking_does_not_depend_on_what_is_lower(settings):
    cheap = ethernet("cheap", usd_hour=1)
    with_cheap = fabric(settings, cheap, infiniband("a", usd_hour=9)).offers(h100())
    without = fabric(settings, infiniband("a", usd_hour=9)).offers(h100())
    assert with_cheap.offers[0] == without.offers[0]


@pytest.mark.parametrize(
    ("sync", "asynchronous"),
    [(gf.Fabric, AsyncFabric), (JobHandle, AsyncJobHandle)],
    ids=["Fabric", "JobHandle"],
)
def test_async_twins_have_the_same_calls(sync, asynchronous):
    leave_out = {"discover", "assumed"}  # constructors: AsyncFabric.of(Fabric.discover())
    for name, method in inspect.getmembers(sync, inspect.isfunction):
        if name.startswith("_") or name in leave_out:
            continue
        twin = getattr(asynchronous, name)
        mine, theirs = inspect.signature(method), inspect.signature(twin)
        assert list(mine.parameters) == list(theirs.parameters), name
        assert [p.default for p in mine.parameters.values()] == [
            p.default for p in theirs.parameters.values()
        ], name


def test_an_async_handle_tells_what_a_handle_tells(settings):
    composed = fabric(settings, infiniband("a"))
    job = composed.launch(h100())
    told = {name for name in dir(job) if not (name.startswith("_") or callable(getattr(job, name)))}

    async def main() -> None:
        async with AsyncFabric.of(composed) as twin, await twin.attach(job.ref) as same:
            assert told == {name for name in told if hasattr(same, name)}
            assert same.backend is job.backend
            assert same.policy == gf.LaunchPolicy()

    asyncio.run(main())


def test_async_fabric_launches_follows_and_ends_its_threads(settings):
    before = threading.active_count()

    async def main() -> list[str]:
        async with AsyncFabric(infiniband("a"), settings=settings) as composed:
            async with await composed.launch(h100()) as job:
                lines = [line.text async for line in job.logs(follow=True)]
                assert (await job.wait()).state is gf.JobState.SUCCEEDED
            assert not await composed.jobs()
        return lines

    assert "hi" in asyncio.run(main())
    assert threading.active_count() == before


def test_a_launch_that_nobody_awaits_any_more_leaves_nothing(settings):
    backend = infiniband("a")
    entered, leave = threading.Event(), threading.Event()
    torn = threading.Event()

    class Slow(FakeBackend):
        def apply(self, plan):
            entered.set()
            leave.wait(10)
            return super().apply(plan)

        def teardown(self, ref):
            super().teardown(ref)
            torn.set()

    async def main() -> None:
        async with AsyncFabric(Slow("a", cloud=backend.cloud), settings=settings) as composed:
            launching = asyncio.ensure_future(composed.launch(h100()))
            await asyncio.to_thread(entered.wait, 10)
            launching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await launching
            leave.set()
            assert await asyncio.to_thread(torn.wait, 10)

    asyncio.run(main())
    assert not backend.cloud.objects


def test_a_job_tears_itself_down_when_the_block_fails(settings):
    backend = infiniband("a")
    with pytest.raises(ZeroDivisionError), fabric(settings, backend).launch(h100()):
        raise ZeroDivisionError
    assert not backend.cloud.objects


def test_a_bug_in_what_a_plug_in_thinks_is_a_rejection_too(settings):
    class Broken(FakeBackend):
        def offers(self, task, site):  # noqa: ARG002  # the protocol names them
            raise KeyError("nics")

    broken = Broken("broken", cloud=FakeCloud([pool("H100:8")]))
    found = fabric(settings, broken, infiniband("b")).offers(h100())
    assert [offer.backend for offer in found] == ["b"]
    assert [r.reason for r in found.rejections if r.backend == "broken"] == ["KeyError: 'nics'"]


def test_a_display_that_breaks_costs_no_job(settings):
    def broken(event: gf.Event) -> None:
        raise RuntimeError(event.kind)

    backend = infiniband("a")
    with fabric(settings, backend, on_event=broken).launch(h100()) as job:
        assert job.wait().state is gf.JobState.SUCCEEDED
    assert not backend.cloud.objects


def test_closing_closes_every_backend_though_one_fails(settings):
    closed = []

    class Closing(FakeBackend):
        def close(self):
            closed.append(self.name)
            if self.name == "b":
                raise RuntimeError("b cannot close")

    backends = [Closing(name, cloud=FakeCloud([pool(backend=name)])) for name in "abc"]
    with pytest.raises(RuntimeError, match="b cannot close"):
        fabric(settings, *backends).close()
    assert sorted(closed) == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", ["local", gf.Local, None, []])
def test_what_is_no_backend_is_refused_with_what_to_write(wrong):
    with pytest.raises(gf.ConfigError, match=r"write Fabric\(Local\(\)"):
        gf.Fabric(wrong, settings=gf.Settings())


@pytest.mark.parametrize("wrong", ["echo hi", {"run": "echo hi"}, None])
def test_what_is_no_task_is_refused_with_what_to_write(settings, wrong):
    composed = fabric(settings, infiniband("a"))
    for call in (composed.offers, composed.plan, composed.launch):
        with pytest.raises(gf.SpecError, match=r"write Task\(run="):
            call(wrong)


def test_many_jobs_attached_in_one_place_share_a_backend(settings, tmp_path):
    with gf.Fabric(settings=settings) as composed:
        handles = [composed.attach(f"local://{tmp_path}/a-{i}") for i in range(20)]
    assert len({id(handle._backend) for handle in handles}) == 1


def test_one_cloud_may_be_named_without_a_list(settings):
    assert repr(gf.Fabric.assumed("aws", settings=settings)) == "Fabric(aws)"


def test_awaits_that_are_cancelled_hold_up_nothing(settings, tmp_path):
    before = set(threading.enumerate())

    async def main() -> None:
        async with AsyncFabric(gf.Local(tmp_path), settings=settings, workers=1) as composed:
            quiet = gf.Task(run="echo hi; sleep 600")
            async with await composed.launch(quiet) as job:
                heard = asyncio.Event()

                async def follow() -> None:
                    async for _ in job.logs(follow=True):
                        heard.set()

                waiting = [asyncio.create_task(follow()) for _ in range(3)]
                waiting.append(asyncio.create_task(job.wait()))
                waiting.append(asyncio.create_task(job.bench()))
                await heard.wait()
                assert (await job.status()).state is gf.JobState.RUNNING  # with one worker
                for one in waiting:
                    one.cancel()
                ended = await asyncio.gather(*waiting, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ended)

    asyncio.run(main())
    assert set(threading.enumerate()) <= before


def test_closing_ends_those_who_still_follow(settings, tmp_path):
    async def main() -> list[object]:
        composed = AsyncFabric(gf.Local(tmp_path), settings=settings)
        job = await composed.launch(gf.Task(run="echo hi; sleep 600"))
        heard = asyncio.Event()

        async def follow() -> None:
            async for _ in job.logs(follow=True):
                heard.set()

        waiting = [asyncio.create_task(follow()), asyncio.create_task(job.wait())]
        await heard.wait()
        await composed.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    try:
        followed, waited = asyncio.run(main())
    finally:
        backend = gf.Local(tmp_path)
        for ref in backend.jobs():
            backend.teardown(ref)
    assert followed is None
    assert isinstance(waited, asyncio.CancelledError)
