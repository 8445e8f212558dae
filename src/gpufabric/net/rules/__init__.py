"""The rules: each a small value that says when it fires, what that means, and what to do.

`RULES` is their order of weight: faults of hardware first, follow-ups last. A finding that another
one explains is left out (`Rule.explained_by`).
"""

from typing import Final

from gpufabric.net.rules import (
    bench,
    gdr,
    hardware,
    jobs,
    nvlink,
    ras,
    runs,
    settings,
    topology,
    transport,
    verbs,
)
from gpufabric.net.rules.judge import INCONCLUSIVE
from gpufabric.net.rules.rule import Match, Rule

__all__ = ["RULES", "Match", "Rule", "rule"]

RULES: Final = (
    *hardware.RULES,
    *ras.RULES,
    *verbs.RULES,
    *nvlink.RULES,
    *jobs.RULES,
    *settings.RULES,
    *transport.RULES,
    *gdr.RULES,
    *topology.RULES,
    *bench.RULES,
    *runs.RULES,
    INCONCLUSIVE,
)


def rule(code: str) -> Rule:
    """The rule of this code. Raises `KeyError`."""
    return {each.id: each for each in RULES}[code]
