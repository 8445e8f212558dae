"""What is offered of a site, and why not the rest: quotas, limits, queues, pools at zero."""

import datetime as dt
import json
from pathlib import Path

import pytest

from gpufabric._frozen import evolve, freeze
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._autoscalers import groups_at_zero, provisioned_unseen
from gpufabric.backends.kubernetes._karpenter import karpenter_pools
from gpufabric.backends.kubernetes._node_pools import note_tiers
from gpufabric.backends.kubernetes._queues import queue_record
from gpufabric.backends.kubernetes._quotas import limit_records, quota_record
from gpufabric.backends.kubernetes._ways import Served
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.net.tier import NetworkTier
from gpufabric.task import Task

IMAGE = "registry.test/train:1"


def task_of(num_nodes=2, accelerators="H100:8", tier="best", **resources):
    given = {"accelerators": accelerators, "network_tier": tier} if accelerators else {}
    return Task.from_dict(
        {"run": "x", "num_nodes": num_nodes, "resources": {"image": IMAGE, **given, **resources}}
    )


@pytest.fixture
def offers(catalog):
    return lambda task, site: make_offers(task, site, catalog, image=None, patch={})


@pytest.fixture
def ask(offers):
    """The warnings of the best offer, or the reasons of a refusal."""

    def answer(task, site):
        found = offers(task, site)
        if found.best is None:
            return "refused", " | ".join(one.reason for one in found.rejections)
        return "offered", " | ".join(found.best.warnings)

    return answer


@pytest.fixture
def p5(site_of, dressed):
    """A site of four p5.48xlarge."""
    nodes = [dressed("eks-p5", f"n{i}") for i in range(4)]
    return lambda **facts: site_of(*nodes, **facts)


# ---- what nodes have


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "10"},
        {"nvidia.com/gpu.sharing-strategy": "mps"},
        {"nvidia.com/gpu.replicas": "4"},
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"},
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
        {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"},
        {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"},
    ],
)
@pytest.mark.parametrize("profile", ["eks-p5", "gpu-operator-h100"])
def test_parts_of_gpus_are_not_offered_as_whole_ones(site_of, dressed, ask, labels, profile):
    node = dressed(profile)
    node["metadata"]["labels"] |= labels
    node["status"]["allocatable"]["nvidia.com/gpu"] = "80"
    state, words = ask(task_of(1, tier="standard"), site_of(node))
    assert (state, "its GPUs are shared" in words) == ("refused", True), words


def test_nodes_whose_device_plugin_is_not_there_are_told(site_of, dressed, ask):
    node = dressed("eks-p5")
    del node["status"]["allocatable"]["nvidia.com/gpu"]
    state, words = ask(task_of(1, tier="standard"), site_of(node))
    assert state == "refused"
    assert "give 0 of the 8 accelerators of p5.48xlarge: is the device plug-in running" in words


