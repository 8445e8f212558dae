"""What the local backend costs: a plan, a launch, following logs, many nodes.

Run it: `python benchmarks/bench_local.py`. It prints one line a figure; nothing is asserted.
"""

import argparse
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gpufabric as gf

WRITER = """
import os, sys
line = b"x" * 63 + b"\\n"
block, lines = line * 1000, int(sys.argv[1])
for _ in range(lines // 1000):
    os.write(1, block)
"""


def machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


def show(what: str, value: str, budget: str) -> None:
    print(f"{what:<48} {value:>22}   budget {budget}")


def plan_ms(fabric: gf.Fabric) -> float:
    task = gf.Task(name="noop", run="true", num_nodes=4)
    backend = fabric.backends[0]
    site = backend.discover()
    times = []
    for i in range(200):
        begun = time.perf_counter()
        offer = backend.offers(task, site).offers[0]
        backend.plan(task, offer, site, run=str(i))
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def first_line_s(fabric: gf.Fabric) -> float:
    times = []
    for i in range(5):
        task = gf.Task(name=f"first-{i}", run="echo here", num_nodes=4)
        begun = time.perf_counter()
        with fabric.launch(task) as job:
            next(iter(job.logs(follow=True)))
            times.append(time.perf_counter() - begun)
            job.wait()
    return statistics.median(times)


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def follow(fabric: gf.Fabric, lines: int) -> tuple[float, float, float]:
    """Lines a second, and MiB of memory after the first tenth and at the end."""
    task = gf.Task(
        name=f"lines-{lines}", run=[sys.executable, "-c", WRITER, str(lines)], num_nodes=1
    )
    early = 0.0
    with fabric.launch(task) as job:
        begun = time.perf_counter()
        count = 0
        for _ in job.logs(follow=True):
            count += 1
            if count == lines // 10:
                early = rss_mib()
        took = time.perf_counter() - begun
        assert count == lines, (count, lines)
        return count / took, early, rss_mib()


def many_nodes_s(fabric: gf.Fabric) -> float:
    begun = time.perf_counter()
    with fabric.launch(gf.Task(name="many", run="true", num_nodes=64)) as job:
        job.wait().raise_for_state()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=2_000_000)
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as root:
        settings = gf.Settings(trust_env=True)
        with gf.Fabric(gf.Local(root, settings=settings), settings=settings) as fabric:
            show("plan of 4 nodes, offers included", f"{plan_ms(fabric):.2f} ms", "1 ms")
            show("launch of 4 nodes to the first line", f"{first_line_s(fabric):.2f} s", "0.5 s")
            rate, early, late = follow(fabric, arguments.lines)
            show("logs(follow=True)", f"{rate:,.0f} lines/s", "200,000 lines/s")
            show("memory at a tenth, at the end", f"{early:.0f}, {late:.0f} MiB", "flat")
            show("64 nodes started, ended, removed", f"{many_nodes_s(fabric):.2f} s", "5 s")


if __name__ == "__main__":
    main()
