"""From matches to a diagnosis: causes before consequences, and what may be claimed at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpufabric.net.devices import failed_ports, is_up
from gpufabric.net.diagnosis import Diagnosis, Finding, Health, Severity
from gpufabric.net.records import Evidence
from gpufabric.net.rules.case import (
    MEBI,
    Case,
    busbw,
    evidence_of,
    flat_speed,
    iter_values,
    largest_row,
    mapping,
)
from gpufabric.net.rules.rule import Match, Rule
from gpufabric.net.topology import NodeTopology

_MEASURED_SIZE: Final = 64 * MEBI
"""Smaller messages show latency, not the network."""
_SLOW: Final = 10.0
"""GB/s: over nodes of an unknown kind this may be right (old NICs) or TCP in place of RDMA."""
_ORDER: Final = {severity: rank for rank, severity in enumerate(Severity)}

INCONCLUSIVE: Final = Rule(
    id="inconclusive",
    title="not enough to judge",
    severity=Severity.NOTE,
    cause="This text neither shows a fault nor proves that the network works.",
    remedy="Collect more: run all_reduce_perf -b 8 -e 8G -f 2 -g 1 over all GPUs with"
    " NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET and read its whole output.",
    sources=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
    when=lambda _case: (),
    confidence="inferred",
)


def judged(case: Case) -> Diagnosis:
    """Asks every rule, leaves consequences out, and says what the rest amounts to."""
    from gpufabric.net.rules import RULES

    matches = [(rule, match) for rule in RULES for match in rule.when(case)]
    bad = {rule.id for rule, match in matches if _severity(rule, match) is not Severity.NOTE}
    kept = [
        (rule, match)
        for rule, match in matches
        if not rule.explained_by & bad and not _is_idle_follow_up(rule, bad)
    ]
    findings = sorted(
        (_finding(rule, match) for rule, match in kept),
        key=lambda finding: _ORDER[finding.severity],
    )
    health = _health(case, findings)
    unexplained = _unexplained(case, findings)
    if unexplained or health is Health.INCONCLUSIVE:
        findings.append(_inconclusive(case, unexplained))
    if unexplained and _fatal(case):
        health = Health.SICK
    return Diagnosis(health=health, findings=tuple(findings))


def _is_idle_follow_up(rule: Rule, bad: set[str]) -> bool:
    """Follow-ups are told only where nothing explains them."""
    return rule.id in {"connect_failed", "flush_error"} and bool(bad)


def _severity(rule: Rule, match: Match) -> Severity:
    return match.severity or rule.severity


def _finding(rule: Rule, match: Match) -> Finding:
    return Finding(
        code=rule.id,
        title=rule.title,
        severity=_severity(rule, match),
        evidence=match.evidence,
        cause=f"{rule.cause} Here: {match.about}." if match.about else rule.cause,
        remedy=rule.remedy,
        source=rule.sources[0],
        sources=rule.sources,
    )


def _health(case: Case, findings: Iterable[Finding]) -> Health:
    if any(finding.severity is not Severity.NOTE for finding in findings):
        return Health.SICK
    if case.report.tests_failure or _fatal(case):
        return Health.SICK
    return Health.HEALTHY if proven(case) else Health.INCONCLUSIVE


def _fatal(case: Case) -> bool:
    """Whether the text reports faults, whatever they mean."""
    return any(error.level in {"WARN", "ERROR"} for error in case.report.errors)


def _unexplained(case: Case, findings: Iterable[Finding]) -> tuple[Evidence, ...]:
    """Faults that no finding is about."""
    if any(finding.severity is not Severity.NOTE for finding in findings):
        return ()
    if any(finding.code in {"connect_failed", "flush_error"} for finding in findings):
        return ()
    return evidence_of(e for e in case.root_errors if e.level in {"WARN", "ERROR"})[:4]


def _inconclusive(case: Case, unexplained: tuple[Evidence, ...]) -> Finding:
    about = _missing(case)
    if unexplained:
        about = "the text reports errors that no rule explains"
    return _finding(INCONCLUSIVE, Match(evidence=unexplained, about=about))


def _missing(case: Case) -> str:
    """What the text lacks."""
    if case.tables:
        return _missing_in_tables(case)
    if not case.report.kinds:
        return "no format that is read here was found"
    if "nccl_tests" in case.report.kinds:
        return "the benchmark printed no results"
    if case.report.nccl_log is not None and case.log.info_lines:
        return "the log has no line about connections (`via NET/...`), which show what is used"
    return "what it lists has no fault, and the use of it is not shown"


def _missing_in_tables(case: Case) -> str:
    if case.report.header.complete is False:
        return "the benchmark's end is missing: the text was cut, or the run did not end"
    if all(largest_row(table).size_bytes < _MEASURED_SIZE for table in case.tables):
        return "only small messages were measured"
    flat = next((s for table in case.tables if (s := flat_speed(table)) is not None), None)
    if flat is not None:
        return (
            f"busbw stays at {flat:.1f} GB/s, as over TCP; if these machines have an RDMA network,"
            " it is not in use"
        )
    return "the bandwidth may be right or not for machines that the text does not name"


def proven(case: Case) -> bool:
    """Whether something in the text shows that the network does its work."""
    if "nccl_tests" in case.report.kinds and not case.tables:
        return False
    if case.tables:
        return all(_table_is_good(case, index) for index in range(len(case.tables)))
    if case.report.nccl_log is not None and case.log.info_lines:
        return _log_is_good(case)
    return _devices_are_good(case) or _topology_is_good(case) or _ras_is_good(case) or _ops(case)


def _table_is_good(case: Case, index: int) -> bool:
    table = case.tables[index]
    row = largest_row(table)
    speed = busbw(row)
    if speed is None or case.report.header.complete is False:
        return False
    if row.size_bytes < _MEASURED_SIZE or table.printed_rows_are_complete is False:
        # Rows may have been left out on purpose; the largest one still tells.
        return row.size_bytes >= _MEASURED_SIZE and table.avg_bus_bandwidth is not None
    if case.crosses_nodes is False or case.promise is not None:
        return speed > 0
    small_gpu = case.gpu is not None and not case.is_datacenter_gpu
    return speed >= _SLOW or (small_gpu and speed > 0) or case.gdr_seen


def _log_is_good(case: Case) -> bool:
    connections = case.log.connections
    if case.crosses_nodes is False:
        done = any(rank.complete for rank in case.log.ranks)
        return bool(connections) or (done and not case.unfinished_ranks)
    if any(c.transport.startswith("P2P/MNNVL") for c in connections):
        return True
    carried = [c for c in connections if c.network]
    if not carried:
        return False
    # A network that is read here as RDMA without GDRDMA has its finding; what is left is good.
    return case.uses_rdma or case.tcp_is_meant


def _devices_are_good(case: Case) -> bool:
    devices = case.devices
    states = [hca for hca in devices.hcas or () if hca.state is not None]
    if states:
        return any(map(is_up, states)) and not failed_ports(devices)
    if devices.values.get("providers"):
        return "efa" in str(devices.values["providers"])
    gids = [gid for hca in devices.hcas or () for gid in _gids(hca.values.get("gids"))]
    if gids:
        return any(gid == "v2" for gid in gids)
    return bool(devices.counters)


def _gids(table: object) -> Iterable[object]:
    return (mapping(gid).get("version") for gid in iter_values(table))


def _topology_is_good(case: Case) -> bool:
    topology = case.topology
    if topology is None or not topology.n_nics:
        return False
    if topology.gpus_without_near_nic is not None:
        hidden = isinstance(topology, NodeTopology) and topology.hides_pcie
        return not topology.gpus_without_near_nic or hidden
    return topology.gpu_nic_path in {"PIX", "PXB", "P2C", "PXN", "C2C"}


def _ras_is_good(case: Case) -> bool:
    ras = case.report.ras
    groups = ras.communicators if ras else None
    return bool(groups) and all(g.errors == "OK" and g.status == "RUNNING" for g in groups or ())


def _ops(case: Case) -> bool:
    return bool(case.report.inspector)
