"""The tcp workload: real processes, real sockets, on loopback."""

import ast
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufabric.bench import BenchReport, bus_factor

from .conftest import FOLDER, START, TCP_WORKLOAD

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "sendrecv",
)
QUICK = ("-n", "2", "-w", "1", "--start-timeout", "30", "--timeout", "20")


@pytest.mark.parametrize(
    ("collective", "num_nodes"),
    [
        *((collective, 3) for collective in COLLECTIVES),
        ("all_reduce", 2),
        ("alltoall", 2),
        ("all_reduce", 4),
        ("reduce_scatter", 4),
        ("broadcast", 4),
    ],
)
def test_every_collective_gives_right_data_on_odd_sizes(gangs, collective, num_nodes):
    text = gangs.run(
        num_nodes, "--collective", collective, "-b", "1", "-e", "700001", "-f", "13", *QUICK
    )
    report = BenchReport.from_text(text)
    assert report.is_correct is True
    assert report.complete
    assert (report.collective, report.n_ranks, report.num_nodes) == (
        collective,
        num_nodes,
        num_nodes,
    )
    assert len(report.rows) == 6
    assert all(row.wrong == 0 for row in report.rows)


@pytest.mark.parametrize(
    ("collective", "dtype"),
    [("all_reduce", "double"), ("reduce_scatter", "float"), ("reduce", "float")],
)
def test_floats_are_reduced_exactly(gangs, collective, dtype):
    program = TCP_WORKLOAD[1:]  # with what is installed: floats need numpy
    text = gangs.run(
        3, "--collective", collective, "-d", dtype, "-b", "100000", "-e", "1M", *QUICK,
        program=program,
    )  # fmt: skip
    assert BenchReport.from_text(text).is_correct is True


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_any_rank_can_be_the_root(gangs, collective):
    text = gangs.run(3, "--collective", collective, "-r", "2", "-b", "300000", "-e", "1M", *QUICK)
    report = BenchReport.from_text(text)
    assert report.is_correct is True
    assert {row.root for row in report.rows} == {2}


def test_several_ranks_on_a_node_all_take_part(gangs):
    text = gangs.run(2, "--nproc", "2", "-b", "4K", "-e", "64K", *QUICK)
    report = BenchReport.from_text(text)
    assert (report.n_ranks, report.num_nodes, report.is_correct) == (4, 2, True)


def test_bandwidths_follow_from_size_and_time_with_the_factor_of_nccl_tests(gangs):
    report = BenchReport.from_text(gangs.run(3, "-b", "256K", "-e", "1M", "-f", "2", *QUICK))
    for row in report.rows:
        assert row.algbw_gbytes_s == pytest.approx(row.size_bytes / row.time_us / 1e3, rel=0.01)
        assert row.busbw_gbytes_s == pytest.approx(
            row.algbw_gbytes_s * bus_factor("all_reduce", 3), rel=0.01
        )


def test_unchecked_data_is_called_unchecked(gangs):
    report = BenchReport.from_text(gangs.run(2, "-c", "0", "-b", "1K", "-e", "4K", *QUICK))
    assert report.is_correct is None


def test_pairwise_measures_every_ordered_pair(gangs):
    report = BenchReport.from_text(gangs.run(3, "--pairwise", "-b", "1K", "-e", "1K", *QUICK))
    assert [(pair.source_rank, pair.target_rank) for pair in report.pairs] == [
        (a, b) for a in range(3) for b in range(3) if a != b
    ]
    assert all(pair.gbytes_s > 0 for pair in report.pairs)


CORRUPT = """
honest = w.RUN[{collective!r}]

def corrupt(job):
    honest(job)
    if job.mesh.rank == 1 and len(job.recv) > 40:
        job.recv[40] ^= 1
        job.recv[len(job.recv) - 1] ^= 64

w.RUN[{collective!r}] = corrupt
sys.exit(w.main())
"""


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "alltoall", "broadcast"])
def test_a_wrong_byte_on_one_rank_is_counted_and_fails_every_node(gangs, collective):
    program = ("-S", "-c", START + CORRUPT.format(collective=collective), FOLDER)
    nodes = gangs.start(
        3, "--collective", collective, "-b", "4K", "-e", "4K", *QUICK, program=program
    )
    ended = gangs.finish(nodes)
    assert [node.code for node in ended] == [1, 1, 1]
    report = BenchReport.from_text(ended[0].out)
    assert report.is_correct is False
    assert report.rows[0].wrong == 2
    assert "FAILED" in ended[0].out