def test_a_node_with_a_broken_gpu_is_offered_for_what_it_has(site_of, dressed, ask):
    node = dressed("eks-p5")
    node["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    assert ask(task_of(1, tier="standard"), site_of(node))[0] == "refused"
    state, words = ask(task_of(1, "H100:4", tier="standard"), site_of(node))
    assert (state, "give 7 of the 8" in words) == ("offered", True), words


def test_nodes_of_another_system_take_none_of_our_pods(site_of, dressed, ask):
    node = dressed("bare")
    node["metadata"]["labels"]["kubernetes.io/os"] = "windows"
    site = site_of(node)
    assert ask(task_of(1, None), site)[0] == "refused"
    assert dict(site.facts["pools"]["cpu"]["why_unusable"]) == {"n1": "it runs windows"}


@pytest.mark.parametrize("none", ["none", ""])
def test_gpus_that_are_not_shared_are_whole(site_of, dressed, ask, none):
    node = dressed("eks-p5")
    node["metadata"]["labels"] |= {
        "nvidia.com/gpu.sharing-strategy": none, "nvidia.com/gpu.replicas": "1",
    }  # fmt: skip
    assert ask(task_of(1, tier="standard"), site_of(node))[0] == "offered"


def _holder(node, **requests):
    container = {"resources": {"requests": {k.replace("_", "/"): v for k, v in requests.items()}}}
    return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": "Running"}}


def test_a_gang_needs_the_nics_and_one_node_does_not(site_of, dressed, ask):
    nodes = [dressed("eks-p5", name) for name in ("a", "b")]
    site = site_of(*nodes, pods=[_holder("a", **{"vpc.amazonaws.com_efa": "1"})])
    state, words = ask(task_of(2), site)
    assert (state, "1" in words) == ("refused", True), words
    assert ask(task_of(1, tier="standard"), site)[0] == "offered"
    topology = site.facts["pools"][site.pools[0].name]["topology"]
    assert topology["topology.kubernetes.io/zone"] == {"us-east-1a": 1}


def test_a_node_that_takes_no_more_pods_has_no_room(site_of, dressed, ask):
    node = dressed("eks-p5")
    node["status"]["allocatable"]["pods"] = "2"
    assert ask(task_of(1, tier="standard"), site_of(node, pods=[_holder("n1")]))[0] == "offered"
    full = site_of(node, pods=[_holder("n1")] * 2)
    assert ask(task_of(1, tier="standard"), full)[0] == "refused"


@pytest.mark.parametrize(
    ("level", "state", "limited"),
    [("privileged", "offered", False), (None, "offered", True), ("baseline", "refused", False)],
)
def test_what_the_network_needs_is_held_against_pod_security(
    site_of, dressed, offers, *, level, state, limited
):
    nodes = [dressed("nebius-h100", name) for name in ("a", "b")]
    best = offers(task_of(2), site_of(*nodes, pod_security=level)).best
    assert (best is not None) == (state == "offered")
    told = best is not None and any("no Pod Security level" in one for one in best.limits)
    assert told == limited


def _profiles():
    path = Path(__file__).parents[3] / "data" / "kubernetes" / "profiles.json"
    return {
        name: one["accelerator"]
        for name, one in json.loads(path.read_text()).items()
        if one["accelerator"]
    }


@pytest.mark.parametrize("profile", sorted(_profiles()))
def test_a_site_that_was_kept_as_text_gives_the_same_plan(
    site_of, dressed, offers, catalog, profile
):
    site = site_of(*[dressed(profile, name) for name in ("a", "b")])
    kept = Site.from_yaml(site.to_yaml())
    task = task_of(1 if "gb200" in profile else 2, _profiles()[profile], "standard")
    found = offers(task, kept)
    assert found == offers(task, site)
    given = {"run": "", "image": None, "patch": {}, "grace_s": 10}
    plans = [make_plan(task, found.best, one, catalog, **given) for one in (site, kept)]
    assert plans[0] == plans[1]


def test_pods_select_a_type_as_their_nodes_spell_it(site_of, dressed, offers, catalog):
    nodes = [dressed("aks-nd-h100", name) for name in ("a", "b", "c")]
    for node in nodes[:2]:
        node["metadata"]["labels"][_TYPE] = "standard_nd96isr_h100_v5"
    site = site_of(*nodes)
    assert [pool.nodes_total for pool in site.pools] == [2, 1]
    offer = offers(task_of(), site).best
    plan = make_plan(task_of(), offer, site, catalog, run="", image=None, patch={}, grace_s=10)
    assert f"{_TYPE}: standard_nd96isr_h100_v5" in plan.to_yaml()


def test_an_offer_says_when_its_site_was_read(site_of, dressed, offers):
    when = dt.datetime(2026, 11, 30, 10, 0, tzinfo=dt.UTC)
    site = evolve(site_of(dressed("eks-p5")), as_of=when)
    best = offers(task_of(1, tier="standard"), site).best
    assert "as the cluster was at 2026-11-30 10:00:00 UTC" in best.limits


# ---- quotas


def _quota(hard, used=None, **spec):
    body = {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}
    return quota_record({**body, "status": {"hard": hard, "used": used or {}}})


@pytest.mark.parametrize(
    ("hard", "used", "resources", "why"),
    [
        ({"requests.nvidia.com/gpu": "15"}, {}, {}, "leaves 15 requests.nvidia.com/gpu, 16 are"),
        ({"requests.vpc.amazonaws.com/efa": "32"}, {}, {}, "leaves 32 requests.vpc.amazonaws.com"),
        ({"pods": "10"}, {"pods": "9"}, {}, "leaves 1 pods, 2 are needed"),
        ({"count/pods": "1"}, {}, {}, "leaves 1 count/pods, 2 are needed"),
        ({"count/jobs.batch": "0"}, {}, {}, "leaves 0 count/jobs.batch, 1 are"),
        ({"count/jobsets.jobset.x-k8s.io": "3"}, {"count/jobsets.jobset.x-k8s.io": "3"}, {},
         "leaves 0 count/jobsets"),
        ({"services": "0"}, {}, {}, "leaves 0 services"),
        ({"requests.cpu": "100"}, {}, {"cpus": "64+"}, "leaves 100 requests.cpu, 128 are"),
        ({"memory": "1Ti"}, {}, {"memory_gib": "600+"}, "memory"),
        ({"requests.cpu": "1000"}, {}, {}, "do not say requests.cpu: say Resources(cpus=...)"),
        ({"limits.memory": "1Ti"}, {}, {"memory_gib": "1+"}, "do not say limits.memory"),
    ],
)  # fmt: skip
def test_a_quota_that_does_not_suffice_refuses(p5, ask, *, hard, used, resources, why):
    state, words = ask(task_of(**resources), p5(quotas=[_quota(hard, used)]))
    assert (state, why in words) == ("refused", True), words


@pytest.mark.parametrize(
    ("hard", "more"),
    [
        ({"requests.nvidia.com/gpu": "16", "pods": "2", "count/jobs.batch": "1"}, {}),
        ({"secrets": "0", "persistentvolumeclaims": "0"}, {}),  # nothing of these is made
        ({"pods": "0"}, {"scopes": ["BestEffort"]}),
        ({"pods": "0"}, {"scopes": ["Terminating"]}),
        ({"pods": "0"}, {"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}),
        ({"requests.amd.com/gpu": "0"}, {}),
    ],
)  # fmt: skip
def test_a_quota_of_what_is_not_asked_refuses_nothing(p5, ask, hard, more):
    state, words = ask(task_of(), p5(quotas=[_quota(hard, **more)]))
    assert state == "offered", words


def test_a_quota_in_scope_counts(p5, ask):
    state, words = ask(task_of(), p5(quotas=[_quota({"pods": "0"}, scopes=["NotTerminating"])]))
    assert state == "refused", words


def test_a_secret_counts_where_the_job_has_one(p5, ask):
    task = Task.from_dict(
        {"run": "x", "secrets": {"TOKEN": "s"},
         "resources": {"accelerators": "H100:8", "image": IMAGE}}
    )  # fmt: skip
    state, words = ask(task, p5(quotas=[_quota({"secrets": "0"})]))
    assert (state, "secrets" in words) == ("refused", True)


# ---- limits


def _limits(kind="Container", **limits):
    item = {"metadata": {"name": "lr"}, "spec": {"limits": [{"type": kind, **limits}]}}
    return list(limit_records(item))


@pytest.mark.parametrize(
    ("limits", "resources", "why"),
    [
        (_limits(max={"nvidia.com/gpu": "4"}), {}, "at most 4 nvidia.com/gpu, 8 are asked"),
        (_limits("Pod", max={"nvidia.com/gpu": "4"}), {}, "lets a pod have at most 4"),
        (_limits(max={"cpu": "32"}, default={"cpu": "32"}), {"cpus": "64+"}, "at most 32 cpu"),
        (_limits(default={"cpu": "8"}), {"cpus": "64+"}, "limit of 8 cpu, and 64 are asked"),
        (_limits("Pod", max={"memory": "1Ti"}), {}, "refuses those without a limit"),
        (_limits("Pod", min={"cpu": "1"}), {}, "no less than 1 cpu, and none is asked"),
        (_limits(min={"cpu": "96"}), {"cpus": "64+"}, "no less than 96 cpu, 64 are asked"),
    ],
)
def test_a_limit_that_pods_would_break_refuses(p5, ask, *, limits, resources, why):
    state, words = ask(task_of(**resources), p5(limits=limits))
    assert (state, why in words) == ("refused", True), words


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (_limits(default={"cpu": "8"}), "a limit of 8 cpu"),
        (_limits(default={"memory": "64Gi"}), "a limit of 64 GiB memory"),
        (_limits(defaultRequest={"cpu": "500m"}), "a request of 0.5 cpu"),
        (_limits(default={"amd.com/gpu": "1"}), "a limit of 1 amd.com/gpu"),
        (_limits(max={"nvidia.com/gpu": "8"}, default={"nvidia.com/gpu": "8"}), ""),
        (_limits("PersistentVolumeClaim", max={"storage": "1Gi"}), ""),
    ],
)
def test_what_a_limit_range_puts_into_pods_is_told(p5, ask, limits, told):
    state, words = ask(task_of(), p5(limits=limits))
    assert state == "offered"
    assert told in words if told else words == ""


# ---- queues


def _queue(*flavors, cohort=None, used=(), topology=None, stop=None, unseen=False):
    """A LocalQueue whose ClusterQueue has flavors (name, labels, {resource: quota})."""
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": "cq"}, "status": {}}
    groups = [
        {
            "coveredResources": sorted({r for _, _, quotas in flavors for r in quotas}),
            "flavors": [
                {
                    "name": name,
                    "resources": [
                        {"name": r, "nominalQuota": q}
                        if isinstance(q, str)
                        else {"name": r, "nominalQuota": q[0], "borrowingLimit": q[1]}
                        for r, q in quotas.items()
                    ],
                }
                for name, _, quotas in flavors
            ],
        }
    ]
    spec = {"resourceGroups": groups, "cohortName": cohort, "stopPolicy": stop}
    status = {"flavorsReservation": [
        {"name": name, "resources": [{"name": r, "total": total}]} for name, r, total in used
    ]}  # fmt: skip
    bodies = {
        name: {"spec": {"nodeLabels": labels, "topologyName": topology}}
        for name, labels, _ in flavors
    }
    levels = {"t": {"spec": {"levels": [{"nodeLabel": "block"}, {"nodeLabel": "rack"}]}}}
    whole = None if unseen else {"spec": spec, "status": status}
    return queue_record(local, whole, {} if unseen else bodies, levels, {})


_ALL = {"nvidia.com/gpu": "32", "vpc.amazonaws.com/efa": "128"}


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        (_queue(("f", {}, _ALL)), ""),
        (_queue(("f", {}, {**_ALL, "nvidia.com/gpu": ("8", "8")}), cohort="c"), "may queue"),
        (_queue(("f", {}, {**_ALL, "nvidia.com/gpu": "8"}), cohort="c"), "may queue"),
        (_queue(("f", {}, _ALL), used=[("f", "nvidia.com/gpu", "24")]), "uses 24 of 32"),
        (_queue(("f", {"zone": "x"}, _ALL), ("g", {}, _ALL)), ""),
        (_queue(("f", {}, {"nvidia.com/gpu": "32"})), "no quota for vpc.amazonaws.com/efa"),
        (_queue(("f", {}, _ALL), stop="Hold"), "is on hold"),
        (_queue(unseen=True), "may not be read"),
        (_queue(("f", {"node.kubernetes.io/instance-type": "p5.48xlarge"}, _ALL)), ""),
    ],
)
def test_a_queue_that_can_give_it_is_offered_with_what_there_is_to_wait_for(p5, ask, queue, told):
    state, words = ask(task_of(), p5(queues=["team"], queue_quota={"team": queue}))
    assert state == "offered", words
    assert told in words if told else words == ""


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (_queue(("f", {}, {**_ALL, "nvidia.com/gpu": "8"})), "at most 8 nvidia.com/gpu, 16 are"),
        (_queue(("f", {}, {**_ALL, "nvidia.com/gpu": ("8", "4")}), cohort="c"), "at most 12"),
        (_queue(("f", {}, {**_ALL, "vpc.amazonaws.com/efa": "32"})), "at most 32 vpc.amazonaws"),
        (_queue(("f", {"pool": "other"}, _ALL)), "flavor f is for nodes with pool=other"),
        (  # one flavor must take all of the gang
            _queue(
                ("f", {}, {**_ALL, "nvidia.com/gpu": "8"}),
                ("g", {}, {**_ALL, "nvidia.com/gpu": "8"}),
            ),
            "flavor g has at most 8",
        ),
    ],
)
def test_what_a_queue_can_never_give_is_refused(p5, ask, queue, why):
    state, words = ask(task_of(), p5(queues=["team"], queue_quota={"team": queue}))
    assert (state, why in words) == ("refused", True), words


