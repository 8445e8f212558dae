"""For tests, also yours: a simulated cloud, and the contract that every backend keeps.

`FakeBackend` plans and launches on a `FakeCloud` without network, machines or waiting.
`BackendContract` is a pytest class for authors of backends; pytest is imported when it is touched.
"""

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

__all__ = [
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
