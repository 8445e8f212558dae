"""What tests of Kubernetes gangs share: backends of the test's namespace, plans, what is left."""

import pytest
from attrs import evolve

from gpufabric._frozen import freeze, thaw
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.config import Settings
from gpufabric.task import Task


@pytest.fixture
def make(cluster, namespace):
    """Makes backends of the test's namespace; all are closed after the test."""
    made = []

    def backend(**fields):
        settings = Settings(stop_grace_s=1.0, trust_env=False)
        given = {"kubeconfig": str(cluster.kubeconfig), "settings": settings, **fields}
        one = Kubernetes(namespace=namespace, image=cluster.image, **given)
        made.append(one)
        return one

    yield backend
    for one in made:
        one.close()


@pytest.fixture
def backend(make):
    """A backend of the test's namespace, as administrator."""
    return make()


def plan_of(backend, run="echo hi", *, num_nodes=2, run_id="", without=(), **fields):
    """The plan of the best offer; `without` some of the cluster's controllers."""
    task = Task.from_dict({"run": run, "num_nodes": num_nodes, "name": "gang", **fields})
    site = backend.discover()
    facts = thaw(site.facts)
    for controller in without:
        facts["controllers"].pop(controller, None)
    site = evolve(site, facts=freeze(facts))
    resolution = backend.offers(task, site)
    assert resolution.best is not None, str(resolution)
    return backend.plan(task, resolution.best, site, run=run_id)
