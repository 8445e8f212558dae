# ruff: noqa: E501 - a line of a log is as long as it is
"""Whatever a text holds: reading does not raise, the report is JSON, and tables come back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufabric import net

sys.path.insert(0, str(Path(__file__).parents[1] / "shapes"))

from nccl_tests_text import LAYOUTS, Layout, Point, run, table  # after its folder

FRAGMENTS = [
    "NCCL INFO ", "NCCL WARN ", "h-1:22:33 [0] ", "Channel 00/0 : 0[0] -> 1[1] ", " via NET/IB/0/GDRDMA",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Call to ibv_modify_qp failed with ",
    "# nThread 1 nGpus 1 ", "# Avg bus bandwidth    : ", "#  Rank  0 Group  0 Pid 1 on h device  0 [0x1] X",
    "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong", "1024 256 float sum -1 ",
    "1.5 2.5 3.5 0 ", "N/A ", "1e308 ", "inf ", "nan ", "9" * 400, "²", "\n", "\r", "\x00", "\x1b[31m", "{", "}", '"',
    "[", "]", "CA 'mlx5_0'\n", "\tState: Active\n", "GPU0\tGPU1\tNIC0\n", '<system version="1">', "<!ENTITY a 'b'>",
    "Watchdog caught collective operation timeout: WorkNCCL(", "last enqueued NCCL work: ", "│ ", "> ", "[rank0]:",
    "2026-01-01T00:00:00Z ", '{"message": "', '"coll_perf"', "[1,0]<stdout>:", "0: ",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), max_size=30).map("".join),
)


def is_json(report: net.NetReport) -> bool:
    return bool(json.dumps(report.to_dict(), allow_nan=False))


def no_text_makes_reading_raise(text: str) -> None:
    assert is_json(net.read(text))


# Few examples in `make test`, since each costs CPU, and all of them in `make test-hostile`.
test_no_text_makes_reading_raise = settings(max_examples=60, deadline=None)(
    given(TEXTS)(no_text_makes_reading_raise)
)
test_none_of_many_texts_makes_reading_raise = pytest.mark.slow(
    settings(max_examples=400, deadline=None)(given(TEXTS)(no_text_makes_reading_raise))
)


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_reading_raise(data: bytes) -> None:
    assert is_json(net.read(data))


def a_changed_run_is_still_read(data: st.DataObject) -> None:
    lines = run(rows=3)
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(lines) - 1))
        at = data.draw(st.integers(0, len(lines[index])))
        piece = data.draw(st.sampled_from(FRAGMENTS))
        lines[index] = lines[index][:at] + piece + lines[index][at:]
    assert is_json(net.read("\n".join(lines)))


test_a_changed_run_is_still_read = settings(max_examples=40, deadline=None)(
    given(st.data())(a_changed_run_is_still_read)
)
test_a_run_changed_in_many_ways_is_still_read = pytest.mark.slow(
    settings(max_examples=150, deadline=None)(given(st.data())(a_changed_run_is_still_read))
)


NUMBERS = st.decimals(min_value=0, max_value=99_999, places=2, allow_nan=False).map(str)
HALVES = st.tuples(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["0", "N/A", "7"]))
POINTS = st.builds(
    Point,
    size=st.integers(0, 1 << 40),
    count=st.integers(0, 1 << 38),
    out=HALVES,
    inn=HALVES,
    dtype=st.sampled_from(["float", "half", "bfloat16", "int8", "fp8_e4m3"]),
    redop=st.sampled_from(["sum", "prod", "none", "mulsum"]),
    root=st.integers(-1, 127),
)


def a_rendered_table_comes_back_in_every_layout(points: list[Point], layout: Layout) -> None:
    (found,) = net.read("\n".join(table(points, layout)) + "\n").tables
    scale = 1000 if layout.name == "1.0" else 1
    for point, row in zip(points, found.rows, strict=True):
        assert (row.size_bytes, row.count, row.dtype) == (point.size, point.count, point.dtype)
        for printed, half in ((point.out, row.out_of_place), (point.inn, row.in_place)):
            assert half is not None
            assert half.time_us == round(float(printed[0]) * scale, 6)
            assert (half.algbw, half.busbw) == (float(printed[1]), float(printed[2]))
            assert half.wrong == (None if printed[3] == "N/A" else float(printed[3]))


rendered = given(st.lists(POINTS, min_size=1, max_size=8), st.sampled_from(LAYOUTS))
test_a_rendered_table_comes_back_in_every_layout = settings(max_examples=40, deadline=None)(
    rendered(a_rendered_table_comes_back_in_every_layout)
)
test_many_rendered_tables_come_back_in_every_layout = pytest.mark.slow(
    settings(max_examples=200, deadline=None)(rendered(a_rendered_table_comes_back_in_every_layout))
)
