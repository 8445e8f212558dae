"""A benchmark through the whole library: launched on this machine, read by the handle."""

import pytest
from attrs import evolve

import gpufabric as gf
from gpufabric import bench
from gpufabric.errors import JobFailedError

SMALL = {"num_nodes": 2, "max_bytes": 4096, "iters": 2, "warmup": 0}


@pytest.fixture
def fabric():
    with gf.Fabric(gf.Local()) as made:
        yield made


def test_a_benchmark_gives_its_report(fabric):
    with fabric.launch(bench.alltoall(pairwise=True, **SMALL)) as job:
        report = job.bench(timeout=60)
    assert (report.collective, report.n_ranks, report.num_nodes) == ("alltoall", 2, 2)
    assert report.is_correct is True
    assert len(report.pairs) == 2
    assert report.verdict(job.plan.offer).health == "inconclusive"


def test_wrong_data_is_a_report_and_not_an_error(fabric):
    task = bench.broadcast(**SMALL)
    text = task.files["gpufabric_bench.py"]
    spoiled = text.replace("        RUN[self.o.collective](job)\n", SPOIL)
    assert spoiled != text
    with fabric.launch(evolve(task, files={"gpufabric_bench.py": spoiled})) as job:
        report = job.bench(timeout=60)
        assert job.status().state is gf.JobState.FAILED
    assert report.is_correct is False
    assert report.verdict().health == "sick"


SPOIL = """\
        RUN[self.o.collective](job)
        if rank == 1:
            job.recv[0] ^= 1
"""


def test_a_benchmark_that_fails_before_its_table_says_how(fabric):
    task = bench.all_reduce(**SMALL, interface="nowhere0")
    with fabric.launch(task) as job, pytest.raises(JobFailedError) as caught:
        job.bench(timeout=60)
    assert any("nowhere0" in str(line) for line in caught.value.tail)
