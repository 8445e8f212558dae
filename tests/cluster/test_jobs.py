"""Which jobs are found, and by whom, on a real cluster of several namespaces."""

import uuid

import pytest
from given import plan_of

import gpufabric as gf
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._role import NEEDED
from gpufabric.config import Settings
from gpufabric.job import JobState

pytestmark = pytest.mark.cluster


def launch(backend, run):
    return backend.apply(plan_of(backend, run, num_nodes=1))


@pytest.fixture
def elsewhere(cluster):
    """Another namespace."""
    name = f"gpufabric-test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def there(cluster, elsewhere):
    """A job in another namespace."""
    settings = Settings(stop_grace_s=1.0, trust_env=False)
    one = Kubernetes(
        namespace=elsewhere, kubeconfig=str(cluster.kubeconfig), settings=settings,
        image=cluster.image,
    )  # fmt: skip
    yield launch(one, "echo there")
    one.close()


def test_jobs_of_every_namespace_are_found_and_removed_by_one_backend(backend, there):
    here = launch(backend, "echo here")
    assert list(backend.jobs()) == [here]
    every = set(backend.jobs(all_namespaces=True))
    assert {here, there} <= every
    fabric = gf.Fabric(backend, settings=Settings(trust_env=False))
    job = fabric.attach(there)  # by the backend's own kubeconfig, which no other would find
    assert [line.text for line in job.logs(follow=True)] == ["there"]
    job.teardown()
    backend.teardown(here)
    assert not {here, there} & set(backend.jobs(all_namespaces=True))
    assert job.status().state is JobState.GONE


def test_what_may_not_be_looked_into_is_told(make, limited_user, there, caplog):
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for group, resource, verbs in NEEDED
    ]
    narrow = make(kubeconfig=str(limited_user(*rules)))
    here = launch(narrow, "echo here")
    assert list(narrow.jobs(all_namespaces=True)) == [here]
    assert "only the jobs of namespace" in caplog.text
    spaces = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}]
    caplog.clear()
    wider = make(kubeconfig=str(limited_user(*rules, cluster_rules=spaces)))
    assert list(wider.jobs(all_namespaces=True)) == [here]
    assert there.place.rpartition("/")[2] in caplog.text
    narrow.teardown(here)
