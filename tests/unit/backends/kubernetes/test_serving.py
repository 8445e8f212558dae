"""Tasks that serve: what is offered and planned, how a node starts, and what is told of it."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from logserver import served

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._events import Events, why_restarted
from gpufabric.backends.kubernetes._objects import Found, rank_of
from gpufabric.backends.kubernetes._role import role_text
from gpufabric.backends.kubernetes._script import start_script
from gpufabric.backends.kubernetes._serve import FOR_EVER, serving_spec
from gpufabric.backends.kubernetes._status import job_status
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.job import JobRef, JobState
from gpufabric.task import Task

WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
GIVEN = {"image": "i:1", "patch": {}, "serve": True}


@pytest.fixture
def offers(catalog, site_of, dressed):
    def make(*, controllers=("jobset", "lws"), facts=None, **fields):
        site = site_of(
            *(dressed("eks-p5", f"n{i}") for i in range(2)), controllers=controllers,
            **(facts or {}),
        )  # fmt: skip
        wish = {"accelerators": "H100:8"}
        task = Task.from_dict({"run": "x", "num_nodes": 2, "resources": wish, **fields})
        return task, site, make_offers(task, site, catalog, **GIVEN)

    return make


# ---- what is offered and planned


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"controllers": ("jobset",)}, "needs LeaderWorkerSet (leaderworkerset.x-k8s.io)"),
        ({"max_restarts": 1}, "max_restarts: what serves starts again without end"),
        ({"timeout_s": 60}, "timeout_s: a LeaderWorkerSet has no time limit"),
        ({"facts": {"queues": ["team"]}}, "jobs go through the queue team of Kueue here"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_serve_is_refused_with_its_reason(offers, given, words):
    _, _, resolution = offers(**given)
    assert resolution.offers == ()
    assert [one.reason for one in resolution.rejections if words in one.reason]


def test_the_plan_says_first_that_it_never_ends(offers, catalog):
    task, site, resolution = offers()
    plan = make_plan(task, resolution.best, site, catalog, run="", grace_s=1, **GIVEN)
    assert plan.warnings[0] == FOR_EVER
    items = {item.name: item for item in plan.network if item.kind == "gang"}
    assert items["controller"].value == "LeaderWorkerSet"
    assert "for ever" in items["controller"].why
    made, *_, released = plan.steps
    assert (made.kind, thaw(made.body)["spec"]["replicas"]) == ("LeaderWorkerSet", 0)
    assert thaw(released.body) == {"spec": {"replicas": 1}}
    env = {one.name: one.value for one in plan.env}
    assert env["MASTER_ADDR"] == f"{plan.name}-0.{plan.name}"
    assert env["GPUFABRIC_ATTEMPT"] == "0"


def test_a_gang_that_serves_takes_the_writes_of_a_jobset_and_another_name(offers, catalog):
    task, site, resolution = offers(secrets={"TOKEN": "x"}, files={"a": "b"})
    plan = make_plan(task, resolution.best, site, catalog, run="", grace_s=1, **GIVEN)
    other = make_plan(
        task, resolution.best, site, catalog, run="", grace_s=1, **{**GIVEN, "serve": False}
    )
    assert len(plan.steps) == len(other.steps)
    backend = Kubernetes("prod", serve=True)
    assert backend.name == "kubernetes:prod:serve"  # which is part of the key that names jobs
    backend.close()


def test_the_role_grows_for_who_serves_alone():
    plain, serving = (role_text("ml", cluster=False, serve=serve) for serve in (False, True))
    added = serving.removeprefix(plain)
    assert added.count('resources: ["leaderworkersets"]') == 2
    assert '"create", "delete", "get", "list", "patch"' in added


def test_a_set_waits_without_a_replica_and_restarts_as_a_whole():
    spec = serving_spec(3, {"spec": {}})
    template = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], template["size"]) == (0, 3)
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"


# ---- how a node starts


@pytest.fixture
def node(tmp_path, shell):
    """Starts a node with names that a file has, in a folder that stays from start to start."""
    (tmp_path / "work").mkdir()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (
        ("getent", f'exec /bin/grep " $2\\$" {tmp_path}/hosts'),
        ("sleep", f'echo "$1" >>{tmp_path}/slept; case $1 in 3*) exec /bin/sleep "$1" ;; esac'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    for name in ("date", "mv"):  # no python3, with which nodes would meet
        (tools / name).symlink_to(str(shutil.which(name)))

    def start(*words, num_nodes=2, launched=None, **env):
        hosts = [f"10.0.0.{n} gang-0{f'-{n}' if n else ''}.gang\n" for n in range(num_nodes)]
        (tmp_path / "hosts").write_text("".join(hosts))
        text = start_script(
            host="gang-0", subdomain="gang", num_nodes=num_nodes, variables=[], source=None,
            envs={}, code=False, serves=True,
        ).replace("/gpufabric/", f"{tmp_path}/")  # fmt: skip
        launched = str(int(time.time() if launched is None else launched))
        return subprocess.Popen(
            [*shell, "-c", text, "gpufabric", "", *words],
            env={"PATH": str(tools), "GPUFABRIC_POD_IP": "10.0.0.9",
                 "GPUFABRIC_LAUNCHED": launched, **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    return start


def stopped(process):
    """Ends a node as a container is ended, all others with its process 1; what it printed."""
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate(timeout=60)[0]


SEEN = ("/bin/sh", "-c", 'echo "$GPUFABRIC_NODE_RANK" $GPUFABRIC_NODE_IPS "$GPUFABRIC_LAUNCHED"')


def test_a_node_is_the_worker_that_its_set_says_and_finds_all_by_their_names(node):
    out, err = node(*SEEN, num_nodes=3, LWS_WORKER_INDEX="2").communicate(timeout=60)
    assert out == "2 10.0.0.0 10.0.0.1 10.0.0.2 \n"
    assert err == "gpufabric: this node has ended with exit code 0, and all nodes start again\n"


@pytest.mark.parametrize(("launched", "waits"), [(None, False), (0, True)])
def test_only_a_start_long_after_the_launch_waits_for_names_to_be_fresh(
    node, tmp_path, launched, waits
):
    process = node("/bin/sh", "-c", "exit 5", launched=launched)
    if waits:
        while not (tmp_path / "slept").exists():
            assert process.poll() is None
        stopped(process)
    else:
        process.communicate(timeout=60)
    assert process.returncode == (143 if waits else 5)
    assert (tmp_path / "slept").exists() is waits


def test_a_node_says_how_it_ended_and_a_container_started_again_in_its_pod_does_nothing(
    node, tmp_path
):
    first = node("/bin/sh", "-c", "echo ran; exit 5", num_nodes=1)
    told = "gpufabric: this node has ended with exit code 5, and all nodes start again\n"
    assert first.communicate(timeout=60) == ("ran\n", told)
    assert first.returncode == 5
    again = node("/bin/sh", "-c", "echo ran; exit 5", num_nodes=1)
    while not (tmp_path / "slept").exists():
        assert again.poll() is None
    assert stopped(again) == ""
    assert again.returncode == 143


# ---- what is told


REF = JobRef(backend="kubernetes", place="c/ml", name="j")
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def pod(rank, *, state=RUNNING, last=None):
    status = {"name": "job", "state": state, "lastState": {"terminated": last} if last else {}}
    return {
        "metadata": {"name": f"j-0-{rank}", "uid": f"u{rank}", "labels": {WORKER: str(rank)}},
        "spec": {"nodeName": "n", "restartPolicy": "Always"},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def found(*, cancelled=None, replicas=1):
    notes = {"gpufabric.io/num-nodes": "2"}
    notes |= {"gpufabric.io/cancelled": cancelled} if cancelled else {}
    available = {"type": "Available", "status": "True"}
    owner = {
        "metadata": {"name": "j", "uid": "u", "annotations": notes, "creationTimestamp": None},
        "spec": {"replicas": replicas}, "status": {"conditions": [available]},
    }  # fmt: skip
    return Found(kind="LeaderWorkerSet", path="", owner=owner, job=None)


def test_a_pod_of_a_set_has_the_rank_that_its_label_says():
    assert [rank_of(pod(rank)) for rank in (0, 3)] == [0, 3]


def test_a_node_that_ended_is_told_while_its_gang_starts_again():
    ended = {"exitCode": 3, "reason": "Error"}
    status = job_status(REF, found(), [pod(0), pod(1, last=ended)])
    assert (status.state, status.reason) == (
        JobState.RUNNING, "node 1: exit code 3, and all nodes start again"
    )  # fmt: skip


def test_what_is_cancelled_runs_until_its_pods_are_gone():
    held = found(cancelled="2026-01-01", replicas=0)
    assert job_status(REF, held, [pod(1)]).state is JobState.RUNNING
    assert job_status(REF, held, []).state is JobState.CANCELLED


#: As LeaderWorkerSet 0.7 and Kubernetes 1.36 write them.
RESTARTS = [
    ("RecreateGroupOnPodRestart", "LeaderWorkerSet", "j", 2, "12:00:01",
     "Worker pod j-0-1 failed, deleted leader pod j-0 to recreate group 0"),
    ("RecreateGroupOnPodRestart", "LeaderWorkerSet", "j", 1, "12:00:09",
     "Worker pod j-0 failed, deleted leader pod j-0 to recreate group 0"),
    ("GroupsProgressing", "LeaderWorkerSet", "j", 4, "12:00:10",
     "Created worker statefulset for leader pod j-0"),
    ("FailedCreate", "StatefulSet", "j-0", 1, "12:00:11", "create Pod j-0-1 failed"),
    ("Killing", "Pod", "j-0", 1, "12:00:12", "Stopping container job"),
    ("Killing", "Pod", "j-0-1", 1, "12:00:12", "Stopping container job"),
    ("Killing", "Pod", "j-0-12345", 1, "12:00:13", "of a Job's pod 0, whose suffix has digits"),
    ("Killing", "Pod", "jj-0", 1, "12:00:14", "of another job"),
]  # fmt: skip


def events():
    return [
        {
            "metadata": {"name": str(number), "uid": str(number)}, "reason": reason,
            "involvedObject": {"kind": kind, "name": name}, "message": words, "count": count,
            "lastTimestamp": f"2026-01-01T{at}Z",
            "type": "Warning" if reason == "FailedCreate" else "Normal",
        }
        for number, (reason, kind, name, count, at, words) in enumerate(RESTARTS)
    ]  # fmt: skip


def test_restarts_are_counted_by_the_events_that_are_kept(tmp_path):
    with served(tmp_path, events=events()) as (api, _):
        assert why_restarted(api, "ml", found()) == (
            "started again at least 3 times, last at 2026-01-01T12:00:09Z, when node 0 ended"
        )
    for nothing in ([], 403):
        with served(tmp_path, events=nothing) as (api, _):
            assert not why_restarted(api, "ml", found())


def test_events_are_told_with_the_rank_that_their_pods_name_says():
    told = [(line.node_rank, line.text.partition(":")[0]) for line in Events("j").lines(events())]
    assert told == [
        (-1, "RecreateGroupOnPodRestart"), (-1, "RecreateGroupOnPodRestart"), (-1, "FailedCreate"),
        (0, "Killing"), (1, "Killing"), (0, "Killing"),
    ]  # fmt: skip
