"""Is the network right, and if not, why: health and findings from a report.

`diagnose` asks every rule of `gpufabric.net.rules`. What explains is kept, what only follows from
it is left out: thirty timeouts behind one dead port are one finding.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from gpufabric._frozen import frozen
from gpufabric.net.records import Evidence

if TYPE_CHECKING:
    from gpufabric.net.promise import HasNetwork, Promise
    from gpufabric.net.report import NetReport


class Severity(StrEnum):
    """How bad a finding is; `note` never makes a report sick."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Health(StrEnum):
    """What may be said of the network from this text."""

    HEALTHY = "healthy"
    SICK = "sick"
    INCONCLUSIVE = "inconclusive"


@frozen(kw_only=True)
class Finding:
    """One thing found: what the lines are, what they mean, and what to type."""

    code: str
    severity: Severity
    evidence: tuple[Evidence, ...]
    cause: str
    remedy: str
    source: str
    title: str = ""
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" (line {self.evidence[0].lineno})" if self.evidence else ""
        return f"{self.severity}: {self.title or self.code}{where}\n  {self.cause}\n  {self.remedy}"


@frozen(kw_only=True)
class Diagnosis:
    """The health of a network as one text shows it, and the findings, causes first."""

    health: Health
    findings: tuple[Finding, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, causes first."""
        return tuple(finding.code for finding in self.findings)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are more than a note."""
        return tuple(f for f in self.findings if f.severity is not Severity.NOTE)

    def to_dict(self) -> dict[str, object]:
        """The same as plain JSON values: `health` and `findings`."""
        from gpufabric.net.report import plain

        return {"health": str(self.health), "findings": plain(self.findings)}

    def __str__(self) -> str:
        return "\n".join([str(self.health), *map(str, self.findings)])

    def _repr_html_(self) -> str:
        from gpufabric._display import html_table

        rows = [
            (
                str(f.severity),
                f.title or f.code,
                f"line {f.evidence[0].lineno}" if f.evidence else "",
                f.cause,
                f.remedy,
            )
            for f in self.findings
        ]
        headers = ("severity", "finding", "where", "cause", "remedy")
        return html_table(headers, rows, caption=f"Network: {self.health}")


def diagnose(
    report: NetReport,
    *,
    offer: HasNetwork | None = None,
    instance_type: str | None = None,
) -> Diagnosis:
    """The health of the network that `report` is about, and what explains it.

    Args:
        report: what `read` made of a text.
        offer: what was promised (`gpufabric.plan.Offer`): all its NICs, its plugin, GPUDirect and
            its bandwidth are checked too.
        instance_type: the same from the catalog's row, where there is no offer.

    Raises:
        CatalogError: the catalog has no such instance type.
    """
    from gpufabric.net.promise import Promise
    from gpufabric.net.rules.case import Case
    from gpufabric.net.rules.judge import judged

    promise: Promise | None = None
    if offer is not None:
        promise = Promise.of_offer(offer)
    elif instance_type is not None:
        promise = Promise.of_instance_type(instance_type)
    return judged(Case(report, promise))
