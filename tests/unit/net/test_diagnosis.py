"""Diagnoses as a whole: health, causes before consequences, offers, display."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufabric.errors import CatalogError
from gpufabric.net.diagnosis import Health, Severity, diagnose
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.nics import Nic, NicLayout
from gpufabric.net.promise import Promise
from gpufabric.net.reading import read
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import Offer
from gpufabric.resources import Accelerator, Resources

_DATA = Path(__file__).parents[2] / "data"


def _warn(rank: int, text: str) -> str:
    return f"n{rank}:310:{400 + rank} [0] transport/net_ib.cc:731 NCCL WARN {text}"


def test_thirty_timeouts_behind_one_dead_port_are_one_finding():
    lines = ["[  881.201133] mlx5_core 0000:5d:00.0 mlx5_4: Port: 1 Link DOWN"]
    lines += [
        _warn(
            n,
            f"NET/IB : Got completion from peer 10.0.0.{n}<40000> with status=12 opcode=1 len=0"
            " vendor err 129 (Send)",
        )
        for n in range(1, 31)
    ]
    lines += [_warn(n, f"socketProgress: Connection closed by remote peer n9<{n}>") for n in (1, 2)]
    lines += [
        f"[rank{n}]:[E ProcessGroupNCCL.cpp:607] [Rank {n}] Watchdog caught collective operation"
        f" timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"
        " ran for 600060 milliseconds before timing out."
        for n in range(1, 31)
    ]
    diagnosis = diagnose(read("\n".join(lines) + "\n"))
    assert diagnosis.health is Health.SICK
    assert [f.code for f in diagnosis.problems] == ["port_event"]


def test_an_error_that_no_rule_knows_is_told_and_not_called_healthy():
    text = _warn(1, "Call to ibv_query_device failed with error Invalid argument errno 22") + "\n"
    diagnosis = diagnose(read(text))
    assert diagnosis.health is Health.SICK
    assert diagnosis.codes == ("inconclusive",)
    assert diagnosis.findings[0].evidence[0].lineno == 1


@pytest.mark.parametrize("text", ["", "hello\n", "\x00\x01\x02", "\ufeff"])
def test_nothing_is_claimed_from_a_text_of_no_known_kind(text: str):
    diagnosis = diagnose(read(text))
    assert diagnosis.health is Health.INCONCLUSIVE
    assert diagnosis.codes == ("inconclusive",)
    assert "NCCL_DEBUG=INFO" in diagnosis.findings[0].remedy


def test_a_finding_is_a_value_that_survives_pickling():
    diagnosis = diagnose(read(_DATA / "devices" / "ibstat_one_port_down.txt"))
    assert pickle.loads(pickle.dumps(diagnosis)) == diagnosis  # noqa: S301 - our own bytes
    assert hash(diagnosis.findings[0])


def test_a_diagnosis_prints_what_to_do_and_shows_as_a_table():
    diagnosis = diagnose(read(_DATA / "devices" / "ibstat_one_port_down.txt"))
    assert "mlxlink" in str(diagnosis)
    assert "<table" in diagnosis._repr_html_()


def test_the_report_carries_its_own_diagnosis_in_its_json():
    out = read(_DATA / "devices" / "ibstat_one_port_down.txt").to_dict()
    assert out["health"] == "sick"
    findings = out["findings"]
    assert isinstance(findings, list)
    assert findings[0]["code"] == "port_down"
    assert findings[0]["severity"] == "critical"
    assert findings[0]["evidence"][0]["lineno"] > 0
    assert findings[0]["source"].startswith("https://")


def test_the_worst_finding_comes_first():
    text = (_DATA / "devices" / "host_facts.txt").read_text()
    severities = [f.severity for f in diagnose(read(text)).findings]
    order = list(Severity)
    assert severities == sorted(severities, key=order.index)


def _offer(kind: FabricKind, *, nics: int, gpudirect: bool) -> Offer:
    return Offer(
        backend="aws",
        place=Place(backend="aws", region="us-east-1"),
        instance_type="x9.huge",
        resources=Resources(accelerators="H100:8"),
        num_nodes=2,
        gpus_per_node=8,
        accelerator=Accelerator.parse("H100:8"),
        interconnect=Interconnect(
            name="f", kind=kind, place=Place(backend="aws", region="us-east-1")
        ),
        nics=NicLayout(
            nics=tuple(Nic(index=n, model="m", gbps=400, gpudirect=gpudirect) for n in range(nics))
        ),
        tier=NetworkTier.BEST,
    )


def _log(*lines: str) -> str:
    layout = "comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
    return "\n".join(f"n1:310:327 [0] NCCL INFO {line}" for line in (*lines, layout)) + "\n"


def test_an_offer_of_plain_tcp_does_not_call_sockets_a_fault():
    text = _log("Using network Socket", "Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0")
    tcp = _offer(FabricKind.ETHERNET, nics=0, gpudirect=False)
    assert diagnose(read(text), offer=tcp).health is Health.HEALTHY
    assert "socket_fallback" in diagnose(read(text)).codes


def test_an_offer_knows_how_many_nics_there_must_be():
    using = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(7))
    text = _log(f"NET/IB : Using {using} [RO]; OOB ib0:10.0.0.1<0>", "Using network IB")
    offer = _offer(FabricKind.INFINIBAND, nics=8, gpudirect=True)
    finding = diagnose(read(text), offer=offer).findings[0]
    assert finding.code == "fewer_nics_than_instance_has"
    assert "7 of the 8 NICs" in finding.cause


def test_below_the_reference_the_limit_of_the_nics_stands_beside_it():
    promise = Promise.of_instance_type("p5.48xlarge")
    assert promise.n_nics == 32
    assert promise.nic_limit_gbytes_s == 400.0
    assert promise.references
    assert promise.plugins == ("aws-ofi-nccl",)


def test_an_instance_type_that_nobody_sells_is_refused_with_a_near_miss():
    with pytest.raises(CatalogError, match=r"p5\.48xlarg"):
        diagnose(read(""), instance_type="p5.48xlarg")


@given(st.text(max_size=400))
def test_any_text_can_be_diagnosed(text: str):
    diagnosis = diagnose(read(text))
    assert diagnosis.health in set(Health)


def _counters(lost: int) -> str:
    path = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence"
    return f"{path}:{lost}\n"


def test_counters_that_rise_are_worse_than_counters_that_are_high():
    high = {f.code: f.severity for f in diagnose(read(_counters(5000))).findings}
    rising = {f.code: f.severity for f in diagnose(read(_counters(3) + _counters(9))).findings}
    assert high["roce_packet_loss"] is Severity.WARNING
    assert rising["roce_packet_loss"] is Severity.ERROR
    assert "roce_packet_loss" not in diagnose(read(_counters(9) + _counters(9))).codes


def test_a_limit_that_did_no_harm_is_a_note():
    limits = "max locked memory           (kbytes, -l) 64\n"
    works = _log("Using network IB", "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA")
    alone = {f.code: f.severity for f in diagnose(read(limits)).findings}
    beside = diagnose(read(limits + works))
    assert alone["memlock"] is Severity.ERROR
    assert beside.health is Health.HEALTHY
    assert {f.code: f.severity for f in beside.findings}["memlock"] is Severity.NOTE


def test_the_line_of_a_variable_is_the_evidence_of_its_finding():
    text = _log("Using network Socket", "NCCL_IB_DISABLE set by environment to 1.")
    finding = next(f for f in diagnose(read(text)).findings if f.code == "ib_disabled_by_env")
    assert [evidence.lineno for evidence in finding.evidence] == [2]


def test_an_nccl_built_before_the_gpu_is_told():
    head = "#  Rank  0 Group  0 Pid     25 on a1 device  0 [0x8d] NVIDIA B200\n"
    old = diagnose(read("NCCL version 2.20.5+cuda12.4\n# Using devices\n" + head))
    new = diagnose(read("NCCL version 2.26.2+cuda12.8\n# Using devices\n" + head))
    assert "nccl_version_lacks_gpu_fix" in old.codes
    assert "nccl_version_lacks_gpu_fix" not in new.codes


def test_a_network_that_was_asked_for_and_is_not_there_is_named():
    diagnosis = diagnose(read(_warn(1, "Error: network AWS Libfabric not found.") + "\n"))
    assert diagnosis.codes == ("wrong_network_plugin",)
    assert "AWS Libfabric" in diagnosis.findings[0].cause


def test_a_flat_table_of_unknown_machines_says_what_it_looks_like():
    columns = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    units = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    rows = "".join(
        f"{size:>12} {size // 4:>12} float sum -1 {size / 1680:.1f} 1.68 3.15 0\n"
        for size in (67108864, 1073741824, 8589934592)
    )
    foot = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.15\n"
    diagnosis = diagnose(read(f"{columns}\n{units}\n{rows}{foot}"))
    assert diagnosis.health is Health.INCONCLUSIVE
    assert "as over TCP" in diagnosis.findings[-1].cause


@pytest.mark.parametrize(
    ("busbw", "codes"),
    [(480.0, ()), (170.0, ("below_reference",)), (3.2, ("socket_fallback",))],
)
def test_a_bare_table_is_held_against_the_nodes_of_the_offer(
    busbw: float, codes: tuple[str, ...]
) -> None:
    import gpufabric as gf

    task = gf.Task(run="x", num_nodes=2, resources=gf.Resources(instance_type="p5.48xlarge"))
    with gf.Fabric.assumed() as fabric:
        offer = fabric.offers(task).offers[0]
    rows = [
        "#       size         count      type   redop    root"
        + 2 * "   time   algbw   busbw #wrong"
    ]
    for size in (1 << 28, 1 << 30, 1 << 33):
        algbw = busbw / 1.875
        half = f"{size / algbw / 1e3:.1f} {algbw:.2f} {busbw:.2f} 0"
        rows.append(f"{size} {size // 4} float sum -1 {half} {half}")
    rows += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {busbw:g}"]
    found = diagnose(read("\n".join(rows) + "\n"), offer=offer)
    assert found.codes == codes, str(found)
    assert (found.health is Health.HEALTHY) is (not codes)


_EMPTY = (
    "libfabric:85:17:core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list"
)


def test_an_empty_list_of_efa_counts_where_no_later_call_was_answered() -> None:
    lines = [_EMPTY, "n0:79:79 [0] NCCL INFO Using network Socket"]
    assert "efa_provider_missing" in diagnose(read(lines)).codes


def test_an_empty_list_of_efa_is_no_alarm_where_libfabric_is_used() -> None:
    lines = [_EMPTY, "n0:79:79 [0] NCCL INFO Using network AWS Libfabric"]
    assert "efa_provider_missing" not in diagnose(read(lines)).codes
