"""Rules: what NCCL's RAS reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence
from gpufabric.net.rules.case import Case, iter_values, mapping
from gpufabric.net.rules.rule import Match, Rule, fires


def _ras(case: Case) -> Iterable[Match]:
    ras = case.report.ras
    if ras is None:
        return ()
    values = ras.values
    lost = [
        *iter_values(values.get("missing_process_list")),
        *iter_values(values.get("dead_process_list")),
        *iter_values(values.get("dead_ranks")),
        *iter_values(values.get("missing_ranks")),
        *iter_values(values.get("events")),
    ]
    states = {word for comm in ras.communicators or () for word in (comm.errors or "OK").split(",")}
    if not lost and states <= {"OK"}:
        return ()
    about, severity = _ras_words(case, lost, states)
    at = (ras.mismatch or values).get("lineno")
    text = f"RAS: {', '.join(sorted(states - {'OK'})) or 'events'}"
    return fires(Evidence(at if isinstance(at, int) else 0, text), about=about, severity=severity)


def _ras_words(case: Case, lost: list[object], states: set[str]) -> tuple[str, Severity | None]:
    ras = case.report.ras
    mismatch = (ras.mismatch if ras else None) or FrozenDict[str, object]()
    told: list[str] = []
    if lost:
        facts = mapping(lost[0])
        place = facts.get("node") or facts.get("host")
        told.append(f"process {facts.get('pid')} on {place} does not answer")
    counts = mismatch.get("counts")
    if isinstance(counts, FrozenDict):
        parts = ", ".join(
            f"{n} ranks at {op}" for op, n in cast("Mapping[str, int]", counts).items()
        )
        told.append(f"{mismatch.get('op')}: {parts}")
    outliers = tuple(iter_values(mismatch.get("outlier_ranks")))
    if outliers:
        told.append(f"ranks named: {', '.join(map(str, outliers[:10]))}")
    unchanged = ras is not None and ras.values.get("unchanged") is True
    bad = bool(lost) or bool(states & {"INCOMPLETE", "ERROR"}) or unchanged
    # Counts that differ once are normal while the job runs: only a note.
    return "; ".join(told), Severity.ERROR if bad else Severity.NOTE


RULES: Final = (
    Rule(
        id="ras_mismatch",
        title="RAS: ranks stand at different operations, or are gone",
        severity=Severity.WARNING,
        cause="NCCL's RAS sees ranks that do not stand where the others stand. Counts that differ"
        " once are normal; counts that do not move, or processes that do not answer, are a hang.",
        remedy="Query again after a few seconds (`ncclras -v`): if the counts stay, look at the"
        " smaller group's processes and at what does not answer (`py-spy dump --pid`).",
        sources=(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html",
            "https://github.com/NVIDIA/nccl/issues/1911",
        ),
        when=_ras,
    ),
)
