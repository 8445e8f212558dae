"""Who does a gang's work beside its pods' owner, and where its nodes must be together."""

import itertools

import pytest

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes._carry import CODE_WRITES
from gpufabric.backends.kubernetes._company import within_writes
from gpufabric.backends.kubernetes._gang import Gang, Nearness
from gpufabric.backends.kubernetes._manifest import owned
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.catalog.index import Catalog
from gpufabric.errors import SpecError
from gpufabric.net.tier import NetworkTier
from gpufabric.task import Task

CLIQUE = "nvidia.com/gpu.clique"
EVERY_API = {
    "scheduling.k8s.io": "v1alpha2",
    "scheduling.volcano.sh": "v1beta1",
    "resource.nvidia.com": "v1beta1",
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def asked(num_nodes=2, accelerators="H100:8", tier="best", capacity=None, **fields):
    resources = {"image": "i:1", "capacity": capacity}
    if accelerators:
        resources |= {"accelerators": accelerators, "network_tier": tier}
    resources = {name: value for name, value in resources.items() if value is not None}
    return Task.from_dict({"run": "x", "num_nodes": num_nodes, "resources": resources, **fields})


@pytest.fixture
def offers(catalog):
    return lambda task, site, **given: make_offers(
        task, site, catalog, **{"image": None, "patch": {}, **given}
    )


@pytest.fixture
def plan(catalog, offers):
    def make(task, site, **given):
        resolution = offers(task, site, **given)
        assert resolution.best is not None, str(resolution)
        return make_plan(
            task, resolution.best, site, catalog, run="", grace_s=10,
            **{"image": None, "patch": {}, **given},
        )  # fmt: skip

    return make


def bodies(plan, kind):
    return [thaw(s.body) for s in plan.steps if s.kind == kind and s.verb == "create"]


def template(plan):
    for kind in ("JobSet", "Job"):
        for body in bodies(plan, kind):
            if kind == "JobSet":
                return body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
            return body["spec"]["template"]
    raise AssertionError(str(plan))


def writes(plan):
    return [step for step in plan.steps if step.verb not in {"pack", "serve"}]


@pytest.fixture
def racks(dressed):
    """Nodes of racks: `racks(r1=4, r2=2)`."""

    def make(**sizes):
        found = []
        for rack, size in sizes.items():
            nodes = [dressed("eks-p6e-gb200", f"{rack}-{i}", rack=rack) for i in range(size)]
            found += nodes
        return found

    return make


# ---- gang schedulers


@pytest.mark.parametrize(
    ("version", "kind", "spec", "reference"),
    [
        (
            "v1alpha2", "PodGroup", {"schedulingPolicy": {"gang": {"minCount": 2}}},
            lambda name: {"schedulingGroup": {"podGroupName": name}},
        ),
        (
            "v1alpha1", "Workload",
            {"podGroups": [{"name": "n", "policy": {"gang": {"minCount": 2}}}]},
            lambda name: {"workloadRef": {"name": name, "podGroup": "n"}},
        ),
    ],
)  # fmt: skip
def test_the_schedulers_own_gang_is_written_in_the_shape_of_its_version(  # noqa: PLR0917
    plan, site_of, dressed, version, kind, spec, reference
):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    site = site_of(*nodes, controllers=(), gang_apis={"scheduling.k8s.io": version})
    made = plan(asked(), site)
    (group,) = bodies(made, kind)
    assert group["apiVersion"] == f"scheduling.k8s.io/{version}"
    assert group["spec"] == spec
    assert group["metadata"]["ownerReferences"][0]["kind"] == "Job"
    pod = template(made)["spec"]
    assert reference(group["metadata"]["name"]).items() <= pod.items()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"controllers": ("jobset",)}, "JobSet's pods cannot name"),
        ({"controllers": (), "queues": ["team"]}, "not used beside a queue"),
    ],
)
def test_where_the_schedulers_own_gang_is_not_used_the_plan_says_why(
    plan, site_of, dressed, given, words
):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    made = plan(asked(), site_of(*nodes, gang_apis=EVERY_API, **given))
    assert not bodies(made, "PodGroup")
    assert "schedulingGroup" not in template(made)["spec"]
    assert words in str(made)


