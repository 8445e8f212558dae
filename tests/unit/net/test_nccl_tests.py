# ruff: noqa: E501, PLR0917 - a line of a log is as long as it is; a case has many parts
from __future__ import annotations

import json
import math

import pytest
from nccl_tests_text import LAYOUTS, Layout, Point, devices, footer, measured, row, run, table

from gpufabric import net
from gpufabric.net.records import BenchTable

ALL_REDUCE = Point(
    1 << 30, 1 << 28, ("3000.5", "357.85", "670.97", "0"), ("3001", "357.8", "670.9", "0")
)


def only_table(text: str) -> BenchTable:
    (found,) = net.read(text).tables
    return found


def as_text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_columns_are_found_by_the_header_in_every_layout(layout: Layout) -> None:
    wrong = "2e-07" if layout.wrong in {"error", "res"} else "0"
    half = ("1000", "80.00", "120.0", wrong)
    point = Point(80_000_000, 20_000_000, half, half, root=-1)
    found = only_table(as_text(table([point], layout)))
    (read,) = found.rows
    assert (read.size_bytes, read.count, read.dtype) == (80_000_000, 20_000_000, "float")
    assert read.redop == ("sum" if {"redop", "op"} & set(layout.columns) else None)
    assert read.root == (-1 if "root" in layout.columns else None)
    assert read.out_of_place is not None
    assert read.in_place is not None
    milliseconds = layout.name == "1.0"
    assert read.out_of_place.time_us == (1_000_000.0 if milliseconds else 1000.0)
    assert (read.in_place.algbw, read.in_place.busbw) == (80.0, 120.0)
    assert read.out_of_place.wrong == float(wrong)
    assert found.wrong_is_count is (layout.wrong == "#wrong")
    assert found.time_is_cpu is (layout.time == "cputime")
    assert read.timestamp == ("2026-02-03 04:05:06" if layout.timestamp else None)


def test_a_whole_run_tells_who_ran_what() -> None:
    report = net.read(as_text(run()))
    header = report.header
    assert report.kind == "nccl_tests"
    assert (header.n_ranks, header.n_nodes, header.ranks_per_node) == (16, 2, 8)
    assert (header.warmup_iters, header.iters, header.validation) == (5, 20, True)
    assert header.gpu == "NVIDIA H100 80GB HBM3"
    assert header.complete is True
    (found,) = report.tables
    assert (found.collective, found.n_ranks) == ("all_reduce", 16)
    assert found.printed_rows_are_complete is True
    assert (found.out_of_bounds_count, found.out_of_bounds_word) == (0, "OK")


def test_a_missing_row_shows_in_the_mean() -> None:
    lines = run()
    lines.pop(next(i for i, line in enumerate(lines) if line.lstrip().startswith("33554432")))
    assert only_table(as_text(lines)).printed_rows_are_complete is False


def test_no_average_line_is_unknown_and_not_zero() -> None:
    lines = [line for line in run() if "Avg" not in line]
    found = only_table(as_text(lines))
    assert found.avg_bus_bandwidth is None
    assert found.printed_rows_are_complete is None
    assert net.read(as_text(lines)).header.complete is False


def test_unchecked_results_are_none_and_not_zero() -> None:
    half = ("3000.5", "357.85", "670.97", "N/A")
    found = only_table(as_text(table([Point(1 << 30, 1 << 28, half, half)], LAYOUTS[5])))
    assert found.rows[0].out_of_place is not None
    assert found.rows[0].out_of_place.wrong is None


