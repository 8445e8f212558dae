"""Which of many faults is the cause, and which only follow from it."""

from __future__ import annotations

from collections.abc import Sequence

from gpufabric._frozen import evolve
from gpufabric.net._nccl_errors import FOLLOW_UPS, SYMPTOMS
from gpufabric.net.records import NetError


def with_causes(errors: Sequence[NetError]) -> tuple[NetError, ...]:
    """The faults, each told whether it is a root cause (None where the text does not tell).

    The first one that is no follow-up by nature is the cause, and its equals on other ranks are
    causes too. Others behind it may be either.
    """
    cause = next((e for e in errors if not _follows(e) and e.kind not in SYMPTOMS), None)
    return tuple(evolve(error, root_cause=_is_cause(error, cause)) for error in errors)


def _is_cause(error: NetError, cause: NetError | None) -> bool | None:
    if _follows(error):
        return False
    if error.kind in SYMPTOMS:
        return None if cause is None else False
    return True if cause is not None and error.kind == cause.kind else None


def _follows(error: NetError) -> bool:
    """Follow-ups name a victim; a flushed work request (status 5) is one as well."""
    return error.kind in FOLLOW_UPS or (error.kind == "completion_error" and error.status == 5)
