"""Logs of a gang on a real cluster, followed while its parts break: each line once."""

import functools
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from gfcluster import faults, lifecycle
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.backends.kubernetes._role import NEEDED
from gpufabric.errors import BackendError
from gpufabric.job import GANG, JobState

pytestmark = pytest.mark.cluster

#: Prints numbered lines of both streams, 40 a second, for as long as it is told.
COUNT = """python3 -c "
import sys, time
for i in range(int(sys.argv[1])):
    print('line', i, flush=True)
    if i % 5 == 4:
        print('line', 'err', i, file=sys.stderr, flush=True)
    time.sleep(0.025)
" """


def launch(backend, run, **fields):
    return backend.apply(plan_of(backend, run, **fields))


class Following:
    """Follows a job in a thread of its own."""

    def __init__(self, backend, ref):
        self.lines, self.error = [], None
        self._backend, self._ref = backend, ref
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for line in self._backend.logs(self._ref, follow=True):
                self.lines.append(line)
        except Exception as exc:  # noqa: BLE001  # told by `end`
            self.error = exc

    def until(self, text, ranks=(0, 1)):
        def seen():
            assert self.error is None, self.error
            return all(text in self.of(rank) for rank in ranks)

        wait_until(f"{text} of ranks {ranks}", seen, timeout_s=60)

    def of(self, rank):
        return [x.text for x in self.lines if x.node_rank == rank and x.stream == "stdout"]

    def told(self):
        return [(x.node_rank, x.text) for x in self.lines if x.stream == "event"]

    def end(self, timeout_s=90):
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still following: {self.lines[-5:]}"
        if self.error is not None:
            raise self.error


def wanted(count):
    out = [f"line {i}" for i in range(count)]
    err = [f"line err {i}" for i in range(4, count, 5)]
    return out, err


def assert_each_once(texts, count):
    out, err = wanted(count)
    assert [text for text in texts if "err" not in text] == out
    assert [text for text in texts if "err" in text] == err


# ---- what breaks


FAULTS = {
    "apiserver killed": [("kill", "apiserver"), 1.0, ("start", "apiserver")],
    "kubelet killed": [("kill", "node-1/kubelet"), 2.0, ("start", "node-1/kubelet")],
    "etcd paused": [("pause", "etcd"), 10.0, ("resume", "etcd")],
}


@pytest.mark.parametrize("what", FAULTS)
def test_every_line_comes_once_while(backend, own_cluster, what):  # healed by it
    ref = launch(backend, COUNT + "600")
    following = Following(backend, ref)
    following.until("line 40")
    for step in FAULTS[what]:
        if isinstance(step, float):
            time.sleep(step)  # how long the fault lasts
        else:
            faults.inflict(*step, lifecycle.running_nodes())
    following.end()
    for rank in (0, 1):
        assert_each_once(following.of(rank), 600)
    wait_until("the job has ended", lambda: backend.status(ref).state.ended, timeout_s=60)
    assert backend.status(ref).state is JobState.SUCCEEDED
    backend.teardown(ref)


def test_a_log_that_rotates_while_it_is_followed_comes_whole(backend):
    """The kubelet of the test cluster rotates at 4 MiB, and looks every 3 seconds."""
    run = """python3 -c "
import time
for i in range(30000):
    print(i, 'x' * 200, flush=True)
    if i % 40 == 39:
        time.sleep(0.01)
" """
    ref = launch(backend, run, num_nodes=1)
    following = Following(backend, ref)
    following.end()
    assert [int(text.split()[0]) for text in following.of(0)] == list(range(30000))
    now = [int(x.text.split()[0]) for x in backend.logs(ref) if x.stream == "stdout"]
    assert 0 < len(now) < 30000  # or it has not rotated, and nothing was tested
    assert now == list(range(now[0], 30000))
    backend.teardown(ref)


def test_a_gang_on_a_lost_node_is_told_as_failed_with_the_clusters_words(backend, own_cluster):
    """Its pod stays as long as the node does, so the Job never says that it has failed."""
    ref = launch(backend, "echo up; sleep infinity")
    following = Following(backend, ref)
    following.until("up")
    host = backend.status(ref).nodes[1].host
    assert host is not None
    with own_cluster.fault("crash", host):
        wait_until("the job has ended", lambda: backend.status(ref).state.ended, timeout_s=90)
        status = backend.status(ref)
        following.end(60)
    assert (status.state, status.nodes[1].state) == (JobState.FAILED, JobState.LOST)
    assert status.reason.startswith("node 1: DeletionByTaintManager: ")
    assert [following.of(rank) for rank in (0, 1)] == [["up"], ["up"]]
    assert any(text.startswith("TaintManagerEviction") for rank, text in following.told() if rank)
    backend.teardown(ref)


def container_of(backend, ref, rank):
    """The id of a rank's container."""
    pods = backend._api.items(f"/api/v1/namespaces/{backend._where()[1]}/pods")
    label = "batch.kubernetes.io/job-completion-index"
    pod = next(one for one in pods if one["metadata"]["labels"].get(label) == str(rank))
    assert pod["metadata"]["labels"]["gpufabric.io/job"] == ref.name
    return pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]


