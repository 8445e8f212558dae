"""For tests, also yours: a simulated cloud, and the contract that every backend keeps.

`FakeBackend` plans and launches on a `FakeCloud` without network, machines or waiting.
`BackendContract` is a pytest class for authors of backends; pytest is imported when it is touched.
"""

from typing import TYPE_CHECKING

from gpufabric.testing._cloud import FakeCloud
from gpufabric.testing._fake import FakeBackend
from gpufabric.testing._pools import pool
from gpufabric.testing._records import (
    Behaviour,
    Call,
    ClockMode,
    CloudObject,
    Fault,
    FaultKind,
    Moment,
)

if TYPE_CHECKING:
    from gpufabric.testing._contract import BackendContract

__all__ = [
    "BackendContract",
    "Behaviour",
    "Call",
    "ClockMode",
    "CloudObject",
    "FakeBackend",
    "FakeCloud",
    "Fault",
    "FaultKind",
    "Moment",
    "pool",
]

_PARTS = ("base", "live", "once", "plan", "run")


def __getattr__(name: str) -> object:
    if name != "BackendContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest
    except ImportError as exc:
        raise ImportError("BackendContract needs: pip install pytest") from exc
    pytest.register_assert_rewrite(*(f"{__name__}._contract_{part}" for part in _PARTS))
    from gpufabric.testing._contract import BackendContract

    return BackendContract


def __dir__() -> list[str]:
    return sorted(__all__)
