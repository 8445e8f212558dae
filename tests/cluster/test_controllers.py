"""Gangs by the cluster's own schedulers, queues and domains, on a real server."""

import json
import threading

import pytest
from attrs import evolve
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.backends.kubernetes._gang import Gang, Nearness
from gpufabric.backends.kubernetes._manifest import owned, owner
from gpufabric.backends.kubernetes._objects import path_of
from gpufabric.backends.kubernetes._role import NEEDED, WISHED
from gpufabric.catalog import Catalog
from gpufabric.errors import BackendError, CapacityError
from gpufabric.job import JobState
from gpufabric.task import Task

pytestmark = pytest.mark.cluster

CLIQUE = "nvidia.com/gpu.clique"
GPUS = {"accelerators": "H100:8", "network_tier": "best"}
ARCH = ("kubernetes.io/arch=amd64", "beta.kubernetes.io/arch=amd64")
RACK = {"accelerators": "GB200:4", "network_tier": "best"}


#: The row of the catalog without its demand for arm64: the kubelets of this machine say amd64.
ROW = """
[cloud]
name = "aws"
title = "aws"
as_of = 2026-11-30

[[kubernetes]]
name = "eks-p6e-gb200"
platform = "eks"
applies_to = ["p6e-gb200.36xlarge"]
node_selector = { "node.kubernetes.io/instance-type" = "{type}" }
requests = { "nvidia.com/gpu" = "4", "vpc.amazonaws.com/efa" = "4" }
tolerations = [{ key = "nvidia.com/gpu" }]
compute_domain = true
sources = ["https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html"]
checked = 2026-11-30
"""


def dress_racks(own_cluster, *racks):
    """Dresses node-1, node-2, ... as trays of these racks, of the arch that their kubelets say."""
    for number, rack in enumerate(racks, 1):
        own_cluster.dress("eks-p6e-gb200", f"node-{number}", rack=rack)
        own_cluster.kubectl("label", "node", f"node-{number}", "--overwrite", *ARCH)


@pytest.fixture
def rack_backend(make, tmp_path):
    """Makes backends that take the dressed nodes of this machine for trays of a rack."""
    (tmp_path / "rows.toml").write_text(ROW)
    rows = Catalog.shipped().with_overlays(tmp_path / "rows.toml")
    return lambda **fields: make(catalog=rows, **fields)


def listed(backend, path):
    _, namespace = backend._where()
    return list(backend._api.items(path.replace("*", f"namespaces/{namespace}")))


def pods_of(backend):
    return listed(backend, "/api/v1/*/pods")


def groups_of(backend):
    return listed(backend, "/apis/scheduling.k8s.io/v1alpha2/*/podgroups")


def lines_of(backend, ref):
    lines = [line for line in backend.logs(ref, follow=True) if line.stream != "event"]
    return {rank: [x.text for x in lines if x.node_rank == rank] for rank in (0, 1)}


def until_gone(list_them):
    """The collector removes what a job owned; of a kind just defined it learns within 30 s."""
    wait_until("the job's objects are collected", lambda: not list_them(), timeout_s=70)


