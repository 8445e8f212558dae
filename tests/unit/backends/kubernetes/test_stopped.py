"""A gang that ended before it was whole: by its own doing, or by the cluster's."""

import pytest

from gpufabric.backends.kubernetes._objects import Found
from gpufabric.backends.kubernetes._status import node_state
from gpufabric.backends.kubernetes._wait import _stopped
from gpufabric.job import JobState

PREEMPTED = {
    "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
    "message": "default-scheduler: preempting to accommodate a higher priority pod",
}  # fmt: skip


def found(reason="BackoffLimitExceeded", annotations=None):
    failed = {"type": "Failed", "status": "True", "reason": reason, "message": "it failed"}
    meta = {"name": "gang", "annotations": {"gpufabric.io/num-nodes": "2", **(annotations or {})}}
    job = {"metadata": meta, "spec": {}, "status": {"conditions": [failed]}}
    return Found(kind="Job", path="", owner=job, job=job)


def pod(*, code=None, conditions=()):
    state = {"terminated": {"exitCode": code}} if code is not None else {"waiting": {}}
    status = {"phase": "Pending" if code is None else "Failed", "conditions": list(conditions),
              "containerStatuses": [{"name": "job", "state": state}]}  # fmt: skip
    return {"metadata": {"name": "n", "labels": {}}, "spec": {"nodeName": "a"}, "status": status}


@pytest.mark.parametrize(
    "case",
    [
        (found(), [pod(code=3)]),
        (found(reason="DeadlineExceeded"), [pod()]),
        (found(annotations={"gpufabric.io/cancelled": "now"}), [pod()]),
    ],
    ids=["its code failed", "its time was over", "it was cancelled"],
)
def test_a_gang_that_ended_by_its_own_doing_was_launched(case):
    assert _stopped(*case) is None


def test_a_gang_whose_pods_were_preempted_was_stopped_in_the_schedulers_words():
    why = _stopped(found(), [pod(code=143, conditions=[PREEMPTED]), pod()])
    assert why is not None
    assert why.final
    assert "preempting to accommodate a higher priority pod" in why.words


def test_a_gang_whose_pods_never_ran_was_stopped():
    why = _stopped(found(), [])
    assert why is not None
    assert why.words.startswith("it failed: pods were removed")


def test_a_preempted_node_says_so_before_its_exit_code():
    reason = node_state(pod(code=143, conditions=[PREEMPTED])).reason
    assert reason.startswith("PreemptionByScheduler: default-scheduler: preempting")
    assert reason.endswith("exit code 143")


def test_a_node_that_was_told_to_stop_is_not_the_one_that_failed():
    one = pod(code=143)
    one["metadata"] |= {
        "deletionTimestamp": "2026-11-30T10:00:31Z",
        "deletionGracePeriodSeconds": 30,
    }
    one["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = (
        "2026-11-30T10:00:02Z"
    )
    assert node_state(one).state is JobState.CANCELLED
    one["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = (
        "2026-11-30T10:00:00Z"  # a second before it was told
    )
    assert node_state(one).state is JobState.FAILED
