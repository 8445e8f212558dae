"""Pytest fixtures: a real cluster to test on, and a namespace, users and faults in it.

`cluster` is the cluster of GPUFABRIC_TEST_KUBECONFIG, or the one that `cluster.py up` started. With
neither, tests are skipped and say so; where GPUFABRIC_TEST_CLUSTER=required they fail instead.
"""

import contextlib
import fcntl
import os
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import build, control, dress, faults, layout, lifecycle, nodes, users
from .api import Api
from .shell import run, wait_until

Rule = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster that tests may use."""

    kubeconfig: Path
    own: bool  # ours: nodes can be dressed, faults be made, and users minted
    image: str  # an image with a shell and python3 that its nodes can run

    @property
    def api(self) -> Api:
        """Our own small client, as administrator; of our own cluster only."""
        return Api(self.kubeconfig)

    def kubectl(self, *words: str) -> str:
        """Run kubectl of the cluster's own version; what it said."""
        env = {**os.environ, "NO_PROXY": "*"} if self.own else None
        return run([build.program("kubectl"), f"--kubeconfig={self.kubeconfig}", *words], env=env)

    def dress(self, profile: str, *nodes: str, **words: str) -> None:
        """Make nodes, or all of them, look like a cloud's."""
        for node in lifecycle.running_nodes():
            if not nodes or node.name in nodes:
                dress.dress(self.api, node, profile, words)

    @contextlib.contextmanager
    def fault(self, fault: str, target: str) -> Generator[None, None, None]:
        """A fault for as long as the block runs; everything is healed after it."""
        all_nodes = lifecycle.running_nodes()
        faults.inflict(fault, target, all_nodes)
        try:
            yield
        finally:
            faults.heal(all_nodes)


def find() -> Cluster | str:
    """The cluster to test on, or why there is none."""
    named = os.environ.get("GPUFABRIC_TEST_KUBECONFIG")
    if named and Path(named) != layout.kubeconfig():
        image = os.environ.get("GPUFABRIC_TEST_IMAGE", "python:3.12-slim")
        return Cluster(kubeconfig=Path(named), own=False, image=image)
    if os.geteuid() != 0:
        return "a test cluster needs root; or set GPUFABRIC_TEST_KUBECONFIG"
    state = lifecycle.status()["state"]
    if state != "up":
        return f"the test cluster is {state}: python3 tests/cluster/cluster.py up"
    return Cluster(kubeconfig=layout.kubeconfig(), own=True, image=layout.JOB_IMAGE)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """A real cluster, or a skip that says why there is none."""
    found = find()
    if isinstance(found, Cluster):
        return found
    if os.environ.get("GPUFABRIC_TEST_CLUSTER") == "required":
        pytest.fail(found)
    pytest.skip(found)


@contextlib.contextmanager
def _turn(how: int) -> Generator[None, None, None]:
    """Tests of several workers share a cluster, but one that changes its nodes has it alone.

    Who comes first waits first: the gate keeps those who share from passing one who does not.
    """
    folder = Path(tempfile.gettempdir())
    with (
        (folder / "gpufabric-cluster.gate").open("w") as gate,
        (folder / "gpufabric-cluster.turn").open("w") as turn,
    ):
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(turn, how)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture
def own_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster that `cluster.py up` started, alone; undressed and healed after the test."""
    if not cluster.own:
        pytest.skip("needs the cluster of tests/cluster/cluster.py, to change its nodes")
    with _turn(fcntl.LOCK_EX):
        nodes.wait_ready(cluster.api, lifecycle.running_nodes())
        yield cluster
        if lifecycle.status()["state"] != "up":
            faults.heal(lifecycle.running_nodes())
        dress.undress_all(cluster.api, lifecycle.running_nodes())


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, ready for pods; deleted after it, with all that is in it."""
    if "own_cluster" in request.fixturenames:
        request.getfixturevalue("own_cluster")  # its turn comes first
        yield from _made(cluster)
        return
    with _turn(fcntl.LOCK_SH):
        yield from _made(cluster)


def _made(cluster: Cluster) -> Iterator[str]:
    name = f"gpufabric-test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    if cluster.own:
        cluster.api.create(body)
        control.wait_takes_pods(cluster.api, name)
        yield name
        cluster.api.delete(body)
        return
    from kubernetes import client, config

    # The client has no types for its own configuration.
    connection = config.new_client_from_config(str(cluster.kubeconfig))  # type: ignore[no-untyped-call]
    api = client.CoreV1Api(connection)
    api.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    wait_until(
        "pods have an account",
        lambda: api.list_namespaced_service_account(name).items,
        timeout_s=60,
    )
    yield name
    api.delete_namespace(name)


@pytest.fixture
def limited_user(cluster: Cluster, namespace: str) -> Callable[..., Path]:
    """Makes a kubeconfig of a user who has just the rules given, in the test's namespace."""
    if not cluster.own:
        pytest.skip("needs the cluster of tests/cluster/cluster.py, to mint users")

    def make(*rules: Rule, cluster_rules: Sequence[Rule] = ()) -> Path:
        user = f"user-{uuid.uuid4().hex[:8]}"
        for kind, wanted in (("Role", rules), ("ClusterRole", cluster_rules)):
            if wanted:
                for item in _role(kind, user, namespace, wanted):
                    cluster.api.create(item)
        return users.mint(user, namespace=namespace)

    return make


def _role(kind: str, user: str, namespace: str, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    meta: dict[str, Any] = {"name": user}
    if kind == "Role":
        meta["namespace"] = namespace
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, "rules": list(rules)},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": kind, "name": user},
            "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
        },
    ]
