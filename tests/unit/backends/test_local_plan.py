"""What the local backend offers and plans, and which GPUs it finds."""

from pathlib import Path

import attrs
import pytest

from gpufabric._frozen import FrozenDict, freeze
from gpufabric.backends._local_gpus import find_gpus
from gpufabric.backends.base import Site
from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.errors import CapacityError
from gpufabric.job import JobState
from gpufabric.net.interconnect import FabricKind
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import LaunchPlan
from gpufabric.resources import Resources
from gpufabric.task import Task

DATA = Path(__file__).parents[2] / "data" / "topology"
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path / "jobs", Settings(stop_grace_s=0.5))


def site_with(local: Local, *names: str, nvlink: bool = True, memory: float = 81559) -> Site:
    gpus = [
        {"index": i, "uuid": f"GPU-{i}", "name": name, "memory_mib": memory, "free": True}
        for i, name in enumerate(names)
    ]
    site = local.discover()
    facts = FrozenDict({**site.facts, "gpus": freeze(gpus), "nvlink": nvlink})
    return attrs.evolve(site, facts=facts)


def task(*, num_nodes: int = 1, **resources: object) -> Task:
    return Task(run="true", num_nodes=num_nodes, resources=Resources(**resources))


def reasons(local: Local, made: Task, site: Site | None = None) -> list[str]:
    found = local.offers(made, site or local.discover())
    assert not found.offers
    return [rejection.reason for rejection in found.rejections]


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"image": "x:1"}, "image: local nodes run in no container"),
        ({"use_spot": True}, "use_spot: there is no spot capacity on this machine"),
        ({"capacity": "cr-1"}, "capacity: there are no reservations on this machine"),
        ({"instance_type": "p5.48xlarge"}, "instance_type: this machine is localhost"),
        ({"places": ["aws/us-east-1"]}, "not among the places allowed (aws/us-east-1)"),
        ({"cpus": "100000+"}, "cpus: 1 x 100000 asked, this machine has"),
        ({"memory_gib": "1000000+"}, "memory_gib: 1 x 1e+06 asked, this machine has"),
        ({"disk_gib": 1e9}, "disk_gib: 1 x 1e+09 asked, this machine has"),
        ({"network_tier": "best"}, "network_tier best is about the GPUs' network"),
        ({"network_tier": "gpudirect"}, "network_tier gpudirect is about the GPUs' network"),
        ({"min_gbps_per_gpu": 1}, "min_gbps_per_gpu: no speed is published"),
    ],
)
def test_what_this_machine_cannot_keep_is_rejected_with_its_reason(local, resources, reason):
    (found,) = reasons(local, task(**resources))
    assert found.startswith(reason)


def test_every_fault_of_an_alternative_is_told(local):
    found = reasons(local, task(image="x", use_spot=True, accelerators="H100:8"), site_with(local))
    assert len(found) == 3
    assert "1 x H100:8 asked, this machine has no NVIDIA GPU" in found


def test_more_nodes_than_one_supervisor_serves_are_rejected(local):
    assert reasons(local, task(num_nodes=257)) == ["257 nodes: one machine runs 256 at most"]


def test_alternatives_are_tried_in_order(local):
    made = Task(
        run="true",
        resources=Resources(
            any_of=[{"accelerators": "B200:8"}, {"cpus": 1}, {"accelerators": "A100"}]
        ),
    )
    found = local.offers(made, site_with(local, H100))
    assert [offer.gpus_per_node for offer in found.offers] == [0]
    assert len(found.rejections) == 2


def test_a_gang_without_accelerators_is_on_loopback_at_the_standard_tier(local):
    (offer,) = local.offers(task(num_nodes=2), local.discover()).offers
    assert (offer.interconnect.kind, offer.tier) == (FabricKind.LOOPBACK, NetworkTier.STANDARD)
    assert offer.usd_hour == 0.0


def test_gpus_are_divided_among_the_nodes(local):
    site = site_with(local, *[H100] * 4)
    made = task(accelerators="H100:2", num_nodes=2)
    (offer,) = local.offers(made, site).offers
    plan = local.plan(made, offer, site)
    (gang,) = [step for step in plan.steps if step.kind == "gang"]
    assert gang.body["gpus"] == ((0, 1), (2, 3))
    assert gang.body["env_by_rank"]["CUDA_VISIBLE_DEVICES"] == ("0,1", "2,3")
    values = {var.name: var.value for var in plan.env}
    assert values["CUDA_VISIBLE_DEVICES"] == "0,1 | 2,3"
    assert values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert values["PET_NPROC_PER_NODE"] == values["GPUFABRIC_GPUS_PER_NODE"] == "2"
    assert "node 1: 2, 3" in str(plan)


