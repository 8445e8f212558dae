"""What a real server's nodes are taken for, profile by profile."""

import json
from pathlib import Path

import pytest
from gfcluster.shell import wait_until

from gpufabric._frozen import thaw
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._paging import paged
from gpufabric.backends.kubernetes._role import CLUSTER, NAMED, NEEDED, WISHED
from gpufabric.config import Settings
from gpufabric.task import Task

pytestmark = pytest.mark.cluster

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "kubernetes" / "profiles.json").read_text()
)
_FACTS = ("nics", "way", "tier", "near", "topology", "no_fabric", "devices", "devices_free")
_ARCH = "kubernetes.io/arch"


@pytest.fixture
def discovered(own_cluster, namespace):
    """Discovers as administrator, or as the user of another kubeconfig."""

    def read(kubeconfig=None):
        backend = Kubernetes(
            kubeconfig=str(kubeconfig or own_cluster.kubeconfig),
            namespace=namespace,
            settings=Settings(trust_env=False),
        )
        try:
            return backend.discover()
        finally:
            backend.close()

    return read


def _seen(site, pool):
    fact = thaw(site.facts["pools"][pool.name])
    seen = {
        "platform": pool.platform,
        "instance_type": pool.instance_type,
        "accelerator": pool.accelerator and str(pool.accelerator),
        "fabric": pool.interconnect and pool.interconnect.kind.value,
        "fabric_name": pool.interconnect and pool.interconnect.name,
        "selector": {name: value for name, value in pool.labels.items() if name != _ARCH},
        **{name: fact[name] for name in _FACTS if name in fact},
    }
    return json.loads(json.dumps(seen))


@pytest.mark.parametrize("profile", sorted(GOLDEN))
def test_a_dressed_node_is_known_by_its_marks(profile, own_cluster, discovered):
    own_cluster.dress(profile, "node-1")
    arch = GOLDEN[profile]["selector"].get(_ARCH)
    site = discovered() if arch is None else _with_arch(arch, own_cluster, discovered)
    expected = {**GOLDEN[profile], "selector": dict(GOLDEN[profile]["selector"])}
    expected["selector"].pop(_ARCH, None)
    seen = [_seen(site, pool) for pool in site.pools if pool.platform == expected["platform"]]
    alike = [one for one in seen if one["instance_type"] == expected["instance_type"]]
    assert expected in alike, own_cluster.kubectl("get", "node", "node-1", "-o", "yaml")
    assert Site.from_yaml(site.to_yaml()) == site


def _with_arch(arch, own_cluster, discovered):
    """A site read while the node said another architecture than its own.

    Its kubelet says the right one again with every status, so what was read between two is used.
    """
    for _ in range(20):
        own_cluster.kubectl("label", "node", "node-1", "--overwrite", f"{_ARCH}={arch}")
        site = discovered()
        labels = own_cluster.api.get("/api/v1/nodes/node-1")["metadata"]["labels"]
        if labels[_ARCH] == arch:
            return site
    pytest.fail(f"node-1 never kept {_ARCH}={arch} for as long as a discovery takes")


# ---- what decides beside the nodes


@pytest.fixture
def put(cluster):
    """Makes objects as administrator; those of the whole cluster are removed after the test."""
    made = []

    def create(kind, name, spec, *, version="v1", namespace=None, **more):
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}
        if namespace:
            body["metadata"]["namespace"] = namespace
        if spec is not None:
            body["spec"] = spec
        cluster.api.create(body)
        if not namespace or namespace == "kube-system":
            made.append(body)

    yield create
    for body in reversed(made):
        cluster.api.delete(body)


@pytest.fixture
def reads(cluster, namespace):
    """Discovers in the test's namespace, on any cluster; and offers of what was found."""
    made = []

    def read(kubeconfig=None):
        backend = Kubernetes(
            kubeconfig=str(kubeconfig or cluster.kubeconfig),
            namespace=namespace,
            settings=Settings(trust_env=False),
            image="i",
        )
        made.append(backend)
        return backend, backend.discover()

    yield read
    for backend in made:
        backend.close()


