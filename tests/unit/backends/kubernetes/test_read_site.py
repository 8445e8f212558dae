"""What is asked of a server, and what a site says where it answers less."""

import json
import threading

import pytest
from liststub import ListStub

from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._paging import paged
from gpufabric.backends.kubernetes.discover import read_site
from gpufabric.catalog.index import Catalog
from gpufabric.config import Settings
from gpufabric.errors import CredentialsError, TransientError
from gpufabric.task import Task

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
SPACE = "/api/v1/namespaces/ml"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
DRA = "/apis/resource.k8s.io/v1"
AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
NODEPOOLS = "/apis/karpenter.sh/v1/nodepools"


@pytest.fixture
def stub():
    """A server that has what every cluster has, and nothing in it."""
    made = ListStub()
    made.lists = {
        path: []
        for path in (
            PODS, NODES, f"{SPACE}/pods", f"{SPACE}/resourcequotas", f"{SPACE}/limitranges",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
        )
    }  # fmt: skip
    made.objects[SPACE] = {"metadata": {"name": "ml"}}
    yield made
    made.close()


@pytest.fixture
def backend(stub, tmp_path):
    (tmp_path / "config").write_text(stub.kubeconfig())
    made = Kubernetes(
        kubeconfig=str(tmp_path / "config"), settings=Settings(trust_env=False), image="i"
    )
    yield made
    made.close()


@pytest.fixture
def rich(stub, dressed):
    """A server with nodes, Kueue, Karpenter and devices, all of which may be read."""
    stub.groups = {
        "kueue.x-k8s.io": "v1beta2", "karpenter.sh": "v1", "resource.k8s.io": "v1",
        "jobset.x-k8s.io": "v1alpha2",
    }  # fmt: skip
    stub.lists |= {
        NODES: [dressed("eks-p5", f"n{i}") for i in range(3)],
        f"{KUEUE}/namespaces/ml/localqueues": [
            {"metadata": {"name": "team"}, "spec": {"clusterQueue": "cq"}}
        ],
        f"{KUEUE}/workloadpriorityclasses": [{"metadata": {"name": "high"}}],
        f"{DRA}/deviceclasses": [],
        f"{DRA}/resourceslices": [],
        NODEPOOLS: [],
    }
    flavor = {"name": "f", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}
    check = {"admissionChecks": [{"name": "dws"}]}
    stub.objects |= {
        f"{KUEUE}/clusterqueues/cq": {
            "spec": {"resourceGroups": [group], "admissionChecksStrategy": check}
        },
        f"{KUEUE}/resourceflavors/f": {
            "spec": {"nodeLabels": {"eks.amazonaws.com/nodegroup": "gpu"}, "topologyName": "t"}
        },
        f"{KUEUE}/topologies/t": {"spec": {"levels": [{"nodeLabel": "block"}]}},
        f"{KUEUE}/admissionchecks/dws": {
            "spec": {"controllerName": "kueue.x-k8s.io/provisioning-request"}
        },
        AUTOSCALER: {"data": {"status": "nodeGroups: []"}},
    }
    return stub


def _pod(node, gpus="8"):
    container = {"resources": {"requests": {"nvidia.com/gpu": gpus}}}
    return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": "Running"}}


def test_pods_and_nodes_are_asked_in_pages_and_only_pods_that_live(stub, backend, dressed):
    stub.lists[PODS] = [_pod("n1", "0")] * 1200
    stub.lists[NODES] = [dressed("eks-p5", f"n{i}") for i in range(600)]
    (pool,) = backend.discover().pools
    assert pool.nodes_total == 600
    pods = [query for path, query in stub.asked if path == PODS]
    assert [query.get("continue") for query in pods] == [None, "500", "1000"]
    assert {query["limit"] for query in pods} == {"500"}
    assert {query["fieldSelector"] for query in pods} == {
        "status.phase!=Succeeded,status.phase!=Failed"
    }


@pytest.mark.parametrize("last", [True, False])
def test_no_page_is_read_twice_or_lost_wherever_the_token_stands(stub, tmp_path, last):
    stub.lists[PODS] = [{"metadata": {"name": str(n)}} for n in range(1750)]
    stub.metadata_last = last
    (tmp_path / "config").write_text(stub.kubeconfig())
    api = Api(backend="k", kubeconfig=str(tmp_path / "config"))
    names = [int(one["metadata"]["name"]) for one in paged(api, PODS)]
    api.close()
    assert names == list(range(1750))
    assert [query.get("continue", "0") for _, query in stub.asked] == ["0", "500", "1000", "1500"]


def test_a_reader_that_stops_early_leaves_no_thread_behind(stub, tmp_path):
    stub.lists[PODS] = [{"metadata": {"name": str(n)}} for n in range(1750)]
    (tmp_path / "config").write_text(stub.kubeconfig())
    api = Api(backend="k", kubeconfig=str(tmp_path / "config"))
    items = paged(api, PODS)
    next(items)
    items.close()
    api.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("gpufabric-pages")]