def test_each_node_sees_its_own_gpus(local):
    site = site_with(local, *[H100] * 4)
    made = Task(run="echo $CUDA_VISIBLE_DEVICES", num_nodes=2, resources={"accelerators": "H100:2"})
    ref = local.apply(local.plan(made, local.offers(made, site).offers[0], site))
    seen = {line.node_rank: line.text for line in local.logs(ref, follow=True)}
    assert seen == {0: "0,1", 1: "2,3"}
    local.teardown(ref)


def test_a_node_that_asked_for_no_gpu_sees_none(local):
    site = site_with(local, H100)
    made = task()
    plan = local.plan(made, local.offers(made, site).offers[0], site)
    assert {var.name: var.value for var in plan.env}["CUDA_VISIBLE_DEVICES"] == ""
    bare = local.discover()
    if not bare.facts["gpus"]:
        plan = local.plan(made, local.offers(made, bare).offers[0], bare)
        assert "CUDA_VISIBLE_DEVICES" not in {var.name for var in plan.env}


def test_gpus_that_another_job_uses_are_not_given_twice(local):
    site = site_with(local, H100, H100)
    made = Task(run="sleep 300", resources={"accelerators": "H100:2"})
    offer = local.offers(made, site).offers[0]
    first = local.apply(local.plan(made, offer, site, run="a"))
    with pytest.raises(CapacityError, match="GPUs 0, 1 are used by other local jobs") as raised:
        local.apply(local.plan(made, offer, site, run="b"))
    assert (raised.value.wanted, raised.value.got) == (2, 0)
    local.cancel(first)
    second = local.apply(local.plan(made, offer, site, run="b"))
    assert local.status(second).state is JobState.RUNNING
    local.teardown(first)
    local.teardown(second)


def test_gpus_in_use_are_a_rejection_that_says_so(local):
    site = site_with(local, H100)
    gpus = freeze([{**site.facts["gpus"][0], "free": False}])
    site = attrs.evolve(site, facts=FrozenDict({**site.facts, "gpus": gpus}))
    (found,) = reasons(local, task(accelerators="H100"), site)
    assert found == f"1 x H100:1 asked, 0 free of 1 x {H100}: other local jobs run"


@pytest.mark.parametrize(
    ("asked", "name", "memory", "fits"),
    [
        ("H100", H100, 81559, True),
        ("h100", "NVIDIA H100 PCIe", 81559, True),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", 81920, True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", 40960, False),
        ("L4", "NVIDIA L40S", 46068, False),
        ("H200", "NVIDIA GH200 480GB", 97871, False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", 24564, True),
        ("80GB+", H100, 81559, True),
        ("141GB", "NVIDIA H200", 143771, True),
        ("24GB", "NVIDIA L4", 23034, True),
        ("40GB", H100, 81559, False),
        ("96GB+", H100, 81559, False),
        ("amd:80GB", H100, 81559, False),
    ],
)
def test_a_gpu_is_what_was_asked_for_or_not(local, asked, name, memory, fits):
    made = task(accelerators=asked)
    found = local.offers(made, site_with(local, name, memory=memory))
    assert bool(found.offers) is fits


@pytest.mark.parametrize(
    ("nodes", "each", "nvlink", "tier", "kind"),
    [
        (1, 8, True, NetworkTier.BEST, FabricKind.NVLINK),
        (1, 1, False, NetworkTier.BEST, FabricKind.LOOPBACK),
        (1, 8, False, NetworkTier.STANDARD, FabricKind.LOOPBACK),
        (2, 4, True, NetworkTier.STANDARD, FabricKind.LOOPBACK),
    ],
)
def test_the_tier_is_what_is_true(  # noqa: PLR0917  # a row of the table
    local, nodes, each, nvlink, tier, kind
):
    site = site_with(local, *[H100] * 8, nvlink=nvlink)
    (offer,) = local.offers(task(accelerators=f"H100:{each}", num_nodes=nodes), site).offers
    assert (offer.tier, offer.interconnect.kind) == (tier, kind)
    for asked in NetworkTier:
        made = task(accelerators=f"H100:{each}", num_nodes=nodes, network_tier=asked)
        assert bool(local.offers(made, site).offers) is (asked <= tier)


