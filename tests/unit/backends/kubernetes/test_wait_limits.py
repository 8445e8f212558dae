import pytest

from gpufabric.backends.kubernetes._wait import (
    LIMITS_S,
    Limits,
    refused_for_good,
    why_waiting,
)


@pytest.fixture
def limits():
    def of(gang_timeout_s):
        mine = Limits(gang_timeout_s, now=0.0)
        return {kind: mine.of(kind) for kind in LIMITS_S}

    return of


def test_without_a_time_of_the_plan_the_backends_own_limits_hold(limits):
    assert limits(None) == LIMITS_S


def test_a_short_time_of_the_plan_shortens_every_limit(limits):
    assert limits(5.0) == dict.fromkeys(LIMITS_S, 5.0)


def test_a_long_time_prolongs_only_waits_for_what_is_under_way(limits):
    longer = {kind for kind, limit in limits(3600.0).items() if limit == 3600.0}
    assert longer == {"queued", "scaling up", "starting"}
    assert limits(3600.0)["unschedulable"] == LIMITS_S["unschedulable"]


@pytest.mark.parametrize("given", [None, 300.0])
def test_a_reason_that_goes_back_and_forth_is_not_waited_for_for_ever(given):
    mine, now, passed = Limits(given, now=0.0), 0.0, None
    while passed is None:
        now += 15.0
        passed = mine.passed("unschedulable" if now % 30 else "starting", now)
    assert passed == (sum(LIMITS_S.values()) if given is None else given)
    assert passed < now <= passed + 15.0


def test_a_reason_that_stays_is_waited_for_until_its_own_limit():
    mine = Limits(None, now=0.0)
    assert [mine.passed("unschedulable", now) for now in (0.0, 20.0, 20.1)] == [None, None, 20.0]


# What Volcano's scheduler wrote of gangs of two pods (volcano.sh/volcano ed72c7c81, of 2026-08-20,
# as installed by default, on Kubernetes 1.36.3), of a gang of which its queue lets one pod go
HELD = "pod group is not ready, 2 Pending, 2 minAvailable; Pending: 1 Schedulable, 1 Unschedulable"
WOULD_FIT = (
    "Pod ns/gang-n-0-0-99bl8 can possibly be assigned to node-2, once minAvailable is satisfied"
)


def pending(words=None, scheduler="volcano", queue=None):
    said = [{"type": "PodScheduled", "status": "False", "message": words}] if words else []
    notes = {"scheduling.volcano.sh/queue-name": queue} if queue else {}
    return {
        "metadata": {"name": "x", "annotations": notes},
        "spec": {"schedulerName": scheduler},
        "status": {"phase": "Pending", "conditions": said},
    }


def test_a_scheduler_that_says_nothing_is_named():
    why = why_waiting([pending(), pending()], 2)
    assert why.kind == "unschedulable"
    assert "'volcano' has not spoken" in why.words


def test_what_the_scheduler_says_of_one_pod_is_told_before_its_silence_on_another():
    assert why_waiting([pending(), pending("no room")], 2).words == "no room"


def test_a_queue_that_a_silent_scheduler_may_not_have_is_asked_for():
    why = why_waiting([pending(queue="blue"), pending(queue="blue")], 2)
    assert why.kind == "unschedulable"
    assert why.words.endswith("Is there a Queue 'blue'?")


@pytest.mark.parametrize("pods", [(WOULD_FIT, HELD), (HELD, WOULD_FIT), (HELD, HELD)])
@pytest.mark.parametrize(("queue", "kind"), [("blue", "queued"), (None, "unschedulable")])
def test_what_volcano_holds_in_the_queue_that_was_asked_for_is_queued(pods, queue, kind):
    why = why_waiting([pending(words, queue=queue) for words in pods], 2)
    assert why.kind == kind
    assert why.words.endswith(HELD)


def test_what_volcano_finds_no_node_for_is_not_queued():
    words = f"{HELD}. Origin reason is x: 0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu."
    assert why_waiting([pending(words, queue="blue")] * 2, 2).kind == "unschedulable"


@pytest.mark.parametrize("words", [None, "the group waits for 1 more pod"])
def test_pods_that_are_not_made_are_the_reason_before_those_that_wait_for_them(words):
    assert why_waiting([pending(words)], 2).kind == "not created"


@pytest.mark.parametrize(
    "words",
    [
        (
            'job "hello-1-n-0" creation failed with error: admission webhook "mjob.kb.io" denied'
            ' the request: JobSet.jobset.x-k8s.io "hello-1" not found'
        ),
        (
            'Error creating: admission webhook "mpod.kb.io" denied the request: Job.batch'
            ' "hello-1-n-0" not found'
        ),
    ],
)
def test_a_webhook_that_has_not_yet_seen_the_pods_owner_is_waited_for(words):
    assert not refused_for_good(words, {"hello-1", "hello-1-n-0"})


@pytest.mark.parametrize(
    "words",
    [
        'admission webhook "x.example" denied the request: secret "token" not found',
        'admission webhook "x.example" denied the request: no owner label',
        'pods "hello-1-n-0-0" is forbidden: exceeded quota: q',
    ],
)
def test_any_other_refusal_ends_the_wait_at_once(words):
    assert refused_for_good(words, {"hello-1", "hello-1-n-0"})
