"""What the cluster's events say of a gang without pods, or of one whose pod is gone."""

import pytest
from logserver import served

from gpufabric.backends.kubernetes._events import Events, why_no_pods, why_stopped
from gpufabric.backends.kubernetes._objects import Found

MADE = {"name": "j", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
FOUND = Found(kind="Job", path="", owner={"metadata": MADE}, job={"metadata": MADE})


def event(reason, words, second, *, about="j", kind="Job", warning=True):
    at = f"2026-01-01T00:00:{second:02d}Z"
    return {
        "metadata": {"name": reason, "uid": f"{reason}{second}", "creationTimestamp": at},
        "involvedObject": {"kind": kind, "name": about}, "reason": reason, "message": words,
        "type": "Warning" if warning else "Normal", "lastTimestamp": at,
    }  # fmt: skip


def pod_event(reason, words, second, rank=1):
    return event(reason, words, second, about=f"j-{rank}-abcde", kind="Pod", warning=False)


def test_without_pods_it_is_told_what_their_maker_said_last(tmp_path):
    events = [
        event("FailedCreate", "exceeded quota: later", 5), event("FailedCreate", "early", 1),
        event("Resumed", "goes on", 9, warning=False),
    ]  # fmt: skip
    with served(tmp_path, events=events) as (api, server):
        assert why_no_pods(api, "ml", FOUND) == "FailedCreate: exceeded quota: later"
        (asked,) = [query["fieldSelector"] for path, query in server.seen]
    assert asked == "involvedObject.uid=u"


def test_of_a_pod_that_is_gone_it_is_told_who_stopped_it_last(tmp_path):
    events = [
        pod_event("Preempted", "by pod x on node n", 4), pod_event("Killing", "stopping", 6),
        pod_event("TaintManagerEviction", "Cancelling deletion of Pod", 8),
        event("Preempted", "of another job", 9, about="k-0-abcde", kind="Pod"),
    ]  # fmt: skip
    with served(tmp_path, events=events) as (api, _):
        assert why_stopped(api, "ml", FOUND) == "node 1: Preempted: by pod x on node n"
    with served(tmp_path, events=events[1:]) as (api, _):
        assert not why_stopped(api, "ml", FOUND)


@pytest.mark.parametrize("why", [why_no_pods, why_stopped])
def test_who_may_not_see_events_is_told_nothing_of_them(tmp_path, why):
    with served(tmp_path, events=403) as (api, _):
        assert not why(api, "ml", FOUND)


def test_of_volcano_only_what_it_says_of_pods_that_do_not_fit_is_a_line():
    # Seen with volcano.sh/volcano ed72c7c81: the group's own event comes every second while it
    # waits, and also of a gang that is placed.
    words = "pod group is not ready, 1 Pending, 2 minAvailable; Pending: 1 Unschedulable"
    fits = "Pod ns/j-0-abcde can possibly be assigned to node-2, once minAvailable is satisfied"
    group = event("Unschedulable", f"1/1 tasks in gang unschedulable: {words}", 1, kind="PodGroup")
    group["involvedObject"]["apiVersion"] = "scheduling.volcano.sh/v1beta1"
    pods = [
        event("FailedScheduling", said, second, about=f"j-{rank}-abcde", kind="Pod")
        for rank, said, second in ((0, fits, 2), (1, words, 3))
    ]
    lines = Events("j").lines([group, *pods])
    assert [(x.node_rank, x.text) for x in lines] == [(1, f"FailedScheduling: {words}")]
