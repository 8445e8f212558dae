"""BenchReport, its verdict and comparisons, from texts of our own workloads and of nccl-tests."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

import gpufabric as gf
from gpufabric.bench import (
    BenchPair,
    BenchReport,
    BenchRow,
    Change,
    Comparison,
    Verdict,
    bus_factor,
    compare,
)
from gpufabric.errors import MissingExtraError, ParseError, SpecError
from gpufabric.net.diagnosis import Health, Severity
from gpufabric.net.promise import Reference

GIB = 1 << 30

TABLES = Path(__file__).parents[2] / "data" / "bench"
TCP = (TABLES / "tcp_all_gather.log").read_text("utf-8")

NCCL = (TABLES / "nccl_tests_all_reduce.log").read_text("utf-8")


def report_of(speeds, *, collective="all_reduce", start=1 << 20, **fields):
    """A made-up run: one row a speed, sizes doubling from `start`."""
    n = fields.pop("n_ranks", 4)
    rows = []
    for i, speed in enumerate(speeds):
        size = start << i
        algbw = speed / bus_factor(collective, n)
        rows.append(
            BenchRow(
                size_bytes=size,
                count=size // 4,
                dtype="float",
                redop="sum",
                time_us=size / algbw / 1e3,
                algbw_gbytes_s=algbw,
                busbw_gbytes_s=speed,
                wrong=0,
                in_place_time_us=size / algbw / 1e3,
                in_place_algbw_gbytes_s=algbw,
                in_place_busbw_gbytes_s=speed,
                in_place_wrong=0,
            )
        )
    fields = {"num_nodes": n, **fields}
    return BenchReport(collective=collective, n_ranks=n, rows=tuple(rows), **fields)


def pairs_of(n, slow=(), usual=1.0, bad=0.2):
    return tuple(
        BenchPair(
            source_rank=a,
            source_host=f"h{a}",
            target_rank=b,
            target_host=f"h{b}",
            gbytes_s=bad if a in slow or b in slow else usual,
        )
        for a in range(n)
        for b in range(n)
        if a != b
    )


def codes(verdict):
    return [finding.code for finding in verdict.findings]


# --- reading --------------------------------------------------------------------------------------


def test_a_tcp_table_is_read_whole():
    report = BenchReport.from_text(TCP)
    assert (report.collective, report.workload, report.n_ranks, report.num_nodes) == (
        "all_gather",
        "tcp",
        4,
        2,
    )
    assert (report.iters, report.dtype, report.redop) == (20, "int32", None)
    assert report.rows[0].busbw_gbytes_s == 0.0154
    assert report.rows[0].in_place_time_us == 60.0
    assert report.rows[1].in_place_time_us is None
    assert report.avg_bus_bandwidth_gbytes_s == 0.0196
    assert [pair.gbytes_s for pair in report.pairs] == [0.118, 0.117]
    assert report.complete


def test_an_nccl_tests_table_is_read_by_the_same_call():
    report = BenchReport.from_text(NCCL)
    assert (report.workload, report.collective, report.n_ranks, report.num_nodes) == (
        "nccl_tests",
        "all_reduce",
        2,
        2,
    )
    assert report.largest.busbw_gbytes_s == 46.0


def test_text_and_its_lines_give_the_same_report():
    assert BenchReport.from_text(iter(TCP.splitlines(keepends=True))) == BenchReport.from_text(TCP)


def test_each_table_of_a_log_is_kept_apart():
    both = BenchReport.all_from_text(TCP + NCCL + TCP.replace("0.1180", "0.0900"))
    assert [report.workload for report in both] == ["tcp", "nccl_tests", "tcp"]
    assert [len(report.pairs) for report in both] == [2, 0, 2]
    assert both[2].pairs[0].gbytes_s == 0.09
    assert BenchReport.from_text(TCP + NCCL).workload == "nccl_tests"


def test_a_cut_table_is_called_incomplete():
    report = BenchReport.from_text(TCP[: TCP.index("# Out of bounds")])
    assert not report.complete
    assert "incomplete" in codes(report.verdict())


@pytest.mark.parametrize("text", ["", "hello\nworld", "# gpufabric-bench format=1\n"])
def test_text_without_a_table_is_an_error_that_quotes_its_last_line(text):
    with pytest.raises(ParseError, match=r"no benchmark table in \d lines"):
        BenchReport.from_text(text)


def no_text_breaks_the_reader(data):
    lines = TCP.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(lines) - 1))
        words = lines[i].split(" ")
        k = data.draw(st.integers(0, len(words) - 1))
        words[k] = data.draw(
            st.text(max_size=12)
            | st.sampled_from(
                ["n_ranks=²", "9" * 5000, "n_ranks=" + "9" * 5000, "nan", "inf", "-1"]
            )
        )
        lines[i] = " ".join(words)
    try:
        reports = BenchReport.all_from_text("\n".join(lines))
    except ParseError:
        return
    for report in reports:
        str(report)
        report._repr_html_()
        str(report.verdict(limit_gbytes_s=1.0))
        assert BenchReport.from_dict(report.to_dict()).collective == report.collective


# Few examples in `make test`, since each costs CPU, and all of them in `make test-hostile`.
test_no_text_breaks_the_reader = settings(max_examples=40, deadline=None)(
    given(st.data())(no_text_breaks_the_reader)
)
test_none_of_many_texts_breaks_the_reader = pytest.mark.slow(
    settings(max_examples=300, deadline=None)(given(st.data())(no_text_breaks_the_reader))
)


# --- as a value -----------------------------------------------------------------------------------


def test_a_report_survives_dict_and_pickle_and_is_hashable():
    report = BenchReport.from_text(TCP)
    assert BenchReport.from_dict(report.to_dict()) == report
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301  # bytes of our own
    assert len({report, BenchReport.from_text(TCP)}) == 1


def test_a_report_from_wrong_data_tells_every_fault():
    with pytest.raises(SpecError) as caught:
        BenchReport.from_dict({"collective": "all_reduce", "rows": [{"size": 1}], "n_rank": 2})
    paths = {problem.path for problem in caught.value.problems}
    assert {"n_rank", "rows[0].size"} <= paths


def test_rows_become_dataframes_with_numbers():
    report = BenchReport.from_text(TCP)
    pandas, polars = report.to_pandas(), report.to_polars()
    assert pandas.shape == polars.shape == (2, 13)
    assert list(pandas.columns) == polars.columns == list(report.to_dicts()[0])
    assert pandas["busbw_gbytes_s"].sum() == pytest.approx(0.0461)
    assert polars["in_place_wrong"].to_list() == [0, None]


def test_a_missing_extra_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gpufabric\[pandas\]'"):
        BenchReport.from_text(TCP).to_pandas()


def test_html_escapes_what_a_log_says():
    report = evolve(BenchReport.from_text(TCP), collective="<script>alert(1)</script>")
    evil = evolve(report, pairs=(evolve(report.pairs[0], source_host="<b>"),))
    assert "<script>" not in evil._repr_html_()
    assert "&lt;script&gt;" in evil._repr_html_()
    assert "<b>" not in evil._repr_html_()


def test_the_text_shows_rows_and_says_that_the_average_is_no_measure():
    text = str(BenchReport.from_text(TCP))
    assert "all_gather (tcp), 4 ranks on 2 nodes" in text
    assert "0.0196 GB/s (not a measure of speed)" in text


def test_a_plot_has_bandwidth_and_time_and_touches_no_global_state(tmp_path):
    code = """if 1:
        import sys
        from gpufabric.bench import BenchReport
        report = BenchReport.from_text(sys.stdin.read())
        figure = report.plot(limit_gbytes_s=0.125)
        figure.savefig(sys.argv[1])
        labels = [axes.get_ylabel() for axes in figure.axes]
        assert labels == ["bus bandwidth, GB/s", "time, us (dotted)"], labels
        assert "matplotlib.pyplot" not in sys.modules
    """
    picture = tmp_path / "report.png"
    subprocess.run([sys.executable, "-c", code, str(picture)], input=TCP, text=True, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pairs_are_drawn_as_a_matrix():
    figure = report_of([1.0], pairs=pairs_of(4)).plot_pairs()
    assert figure.axes[0].get_xlabel() == "to rank"


# --- verdict --------------------------------------------------------------------------------------


def test_without_a_reference_speed_is_measured_only():
    verdict = report_of([1.0, 2.0]).verdict()
    assert verdict.health is Health.INCONCLUSIVE
    assert any("no reference: measured only" in reason for reason in verdict.reasons)
    assert "data: every element that was checked is right" in verdict.reasons


def test_wrong_data_is_sick_however_fast():
    report = report_of([9.9])
    bad = evolve(report, rows=(evolve(report.rows[0], in_place_wrong=3),))
    verdict = bad.verdict(limit_gbytes_s=10)
    assert verdict.health is Health.SICK
    assert verdict.findings[0].code == "data_corruption"
    assert "1048576 bytes: 3 wrong" in verdict.findings[0].cause


@pytest.mark.parametrize(
    ("speed", "health", "found"),
    [
        (95.0, Health.HEALTHY, []),
        (80.0, Health.INCONCLUSIVE, ["below_reference"]),
        (60.0, Health.SICK, ["below_reference"]),
    ],
)
def test_speed_is_judged_against_a_published_result(speed, health, found):
    reference = Reference(
        collective="all_reduce",
        busbw_gbytes_s=100.0,
        size_bytes=8 * GIB,
        nodes=4,
        source="https://x",
    )
    report = report_of([speed / 2, speed, speed], start=2 * GIB, workload="nccl_tests")
    verdict = report.verdict(reference=reference)
    assert (verdict.health, codes(verdict)) == (health, found)
    assert verdict.busbw_gbytes_s == speed


def test_small_sizes_are_not_compared_with_a_result_of_large_ones():
    reference = Reference(collective="all_reduce", busbw_gbytes_s=100.0, size_bytes=8 * GIB)
    verdict = report_of([50.0], workload="nccl_tests").verdict(reference=reference)
    assert verdict.health is Health.INCONCLUSIVE
    assert codes(verdict) == []
    assert any("not compared" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("speed", "health", "found"),
    [
        (0.118, Health.HEALTHY, []),
        (0.08, Health.INCONCLUSIVE, []),
        (0.2, Health.INCONCLUSIVE, ["above_limit"]),
        (0.01, Health.SICK, ["far_below_limit"]),
    ],
)
def test_speed_is_judged_against_the_wire(speed, health, found):
    verdict = report_of([speed, speed], workload="tcp").verdict(limit_gbytes_s=0.125)
    assert (verdict.health, codes(verdict)) == (health, found)


def test_two_nodes_of_nccl_may_exceed_the_wire():
    report = report_of([470.0], start=8 * GIB, n_ranks=16, num_nodes=2, workload="nccl_tests")
    verdict = report.verdict(limit_gbytes_s=400.0)
    assert codes(verdict) == []
    assert verdict.health is Health.INCONCLUSIVE


@pytest.fixture(scope="module")
def p5():
    task = gf.bench.all_reduce("H100:8", num_nodes=2, network_tier="best")
    offers = gf.Fabric.assumed().offers(task).offers
    return next(offer for offer in offers if offer.instance_type == "p5.48xlarge")


@pytest.mark.parametrize(
    ("speed", "health", "found"),
    [
        (450.0, Health.HEALTHY, []),
        (300.0, Health.SICK, ["below_reference"]),
        (3.7, Health.SICK, ["below_reference", "far_below_limit"]),
    ],
)
def test_an_offer_brings_its_published_result_and_its_limit(p5, speed, health, found):
    report = report_of([speed], start=2 * GIB, n_ranks=16, num_nodes=2, workload="nccl_tests")
    verdict = report.verdict(p5)
    assert (verdict.health, codes(verdict)) == (health, found)
    assert verdict.limit_gbytes_s == 400
    assert verdict.reference.source.startswith("https://")


def test_the_published_speed_is_healthy_though_the_table_names_no_nodes(p5):
    report = report_of(
        [470, 478, 480], start=1 << 31, n_ranks=16, num_nodes=None, workload="nccl_tests"
    )
    assert report.num_nodes is None
    verdict = report.verdict(p5)
    assert (verdict.health.value, codes(verdict)) == ("healthy", []), str(verdict)


def test_a_run_on_some_gpus_is_not_held_against_whole_nodes(p5):
    report = report_of([45.0], start=2 * GIB, n_ranks=2, num_nodes=2, workload="nccl_tests")
    verdict = report.verdict(p5)
    assert (verdict.health, verdict.reference) == (Health.INCONCLUSIVE, None)
    assert any("do not use all GPUs" in reason for reason in verdict.reasons)


def test_sockets_are_not_held_against_the_fabric(p5):
    verdict = report_of([1.0], n_ranks=2, num_nodes=2, workload="tcp").verdict(p5)
    assert (verdict.health, verdict.reference, verdict.limit_gbytes_s) == (
        Health.INCONCLUSIVE,
        None,
        None,
    )
    assert any("uses sockets, not the fabric" in reason for reason in verdict.reasons)


def test_the_average_is_never_judged():
    fast = report_of([0.118, 0.118], workload="tcp")
    low = evolve(fast, avg_bus_bandwidth_gbytes_s=0.0001)
    assert low.verdict(limit_gbytes_s=0.125).health is Health.HEALTHY


@pytest.mark.parametrize("slow", [(2,), (0,), (1, 3)])
def test_slow_ranks_are_named_from_pairs_alone(slow):
    verdict = report_of([1.0], pairs=pairs_of(4, slow)).verdict()
    assert verdict.health is Health.SICK
    named = [f.title for f in verdict.findings if f.code == "slow_rank"]
    assert named == [f"rank {rank} on h{rank} is slow with every other" for rank in slow]


def test_a_slow_rail_is_seen_in_a_run_over_real_links():
    slow = BenchReport.from_text((TABLES / "tcp_four_hosts_h2_slow.log").read_text("utf-8"))
    good = BenchReport.from_text((TABLES / "tcp_four_hosts.log").read_text("utf-8"))
    verdict = slow.verdict(limit_gbytes_s=0.125)
    assert (verdict.health, codes(verdict)) == (Health.SICK, ["slow_rank"])
    assert verdict.findings[0].title == "rank 2 on h2 is slow with every other"
    assert codes(good.verdict(limit_gbytes_s=0.125)) == []
    assert compare(good, slow).bandwidth is Change.SLOWER


def test_one_slow_pair_is_a_warning_and_blames_no_rank():
    pairs = tuple(
        evolve(pair, gbytes_s=0.1) if (pair.source_rank, pair.target_rank) == (1, 2) else pair
        for pair in pairs_of(4)
    )
    verdict = report_of([1.0], pairs=pairs).verdict()
    assert codes(verdict) == ["slow_pair"]
    assert verdict.health is Health.INCONCLUSIVE


def test_even_pairs_alarm_nobody():
    uneven = tuple(
        evolve(pair, gbytes_s=1.0 - 0.02 * ((i * 7) % 11)) for i, pair in enumerate(pairs_of(5))
    )
    assert codes(report_of([1.0], pairs=uneven).verdict()) == []


def test_ranks_on_one_host_have_no_network_to_be_slow():
    pairs = tuple(
        evolve(pair, source_host="vm", target_host="vm") for pair in pairs_of(4, slow=(2,))
    )
    assert codes(report_of([1.0], pairs=pairs).verdict()) == []


def test_two_ranks_cannot_tell_which_is_slow():
    assert codes(report_of([1.0], n_ranks=2, pairs=pairs_of(2, slow=(1,))).verdict()) == []


def test_a_dip_is_told_and_makes_nothing_sick():
    verdict = report_of([1.0, 4.0, 1.0, 4.1], workload="tcp").verdict(limit_gbytes_s=4.2)
    assert codes(verdict) == ["dip"]
    assert verdict.findings[0].severity is Severity.NOTE
    assert verdict.health is Health.HEALTHY


def test_a_cliff_at_large_sizes_is_sick():
    assert codes(report_of([1.0, 4.0, 1.5, 1.5]).verdict()) == ["cliff_above_size"]
    assert report_of([1.0, 4.0, 1.5, 1.5]).verdict().health is Health.SICK


def test_one_rank_proves_nothing_of_a_network():
    report = evolve(report_of([1.0]), n_ranks=1)
    verdict = report.verdict(limit_gbytes_s=1.0)
    assert verdict.health is Health.INCONCLUSIVE
    assert codes(verdict) == ["tests_built_without_mpi"]


def test_a_verdict_survives_dict_and_pickle_and_reads_well():
    verdict = report_of([1.0], pairs=pairs_of(4, (2,))).verdict(limit_gbytes_s=1.05)
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    assert pickle.loads(pickle.dumps(verdict)) == verdict  # noqa: S301  # bytes of our own
    assert str(verdict).startswith("network: sick\n")
    assert "Take h2 out of the gang" in verdict._repr_html_()


# --- comparing ------------------------------------------------------------------------------------


def test_a_run_is_the_same_as_itself():
    comparison = compare(report_of([1.0, 2.0]), report_of([1.0, 2.0]))
    assert (comparison.bandwidth, comparison.noise) == (Change.SAME, 0.05)
    assert all(row.ratio == 1 for row in comparison.rows)


@pytest.mark.parametrize(
    ("after", "change"),
    [(1.04, Change.SAME), (0.96, Change.SAME), (1.2, Change.FASTER), (0.8, Change.SLOWER)],
)
def test_a_change_counts_when_it_is_more_than_noise(after, change):
    assert compare(report_of([0.5, 1.0]), report_of([0.5, after])).bandwidth is change


def test_a_noisy_run_needs_a_greater_change():
    quiet = report_of([1.0, 1.0])
    noisy = evolve(
        quiet, rows=tuple(evolve(r, in_place_time_us=r.time_us * 1.5) for r in quiet.rows)
    )
    assert compare(quiet, report_of([0.8, 0.8])).bandwidth is Change.SLOWER
    assert compare(noisy, report_of([0.8, 0.8])).bandwidth is Change.SAME


def test_sizes_that_only_one_run_has_are_told():
    comparison = compare(report_of([1.0, 1.0]), report_of([1.0, 1.0, 1.0]))
    assert comparison.left_out == (1 << 22,)
    assert len(comparison.rows) == 2


def test_runs_of_different_benchmarks_are_refused_with_every_difference():
    with pytest.raises(SpecError) as caught:
        compare(report_of([1.0]), report_of([1.0], collective="all_gather", n_ranks=8))
    assert {problem.path for problem in caught.value.problems} == {
        "collective",
        "n_ranks",
        "num_nodes",
    }


def test_a_run_that_became_wrong_is_told():
    good = report_of([1.0])
    bad = evolve(good, rows=(evolve(good.rows[0], wrong=1),))
    assert compare(good, bad).became_wrong
    assert not compare(bad, bad).became_wrong
    assert "DATA IS WRONG" in compare(good, bad).summary()


def test_a_comparison_survives_dict_and_is_escaped():
    comparison = compare(report_of([1.0], start=256), report_of([2.0], start=256))
    assert Comparison.from_dict(comparison.to_dict()) == comparison
    assert comparison.latency is Change.FASTER
    assert comparison._repr_html_().startswith("<table")
