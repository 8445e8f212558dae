"""What a user's type checker must accept and refuse. Read by mypy and pyright, never run."""

from typing import assert_type

import gpufabric as gf

task = gf.Task(
    name="t",
    run=["torchrun", "train.py"],
    num_nodes=4,
    resources=gf.Resources(accelerators="H100:8", network_tier="best", memory_gib="64+"),
    envs={"A": "1"},
    secrets={"TOKEN": "x"},
)
assert_type(task.resources, gf.Resources)
assert_type(task.resources.network_tier, gf.NetworkTier)
assert_type(task.num_nodes, int)

fabric = gf.Fabric(gf.Local())
plan = fabric.plan(task)
assert_type(plan, gf.LaunchPlan)
assert_type(fabric.offers(task).best, gf.Offer | None)
job = fabric.launch(plan)
assert_type(job, gf.JobHandle)
assert_type(job.wait(timeout=3).state, gf.JobState)
for line in job.logs(follow=True):
    assert_type(line, gf.LogLine)
assert_type(job.exec("nvidia-smi"), gf.ExecResult)
assert_type(job.exec(["nvidia-smi"], node_rank=None), tuple[gf.ExecResult, ...])
with job.port_forward(8888, node_rank=1) as forward:
    assert_type(forward.port, int)
with job.jupyter() as server:
    assert_type(server.url, str)
assert_type(job.ssh_config(), str)
assert_type(fabric.jobs(), tuple[gf.JobRef, ...])

job.exec(7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
fabric.launch("not a task")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
gf.Task()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
gf.Task("sh")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
task.num_nodes = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def main() -> None:
    async with gf.AsyncFabric(gf.Local()) as fabric:
        job = await fabric.launch(task, policy=gf.LaunchPolicy(max_attempts=3))
        assert_type(job.ref, gf.JobRef)
        async for line in job.logs():
            assert_type(line, gf.LogLine)
        assert_type(await job.exec("true"), gf.ExecResult)
        assert_type(await job.exec("true", node_rank=None), tuple[gf.ExecResult, ...])
        async with job.port_forward(80) as at:
            assert_type(at, gf.PortForward)
