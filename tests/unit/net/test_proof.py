"""What a job's own log proves or refutes of the promised network."""

import pytest

import gpufabric as gf
from gpufabric.net.proof import _LOST, prove
from gpufabric.net.reading import read
from gpufabric.net.rules import RULES
from gpufabric.testing import Behaviour, FakeBackend, FakeCloud, pool

NICS = 2
ONE_NODE = [
    "n0:11:21 [0] NCCL INFO NCCL version 2.27.3+cuda12.9",
    "n0:11:21 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB; OOB eth0:10.1.0.4<0>",
    "n0:11:21 [0] NCCL INFO Using network IB",
    "n0:11:21 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
    "n0:11:21 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 1 'mlx5_1'",
    "n0:11:21 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA",
    "n0:11:21 [0] NCCL INFO Channel 01/0 : 8[0] -> 15[7] [send] via NET/IB/1/GDRDMA",
]
GOOD = ONE_NODE + [
    line.replace("n0:11:21", "n1:31:41").replace("10.1.0.4", "10.1.0.5") for line in ONE_NODE
]
SOCKET = [
    "n0:11:21 [0] NCCL INFO NCCL version 2.27.3+cuda12.9",
    "n0:11:21 [0] NCCL INFO NET/IB : No device found.",
    "n0:11:21 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.0.4<0>",
    "n0:11:21 [0] NCCL INFO Using network Socket",
    "n0:11:21 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0",
]


def backend(network: str = "infiniband", behaviour: Behaviour | None = None) -> FakeBackend:
    cloud = FakeCloud([pool("H100:8", network=network, nics=NICS, gbps=400 * NICS)])
    if behaviour is not None:
        cloud.script(behaviour)
    return FakeBackend(cloud=cloud)


def task(tier: str = "best") -> gf.Task:
    return gf.Task(
        run="train",
        num_nodes=2,
        resources=gf.Resources(accelerators="H100:8", network_tier=tier),
    )


def offer(tier: str = "best", network: str = "infiniband") -> gf.Offer:
    with gf.Fabric(backend(network)) as fabric:
        found = fabric.offers(task(tier)).best
    assert found is not None
    return found


def test_gpudirect_on_every_nic_is_proven():
    proof = prove(read(GOOD), offer())
    assert proof.state == "proven", str(proof)
    assert proof.nics == ("mlx5_0", "mlx5_1")
    assert proof.inter_node_transport is not None


def test_sockets_where_infiniband_was_promised_are_refuted_with_what_to_do():
    proof = prove(read(SOCKET), offer())
    assert proof.state == "refuted"
    assert "Socket" in str(proof)
    assert proof.reasons


def test_gpudirect_off_is_refuted():
    off = [line.replace("Enabled", "Disabled").replace("/GDRDMA", "") for line in GOOD]
    assert prove(read(off), offer()).state == "refuted"


def test_fewer_nics_than_promised_refute_best():
    one = [line.replace(" [1]mlx5_1:1/IB", "") for line in GOOD if "mlx5_1'" not in line]
    assert prove(read(one), offer()).state == "refuted"


def connections(transport: str, count: int = 8) -> list[str]:
    """What ranks of both nodes print of their rings, each by the NIC of its number."""
    return [
        f"n{node}:11:21 [0] NCCL INFO Channel {i:02d}/0 : {i}[{i}] -> {i + 8}[{i}] [{way}]"
        f" via {transport.replace('*', str(i % NICS))}"
        for i in range(count)
        for node, way in ((0, "send"), (1, "receive"))
    ]


ABLE = [line for line in GOOD if "Channel" not in line]


def test_what_nics_could_do_is_no_proof_before_a_connection_shows_it():
    proof = prove(read(ABLE), offer())
    assert proof.state == "unknown"
    assert "no connection between nodes" in str(proof)


def test_one_node_does_not_prove_the_network_of_two():
    proof = prove(read(ONE_NODE), offer())
    assert (proof.state, proof.reasons) == (
        "unknown",
        ("1 of 2 nodes have told which network they use",),
    )


def test_one_node_by_sockets_refutes_what_all_others_show():
    other = "n1:31:41 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [send] via NET/Socket/0"
    proof = prove(read([*ABLE, *connections("NET/IB/*/GDRDMA"), other]), offer())
    assert proof.state == "refuted", str(proof)


def test_one_node_with_fewer_nics_than_the_others_refutes_best():
    fewer = [line.replace(" [1]mlx5_1:1/IB", "") if "n1:" in line else line for line in GOOD]
    proof = prove(read(fewer), offer())
    assert proof.state == "refuted"
    assert "1 of the 2 NICs" in str(proof)
    assert "n1" in str(proof)