def crd(group, kind, version):
    """A definition that takes any object of a kind, to see that ours are sent and collected."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version, "served": True, "storage": True,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": True,
                    }},
                }
            ],
        },
    }  # fmt: skip


@pytest.fixture
def defined(own_cluster):
    """Defines kinds for the time of a test."""
    made = []

    def define(group, kind, version):
        body = crd(group, kind, version)
        own_cluster.api.create(body)
        made.append(body)
        path = f"/apis/{group}/{version}"

        def served():
            listed = own_cluster.api.get(path)
            return listed is not None and listed["resources"]

        wait_until(f"{kind} is served", served, timeout_s=20)

    yield define
    for body in made:
        own_cluster.api.delete(body)


# ---- the scheduler's own gangs


def test_the_schedulers_own_gang_runs_and_its_group_goes_with_the_job(backend, own_cluster):
    own_cluster.dress("eks-p5")
    plan = plan_of(backend, "echo up", resources=GPUS, without=("jobset",))
    assert "create PodGroup" in [f"{step.verb} {step.kind}" for step in plan.steps]
    ref = backend.apply(plan)
    (group,) = groups_of(backend)
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods_of(backend)} == {
        group["metadata"]["name"]
    }
    assert lines_of(backend, ref) == {0: ["up"], 1: ["up"]}
    backend.teardown(ref)
    until_gone(lambda: groups_of(backend))


def test_of_a_gang_that_only_half_fits_the_scheduler_places_nothing(backend, own_cluster):
    own_cluster.dress("eks-p5")
    wide = plan_of(backend, "sleep infinity", resources=GPUS, without=("jobset",))
    one = plan_of(
        backend, "sleep infinity", num_nodes=1, name="first", resources={"accelerators": "H100:8"}
    )
    taken = backend.apply(one)
    with pytest.raises(CapacityError) as caught:
        backend.apply(evolve(wide, gang_timeout_s=8.0))
    assert (caught.value.got, caught.value.wanted, caught.value.leftovers) == (0, 2, ())
    assert "Insufficient" in str(caught.value) or "gang" in str(caught.value).lower()
    backend.teardown(taken)
    until_gone(lambda: groups_of(backend) + pods_of(backend))


def test_who_may_not_create_pod_groups_gets_gangs_without(make, limited_user):
    rules = [
        {"apiGroups": [group], "resources": [name], "verbs": list(verbs)}
        for group, name, verbs in (*NEEDED, *WISHED)
        if group != "scheduling.k8s.io"
    ]
    backend = make(kubeconfig=str(limited_user(*rules)))
    plan = plan_of(backend, "echo hi", without=("jobset",))
    assert "PodGroup" not in [step.kind for step in plan.steps]
    assert "podgroups.scheduling.k8s.io: not allowed" in " ".join(backend.discover().unseen)
    ref = backend.apply(plan)
    assert lines_of(backend, ref) == {0: ["hi"], 1: ["hi"]}
    backend.teardown(ref)


# ---- Kueue's topologies


@pytest.fixture
def topology_queue(own_cluster, namespace):
    """A queue whose flavor knows the racks, with room for two gangs of two."""
    name = namespace
    kueue = "kueue.x-k8s.io/v1beta2"
    level = [{"nodeLabel": CLIQUE}, {"nodeLabel": "kubernetes.io/hostname"}]
    quota = [
        {"name": resource, "nominalQuota": amount}
        for resource, amount in (
            ("cpu", "400"), ("memory", "4Ti"), ("nvidia.com/gpu", "16"),
            ("vpc.amazonaws.com/efa", "16"),
        )
    ]  # fmt: skip
    made = [
        {"apiVersion": kueue, "kind": "Topology", "metadata": {"name": name},
         "spec": {"levels": level}},
        {"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": name},
         "spec": {
             "nodeLabels": {"node.kubernetes.io/instance-type": "p6e-gb200.36xlarge"},
             "topologyName": name,
             "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
         }},
        {"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": name},
         "spec": {
             "namespaceSelector": {},
             "resourceGroups": [{
                 "coveredResources": [one["name"] for one in quota],
                 "flavors": [{"name": name, "resources": quota}],
             }],
         }},
        {"apiVersion": kueue, "kind": "LocalQueue",
         "metadata": {"name": "team", "namespace": namespace}, "spec": {"clusterQueue": name}},
        {"apiVersion": kueue, "kind": "WorkloadPriorityClass", "metadata": {"name": name},
         "value": 7, "description": "of a test"},
    ]  # fmt: skip
    for one in made:
        own_cluster.api.create(one)
    yield name
    for one in reversed(made):
        own_cluster.api.delete(one)


def _channel(backend, name, device_class):
    """What the DRA driver would make: a template that asks for nothing of ours."""
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": backend._where()[1]},
        "spec": {"spec": {"devices": {"requests": [
            {"name": "channel", "exactly": {"deviceClassName": device_class}}
        ]}}},
    }  # fmt: skip


@pytest.mark.parametrize("racks", [("r1", "r1"), ("r1", "r2")], ids=["one rack", "two racks"])
def test_kueue_admits_a_gang_only_where_its_fabric_ends(
    rack_backend, own_cluster, defined, topology_queue, racks
):
    defined("resource.nvidia.com", "ComputeDomain", "v1beta1")
    dress_racks(own_cluster, *racks)
    backend = rack_backend(priority=topology_queue)
    plan = plan_of(backend, "sleep infinity", resources=RACK)
    assert plan.steps[0].body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    errors = []

    def launch():
        try:
            backend.apply(evolve(plan, gang_timeout_s=12.0))
        except BackendError as exc:
            errors.append(exc)

    thread = threading.Thread(target=launch)
    thread.start()

    def workload():
        return next(iter(listed(backend, "/apis/kueue.x-k8s.io/v1beta2/*/workloads")), None)

    def conditions():
        found = (workload() or {}).get("status", {}).get("conditions", [])
        return {one["type"]: one for one in found}

    wait_until(
        "Kueue has spoken",
        lambda: "QuotaReserved" in conditions(),
        timeout_s=10,
    )
    there = conditions()["QuotaReserved"]
    load = workload()
    domains = listed(backend, "/apis/resource.nvidia.com/v1beta1/*/computedomains")
    thread.join()
    assert load["spec"]["priority"] == 7
    topology = load["spec"]["podSets"][0]["topologyRequest"]
    assert topology["required"] == CLIQUE
    assert domains[0]["spec"]["numNodes"] == 2
    assert (there["status"] == "True") == (racks == ("r1", "r1")), there
    assert len(errors) == 1  # no driver makes the channels here
    until_gone(lambda: listed(backend, "/apis/resource.nvidia.com/v1beta1/*/computedomains"))
    assert list(backend.jobs()) == []


# ---- racks without a queue


def test_a_gang_goes_where_its_rack_has_room_and_its_domain_is_collected(
    rack_backend, own_cluster, defined
):
    defined("resource.nvidia.com", "ComputeDomain", "v1beta1")
    backend = rack_backend()
    dress_racks(own_cluster, "r1", "r1")
    plan = plan_of(backend, "sleep infinity", resources=RACK)
    errors = []

    def launch():
        try:
            backend.apply(evolve(plan, gang_timeout_s=6.0))
        except BackendError as exc:
            errors.append(str(exc))

    thread = threading.Thread(target=launch)
    thread.start()
    path = "/apis/resource.nvidia.com/v1beta1/*/computedomains"
    wait_until("the domain is there", lambda: listed(backend, path), timeout_s=10)
    wait_until("the pods are there", lambda: len(pods_of(backend)) == 2, timeout_s=10)
    (domain,) = listed(backend, path)
    pods = pods_of(backend)
    thread.join()
    assert domain["spec"]["numNodes"] == 2
    claims = {c["resourceClaimTemplateName"] for p in pods for c in p["spec"]["resourceClaims"]}
    assert claims == {domain["spec"]["channel"]["resourceClaimTemplate"]["name"]}
    assert errors
    until_gone(lambda: listed(backend, path) + pods_of(backend))


def test_the_first_pod_of_a_gang_that_must_be_together_waits_for_no_other(
    rack_backend, own_cluster, defined
):
    defined("resource.nvidia.com", "ComputeDomain", "v1beta1")
    dress_racks(own_cluster, "r1", "r1")
    unclaimed = {"name": "job", "resources": {"claims": None}}  # no driver gives channels here
    backend = rack_backend(pod_patch={"resourceClaims": None, "containers": [unclaimed]})
    plan = plan_of(backend, "echo up", resources=RACK)
    assert "together" in [item.name for item in plan.network if item.kind == "gang"]
    ref = backend.apply(plan)
    affinity = pods_of(backend)[0]["spec"]["affinity"]
    rule = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["r1.0"]
    assert lines_of(backend, ref) == {0: ["up"], 1: ["up"]}
    backend.teardown(ref)


def test_racks_of_which_none_has_room_are_no_offer(rack_backend, own_cluster, defined):
    backend = rack_backend()
    defined("resource.nvidia.com", "ComputeDomain", "v1beta1")
    dress_racks(own_cluster, "r1", "r2")
    task = Task.from_dict({"run": "x", "num_nodes": 2, "resources": RACK})
    resolution = backend.offers(task, backend.discover())
    assert not resolution
    assert f"the fullest NVLink domain ({CLIQUE}) has 1 of them free" in str(resolution)


# ---- Volcano


def test_a_gang_of_a_scheduler_that_does_not_run_is_rolled_back_and_the_scheduler_is_named(
    make, own_cluster, defined
):
    defined("scheduling.volcano.sh", "PodGroup", "v1beta1")
    backend = make(scheduler="volcano")
    plan = plan_of(backend, "echo hi")
    assert "create PodGroup" in [f"{step.verb} {step.kind}" for step in plan.steps]
    with pytest.raises(CapacityError, match="volcano"):
        backend.apply(evolve(plan, gang_timeout_s=3.0))
    until_gone(lambda: listed(backend, "/apis/scheduling.volcano.sh/v1beta1/*/podgroups"))
    assert pods_of(backend) == []


# ---- priority, text, least privilege


def test_pods_have_the_priority_that_the_backend_was_given(make, own_cluster, namespace):
    body = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": namespace}, "value": 77,
    }  # fmt: skip
    own_cluster.api.create(body)
    try:
        backend = make(priority=namespace)
        ref = backend.apply(plan_of(backend, "sleep infinity"))
        assert {pod["spec"]["priority"] for pod in pods_of(backend)} == {77}
        backend.teardown(ref)
    finally:
        own_cluster.api.delete(body)


HARD = {"A": "$(HOME) $$ ${A} $HOME `x` \"y\" 'z' $$(B)", "B": "two\nlines\t", "C": ""}


def test_values_reach_the_program_as_they_were_written(backend):
    run = ["python3", "-c", "import os, json; print(json.dumps([os.environ[k] for k in 'ABC']))"]
    ref = backend.apply(plan_of(backend, run, envs=HARD))
    seen = lines_of(backend, ref)
    assert [json.loads(seen[rank][0]) for rank in (0, 1)] == [list(HARD.values())] * 2
    backend.teardown(ref)


def test_a_namespace_that_enforces_restricted_takes_the_pods(backend, cluster, namespace):
    cluster.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    plan = plan_of(backend, "id -u", secrets={"T": "x"}, files={"a": "b"})
    assert "runs as user 1000" in " ".join(plan.warnings)
    ref = backend.apply(plan)
    assert lines_of(backend, ref) == {0: ["1000"], 1: ["1000"]}
    wait_until("it has ended", lambda: backend.status(ref).state.ended, timeout_s=30)
    assert backend.status(ref).state is JobState.SUCCEEDED
    backend.teardown(ref)


# ---- every platform's objects, as the server takes them


def _plain(value):
    """What stands in a plan for what is put in when it is sent."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"uid_of"}:
        return "00000000-0000-0000-0000-000000000000"
    if set(value) == {"packed"}:
        return "gpufabric-code-0"
    if set(value) == {"secret"}:
        return "eA=="
    return {name: _plain(one) for name, one in value.items()}


