"""What a network plan holds, what the user's variables do to it, and what is only shown."""

from pathlib import Path

import pytest

from gpufabric.backends.assumed import AssumedBackend
from gpufabric.catalog import Catalog
from gpufabric.errors import CatalogError
from gpufabric.net.netplan import NetworkPlan, fitting_way, network_plan
from gpufabric.plan import LaunchPlan, Offer
from gpufabric.resources import Resources
from gpufabric.task import Task

SOURCE = 'sources = ["https://example.org/page"]\n'
LAB = f"""\
[cloud]
name = "lab"
title = "lab"
as_of = 2026-11-30

[[platform]]
name = "vm"
title = "machines"
kind = "vm"
{SOURCE}
[[platform]]
name = "pods"
title = "pods"
kind = "kubernetes"
type_prefix = "x."
{SOURCE}
[[placement]]
name = "close"
object = "closeness group"
api = "lab:CreateGroup"
required = true
why = "keeps nodes in one row"
{SOURCE}
[[interconnect]]
name = "infiniband"
kind = "infiniband"
scope = "one room"
placement = "close"
needs = ["a subnet manager"]
{SOURCE}
[[instance_type]]
name = "node"
gpu = {{ model = "H100", count = 8 }}
interconnect = "infiniband"
nics = {{ model = "CX7", count = 8, gbps_each = 400, gpudirect = "rdma" }}
nvlink = true
platforms = ["vm", "pods"]
fabrics = {{ north = ["f1", "f2"] }}
regions = ["north"]
{SOURCE}
[[nic_layout]]
name = "layout"
applies_to = ["node"]
slots = [
  {{ index = 0, kind = "eth", role = "frontend", subnet = "shared" }},
  {{ index = 1, to_index = 8, kind = "ib", role = "fabric", attached_by = "provider" }},
]
{SOURCE}
[[kubernetes]]
name = "whole"
platform = "pods"
applies_to = ["*"]
requests = {{ "nvidia.com/gpu" = "8", "rdma/ib" = "{{nics}}" }}
annotations = {{ nets = "{{nics*net-a}}" }}
node_selector = {{ type = "{{type}}" }}
tolerations = [{{ key = "nvidia.com/gpu" }}]
capabilities = ["IPC_LOCK"]
privilege_why = "RDMA pins memory"
compute_domain = true
mounts = [{{ name = "shm", mount_path = "/dev/shm", source = "empty_dir", medium = "Memory" }}]
sidecars = [{{ name = "mover", image = "x.org/mover:1", why = "moves data", privileged = true }}]
claims = {{ ib = {{ devices = {{ requests = [] }} }} }}
daemons = [{{ name = "plugin", minimum = "1.2", why = "advertises NICs" }}]
objects = [{{ kind = "Policy", names = ["p"], note = "by the cluster's owner" }}]
{SOURCE}
[[env]]
name = "common"
applies_to = ["node"]
platforms = ["*"]
vars = [
  {{ name = "NCCL_IB_HCA", value = "mlx5", why = "these are the fabric's", since = "2.4" }},
  {{ name = "NCCL_IB_TC", value = "106", why = "maybe", default = false }},
]
avoid = [
  {{ name = "NCCL_IB_GID_INDEX", why = "InfiniBand has none" }},
  {{ name = "NCCL_NET", value = "Socket", why = "TCP", breaks = true }},
]
versions = [{{ name = "NCCL", minimum = "2.20", broken = ["2.21.0"], why = "older ones hang" }}]
{SOURCE}
[[env]]
name = "guess"
applies_to = ["node"]
platforms = ["vm"]
confidence = "inferred"
vars = [{{ name = "NCCL_CROSS_NIC", value = "0", why = "rails" }}]
{SOURCE}
[[env]]
name = "mpi"
applies_to = ["node"]
platforms = ["vm"]
when = "mpirun starts the ranks"
vars = [{{ name = "OMPI_MCA_pml", value = "ob1", why = "plain" }}]
{SOURCE}
"""
SCRIPT = f"""
[[env]]
name = "script"
applies_to = ["node"]
platforms = ["vm"]
script.path = "/opt/set.sh"
script.why = "the vendor says so"
script.before = {{ LIB = "/opt" }}
script.sets = ["NCCL_IB_HCA"]
{SOURCE}
"""


@pytest.fixture
def lab(tmp_path: Path):
    def make(text: str = LAB) -> Catalog:
        path = tmp_path / "lab.toml"
        path.write_text(text, encoding="utf-8")
        return Catalog.shipped().with_overlays(path)

    return make