def _refusals(backend, site, **resources):
    task = Task.from_dict({"run": "x", "num_nodes": 2, "resources": resources})
    found = backend.offers(task, site)
    return found.best, " | ".join(one.reason for one in found.rejections)


def test_large_lists_are_as_the_server_gives_them(cluster):
    api = Api(backend="k", kubeconfig=str(cluster.kubeconfig))
    for path in ("/api/v1/nodes", "/api/v1/namespaces", "/apis/apps/v1/deployments"):
        whole = list(api.items(path))
        for one in whole:
            assert one["metadata"].pop("managedFields")
        slim = list(paged(api, path))
        assert [one["metadata"].pop("managedFields") for one in slim] == [[]] * len(slim)
        assert [_stable(one) for one in slim] == [_stable(one) for one in whole]
    api.close()


def _stable(item):
    """Without what a node's own heartbeat changes."""
    meta = {k: v for k, v in item["metadata"].items() if k != "resourceVersion"}
    return {"metadata": meta, "spec": item.get("spec")}


def test_quotas_and_limits_are_those_that_the_server_keeps(put, reads, namespace):
    put("ResourceQuota", "q", {"hard": {"requests.cpu": "4", "count/jobs.batch": "5"}},
        namespace=namespace)  # fmt: skip
    put("LimitRange", "l", {"limits": [{"type": "Container", "max": {"cpu": "3"}}]},
        namespace=namespace)  # fmt: skip
    backend, site = reads()
    (limit,) = site.facts["limits"]
    assert limit["limit"] == limit["request"] == {"cpu": "3"}  # the server's own default
    best, reasons = _refusals(backend, site, cpus="1+")
    assert best is not None, reasons
    assert "a LimitRange gives containers that do not say it a limit of 3 cpu" in best.warnings
    best, reasons = _refusals(backend, site, cpus="3+")
    assert (best, "leaves 4 requests.cpu, 6 are needed" in reasons) == (None, True), reasons
    best, reasons = _refusals(backend, site, cpus="5+")
    assert (best, "at most 3 cpu, 5 are asked" in reasons) == (None, True), reasons


@pytest.fixture
def queue(put, namespace):
    """A LocalQueue `team` with 8 CPUs and a topology of two levels."""
    kueue, name = "kueue.x-k8s.io/v1beta2", namespace
    levels = [{"nodeLabel": "gpufabric.test/block"}, {"nodeLabel": "kubernetes.io/hostname"}]
    put("Topology", name, {"levels": levels}, version=kueue)
    put(
        "ResourceFlavor", name, {"topologyName": name, "nodeLabels": {"kubernetes.io/os": "linux"}},
        version=kueue,
    )  # fmt: skip
    resources = [{"name": "cpu", "nominalQuota": "8"}]
    group = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": name, "resources": resources}],
    }
    put("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": [group]}, version=kueue)
    put("LocalQueue", "team", {"clusterQueue": name}, version=kueue, namespace=namespace)
    return name


def test_a_queue_is_known_with_its_quota_and_topology(queue, reads):
    backend, site = reads()
    assert site.facts["queues"] == ("team",)
    assert site.facts["queue_topology"] == {
        "team": ("gpufabric.test/block", "kubernetes.io/hostname")
    }
    (flavor,) = site.facts["queue_quota"]["team"]["flavors"]
    assert flavor["resources"]["cpu"] == {"nominal": 8, "most": 8, "used": 0}
    best, reasons = _refusals(backend, site, cpus="4+")
    assert best is not None, reasons
    best, reasons = _refusals(backend, site, cpus="5+")
    assert (best, "has at most 8 cpu, 10 are needed" in reasons) == (None, True), reasons


def _rules(rows):
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for group, resource, verbs in rows
    ]