@pytest.mark.parametrize("path", [PODS, NODES])
def test_a_list_that_expires_is_read_once_more_and_counts_once(stub, backend, dressed, path):
    stub.lists[NODES] = [dressed("eks-p5", f"n{i}") for i in range(600)]
    stub.lists[PODS] = [_pod(f"n{i}", "1") for i in range(600)]
    stub.expiring[path] = 1
    site = backend.discover()
    (pool,) = site.pools
    assert (pool.nodes_total, set(pool.gpus_free)) == (600, {7})
    assert not site.unseen


def test_a_list_that_expires_again_is_told(stub, backend, dressed):
    stub.lists[NODES] = [dressed("eks-p5", f"n{i}") for i in range(600)]
    stub.expiring[NODES] = 2
    site = backend.discover()
    assert [pool.name for pool in site.pools] == ["any"]
    (told,) = site.unseen
    assert "nodes: the list expired twice" in told
    assert "discover again" in told


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [{"manager": "kubelet", "fieldsV1": {"f:status": {'k:{"type":"Ready"}': {".": {}}}}}],
        [{"fieldsV1": {'v:"]"': {}, "v:[\\": {}, 'k:{"n":"\\"]}"}': {}}}, {"manager": "x"}],
    ],
)
def test_who_owns_which_field_is_dropped_and_nothing_else(stub, entries, tmp_path):
    quoted = json.dumps({"managedFields": [{"a": 1}], "b": ["]"]}, separators=(",", ":"))
    meta = {"name": "a", "annotations": {"applied": quoted}, "managedFields": entries, "z": ["1"]}
    stub.lists[PODS] = [{"metadata": meta, "spec": {}}, {"metadata": {"name": "b"}}]
    (tmp_path / "config").write_text(stub.kubeconfig())
    api = Api(backend="k", kubeconfig=str(tmp_path / "config"))
    slim, whole = list(paged(api, PODS)), list(api.items(PODS))
    api.close()
    assert whole[0]["metadata"].pop("managedFields") == entries
    assert slim[0]["metadata"].pop("managedFields") == []
    assert slim == whole


def test_everything_of_a_site_is_read(rich, backend):
    site = backend.discover()
    assert not site.unseen
    queue = site.facts["queue_quota"]["team"]
    assert queue["flavors"][0]["resources"]["nvidia.com/gpu"]["most"] == 16
    assert queue["provisioning"] == ("dws",)
    assert site.facts["queue_topology"] == {"team": ("block",)}
    assert site.facts["workload_priority_classes"] == ("high",)
    assert site.facts["server_version"] == "v1.36.3"
    assert site.facts["pools"][site.pools[0].name]["labels"] == {
        "eks.amazonaws.com/nodegroup": "gpu"
    }
    assert Site.from_yaml(site.to_yaml()) == site


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (PODS, "what other namespaces use of the nodes is not subtracted"),
        (NODES, "nodes: not allowed"),
        (SPACE, "namespace ml: not allowed"),
        (f"{SPACE}/resourcequotas", "ResourceQuotas"),
        (f"{SPACE}/limitranges", "LimitRanges"),
        ("/version", "version"),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClasses"),
        (f"{KUEUE}/namespaces/ml/localqueues", "LocalQueues"),
        (f"{KUEUE}/clusterqueues/cq", "clusterqueues cq: not allowed to get"),
        (f"{KUEUE}/resourceflavors/f", "resourceflavors f"),
        (f"{KUEUE}/topologies/t", "topologies t"),
        (f"{KUEUE}/admissionchecks/dws", "admissionchecks dws"),
        (f"{KUEUE}/workloadpriorityclasses", "WorkloadPriorityClasses"),
        (f"{DRA}/deviceclasses", "DeviceClasses"),
        (f"{DRA}/resourceslices", "ResourceSlices"),
        (NODEPOOLS, "NodePools of Karpenter"),
        (AUTOSCALER, "cluster autoscaler"),
    ],
)
def test_whatever_may_not_be_read_is_told_and_stops_nothing(rich, backend, path, told):
    rich.forbidden = {path}
    site = backend.discover()
    assert any(told in text for text in site.unseen), site.unseen
    assert len(site.unseen) == 1
    wish = {} if path == NODES else {"accelerators": "H100:8"}
    task = Task.from_dict({"run": "x", "resources": wish})
    best = backend.offers(task, site).best
    assert best is not None
    warned = {PODS: "may be full", f"{KUEUE}/namespaces/ml/localqueues": "goes around it"}
    assert (warned.get(path, "no such") in " ".join(best.warnings)) == (path in warned)


