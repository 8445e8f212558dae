"""What offline planning costs: python benchmarks/bench_offers.py

CPU time and memory of the first and the warm plan over all clouds, of many questions, and of a
synthetic overlay of 50,000 rows. Figures are printed, never asserted. Where SkyPilot or TorchX are
installed (`--peer PYTHON`, an interpreter that has them), what they take stands beside.

A first plan is measured in a fresh interpreter, its imports apart and everything together, as a
user meets it. Bytecode is there, as after an install: it is compiled into a folder of its own
first, whatever `PYTHONDONTWRITEBYTECODE` says. Imports of attrs and of the standard library count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
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
print(t0 * 1e3, (t1 - t0) * 1e3, (t2 - t1) * 1e3, (t3 - t2) * 1e3, (peak - bare) / 1024, t3 * 1e3)
"""
BARE = "import time; print(time.process_time() * 1e3)"
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


def fresh(code: str, bytecode: str, python: str = sys.executable) -> str:
    """What a fresh interpreter prints; it keeps its bytecode in a folder of ours."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, env=env
    ).stdout


def first(times: int) -> None:
    """The first plan of a process."""
    with tempfile.TemporaryDirectory() as bytecode:
        for code in (BARE, FIRST, CATALOG):
            fresh(code, bytecode)
        bare = [float(fresh(BARE, bytecode)) for _ in range(times)]
        rows = [list(map(float, fresh(FIRST, bytecode).split())) for _ in range(times)]
        catalog = [float(fresh(CATALOG, bytecode)) for _ in range(times)]
    start, imports, fabric, plan, peak, whole = zip(*rows, strict=True)
    tell("bare interpreter", bare, "ms CPU")
    tell("imports and task", imports, "ms CPU", "attrs and the standard library included")
    tell("Fabric.assumed()", fabric, "ms CPU", "imports of planning included")
    tell("first plan", plan, "ms CPU", "budget 60, without imports")
    tell("  all three", [sum(row[1:4]) for row in rows], "ms CPU", "a user's first answer")
    tell("  whole process", whole, "ms CPU", f"from the interpreter's start, {min(start):.0f} ms")
    tell("peak over bare", peak, "MiB", "budget 30")
    tell("first use of the catalog", catalog, "ms CPU", "budget 25, its imports included")


def tell(what: str, found: Iterable[float], unit: str, note: str = "") -> None:
    """One line: the median, the least, and the budget."""
    seen = list(found)
    said = f"  ({note})" if note else ""
    print(f"{what:26s}{statistics.median(seen):8.2f} {unit:7s}least {min(seen):7.2f}{said}")


def warm(times: int) -> None:
    """Plans and offers once everything is loaded."""
    import gpufabric as gf

    fabric = gf.Fabric.assumed()

    def task(accelerators: str, tier: str) -> gf.Task:
        wanted = gf.Resources(accelerators=accelerators, network_tier=tier)
        return gf.Task(run="true", num_nodes=2, resources=wanted)

    one = task("H100:8", "best")
    tell("warm plan", cpu(lambda: fabric.plan(one), times), "ms CPU", "budget 3")
    many = [task(a, t) for a in ACCELERATORS for t in ("standard", "gpudirect", "best")]

    def all_of_them() -> None:
        for asked in many:
            fabric.offers(asked)

    offers = sum(len(fabric.offers(asked).offers) for asked in many)
    tell("30 questions", cpu(all_of_them, times), "ms CPU", f"budget 40; {offers} offers")


def cpu(call: Callable[[], object], times: int) -> list[float]:
    """CPU milliseconds of each of so many calls, after one that warms."""
    call()
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append((time.process_time() - start) * 1e3)
    return found


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
    query = statistics.median(cpu(lambda: assumed_offers(asked, cloud, catalog), 20))
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
            with tempfile.TemporaryDirectory() as bytecode:
                fresh(timed, bytecode, args.peer)
                took = float(fresh(timed, bytecode, args.peer).split()[-1])
            print(f"{name}: {took:.0f} ms CPU")
        except subprocess.CalledProcessError as exc:
            print(f"{name}: did not run here: {exc.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
