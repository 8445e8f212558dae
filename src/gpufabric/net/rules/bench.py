"""Rules: what benchmark tables show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.promise import Promise, Reference
from gpufabric.net.records import BenchRow, BenchTable, Evidence
from gpufabric.net.rules.case import MEBI, Case, busbw, largest_row, row_evidence
from gpufabric.net.rules.gdr import gdr_is_off
from gpufabric.net.rules.rule import Match, Rule, fires

_JUDGED_SIZE: Final = 1024 * MEBI
"""Below 1 GiB latency and few channels decide, not the network."""
_GOOD: Final = 0.9
_LOOK: Final = 0.75
_LIMITS: Final = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"


def _corruption(case: Case) -> Iterable[Match]:
    found: list[Evidence] = []
    for table in case.tables:
        found += [row_evidence(row) for row in table.rows if table.wrong_is_count and _wrong(row)]
        if table.out_of_bounds_word == "FAILED" or (
            (table.out_of_bounds_count or 0) > 0 and table.wrong_is_count
        ):
            text = f"Out of bounds values : {table.out_of_bounds_count} {table.out_of_bounds_word}"
            found.append(Evidence(table.lineno or 0, text))
    return fires(*found) if found else ()


def _wrong(row: BenchRow) -> bool:
    halves = (row.out_of_place, row.in_place)
    return any(half is not None and (half.wrong or 0) > 0 for half in halves)


def _one_gpu_a_node(case: Case) -> Iterable[Match]:
    header = case.report.header
    if header.ranks_per_node == 1 and (header.n_nodes or 0) > 1 and case.tables:
        return fires(row_evidence(largest_row(case.tables[0])))
    return ()


def _no_mpi(case: Case) -> Iterable[Match]:
    header = case.report.header
    alone = bool(header.devices) and all(device.rank == 0 for device in header.devices)
    unfinished = header.n_headers - header.n_footers >= 2
    if header.n_headers < 2 or not alone or not (unfinished or _interleaved(case.tables)):
        return ()
    at = next((table.lineno for table in case.tables if table.lineno), None)
    text = f"{header.n_headers} headers, every process is rank 0"
    return fires(Evidence(at or 0, text))


def _interleaved(tables: Sequence[BenchTable]) -> bool:
    """Whether processes printed side by side: tables overlap, or sizes come twice in one."""
    overlap = any(
        (after.lineno or 0) < (before.rows[-1].lineno or 0) for before, after in pairwise(tables)
    )
    sizes = [[row.size_bytes for row in table.rows if row.size_bytes] for table in tables]
    return overlap or any(len(each) >= 2 * len(set(each)) for each in sizes if each)


def _cliff(case: Case) -> Iterable[Match]:
    for table in case.tables:
        rows = [row for row in table.rows if row.size_bytes >= MEBI and busbw(row)]
        if len(rows) < 4:
            continue
        peak = max(rows, key=lambda row: busbw(row) or 0.0)
        after = [row for row in rows if row.size_bytes > peak.size_bytes]
        if len(after) < 1:
            continue
        end = busbw(after[-1]) or 0.0
        if end > 0 and (busbw(peak) or 0.0) >= 2 * end:
            about = f"{busbw(peak):.1f} GB/s at {peak.size_bytes} bytes, {end:.1f} at the end"
            return fires(row_evidence(peak), row_evidence(after[-1]), about=about)
    return ()


def _regression(case: Case) -> Iterable[Match]:
    versions = case.log.versions
    if len(versions) < 2:
        return ()
    for before, after in pairwise(case.tables):
        if before.collective != after.collective or before.n_ranks != after.n_ranks:
            continue
        pair = _same_size(before, after)
        if pair and (busbw(pair[1]) or 0) < 0.7 * (busbw(pair[0]) or 0):
            return fires(*map(row_evidence, pair), about=" and ".join(versions[:3]))
    return ()


def _same_size(one: BenchTable, other: BenchTable) -> tuple[BenchRow, BenchRow] | None:
    """The rows of the largest size that both tables have."""
    sizes = {row.size_bytes: row for row in one.rows if busbw(row)}
    shared = [row for row in other.rows if row.size_bytes in sizes and busbw(row)]
    if not shared:
        return None
    row = max(shared, key=lambda each: each.size_bytes)
    return sizes[row.size_bytes], row


def _racks(case: Case) -> Iterable[Match]:
    tables = sorted((t for t in case.tables if t.n_ranks is not None), key=lambda t: t.n_ranks or 0)
    for small, large in pairwise(tables):
        if small.collective != large.collective or small.n_ranks == large.n_ranks:
            continue
        pair = _same_size(small, large)
        if pair is None or pair[0].size_bytes < _JUDGED_SIZE:
            continue
        # Two nodes may exceed the NICs by a fifth (tree, NVLink SHARP); more is a real loss.
        if (busbw(pair[1]) or 0) < 0.5 * (busbw(pair[0]) or 0):
            about = f"{small.n_ranks} ranks against {large.n_ranks}"
            return fires(*map(row_evidence, pair), about=about)
    return ()


def _overhead(case: Case) -> Iterable[Match]:
    rate = case.fact("perftest_gbps")
    promise = case.promise
    if not isinstance(rate, float) or promise is None or not promise.nic_limit_gbytes_s:
        return ()
    if gdr_is_off(case) or case.uses_socket or promise.n_nics is None or not promise.gbps_per_node:
        return ()
    line_rate = promise.gbps_per_node / promise.n_nics
    for table in case.tables:
        row = largest_row(table)
        reached = (busbw(row) or 0.0) / promise.nic_limit_gbytes_s
        if rate >= _GOOD * line_rate and 0.2 <= reached <= 0.6 and row.size_bytes >= _JUDGED_SIZE:
            line = case.fact_evidence("perftest_gbps", f"ib_write_bw: {rate:g} Gbit/s")
            about = f"NCCL reaches {reached:.0%} of the NICs"
            return fires(line, row_evidence(row), about=about)
    return ()


def _below(case: Case) -> Iterable[Match]:
    promise = case.promise
    if promise is None or not _comparable(case, promise):
        return ()
    for table in case.tables:
        row = largest_row(table)
        measured = busbw(row)
        reference = reference_for(promise.references, table, row, case.n_nodes)
        if measured is None or reference is None or row.size_bytes < _JUDGED_SIZE:
            continue
        share = measured / reference.busbw_gbytes_s
        if share < _GOOD:
            severity = Severity.ERROR if share < _LOOK else None
            return fires(
                row_evidence(row),
                about=_against(measured, reference, promise),
                severity=severity,
            )
    return ()


def _comparable(case: Case, promise: Promise) -> bool:
    """Only a run over the node's GPUs and several nodes says something of its network."""
    used = case.report.header.ranks_per_node
    return promise.node_gpus is None or used is None or used >= promise.node_gpus


