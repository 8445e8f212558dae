"""`ibstat`, `ibstatus` and `ibv_devinfo`: RDMA devices and ports as blocks of "name: value"."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric.net._device_table import (
    MELLANOX_VENDORS,
    DeviceReader,
    DeviceTable,
    physical_word,
    state_word,
)

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_CA = re.compile(r"\s*CA '([^']{1,64})'\s*$")
_STATUS = re.compile(r"\s*Infiniband device '([^']{1,64})' port (\d+) status:\s*$")
_PAIR = re.compile(r"\s*([A-Za-z][\w /]*?|GID\[ *\d+\])\s*:\s*(.*?)\s*$")
_PORT = re.compile(r"\s*Port (\d+):\s*$")
_PANIC = re.compile(r"\s*ibpanic: \[\d+\] (.*)$")
_HCA_ID = re.compile(r"\s*hca_id:\s*(\S{1,64})\s*$")
_DEVINFO_PORT = re.compile(r"\s*port:\s*(\d+)\s*$")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
_WIDTH = re.compile(r"(\d+)X")


class Ibstat(DeviceReader):
    """Reads `ibstat`; its cousin `ibstatus` too, which says the same per port."""

    name: ClassVar[str] = "ibstat"
    kind: ClassVar[str] = "ibstat"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._ca: str | None = None  # the device whose ports are not listed yet
        self._key = ""
        self._card: dict[str, object] = {}

    def take(self, line: Line, /) -> bool:
        """Takes the lines of a CA block."""
        text = line.text
        if "CA '" in text and (found := _CA.match(text)):
            self._ca, self._card = found[1], {}
            self._key = self.table.device("ibstat", found[1], host=line.prefix)
            return True
        if "Infiniband device" in text and (found := _STATUS.match(text)):
            self._ca, self._card = None, {}
            self._key = self.table.device(
                "ibstatus", found[1], host=line.prefix, port=int(found[2][:4])
            )
            self.table.set(self._key, port=int(found[2][:4]))
            return True
        if not self._key:
            return False
        if _PANIC.match(text):  # ibstat gives up at a device without issm: the rest is missing
            return self.refuse(line)
        return self._block(line)

    def _block(self, line: Line) -> bool:
        text = line.text
        if not text.strip():
            return False
        if (found := _PORT.match(text)) and self._ca is not None:
            self._open_port(int(found[1][:4]), line)
            return True
        pair = _PAIR.match(text)
        key = pair[1].lower() if pair else ""
        if pair is None or key not in _IBSTAT:
            self._key = ""
            return False
        fact, convert = _IBSTAT[key]
        if fact:
            value = convert(pair[2])
            self._card |= {fact: value} if fact in _CARD else {}
            self.table.set(self._key, **{fact: value})
        return True

    def _open_port(self, port: int, line: Line) -> None:
        if port > 1 and self._ca is not None:
            key = self.table.device("ibstat", self._ca, host=line.prefix, port=port)
            # A second machine's port carries the mark that its device got.
            self._key = key
            self.table.set(key, **self._card)
        self.table.set(self._key, port=port)


def _number(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[0]) if found else None


def _integer(text: str) -> int | None:
    """The number in front, decimal or 0x hex: "4096 (5)", "0x51"."""
    try:
        return int(text.partition(" ")[0][:18], 0)
    except ValueError:
        return None


def _as_is(text: str) -> str | None:
    return text or None


def _ignored(_text: str) -> None:
    return None


_Facts = dict[str, tuple[str, Callable[[str], object]]]
_IBSTAT: Final[_Facts] = {
    "ca type": ("hca_type", _as_is),
    "firmware version": ("fw_ver", _as_is),
    "node guid": ("node_guid", _as_is),
    "system image guid": ("sys_image_guid", _as_is),
    "state": ("state", state_word),
    "physical state": ("phys", physical_word),
    "phys state": ("phys", physical_word),
    "rate": ("rate_gbps", _number),
    "link layer": ("link_layer", _as_is),
    "link_layer": ("link_layer", _as_is),
    "base lid": ("base_lid", _integer),
    "sm lid": ("sm_lid", _integer),
    "number of ports": ("", _ignored),
    "hardware version": ("", _ignored),
    "lmc": ("", _ignored),
    "capability mask": ("", _ignored),
    "port guid": ("", _ignored),
    "default gid": ("", _ignored),
}
_DEVINFO: Final[_Facts] = {
    "state": ("state", state_word),
    "phys_state": ("phys", physical_word),
    "link_layer": ("link_layer", _as_is),
    "transport": ("transport", _as_is),
    "fw_ver": ("fw_ver", _as_is),
    "node_guid": ("node_guid", _as_is),
    "sys_image_guid": ("sys_image_guid", _as_is),
    "board_id": ("board_id", _as_is),
    "vendor_id": ("vendor", str.lower),
    "vendor_part_id": ("part", _integer),
    "max_mtu": ("max_mtu", _integer),
    "active_mtu": ("active_mtu", _integer),
    "sm_lid": ("sm_lid", _integer),
    "port_lid": ("base_lid", _integer),
}
_CARD: Final = frozenset({"hca_type", "fw_ver", "node_guid", "sys_image_guid"})


class IbvDevinfo(DeviceReader):
    """Reads `ibv_devinfo` with and without `-v`."""

    name: ClassVar[str] = "ibv_devinfo"
    kind: ClassVar[str] = "ibv_devinfo"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._hca = ""
        self._key = ""
        self._card: dict[str, object] = {}
        self._lanes: int | None = None
        self._ports = 0
        self._host: str | None = None

    def take(self, line: Line, /) -> bool:
        """Takes the lines of a hca_id block."""
        text = line.text
        if "hca_id" in text and (found := _HCA_ID.match(text)):
            self._hca, self._card, self._lanes, self._ports = found[1], {}, None, 0
            self._host = line.prefix
            self._key = self.table.device("ibv_devinfo", self._hca, host=line.prefix)
            return True
        if not self._key or not text.strip():
            return False
        if found := _DEVINFO_PORT.match(text):
            self._open_port(int(found[1][:4]))
            return True
        pair = _PAIR.match(text)
        if pair is None or not (pair[1].startswith("GID[") or pair[1].isidentifier()):
            if text[:1].isspace():  # flag lists of -v, one name a line
                return True
            self._key = ""
            return False
        self._fact(pair[1], pair[2])
        return True

    def _open_port(self, port: int) -> None:
        self._ports += 1
        self._lanes = None
        if port > 1:
            self._key = self.table.device("ibv_devinfo", self._hca, host=self._host, port=port)
            self.table.set(self._key, **self._card)
        self.table.set(self._key, port=port)

    def _fact(self, key: str, value: str) -> None:
        if key.startswith("GID["):
            self._gid(key, value)
            return
        facts = self._facts(key, value)
        if not self._ports:
            self._card |= facts
        self.table.set(self._key, **facts)

    def _facts(self, key: str, value: str) -> dict[str, object]:
        if key == "active_width":
            lanes = _WIDTH.match(value)
            self._lanes = int(lanes[1][:3]) if lanes else None
            return {}
        if key == "active_speed":  # of one lane
            lane = _number(value)
            return {} if lane is None or self._lanes is None else {"rate_gbps": lane * self._lanes}
        if key not in _DEVINFO:
            return {}
        fact, convert = _DEVINFO[key]
        facts = {fact: convert(value)}
        if key == "vendor_part_id" and self._card.get("vendor") in MELLANOX_VENDORS:
            facts["hca_type"] = f"MT{facts['part']}"  # as mlx5's sysfs hca_type is made
        return facts

    def _gid(self, key: str, value: str) -> None:
        address, _, version = value.partition(",")
        index = key[4:-1].strip()
        self.table.gid(
            self._key,
            int(index[:6]),
            gid=address.strip(),
            version=gid_version(version),
        )


def gid_version(text: str) -> str | None:
    """The version, v1 or v2, from "RoCE v2", "IB/RoCE v1" or show_gids' own short form."""
    text = text.strip().lower()
    if text.endswith("v2"):
        return "v2"
    return "v1" if text.endswith("v1") else None
