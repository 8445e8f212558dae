"""Benchmarks as tasks: what a maker asks for, and that what it ships really runs."""

import subprocess
import sys

import pytest

import gpufabric as gf
from gpufabric import bench
from gpufabric.errors import SpecError

MAKERS = (
    bench.all_reduce,
    bench.all_gather,
    bench.reduce_scatter,
    bench.alltoall,
    bench.broadcast,
    bench.reduce,
    bench.sendrecv,
)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_maker_gives_a_task_that_measures_its_collective(make):
    task = make(num_nodes=3, pairwise=True, max_bytes=4096)
    assert task.num_nodes == 3
    assert task.name == "bench-" + make.__name__.replace("_", "-")
    assert task.run[:4] == ("python3", "gpufabric_bench.py", "--collective", make.__name__)
    assert "--pairwise" in task.run
    assert gf.Task.from_dict(task.to_dict()) == task


def test_the_same_call_makes_the_same_task():
    assert bench.all_reduce(num_nodes=4) == bench.all_reduce(num_nodes=4)


@pytest.mark.parametrize("workload", ["tcp", "torch", "nccl_tests"])
def test_what_is_shipped_starts_in_an_empty_folder_without_gpufabric(tmp_path, workload):
    task = bench.all_reduce(num_nodes=2, workload=workload)
    for name, text in task.files.items():
        (tmp_path / name).write_text(text, "utf-8")
    ended = subprocess.run(
        [sys.executable, "-I", "-c", START, task.run[1], "--help", *task.run[2:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--collective" in ended.stdout


START = """
import runpy, sys
sys.modules["gpufabric"] = None  # importing it fails: a node need not have it
sys.path.insert(0, ".")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_accelerators_choose_torch_and_a_rank_for_each_gpu():
    task = bench.all_reduce("H100:8", num_nodes=2, network_tier="best")
    assert set(task.files) == {"gpufabric_bench.py", "gpufabric_bench_tcp.py"}
    flags = dict(zip(task.run[2::2], task.run[3::2], strict=True))
    assert (flags["--nproc"], flags["-e"], flags["-d"]) == ("8", str(8 << 30), "float")
    assert task.resources.network_tier is gf.NetworkTier.BEST
    assert task.resources.accelerator.count == 8


def test_resources_may_be_given_whole():
    node = gf.Resources(accelerators="H200:8", network_tier="gpudirect")
    assert bench.all_gather(resources=node).resources == node


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"min_bytes": 10, "max_bytes": 5, "factor": 1}, {"max_bytes", "factor"}),
        ({"num_nodes": 1}, {"num_nodes"}),
        ({"iters": 0, "warmup": -1}, {"iters", "warmup"}),
        ({"dtype": "fp4"}, {"dtype"}),
        ({"workload": "torch", "pairwise": True}, {"pairwise"}),
        ({"workload": "tcp", "flags": ["-z", "1"], "binary": "/x"}, {"flags", "binary"}),
        ({"resources": gf.Resources(), "network_tier": "best"}, {"network_tier"}),
    ],
)
def test_a_wrong_wish_is_refused_with_every_fault(options, paths):
    with pytest.raises(SpecError) as caught:
        bench.all_reduce(**options)
    assert {problem.path for problem in caught.value.problems} == paths


def test_a_wrong_workload_is_answered_with_the_near_one():
    with pytest.raises(SpecError, match="did you mean torch"):
        bench.all_reduce(workload="torhc")


def test_a_wrong_name_is_a_type_error():
    with pytest.raises(TypeError, match="num_node"):
        bench.all_reduce(num_node=4)


def test_the_package_loads_nothing_heavy():
    code = (
        "import sys, gpufabric.bench as b; b.all_reduce();"
        "print([m for m in ('cattrs', 'pandas', 'polars', 'numpy', 'matplotlib', 'torch')"
        " if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert all(getattr(bench, name) is not None for name in bench.__all__)
