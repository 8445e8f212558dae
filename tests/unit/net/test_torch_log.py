# ruff: noqa: E501 - a line of a log is as long as it is
from __future__ import annotations

import json

import pytest

from gpufabric import net

WORK = (
    "WorkNCCL(SeqNum=91, OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=32768, Timeout(ms)=480000)"
)
CAUGHT = f"Watchdog caught collective operation timeout: {WORK} ran for 480021 milliseconds before timing out."


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank5]:[E213 11:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 5] ",
        "[rank5]:[E1213 11:07:08.408271 ProcessGroupNCCL.cpp:616] [Rank 5] ",
        "[E ProcessGroupNCCL.cpp:474] [Rank 5] ",
        "[80746] [rank5]:[E213 11:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 5] ",
        "\x1b[36m(RayWorkerWrapper pid=4009)\x1b[0m [rank5]:[E ProcessGroupNCCL.cpp:563] [Rank 5] ",
        "Epoch 0:   6%|##   | 32/500 [6:28<94:39, loss=2.6][E ProcessGroupNCCL.cpp:458] [Rank 5] ",
    ],
)
def test_a_watchdog_timeout_of_every_release(prefix: str) -> None:
    report = net.read(f"{prefix}{CAUGHT}\n")
    (error,) = report.errors
    assert report.kind == "torch_log"
    assert (error.kind, error.rank, error.op) == ("watchdog_timeout", 5, "_ALLGATHER_BASE")
    assert (error.seq, error.numel, error.timeout_ms) == (91, 4096, 480_000)


def test_a_timeout_of_an_old_release_has_fewer_fields() -> None:
    text = "[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1801000 milliseconds before timing out.\n"  # fmt: skip
    (error,) = net.read(text).errors
    assert (error.op, error.seq, error.numel, error.timeout_ms) == (
        "BROADCAST",
        None,
        None,
        1_800_000,
    )


def test_the_same_timeout_told_three_times_is_one() -> None:
    text = (
        f"[rank5]:[E213 11:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 5] {CAUGHT}\n"
        f"[rank5]:[E213 11:07:09.4 ProcessGroupNCCL.cpp:1414] [PG 0 Rank 5] Process group watchdog thread terminated with exception: [Rank 5] {CAUGHT}\n"
        f"  what():  [PG 0 Rank 5] Process group watchdog thread terminated with exception: [Rank 5] {CAUGHT}\n"
    )  # fmt: skip
    assert len(net.read(text).errors) == 1


@pytest.mark.parametrize(
    ("where", "pg", "name"),
    [
        ("[PG 1 Rank 3]", 1, None),
        ("[PG 0 (default_pg) Rank 3]", 0, "default_pg"),
        ("[PG ID 2 PG GUID 7 Rank 3]", 2, None),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 3]", 0, "default_pg"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "Exception (either an error or timeout) detected by watchdog at work: 91, last enqueued NCCL work: 97, last completed NCCL work: 90.",
        "Timeout at NCCL work: 91, last enqueued NCCL work: 97, last completed NCCL work: 90.",
    ],
)  # fmt: skip
def test_where_a_rank_stood(where: str, pg: int, name: str | None, words: str) -> None:
    torch = net.read(f"[rank3]:[E213 11:07:08.4 ProcessGroupNCCL.cpp:1785] {where} {words}\n").torch
    assert torch is not None
    assert (torch.pg, torch.pg_name, torch.rank) == (pg, name, 3)
    assert (torch.last_enqueued, torch.last_completed) == (97, 90)


def test_a_dump_signal_is_not_the_rank_that_timed_out() -> None:
    text = (
        "[rank4]:[E1 1:1:1.1 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info. Last enqueued NCCL work: 12, last completed NCCL work: 12.\n"
        "[rank7]:[E1 1:1:1.1 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 7] Timeout at NCCL work: 11, last enqueued NCCL work: 12, last completed NCCL work: 10.\n"
    )  # fmt: skip
    torch = net.read(text).torch
    assert torch is not None
    assert torch.rank == 7
    assert [rank.rank for rank in torch.ranks] == [4, 7]


def test_periodic_updates_are_no_fault() -> None:
    report = net.read(
        "[rank0]:[I213 11:07:08.4 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0] NCCL Work update periodically: last enqueued NCCL work: 5, last completed NCCL work: 5.\n"
    )  # fmt: skip
    assert report.kind == "torch_log"
    assert report.errors == ()


def test_a_backend_error_names_version_and_cause() -> None:
    text = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "Last error:\n"
        "socketPollConnect: connect to 10.1.2.3<45001> returned Connection refused, exceeded error retry count after 35 attempts\n"
    )  # fmt: skip
    report = net.read(text)
    assert report.header.nccl_version == "2.26.2"
    assert [(e.kind, e.root_cause) for e in report.errors] == [
        ("nccl_call_failed", False),
        ("connection_refused", True),
    ]


def test_a_timeout_after_an_nccl_fault_is_its_follow_up() -> None:
    text = (
        "sw-2:7:9 [1] net.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4> with status=12 opcode=1 len=0 vendor err 129 (Send)\n"
        f"[rank5]:[E213 11:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 5] {CAUGHT}\n"
    )
    report = net.read(text)
    assert [(e.kind, e.root_cause) for e in report.errors] == [
        ("completion_error", True),
        ("watchdog_timeout", False),
    ]
    assert report.kind == "mixed"


def test_a_rendezvous_that_failed() -> None:
    (error,) = net.read(
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.1.2.3, 29500).\n"
    ).errors  # fmt: skip
    assert (error.kind, error.peer, error.peer_port) == ("rendezvous_failed", "10.1.2.3", 29500)
    assert error.timeout_ms == 600_000


def test_a_flight_recorder_dump_tells_what_is_not_done() -> None:
    entry = {
        "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 8, "p2p_seq_id": 0,
        "is_p2p": False, "profiling_name": "nccl:all_reduce", "state": "started",
        "input_sizes": [[3, 4], [5]], "timeout_ms": 600000,
    }  # fmt: skip
    document = {
        "version": "2.5",
        "nccl_version": "2.26.2",
        "pg_config": {"0": {}},
        "pg_status": {"0": {"last_enqueued_collective": 9, "last_completed_collective": 7}},
        "entries": [{**entry, "state": "completed", "collective_seq_id": 7}, entry],
    }
    report = net.read(json.dumps(document, indent=2))
    assert report.torch is not None
    (waiting,) = report.torch.flight
    assert (waiting.seq, waiting.op, waiting.numel) == (8, "nccl:all_reduce", 17)
    assert (report.torch.flight_count, report.torch.last_enqueued) == (2, 9)
    assert report.header.nccl_version == "2.26.2"


def test_a_strange_dump_is_read_without_harm() -> None:
    document = {
        "pg_config": 1,
        "entries": [7, None, {"input_sizes": [["a"], 4]}, {}],
        "pg_status": {"0": []},
    }
    report = net.read(json.dumps(document))
    assert report.torch is not None
    assert report.torch.flight_count == 4
