import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufabric._frozen import freeze
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._nodes import (
    GPU_RESOURCES,
    MODEL_LABELS,
    SPOT,
    TOPOLOGY_LABELS,
    TYPE_LABELS,
)
from gpufabric.backends.kubernetes._slices import claimed_of, class_driver, counted, devices_of
from gpufabric.backends.kubernetes._ways import Served
from gpufabric.backends.kubernetes.discover import pools_of, quantity, usage_of
from gpufabric.net.interconnect import FabricKind

_TESTS = Path(__file__).parents[3]
PROFILES = json.loads((_TESTS / "cluster" / "profiles.json").read_text())["profiles"]
GOLDEN = json.loads((_TESTS / "data" / "kubernetes" / "profiles.json").read_text())


def _pod(node, phase="Running", **requests):
    resources = {"requests": {key.replace("_", "/"): value for key, value in requests.items()}}
    return {
        "spec": {"nodeName": node, "containers": [{"resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("1k", 1000), ("500m", 0.5), ("2Ti", 2 * 2**40), ("8", 8), ("1e3", 1000), ("0", 0)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text, value):
    assert quantity(text) == value


def test_what_is_no_quantity_is_refused():
    with pytest.raises(ValueError, match="quantity"):
        quantity("eight")


def test_pods_that_have_ended_use_nothing():
    pods = [_pod("a", cpu="2"), _pod("a", cpu="500m"), _pod("a", "Succeeded", cpu="64")]
    assert usage_of(pods) == {"a": {"cpu": 2.5, "pods": 2}}


@pytest.mark.parametrize(
    ("init", "more", "cpu"),
    [
        (
            [("sidecar", "1"), ("init", "8")],
            {},
            9,
        ),  # an init container runs beside earlier sidecars
        ([("init", "8"), ("sidecar", "1")], {}, 8),
        ([("sidecar", "1")], {"overhead": {"cpu": "250m"}}, 2.25),
        ([("sidecar", "1")], {"resources": {"requests": {"cpu": "6"}}}, 6),  # of the whole pod
    ],
)
def test_what_a_pod_asks_of_its_node_is_counted_as_the_scheduler_does(init, more, cpu):
    def asks(kind, cpu):
        policy = {"restartPolicy": "Always"} if kind == "sidecar" else {}
        return {"resources": {"requests": {"cpu": cpu}}, **policy}

    spec = {
        "nodeName": "a",
        "containers": [asks("main", "1")],
        "initContainers": [asks(*one) for one in init],
        **more,
    }
    assert usage_of([{"spec": spec, "status": {}}]) == {"a": {"cpu": cpu, "pods": 1}}


def _served(body):
    """The cluster's side of a profile, of the objects that dressing makes."""
    objects = json.loads(json.dumps(body.get("objects", [])).replace("{node}", "n1"))
    classes = [one for one in objects if one["kind"] == "DeviceClass"]
    slices = [one for one in objects if one["kind"] == "ResourceSlice"]
    total, free = counted(devices_of(slices), set())
    return Served(
        custom_resources=(
            *body.get("crds", ()),
            *(f"deviceclass/{one['metadata']['name']}" for one in classes),
        ),
        class_drivers={one["metadata"]["name"]: class_driver(one) for one in classes},
        devices=total,
        devices_free=free,
    )


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_node_is_known_by_its_marks(profile, dressed, catalog):
    """`tests/cluster/test_discover.py` asks the same of nodes that a real server gives."""
    (pool,), facts = pools_of(
        [dressed(profile)], {}, catalog=catalog, context="c", served=_served(PROFILES[profile])
    )
    fact = facts[pool.name]
    names = ("nics", "way", "tier", "near", "topology", "no_fabric", "devices", "devices_free")
    seen = {
        "platform": pool.platform,
        "instance_type": pool.instance_type,
        "accelerator": pool.accelerator and str(pool.accelerator),
        "fabric": pool.interconnect and pool.interconnect.kind.value,
        "fabric_name": pool.interconnect and pool.interconnect.name,
        "selector": dict(pool.labels),
        **{name: fact[name] for name in names if name in fact},
    }
    assert seen == GOLDEN[profile]


def test_every_profile_is_expected_to_be_something():
    assert set(GOLDEN) == set(PROFILES)


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ("eks-p5-no-efa", "nodes have 0 vpc.amazonaws.com/efa, pods need 32"),
        ("nebius-h100-no-cluster", "nodes lack the label topology.nebius.com/gpu-cluster-id"),
        ("gpu-operator-h100-ib", "NIC resources seen: rdma/rdma_shared_device_a"),
    ],
)
def test_a_fabric_that_pods_cannot_have_is_ethernet_and_why_is_told(site_of, dressed, profile, why):
    site = site_of(dressed(profile))
    (pool,) = site.pools
    assert pool.interconnect.kind is FabricKind.ETHERNET
    assert why in site.facts["pools"][pool.name]["no_fabric"]


def test_a_missing_network_object_of_gke_takes_the_fabric_away(catalog, dressed):
    (pool,), facts = pools_of([dressed("gke-a3-mega")], {}, catalog=catalog, context="c")
    assert pool.interconnect.kind is FabricKind.ETHERNET
    assert "networks.networking.gke.io" in facts[pool.name]["no_fabric"]


def test_nodes_of_two_fabrics_are_two_pools(site_of, dressed):
    nodes = [dressed("nebius-h100", f"n{i}", cluster=f"cluster-{i}") for i in (1, 2)]
    pools = site_of(*nodes).pools
    assert [pool.interconnect.name for pool in pools] == ["cluster-1", "cluster-2"]
    assert [pool.labels["topology.nebius.com/gpu-cluster-id"] for pool in pools] == [
        "cluster-1",
        "cluster-2",
    ]


def test_node_pools_of_azure_are_separate_fabrics(site_of, dressed):
    nodes = [dressed("aks-nd-h100", name) for name in ("a", "b")]
    nodes[1]["metadata"]["labels"]["agentpool"] = "other"
    pools = site_of(*nodes).pools
    assert [pool.labels["agentpool"] for pool in pools] == ["gpu", "other"]


def test_the_selector_has_the_nodes_own_spelling_of_its_type(site_of, dressed):
    node = dressed("aks-nd-h100")
    node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "standard_nd96isr_h100_v5"
    (pool,) = site_of(node).pools
    assert pool.instance_type == "Standard_ND96isr_H100_v5"
    assert pool.labels["node.kubernetes.io/instance-type"] == "standard_nd96isr_h100_v5"


def test_a_label_that_is_missing_where_it_tells_fabrics_apart_is_told(site_of, dressed):
    node = dressed("oke-h100")
    del node["metadata"]["labels"]["oci.oraclecloud.com/rdma.hpc_island_id"]
    site = site_of(node)
    (warning,) = site.facts["pools"][site.pools[0].name]["warnings"]
    assert "rdma.hpc_island_id" in warning


def test_a_host_whose_ports_the_catalog_does_not_describe_has_no_fabric(site_of, dressed):
    node = dressed("oke-h100")
    node["metadata"]["labels"]["oci.oraclecloud.com/rdma.planes"] = "4"
    site = site_of(node)
    (pool,) = site.pools
    assert pool.interconnect.kind is FabricKind.ETHERNET
    assert "rdma.planes=4" in site.facts["pools"][pool.name]["no_fabric"]


def test_nodes_are_counted_by_block_and_rack_and_only_whole_free_ones(site_of, dressed):
    nodes = [dressed("eks-p5", f"n{i}", layer3=f"nn-{i % 2}") for i in range(5)]
    used = [_pod("n1", **{"nvidia.com_gpu": "1"}), _pod("n3", **{"nvidia.com_gpu": "8"})]
    site = site_of(*nodes, pods=used)
    topology = site.facts["pools"][site.pools[0].name]["topology"]
    assert topology["topology.k8s.aws/network-node-layer-3"] == {"nn-0": 3, "nn-1": 0}


def test_a_node_that_pods_of_its_platform_do_not_select_does_not_count(site_of, dressed):
    nodes = [dressed("hyperpod-p5", name) for name in ("good", "sick")]
    nodes[1]["metadata"]["labels"]["sagemaker.amazonaws.com/node-health-status"] = "Unschedulable"
    site = site_of(*nodes)
    (pool,) = site.pools
    assert pool.nodes_total == 1
    assert "Unschedulable" in site.facts["pools"][pool.name]["why_unusable"]["sick"]


@pytest.mark.parametrize(
    "name",
    [
        "rdma/ib",
        "rdma/rdma_shared_device_a",
        "vpc.amazonaws.com/efa",
        "networking.gke.io.networks/rdma-0",
        "nvidia.com/rdma-vf",
        "nvidia.com/sriov-rdma-vf",
        "nvidia.com/hostdev",
        "nvidia.com/mlnxnics",
        "openshift.io/mlx5_rdma",
        "intel.com/mlnx_sriov_rdma_ib",
        "amd.com/vnic",
    ],
)
def test_nics_are_known_by_any_name_that_operators_give_them(name, site_of, dressed):
    node = dressed("gpu-operator-h100")
    node["status"]["allocatable"][name] = "8"
    site = site_of(node)
    assert site.facts["pools"][site.pools[0].name]["nics"] == {name: 8}


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/pgpu",
        "nvidia.com/GH100_H100_SXM5_80GB",
        "networking.gke.io.networks/rdma-0.IP",
        "vpc.amazonaws.com/pod-eni",
        "intel.com/qat_generic",
        "hugepages-2Mi",
    ],
)
def test_what_is_no_nic_is_not_taken_for_one(name, site_of, dressed):
    node = dressed("gpu-operator-h100")
    node["status"]["allocatable"][name] = "8"
    site = site_of(node)
    assert not site.facts["pools"][site.pools[0].name]["nics"]


