import pytest

from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes.discover import pools_of, quantity, usage_of
from gpufabric.net.interconnect import FabricKind


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
    assert usage_of(pods) == {"a": {"cpu": 2.5}}


def test_a_sidecar_counts_and_an_init_container_only_where_it_is_larger():
    def asks(cpu):
        return {"resources": {"requests": {"cpu": cpu}}}

    spec = {
        "nodeName": "a",
        "containers": [asks("1")],
        "initContainers": [{**asks("1"), "restartPolicy": "Always"}, asks("8")],
    }
    assert usage_of([{"spec": spec, "status": {}}]) == {"a": {"cpu": 8}}


@pytest.mark.parametrize(
    ("profile", "platform", "instance_type", "way"),
    [
        ("eks-p5", "eks", "p5.48xlarge", "eks-p5"),
        ("eks-p5en", "eks", "p5en.48xlarge", "eks-p5en"),
        ("hyperpod-p5", "hyperpod-eks", "p5.48xlarge", "hyperpod-p5"),
        ("gke-a3-mega", "gke", "a3-megagpu-8g", "gke-tcpxo"),
        ("gke-a3-high", "gke", "a3-highgpu-8g", "gke-tcpx"),
        ("gke-a4", "gke", "a4-highgpu-8g", "gke-gib-networks"),
        ("coreweave-h100", "cks", "gd-8xh100ib-i128", "cks-eight-hcas"),
        ("nebius-h100", "nebius-mk8s", "gpu-h100-sxm 8gpu-128vcpu-1600gb", "mk8s-8gpu"),
        ("crusoe-h100", "crusoe-cmk", "h100-80gb-sxm-ib.8x", "cmk-infiniband"),
    ],
)
def test_a_node_is_known_by_its_marks(site_of, dressed, *, profile, platform, instance_type, way):
    site = site_of(dressed(profile))
    (pool,) = site.pools
    assert (pool.platform, pool.instance_type) == (platform, instance_type)
    assert site.facts["pools"][pool.name]["way"] == way


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