def test_the_levels_of_a_queues_topology_are_read_from_flavor_or_queue():
    assert _queue(("f", {}, _ALL), topology="t")["topology"] == ["block", "rack"]
    local = {
        "metadata": {"name": "q"},
        "spec": {"clusterQueue": "cq"},
        "status": {"flavors": [{"name": "f", "topology": {"name": "t", "levels": ["a", "b"]}}]},
    }
    assert queue_record(local, None, {}, {}, {})["topology"] == ["a", "b"]


def test_a_queue_that_provisions_is_known_by_its_check():
    def check(controller):
        return {"c": {"spec": {"controllerName": controller}}}

    local = {"metadata": {"name": "q"}, "spec": {"clusterQueue": "cq"}}
    made = queue_record(local, {}, {}, {}, check("kueue.x-k8s.io/provisioning-request"))
    assert made["provisioning"] == ["c"]
    assert queue_record(local, {}, {}, {}, check("other"))["provisioning"] == []


def test_flavors_that_are_made_on_request_are_told_where_none_exists(p5, ask):
    check = {"c": {"spec": {"controllerName": "kueue.x-k8s.io/provisioning-request"}}}
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": "cq"}}
    flavors = [{"name": "dws", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "64"}]}]
    whole = {"spec": {"resourceGroups": [{"flavors": flavors}]}}
    bodies = {"dws": {"spec": {"nodeLabels": {"cloud.google.com/gke-nodepool": "dws"}}}}
    record = queue_record(local, whole, bodies, {}, check)
    (told,) = provisioned_unseen({"team": record}, [{"a": "b"}])
    assert "flavor dws (cloud.google.com/gke-nodepool=dws)" in told
    there = {"cloud.google.com/gke-nodepool": "dws", "a": "b"}
    assert not list(provisioned_unseen({"team": record}, [there]))
    plain = queue_record(local, whole, {"dws": {"spec": {}}}, {}, check)
    state, words = ask(task_of(), p5(queues=["team"], queue_quota={"team": plain}))
    assert (state, "makes nodes when it admits a job" in words) == ("offered", True), words


