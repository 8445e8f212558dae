"""What a benchmark says about the network: healthy, sick, or not enough to tell, and why.

Speed is judged by bus bandwidth at the largest size, against a published result for the same
machine or against what the wires can carry; never by the average over sizes, which small sizes
pull down. Where there is neither, nothing is claimed of speed.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gpufabric._frozen import evolve, field, frozen
from gpufabric.bench import _shape
from gpufabric.bench.report import BenchReport, BenchRow
from gpufabric.net.diagnosis import Finding, Health, Severity
from gpufabric.net.promise import HasNetwork, Promise, Reference

__all__ = ["Verdict", "judge"]

#: Bands of measured / published bandwidth. The vendor publishes none; these are this library's.
GOOD: Final = 0.9
SICK: Final = 0.75
#: A ring between healthy NICs reaches 0.92-0.97 of their rate; with one NIC of eight gone, 0.87.
NEAR_LIMIT: Final = 0.9
#: A share that only a fallback explains: sockets give 3-4 GB/s where the fabric has 400.
FAR_FROM_LIMIT: Final = 0.1
ABOVE_LIMIT: Final = 1.05
#: Below it, eight NICs of 400 Gbit/s are not filled, and published results cannot be compared.
COMPARABLE_BYTES: Final = 1 << 30

_NOTES = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"
_RING: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
#: Findings that leave open what the network can do.
_OPEN: Final = frozenset(
    {"above_limit", "below_reference", "cpu_time", "incomplete", "tests_built_without_mpi"}
)


@frozen(kw_only=True)
class Verdict:
    """What may be said of the network from one benchmark.

    Fields:
        reasons: in words, what was looked at and what came out.
        busbw_gbytes_s, size_bytes: what was judged.
        reference, limit_gbytes_s: against what; None where it is not known.
    """

    health: Health
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    busbw_gbytes_s: float | None = None
    size_bytes: int | None = None
    reference: Reference | None = field(default=None)
    limit_gbytes_s: float | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Verdict":
        """Builds it from plain data. Raises `SpecError` with every fault and its path."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def __str__(self) -> str:
        lines = [f"network: {self.health.value}", *(f"  {reason}" for reason in self.reasons)]
        for finding in self.findings:
            lines += [
                f"  {finding.severity.value}: {finding.title}",
                f"    {finding.cause}",
                f"    {finding.remedy}",
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        from gpufabric._display import html_table

        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in self.reasons)
        rows = [(f.severity.value, f.title, f.cause, f.remedy) for f in self.findings]
        table = html_table(("severity", "finding", "cause", "remedy"), rows) if rows else ""
        return f"<p>network: <b>{escape(self.health.value)}</b></p><ul>{reasons}</ul>{table}"


def judge(
    report: BenchReport,
    offer: HasNetwork | None = None,
    *,
    reference: Reference | None = None,
    limit_gbytes_s: float | None = None,
) -> Verdict:
    """Judges a report. See `BenchReport.verdict`."""
    promise = None if offer is None else Promise.of_offer(offer)
    if promise is not None and report.num_nodes is None:
        report = evolve(report, num_nodes=promise.num_nodes)  # a table alone names no nodes
    partly = promise is not None and not _uses_all_gpus(report, promise)
    if partly:
        promise = None  # it is of whole nodes, and fewer GPUs use fewer NICs
    limit = limit_gbytes_s if limit_gbytes_s is not None else _limit(report, promise)
    reference = reference or _reference(report, promise)
    findings = [
        *_data(report),
        *_run(report),
        *_shape.slow_ranks(report),
        *_shape.curve(report),
    ]
    reasons = [_data_reason(report)]
    proofs = [_against_reference(report, reference, findings, reasons)]
    proofs.append(_against_limit(report, limit, findings, reasons))
    if reference is None and limit is None:
        reasons.append(_speed_unjudged(report, offer, partly=partly))
    reasons += _facts(report)
    largest = report.largest
    return Verdict(
        health=_health(findings, is_fast=any(proofs)),
        reasons=tuple(reasons),
        findings=tuple(findings),
        busbw_gbytes_s=largest.best_busbw_gbytes_s if largest else None,
        size_bytes=largest.size_bytes if largest else None,
        reference=reference,
        limit_gbytes_s=limit,
    )


def _health(findings: list[Finding], *, is_fast: bool) -> Health:
    if any(f.severity in {Severity.CRITICAL, Severity.ERROR} for f in findings):
        return Health.SICK
    if is_fast and not any(f.code in _OPEN for f in findings):
        return Health.HEALTHY
    return Health.INCONCLUSIVE


