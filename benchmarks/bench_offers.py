"""What offline planning costs: python benchmarks/bench_offers.py

CPU time and memory of the first and the warm plan over all clouds, of many questions, and of a
synthetic overlay of 50,000 rows. Figures are printed, never asserted. Where SkyPilot or TorchX are
installed (`--peer PYTHON`, an interpreter that has them), what they take stands beside.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST = """
import resource, sys, time
bare = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
t0 = time.process_time()
import gpufabric as gf
wanted = gf.Resources(accelerators="H100:8", network_tier="best")
task = gf.Task(run="true", num_nodes=2, resources=wanted)
t1 = time.process_time()
fabric = gf.Fabric.assumed()
t2 = time.process_time()
plan = fabric.plan(task)
t3 = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((t1 - t0) * 1e3, (t2 - t1) * 1e3, (t3 - t2) * 1e3, (peak - bare) / 1024)
"""
CATALOG = """
import json, time
import gpufabric.errors, gpufabric._frozen
t0 = time.process_time()
from gpufabric.catalog import Catalog
cloud = Catalog.shipped().cloud("aws")
cloud.types("H100"); cloud.prices("p5.48xlarge"); cloud.env_rows("p5.48xlarge", "eks")
cloud.kubernetes_rows("p5.48xlarge", "eks"); cloud.nic_layout("p5.48xlarge", "eks")
print((time.process_time() - t0) * 1e3)
"""
PEERS = {
    "torchx: import torchx.runner": "import torchx.runner",
    "sky: optimiser for 2 x H100:8": (
        "import sky; t = sky.Task(run='true', num_nodes=2); "
        "t.set_resources(sky.Resources(accelerators='H100:8')); "
        "d = sky.Dag(); d.add(t); sky.optimizer.Optimizer.optimize(d, quiet=True)"
    ),
}
ACCELERATORS = ("H100:8", "H200:8", "B200:8", "B300:8", "GB200:4", "A100-80GB:8", "A100-40GB:8",
                "L40S:4", "MI300X:8", "L4:1")  # fmt: skip


def fresh(code: str, python: str = sys.executable) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout


def first(times: int) -> None:
    """The first plan of a process."""
    rows = [list(map(float, fresh(FIRST).split())) for _ in range(times)]
    imports, fabric, plan, peak = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"import and task     {imports:8.1f} ms CPU")
    print(f"Fabric.assumed()    {fabric:8.1f} ms CPU")
    print(f"first plan          {plan:8.1f} ms CPU   (budget 60)")
    print(f"peak over bare      {peak:8.1f} MiB      (budget 30)")
    catalog = statistics.median(float(fresh(CATALOG)) for _ in range(times))
    print(f"first use of the catalog {catalog:3.1f} ms CPU   (budget 25)")


def warm(times: int) -> None:
    """Plans and offers once everything is loaded."""
    import gpufabric as gf

    fabric = gf.Fabric.assumed()

    def task(accelerators: str, tier: str) -> gf.Task:
        wanted = gf.Resources(accelerators=accelerators, network_tier=tier)
        return gf.Task(run="true", num_nodes=2, resources=wanted)

    one = task("H100:8", "best")
    print(f"warm plan           {cpu(lambda: fabric.plan(one), times):8.2f} ms CPU   (budget 3)")
    many = [task(a, t) for a in ACCELERATORS for t in ("standard", "gpudirect", "best")]

    def all_of_them() -> None:
        for asked in many:
            fabric.offers(asked)

    print(f"30 questions        {cpu(all_of_them, times):8.1f} ms CPU   (budget 40)")
    offers = sum(len(fabric.offers(asked).offers) for asked in many)
    print(f"  their offers      {offers:8d}")


def cpu(call, times: int) -> float:
    """Median CPU milliseconds of a call."""
    call()
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append((time.process_time() - start) * 1e3)
    return statistics.median(found)


def overlay(rows: int) -> None:
    """A private cloud of many types: load once, then ask for one accelerator."""
    from gpufabric import Resources, Task
    from gpufabric.catalog import Catalog
    from gpufabric.net.resolve import assumed_offers

    source = ["https://example.org"]
    models = [f"X{number}" for number in range(rows // 50)]
    body = {
        "cloud": {"name": "big", "title": "big", "as_of": "2026-11-30"},
        "platform": [
            {"name": "vm", "title": "vm", "kind": "vm", "any_type": True, "sources": source}
        ],
        "interconnect": [{"name": "ib", "kind": "infiniband", "scope": "x", "sources": source}],
        "instance_type": [
            {
                "name": f"type-{number}",
                "gpu": {"model": models[number % len(models)], "count": 8},
                "interconnect": "ib",
                "nics": {"model": "CX7", "count": 8, "gbps_each": 400, "gpudirect": "rdma"},
                "sources": source,
            }
            for number in range(rows)
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.json"
        path.write_text(json.dumps(body), encoding="utf-8")
        start = time.process_time()
        catalog = Catalog.shipped().with_overlays(path)
        load = time.process_time() - start
    cloud = catalog.cloud("big")
    asked = Task(run="true", num_nodes=2, resources=Resources(accelerators="X7:8"))
    query = cpu(lambda: assumed_offers(asked, cloud, catalog), 20)
    found = len(assumed_offers(asked, cloud, catalog).offers)
    print(f"{rows:6d} rows: load {load:5.2f} s, warm query of {found} offers {query:6.2f} ms CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=11)
    parser.add_argument("--peer", help="an interpreter with SkyPilot and TorchX")
    args = parser.parse_args()
    first(args.times)
    warm(args.times)
    for rows in (5_000, 10_000, 50_000):
        overlay(rows)
    print("(budgets at 50,000 rows: load 1 s, warm query 5 ms)")
    for name, code in PEERS.items() if args.peer else ():
        timed = (
            f"import time; t = time.process_time()\n{code}\nprint((time.process_time() - t) * 1e3)"
        )
        try:
            print(f"{name}: {float(fresh(timed, args.peer).split()[-1]):.0f} ms CPU")
        except subprocess.CalledProcessError as exc:
            print(f"{name}: did not run here: {exc.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