def _taken(backend, gang):
    """Asks the server to take a gang's objects, making none, and to refuse unknown fields."""
    for body in (owner(gang), *owned(gang)):
        if body["kind"] == "ComputeDomain":  # no definition of it is here
            continue
        path = path_of(body["apiVersion"], body["kind"], gang.namespace)
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        made = backend._api.request("POST", path, query=query, body=_plain(body))
        assert made["metadata"]["name"] == body["metadata"]["name"]


EVERY_WAY = {
    f"{cloud.name}-{row.name}": row
    for cloud in Catalog.shipped()
    for row in cloud.rows("kubernetes")
}


@pytest.mark.parametrize("jobset", ["v1alpha2", None], ids=["jobset", "indexed-job"])
def test_the_server_takes_the_objects_of_every_platform(backend, namespace, jobset):
    for name, row in EVERY_WAY.items():
        requests = {key: text.replace("{nics}", "8") for key, text in row.requests.items()}
        gang = Gang(
            name="g", namespace=namespace, num_nodes=2, image="i", script="true",
            command=("", "x"), env=(("A", "$(B)"),), secrets=("T",), code=("files.tar.gz",),
            resources={"cpu": "1", **requests}, selector={"a": "b"},
            tolerations=({"key": "k", "operator": "Exists"},),
            nearness=Nearness(
                apart=True, together=CLIQUE, among=("r1", "r2"), near="rack",
                annotations={"kueue.x-k8s.io/podset-required-topology": CLIQUE},
            ),
            way=row, volumes={"/data": "claim"}, ports=(80,), timeout_s=60, max_restarts=0,
            grace_s=1, restricted=False, jobset=jobset, queue=None, pod_patch={},
            group=None if jobset else "scheduling.k8s.io/v1alpha2",
            domain="v1beta1" if row.compute_domain else None,
        )  # fmt: skip
        try:
            _taken(backend, gang)
        except BackendError as exc:
            pytest.fail(f"{name}: {exc}")
