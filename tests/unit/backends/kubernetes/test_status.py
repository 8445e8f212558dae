import pytest

from gpufabric.backends.kubernetes._objects import Found
from gpufabric.backends.kubernetes._status import (
    failed_container,
    job_status,
    last_words,
    node_state,
)
from gpufabric.backends.kubernetes._wait import why_waiting
from gpufabric.job import JobRef, JobState

REF = JobRef(backend="kubernetes", place="c/ml", name="j")


def pod(rank=0, *, state=None, phase="Running", node="n1", attempt=None, **status):
    labels = {"batch.kubernetes.io/job-completion-index": str(rank)}
    if attempt is not None:
        labels["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
    statuses = [{"name": "job", "state": state}] if state else []
    return {
        "metadata": {"name": f"p{rank}", "labels": labels},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def ended(code, at="2026-01-01T00:00:09Z", reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at,
                           "startedAt": "2026-01-01T00:00:00Z"}}  # fmt: skip


def unplaced(words):
    condition = {"type": "PodScheduled", "status": "False", "message": words}
    return pod(phase="Pending", node=None, conditions=[condition])


def found(*conditions, kind="Job", cancelled=None, owner=()):
    notes = {"gpufabric.io/num-nodes": "2"}
    if cancelled:
        notes["gpufabric.io/cancelled"] = cancelled

    def one(listed):
        held = [{"status": "True", **condition} for condition in listed]
        return {"metadata": {"annotations": notes}, "spec": {}, "status": {"conditions": held}}

    job = one(conditions)
    return Found(kind=kind, path="", owner=one(owner) if kind == "JobSet" else job, job=job)


RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (pod(state=RUNNING), JobState.RUNNING, ""),
        (pod(state=ended(0), phase="Succeeded"), JobState.SUCCEEDED, ""),
        (pod(state=ended(137, reason="OOMKilled"), phase="Failed"), JobState.FAILED, "OOMKilled"),
        (
            pod(phase="Failed", reason="Evicted", message="low on memory"),
            JobState.FAILED,
            "Evicted: low on memory",
        ),
        (
            pod(phase="Pending", state={"waiting": {"reason": "ErrImagePull", "message": "no"}}),
            JobState.STARTING,
            "ErrImagePull: no",
        ),
        (unplaced("0/2 nodes"), JobState.PENDING, "0/2 nodes"),
    ],
)
def test_a_node_is_what_its_pod_says_in_the_clusters_words(given, state, words):
    node = node_state(given)
    assert node.state is state
    assert words in node.reason


def test_the_first_failure_is_the_jobs_and_the_others_were_stopped():
    pods = [pod(1, state=ended(3), phase="Failed")]
    status = job_status(REF, found({"type": "Failed", "message": "backoff"}), pods, ["broken"])
    assert (status.state, status.exit_code, status.tail) == (JobState.FAILED, 3, ("broken",))
    assert [node.state for node in status.nodes] == [JobState.CANCELLED, JobState.FAILED]


def test_of_two_failures_the_earlier_counts():
    pods = [
        pod(0, state=ended(143, "2026-01-01T00:00:10Z"), phase="Failed"),
        pod(1, state=ended(7, "2026-01-01T00:00:09Z"), phase="Failed"),
    ]
    assert job_status(REF, found({"type": "Failed"}), pods).exit_code == 7


def test_a_deadline_is_a_timeout():
    status = job_status(REF, found({"type": "Failed", "reason": "DeadlineExceeded"}), [])
    assert status.state is JobState.TIMED_OUT


def test_a_failed_attempt_is_no_end_until_the_jobset_says_so():
    pods = [pod(1, state=ended(3), phase="Failed", attempt=0)]
    going = job_status(REF, found({"type": "Failed"}, kind="JobSet"), pods)
    assert going.state is JobState.RUNNING
    over = found({"type": "Failed"}, kind="JobSet", owner=[{"type": "Failed"}])
    assert job_status(REF, over, pods).state is JobState.FAILED


