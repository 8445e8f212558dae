"""What the network between GPUs is, what it says, and whether it is well.

Importing this package is cheap: each public name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufabric.net.diagnosis import Diagnosis, Finding, Health, Severity, diagnose
    from gpufabric.net.draw import topology_svg
    from gpufabric.net.reading import read
    from gpufabric.net.records import (
        BenchRow,
        BenchTable,
        Connection,
        Device,
        Devices,
        Evidence,
        Gdr,
        Hca,
        HcaState,
        Header,
        HostView,
        InspectorOp,
        Mark,
        Measured,
        NcclLog,
        NetError,
        RankInit,
        Ras,
        Topology,
        TorchLog,
        Unread,
    )
    from gpufabric.net.report import NetReport
    from gpufabric.net.sysfs import read_sysfs

_RECORDS = (
    "BenchRow",
    "BenchTable",
    "Connection",
    "Device",
    "Devices",
    "Evidence",
    "Gdr",
    "Hca",
    "HcaState",
    "Header",
    "HostView",
    "InspectorOp",
    "Mark",
    "Measured",
    "NcclLog",
    "NetError",
    "RankInit",
    "Ras",
    "TorchLog",
    "Topology",
    "Unread",
)

# Names of functions must differ from the names of the modules they live in: the import system
# would put the module where the function is looked for.
_HOME = {
    **dict.fromkeys(_RECORDS, "gpufabric.net.records"),
    "NetReport": "gpufabric.net.report",
    "read": "gpufabric.net.reading",
    "Diagnosis": "gpufabric.net.diagnosis",
    "Finding": "gpufabric.net.diagnosis",
    "Health": "gpufabric.net.diagnosis",
    "Severity": "gpufabric.net.diagnosis",
    "diagnose": "gpufabric.net.diagnosis",
    "read_sysfs": "gpufabric.net.sysfs",
    "topology_svg": "gpufabric.net.draw",
}

__all__ = [
    "BenchRow",
    "BenchTable",
    "Connection",
    "Device",
    "Devices",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Gdr",
    "Hca",
    "HcaState",
    "Header",
    "Health",
    "HostView",
    "InspectorOp",
    "Mark",
    "Measured",
    "NcclLog",
    "NetError",
    "NetReport",
    "RankInit",
    "Ras",
    "Severity",
    "Topology",
    "TorchLog",
    "Unread",
    "diagnose",
    "read",
    "read_sysfs",
    "topology_svg",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
