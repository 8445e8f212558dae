"""Every type of every cloud can be asked for and planned wherever it is sold."""

import pytest

from gpufabric.backends.assumed import AssumedBackend
from gpufabric.catalog import Catalog
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import LaunchPlan
from gpufabric.resources import Resources
from gpufabric.task import Task

CATALOG = Catalog.shipped()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", CATALOG.clouds)
def test_every_type_is_planned_on_every_platform(name, nodes):
    backend = AssumedBackend(name)
    site = backend.discover()
    cloud = CATALOG.cloud(name)
    for row in cloud.types():
        task = Task(run="true", num_nodes=nodes, resources=Resources(instance_type=row.name))
        found = backend.offers(task, site)
        if row.gpu.fraction is not None:
            assert not found.offers
            continue
        platforms = {offer.platform: offer for offer in found.offers}
        sold = {platform.name for platform in cloud.platforms_of(row)}
        refused = [r for r in found.rejections if r.instance_type == row.name]
        assert set(platforms) == sold or (set(platforms) < sold and refused), row.name
        for offer in platforms.values():
            plan = backend.plan(task, offer, site)
            assert plan.env or row.gpu.vendor == "aws", row.name
            assert "{" not in "".join(
                item.value for item in plan.network if item.kind in ("resource", "node")
            ), row.name
            for item in plan.network:
                assert item.source is not None, (row.name, item)


@pytest.mark.parametrize("name", CATALOG.clouds)
def test_every_type_keeps_best_or_says_why(name):
    backend = AssumedBackend(name)
    for row in CATALOG.cloud(name).types():
        task = Task(
            run="true",
            num_nodes=2,
            resources=Resources(instance_type=row.name, network_tier=NetworkTier.BEST),
        )
        found = backend.offers(task, backend.discover())
        assert found.offers or any(r.instance_type == row.name for r in found.rejections), row.name


def test_a_plan_of_each_cloud_survives_text():
    for name in CATALOG.clouds:
        backend = AssumedBackend(name)
        for row in CATALOG.cloud(name).types()[:1]:
            task = Task(run="x", num_nodes=2, resources=Resources(instance_type=row.name))
            best = backend.offers(task, backend.discover()).best
            if best is not None:
                plan = backend.plan(task, best, backend.discover())
                assert LaunchPlan.from_yaml(plan.to_yaml()) == plan