# ---- pools at zero


def _nodepool(*requirements, group="karpenter.k8s.aws", limits=None, **more):
    """Requirements are (key, operator, values...)."""
    template = {
        "nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "gpu"},
        "requirements": [
            {"key": key, "operator": operator, "values": list(values)}
            for key, operator, *values in requirements
        ],
        **more.pop("template", {}),
    }
    spec = {"template": {"spec": template}, **more.pop("spec", {})}
    if limits:
        spec["limits"] = limits
    return {"metadata": {"name": "gpu"}, "spec": spec, "status": more.pop("status", {})}


_TYPE = "node.kubernetes.io/instance-type"
_ZONE = "topology.kubernetes.io/zone"
P5 = ((_TYPE, "In", "p5.48xlarge"), (_ZONE, "In", "us-east-1a"))


@pytest.fixture
def at_zero(catalog):
    """A site of what Karpenter would make of NodePools."""

    def make(*nodepools, pools=(), facts=None):
        existing = {pool.name: (pool, facts[pool.name]) for pool in pools}
        made, unseen = karpenter_pools(nodepools, existing, catalog, "prod", Served())
        every = (*pools, *(pool for pool, _ in made.values()))
        by_pool = {**(facts or {}), **{name: fact for name, (_, fact) in made.items()}}
        note_tiers(every, by_pool, catalog)
        site_facts = {
            "context": "prod", "namespace": "ml", "controllers": {"jobset": "v1alpha2"},
            "pools": by_pool,
        }  # fmt: skip
        return Site(
            backend="kubernetes", pools=every, unseen=tuple(unseen), facts=freeze(site_facts)
        )

    return make