def reference_for(
    references: Sequence[Reference], table: BenchTable, row: BenchRow, nodes: int | None
) -> Reference | None:
    """A published result of the same collective, node class (1, 2, 3+) and about this size.

    Sizes within a factor of two compare; of several the most modest counts, so that a finding
    stands whichever version the publisher ran.
    """
    n_nodes = nodes
    if n_nodes is None:
        return None
    fitting = [
        each
        for each in references
        if each.collective == table.collective
        and each.nodes is not None
        and min(each.nodes, 3) == min(n_nodes, 3)
        and each.size_bytes is not None
        and each.size_bytes / 2 <= row.size_bytes <= each.size_bytes * 2
    ]
    return min(fitting, key=lambda each: each.busbw_gbytes_s) if fitting else None


def _against(measured: float, reference: Reference, promise: Promise) -> str:
    limits = (
        ("its NICs carry", promise.nic_limit_gbytes_s),
        ("NVLink allows about", promise.nvlink_limit_gbytes_s),
    )
    about = (
        f"{measured:.1f} GB/s where {reference.busbw_gbytes_s:g} GB/s is published for"
        f" {promise.instance_type} ({reference.source or 'catalog'})"
    )
    told = [f"{words} {limit:g} GB/s" for words, limit in limits if limit is not None]
    return "; ".join([about, *told])


