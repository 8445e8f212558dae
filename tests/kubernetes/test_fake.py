"""What only the fake can: many objects at once, logs that are computed, a history cut short."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kubefake
import pytest
from gfcluster.shell import wait_until

from gpufabric.backends.kubernetes._api import Api
from gpufabric.errors import BackendError, TransientError

FOLDER = Path(__file__).parent


@pytest.fixture
def fake(tmp_path):
    """A fake of the test's own."""
    with kubefake.FakeCluster.started(tmp_path / "fake") as made:
        yield made


@pytest.fixture
def api(fake):
    made = Api(backend="fake", kubeconfig=str(fake.kubeconfig), timeout_s=2.0)
    yield made
    made.close()


def pods(number):
    for index in range(number):
        yield {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"p-{index:05}", "namespace": "default"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "job", "image": "any"}]},
            "status": {"phase": "Running"},
        }  # fmt: skip


def test_objects_are_loaded_as_they_are_and_nobody_runs_them(fake, api):
    assert fake.load(pods(2000)) == 2000
    listed = list(api.items("/api/v1/pods"))
    assert [one["metadata"]["name"] for one in listed[:2]] == ["p-00000", "p-00001"]
    assert len(listed) == 2000
    assert fake.kubelet.pods == {}


def test_a_list_half_read_and_an_old_watch_are_expired_after_a_compaction(fake):
    fake.load(pods(10))
    page = fake.api.call("GET", "/api/v1/pods?limit=4")
    version, token = page["metadata"]["resourceVersion"], page["metadata"]["continue"]
    fake.load(pods(1))
    fake.forget()
    for path in (f"limit=4&continue={token}", f"watch=true&resourceVersion={version}"):
        with pytest.raises(Exception, match="too old") as caught:
            fake.api.call("GET", f"/api/v1/pods?{path}")
        assert caught.value.code == 410


def test_bookmarks_come_each_second_and_not_each_minute_as_from_a_real_server(fake):
    version = fake.api.call("GET", "/api/v1/nodes")["metadata"]["resourceVersion"]
    path = f"/api/v1/nodes?watch=true&resourceVersion={version}&allowWatchBookmarks=true"
    told = fake.api.text("GET", f"{path}&timeoutSeconds=2").splitlines()
    assert "BOOKMARK" in {json.loads(line)["type"] for line in told}


def test_a_computed_log_is_the_same_for_every_reader(fake, api):
    fake.load(pods(2))
    said = kubefake.Synthetic(rate=5000, seconds=0.5)
    for name in ("p-00000", "p-00001"):
        fake.say("default", name, said)
    path = "/api/v1/namespaces/default/pods/{}/log"
    query = {"follow": "true", "timestamps": "true"}
    for name in ("p-00000", "p-00001"):
        lines = api.raw(path.format(name), query).splitlines()
        wanted = [said.when(n) + b" " + said.line(n) for n in range(said.total)]
        assert lines == wanted


def test_a_server_that_is_down_comes_back_where_it_was(fake, api):
    before = api.get("/api/v1/nodes/node-1")
    with fake.fault("kill", "apiserver"), pytest.raises(TransientError):
        api.get("/api/v1/nodes/node-1")
    with fake.fault("pause", "etcd"), pytest.raises(TransientError):
        api.get("/api/v1/nodes/node-1")
    assert api.get("/api/v1/nodes/node-1") == before


def test_unknown_fields_are_always_refused(api):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dtaa": {}}
    with pytest.raises(BackendError, match='unknown field "dtaa"'):
        api.request("POST", "/api/v1/namespaces/default/configmaps", body=body)


def test_no_process_outlives_the_fake(tmp_path):
    mark = f"kubefake-mark-{os.getpid()}"
    with kubefake.FakeCluster.started(tmp_path / "fake") as fake:
        container = {
            "name": "job", "image": fake.image, "env": [{"name": "MARK", "value": mark}],
            "command": ["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"],
        }  # fmt: skip
        fake.api.create({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"containers": [container]},
        })  # fmt: skip
        wait_until("it runs", lambda: len(processes(mark)) >= 3, timeout_s=10)
    wait_until("all are gone", lambda: not processes(mark), timeout_s=10)


def processes(mark):
    """Processes with a word in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # another user's, or gone
            continue
    return found


def test_it_serves_from_a_process_of_its_own(tmp_path):
    (tmp_path / "objects").write_text("".join(f"{json.dumps(one)}\n" for one in pods(3)))
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parent / "cluster")])
    words = [sys.executable, "-m", "kubefake", "--load", str(tmp_path / "objects"),
             "--logs", "default/p-00001=100:0.01"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        api = Api(backend="fake", kubeconfig=server.stdout.readline().strip())
        assert len(list(api.items("/api/v1/pods"))) == 3
        lines = api.raw("/api/v1/namespaces/default/pods/p-00001/log").splitlines()
        assert lines == [kubefake.Synthetic(rate=1, seconds=1).line(0)]
        api.close()
        server.stdin.close()
        assert server.wait(20) == 0
