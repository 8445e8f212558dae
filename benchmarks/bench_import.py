"""What `import gpufabric` costs over a bare interpreter, and reading a task. Budgets: design.

Each figure is the best of several new processes: CPU seconds and peak memory, bare ones taken off.
"""

import json
import subprocess
import sys
import time
import timeit

REPEATS = 7
PROBE = """
import resource
{code}
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
CASES = {
    "import gpufabric": ("import gpufabric", 60.0, 12.0),
    "from gpufabric import Task, Fabric, Local": (
        "from gpufabric import Task, Fabric, Local",
        None,
        None,
    ),
}


def cost(code: str) -> tuple[float, float]:
    found = []
    for _ in range(REPEATS):
        out = subprocess.run(
            [sys.executable, "-c", PROBE.format(code=code)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        cpu, rss = out.split()
        found.append((float(cpu) * 1000, int(rss) / 1024))
    return min(cpu for cpu, _ in found), min(rss for _, rss in found)


def main() -> int:
    failed = 0
    bare = cost("pass")
    for name, (code, cpu_budget, rss_budget) in CASES.items():
        cpu, rss = (a - b for a, b in zip(cost(code), bare, strict=True))
        told = f"{name:45} {cpu:7.1f} ms CPU  {rss:6.1f} MiB"
        if cpu_budget is not None and rss_budget is not None:
            ok = cpu <= cpu_budget and rss <= rss_budget
            failed |= not ok
            told += f"   budget {cpu_budget:g} ms, {rss_budget:g} MiB: {'kept' if ok else 'BROKEN'}"
        print(told)
    from gpufabric import Task

    data = json.loads(
        json.dumps(
            {
                "name": "llama",
                "run": "torchrun train.py",
                "num_nodes": 4,
                "resources": {"accelerators": "H100:8", "network_tier": "best", "cpus": "64+"},
                "envs": {f"NAME_{i}": str(i) for i in range(10)},
            }
        )
    )
    Task.from_dict(data)
    ms = (
        min(
            timeit.repeat(
                lambda: Task.from_dict(data), timer=time.process_time, number=200, repeat=9
            )
        )
        / 200
        * 1000
    )
    ok = ms <= 0.2
    print(f"{'Task.from_dict':45} {ms:7.3f} ms   budget 0.2 ms: {'kept' if ok else 'BROKEN'}")
    return failed or not ok


if __name__ == "__main__":
    sys.exit(main())
