"""The fixtures of tests/cluster, on the fake: a server for the session, a namespace for a test."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from gfcluster.fixture import Rule, _role

from .cluster import FakeCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    """A fake cluster of two nodes."""
    with FakeCluster.started(tmp_path_factory.mktemp("kubefake")) as made:
        yield made


@pytest.fixture
def own_cluster(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """The same; undressed after the test."""
    yield cluster
    cluster.dressing.undress_all()


@pytest.fixture
def namespace(cluster: FakeCluster) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    name = f"gpufabric-test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.api.create(body)
    yield name
    cluster.api.delete(body)
    broken, cluster.broken = cluster.broken, []
    assert broken == [], "the fake itself broke"


@pytest.fixture
def limited_user(cluster: FakeCluster, namespace: str) -> Callable[..., Path]:
    """Makes a kubeconfig of a user who has just the rules given, in the test's namespace."""

    def make(*rules: Rule, cluster_rules: Sequence[Rule] = ()) -> Path:
        user = f"user-{uuid.uuid4().hex[:8]}"
        for kind, wanted in (("Role", rules), ("ClusterRole", cluster_rules)):
            if wanted:
                for item in _role(kind, user, namespace, wanted):
                    cluster.api.create(item)
        return cluster.user(user, namespace=namespace)

    return make