RULES: Final = (
    Rule(
        id="data_corruption",
        title="results are wrong",
        severity=Severity.CRITICAL,
        cause="The benchmark checked its results and found wrong ones: memory or a link corrupts"
        " data, P2P is broken, or LL128 is forced where the hardware does not support it.",
        remedy="Take the node out of use. Unset NCCL_PROTO, halve the set of nodes to find the one;"
        " run `nvidia-smi -q -d ECC`, `dcgmi diag -r 3`, and once with NCCL_P2P_DISABLE=1.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1184",
            "https://github.com/NVIDIA/nccl/issues/770",
        ),
        when=_corruption,
    ),
    Rule(
        id="tests_built_without_mpi",
        title="nccl-tests was built without MPI",
        severity=Severity.ERROR,
        cause="Every process printed its own header as rank 0: the launcher started single tests"
        " that know nothing of each other.",
        remedy="Build again: `make clean; make MPI=1 MPI_HOME=<path>`, then one header must name"
        " all ranks.",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/27",
            "https://github.com/NVIDIA/nccl-tests/issues/182",
        ),
        when=_no_mpi,
    ),
    Rule(
        id="cross_rack_degradation",
        title="good in a small set, bad in a larger one",
        severity=Severity.ERROR,
        cause="The network between racks does not carry what it does inside: congested uplinks,"
        " flows that share a path, or a lossy traffic class.",
        remedy="Set NCCL_IB_QPS_PER_CONNECTION=4, check adaptive routing and the traffic class"
        " (NCCL_IB_TC), and place the job by the network's topology.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1453",
            "https://github.com/NVIDIA/nccl/issues/1494",
        ),
        when=_racks,
        confidence="inferred",
        explained_by=frozenset({"algo_regression"}),
    ),
    Rule(
        id="cliff_above_size",
        title="bandwidth falls above a size",
        severity=Severity.WARNING,
        cause="Bandwidth is good at middle sizes and a half or less at large ones: congestion,"
        " pause storms, or a protocol that does not fit.",
        remedy="Read the port counters during a run with large sizes only (-b 1G); try NCCL_ALGO"
        " and NCCL_PROTO one by one to see which falls.",
        sources=("https://github.com/NVIDIA/nccl/issues/1453",),
        when=_cliff,
        confidence="inferred",
        explained_by=frozenset({"roce_packet_loss"}),
    ),
    Rule(
        id="algo_regression",
        title="slower after an update of NCCL",
        severity=Severity.WARNING,
        cause="The same benchmark on the same ranks fell by a third or more with another NCCL: its"
        " choice of algorithm, channels or NICs changed.",
        remedy="Run both with the same NCCL_ALGO; try NCCL_PXN_DISABLE=1 and"
        " NCCL_IB_SPLIT_DATA_ON_QPS=1; compare `NCCL_DEBUG_SUBSYS=GRAPH,TUNING` of both and"
        " report it.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1876",
            "https://github.com/NVIDIA/nccl-tests/issues/352",
            "https://github.com/NVIDIA/nccl/issues/1222",
        ),
        when=_regression,
    ),
    Rule(
        id="per_step_overhead",
        title="the wire is fast, NCCL on it is not",
        severity=Severity.WARNING,
        cause="One NIC reaches its rate with perftest, and NCCL with GPUDirect a part of it: a"
        " fixed cost for each piece, from CPU frequency, the proxy's placement, the IOMMU or"
        " ordering.",
        remedy="Set the CPU governor to performance, check affinity, IOMMU and relaxed ordering; as"
        " a probe try NCCL_P2P_NET_CHUNKSIZE=524288.",
        sources=("https://github.com/NVIDIA/nccl/issues/2409",),
        when=_overhead,
        confidence="inferred",
    ),
    Rule(
        id="below_reference",
        title="below the published level",
        severity=Severity.WARNING,
        cause="Bandwidth at the largest size is below what is published for this machine type and"
        " number of nodes.",
        remedy="Repeat it, then test each rail alone (NCCL_TESTS_SPLIT_MASK=0x7, one GPU of each"
        " node) and compare nodes in pairs.",
        sources=(_LIMITS,),
        when=_below,
        confidence="inferred",
        explained_by=frozenset(
            {
                "socket_fallback",
                "gdr_off",
                "fewer_nics_than_instance_has",
                "port_down",
                "wrong_network_plugin",
                "gpu_nic_misaligned",
                "per_step_overhead",
                "cliff_above_size",
            }
        ),
    ),
    Rule(
        id="one_nic_per_gpu_rule",
        title="one GPU of each node takes part",
        severity=Severity.NOTE,
        cause="A GPU drives its own NIC only, so this run shows one NIC's bandwidth, not the"
        " node's.",
        remedy="Use all GPUs of each node to measure the node's network.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1357",
            "https://github.com/NVIDIA/nccl-tests/issues/232",
        ),
        when=_one_gpu_a_node,
    ),
)
