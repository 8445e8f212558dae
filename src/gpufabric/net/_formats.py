"""Which formats are read beside nccl-tests tables and NCCL logs; one line adds one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufabric.net._lines import Reader


def other_readers() -> list[Reader]:
    """A new reader of each format, in the order in which they are asked."""
    from gpufabric.net._bench_json import NcclTestsJson
    from gpufabric.net._ras_json import RasJson
    from gpufabric.net._topology_smi import SmiTopology
    from gpufabric.net._topology_xml import TopologyXml
    from gpufabric.net.devices import device_readers
    from gpufabric.net.dmesg import KernelLog
    from gpufabric.net.inspector import InspectorReader
    from gpufabric.net.ras import RasText
    from gpufabric.net.torch_log import TorchLogReader

    return [
        TorchLogReader(),
        NcclTestsJson(),
        InspectorReader(),
        RasText(),
        RasJson(),
        TopologyXml(),
        SmiTopology(),
        KernelLog(),
        *device_readers(),
    ]
