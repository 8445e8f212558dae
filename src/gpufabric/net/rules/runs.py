"""Rules: runs that did not end, and lines that only look bad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.rules.case import Case, evidence_of
from gpufabric.net.rules.rule import Match, Rule, fires


def _hang_start(case: Case) -> Iterable[Match]:
    begun = _is_test(case) or bool(case.log.ranks)
    if case.tables or not begun or case.root_errors:
        return ()
    waiting = case.unfinished_ranks
    about = f"ranks {', '.join(map(str, waiting[:8]))} did not complete" if waiting else ""
    return _stopped(case, about or "no row was printed")


def _hang_inside(case: Case) -> Iterable[Match]:
    if not case.tables or case.report.header.complete is not False or case.root_errors:
        return ()
    return _stopped(case, f"{len(case.tables[-1].rows)} rows were printed")


def _is_test(case: Case) -> bool:
    return "nccl_tests" in case.report.kinds


def _stopped(case: Case, about: str) -> Iterable[Match]:
    """Only a run that something had to end proves a hang; a text that stops may be cut."""
    timeouts = [e for e in case.report.header.failures if "Test timeout" in e.text]
    if timeouts:
        return fires(*timeouts, about=about)
    ended = case.fact("ended_by")
    if not isinstance(ended, str):
        return ()
    return fires(case.fact_evidence("ended_by", ended), about=about)


def _harmless(case: Case) -> Iterable[Match]:
    marks = [
        *case.marks("plugin_not_found", "plugin_symbol_missing", "gin_unavailable"),
        *(m for m in case.marks("unknown_warning") if _fastsocket(m.first.text)),
        *(case.marks("topo_unreadable") if case.gdr_seen or case.marks("topo_file") else ()),
        *case.marks("gdr_hca_socket"),
    ]
    return fires(*evidence_of(marks[:8])) if marks else ()


def _fastsocket(text: str) -> bool:
    return "Cannot get incoming CPU" in text or "Maximum retry reached for accept" in text


RULES: Final = (
    Rule(
        id="hang_after_init",
        title="the test hangs before the first result",
        severity=Severity.CRITICAL,
        cause="The communicator was made and the first data did not get through: P2P with ACS, a"
        " missing NIC, memory handles between containers, or different NICs on the nodes.",
        remedy="Run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET; then once with"
        " NCCL_P2P_DISABLE=1 and once with NCCL_CUMEM_ENABLE=0; ask `ncclras -v` while it hangs.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1027",
            "https://github.com/NVIDIA/nccl-tests/issues/117",
            "https://github.com/NVIDIA/nccl/issues/2379",
        ),
        when=_hang_start,
        explained_by=frozenset({"nvls_uneven_ranks", "loopback_interface", "mixed_network_types"}),
    ),
    Rule(
        id="hang_mid_run",
        title="the test hung between results",
        severity=Severity.CRITICAL,
        cause="Results came and then stopped: a completion was lost, or the network stands still"
        " for this size.",
        remedy="Ask `ncclras -v` while it hangs, read the port counters and dmesg of all nodes, and"
        " run again from the size at which it stopped (-b).",
        sources=(
            "https://github.com/tinygrad/open-gpu-kernel-modules/issues/45",
            "https://github.com/NVIDIA/nccl/issues/2334",
        ),
        when=_hang_inside,
    ),
    Rule(
        id="harmless_warning",
        title="lines that look bad and are not",
        severity=Severity.NOTE,
        cause="NCCL tries plugins and files that need not be there, and says so.",
        remedy="Nothing to do.",
        sources=(
            "https://github.com/google/nccl-fastsocket/issues/4",
            "https://github.com/NVIDIA/nccl/issues/259",
            "https://github.com/NVIDIA/nccl/issues/352",
        ),
        when=_harmless,
    ),
)