def planned(
    catalog: Catalog, platform: str = "vm", nodes: int = 2, gpus: int = 8, **envs: str
) -> tuple[NetworkPlan, LaunchPlan, Offer]:
    task = Task(
        run="x", num_nodes=nodes, envs=envs, resources=Resources(accelerators=f"H100:{gpus}")
    )
    backend = AssumedBackend("lab", catalog=catalog)
    offers = backend.offers(task, backend.discover()).offers
    offer = next(o for o in offers if o.platform == platform)
    net = network_plan(offer, catalog.cloud("lab"), catalog, envs=task.envs)
    return net, backend.plan(task, offer, backend.discover()), offer


def values(net: NetworkPlan, kind: str) -> dict[str, str]:
    return {item.name: item.value for item in net.items if item.kind == kind}


def env(net: NetworkPlan) -> dict[str, str]:
    return {var.name: var.value for var in net.env}


def test_every_line_has_a_reason_and_a_source(lab):
    for platform in ("vm", "pods"):
        net, _, _ = planned(lab(), platform)
        for item in net.items:
            assert item.why or item.kind == "object", item
            assert item.source is not None, item
        for var in net.env:
            assert var.why
            assert var.source is not None, var


def test_machines_have_their_nics_listed_and_placed(lab):
    net, _, offer = planned(lab())
    assert values(net, "nic") == {
        "0": "eth, frontend, card 0, shared subnet",
        "1..8": "8 x ib, fabric, cards 1..8, 400 Gb/s each",
    }
    assert [nic.card for nic in offer.nics.fabric] == list(range(1, 9))
    assert values(net, "placement") == {"closeness group": "lab:CreateGroup (required)"}
    assert values(net, "need") == {"0": "a subnet manager"}
    assert values(net, "fabric") == {"one of": "f1, f2"}
    assert values(net, "version") == {"NCCL": "2.20 or later; not 2.21.0"}


def test_pods_ask_for_what_their_row_says_with_the_type_filled_in(lab):
    net, _, _ = planned(lab(), "pods")
    assert values(net, "resource") == {"nvidia.com/gpu": "8", "rdma/ib": "8"}
    assert values(net, "annotation") == {"nets": ",".join(["net-a"] * 8)}
    assert values(net, "node") == {"type": "x.node"}
    assert values(net, "security") == {"capabilities": "IPC_LOCK"}
    assert values(net, "compute-domain")
    assert values(net, "claim") == {"ib": '{"devices":{"requests":[]}}'}
    assert values(net, "daemon") == {"plugin": "1.2 or later"}
    assert "privileged" in values(net, "sidecar")["mover"]
    assert values(net, "placement") == {}
    assert net.way is not None
    assert net.requests == {"nvidia.com/gpu": "8", "rdma/ib": "8"}
    assert net.way.annotations == {"nets": ",".join(["net-a"] * 8)}


def test_a_part_of_a_node_asks_for_gpus_alone(lab):
    net, _, _ = planned(lab(), "pods", gpus=4)
    assert net.requests == {"nvidia.com/gpu": "4"}
    assert net.way is not None
    assert not net.way.fabric
    assert values(net, "toleration") == {"nvidia.com/gpu": "Exists NoSchedule"}
    assert values(net, "node") == {"type": "x.node"}
    assert values(net, "security") == {"privileged": "false"}
    assert "NCCL_IB_HCA" not in env(net)


def test_one_node_sets_up_no_network_between_nodes(lab):
    net, _, _ = planned(lab(), "pods", nodes=1)
    assert net.requests == {"nvidia.com/gpu": "8"}
    assert set(env(net)) == {"NCCL_DEBUG"}
    assert values(net, "nic") == {}
    assert net.warnings == ()


def test_accelerators_that_do_not_speak_nccl_get_none_of_its_variables():
    backend = AssumedBackend("aws")
    task = Task(run="x", num_nodes=2, resources=Resources(accelerators="trn2:16"))
    offer = backend.offers(task, backend.discover()).best
    assert offer is not None
    assert backend.plan(task, offer, backend.discover()).env == ()


def test_the_environment_names_since_when_it_holds(lab):
    net, _, _ = planned(lab())
    var = next(v for v in net.env if v.name == "NCCL_IB_HCA")
    assert (var.value, var.since) == ("mlx5", "NCCL 2.4")
    assert str(var.source) == "https://example.org/page"


