"""Measure a gang's network: benchmarks as tasks, and what they found as typed reports."""

from importlib import import_module
from typing import TYPE_CHECKING

from gpufabric.bench._tasks import (
    BenchOptions,
    Workload,
    all_gather,
    all_reduce,
    alltoall,
    broadcast,
    reduce,
    reduce_scatter,
    sendrecv,
)
from gpufabric.bench.report import BenchPair, BenchReport, BenchRow, bus_factor

if TYPE_CHECKING:
    from gpufabric.bench.comparing import Change, ComparedRow, Comparison, compare
    from gpufabric.bench.verdict import Verdict

# What most programs never ask for is loaded when it is.
_HOME = {
    "Change": "comparing",
    "ComparedRow": "comparing",
    "Comparison": "comparing",
    "Verdict": "verdict",
    "compare": "comparing",
}

__all__ = [
    "BenchOptions",
    "BenchPair",
    "BenchReport",
    "BenchRow",
    "Change",
    "ComparedRow",
    "Comparison",
    "Verdict",
    "Workload",
    "all_gather",
    "all_reduce",
    "alltoall",
    "broadcast",
    "bus_factor",
    "compare",
    "reduce",
    "reduce_scatter",
    "sendrecv",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
