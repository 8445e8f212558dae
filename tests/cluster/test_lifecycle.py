"""Up, down, and what is there in between and afterwards.

These tests end the cluster, so they run only where GPUFABRIC_TEST_CLUSTER=lifecycle says that
nobody else uses it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gfcluster import build, layout, lifecycle
from gfcluster.shell import ClusterError, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROGRAM = layout.HERE / "cluster.py"


@pytest.fixture(autouse=True, scope="module")
def _alone():
    if os.environ.get("GPUFABRIC_TEST_CLUSTER") != "lifecycle":
        pytest.skip("ends the test cluster; set GPUFABRIC_TEST_CLUSTER=lifecycle to run it")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    build.check_built()
    lifecycle.down()


@pytest.fixture
def machine_before(_alone):
    """What this machine is like, and the check that it is so again once the cluster is down."""
    before = _machine()
    yield
    lifecycle.down()
    assert _machine() == before
    assert _strangers() == []


def _machine():
    """All of this machine that a cluster could leave something in, seen by other code than its."""
    mounts = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    links = subprocess.check_output(["ip", "-brief", "link"], text=True).splitlines()
    return {
        # /run/netns is iproute2's own mount, made by the first `ip netns add` of anybody
        "mounts": {where for where in mounts if not where.startswith("/run/netns")},
        "links": {line.split()[0] for line in links},
        "namespaces": subprocess.check_output(["ip", "netns"], text=True),
        "groups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/k8s.io")),
        "folders": {
            str(path)
            for top in ("/", "/run", "/var/lib", "/var/log", "/opt", "/home", "/dev", "/etc")
            for path in Path(top).iterdir()
            if path != Path("/run/netns")
        },
    }


def _strangers():
    """Processes as only a cluster has them: in another process namespace, or its programs."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            foreign = (entry / "ns" / "pid").readlink() != Path("/proc/self/ns/pid").readlink()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is not even root's to look at
        name = Path(words[0].decode(errors="replace")).name
        if foreign or re.match(r"containerd|kube|etcd|coredns|jobset|kueue|lws|runc", name):
            found.append((entry.name, name))
    return found


def _run(*words, env=None):
    return subprocess.run(
        [sys.executable, PROGRAM, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_up_starts_the_cluster_once_and_down_leaves_nothing(machine_before):
    first = _run("up")
    assert first.returncode == 0, first.stderr
    assert re.search(r"up in \d", first.stderr)
    again = _run("up")
    assert (again.returncode, again.stderr.splitlines()[-1]) == (0, "cluster: already up")
    status = json.loads(_run("status").stdout)
    assert status["state"] == "up"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stubborn", "namespace": "default"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": layout.JOB_IMAGE,
                    "command": ["bash", "-c", "trap '' TERM; while :; do sleep 1; done"],
                }
            ]
        },
    }
    from gfcluster.api import Api

    api = Api(layout.kubeconfig())
    api.create(pod)
    api.wait_true(api.object_path(pod), "Ready", timeout_s=40)
    assert _run("fault", "pause", "etcd").returncode == 0
    down = _run("down")
    assert down.returncode == 0, down.stderr
    assert json.loads(_run("status").stdout) == {"state": "down", "leftovers": []}
    assert _run("down").returncode == 0


@pytest.mark.parametrize("program", ["etcd", "node-2/machine", "kueue"])
def test_up_works_after_an_up_that_was_killed(machine_before, program):
    record = layout.state_folder() / "daemons" / f"{program.replace('/', '-')}.json"
    with subprocess.Popen(
        [sys.executable, PROGRAM, "up"], stderr=subprocess.DEVNULL, start_new_session=True
    ) as half:
        wait_until(f"{program} is started", record.exists, timeout_s=60)
        os.kill(half.pid, signal.SIGKILL)
    assert json.loads(_run("status").stdout)["state"] == "half"
    whole = _run("up")
    assert whole.returncode == 0, whole.stderr
    assert json.loads(_run("status").stdout)["state"] == "up"


def test_other_sizes_and_fewer_add_ons_can_be_asked_for(machine_before):
    assert _run("up", "--nodes", "3", "--addons").returncode == 0
    nodes = _run("kubectl", "get", "nodes", "-o", "name").stdout.split()
    assert nodes == ["node/node-1", "node/node-2", "node/node-3"]
    assert "jobset" not in _run("kubectl", "get", "crd", "-o", "name").stdout
    assert _run("addon", "add", "jobset").returncode == 0
    assert "jobset" in _run("kubectl", "get", "crd", "-o", "name").stdout
    assert _run("addon", "remove", "jobset").returncode == 0
    assert "jobset" not in _run("kubectl", "get", "crd", "-o", "name").stdout
    assert json.loads(_run("status").stdout)["state"] == "up"


def test_without_a_cluster_every_command_says_so(machine_before):
    for words in (["env"], ["dress", "node-1", "eks-p5"], ["fault", "kill", "etcd"], ["heal"]):
        done = _run(*words)
        assert done.returncode == 1
        assert done.stderr == "cluster: no cluster is up; run: cluster.py up\n"


def test_without_go_and_without_a_cache_the_build_says_what_to_do(tmp_path):
    done = _run(
        "build", env={"PATH": "/usr/sbin:/usr/bin", "GPUFABRIC_CLUSTER_CACHE": str(tmp_path)}
    )
    assert done.returncode == 1
    assert "no Go compiler on PATH" in done.stderr
    assert "GPUFABRIC_CLUSTER_CACHE" in done.stderr


def test_more_nodes_than_there_are_addresses_for_are_refused():
    with pytest.raises(ClusterError, match="from 1 to 16 are possible"):
        lifecycle.up(17)