def test_device_classes_of_a_version_that_claims_are_not_made_with_are_told(rich, backend):
    rich.groups["resource.k8s.io"] = "v1beta2"
    driver = {"metadata": {"name": "efa"}, "spec": {"selectors": []}}
    rich.lists |= {
        "/apis/resource.k8s.io/v1beta2/deviceclasses": [driver],
        "/apis/resource.k8s.io/v1beta2/resourceslices": [],
    }
    site = backend.discover()
    assert "claims are made with v1 alone" in site.unseen[0]
    assert site.facts["custom_resources"] == ()


@pytest.mark.parametrize(
    "path",
    [
        f"{SPACE}/resourcequotas",
        f"{KUEUE}/clusterqueues/cq",
        f"{KUEUE}/workloadpriorityclasses",
        f"{DRA}/resourceslices",
        NODEPOOLS,
        AUTOSCALER,
    ],
)
def test_what_fails_and_is_not_needed_is_told(rich, backend, path):
    rich.failing = {path}
    (told,) = backend.discover().unseen
    assert "the server failed twice" in told
    assert "conversion webhook" in told
    assert len([one for one, _ in rich.asked if one == path]) == 2


@pytest.mark.parametrize("path", [NODES, PODS, f"{KUEUE}/namespaces/ml/localqueues"])
def test_what_fails_and_is_needed_fails_the_discovery(rich, tmp_path, path):
    rich.failing = {path}
    (tmp_path / "config").write_text(rich.kubeconfig())
    api = Api(backend="k", kubeconfig=str(tmp_path / "config"))
    with pytest.raises(TransientError, match="conversion webhook"):
        read_site(api, name="k", context="c", namespace="ml", catalog=Catalog.shipped())
    api.close()


def test_a_user_of_one_namespace_still_runs_tasks_without_accelerators(rich, backend):
    rich.forbidden = {
        *(path for path in rich.lists if not path.startswith((SPACE, f"{KUEUE}/namespaces/ml"))),
        *(path for path in rich.objects if path not in {"/version", SPACE}),
    }
    site = backend.discover()
    assert [pool.name for pool in site.pools] == ["any"]
    plain = backend.offers(Task(run="x"), site)
    assert plain.best is not None
    gpus = backend.offers(
        Task.from_dict({"run": "x", "resources": {"accelerators": "H100:8"}}), site
    )
    assert gpus.best is None
    assert gpus.rejections


def test_a_cluster_without_nodes_is_not_taken_for_one_whose_nodes_are_not_seen(stub, backend):
    stub.forbidden = {f"{SPACE}/limitranges"}
    site = backend.discover()
    assert site.pools == ()
    found = backend.offers(Task(run="x"), site)
    assert found.best is None
    assert "the cluster has no nodes" in [one.reason for one in found.rejections]


def test_credentials_that_are_not_accepted_are_no_missing_right(stub, backend):
    stub.code = 401
    with pytest.raises(CredentialsError):
        backend.discover()


def test_gpus_that_only_claims_can_have_are_told(rich, backend, dressed):
    rich.lists[NODES] = [dressed("bare", "n1")]
    devices = [{"name": f"gpu{i}"} for i in range(4)]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": devices}
    rich.lists[f"{DRA}/resourceslices"] = [{"metadata": {"name": "s"}, "spec": spec}]
    rich.lists[f"{DRA}/resourceclaims"] = []
    (told,) = [one for one in backend.discover().unseen if one.startswith("pool")]
    assert "GPUs by DRA alone (gpu.nvidia.com)" in told


def test_parts_of_gpus_are_told(rich, backend, dressed):
    node = dressed("bare", "n1")
    node["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "7"}
    rich.lists[NODES] = [node]
    (told,) = [one for one in backend.discover().unseen if one.startswith("pool")]
    assert "parts of GPUs (nvidia.com/mig-1g.10gb)" in told


def test_a_nodepool_of_karpenter_is_a_pool(rich, backend):
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5en.48xlarge"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
    ]
    template = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
        "requirements": requirements,
    }
    rich.lists[NODEPOOLS] = [
        {"metadata": {"name": "gpu"}, "spec": {"template": {"spec": template}}}
    ]
    site = backend.discover()
    made = site.pools[-1]
    assert (made.name, made.nodes_total) == ("p5en.48xlarge-us-east-1a-karpenter-gpu", None)
    assert site.facts["pools"][made.name]["tier"] == "best"
    assert Site.from_yaml(site.to_yaml()) == site


def test_a_site_of_another_time_says_when_it_was_read(rich, backend):
    site = backend.discover()
    assert site.as_of is not None
    again = Site.from_yaml(site.to_yaml())
    task = Task.from_dict(
        {"run": "x", "num_nodes": 2,
         "resources": {"accelerators": "H100:8", "network_tier": "best", "capacity": "team"}}
    )  # fmt: skip
    offer = backend.offers(task, again).best
    assert backend.plan(task, offer, again) == backend.plan(task, offer, site)