def kill(container):
    """Kills a container's first process, as the kernel does when memory runs out."""
    inside = [
        path.parent
        for path in Path("/proc").glob("[0-9]*/cgroup")
        if container in _text(path) and _text(path.parent / "comm").strip() != "runc"
    ]
    first = min(inside, key=lambda path: int(path.name))
    os.kill(int(first.name), signal.SIGKILL)


def _text(path):
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


def test_a_killed_container_ends_the_gang_with_all_that_was_said(backend, own_cluster):
    ref = launch(backend, "echo begun; sleep infinity")
    following = Following(backend, ref)
    following.until("begun")
    kill(container_of(backend, ref, 1))
    following.end()
    wait_until("the job has ended", lambda: backend.status(ref).state.ended, timeout_s=60)
    status = backend.status(ref)
    assert (status.state, status.exit_code) == (JobState.FAILED, 137)
    assert [following.of(rank) for rank in (0, 1)] == [["begun"], ["begun"]]
    assert status.tail == ("begun",)
    backend.teardown(ref)


# ---- what ends


def test_a_follower_has_the_last_lines_of_pods_that_the_cluster_removes(backend):
    run = "trap 'for i in 1 2 3; do echo last $i; done; exit 1' TERM; echo up; "
    ref = launch(backend, run + "while :; do sleep 0.05; done")
    following = Following(backend, ref)
    following.until("up")
    backend.cancel(ref)
    following.end()
    assert [following.of(rank) for rank in (0, 1)] == [["up", "last 1", "last 2", "last 3"]] * 2


def test_of_a_node_that_fails_the_last_lines_are_the_jobs(backend):
    run = 'echo "I am $NODE_RANK"; if [ "$NODE_RANK" = 1 ]; then sleep 1; echo broken; exit 3; fi; '
    ref = launch(backend, run + "sleep infinity")
    following = Following(backend, ref)
    following.end()
    wait_until("the job has ended", lambda: backend.status(ref).state.ended, timeout_s=60)
    status = backend.status(ref)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert status.tail == ("I am 1", "broken")
    assert following.of(0) == ["I am 0"]
    assert following.of(1) == ["I am 1", "broken"]
    backend.teardown(ref)


def test_a_follower_ends_when_another_process_tears_the_job_down(backend, make):
    ref = launch(backend, "echo up; sleep infinity")
    following = Following(backend, ref)
    following.until("up")
    make().teardown(ref)
    following.end(30)
    assert [following.of(rank) for rank in (0, 1)] == [["up"], ["up"]]


def test_a_follower_ends_when_the_namespace_is_deleted(backend, cluster, namespace):
    ref = launch(backend, "echo up; sleep infinity")
    following = Following(backend, ref)
    following.until("up")
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    following.end(60)
    assert [following.of(rank) for rank in (0, 1)] == [["up"], ["up"]]
    gone = functools.partial(_is_gone, backend, ref)  # its pods go before it does
    wait_until("the job is gone", gone, timeout_s=30)


def _is_gone(backend, ref):
    return backend.status(ref).state is JobState.GONE


def test_lines_of_a_restarted_gang_are_of_both_attempts(backend):
    run = 'echo "attempt $GPUFABRIC_ATTEMPT"; [ "$GPUFABRIC_ATTEMPT" = 1 ]'
    ref = launch(backend, run, num_nodes=1, max_restarts=1)
    following = Following(backend, ref)
    following.end()
    seen = [(x.attempt, x.text) for x in following.lines if x.stream == "stdout"]
    assert seen == [(0, "attempt 0"), (1, "attempt 1")]
    backend.teardown(ref)


# ---- what the cluster says


def test_why_a_pod_cannot_start_is_in_the_log(backend, cluster):
    """An image that is not there: while the launch waits, another process reads why."""
    seen = []

    def read():
        wait_until("there is a job", lambda: list(backend.jobs()), timeout_s=30)
        (ref,) = backend.jobs()
        for line in backend.logs(ref, follow=True):
            seen.append(line)
            if "ErrImagePull" in line.text or "Failed to pull image" in line.text:
                break
        backend.teardown(ref)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.raises(BackendError):
        launch(backend, "true", resources={"image": "registry.invalid/none:1"})
    reader.join(60)
    assert not reader.is_alive()
    events = [line for line in seen if line.stream == "event"]
    assert {line.node_rank for line in events} <= {GANG, 0, 1}
    assert any("registry.invalid/none:1" in line.text for line in events)
    assert len({(x.node_rank, x.text) for x in events}) == len(events)
    assert cluster


def test_a_gang_that_goes_well_has_no_events(backend):
    ref = launch(backend, "echo hi")
    following = Following(backend, ref)
    following.end()
    assert following.told() == []
    assert [(x.stream, x.text) for x in backend.logs(ref)] == [("stdout", "hi")] * 2
    backend.teardown(ref)


def test_without_rights_to_watch_and_to_see_events_lines_come_whole(make, limited_user, caplog):
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for group, resource, verbs in NEEDED
    ]
    backend = make(kubeconfig=str(limited_user(*rules)))
    ref = launch(backend, COUNT + "100")
    following = Following(backend, ref)
    following.end()
    for rank in (0, 1):
        assert_each_once(following.of(rank), 100)
    backend.teardown(ref)
    told = [record.getMessage() for record in caplog.records if "may not watch" in record.message]
    assert len(told) == len(set(told)) == 3  # jobs, jobsets, pods
