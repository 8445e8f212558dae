"""What planning a gang on Kubernetes costs: python benchmarks/bench_kubernetes_plan.py

From a site of 1,000 dressed nodes: the offers, the plan, and its objects as JSON, for 2 and for
1,000 nodes; and how many objects and writes each takes. CPU time of one process, the median of
many, each with a name of its own. Figures are printed, never asserted.

`--peer PYTHON` names an interpreter that has `torchx` and `kubernetes`, or `kubeflow`: what these
take to render their own job of as many nodes stands beside. They are told when they are not there.

    python -m venv peers && peers/bin/pip install torchx kubernetes kubeflow
    python benchmarks/bench_kubernetes_plan.py --peer peers/bin/python
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from gpufabric._frozen import thaw
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.catalog.index import Catalog
from gpufabric.plan import LaunchPlan, Offer
from gpufabric.task import Task

TESTS = Path(__file__).parents[1] / "tests"
PEER = """
import json, statistics, time, warnings
NODES, TIMES = {nodes}, {times}
def tell(make):
    make()
    took = []
    for _ in range(TIMES):
        t0 = time.process_time()
        text = make()
        took.append((time.process_time() - t0) * 1e3)
    print(json.dumps([statistics.median(took), len(text)]))
"""
PEERS = {
    "torchx: a Volcano Job of app_to_resource": """
from torchx.schedulers.kubernetes_scheduler import app_to_resource, sanitize_for_serialization
from torchx.specs import AppDef, Resource, Role
role = Role(name="train", image="i:1", entrypoint="sh", args=["-c", "train"], num_replicas=NODES,
            env={"NCCL_DEBUG": "INFO"}, resource=Resource(cpu=1, gpu=8, memMB=1024))
app = AppDef(name="train", roles=[role])
tell(lambda: json.dumps(sanitize_for_serialization(app_to_resource(app, "default", None))))
""",
    "kubeflow: a TrainJob of its SDK's models": """
from kubeflow.trainer.backends.kubernetes import utils
from kubeflow.trainer.types import types
from kubeflow_trainer_api import models
trainer = types.RuntimeTrainer(trainer_type=types.TrainerType.CUSTOM_TRAINER, framework="torch",
                               image="i:1")
trainer.set_command(("torchrun",))
runtime = types.Runtime(name="torch-distributed", trainer=trainer,
                        kind=types.RuntimeKind.CLUSTER_TRAINING_RUNTIME)
asked = types.CustomTrainerContainer(image="i:1", num_nodes=NODES, resources_per_node={"gpu": 8},
                                     env={"NCCL_DEBUG": "INFO"})
def make():
    spec = models.TrainerV1alpha1TrainJobSpec(
        runtimeRef=models.TrainerV1alpha1RuntimeRef(name=runtime.name),
        trainer=utils.get_trainer_cr_from_custom_trainer(runtime, asked))
    job = models.TrainerV1alpha1TrainJob(
        apiVersion="trainer.kubeflow.org/v1alpha1", kind="TrainJob",
        metadata=models.IoK8sApimachineryPkgApisMetaV1ObjectMeta(name="train"), spec=spec)
    return json.dumps(job.to_dict())
tell(make)
""",
}


def golden() -> ModuleType:
    """The module that dresses nodes for the golden plans."""
    path = TESTS / "data" / "plans" / "write_kubernetes.py"
    spec = importlib.util.spec_from_file_location("write_kubernetes", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def median(make: Callable[[int], object], times: int) -> float:
    """Milliseconds of CPU of one call, after one that is not counted."""
    make(-1)
    took: list[float] = []
    for number in range(times):
        start = time.process_time()
        make(number)
        took.append((time.process_time() - start) * 1e3)
    return statistics.median(took)


def render(plan: LaunchPlan) -> str:
    """The requests' bodies as they are sent."""
    return json.dumps([thaw(step.body) for step in plan.steps])


def ours(profile: str, nodes: int, times: int) -> None:
    """Prints what a gang costs here."""
    catalog = Catalog.shipped()
    site: Site = golden().site(profile, 1000)
    wish = {"accelerators": str(site.pools[0].accelerator), "network_tier": "best", "image": "i:1"}
    asked: dict[str, object] = {
        "run": "train", "num_nodes": nodes, "resources": wish, "workdir": "/src",
        "secrets": {"TOKEN": "x"},
    }  # fmt: skip
    task = Task.from_dict(asked)

    def offer(_: int) -> Offer:
        found = make_offers(task, site, catalog, image=None, patch={}).best
        assert found is not None
        return found

    best = offer(0)

    def plan(number: int) -> LaunchPlan:
        return make_plan(
            task, best, site, catalog, run=str(number), image=None, patch={}, grace_s=10
        )

    steps = [step for step in plan(0).steps if step.verb not in {"pack", "serve"}]
    size = len(render(plan(0)))
    print(
        f"{profile}, {nodes} nodes: plan and render {median(lambda n: render(plan(n)), times):.2f}"
        f" ms, offers {median(offer, times):.2f} ms; {len(steps)} writes, {size / 1e3:.1f} kB"
    )


def peers(python: str, nodes: int, times: int) -> None:
    """Prints what others take to render as many nodes, or that they are not there."""
    for name, code in PEERS.items():
        text = PEER.format(nodes=nodes, times=times) + code
        done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no word"])[-1]
            print(f"{name}: not measured: {why}")
            continue
        took, size = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"{name}, {nodes} nodes: {took:.2f} ms, {size / 1e3:.1f} kB")


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description="What planning a gang on Kubernetes costs.")
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--profile", default="eks-p5")
    parser.add_argument("--peer", help="an interpreter that has torchx or kubeflow")
    args = parser.parse_args()
    for profile in dict.fromkeys((args.profile, "gke-a3-mega")):
        for nodes in (2, 1000):
            ours(profile, nodes, args.times)
    for nodes in (2, 1000):
        peers(args.peer or sys.executable, nodes, max(3, args.times // 20))


if __name__ == "__main__":
    main()