@pytest.mark.parametrize(
    ("redop", "root", "share", "factor", "in_place_wrong", "collective"),
    [
        ("sum", -1, 1, 1.875, "0", "all_reduce"),
        ("sum", -1, 16, 0.9375, "0", "reduce_scatter"),
        ("sum", 0, 1, 1.0, "0", "reduce"),
        ("none", 0, 1, 1.0, "0", "broadcast"),
        ("none", -1, 16, 0.9375, "0", "all_gather"),
        ("none", -1, 16, 0.9375, "N/A", "alltoall"),
        ("sum", -1, 1, 1.0, "N/A", "sendrecv"),
    ],
)
def test_the_collective_is_inferred_where_the_rows_tell(
    redop: str, root: int, share: int, factor: float, in_place_wrong: str, collective: str
) -> None:
    out = measured(1 << 30, 16, 300.0, factor=factor).out
    inn = (*out[:3], in_place_wrong)
    point = Point(1 << 30, (1 << 28) // share, out, inn, redop=redop, root=root)
    found = only_table(as_text(table([point], LAYOUTS[5])))
    assert (found.collective, found.collective_basis) == (collective, "inferred")


def test_unchecked_per_rank_counts_leave_the_collective_unknown() -> None:
    out = measured(1 << 30, 16, 300.0, factor=0.9375).out
    half = (*out[:3], "N/A")
    point = Point(1 << 30, (1 << 28) // 16, half, half, redop="none")
    assert only_table(as_text(table([point], LAYOUTS[5]))).collective is None


def test_the_command_line_names_the_collective() -> None:
    half = ("1000", "80.00", "75.0", "N/A")
    point = Point(80_000_000, 1_250_000, half, half, redop="none")
    text = as_text(["$ mpirun -np 16 ./build/alltoall_perf -b 8 -c 0", *table([point], LAYOUTS[5])])
    assert only_table(text).collective == "alltoall"


def test_ranks_follow_from_busbw_over_algbw_without_device_lines() -> None:
    points = [measured(1 << (26 + i), 24, 380.0) for i in range(6)]
    found = only_table(as_text(table(points, LAYOUTS[5])))
    assert found.n_ranks == 24
    assert net.read(as_text(table(points, LAYOUTS[5]))).header.n_ranks == 24


def test_device_lines_that_contradict_the_numbers_are_not_believed() -> None:
    points = [measured(1 << (26 + i), 16, 380.0) for i in range(6)]
    lines = [*devices(("an-1", "an-2", "an-3"), 8), "#", *table(points, LAYOUTS[5])]
    assert net.read(as_text(lines)).header.n_ranks == 16


def test_a_cut_device_list_counts_no_ranks() -> None:
    lines = run()
    cut = next(i for i, line in enumerate(lines) if "Rank  5" in line)
    header = net.read(as_text(lines[:cut])).header
    assert (header.n_ranks, header.n_nodes) == (None, None)


def test_containers_of_one_name_are_still_two_nodes() -> None:
    lines = run(hosts=("worker", "worker"))
    header = net.read(as_text(lines)).header
    assert (header.n_ranks, header.n_nodes, header.ranks_per_node) == (16, 2, 8)


def test_several_runs_in_one_text_are_several_tables() -> None:
    second = [line.replace("all_reduce", "reduce_scatter") for line in run()]
    report = net.read(as_text([*run(), *second]))
    assert [t.collective for t in report.tables] == ["all_reduce", "reduce_scatter"]
    assert [len(t.rows) for t in report.tables] == [6, 6]
    assert report.header.n_headers == report.header.n_footers == 2


def test_processes_that_print_at_once_keep_their_own_tables() -> None:
    one, two = run(top=400.0), run(top=200.0)
    text = as_text(
        [f"{rank}: {line}" for pair in zip(one, two, strict=True) for rank, line in enumerate(pair)]
    )
    tables = net.read(text).tables
    assert len(tables) == 2
    best = [t.rows[-1].out_of_place.busbw for t in tables if t.rows[-1].out_of_place]
    assert best[0] is not None
    assert best[1] is not None
    assert best[0] > 1.9 * best[1]


def test_a_row_torn_by_nccl_output_is_put_together() -> None:
    lines = run()
    index = next(i for i, line in enumerate(lines) if line.lstrip().startswith("33554432"))
    words = lines[index].split()
    left = f"    {words[0]}  {words[1]}     float     sum      -1"
    lines[index : index + 1] = [
        left + "an-1:410:500 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "an-1:410:500 [0] NCCL INFO Connected all rings",
        "   " + "  ".join(words[5:]),
    ]
    report = net.read(as_text(lines))
    assert [len(t.rows) for t in report.tables] == [6]
    assert report.tables[0].printed_rows_are_complete is True
    assert report.nccl_log is not None
    assert report.nccl_log.inter_node_transport == "NET/IB/0/GDRDMA"
    assert [host.host for host in report.nccl_log.hosts] == ["an-1"]


def test_a_row_torn_twice_is_put_together() -> None:
    lines = run()
    index = next(i for i, line in enumerate(lines) if line.lstrip().startswith("33554432"))
    words = lines[index].split()
    chatter = "an-1:410:500 [1] NCCL INFO AllReduce: opCount 0 sendbuff 0x92 recvbuff 0x92 count 1"
    lines[index : index + 1] = [
        f"    {words[0]}  {words[1]}     float     sum      -1{chatter}",
        chatter,
        "   " + "  ".join(words[5:9]) + chatter,
        "   " + "  ".join(words[9:]),
    ]
    report = net.read(as_text(lines))
    assert [len(t.rows) for t in report.tables] == [6]
    assert report.tables[0].printed_rows_are_complete is True
    assert report.unread_count == 0


def test_columns_behind_the_table_are_passed_over() -> None:
    lines = table([measured(1 << 30, 16, 300.0)], LAYOUTS[5])
    text = as_text([lines[0] + "  algo  proto  nchannels", lines[1] + "  RING  SIMPLE  32"])
    assert only_table(text).rows == only_table(as_text(lines)).rows


def test_half_a_row_is_unread_and_not_a_row() -> None:
    lines = run()
    index = next(i for i, line in enumerate(lines) if line.lstrip().startswith("33554432"))
    lines[index] = lines[index][:70]
    report = net.read(as_text(lines))
    assert len(report.tables[0].rows) == 5
    assert report.unread_count == 1
    assert report.unread[0].lineno == index + 1


def test_a_row_without_a_header_must_prove_its_layout() -> None:
    good = row(measured(1 << 30, 16, 400.0), LAYOUTS[5])
    assert len(only_table(good + "\n").rows) == 1
    # The same row without its last column would fit an older layout with other columns.
    assert net.read(good.rsplit(None, 1)[0] + "\n").tables == ()


def test_authors_may_strip_signs_and_indentation() -> None:
    lines = [line.lstrip("# ").replace("#wrong", "wrong") for line in run()]
    report = net.read(as_text([line for line in lines if line]))
    assert report.tables[0].collective == "all_reduce"
    assert len(report.tables[0].rows) == 6
    assert report.header.n_ranks == 16


def test_wrong_values_and_a_failed_footer_are_kept() -> None:
    lines = [line.replace(": 0 OK", ": 3 FAILED") for line in run()]
    found = only_table(as_text(lines))
    assert (found.out_of_bounds_count, found.out_of_bounds_word) == (3, "FAILED")


def test_a_failure_line_ends_a_run_early() -> None:
    lines = run()[:-5]
    lines.append("an-1: Test NCCL failure common.cu:1279 'unhandled system error'")
    report = net.read(as_text(lines))
    assert report.tests_failure is True
    assert report.header.complete is False


def test_averages_cover_every_table_since_the_last_one() -> None:
    points = [measured(1 << (26 + i), 16, 380.0) for i in range(3)]
    lines = [*table(points, LAYOUTS[5]), *table(points, LAYOUTS[5]), *footer(points * 2)]
    first, second = net.read(as_text(lines)).tables
    assert first.avg_bus_bandwidth is None
    assert second.printed_rows_are_complete is True


def test_infinite_and_huge_numbers_do_no_harm() -> None:
    half = ("0.00", "inf", "nan", "0")
    big = ("9" * 300, "1e308", "1e308", "0")
    points = [Point(0, 0, half, half), Point(int("9" * 400), 1, big, big)]
    report = net.read(
        as_text([*table(points, LAYOUTS[5]), "#  Rank " + "9" * 5000 + " on a device 0 [0x1] X"])
    )
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_json_file_is_read_without_its_environment() -> None:
    half = {"time": 4000.0, "alg_bw": 268.4, "bus_bw": 402.6, "nwrong": 0}
    document = {
        "version": 1,
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
        "env": ["API_TOKEN=very-secret"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1, "ngpus": 2, "warmup_iters": 5, "iterations": 20, "validation": 1,
            "devices": [
                {"rank": 2 * i, "pid": 7, "hostname": f"jn-{i}", "device": 0, "device_info": "NVIDIA B200"}
                for i in range(2)
            ],
        },
        "results": [
            {"size": 1 << 30, "count": 1 << 28, "type": "float", "redop": "sum", "root": "     -1",
             "out_of_place": half, "in_place": {**half, "nwrong": None}}
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidith": {"bandwidth": 402.6, "okay": "unchecked"},
        "end_time": "now",
    }  # fmt: skip
    report = net.read(json.dumps(document, indent=1))
    (found,) = report.tables
    assert (found.collective, found.n_ranks, found.rows[0].root) == ("all_reduce", 4, -1)
    assert report.header.nccl_version == "2.28.7"
    assert (report.header.n_nodes, report.header.ranks_per_node) == (2, 2)
    assert found.avg_bus_bandwidth == 402.6
    assert found.rows[0].in_place is not None
    assert found.rows[0].in_place.wrong is None
    assert "very-secret" not in repr(report)


def test_the_mean_is_that_of_both_halves() -> None:
    found = only_table(as_text(table([ALL_REDUCE], LAYOUTS[5])))
    assert found.mean_of_printed_rows is not None
    assert math.isclose(found.mean_of_printed_rows, (670.97 + 670.9) / 2, rel_tol=1e-5)
