"""A report in a few lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from gpufabric.net.records import BenchTable, Measured, NetError
    from gpufabric.net.report import NetReport

_SHOWN: Final = 5


def summary(report: NetReport, document: dict[str, object]) -> str:
    """A few lines: what it is, whether it is well, the numbers that tell, what to do."""
    return "\n".join(_plain(line) for line in _summary(report, document))


def _summary(report: NetReport, document: dict[str, object]) -> Iterator[str]:
    header = report.header
    what = [report.kind]
    if header.n_ranks is not None:
        nodes = f" on {header.n_nodes} nodes" if header.n_nodes is not None else ""
        what.append(f"{header.n_ranks} ranks{nodes}")
    if header.gpu:
        what.append(header.gpu)
    if header.nccl_version:
        what.append(f"NCCL {header.nccl_version}")
    yield ", ".join(what)
    yield f"health: {document['health']}"
    for table in report.tables[:_SHOWN]:
        yield _table_line(table)
    if len(report.tables) > _SHOWN:
        yield f"... and {len(report.tables) - _SHOWN} more tables"
    yield from _log_lines(document)
    for error in report.errors[:_SHOWN]:
        yield _error_line(error)
    more = len(report.errors) - _SHOWN + report.errors_left_out
    if more > 0:
        yield f"... and {more} more errors"
    yield from _finding_lines(cast("list[dict[str, object]]", document["findings"]))
    for note in report.notes:
        yield f"note: {note}"
    if report.unread_count:
        first = f" (the first is line {report.unread[0].lineno})" if report.unread else ""
        yield f"note: {report.unread_count} lines could not be read{first}"


def _table_line(table: BenchTable) -> str:
    name = f"{table.collective or 'collective unknown'}"
    if not table.rows:
        return f"{name}: no rows"
    largest = max(reversed(table.rows), key=lambda row: row.size_bytes)
    halves = [
        f"{label} {_measured(half)}"
        for label, half in (("out of place", largest.out_of_place), ("in place", largest.in_place))
        if half is not None and half.busbw is not None
    ]
    kind = " ".join(word for word in (largest.dtype, largest.redop) if word and word != "none")
    sizes = f"{len(table.rows)} rows up to {largest.size_bytes} bytes"
    return f"{name} {kind}".strip() + f": {sizes}; there {', '.join(halves) or 'no bandwidth'}"


def _measured(half: Measured) -> str:
    wrong = f", {half.wrong:g} wrong" if half.wrong else ""
    return f"busbw {half.busbw:g} GB/s in {half.time_us:g} us{wrong}"


def _log_lines(document: dict[str, object]) -> Iterator[str]:
    network = document["network"]
    if network is not None:
        hcas = cast("list[str] | None", document.get("hcas"))
        devices = f", {len(hcas)} NICs" if hcas else ""
        plugin = f" ({document['net_plugin']})" if document["net_plugin"] else ""
        yield f"network: {network}{plugin}{devices}, GPUDirect {document['gdr'] or 'unknown'}"
    inter, intra = document["inter_node_transport"], document["intra_node_transport"]
    if inter is not None:
        yield f"between nodes: {inter}"
    if intra is not None:
        yield f"inside a node: {intra}"


def _error_line(error: NetError) -> str:
    where = error.device or error.peer or error.path or error.host
    parts = [f"line {error.evidence.lineno}: {error.kind}"]
    if error.rank is not None:
        parts.append(f"rank {error.rank}")
    if where:
        parts.append(where)
    if error.text:
        parts.append(error.text)
    if error.count > 1:
        parts.append(f"{error.count} times")
    follows = " (follows from an earlier one)" if error.root_cause is False else ""
    return ", ".join(parts) + follows


def _finding_lines(findings: list[dict[str, object]]) -> Iterator[str]:
    for finding in findings:
        yield f"[{finding['severity']}] {finding['code']}: {finding['cause']}"
        yield f"  do: {finding['remedy']}"
        evidence = finding.get("evidence")
        for line in cast("list[dict[str, object]]", evidence)[:2] if evidence else []:
            yield f"  line {line['lineno']}: {line['text']}"


def _plain(line: str) -> str:
    """Text of a log may hold anything; none of it reaches the terminal as a command."""
    return "".join(c if c.isprintable() else " " for c in line)