def test_a_plan_is_a_function_of_its_inputs_and_survives_as_text(local):
    site = local.discover()
    made = Task(run="echo", num_nodes=2, setup="true", files={"a": "b"}, timeout_s=3, ports=[8080])
    offer = local.offers(made, site).offers[0]
    plan = local.plan(made, offer, site)
    assert plan == local.plan(made, offer, site)
    assert LaunchPlan.from_dict(plan.to_dict()) == plan
    assert "port 8080: all nodes have one address" in str(plan)


def test_a_site_without_pools_is_a_rejection(local):
    site = Site(backend="local", unseen=("the local backend runs on Linux, this is plan9",))
    assert reasons(local, task(), site) == ["the local backend runs on Linux, this is plan9"]


# --- which GPUs there are


def smi(tmp_path: Path, *, query: str, topology: str = "", code: int = 0) -> dict[str, str]:
    """An nvidia-smi that says what it is told to. Its command line is the real one's."""
    (tmp_path / "query").write_text(query)
    (tmp_path / "topology").write_text(topology)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f"cd {tmp_path}\n"
        'case "$*" in\n'
        '  "--query-gpu=index,uuid,name,memory.total,mig.mode.current'
        f' --format=csv,noheader,nounits") cat query; exit {code};;\n'
        '  "topo -m") cat topology;;\n'
        "  *) echo unknown arguments: $* >&2; exit 2;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def rows(count: int, mig: str = "Disabled") -> str:
    return "".join(f"{i}, GPU-{i}abc-def, {H100}, 81559, {mig}\n" for i in range(count))


def test_gpus_are_read_from_nvidia_smi_with_their_nvlink(tmp_path):
    topology = (DATA / "smi_h100_8nic.txt").read_text()
    found = find_gpus(environ=smi(tmp_path, query=rows(8), topology=topology))
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert (found.gpus[0].name, found.gpus[0].memory_mib) == (H100, 81559)
    assert found.nvlink
    assert found.unseen == ()


def test_gpus_without_nvlink_between_all_of_them_have_none(tmp_path):
    topology = (DATA / "smi_h100_8nic.txt").read_text().replace("NV18", "SYS", 1)
    assert find_gpus(environ=smi(tmp_path, query=rows(8), topology=topology)).nvlink is False
    assert find_gpus(environ=smi(tmp_path, query=rows(8), topology="garbage")).nvlink is False


def test_the_callers_choice_of_gpus_is_respected(tmp_path):
    environ = smi(tmp_path, query=rows(4))
    for chosen, kept in (("1,3", [1, 3]), ("GPU-2abc", [2]), ("", []), ("-1", [])):
        found = find_gpus(environ={**environ, "CUDA_VISIBLE_DEVICES": chosen})
        assert [gpu.index for gpu in found.gpus] == kept
        assert "hidden by the caller's CUDA_VISIBLE_DEVICES" in found.unseen[0]


def test_gpus_divided_by_mig_are_left_out_and_told(tmp_path):
    found = find_gpus(environ=smi(tmp_path, query=rows(1, "Enabled") + rows(1, "[N/A]")))
    assert len(found.gpus) == 1
    assert found.unseen == ("GPU 0 is divided by MIG; its parts are not offered",)


def test_a_driver_that_fails_is_told(tmp_path):
    failure = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    found = find_gpus(environ=smi(tmp_path, query=failure, code=9))
    assert found.gpus == ()
    assert found.unseen == (f"nvidia-smi exited with 9: {failure}",)


def test_lines_that_are_not_understood_are_told(tmp_path):
    found = find_gpus(environ=smi(tmp_path, query="No devices were found\n"))
    assert found.unseen == ("a line of nvidia-smi that is not understood: No devices were found",)


def test_without_nvidia_smi_the_drivers_files_are_read(tmp_path):
    for bus in ("0000:1b:00.0", "0000:0a:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(
            f"Model: \t\t {H100}\nIRQ:   \t\t 0\nGPU UUID: \t GPU-{bus[5:7]}\n"
        )
    found = find_gpus(environ={"PATH": "/nowhere"}, proc=tmp_path)
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in found.gpus] == [
        (0, "GPU-0a", H100),
        (1, "GPU-1b", H100),
    ]
    assert found.unseen
    assert find_gpus(environ={"PATH": "/nowhere"}, proc=tmp_path / "none").gpus == ()
