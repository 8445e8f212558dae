"""torchrun meets itself across local nodes, with flags and bare."""

import sys
from pathlib import Path

import pytest

from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.job import JobState
from gpufabric.task import Task

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(x)
print("sum", x.item(), "of", dist.get_world_size(), flush=True)
"""
FLAGS = (
    "--nnodes $NNODES --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)


@pytest.mark.parametrize("flags", [FLAGS, ""], ids=["flags", "bare"])
def test_torchrun_forms_one_group_of_all_nodes(tmp_path: Path, flags: str) -> None:
    pytest.importorskip("torch")
    local = Local(tmp_path / "jobs", Settings(stop_grace_s=5))
    run = f"{sys.executable} -m torch.distributed.run {flags} train.py"
    # The second attempt shows that the held port can be listened on again.
    last = "; code=$?; [ $GPUFABRIC_ATTEMPT = 1 ] && exit $code; exit 9"
    task = Task(run=run + last, files={"train.py": SCRIPT}, num_nodes=3, max_restarts=1)
    site = local.discover()
    ref = local.apply(local.plan(task, local.offers(task, site).offers[0], site))
    lines = list(local.logs(ref, follow=True))
    status = local.status(ref)
    local.teardown(ref)
    assert status.state is JobState.SUCCEEDED, "\n".join(map(str, lines))
    assert status.attempt == 1
    said = [line.text for line in lines if line.stream == "stdout" and line.attempt == 1]
    assert said == ["sum 6 of 3"] * 3
