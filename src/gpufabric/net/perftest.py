"""`ib_write_bw` and its kin: what one NIC carries without NCCL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from gpufabric.net._device_table import DeviceReader, DeviceTable

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_HEADER = re.compile(r"\s*#bytes\s+#iterations\s+BW peak\[(?P<unit>Gb|MB|MiB)/sec\]\s+BW average\[")
_ROW = re.compile(
    r"\s*(?P<size>\d{1,12})\s+(?P<count>\d{1,12})\s+(?P<peak>\d{1,9}(?:\.\d{1,9})?)\s+"
    r"(?P<average>\d{1,9}(?:\.\d{1,9})?)\b"
)
_GBPS = {"Gb": 1.0, "MB": 8 * 2**20 / 1e9, "MiB": 8 * 2**20 / 1e9}  # its "MB" is 2^20 bytes


class Perftest(DeviceReader):
    """Keeps the best average of all rows, in Gbit/s."""

    name: ClassVar[str] = "perftest"
    kind: ClassVar[str] = "perftest"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._factor: float | None = None

    def take(self, line: Line, /) -> bool:
        """Takes the header and the rows below it."""
        text = line.text
        if "#bytes" in text and (found := _HEADER.match(text)) is not None:
            self._factor = _GBPS[found["unit"]]
            return True
        if self._factor is None:
            return False
        row = _ROW.match(text)
        if row is None:
            self._factor = None
            return False
        rate = float(row["average"]) * self._factor
        before = self.table.values("perftest_gbps")
        if not isinstance(before, float) or rate > before:
            self.table.value("perftest_gbps", rate)
        return True