def _data(report: BenchReport) -> Iterable[Finding]:
    if report.is_correct is not False:
        return
    bad = [
        f"{row.size_bytes} bytes: {n} wrong"
        for row in report.rows
        if (n := (row.wrong or 0) + (row.in_place_wrong or 0))
    ]
    yield Finding(
        code="data_corruption",
        severity=Severity.CRITICAL,
        evidence=(),
        title="data arrived wrong",
        cause=f"Elements differ from what was sent or summed ({'; '.join(bad[:4]) or 'see log'})."
        " A GPU, its memory, a link or the library's algorithm corrupts data.",
        remedy="Do not train here. Run the same sizes on each node alone, then on each pair, to"
        " find the node; look for Xid lines in dmesg and run dcgmi diag -r 3 on it.",
        source=_NOTES,
    )


def _run(report: BenchReport) -> Iterable[Finding]:
    if not report.complete:
        yield _warning(
            "incomplete",
            "the table stops early",
            "The run did not reach its last line, so the largest sizes may be missing.",
            "Read the end of the log for the error, and run it again.",
        )
    if report.is_cpu_time:
        yield _warning(
            "cpu_time",
            "times of the CPU",
            "The run timed how long the CPU took to queue the work (-C 1), so its bandwidths say"
            " nothing of the network.",
            "Run it again without -C 1.",
        )
    if report.n_ranks == 1:
        yield _warning(
            "tests_built_without_mpi",
            "one rank only",
            "Nothing crossed a network. nccl-tests built without MPI makes every process a job of"
            " its own.",
            "Build nccl-tests with MPI=1, or give two GPUs or more.",
        )


def _warning(code: str, title: str, cause: str, remedy: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        evidence=(),
        title=title,
        cause=cause,
        remedy=remedy,
        source=_NOTES,
    )


def _data_reason(report: BenchReport) -> str:
    return {
        True: "data: every element that was checked is right",
        False: "data: WRONG",
        None: "data: not checked",
    }[report.is_correct]


def _uses_all_gpus(report: BenchReport, promise: Promise) -> bool:
    """Whether a rank ran on every GPU of the nodes, as far as the text tells."""
    nodes = report.num_nodes or promise.num_nodes
    if not _uses_fabric(report) or not (report.n_ranks and nodes and promise.node_gpus):
        return True
    return report.n_ranks == nodes * promise.node_gpus


def _speed_unjudged(report: BenchReport, offer: HasNetwork | None, *, partly: bool) -> str:
    if partly:
        return (
            f"no reference: measured only; {report.n_ranks} ranks do not use all GPUs of the"
            " nodes, and so not all of their NICs"
        )
    if report.workload == "tcp" or report.backend == "gloo":
        if offer is not None and not Promise.of_offer(offer).tcp_only:
            return (
                "no reference: measured only; this workload uses sockets, not the fabric that the"
                " offer promises"
            )
        return "no reference: measured only; nothing is claimed of speed"
    if offer is None:
        return "no reference: measured only; judge with an offer or limit_gbytes_s to compare"
    return f"no reference for {offer.instance_type}: measured only"


def _facts(report: BenchReport) -> list[str]:
    facts: list[str] = []
    row = report.largest
    if row is not None and row.best_busbw_gbytes_s is not None:
        facts.append(
            f"measured: {row.best_busbw_gbytes_s:g} GB/s bus bandwidth at {row.size_bytes} bytes"
        )
    small = [r for r in report.rows if 0 < r.size_bytes <= 4096 and r.best_time_us is not None]
    if small:
        first = small[0]
        facts.append(f"latency: {first.best_time_us:g} us at {first.size_bytes} bytes")
    if report.avg_bus_bandwidth_gbytes_s is not None:
        facts.append(f"average over sizes: {report.avg_bus_bandwidth_gbytes_s:g} GB/s, not judged")
    return facts


# --- speed --------------------------------------------------------------------------------------


def _uses_fabric(report: BenchReport) -> bool:
    return report.workload != "tcp" and report.backend != "gloo"


def _limit(report: BenchReport, promise: Promise | None) -> float | None:
    """What a node's NICs carry one way, where this benchmark runs over them."""
    if promise is None or (report.num_nodes or promise.num_nodes or 1) < 2:
        return None
    if not _uses_fabric(report) and not promise.tcp_only:
        return None
    return promise.nic_limit_gbytes_s


def _nodes_class(nodes: int) -> int:
    return min(nodes, 3)