def _slice(node, *names, driver="dra.net", generation=1, **more):
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    devices = [{"name": name} for name in names]
    return {"spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices, **more}}


def _claim(*devices, **more):
    results = [
        {"driver": "dra.net", "pool": pool, "device": name, **more} for pool, name in devices
    ]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def test_devices_are_counted_by_node_and_driver_less_those_that_are_claimed():
    slices = [
        _slice("a", "nic0", "nic1"),
        _slice("a", "gpu0", driver="gpu.nvidia.com"),
        _slice("b", "nic0", "nic1"),
    ]
    claims = [_claim(("a", "nic0")), _claim(("b", "nic1"), adminAccess=True), {"status": {}}]
    total, free = counted(devices_of(slices), claimed_of(claims))
    assert total == {"a": {"dra.net": 2, "gpu.nvidia.com": 1}, "b": {"dra.net": 2}}
    assert free == {"a": {"dra.net": 1, "gpu.nvidia.com": 1}, "b": {"dra.net": 2}}


def test_of_a_pool_that_is_written_anew_only_the_newest_devices_count():
    slices = [_slice("a", "nic0", "nic1", generation=2), _slice("a", "old", generation=1)]
    assert counted(devices_of(slices), set())[0] == {"a": {"dra.net": 2}}
    assert counted(devices_of(slices[::-1]), set())[0] == {"a": {"dra.net": 2}}


def test_devices_of_the_network_belong_to_no_node():
    (one,) = [_slice("a", "port0")]
    one["spec"]["nodeName"], one["spec"]["allNodes"] = None, True
    assert devices_of([one]) == {}


def test_a_way_by_claims_needs_the_devices_on_the_nodes(dressed, catalog):
    node = dressed("eks-p5-no-efa")
    name = "efa.networking.k8s.aws"
    has = {
        "custom_resources": (f"deviceclass/{name}",),
        "class_drivers": {name: "dra.net"},
    }

    def way(devices):
        served = Served(**has, devices=devices)
        (pool,), facts = pools_of([node], {}, catalog=catalog, context="c", served=served)
        return facts[pool.name]["way"], facts[pool.name]["no_fabric"]

    assert way({"n1": {"dra.net": 32}}) == ("eks-dranet", "")
    assert way(None) == ("eks-dranet", "")  # slices may not be read, and are not held against it
    assert way({})[0] is None
    assert "nodes have 0 devices of dra.net" in way({})[1]


def test_the_driver_of_a_class_is_read_only_where_it_is_said_outright():
    def made(expression):
        return {"spec": {"selectors": [{"cel": {"expression": expression}}]}}

    assert class_driver(made("device.driver == 'dra.net' && x")) == "dra.net"
    assert class_driver(made('device.driver=="a.b"')) == "a.b"
    assert class_driver(made("device.driver.startsWith('a')")) is None
    assert class_driver({"spec": {}}) is None


def test_what_others_use_is_not_free(site_of, dressed):
    nodes = [dressed("eks-p5", name) for name in ("a", "b", "c")]
    used = [_pod("a", **{"nvidia.com_gpu": "8"}), _pod("b", **{"nvidia.com_gpu": "2"})]
    (pool,) = site_of(*nodes, pods=used).pools
    assert (pool.nodes_total, pool.nodes_free, pool.gpus_free) == (3, 1, (0, 6, 8))


@pytest.mark.parametrize("fault", ["cordoned", "not ready", "tainted by the cluster"])
def test_a_node_that_takes_no_pods_does_not_count(site_of, dressed, fault):
    bad = dressed("eks-p5", "bad")
    if fault == "cordoned":
        bad["spec"]["unschedulable"] = True
    elif fault == "not ready":
        bad["status"]["conditions"][0]["status"] = "Unknown"
    else:
        bad["spec"]["taints"].append(
            {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
        )
    site = site_of(dressed("eks-p5", "good"), bad)
    (pool,) = site.pools
    assert pool.nodes_total == 1
    assert site.facts["pools"][pool.name]["unusable"] == ("bad",)


def test_a_site_travels_as_text(site_of, dressed):
    site = site_of(dressed("gke-a3-mega"), dressed("bare", "b"))
    assert Site.from_yaml(site.to_yaml()) == site


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
_LABELS = st.dictionaries(
    st.sampled_from(
        [
            *TYPE_LABELS, *MODEL_LABELS, *TOPOLOGY_LABELS, *SPOT, "agentpool", "kubernetes.io/arch",
            "nebius.com/resource-preset", "cloud.google.com/gke-nodepool",
            "node.coreweave.cloud/state", "oci.oraclecloud.com/rdma.hpc_island_id",
            "nvidia.com/gpu.replicas", "sagemaker.amazonaws.com/node-health-status",
        ]
    ),
    st.sampled_from(["p5.48xlarge", "ml.p5.48xlarge", "H100", "NVIDIA-H100-80GB-HBM3"]) | _WORDS,
)  # fmt: skip
_AMOUNTS = st.dictionaries(
    st.sampled_from(
        ["cpu", "memory", "pods", *GPU_RESOURCES, "rdma/ib", "vpc.amazonaws.com/efa",
         "nvidia.com/mig-1g.10gb"]
    ),
    st.sampled_from(["0", "1", "8", "1k", "32", "500m", "2Ti", "1e3"]),
)  # fmt: skip
_TAINTS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["nvidia.com/gpu", "team", "node.kubernetes.io/not-ready"]),
            "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        },
        optional={"value": _WORDS},
    ),
    max_size=2,
)
_NODES = st.builds(
    lambda labels, amounts, taints, provider: {
        "metadata": {"name": "n", "labels": labels or None},
        "spec": {"providerID": provider, "taints": taints or None},
        "status": {"allocatable": amounts or None, "conditions": None},
    },
    _LABELS,
    _AMOUNTS,
    _TAINTS,
    st.sampled_from([None, "", "aws:///a/i-1", "azure:///x", "gce://p/z/n", "nebius://i"]),
)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking costs minutes
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(_NODES, min_size=1, max_size=3))
def test_no_node_is_too_strange_to_be_read(catalog, nodes):
    for number, node in enumerate(nodes):
        node["metadata"]["name"] = f"n{number}"
    pools, facts = pools_of(nodes, {}, catalog=catalog, context="c")
    assert sum(pool.nodes_total + len(facts[pool.name]["unusable"]) for pool in pools) == len(nodes)
    assert len({pool.name for pool in pools}) == len(pools) == len(facts)
    site = Site(backend="k", pools=pools, facts=freeze({"pools": facts, "context": "c"}))
    assert Site.from_yaml(site.to_yaml()) == site
    assert str(site)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cloud.google.com/gke-preemptible", "true"),
        ("kubernetes.azure.com/priority", "spot"),
        ("oci.oraclecloud.com/oke-is-preemptible", "true"),
        ("together.ai/compute-class", "preemptible"),
    ],
)
def test_nodes_that_may_be_taken_away_are_spot(site_of, dressed, name, value):
    kept, lent = dressed("bare", "a"), dressed("bare", "b")
    kept["metadata"]["labels"][name] = "no"
    lent["metadata"]["labels"][name] = value
    assert sorted(pool.spot for pool in site_of(kept, lent).pools) == [False, True]


def test_nodes_whose_topology_has_four_layers_are_near_by_the_fourth(site_of, dressed):
    layers = {f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3, 4)}
    deep, flat = dressed("eks-p5", "a"), dressed("eks-p5", "b")
    deep["metadata"]["labels"] |= layers
    flat["metadata"]["labels"] |= dict(list(layers.items())[:3])
    for node, last in ((deep, 4), (flat, 3)):
        (fact,) = site_of(node).facts["pools"].values()
        assert fact["near"] == f"topology.k8s.aws/network-node-layer-{last}"
