"""What a rule is: when it fires, what that means, what to do, and who says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpufabric._frozen import frozen
from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence
from gpufabric.net.rules.case import Case


@frozen(kw_only=True)
class Match:
    """That a rule fires: the lines that say so, and what this case adds or softens."""

    evidence: tuple[Evidence, ...]
    about: str = ""
    """What of this case belongs into the cause: device, ranks, numbers."""
    severity: Severity | None = None
    """In place of the rule's own, where the case is milder (or worse)."""


@frozen(kw_only=True)
class Rule:
    """One diagnosis.

    `when` looks at a case and gives matches, one for each separate fault. `explained_by` names
    rules whose match makes this one a mere consequence: then it is left out.
    """

    id: str
    title: str
    severity: Severity
    cause: str
    remedy: str
    sources: tuple[str, ...]
    when: Callable[[Case], Iterable[Match]]
    explained_by: frozenset[str] = frozenset()
    confidence: str = "documented"


def fires(
    *evidence: Evidence, about: str = "", severity: Severity | None = None
) -> Iterable[Match]:
    """One match with these lines."""
    return (Match(evidence=evidence[:MAX_EVIDENCE], about=about, severity=severity),)


MAX_EVIDENCE = 12
"""Lines shown for one finding; a report keeps the first of each kind anyway."""