def test_inferred_and_special_variables_are_shown_and_not_set(lab):
    net, _, _ = planned(lab())
    assert set(env(net)) == {"NCCL_DEBUG", "NCCL_IB_HCA"}
    shown = {i.name: i.why for i in net.items if i.kind == "not set"}
    assert shown["NCCL_CROSS_NIC"] == "inferred: rails"
    assert shown["OMPI_MCA_pml"] == "only when mpirun starts the ranks: plain"
    assert "NCCL_IB_TC" in shown


def test_the_users_value_wins_and_what_it_replaced_is_shown(lab):
    net, plan, _ = planned(lab(), NCCL_IB_HCA="mlx5_3")
    var = next(v for v in net.env if v.name == "NCCL_IB_HCA")
    assert (var.value, var.overridden) == ("mlx5_3", "mlx5")
    assert [v.name for v in net.env].count("NCCL_IB_HCA") == 1
    assert "yours; the plan had mlx5" in str(plan)
    assert net.warnings == ("NCCL_IB_HCA=mlx5_3 replaces mlx5: these are the fabric's",)


def test_the_users_own_value_equal_to_the_plans_is_no_warning(lab):
    net, _, _ = planned(lab(), NCCL_IB_HCA="mlx5")
    assert net.warnings == ()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_IB_DISABLE", "1", "is known to break the network"),
        ("NCCL_NET", "socket", "is known to break the network"),
        ("NCCL_NET_GDR_LEVEL", "LOC", "is known to break the network"),
        ("NCCL_P2P_DISABLE", "1", "is known to break the network"),
        ("NCCL_IB_GID_INDEX", "3", "is advised against here: InfiniBand has none"),
        ("NCCL_IB_GID_INDX", "3", "nothing reads NCCL_IB_GID_INDX"),
        ("NCCL_SOCKET_IFNAM", "eth0", "did you mean NCCL_SOCKET_IFNAME?"),
    ],
)
def test_a_variable_that_breaks_costs_or_does_nothing_is_warned_of(lab, name, value, words):
    net, plan, _ = planned(lab(), **{name: value})
    assert any(words in warning for warning in net.warnings), net.warnings
    assert env(net)[name] == value
    assert any(words in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_TESTS_DEVICE", "0"),
        ("NCCL_FASTRAK_IFNAME", "eth1"),
        ("NCCL_AGG_CHANNEL_SIZE", "1"),
        ("MY_OWN", "x"),
    ],
)
def test_a_harmless_variable_is_not_warned_of(lab, name, value):
    net, _, _ = planned(lab(), **{name: value})
    assert net.warnings == ()


def test_a_script_of_the_platform_sets_its_own_variables(lab):
    net, plan, _ = planned(lab(LAB + SCRIPT))
    assert net.script == "/opt/set.sh"
    assert env(net)["LIB"] == "/opt"
    assert "NCCL_IB_HCA" not in env(net)
    assert values(net, "script") == {"source": "/opt/set.sh"}
    assert "/opt/set.sh" in str(plan)


def test_a_type_without_a_row_is_a_catalog_error(lab):
    from gpufabric._frozen import evolve

    _, _, offer = planned(lab())
    catalog = lab()
    with pytest.raises(CatalogError, match="has no instance type 'other'"):
        network_plan(evolve(offer, instance_type="other"), catalog.cloud("lab"), catalog)
    with pytest.raises(CatalogError, match="has no moon"):
        network_plan(evolve(offer, platform="moon"), catalog.cloud("lab"), catalog)


def test_a_plan_survives_text(lab):
    for platform in ("vm", "pods"):
        _, plan, _ = planned(lab(), platform)
        assert LaunchPlan.from_yaml(plan.to_yaml()) == plan
        assert LaunchPlan.from_dict(plan.to_dict()) == plan


def test_a_plan_with_another_variable_differs_in_that_line(lab):
    _, one, _ = planned(lab())
    _, two, _ = planned(lab(), NCCL_IB_HCA="mlx5_3")
    added = [line for line in one.diff(two).splitlines() if line.startswith("+")]
    assert any("NCCL_IB_HCA: mlx5_3" in line for line in added)
    assert one.diff(one) == ""


def test_a_tuner_is_told_of_when_its_protocol_is_forced():
    backend = AssumedBackend("aws")
    task = Task(
        run="x",
        num_nodes=2,
        envs={"NCCL_PROTO": "Simple"},
        resources=Resources(accelerators="H100:8", network_tier="best"),
    )
    offer = backend.offers(task, backend.discover()).best
    assert offer is not None
    plan = backend.plan(task, offer, backend.discover())
    assert any("NCCL_PROTO=Simple" in w and "tuner" in w for w in plan.warnings)