def test_a_peer_that_never_comes_is_named(gangs):
    port = gangs.port()
    nodes = [gangs.node(i, 3, "--start-timeout", "1", port=port) for i in (0, 1)]
    ended = gangs.finish(nodes)
    assert [node.code for node in ended] == [3, 3]
    assert all("rank 2 (127.0.0.1) never came" in node.err for node in ended)


def test_a_first_rank_that_never_comes_is_named(gangs):
    node = gangs.node(1, 2, "--start-timeout", "1", port=gangs.port())
    (ended,) = gangs.finish([node])
    assert ended.code == 3
    assert "can't reach rank 0 at 127.0.0.1 port" in ended.err
    assert "refused" in ended.err


@pytest.mark.parametrize("victim", [0, 2, 3])
def test_a_killed_peer_is_named_by_all_the_others(gangs, victim):
    nodes = gangs.start(4, "-b", "64K", "-e", "64K", "-i", "64K", "-n", "1000000", "-w", "0")
    assert nodes[0].stdout is not None
    for line in nodes[0].stdout:
        if "(elements)" in line:  # the table has begun: the ring is turning
            break
    nodes[victim].kill()
    ended = gangs.finish(nodes)
    others = [node for rank, node in enumerate(ended) if rank != victim]
    assert [node.code for node in others] == [3, 3, 3]
    assert all(f"lost rank {victim} (" in node.err for node in others), [n.err for n in others]


def test_a_stopped_peer_is_named_after_the_time_limit(gangs):
    nodes = gangs.start(3, "-b", "1M", "-e", "1M", "-n", "1000000", "-w", "0", "--timeout", "1")
    assert nodes[0].stdout is not None
    for line in nodes[0].stdout:
        if "(elements)" in line:
            break
    nodes[1].send_signal(signal.SIGSTOP)
    ended = gangs.finish([nodes[0], nodes[2]])
    assert [node.code for node in ended] == [3, 3]
    assert all("rank 1 (" in node.err for node in ended)


def test_ranks_that_were_asked_different_things_refuse_to_run(gangs):
    port = gangs.port()
    nodes = [gangs.node(i, 2, "-n", str(3 + i), "--start-timeout", "20", port=port) for i in (0, 1)]
    ended = gangs.finish(nodes)
    assert [node.code for node in ended] == [2, 3]
    assert all("was asked" in node.err for node in ended)


def test_strangers_at_the_meeting_point_do_no_harm(gangs):
    port = gangs.port()
    rank_0 = gangs.node(0, 2, "-b", "1K", "-e", "1K", *QUICK, port=port)
    strangers = []
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"rank": 1}\n', b"\xff\x00" * 50 + b"\n"):
        s = _connect(port)
        s.sendall(words)
        strangers.append(s)
    rank_1 = gangs.node(1, 2, "-b", "1K", "-e", "1K", *QUICK, port=port)
    ended = gangs.finish([rank_0, rank_1])
    for s in strangers:
        s.close()
    assert [(node.code, node.err) for node in ended] == [(0, ""), (0, "")]


def _connect(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            continue
    raise AssertionError("rank 0 never listened")


def test_a_port_in_use_is_said_with_its_number(gangs):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (ended,) = gangs.finish([gangs.node(0, 2, "--start-timeout", "1", port=port)])
    assert ended.code == 3
    assert f"can't listen on 127.0.0.1 port {port}" in ended.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-b", "2M", "-e", "1M"), "-b 2097152 is more than -e 1048576"),
        (("-f", "1"), "-f must be 2 or more"),
        (("-n", "0"), "-n must be 1 or more"),
        (("-r", "2"), "root 2 is none of 2 ranks"),
        (("--num-nodes", "3"), "2 node addresses for 3 nodes"),
        (("--node-rank", "2"), "node rank 2 of 2"),
        (("--nproc", "0"), "--nproc must be 1 or more"),
        (("--master", "here"), "is not ADDRESS:PORT"),
        (("--bind", "nowhere0"), "no interface or address 'nowhere0'"),
        (("--collective", "all-reduce"), "invalid choice"),
        (("-b", "12Q"), "'12Q' is not a size"),
    ],
)
def test_a_wrong_request_is_refused_in_words(gangs, args, said):
    node = gangs.node(0, 2, "--start-timeout", "1", *args, port=gangs.port())
    (ended,) = gangs.finish([node])
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_data_can_be_bound_to_an_interface(gangs):
    text = gangs.run(2, "--bind", "lo", "-b", "1K", "-e", "1K", *QUICK)
    assert "# rank=1 node=1 host=" in text
    assert text.count("interface=lo") == 2