def test_a_nodepool_at_zero_is_offered_with_what_is_assumed(at_zero, offers, catalog):
    site = at_zero(_nodepool(*P5, limits={"nvidia.com/gpu": "64"}))
    (pool,) = site.pools
    assert (pool.nodes_total, pool.spot, pool.place.zone) == (8, False, "us-east-1a")
    offer = offers(task_of(), site).best
    assert offer.tier is NetworkTier.BEST
    assert "no node exists yet" in offer.warnings[0]
    assert "vpc.amazonaws.com/efa is assumed" in offer.warnings[0]
    plan = make_plan(task_of(), offer, site, catalog, run="", image=None, patch={}, grace_s=10)
    text = plan.to_yaml()
    assert "karpenter.sh/nodepool: gpu" in text
    assert "karpenter.sh/do-not-disrupt: 'true'" in text or 'do-not-disrupt: "true"' in text
    assert "karpenter.sh/capacity-type: on-demand" in text  # it does not say, so pods do
    assert "vpc.amazonaws.com/efa: '32'" in text or 'vpc.amazonaws.com/efa: "32"' in text


@pytest.mark.parametrize(
    ("limits", "used", "nodes"),
    [
        ({"nvidia.com/gpu": "64"}, {"nvidia.com/gpu": "48"}, 2),
        ({"cpu": "400"}, {}, 2),
        ({"memory": "4000Gi"}, {}, 1),
        ({"nodes": "3", "nvidia.com/gpu": "64"}, {"nodes": "1"}, 2),
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "80"}, 0),
        ({"example.com/thing": "1"}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_limits_of_a_nodepool_bound_its_nodes(at_zero, limits, used, nodes):
    site = at_zero(_nodepool(*P5, limits=limits, status={"resources": used}))
    assert site.pools[0].nodes_total == nodes


def test_more_nodes_than_the_limits_leave_are_refused(at_zero, ask):
    state, words = ask(task_of(4), at_zero(_nodepool(*P5, limits={"nvidia.com/gpu": "16"})))
    assert (state, "4 nodes" in words) == ("refused", True), words


@pytest.mark.parametrize(
    ("requirements", "types"),
    [
        ([("karpenter.k8s.aws/instance-family", "In", "p5en")], {"p5en.48xlarge"}),
        ([(_TYPE, "In", "p5.48xlarge", "p4d.24xlarge"), (_TYPE, "NotIn", "p4d.24xlarge")],
         {"p5.48xlarge"}),
        ([("karpenter.k8s.aws/instance-family", "In", "p5"),
          ("karpenter.k8s.aws/instance-gpu-count", "Gt", "1")], {"p5.48xlarge"}),
        ([(_TYPE, "In", "p5.48xlarge"), ("kubernetes.io/arch", "In", "arm64")], set()),
        ([("karpenter.k8s.aws/instance-category", "In", "c", "m", "r")], set()),
        ([(_TYPE, "In", "m7i.large")], set()),
    ],
)  # fmt: skip
def test_types_are_those_that_all_requirements_leave(at_zero, requirements, types):
    site = at_zero(_nodepool(*requirements, (_ZONE, "In", "us-east-1a")))
    assert {pool.instance_type for pool in site.pools} == types
    assert not site.unseen


@pytest.mark.parametrize(
    ("nodepool", "why"),
    [
        (_nodepool(("karpenter.k8s.aws/instance-category", "In", "p")), "names no instance"),
        (_nodepool(), "names no instance types"),
        (_nodepool(*P5, ("karpenter.k8s.aws/instance-memory", "Gt", "1")), "memory leaves"),
        (_nodepool(*P5, group="karpenter.example"), "karpenter.example"),
        (_nodepool(*P5, spec={"replicas": 2}), "a fixed number of nodes"),
        (_nodepool(*P5, status={"conditions": [
            {"type": "Ready", "status": "False", "message": "NodeClass not found"}]}),
         "not ready: NodeClass not found"),
    ],
)  # fmt: skip
def test_a_nodepool_whose_nodes_are_not_certain_is_told_and_not_offered(at_zero, nodepool, why):
    site = at_zero(nodepool)
    assert not site.pools
    (told,) = site.unseen
    assert why in told


def test_a_nodepool_without_a_zone_takes_no_gang(at_zero, ask):
    site = at_zero(_nodepool(P5[0]))
    state, words = ask(task_of(2), site)
    assert (state, "names no zone" in words) == ("refused", True), words
    assert ask(task_of(1, tier="standard"), site)[0] == "offered"


def test_each_zone_is_a_pool_of_its_own(at_zero):
    site = at_zero(_nodepool(P5[0], (_ZONE, "In", "us-east-1a", "us-east-1b")))
    assert [pool.labels[_ZONE] for pool in site.pools] == ["us-east-1a", "us-east-1b"]


@pytest.mark.parametrize(
    ("capacity", "labels"),
    [
        (["on-demand", "reserved"], [None]),
        (["spot", "on-demand"], ["spot", "on-demand"]),
        (["spot"], ["spot"]),
    ],
)
def test_spot_is_a_pool_of_its_own(at_zero, capacity, labels):
    key = "karpenter.sh/capacity-type"
    site = at_zero(_nodepool(*P5, (key, "In", *capacity)))
    assert [pool.labels.get(key) for pool in site.pools] == labels
    assert [pool.spot for pool in site.pools] == [label == "spot" for label in labels]


@pytest.mark.parametrize(
    ("named", "open_to"),
    [
        ("nvidia.com/gpu=present", True),
        ("sku=gpu", True),
        ("sku=inference", False),
        ("gpu=true", False),
    ],
)
def test_only_taints_that_are_known_to_be_for_gpus_are_tolerated(
    ask, site_of, dressed, named, open_to
):
    key, _, value = named.partition("=")
    taint = {"key": key, "value": value, "effect": "NoSchedule"}
    site = site_of(*(dressed("eks-p5", name, taints=[taint]) for name in ("a", "b")))
    state, words = ask(task_of(), site)
    wanted = ("offered", False) if open_to else ("refused", True)
    assert (state, f"taint {named}" in words) == wanted, words


def test_taints_of_a_nodepool_keep_pods_out_as_those_of_nodes_do(at_zero, ask):
    taint = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    state, words = ask(task_of(), at_zero(_nodepool(*P5, template={"taints": taint})))
    assert (state, "taint team=a" in words) == ("refused", True), words
    startup = at_zero(_nodepool(*P5, template={"startupTaints": taint}))
    assert ask(task_of(), startup)[0] == "offered"


def test_no_node_is_made_for_a_task_without_accelerators(at_zero, ask):
    state, words = ask(task_of(1, None), at_zero(_nodepool(*P5)))
    assert (state, "asks for no accelerator" in words) == ("refused", True), words


def test_a_provider_that_does_not_know_the_nics_promises_none(at_zero, ask):
    nodepool = _nodepool(
        ("karpenter.azure.com/sku-name", "In", "standard_nd96isr_h100_v5"),
        (_ZONE, "In", "eastus-1"),
        group="karpenter.azure.com",
    )
    site = at_zero(nodepool)
    assert site.pools[0].labels[_TYPE] == "standard_nd96isr_h100_v5"
    state, words = ask(task_of(), site)
    assert (state, "none of its" in words) == ("refused", True), words
    assert "nodes for pods that ask for rdma/ib" in ask(task_of(tier="standard"), site)[1]


def test_eks_auto_mode_makes_nodes_for_pods_that_ask_for_efa(at_zero, ask):
    family = ("eks.amazonaws.com/instance-family", "In", "p5")
    count = ("eks.amazonaws.com/instance-gpu-count", "Gt", "4")
    site = at_zero(_nodepool(family, count, P5[1], group="eks.amazonaws.com"))
    assert [pool.instance_type for pool in site.pools] == ["p5.48xlarge"]
    state, words = ask(task_of(), site)
    assert (state, "vpc.amazonaws.com/efa is assumed" in words) == ("offered", True), words
    general = ("eks.amazonaws.com/instance-category", "In", "c", "m", "r")
    plain = at_zero(_nodepool(general, group="eks.amazonaws.com"))
    assert (plain.pools, plain.unseen) == ((), ())


@pytest.mark.parametrize("key", ["scalesetpriority", "priority"])
def test_a_nodepool_that_buys_nodes_by_azures_own_label_is_told(at_zero, key):
    site = at_zero(
        _nodepool(
            ("karpenter.azure.com/sku-name", "In", "standard_nd96isr_h100_v5"),
            (f"kubernetes.azure.com/{key}", "In", "spot"),
            (_ZONE, "In", "eastus-1"),
            group="karpenter.azure.com",
        )
    )
    assert site.pools == ()
    assert f"kubernetes.azure.com/{key}" in site.unseen[0]


def test_karpenter_makes_no_nodes_for_pods_that_claim_a_channel_of_nvlink(at_zero, catalog):
    rack = next(
        row.name for row in catalog.cloud("aws").types()
        if any(way.compute_domain for way in catalog.cloud("aws").kubernetes_rows(row.name, "eks"))
    )  # fmt: skip
    site = at_zero(_nodepool((_TYPE, "In", rack), P5[1]))
    (pool,) = site.pools
    assert site.facts["pools"][pool.name]["way"] is None
    assert "pods with claims" in site.facts["pools"][pool.name]["no_fabric"]


def test_free_nodes_that_exist_count_beside_those_that_would_be_made(at_zero, site_of, dressed):
    node = dressed("eks-p5")
    node["metadata"]["labels"]["karpenter.sh/nodepool"] = "gpu"
    site = site_of(node)
    pools, facts = site.pools, {site.pools[0].name: dict(site.facts["pools"][site.pools[0].name])}
    facts[pools[0].name]["labels"] = {"karpenter.sh/nodepool": "gpu"}
    both = at_zero(_nodepool(*P5, limits={"nodes": "3"}), pools=pools, facts=facts)
    assert both.pools[1].nodes_total == 4
    assert "1 nodes exist" in both.facts["pools"][both.pools[1].name]["notes"][0]


@pytest.mark.parametrize("made", [True, False])
def test_karpenter_is_asked_to_leave_its_nodes_alone_under_a_gang(
    dressed, site_of, offers, catalog, made
):
    nodes = [dressed("eks-p5", name) for name in ("n1", "n2")]
    if made:  # of another NodePool each
        for node in nodes:
            node["metadata"]["labels"]["karpenter.sh/nodepool"] = node["metadata"]["name"]
    site = site_of(*nodes)
    offer = offers(task_of(), site).best
    plan = make_plan(task_of(), offer, site, catalog, run="", image=None, patch={}, grace_s=10)
    assert ("karpenter.sh/do-not-disrupt" in plan.to_yaml()) is made
    assert ("karpenter.sh/do-not-disrupt" in {one.name for one in plan.network}) is made
    assert "autoscaler" not in site.facts["pools"][site.pools[0].name]  # its nodes are there


def test_empty_groups_of_the_cluster_autoscaler_are_told_by_name():
    def group(name, total, target=0):
        health = {"nodeCounts": {"registered": {"total": total}}, "cloudProviderTarget": target}
        return {"name": name, "health": {**health, "minSize": 0, "maxSize": 8}}

    status = {"nodeGroups": [group("a", 0), group("b", 2, 2), group("c", 0, 1)]}
    (told,) = groups_at_zero(status)
    assert "a (up to 8)" in told
    assert "b " not in told.replace("be ", "")
    assert list(groups_at_zero({"nodeGroups": [group("b", 2, 2)]})) == []


@pytest.mark.parametrize("status", [None, "text", {}, {"nodeGroups": None}])
def test_a_status_of_another_shape_is_told(status):
    (told,) = groups_at_zero(status)
    assert "1.30" in told