def test_another_way_of_the_platform_can_be_chosen(lab):
    other = LAB + LAB[LAB.index("[[kubernetes]]") : LAB.index("[[env]]")].replace(
        '"whole"', '"shared"\npreference = 2'
    ).replace('"rdma/ib" = "{nics}"', '"rdma/shared" = "1"')
    catalog = lab(other)
    _, _, offer = planned(catalog, "pods")
    ways = catalog.cloud("lab").kubernetes_rows("node", "pods")
    assert [way.name for way in ways] == ["whole", "shared"]
    net = network_plan(offer, catalog.cloud("lab"), catalog, way=ways[1])
    assert net.requests == {"nvidia.com/gpu": "8", "rdma/shared": "1"}
    assert fitting_way(ways, {"rdma/shared": "63", "nvidia.com/gpu": "8"}) is ways[1]
    assert (
        fitting_way(ways, {"nvidia.com/gpu": "8", "rdma/ib": "8", "rdma/shared": "63"}) is ways[0]
    )
    assert fitting_way(ways, {"nvidia.com/gpu": "8"}) is None


def test_a_way_by_claims_needs_its_device_class():
    ways = Catalog.shipped().cloud("aws").kubernetes_rows("p5.48xlarge", "eks")
    gpus = {"nvidia.com/gpu": "8"}
    assert fitting_way(ways, gpus) is None
    by_claims = fitting_way(ways, gpus, custom_resources=["deviceclass/efa.networking.k8s.aws"])
    assert by_claims is not None
    assert by_claims.claims
    plugin = fitting_way(ways, {**gpus, "vpc.amazonaws.com/efa": "32"})
    assert plugin is not None
    assert not plugin.claims


@pytest.mark.parametrize("name", ["NCCL_PROTO", "NCCL_ALGO"])
def test_a_choice_for_all_sizes_is_told_of_where_the_script_sets_a_tuner_up(name):
    backend = AssumedBackend("gcp")
    task = Task(
        run="x",
        num_nodes=2,
        envs={name: "X"},
        resources=Resources(accelerators="H200:8", network_tier="best"),
    )
    best = backend.offers(task, backend.discover()).best
    assert best is not None
    plan = backend.plan(task, best, backend.discover())
    assert any(w.startswith(f"{name}=X narrows what the tuner") for w in plan.warnings)


def test_a_type_with_plain_ethernet_alone_has_the_variables_of_its_rows():
    backend = AssumedBackend("gcp")
    task = Task(run="x", num_nodes=2, resources=Resources(instance_type="g4-standard-384"))
    best = backend.offers(task, backend.discover()).best
    assert best is not None
    env = {var.name: var.value for var in backend.plan(task, best, backend.discover()).env}
    assert env["NCCL_IB_DISABLE"] == "1"


def _on_way(cloud: str, kind: str, platform: str, way: str, envs: dict[str, str] | None = None):
    backend, catalog = AssumedBackend(cloud), Catalog.shipped()
    task = Task(run="x", num_nodes=2, resources=Resources(instance_type=kind))
    offers = backend.offers(task, backend.discover()).offers
    offer = next(one for one in offers if one.platform == platform)
    rows = catalog.cloud(cloud)
    ways = {row.name: row for row in rows.kubernetes_rows(kind, platform)}
    return network_plan(offer, rows, catalog, envs=envs, way=ways[way])


@pytest.mark.parametrize(
    ("way", "devices"), [("oke-host-nvidia", "=mlx5_0,mlx5_1,mlx5_3"), ("oke-vf", "mlx5")]
)
def test_the_environment_is_that_of_how_pods_get_their_nics(way, devices):
    plan = _on_way("oci", "BM.GPU.H100.8", "oke", way)
    found = next(var for var in plan.env if var.name == "NCCL_IB_HCA")
    assert found.value.startswith(devices)
    assert (found.value == "mlx5") == (way == "oke-vf")


def test_a_value_of_one_way_is_warned_of_only_on_another():
    def warned(way):
        plan = _on_way("oci", "BM.GPU.H100.8", "oke", way, envs={"NCCL_IB_HCA": "mlx5"})
        return any("NCCL_IB_HCA=mlx5 is known to break" in word for word in plan.warnings)

    assert warned("oke-host-nvidia")
    assert not warned("oke-vf")