def test_nodes_of_an_earlier_attempt_are_not_those_of_now():
    pods = [pod(0, state=ended(1), phase="Failed", attempt=0), pod(0, state=RUNNING, attempt=1)]
    status = job_status(REF, found(kind="JobSet"), pods)
    assert status.attempt == 1
    assert status.nodes[0].state is JobState.RUNNING


def test_a_cancelled_job_is_cancelled_unless_it_had_ended():
    assert job_status(REF, found(cancelled="now"), []).state is JobState.CANCELLED
    done = found({"type": "Complete"}, cancelled="now")
    assert job_status(REF, done, []).state is JobState.SUCCEEDED


def waiting(reason):
    return pod(phase="Pending", state={"waiting": {"reason": reason, "message": "words"}})


@pytest.mark.parametrize(
    ("pods", "kind", "final"),
    [
        ([pod(state=RUNNING), unplaced("no room")], "unschedulable", False),
        ([pod(state=RUNNING)], "not created", False),
        ([pod(state=RUNNING), waiting("ImagePullBackOff")], "image", False),
        ([pod(state=RUNNING), waiting("InvalidImageName")], "image", True),
        ([unplaced("no room"), waiting("InvalidImageName")], "image", True),
        ([pod(state=RUNNING), waiting("SignatureValidationFailed")], "image", False),
        ([pod(state=RUNNING), waiting("ImageInspectError")], "image", False),
        ([pod(state=RUNNING), waiting("CreateContainerConfigError")], "container", False),
        ([pod(state=RUNNING), waiting("PostStartHookError")], "container", False),
        ([pod(state=RUNNING), waiting("ContainerCreating")], "starting", False),
    ],
)
def test_the_worst_reason_decides_how_long_a_gang_waits(pods, kind, final):
    why = why_waiting(pods, 2)
    assert (why.kind, why.final) == (kind, final)


def test_a_gang_is_whole_when_every_node_has_started():
    assert why_waiting([pod(0, state=RUNNING), pod(1, state=ended(0))], 2) is None


# ---- what the cluster did to a node


def before(name, **state):
    """A pod that waits for, or failed in, a container before the job's."""
    return {"initContainerStatuses": [{"name": name, "state": state}]}


def stopped(reason, message, at="2026-01-01T00:00:05Z"):
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
                 "lastTransitionTime": at}  # fmt: skip
    return {"conditions": [condition]}


INITIALIZING = {"waiting": {"reason": "PodInitializing"}}


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (
            pod(phase="Pending", state=INITIALIZING,
                **before("tcpx", waiting={"reason": "ErrImagePull", "message": "no such image"})),
            JobState.STARTING, "tcpx: ErrImagePull: no such image",
        ),
        (
            pod(phase="Failed", state=INITIALIZING,
                **before("tcpx", terminated={"exitCode": 2, "reason": "Error"})),
            JobState.FAILED, "tcpx: exit code 2",
        ),
        (
            pod(phase="Failed", state={"terminated": {
                "exitCode": 128, "reason": "StartError", "message": "exec: no\nsuch file"}}),
            JobState.FAILED, "exit code 128 (StartError: exec: no such file)",
        ),
        (
            pod(phase="Failed", state=ended(143),
                **stopped("PreemptionByScheduler", "default-scheduler: preempting")),
            JobState.FAILED, "PreemptionByScheduler: default-scheduler: preempting: exit code 143",
        ),
        (
            pod(phase="Failed", state=ended(137),
                **stopped("EvictionByEvictionAPI", "Eviction API: evicting")),
            JobState.FAILED, "EvictionByEvictionAPI: Eviction API: evicting: exit code 137",
        ),
        (
            pod(state=RUNNING, **stopped("DeletionByTaintManager", "deleting due to taint")),
            JobState.RUNNING, "DeletionByTaintManager: deleting due to taint",
        ),
        (
            pod(phase="Failed", state={"terminated": {
                "exitCode": 137, "reason": "OOMKilled", "message": "last line of the log"}}),
            JobState.FAILED, "exit code 137 (OOMKilled)",
        ),
    ],
)  # fmt: skip
def test_a_node_says_who_stopped_it_or_what_keeps_it(given, state, words):
    node = node_state(given)
    assert (node.state, node.reason) == (state, words)