@pytest.mark.parametrize("name", ["tcp", "torch", "nccl_tests"])
def test_what_is_shipped_is_python_3_8_and_needs_the_standard_library_only(workload, name):
    path = Path(workload.__file__).with_name(f"_{name}_workload.py")
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    beside = {"gpufabric", "gpufabric_bench_tcp"}  # the first one for type checkers alone
    assert imported - sys.stdlib_module_names == ({"numpy"} if name == "tcp" else beside)


def test_sizes_and_counts_are_those_of_nccl_tests(workload):
    # collective, bytes wished, ranks -> size and count as nccl-tests prints them for floats
    known = [
        ("all_reduce", 100, 4, (100, 25)),
        ("all_reduce", 7, 2, (4, 1)),
        ("all_gather", 8, 16, (0, 0)),
        ("all_gather", 1024, 16, (1024, 16)),
        ("all_gather", 8589934592, 64, (8589934592, 33554432)),
        ("reduce_scatter", 1000, 3, (960, 80)),
        ("alltoall", 1 << 20, 8, (1 << 20, 32768)),
        ("sendrecv", 33, 2, (32, 8)),
        ("broadcast", 1 << 20, 5, (1 << 20, 1 << 18)),
    ]
    for collective, nbytes, n, expected in known:
        made = workload.shape(collective, nbytes, 4, n)
        assert (made.size, made.elements) == expected, collective


def test_bus_factors_of_workload_and_report_agree(workload):
    for collective in COLLECTIVES:
        for n in (2, 3, 8, 100):
            assert workload.bus_factor(collective, n) == pytest.approx(bus_factor(collective, n))


@given(st.integers(2, 40))
def test_in_a_tournament_every_pair_meets_once(n):
    from gpufabric.bench import _tcp_workload as w

    met = []
    for turn in range(n - 1 + n % 2):
        mates = {rank: w.round_mate(rank, turn, n) for rank in range(n)}
        assert all(mate is None or mates[mate] == rank != mate for rank, mate in mates.items())
        met += [(rank, mate) for rank, mate in mates.items() if mate is not None and rank < mate]
    assert sorted(met) == [(a, b) for a in range(n) for b in range(a + 1, n)]


@given(st.integers(0, 60), st.data())
def test_all_three_ways_to_add_agree(count, data):
    from gpufabric.bench import _tcp_workload as w

    numbers = st.lists(st.integers(0, 1 << 29), min_size=count, max_size=count)
    a, b = data.draw(numbers), data.draw(numbers)
    results = []
    for way in ("numpy", "audioop", "python"):
        adder = w.Adder("int32")
        adder.numpy = np if way == "numpy" else None
        if way == "audioop":
            adder._load_audioop()
        target = bytearray(struct.pack(f"{count}i", *a))
        adder.add(memoryview(target), memoryview(struct.pack(f"{count}i", *b)))
        results.append(bytes(target))
    assert results == [struct.pack(f"{count}i", *(x + y for x, y in zip(a, b, strict=True)))] * 3


@given(st.binary(max_size=10000), st.data())
def test_wrong_elements_are_counted_one_by_one(want, data):
    from gpufabric.bench import _tcp_workload as w

    want = want[: len(want) // 4 * 4]
    got = bytearray(want)
    elements = len(want) // 4
    broken = data.draw(st.sets(st.integers(0, elements - 1), max_size=5)) if elements else set()
    for i in broken:
        got[4 * i + data.draw(st.integers(0, 3))] ^= data.draw(st.integers(1, 255))
    assert w.count_wrong(memoryview(got), want, 4) == len(broken)


@given(st.floats(0, 1e12, allow_nan=False))
def test_a_number_fits_its_column(value):
    from gpufabric.bench import _tcp_workload as w

    text = w.fit(value, 7, 2)
    assert len(text) == 7
    assert float(text) == pytest.approx(value, rel=0.06, abs=0.006)