def _reference(report: BenchReport, promise: Promise | None) -> Reference | None:
    """The published result nearest to this run: same collective, same class of node counts."""
    nodes = report.num_nodes or (promise.num_nodes if promise else None)
    if promise is None or nodes is None or not _uses_fabric(report):
        return None
    fit = [
        r
        for r in promise.references
        if r.collective == report.collective
        and r.nodes is not None
        and _nodes_class(r.nodes) == _nodes_class(nodes)
        and _comparable(report, r) is not None
    ]
    largest = report.largest.size_bytes if report.largest else 0
    return min(
        fit,
        key=lambda r: (abs((r.nodes or 0) - nodes), abs((r.size_bytes or largest) - largest)),
        default=None,
    )


def _comparable(report: BenchReport, reference: Reference) -> BenchRow | None:
    """The row to compare: of the reference's size, or the largest where both are large."""
    for row in report.rows:
        if row.size_bytes == reference.size_bytes and row.best_busbw_gbytes_s is not None:
            return row
    large = reference.size_bytes is None or reference.size_bytes >= COMPARABLE_BYTES
    last = report.largest
    return last if last is not None and large and last.size_bytes >= COMPARABLE_BYTES else None


def _against_reference(
    report: BenchReport, reference: Reference | None, findings: list[Finding], reasons: list[str]
) -> bool:
    if reference is None:
        return False
    row = _comparable(report, reference)
    speed = row.best_busbw_gbytes_s if row else None
    if row is None or speed is None:
        reasons.append(
            f"speed: not compared; the published {reference.busbw_gbytes_s:g} GB/s is of another"
            f" size, run up to {reference.size_bytes or COMPARABLE_BYTES} bytes"
        )
        return False
    ratio = speed / reference.busbw_gbytes_s
    said = (
        f"{speed:g} GB/s at {row.size_bytes} bytes is {ratio:.0%} of the published"
        f" {reference.busbw_gbytes_s:g} GB/s ({reference.source or 'given by the caller'})"
    )
    reasons.append(f"speed: {said}")
    if ratio >= GOOD:
        return True
    findings.append(
        Finding(
            code="below_reference",
            severity=Severity.ERROR if ratio < SICK else Severity.WARNING,
            evidence=(),
            title="slower than published for this machine",
            cause=f"{said[0].upper()}{said[1:]}. NICs may be missing, GPUDirect off, or one node"
            " slow.",
            remedy="Read the run's NCCL log (NCCL_DEBUG=INFO) with gpufabric.net.read and diagnose"
            " it; then measure pairs of nodes to find a slow one.",
            source=reference.source or _NOTES,
        )
    )
    return False


def _against_limit(
    report: BenchReport, limit: float | None, findings: list[Finding], reasons: list[str]
) -> bool:
    row = report.largest
    speed = row.best_busbw_gbytes_s if row else None
    if limit is None or row is None or speed is None:
        return False
    share = speed / limit
    said = f"{speed:g} GB/s is {share:.0%} of the {limit:g} GB/s that a node's NICs carry"
    if _may_exceed(report):
        reasons.append(
            f"limit: {said}; between two nodes NCCL's trees send each byte once, so up to twice"
            " the wire's rate is right (NCCL_ALGO=RING makes it comparable)"
        )
    else:
        reasons.append(f"limit: {said}")
    if share > ABOVE_LIMIT and not _may_exceed(report):
        findings.append(
            _warning(
                "above_limit",
                "faster than the wires",
                f"{said[0].upper()}{said[1:]}: the data took another way (shared memory, NVLink,"
                " a reduction in the switch), or the limit is wrong.",
                "Check on which network the ranks met, and the limit; NCCL_ALGO=RING keeps NCCL's"
                " switches out of the figure.",
            )
        )
        return False
    if report.collective in _RING and share < FAR_FROM_LIMIT and _is_large(report, row):
        findings.append(
            Finding(
                code="far_below_limit",
                severity=Severity.ERROR,
                evidence=(),
                title="a small part of what the NICs carry",
                cause=f"{said[0].upper()}{said[1:]}; a fallback to TCP sockets looks like this.",
                remedy="Read which network NCCL chose: NCCL_DEBUG=INFO, the line Using network.",
                source=_NOTES,
            )
        )
        return False
    return report.collective in _RING and share >= NEAR_LIMIT and not _may_exceed(report)


def _is_large(report: BenchReport, row: BenchRow) -> bool:
    """Whether the size is one at which bandwidth, not latency, counts."""
    if _uses_fabric(report):
        return row.size_bytes >= COMPARABLE_BYTES
    return row.size_bytes >= 1 << 20


def _may_exceed(report: BenchReport) -> bool:
    """Whether bus bandwidth above the wire is right: NCCL's trees between two nodes.

    They send each byte once, and bus bandwidth counts 2(n-1)/n of it.
    """
    return _uses_fabric(report) and report.collective == "all_reduce" and report.num_nodes == 2