def test_a_node_whose_end_nobody_tells_is_lost_and_is_why_the_gang_failed():
    lost = pod(1, state=RUNNING, **stopped("DeletionByTaintManager", "deleting due to taint"))
    other = pod(0, state=ended(137, "2026-01-01T00:00:07Z"), phase="Failed")
    status = job_status(REF, found({"type": "Failed", "message": "backoff"}), [other, lost])
    assert [node.state for node in status.nodes] == [JobState.FAILED, JobState.LOST]
    assert status.state is JobState.FAILED
    assert status.reason == "node 1: DeletionByTaintManager: deleting due to taint"
    assert status.exit_code is None


def test_a_node_that_failed_before_another_was_lost_is_why_the_gang_failed():
    lost = pod(1, state=RUNNING, **stopped("DeletionByTaintManager", "deleting due to taint"))
    other = pod(0, state=ended(7, "2026-01-01T00:00:03Z"), phase="Failed")
    status = job_status(REF, found({"type": "Failed"}), [other, lost])
    assert (status.exit_code, status.reason) == (7, "node 0: exit code 7")


def test_the_log_that_tells_is_of_the_container_that_failed():
    early = before("code", terminated={"exitCode": 2, "reason": "Error"})
    assert failed_container(pod(phase="Failed", state=INITIALIZING, **early)) == "code"
    assert failed_container(pod(phase="Failed", state=ended(1), **early)) == "job"
    assert failed_container(pod(state=RUNNING)) == "job"


def test_what_a_container_said_last_is_kept_by_the_cluster():
    assert last_words(pod(state={"terminated": {"message": "a\nb\n"}})) == ("a", "b")
    assert last_words(pod(state=RUNNING)) == ()


def test_an_image_of_a_sidecar_that_never_can_be_pulled_ends_the_wait():
    early = before("tcpx", waiting={"reason": "InvalidImageName", "message": "no"})
    why = why_waiting([pod(phase="Pending", state=INITIALIZING, **early)], 1)
    assert (why.kind, why.final, why.words) == ("image", True, "tcpx: InvalidImageName: no")


# ---- a node whose machine is gone: as a real cluster of 1.36 shows it for as long as its pod stays


def failing(restarts_left=0, kind="JobSet"):
    target = {"type": "FailureTarget", "message": "backoff limit"}
    made = found(target, kind=kind)
    made.owner["spec"]["failurePolicy"] = {"maxRestarts": restarts_left}
    return made


def overdue(rank=1, due="2026-01-01T00:00:06Z"):
    made = pod(rank, state=RUNNING, **stopped("DeletionByTaintManager", "deleting due to taint"))
    made["metadata"]["deletionTimestamp"] = due
    return made


DUE = 1767225606.0


def test_a_gang_whose_only_pod_left_is_long_overdue_has_failed_with_its_node():
    status = job_status(REF, failing(), [overdue()], now=DUE + 60)
    assert status.state is JobState.FAILED
    assert [node.state for node in status.nodes] == [JobState.CANCELLED, JobState.LOST]
    assert status.reason == "node 1: DeletionByTaintManager: deleting due to taint"


@pytest.mark.parametrize(
    ("found", "pods", "now"),
    [
        (failing(), [overdue()], DUE + 1),  # its grace has only just passed
        (failing(restarts_left=1), [overdue()], DUE + 60),  # it starts again once the node is gone
        (failing(), [overdue(), pod(0, state=RUNNING)], DUE + 60),  # another one still runs
        (found(kind="JobSet"), [overdue()], DUE + 60),  # the Job does not say that it fails
        (failing(), [overdue()], None),
    ],
)
def test_until_then_it_runs_and_says_which_node_is_stopped(found, pods, now):
    status = job_status(REF, found, pods, now=now)
    assert status.state is JobState.RUNNING
    assert status.reason == "node 1: DeletionByTaintManager: deleting due to taint"


def test_a_gang_whose_pods_are_gone_runs_until_its_owner_has_judged():
    status = job_status(REF, failing(), [], now=DUE)
    assert (status.state, status.reason) == (JobState.RUNNING, "backoff limit")