def test_one_node_is_no_gang(plan, site_of, dressed):
    site = site_of(dressed("eks-p5"), controllers=(), gang_apis=EVERY_API)
    made = plan(asked(1, tier="standard"), site, scheduler="volcano")
    assert not bodies(made, "PodGroup")
    assert template(made)["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize("controllers", [(), ("jobset",)])
def test_volcano_places_gangs_where_it_is_asked_for(plan, site_of, dressed, controllers):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    site = site_of(*nodes, controllers=controllers, gang_apis=EVERY_API, priority_classes=["p"])
    made = plan(asked(capacity="blue"), site, scheduler="volcano", priority="p")
    (group,) = bodies(made, "PodGroup")
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"] == {"minMember": 2, "queue": "blue", "priorityClassName": "p"}
    pod = template(made)
    name = group["metadata"]["name"]
    notes = pod["metadata"]["annotations"]
    assert notes["scheduling.k8s.io/group-name"] == name
    assert notes["scheduling.volcano.sh/queue-name"] == "blue"
    assert pod["spec"]["schedulerName"] == "volcano"


def test_one_node_goes_through_the_queue_of_volcano_that_was_asked_for(plan, site_of, dressed):
    site = site_of(dressed("eks-p5"), gang_apis=EVERY_API)
    made = plan(asked(1, tier="standard", capacity="blue"), site, scheduler="volcano")
    assert not bodies(made, "PodGroup")  # Volcano makes one for the pod
    assert template(made)["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "blue"
    assert "blue" in str(made)


def test_volcano_is_not_chosen_because_it_is_there_and_is_refused_where_it_is_not(
    plan, offers, site_of, dressed
):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    there = plan(asked(), site_of(*nodes, gang_apis=EVERY_API))
    assert "schedulerName" not in template(there)["spec"]
    resolution = offers(asked(), site_of(*nodes), scheduler="volcano")
    assert not resolution
    assert "PodGroups of scheduling.volcano.sh" in str(resolution)


# ---- six writes


@pytest.mark.parametrize(
    ("controllers", "profile", "queue", "secrets", "code"),
    [
        *itertools.product(
            [(), ("jobset",)], ["eks-p5", "eks-p6e-gb200"], [None, "team"], [False, True],
            [False, True],
        )
    ],
)  # fmt: skip
def test_no_launch_takes_more_than_six_writes(  # noqa: PLR0917
    plan, site_of, dressed, controllers, profile, queue, secrets, code
):
    nodes = [dressed(profile, f"n{i}") for i in range(3)]
    site = site_of(
        *nodes, controllers=controllers, gang_apis=EVERY_API, queues=[queue] if queue else []
    )
    fields = {"secrets": {"T": "x"}} if secrets else {}
    fields |= {"workdir": "/src"} if code else {}
    model = "H100:8" if profile == "eks-p5" else "GB200:4"
    made = plan(asked(3, accelerators=model, **fields), site)
    assert len(writes(made)) <= 6, [str(step) for step in made.steps]


# ---- NVLink between nodes


def test_a_gang_of_one_rack_has_a_compute_domain_that_its_pods_claim(plan, site_of, racks):
    made = plan(asked(2, "GB200:4"), site_of(*racks(r1=3), gang_apis=EVERY_API))
    (domain,) = bodies(made, "ComputeDomain")
    assert domain["apiVersion"] == "resource.nvidia.com/v1beta1"
    assert domain["spec"]["numNodes"] == 2
    channel = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert domain["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
    pod = template(made)["spec"]
    (claim,) = [c for c in pod["resourceClaims"] if c["resourceClaimTemplateName"] == channel]
    assert {"name": claim["name"]} in pod["containers"][0]["resources"]["claims"]
    assert not bodies(made, "ResourceClaimTemplate")  # its controller makes it


def test_without_compute_domains_such_a_gang_is_refused_with_the_remedy(offers, site_of, racks):
    resolution = offers(asked(2, "GB200:4"), site_of(*racks(r1=3)))
    assert not resolution
    assert "install the NVIDIA DRA driver" in str(resolution)


def test_the_best_of_a_rack_keeps_the_gang_in_one_that_has_room(plan, site_of, racks):
    nodes = racks(r1=2, r2=3, r3=4)
    made = plan(asked(3, "GB200:4"), site_of(*nodes, gang_apis=EVERY_API))
    affinity = template(made)["spec"]["affinity"]
    (term,) = affinity["podAffinity"][REQUIRED]
    assert term["topologyKey"] == CLIQUE
    (select,) = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert select["matchExpressions"] == [
        {"key": CLIQUE, "operator": "In", "values": ["r2.0", "r3.0"]}
    ]
    assert made.offer.tier is NetworkTier.BEST


def test_a_gang_that_may_start_again_prefers_the_racks_that_have_room_now(plan, site_of, racks):
    nodes = racks(r1=2, r2=3)
    made = plan(asked(3, "GB200:4", max_restarts=1), site_of(*nodes, gang_apis=EVERY_API))
    affinity = template(made)["spec"]["affinity"]
    assert affinity["podAffinity"][REQUIRED][0]["topologyKey"] == CLIQUE
    (wish,) = affinity["nodeAffinity"][PREFERRED]
    assert wish["preference"]["matchExpressions"][0]["values"] == ["r2.0"]


def test_racks_that_are_each_too_full_are_refused_with_their_numbers(offers, site_of, racks):
    resolution = offers(asked(4, "GB200:4"), site_of(*racks(r1=2, r2=3), gang_apis=EVERY_API))
    assert not resolution
    told = str(resolution)
    assert "4 nodes were asked for" in told
    assert "r2.0 3, r1.0 2" in told


def test_who_asks_for_less_than_the_best_gets_nodes_of_several_racks_and_is_told(
    plan, site_of, racks
):
    task = asked(4, "GB200:4", tier="gpudirect")
    made = plan(task, site_of(*racks(r1=2, r2=3), gang_apis=EVERY_API))
    assert made.offer.tier is NetworkTier.GPUDIRECT
    assert "several NVLink domains" in " ".join(made.offer.warnings)
    assert REQUIRED not in template(made)["spec"].get("affinity", {}).get("podAffinity", {})


def test_nodes_that_do_not_tell_their_domain_promise_no_best(offers, site_of, racks):
    nodes = racks(r1=3)
    for node in nodes:
        del node["metadata"]["labels"][CLIQUE]
    resolution = offers(asked(2, "GB200:4"), site_of(*nodes, gang_apis=EVERY_API))
    assert f"lack the label {CLIQUE}" in str(resolution)


def test_elsewhere_nearness_is_a_wish(plan, site_of, dressed):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    affinity = template(plan(asked(), site_of(*nodes)))["spec"]["affinity"]
    assert list(affinity["podAffinity"]) == [PREFERRED]
    assert "nodeAffinity" not in affinity


# ---- Kueue's topologies


@pytest.mark.parametrize(
    ("profile", "model", "levels", "annotation"),
    [
        (
            "eks-p6e-gb200", "GB200:4", ["block", CLIQUE, "kubernetes.io/hostname"],
            ("required", CLIQUE),
        ),
        (
            "eks-p5", "H100:8", ["topology.k8s.aws/network-node-layer-3", "kubernetes.io/hostname"],
            ("preferred", "topology.k8s.aws/network-node-layer-3"),
        ),
        ("eks-p5", "H100:8", ["block", "rack", "kubernetes.io/hostname"], ("preferred", "rack")),
    ],
)  # fmt: skip
def test_a_queue_with_a_topology_is_told_where_the_fabric_ends(  # noqa: PLR0917
    plan, site_of, dressed, profile, model, levels, annotation
):
    nodes = [dressed(profile, f"n{i}") for i in range(3)]
    made = plan(
        asked(3, model),
        site_of(*nodes, queues=["q"], queue_topology={"q": levels}, gang_apis=EVERY_API),
    )
    word, level = annotation
    notes = template(made)["metadata"]["annotations"]
    kueue = {key: value for key, value in notes.items() if key.startswith("kueue")}
    assert kueue == {f"kueue.x-k8s.io/podset-{word}-topology": level}
    assert "podAffinity" not in template(made)["spec"].get("affinity", {})


LAYER = "topology.k8s.aws/network-node-layer-3"


def flavor(levels, zone="us-east-1a", resource="nvidia.com/gpu"):
    quota = {resource: {"nominal": 99, "most": 99, "used": 0}}
    labels = {"topology.kubernetes.io/zone": zone}
    return {"name": "f", "group": 0, "seen": True, "labels": labels, "resources": quota,
            "topology": levels}  # fmt: skip


@pytest.mark.parametrize(
    ("flavors", "level"),
    [
        ([flavor([LAYER])], LAYER),
        ([flavor([LAYER]), flavor([], zone="us-east-1b")], LAYER),
        ([flavor([]), flavor([LAYER], zone="us-east-1b")], None),  # not of these nodes
        ([flavor([LAYER]), flavor([])], None),  # the wish would shut the second out
        ([flavor([LAYER]), flavor([], resource="cpu")], LAYER),
        ([flavor(["block", LAYER]), flavor(["block"])], "block"),
    ],
)
def test_a_topology_is_asked_for_only_where_every_flavor_of_the_nodes_has_it(
    catalog, site_of, dressed, flavors, level
):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    record = {"cluster_queue": "cq", "stopped": "", "pending": 0, "flavors": flavors}
    site = site_of(
        *nodes, queues=["q"], queue_topology={"q": [LAYER]}, queue_quota={"q": record}
    )  # fmt: skip
    free = site_of(*nodes, queues=["q"])
    task = asked()
    offer = make_offers(task, free, catalog, image=None, patch={}).best
    made = make_plan(task, offer, site, catalog, run="", image=None, patch={}, grace_s=1)
    notes = template(made)["metadata"]["annotations"]
    assert notes.get("kueue.x-k8s.io/podset-preferred-topology") == level


@pytest.mark.parametrize(
    ("flavors", "num_nodes", "wish"),
    [
        ([flavor([LAYER])], 1, "true"),
        ([flavor([LAYER]), flavor([])], 1, None),
        ([flavor([])], 1, None),
        ([flavor(["block"]), flavor(["rack"])], 2, "true"),
    ],
)
def test_pods_without_a_wish_are_still_let_into_flavors_that_all_have_a_topology(  # noqa: PLR0917
    catalog, site_of, dressed, flavors, num_nodes, wish
):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    record = {"cluster_queue": "cq", "stopped": "", "pending": 0, "flavors": flavors}
    site = site_of(*nodes, queues=["q"], queue_quota={"q": record})
    task = asked(num_nodes, tier="standard")
    offer = make_offers(
        task, site_of(*nodes, queues=["q"]), catalog, image=None, patch={}
    ).best  # fmt: skip
    made = make_plan(task, offer, site, catalog, run="", image=None, patch={}, grace_s=1)
    notes = template(made)["metadata"]["annotations"]
    assert notes.get("kueue.x-k8s.io/podset-unconstrained-topology") == wish


def test_a_queue_without_a_topology_leaves_the_rack_to_the_scheduler(plan, site_of, racks):
    made = plan(asked(2, "GB200:4"), site_of(*racks(r1=1, r2=1), queues=["q"], gang_apis=EVERY_API))
    affinity = template(made)["spec"]["affinity"]
    assert affinity["podAffinity"][REQUIRED][0]["topologyKey"] == CLIQUE
    assert "nodeAffinity" not in affinity  # in a queue, other nodes may be free in its turn


# ---- tasks that have no network between GPUs


@pytest.mark.parametrize(
    ("profile", "num_nodes", "accelerators"),
    [
        ("eks-p5", 1, "H100:8"),
        ("eks-p5", 1, "H100:1"),
        ("eks-p5", 2, "H100:4"),
        ("coreweave-h100", 2, None),
        ("eks-p6e-gb200", 1, "GB200:4"),
        ("gke-a3-mega", 1, "H100:8"),
        ("nebius-h100", 1, "H100:8"),
    ],
)
def test_who_needs_no_network_between_gpus_gets_none_of_its_parts(  # noqa: PLR0917
    plan, site_of, dressed, profile, num_nodes, accelerators
):
    nodes = [dressed(profile, f"n{i}") for i in range(2)]
    topology = {"q": [CLIQUE, "topology.k8s.aws/network-node-layer-3"]}
    for facts in ({}, {"queues": ["q"], "queue_topology": topology}):
        site = site_of(*nodes, gang_apis=EVERY_API, **facts)
        made = plan(asked(num_nodes, accelerators, tier="standard"), site)
        assert not bodies(made, "ComputeDomain") + bodies(made, "ResourceClaimTemplate")
        pod = template(made)
        assert not [key for key in pod["metadata"]["annotations"] if "topology" in key]
        assert "podAffinity" not in pod["spec"].get("affinity", {})
        assert "hostNetwork" not in pod["spec"]
        (container,) = pod["spec"]["containers"]
        limits = container["resources"]["limits"]
        gpus = {"nvidia.com/gpu": accelerators.split(":")[1]} if accelerators else {}
        assert limits == gpus
        assert "capabilities" not in container["securityContext"]


# ---- priority


@pytest.mark.parametrize(
    ("facts", "pods", "queue"),
    [
        ({}, "high", None),
        ({"priority_classes": ["high"]}, "high", None),
        ({"queues": ["q"], "priority_classes": ["high"]}, "high", None),
        ({"queues": ["q"], "priority_classes": [], "workload_priority_classes": ["high"]},
         None, "high"),
        ({"queues": ["q"], "priority_classes": ["high"], "workload_priority_classes": ["high"]},
         "high", "high"),
    ],
)  # fmt: skip
def test_a_priority_is_that_of_pods_of_the_queue_or_both(  # noqa: PLR0917
    plan, site_of, dressed, facts, pods, queue
):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    made = plan(asked(), site_of(*nodes, **facts), priority="high")
    assert template(made)["spec"].get("priorityClassName") == pods
    (owner,) = bodies(made, "JobSet")
    assert owner["metadata"]["labels"].get("kueue.x-k8s.io/priority-class") == queue


def test_a_priority_that_is_not_there_is_refused_with_those_that_are(offers, site_of, dressed):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(2)]
    resolution = offers(asked(), site_of(*nodes, priority_classes=["low"]), priority="hihg")
    assert not resolution
    assert "no PriorityClass 'hihg' (there are: low)" in str(resolution)


def test_a_plan_from_a_site_that_lacks_what_its_offer_counted_on_says_so(
    catalog, offers, site_of, racks
):
    nodes = racks(r1=3)
    offer = offers(asked(2, "GB200:4"), site_of(*nodes, gang_apis=EVERY_API)).best
    with pytest.raises(SpecError, match="discover again"):
        make_plan(
            asked(2, "GB200:4"), offer, site_of(*nodes), catalog,
            run="", image=None, patch={}, grace_s=1,
        )  # fmt: skip


EVERY_WAY = {
    f"{cloud.name}-{row.name}": row
    for cloud in Catalog.shipped()
    for row in cloud.rows("kubernetes")
}


@pytest.mark.parametrize("name", EVERY_WAY)
def test_six_writes_are_enough_unless_three_of_four_things_come_together(name):
    """Claims, a ComputeDomain, no JobSet, code above 900 kB; and that with secrets."""
    row = EVERY_WAY[name]
    for jobset, code, large, secrets in itertools.product(
        ("v1alpha2", None), ((), ("files.tar.gz",)), (False, True), ((), ("T",))
    ):
        gang = Gang(
            name="g", namespace="n", num_nodes=2, image="i", script="", command=("", "x"), env=(),
            secrets=secrets, code=code, resources={}, selector={}, tolerations=(),
            nearness=Nearness(), way=row, volumes={}, ports=(), timeout_s=None, max_restarts=0,
            grace_s=1, restricted=False, jobset=jobset, queue=None, pod_patch={},
            group=None if jobset else "scheduling.k8s.io/v1alpha2",
            domain="v1beta1" if row.compute_domain else None,
        )  # fmt: skip
        kept, _ = within_writes(gang)
        carried = (CODE_WRITES if large else 1) if code else 0
        writes = 2 + sum(1 for _ in owned(kept)) + carried
        met = bool(row.claims) + row.compute_domain + (jobset is None) + (large and bool(code))
        assert writes <= 6 + max(0, met - 2), (name, jobset, code, large, secrets)
