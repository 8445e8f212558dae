"""What tests of Kubernetes gangs share: backends of the test's namespace, plans, what is left."""

import threading

import pytest
from attrs import evolve
from faultproxy import FaultProxy
from gfcluster.shell import wait_until

from gpufabric._frozen import freeze, thaw
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.config import Settings
from gpufabric.task import Task


@pytest.fixture
def make(cluster, namespace):
    """Makes backends of the test's namespace; all are closed after the test."""
    made = []

    def backend(*, retry_s=20.0, **fields):
        settings = Settings(stop_grace_s=1.0, retry_s=retry_s, trust_env=False)
        given = {"kubeconfig": str(cluster.kubeconfig), "settings": settings, **fields}
        one = Kubernetes(namespace=namespace, image=cluster.image, **given)
        made.append(one)
        return one

    yield backend
    for one in made:
        one.close()


@pytest.fixture
def proxy(cluster):
    """Stands before the server, and makes faults."""
    with FaultProxy.before(cluster.kubeconfig) as server:
        yield server


@pytest.fixture
def queue(cluster, namespace):
    """A LocalQueue of the namespace, with room for two pods of 1 CPU."""
    flavor = {"name": namespace, "resources": [{"name": "cpu", "nominalQuota": "2"}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [flavor]}]
    objects = [
        {"kind": "ResourceFlavor", "metadata": {"name": namespace}, "spec": {}},
        {"kind": "ClusterQueue", "metadata": {"name": namespace},
         "spec": {"namespaceSelector": {}, "resourceGroups": groups}},
        {"kind": "LocalQueue", "metadata": {"name": "team", "namespace": namespace},
         "spec": {"clusterQueue": namespace}},
    ]  # fmt: skip
    made = [{"apiVersion": "kueue.x-k8s.io/v1beta2", **one} for one in objects]
    for one in made:
        cluster.api.create(one)
    yield "team"
    for one in reversed(made):
        cluster.api.delete(one)


@pytest.fixture
def backend(make):
    """A backend of the test's namespace, as administrator."""
    return make()


def plan_of(backend, run="echo hi", *, num_nodes=2, run_id="", without=(), **fields):
    """The plan of the best offer; `without` some of the cluster's controllers.

    A node whose kubelet a busy machine has held up for ten seconds is not ready, and is waited for.
    """
    task = Task.from_dict({"run": run, "num_nodes": num_nodes, "name": "gang", **fields})
    told = []

    def planned():
        site = backend.discover()
        facts = thaw(site.facts)
        for controller in without:
            facts["controllers"].pop(controller, None)
        site = evolve(site, facts=freeze(facts))
        resolution = backend.offers(task, site)
        told[:] = [str(resolution)]
        best = resolution.best
        return None if best is None else backend.plan(task, best, site, run=run_id)

    return wait_until("there is an offer", planned, timeout_s=30, diagnose=lambda: told[0])


def launched_at_once(plan, *backends):
    """The ref that each of several launchers of one plan gets."""
    refs = []
    threads = [threading.Thread(target=lambda b=b: refs.append(b.apply(plan))) for b in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refs


def nothing_left(backend):
    """Fails if there is a job, a pod, a Secret or a Service in the backend's namespace."""
    _, namespace = backend._where()
    assert list(backend.jobs()) == []
    paths = [f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("pods", "secrets", "services")]
    assert [item["metadata"]["name"] for path in paths for item in backend._api.items(path)] == []


def lines_of(backend, ref):
    """What nodes 0 and 1 print, to the job's end."""
    lines = [x for x in backend.logs(ref, follow=True) if x.stream == "stdout"]
    return {rank: [x.text for x in lines if x.node_rank == rank] for rank in (0, 1)}


def ended(backend, ref):
    """The status of a job once it has ended."""
    wait_until("the job has ended", lambda: backend.status(ref).state.ended, timeout_s=60)
    return backend.status(ref)