def test_a_user_with_the_role_that_is_printed_sees_everything(
    queue, own_cluster, limited_user, reads
):
    named = [
        {**rule, "resourceNames": [name]}
        for group, resource, name, verbs in NAMED
        for rule in _rules([(group, resource, verbs)])
    ]
    user = limited_user(*_rules((*NEEDED, *WISHED)), cluster_rules=[*_rules(CLUSTER), *named])
    _, site = reads(user)
    assert site.unseen == ()
    assert site.facts["queue_topology"]
    assert len(site.pools) >= 1


def test_a_user_of_the_namespace_alone_is_told_what_is_not_seen(queue, limited_user, reads):
    backend, site = reads(limited_user(*_rules((*NEEDED, *WISHED))))
    assert [pool.name for pool in site.pools] == ["any"]
    told = " | ".join(site.unseen)
    for words in ("nodes: not allowed", "other namespaces use", f"clusterqueues {queue}"):
        assert words in told
    best, reasons = _refusals(backend, site, cpus="1+")
    assert best is not None, reasons
    assert any("may not be read" in text for text in best.warnings)


def _definition(group, version, kind, plural):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True,
              "schema": {"openAPIV3Schema": schema}}  # fmt: skip
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {"group": group, "scope": "Cluster", "names": names, "versions": [served]}


def test_autoscalers_with_pools_at_zero_are_known(own_cluster, put, reads):
    crd = "nodepools.karpenter.sh"
    put("CustomResourceDefinition", crd, _definition("karpenter.sh", "v1", "NodePool", "nodepools"),
        version="apiextensions.k8s.io/v1")  # fmt: skip
    own_cluster.api.wait_true(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}", "Established"
    )
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
    ]
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    template = {"spec": {"nodeClassRef": reference, "requirements": requirements}}
    put("NodePool", "gpu", {"template": template, "limits": {"nvidia.com/gpu": 32}},
        version="karpenter.sh/v1")  # fmt: skip
    status = (
        "time: 2026-11-30 10:00:00\nautoscalerStatus: Running\nnodeGroups:\n"
        "- name: gpu-group\n  health:\n    status: Healthy\n    nodeCounts:\n"
        "      registered:\n        total: 0\n    cloudProviderTarget: 0\n"
        "    minSize: 0\n    maxSize: 4\n"
    )
    put("ConfigMap", "cluster-autoscaler-status", None, namespace="kube-system",
        data={"status": status})  # fmt: skip
    backend, site = reads()
    pool = next(one for one in site.pools if one.instance_type == "p5.48xlarge")
    assert (pool.nodes_total, pool.labels["karpenter.sh/nodepool"]) == (4, "gpu")
    assert any("gpu-group (up to 4)" in text for text in site.unseen)
    best, reasons = _refusals(backend, site, accelerators="H100:8", network_tier="best")
    assert best is not None, reasons
    assert any("no node exists yet" in text for text in best.warnings)
    assert Site.from_yaml(site.to_yaml()) == site


def test_devices_that_a_claim_holds_are_not_free(own_cluster, put, reads, namespace, cluster):
    own_cluster.dress("dra-nics", "node-1")
    request = {"name": "nic", "exactly": {"deviceClassName": "rdma.dra.net", "count": 3}}
    put("ResourceClaim", "nics", {"devices": {"requests": [request]}},
        version="resource.k8s.io/v1", namespace=namespace)  # fmt: skip
    container = {"name": "c", "image": cluster.image, "command": ["sleep", "1"],
                 "resources": {"claims": [{"name": "nics"}]}}  # fmt: skip
    put(
        "Pod", "claims",
        {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": "node-1"},
         "resourceClaims": [{"name": "nics", "resourceClaimName": "nics"}]},
        namespace=namespace,
    )  # fmt: skip
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/nics"
    wait_until(
        "the claim is allocated",
        lambda: (cluster.api.get(path) or {}).get("status", {}).get("allocation"),
        timeout_s=30,
    )
    _, site = reads()
    fact = next(one for one in site.facts["pools"].values() if one.get("devices"))
    assert fact["devices"] == {"dra.net": 8}
    assert fact["devices_free"] == {"dra.net": 0}  # of no node all are free