def test_roce_where_infiniband_was_promised_is_refuted():
    roce = [line.replace(":1/IB", ":1/RoCE") for line in GOOD]
    assert prove(read(roce), offer()).state == "refuted"
    assert prove(read(roce), offer(network="roce")).state == "proven"


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("efa", "AWS Libfabric"),
        ("gpudirect-tcpxo", "FasTrak"),
        ("gpudirect-tcpx", "GPUDirectTCPX_v7"),
        ("roce", "gIB"),
        ("infiniband", "IBext_v10"),
    ],
)
def test_each_fabric_is_proven_by_its_own_network_and_by_no_other(network: str, name: str):
    own = [
        f"n{node}:11:21 [0] NCCL INFO {text}"
        for node in (0, 1)
        for text in ("NCCL version 2.27.3+cuda12.9", f"Using network {name}")
    ]
    lines = [*own, *connections(f"NET/{name}/*/GDRDMA")]
    assert prove(read(lines), offer(network=network)).state == "proven"
    other = "infiniband" if network not in {"roce", "infiniband"} else "efa"
    assert prove(read(lines), offer(network=other)).state == "refuted"


def test_sending_without_gpudirect_as_nccl_does_by_design_is_not_refuted():
    lines = [*ABLE, *connections("NET/IB/*/GDRDMA")]
    sends = [line.replace("/GDRDMA", "") if "[send]" in line else line for line in lines]
    assert prove(read(sends), offer()).state == "proven"


def test_tcpxo_that_does_not_say_gdrdma_is_unknown():
    own = [f"n{node}:11:21 [0] NCCL INFO Using network FasTrak" for node in (0, 1)]
    proof = prove(read([*own, *connections("NET/FasTrak/*")]), offer(network="gpudirect-tcpxo"))
    assert proof.state == "unknown"
    assert "GPUDirect" in str(proof.reasons)


def test_sockets_of_a_communicator_inside_one_node_refute_nothing():
    inside = [
        "n0:11:21 [0] NCCL INFO Using network Socket",
        "n0:11:21 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0",
        "n0:11:21 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    ]
    assert prove(read(inside), offer()).state == "unknown"


def test_nvlink_between_nodes_needs_no_gpudirect():
    lines = [*ABLE, *connections("P2P/MNNVL")]
    lines = [line.replace("Enabled", "Disabled") for line in lines]
    assert prove(read(lines), offer()).state != "refuted"


def test_the_log_of_another_gpu_proves_nothing():
    device = "#  Rank  0 Group  0 Pid   11 on         n0 device  0 [0000:1b:00] NVIDIA H200"
    proof = prove(read([device, *GOOD]), offer())
    assert proof.state == "unknown"
    assert "H200" in str(proof)


@pytest.mark.parametrize("text", ["", "epoch 1 loss 0.3\n", "NCCL version 2.27.3+cuda12.9\n"])
def test_a_log_that_does_not_tell_is_unknown_and_says_what_to_set(text):
    proof = prove(read(text), offer())
    assert proof.state == "unknown"
    assert "NCCL_DEBUG" in " ".join(proof.reasons)


def test_sockets_keep_the_standard_tier():
    assert prove(read(SOCKET), offer("standard", "ethernet")).state == "proven"


def test_every_finding_that_breaks_a_promise_is_a_rule():
    assert {rule.id for rule in RULES} >= _LOST


def handle(lines: list[str], **policy: object) -> tuple[gf.Fabric, gf.JobHandle]:
    made = backend(behaviour=Behaviour(lines=tuple(lines * 20), seconds=100.0))
    fabric = gf.Fabric(made, settings=gf.Settings(poll_s=0.01))
    return fabric, fabric.launch(task(), policy=gf.LaunchPolicy(**policy))


def test_a_refuted_promise_ends_the_job_early_when_proof_is_required():
    fabric, job = handle(SOCKET, require_proof=True)
    with fabric, job, pytest.raises(gf.JobFailedError, match="refuted by its own log") as caught:
        for _ in job.logs(follow=True):
            pass
    assert caught.value.tail


def test_an_attached_handle_asks_for_what_was_promised():
    fabric, job = handle(GOOD)
    with fabric, job:
        job.wait()
        assert job.network().state == "proven"
        attached = fabric.attach(job.ref)
        with pytest.raises(gf.SpecError, match="offer="):
            attached.network()
        assert job.plan is not None
        assert attached.network(offer=job.plan.offer).state == "proven"


def test_a_fallback_after_an_early_proof_is_still_seen():
    fabric, job = handle([*GOOD * 20, *SOCKET], require_proof=True)
    with fabric, job, pytest.raises(gf.JobFailedError, match="refuted by its own log"):
        for _ in job.logs(follow=True):
            pass
