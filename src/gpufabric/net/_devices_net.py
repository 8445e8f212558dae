"""`ibdev2netdev`, `show_gids`, `rdma link`, `rdma statistic`, `fi_info` and `ethtool -S`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric.net._device_table import (
    DeviceReader,
    DeviceTable,
    physical_word,
    state_word,
)
from gpufabric.net._devices_verbs import gid_version

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_NETDEV = re.compile(
    r"\s*(?P<head>.*?)\bport\s+(?P<port>\d{1,3})\s+(?:\((?P<state>[A-Z_]+)\s*\)\s+)?==>\s+"
    r"(?P<netdev>\S+)\s+\((?P<link>Up|Down)\)"
)
_HCA_NAME = re.compile(r"(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d\s+)?(\S+)(?:\s+\((MT\d+))?")
_GID_HEADER = re.compile(r"\s*DEV\s+PORT\s+INDEX\s+GID\b")
_GID_ROW = re.compile(
    r"\s*(?P<dev>\S+)\s+(?P<port>\d{1,3})\s+(?P<index>\d{1,6})\s+"
    r"(?P<gid>(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|[0-9a-fA-F:]*::[0-9a-fA-F:.]*)"
    r"(?:\s+(?P<ip>\d+\.\d+\.\d+\.\d+))?\s+(?P<version>v[12])(?:\s+(?P<netdev>\S+))?\s*$"
)
_GIDS_FOUND = re.compile(r"\s*n_gids_found=(\d+)")
_LINK = re.compile(
    r"\s*(?:\d+/\d+:\s+)?(?:link\s+)?(?P<dev>[\w.-]+)/(?P<port>\d{1,3}):?\s+(?P<rest>.+)"
)
_PROVIDER = re.compile(r"\s*provider:\s*(\S.*?)\s*$")
_FI_PAIR = re.compile(r"\s*(fabric|domain|version|type|protocol):\s*(.*?)\s*$")
_FI_ERROR = re.compile(r"\s*fi_getinfo(?:\(\))?:?\s*(-?\d+)\s*(?:\((.*)\))?\s*$")
_ETHTOOL_RUN = re.compile(r"\bethtool\s+(?:-S|--statistics)\s+([\w.@-]{1,32})")
_COUNTER = re.compile(r"\s+(\[?[\w\[\]]+\]?(?:: [\w.\[\]-]+)?):\s*(\d+)\s*$")
_DOMAIN_TAIL = re.compile(r"-(?:rdm|dgrm|dgram)$")
_UNNAMED: Final = "unnamed"


class Ibdev2netdev(DeviceReader):
    """Reads `ibdev2netdev [-v]`; "(Down)" there is the IP interface, not the port."""

    name: ClassVar[str] = "ibdev2netdev"
    kind: ClassVar[str] = "ibdev2netdev"

    def take(self, line: Line, /) -> bool:
        """Takes lines with an arrow."""
        if "==>" not in line.text or (row := _NETDEV.match(line.text)) is None:
            return False
        device = _HCA_NAME.match(row["head"].strip())
        if device is None:
            return self.refuse(line)
        port = int(row["port"])
        key = self.table.device("ibdev2netdev", device[1], host=line.prefix, port=port)
        self.table.set(
            key,
            netdev=row["netdev"],
            netdev_up=row["link"] == "Up",
            port=port,
            hca_type=device[2],
            state=state_word(row["state"] or ""),
        )
        if row["link"] == "Down":
            self.table.netdev_is_down(row["netdev"])
        return True


class ShowGids(DeviceReader):
    """Reads the GID table of `show_gids`."""

    name: ClassVar[str] = "show_gids"
    kind: ClassVar[str] = "show_gids"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._open = False
        self._keys: dict[tuple[str, str], str] = {}

    def take(self, line: Line, /) -> bool:
        """Takes the header, the rows and the count."""
        text = line.text
        if "INDEX" in text and _GID_HEADER.match(text):
            self._open, self._keys = True, {}
            return True
        if not self._open:
            return False
        if (found := _GIDS_FOUND.match(text)) is not None:
            self._open = False
            self.table.value("n_gids_found", int(found[1][:6]))
            return True
        if text.startswith("---"):
            return True
        row = _GID_ROW.match(text)
        if row is None:
            self._open = bool(text.strip()) is False
            return False
        self._gid(row, line.prefix)
        return True

    def _gid(self, row: re.Match[str], host: str | None) -> None:
        port = int(row["port"])
        at = (row["dev"], row["port"])
        if at not in self._keys and len(self._keys) < 4096:
            self._keys[at] = self.table.device("show_gids", row["dev"], host=host, port=port)
        key = self._keys.get(at, "")
        self.table.set(key, netdev=row["netdev"], port=port)
        self.table.gid(
            key,
            int(row["index"]),
            gid=row["gid"],
            ip=row["ip"],
            version=gid_version(row["version"]),
            netdev=row["netdev"],
        )


class RdmaLink(DeviceReader):
    """Reads `rdma link` and `rdma statistic show link`, in the forms of old and new iproute2."""

    name: ClassVar[str] = "rdma_link"
    kind: ClassVar[str] = "rdma_link"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._statistic = ""  # a statistic line that goes on in the next one

    def take(self, line: Line, /) -> bool:
        """Takes link lines; statistics may go on over several."""
        text = line.text
        if self._statistic and text[:1].isspace() and self._counters(text.split()):
            return True
        self._statistic = ""
        if "/" not in text or (found := _LINK.match(text)) is None:
            return False
        words = found["rest"].split()
        port = int(found["port"])
        if "state" in words and ("physical_state" in words or "link" in text.split()[:2]):
            self._link(found["dev"], port, dict(zip(words[::2], words[1::2], strict=False)), line)
            return True
        if text.lstrip().startswith("link ") and len(words) >= 2 and words[1].isdigit():
            self._statistic = found["dev"] if port == 1 else f"{found['dev']}:{port}"
            return self._counters(words)
        return False

    def _counters(self, words: list[str]) -> bool:
        pairs = list(zip(words[::2], words[1::2], strict=False))
        if not pairs or not all(v.isascii() and v.isdigit() and len(v) < 24 for _, v in pairs):
            return False
        for name, value in pairs:
            self.table.counter(self._statistic, name, int(value))
        return True

    def _link(self, device: str, port: int, told: dict[str, str], line: Line) -> None:
        key = self.table.device("rdma_link", device, host=line.prefix, port=port)
        layer = "InfiniBand" if "lid" in told else ("Ethernet" if "netdev" in told else None)
        sm_lid = told.get("sm_lid", "")
        self.table.set(
            key,
            state=state_word(told.get("state", "")),
            phys=physical_word(told.get("physical_state", "")),
            link_layer=layer,
            netdev=told.get("netdev"),
            port=port,
            sm_lid=int(sm_lid[:6]) if sm_lid.isascii() and sm_lid.isdigit() else None,
        )


class FiInfo(DeviceReader):
    """Reads `fi_info`; the domains of EFA are the node's EFA devices."""

    name: ClassVar[str] = "fi_info"
    kind: ClassVar[str] = "fi_info"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._provider: str | None = None
        self._providers: dict[str, None] = {}
        self._fabrics: dict[str, None] = {}
        self._known: set[str] = set()

    def take(self, line: Line, /) -> bool:
        """Takes the blocks that start with a provider, and the error in their place."""
        text = line.text
        if "provider:" in text and (found := _PROVIDER.match(text)):
            provider = found[1][:64]
            self._provider = provider
            if len(self._providers) < 64:
                self._providers[provider] = None
            self.table.value("providers", tuple(self._providers))
            if len(self._providers) == 1:
                self.table.value("provider", provider)
            return True
        if "fi_getinfo" in text and (found := _FI_ERROR.match(text)):
            self.table.value("fi_getinfo_error", int(found[1][:8]))
            self.table.value("fi_getinfo_text", found[2])
            return True
        pair = _FI_PAIR.match(text) if self._provider is not None else None
        if pair is None:
            if text.strip():
                self._provider = None
            return False
        self._pair(pair[1], pair[2], line.prefix)
        return True

    def _pair(self, key: str, value: str, host: str | None) -> None:
        if key == "fabric" and self._provider == "efa" and len(self._fabrics) < 64:
            self._fabrics[value] = None
            self.table.value("fabrics", tuple(self._fabrics))
        if key == "domain" and self._provider in {"efa", "verbs"}:
            device = _DOMAIN_TAIL.sub("", value)[:64]
            if device and device not in self._known and len(self._known) < 4096:
                self._known.add(device)
                self.table.set(
                    self.table.device("fi_info", device, host=host), provider=self._provider
                )


class EthtoolStatistics(DeviceReader):
    """Reads `ethtool -S`; the interface is known where the command line stands before it."""

    name: ClassVar[str] = "ethtool"
    kind: ClassVar[str] = "ethtool"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._owner = ""
        self._named: str | None = None
        self._tables = 0

    def take(self, line: Line, /) -> bool:
        """Takes the counters under "NIC statistics:"."""
        text = line.text
        if "ethtool" in text and (found := _ETHTOOL_RUN.search(text)):
            self._named, self._owner = found[1], ""
            return True
        if text.strip() == "NIC statistics:":
            self._tables += 1
            self._owner = self._named or f"{_UNNAMED}{self._tables}"
            self._named = None
            return True
        if not self._owner:
            return False
        found = _COUNTER.match(text)
        if found is None:
            if text.strip():
                self._owner = ""
            return False
        if len(found[2]) > 24:
            return self.refuse(line)
        self.table.counter(self._owner, found[1], int(found[2]))
        return True
