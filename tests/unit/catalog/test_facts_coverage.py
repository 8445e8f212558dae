"""No row of the shipped catalog is dead: each is used by a plan, or a rejection names why not."""

import functools
from collections.abc import Iterator

import pytest

from gpufabric.backends.assumed import AssumedBackend
from gpufabric.catalog import Catalog
from gpufabric.catalog.index import CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow, PlatformRow
from gpufabric.net.interconnect import Place
from gpufabric.net.netplan import network_plan
from gpufabric.net.resolve import Sold, resolve
from gpufabric.plan import LaunchPlan, Offer, Resolution
from gpufabric.resources import Resources
from gpufabric.task import Task

OWN_CLUSTER = """
[cloud]
name = "onprem"
title = "Ours"
as_of = 2026-11-01

[[instance_type]]
name = "dgx-h100"
gpu = { model = "H100", count = 8, form = "SXM" }
nvlink = true
interconnect = "infiniband"
nics = { model = "ConnectX-7", count = 8, gbps_each = 400, gpudirect = "rdma" }
platforms = ["onprem-k8s"]
sources = ["our rack list"]
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """What ships, and one node for the rows of clusters that users own."""
    path = tmp_path_factory.mktemp("overlay") / "ours.toml"
    path.write_text(OWN_CLUSTER, encoding="utf-8")
    return Catalog.shipped().with_overlays(path)


def pairs(cloud: CloudCatalog) -> Iterator[tuple[InstanceTypeRow, PlatformRow]]:
    for row in cloud.types():
        for platform in cloud.platforms_of(row):
            yield row, platform


def asked(
    catalog: Catalog, cloud: CloudCatalog, row: InstanceTypeRow, platform: PlatformRow, nodes: int
) -> tuple[Task, Resolution]:
    task = Task(run="true", num_nodes=nodes, resources=Resources(instance_type=row.name))
    sold = Sold(cloud=cloud, row=row, platform=platform, place=Place(backend=cloud.name))
    return task, resolve(task, [sold], backend=cloud.name, catalog=catalog)


class Plans:
    """The plan of two or more nodes of each type on each platform, made once."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.catalog = catalog
        self.cloud = catalog.cloud(name)
        self.backend = AssumedBackend(name, catalog=catalog)

    @functools.cached_property
    def made(self) -> list[tuple[InstanceTypeRow, PlatformRow, Offer, LaunchPlan]]:
        found = []
        for row, platform in pairs(self.cloud):
            for nodes in (max(2, row.min_nodes), 1):  # some are sold one by one only
                task, answer = asked(self.catalog, self.cloud, row, platform, nodes)
                if answer.best is not None:
                    break
            if answer.best is not None:
                plan = self.backend.plan(task, answer.best, self.backend.discover())
                found.append((row, platform, answer.best, plan))
        return found


@pytest.fixture(scope="module", params=Catalog.shipped().clouds)
def plans(request: pytest.FixtureRequest, catalog: Catalog) -> Plans:
    return Plans(catalog, request.param)


@pytest.mark.parametrize("nodes", [1, 2, 5000])
@pytest.mark.parametrize("name", Catalog.shipped().clouds)
def test_every_type_on_every_platform_is_an_offer_or_a_reason(catalog, name, nodes):
    cloud = catalog.cloud(name)
    for row, platform in pairs(cloud):
        _, answer = asked(catalog, cloud, row, platform, nodes)
        assert bool(answer.offers) != bool(answer.rejections), (row.name, platform.name)
        for rejection in answer.rejections:
            assert rejection.instance_type == row.name
            assert len(rejection.reason) > 20


@pytest.mark.parametrize("name", Catalog.shipped().clouds)
def test_every_alias_finds_its_type(catalog, name):
    cloud = catalog.cloud(name)
    for row in cloud.types():
        for alias in row.aliases:
            assert cloud.find_type(alias.upper()) is row, alias


def test_every_way_to_give_pods_their_nics_is_in_a_plan(plans):
    used = set()
    for row, platform, offer, _ in plans.made:
        for way in plans.cloud.kubernetes_rows(row.name, platform.name):
            net = network_plan(offer, plans.cloud, plans.catalog, way=way)
            assert net.way is not None
            assert net.way.name == way.name
            if net.way.fabric:
                assert {*way.requests} <= {*net.requests}
                used.add(way.name)
            elif not way.fabric or way.confidence.value == "inferred":
                used.add(way.name)  # such a row is the reason of a rejection, tested elsewhere
    assert used == {way.name for way in plans.cloud.rows("kubernetes")}


def test_every_variable_is_set_or_shown_or_set_by_the_platforms_script(plans):
    seen: dict[str, set[str]] = {}
    for row, platform, _, plan in plans.made:
        named = {var.name for var in plan.env}
        named |= {item.name for item in plan.network if item.kind == "not set"}
        rows = plans.cloud.env_rows(row.name, platform.name)
        by_script = {name for env in rows if env.script for name in env.script.sets}
        for env in rows:
            seen.setdefault(env.name, set()).update(
                var.name for var in env.vars if var.name in named | by_script
            )
    for env in plans.cloud.rows("env"):
        assert env.name in seen, f"{env.name}: no plan looks at it"
        assert {var.name for var in env.vars} == seen[env.name], env.name


def test_every_list_of_nics_is_the_list_of_a_plan(plans):
    used = set()
    for row, platform, offer, _ in plans.made:
        listed = plans.cloud.nic_layout(row.name, platform.name)
        if listed is not None and offer.nics.fabric:
            assert row.nics.count in (None, len(offer.nics.fabric)), row.name
            used.add(listed.name)
        elif listed is not None:
            assert offer.nics.nics or row.interconnect == "ethernet", row.name
            used.add(listed.name)
    assert used == {listed.name for listed in plans.cloud.rows("nic_layout")}


def test_every_step_of_a_launch_is_in_a_plan_or_is_for_a_case(plans):
    used = set()
    for row, platform, _, plan in plans.made:
        if platform.kind == "kubernetes":
            continue
        named = {(step.kind, step.name) for step in plan.steps}
        for vm in plans.cloud.vm_rows(row.name):
            if vm.when or vm.confidence.value == "inferred":
                used.add(vm.name)
                continue
            assert {(s.api, s.what) for s in vm.steps} <= named, (row.name, vm.name)
            used.add(vm.name)
    assert used == {vm.name for vm in plans.cloud.rows("vm")}
