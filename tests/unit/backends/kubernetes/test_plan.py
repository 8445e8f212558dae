import json

import pytest

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.net.tier import NetworkTier
from gpufabric.task import Task

IMAGE = "registry.test/train:1"


def _task(num_nodes=2, accelerators="H100:8", tier="best", **fields):
    resources = {"accelerators": accelerators, "network_tier": tier} if accelerators else {}
    return Task.from_dict(
        {"run": "train", "num_nodes": num_nodes, "resources": {**resources, "image": IMAGE},
         **fields}
    )  # fmt: skip


@pytest.fixture
def offers(catalog):
    return lambda task, site, image=None, patch=None: make_offers(
        task, site, catalog, image=image, patch=patch or {}
    )


@pytest.fixture
def plan(catalog, offers):
    def make(task, site, patch=None):
        resolution = offers(task, site, patch=patch)
        assert resolution.best is not None, str(resolution)
        return make_plan(
            task, resolution.best, site, catalog, run="", image=None, patch=patch or {}, grace_s=10
        )

    return make


def _pod(plan):
    owner = thaw(next(s for s in plan.steps if s.kind in {"Job", "JobSet"}).body)
    spec = owner["spec"]
    if owner["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]


def _two(dressed, profile, **words):
    return [dressed(profile, f"n{i}", **words) for i in (1, 2)]


@pytest.mark.parametrize(
    ("profile", "accelerators", "requests"),
    [
        ("eks-p5", "H100:8", {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}),
        ("eks-p5en", "H200:8", {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}),
        ("coreweave-h100", "H100:8", {"nvidia.com/gpu": "8", "rdma/ib": "1"}),
        ("nebius-h100", "H100:8", {"nvidia.com/gpu": "8"}),
        ("crusoe-h100", "H100:8", {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"}),
    ],
)
def test_a_pod_asks_for_exactly_the_nics_of_its_node(
    plan, site_of, dressed, *, profile, accelerators, requests
):
    others = [dressed("eks-p5", "other"), dressed("crusoe-h100", "another")]
    nodes = [n for n in others if n["metadata"]["labels"] != dressed(profile)["metadata"]["labels"]]
    made = plan(_task(accelerators=accelerators), site_of(*_two(dressed, profile), *nodes))
    resources = _pod(made)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == requests
    assert made.offer.tier is NetworkTier.BEST


def test_gke_gets_annotations_sidecar_and_mounts_of_its_row(plan, site_of, dressed):
    pod = _pod(plan(_task(), site_of(*_two(dressed, "gke-a3-mega"))))
    interfaces = json.loads(pod["metadata"]["annotations"]["networking.gke.io/interfaces"])
    assert len(interfaces) == 9
    (sidecar,) = pod["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "privileged" not in json.dumps(pod)
    mounted = {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["spec"]["volumes"]}


def test_nodes_without_their_fabric_break_the_promise_with_the_reason(offers, site_of, dressed):
    site = site_of(*_two(dressed, "eks-p5-no-efa"))
    assert not offers(_task(), site)
    (offer,) = offers(_task(tier="standard"), site)
    assert offer.tier is NetworkTier.STANDARD
    assert "vpc.amazonaws.com/efa" in " ".join(offer.warnings)


def test_a_gang_does_not_span_two_fabrics(offers, site_of, dressed):
    nodes = [dressed("nebius-h100", f"n{i}", cluster=f"c{i}") for i in (1, 2)]
    resolution = offers(_task(), site_of(*nodes))
    assert not resolution
    assert "1 can be had" in str(resolution)


@pytest.mark.parametrize("fields", [{"num_nodes": 1}, {"accelerators": None}])
def test_tasks_without_a_network_get_none_of_it(plan, site_of, dressed, fields):
    site = site_of(*_two(dressed, "eks-p5"), *_two(dressed, "bare"))
    made = plan(_task(**{"tier": "standard", **fields}), site)
    assert "efa" not in json.dumps(_pod(made)["spec"]["containers"][0]["resources"])
    assert not any(v.name.startswith("FI_") for v in made.env)


def test_the_number_of_writes_does_not_depend_on_the_number_of_nodes(plan, site_of, dressed):
    nodes = [dressed("eks-p5", f"n{i}") for i in range(1000)]
    task = {"workdir": "/src", "secrets": {"TOKEN": "x"}}
    small, large = (plan(_task(n, **task), site_of(*nodes)) for n in (2, 1000))
    writes = [s for s in large.steps if s.verb in {"create", "patch"}]
    assert len(writes) == len([s for s in small.steps if s.verb in {"create", "patch"}]) <= 6


@pytest.mark.parametrize(
    ("controllers", "kinds"),
    [
        (("jobset",), ["JobSet", "Secret", "JobSet"]),
        ((), ["Job", "Secret", "Service", "Job"]),
    ],
)
def test_the_controllers_that_are_there_do_the_work(plan, site_of, dressed, controllers, kinds):
    site = site_of(*_two(dressed, "eks-p5"), controllers=controllers)
    made = plan(_task(secrets={"TOKEN": "s3cr3t"}), site)
    assert [step.kind for step in made.steps] == kinds


def test_everything_is_owned_by_the_first_object(plan, site_of, dressed):
    site = site_of(*_two(dressed, "eks-p5"), controllers=())
    owner, *owned, _ = plan(_task(secrets={"TOKEN": "x"}), site).steps
    for step in owned:
        (reference,) = step.body["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["name"]) == (owner.kind, owner.name)


def test_a_secret_stands_in_no_text_of_the_pod(plan, site_of, dressed):
    made = plan(_task(secrets={"TOKEN": "s3cr3t"}), site_of(*_two(dressed, "eks-p5")))
    assert "s3cr3t" not in json.dumps(thaw([step.body for step in made.steps]))
    env = {one["name"]: one for one in _pod(made)["spec"]["containers"][0]["env"]}
    assert env["TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "TOKEN"


def test_restarts_without_jobset_are_refused(offers, site_of, dressed):
    site = site_of(*_two(dressed, "eks-p5"), controllers=())
    resolution = offers(_task(max_restarts=1), site)
    assert "JobSet" in str(resolution.rejections)
    assert not resolution


def test_a_task_without_an_image_is_refused_unless_the_backend_has_one(offers, site_of, dressed):
    site = site_of(*_two(dressed, "bare"))
    task = Task(run="true", num_nodes=2)
    assert "image" in str(offers(task, site).rejections[0])
    assert offers(task, site, image=IMAGE)


def test_a_taint_of_the_owner_keeps_pods_out_unless_patched(offers, site_of, dressed):
    mine = {"key": "team", "value": "red", "effect": "NoSchedule"}
    site = site_of(*[dressed("eks-p5", f"n{i}", taints=[mine]) for i in (1, 2)])
    assert "team=red:NoSchedule" in str(offers(_task(), site).rejections)
    patch = {"tolerations": [{"key": "team", "operator": "Exists"}]}
    assert offers(_task(), site, patch=patch)


def test_pod_security_that_forbids_the_network_is_told_before_launch(offers, site_of, dressed):
    site = site_of(*_two(dressed, "nebius-h100"), pod_security="restricted")
    resolution = offers(_task(), site)
    assert not resolution
    assert "IPC_LOCK" in str(resolution.rejections)


def test_a_restricted_namespace_gets_restricted_pods(plan, site_of, dressed):
    site = site_of(*_two(dressed, "eks-p5"), pod_security="restricted")
    spec = _pod(plan(_task(), site))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    security = spec["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False


def test_one_queue_of_the_namespace_is_used_and_not_bypassed(plan, site_of, dressed):
    made = plan(_task(), site_of(*_two(dressed, "eks-p5"), queues=["team"]))
    assert made.steps[0].body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert [step.verb for step in made.steps] == ["create"]


def test_a_quota_that_leaves_too_little_is_told_before_launch(offers, site_of, dressed):
    quota = {"name": "gpus", "hard": {"requests.nvidia.com/gpu": "16"},
             "used": {"requests.nvidia.com/gpu": "8"}}  # fmt: skip
    resolution = offers(_task(), site_of(*_two(dressed, "eks-p5"), quotas=[quota]))
    assert "leaves 8 requests.nvidia.com/gpu, 16 are needed" in str(resolution.rejections)
    assert not resolution


def test_the_users_patch_comes_last_and_is_told(plan, site_of, dressed):
    patch = {"priorityClassName": "high", "containers": [{"name": "job", "tty": True}]}
    made = plan(_task(), site_of(*_two(dressed, "eks-p5")), patch=patch)
    spec = _pod(made)["spec"]
    assert spec["priorityClassName"] == "high"
    assert spec["containers"][0]["tty"] is True
    assert spec["containers"][0]["image"] == IMAGE
    assert any("pod_patch" in word for word in made.warnings)


def test_dollars_reach_the_program_as_they_are(plan, site_of, dressed):
    made = plan(_task(envs={"A": "$(HOME) $$"}), site_of(*_two(dressed, "eks-p5")))
    env = {e["name"]: e.get("value") for e in _pod(made)["spec"]["containers"][0]["env"]}
    assert env["A"] == "$$(HOME) $$$$"
