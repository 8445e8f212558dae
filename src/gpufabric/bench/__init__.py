"""Measure a gang's network: benchmarks as tasks, and what they found as typed reports."""

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

__all__ = [
    "BenchOptions",
    "BenchPair",
    "BenchReport",
    "BenchRow",
    "Workload",
    "all_gather",
    "all_reduce",
    "alltoall",
    "broadcast",
    "bus_factor",
    "reduce",
    "reduce_scatter",
    "sendrecv",
]
