"""Writes docs/reference/findings.md from the rules: `python docs/_gen/findings.py`."""
# (INP001: a program beside the docs, no package.)

from pathlib import Path

from gpufabric.net.diagnosis import Severity
from gpufabric.net.rules import RULES, Rule

PAGE = Path(__file__).parents[1] / "reference" / "findings.md"
_HEAD = """# Findings

Every diagnosis that `gpufabric.net.diagnose` and `gpufabric parse` can give, by its code. This
page is written from the rules themselves (`docs/_gen/findings.py`).

A finding is more than its rule: it also shows the lines of the text that it rests on, and names
the devices, ranks or numbers of the case. A rule's severity is what it has when nothing softens
it: where only part of the connections is affected, or the text leaves a harmless explanation
open, a finding is milder. A `note` never makes a report sick.
"""
_TITLES = {
    Severity.CRITICAL: "Critical: the job fails, or runs at a small part of its speed",
    Severity.ERROR: "Errors: a part is broken or missing",
    Severity.WARNING: "Warnings: speed is lost, or will be",
    Severity.NOTE: "Notes: worth knowing, no fault",
}


def page() -> str:
    """The page as text."""
    parts = [_HEAD]
    for severity in Severity:
        rules = sorted((r for r in RULES if r.severity is severity), key=lambda r: r.id)
        parts.append(f"## {_TITLES[severity]}\n")
        parts += [_entry(rule) for rule in rules]
    return "\n".join(parts)


def _entry(rule: Rule) -> str:
    lines = [
        f"(finding-{rule.id})=",
        f"### `{rule.id}`: {rule.title}",
        "",
        rule.cause,
        "",
        f"**Do:** {rule.remedy}",
        "",
    ]
    if rule.explained_by:
        names = ", ".join(f"`{code}`" for code in sorted(rule.explained_by))
        lines += [f"Left out where one of these explains it: {names}.", ""]
    sources = ", ".join(f"<{s}>" if s.startswith("http") else s for s in rule.sources)
    sure = "" if rule.confidence == "documented" else f" ({rule.confidence})"
    return "\n".join([*lines, f"Sources{sure}: {sources}", ""])


if __name__ == "__main__":
    PAGE.write_text(page())
