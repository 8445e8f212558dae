"""The torch workload on gloo, as the task makers ship it; needs PyTorch in this interpreter."""

import importlib.util
import os
import socket
import subprocess
import sys

import pytest

from gpufabric import bench

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not here"),
    pytest.mark.timeout(180),
]

MAKERS = (
    bench.all_reduce,
    bench.all_gather,
    bench.reduce_scatter,
    bench.alltoall,
    bench.broadcast,
    bench.reduce,
    bench.sendrecv,
)


def start(task, folder):
    """Every node of the task as a process, with the variables that every backend sets."""
    folder.mkdir(exist_ok=True)
    for name, text in task.files.items():
        (folder / name).write_text(text, "utf-8")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, *task.run[1:]],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "GPUFABRIC_NODE_RANK": str(rank),
                "GPUFABRIC_NUM_NODES": str(task.num_nodes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(task.num_nodes)
    ]


def finish(nodes):
    try:
        texts = [node.communicate(timeout=150) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    return [(node.returncode, *text) for node, text in zip(nodes, texts, strict=True)]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_collective_gives_right_data_on_gloo(make, tmp_path):
    task = make(
        num_nodes=3, workload="torch", min_bytes=1, max_bytes=300_000, factor=70, iters=2, warmup=1
    )
    ended = finish(start(task, tmp_path / "work"))
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 3
    report = bench.BenchReport.from_text(ended[0][1])
    assert (report.workload, report.backend, report.n_ranks) == ("torch", "gloo", 3)
    assert report.collective == make.__name__
    assert report.is_correct is True
    assert report.complete
    assert report.largest is not None
    assert (report.largest.best_busbw_gbytes_s or 0) > 0


def test_several_ranks_on_a_node_all_take_part(tmp_path):
    task = bench.all_reduce(
        num_nodes=2, nproc_per_node=2, workload="torch", max_bytes=4096, iters=2, dtype="float"
    )
    ended = finish(start(task, tmp_path / "work"))
    assert [code for code, _, _ in ended] == [0, 0]
    report = bench.BenchReport.from_text(ended[0][1])
    assert (report.n_ranks, report.num_nodes, report.dtype) == (4, 2, "float")


def test_a_killed_rank_fails_the_others(tmp_path):
    task = bench.all_reduce(
        num_nodes=3, workload="torch", min_bytes=1 << 20, max_bytes=1 << 20, iters=1_000_000
    )
    nodes = start(task, tmp_path / "work")
    for line in nodes[0].stdout:
        if "(elements)" in line:
            break
    nodes[2].kill()
    ended = finish(nodes)
    assert [code for code, _, _ in ended[:2]] == [3, 3], ended
    assert all("gpufabric-bench: rank" in err for _, _, err in ended[:2]), ended


def test_nccl_without_gpus_is_refused_in_words(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    task = bench.all_reduce(num_nodes=2, workload="torch")
    nodes = start(evolve_run(task, "--backend", "nccl"), tmp_path / "work")
    ended = finish(nodes)
    assert [code for code, _, _ in ended] == [2, 2]
    assert all("nccl needs a GPU for each of 1 ranks; this node shows 0" in e for _, _, e in ended)


def evolve_run(task, *more):
    from attrs import evolve

    return evolve(task, run=(*task.run, *more))
