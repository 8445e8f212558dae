"""sysfs and the rest of what a host tells: pasted text of it, and a live or captured /sys tree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, ClassVar, Final, cast

from gpufabric.net._device_table import (
    DeviceReader,
    DeviceTable,
    physical_word,
    state_word,
)
from gpufabric.net._devices_verbs import gid_version
from gpufabric.net.records import Devices

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_BUS_ID: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}(?::[0-9a-f]{2}\.[0-7])?|pci[0-9a-f]{4}:[0-9a-f]{2}"
_GREP = re.compile(
    rf"\s*(?P<path>/?(?:(?:{_BUS_ID}|[\w.-]+)/)*[\w.-]+)(?:\s*[:=]\s*|\s+)(?P<value>\S.*?)\s*$"
)
_HEAD = re.compile(r"\s*==> (?P<path>\S*sys/\S+) <==\s*$")
_CAT = re.compile(r"(?:^|[$#] )\s*cat\s+(?P<path>/sys/[^\s*?\[]+)\s*$")
_IB = re.compile(r"(?:^|/)infiniband/(?P<hca>[^/]+)/(?P<rest>.+)$")
_PORT = re.compile(r"ports/(?P<port>\d{1,3})/(?P<rest>.+)$")
_NET = re.compile(r"/class/net/(?P<netdev>[^/]+)/(?P<fact>speed|mtu|operstate)$")
_PCI = re.compile(
    r"/devices/(?:.*/)?(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)/(?P<fact>\w+)$"
)
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
PEER_MEMORY: Final = (
    "module/nvidia_peermem/version",
    "kernel/mm/memory_peers/nv_mem/version",
    "kernel/mm/memory_peers/nv_mem_nc/version",
    "kernel/mm/memory_peers/nvidia-peermem/version",
)
"""The files by which NCCL, release by release, decides that a peer-memory module is there."""
_PCI_FACTS: Final = frozenset(
    {
        "numa_node",
        "max_link_speed",
        "current_link_speed",
        "max_link_width",
        "current_link_width",
        "class",
        "vendor",
        "device",
    }
)
_CARD_FACTS: Final = {
    "hca_type": "hca_type",
    "fw_ver": "fw_ver",
    "board_id": "board_id",
    "node_guid": "node_guid",
    "sys_image_guid": "sys_image_guid",
}


class SysfsText(DeviceReader):
    """Reads `grep . /sys/...`, `head`'s "==> path <==" form and `cat` with its command line."""

    name: ClassVar[str] = "sysfs"
    kind: ClassVar[str] = "sysfs"

    def __init__(self, table: DeviceTable | None = None) -> None:
        super().__init__(table)
        self._facts = SysfsFacts(self.table)
        self._path: str | None = None

    def take(self, line: Line, /) -> bool:
        """Takes lines that name a file of sysfs, and the value line after a bare name."""
        text = line.text
        if "sys/" not in text or text.startswith("ls:"):
            path, self._path = self._path, None
            if path is None or not text.strip():
                return False
            return self._facts.file(path, text.strip(), line.prefix)
        self._path = None
        if (found := _HEAD.match(text) or _CAT.search(text)) is not None:
            self._path = found["path"]
            return True
        row = _GREP.match(text)
        if row is None:
            return False
        return self._facts.file(row["path"], row["value"], line.prefix)


class SysfsFacts:
    """Writes what one file of sysfs says into the table."""

    def __init__(self, table: DeviceTable) -> None:
        self._table = table
        self._keys: dict[tuple[str, str, str | None], str] = {}

    def file(self, path: str, value: str, host: str | None = None) -> bool:
        """Takes one file; False where it is not one that is read here."""
        path = str(PurePosixPath(path))[:512]
        if "No such file" in value and "memory_peers" in path:
            self._table.value("memory_peers_missing", True)
        if "No such file" in value or "Invalid argument" in value or "Permission denied" in value:
            return True
        if (found := _IB.search(path)) is not None:
            return self._infiniband(found["hca"][:64], found["rest"], value, host)
        if (found := _NET.search(path)) is not None:
            self._netdev(found["netdev"], found["fact"], value)
            return True
        if any(path.endswith(f"/{name}") for name in PEER_MEMORY):
            peers = self._table.values("memory_peers")
            known = cast("tuple[str, ...]", peers) if isinstance(peers, tuple) else ()
            self._table.value("memory_peers", tuple(dict.fromkeys((*known, path))))
            return True
        if (found := _PCI.search(path)) is not None and found["fact"] in _PCI_FACTS:
            self._table.detail("pci", found["bdf"], found["fact"], value)
            return True
        return False

    def _infiniband(self, hca: str, rest: str, value: str, host: str | None) -> bool:
        port = _PORT.match(rest)
        if port is None:
            if rest in _CARD_FACTS:
                self._table.set(self._key(hca, "1", host), **{_CARD_FACTS[rest]: value})
                return True
            found = rest.startswith("device/") and rest.removeprefix("device/") in _PCI_FACTS
            if found:
                key = self._key(hca, "1", host)
                self._table.set(key, **{f"pci_{rest.removeprefix('device/')}": value})
            return found
        key = self._key(hca, port["port"], host)
        return self._port(key, port["rest"], value)

    def _port(self, key: str, rest: str, value: str) -> bool:
        if rest in _PORT_FACTS:
            fact, convert = _PORT_FACTS[rest]
            self._table.set(key, **{fact: convert(value)})
            return True
        folder, _, name = rest.partition("/")
        if folder in {"counters", "hw_counters"} and name:
            # "N/A (no PMA)" of iWARP devices is no number and no fault.
            if value.isascii() and value.isdigit() and len(value) < 24:
                self._table.counter(key, name, int(value))
            return True
        if folder == "gids" and name.isdecimal():
            if value.replace(":", "").strip("0"):
                self._table.gid(key, int(name[:6]), gid=value)
            return True
        if rest.startswith(("gid_attrs/types/", "gid_attrs/ndevs/")):
            attribute, _, index = rest.removeprefix("gid_attrs/").partition("/")
            if index.isdecimal() and attribute == "types":
                self._table.gid(key, int(index[:6]), version=gid_version(value))
            elif index.isdecimal():
                self._table.gid(key, int(index[:6]), netdev=value)
            return True
        return False

    def _key(self, hca: str, port: str, host: str | None) -> str:
        at = (hca, port, host)
        if at not in self._keys and len(self._keys) < 4096:
            self._keys[at] = self._table.device("sysfs", hca, host=host, port=int(port))
            self._table.set(self._keys[at], port=int(port))
        return self._keys.get(at, "")

    def _netdev(self, netdev: str, fact: str, value: str) -> None:
        if fact == "operstate" and value == "down":
            self._table.netdev_is_down(netdev)
        number = _integer(value)
        self._table.detail("netdevs", netdev, fact, value if number is None else number)


def _rate(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[0]) if found else None


def _integer(text: str) -> int | None:
    try:
        return int(text[:18], 0)
    except ValueError:
        return None


_PORT_FACTS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "state": ("state", state_word),
    "phys_state": ("phys", physical_word),
    "rate": ("rate_gbps", _rate),
    "link_layer": ("link_layer", str),
    "lid": ("base_lid", _integer),
    "sm_lid": ("sm_lid", _integer),
}


_LSMOD_HEADER = re.compile(r"\s*Module\s+Size\s+Used by\s*$")
_LSMOD = re.compile(
    r"\s*(?P<name>[\w-]+)\s+(?P<size>\d{1,12})\s+(?P<used>-?\d{1,6})(?:\s+\S+)?\s*$"
)
_MODULES: Final = frozenset(
    {
        "nvidia",
        "nvidia_peermem",
        "nv_peer_mem",
        "nvidia_fs",
        "gdrdrv",
        "efa",
        "ib_uverbs",
        "mlx5_ib",
        "mlx5_core",
        "rdma_cm",
        "bnxt_re",
        "irdma",
        "rdma_rxe",
        "siw",
    }
)
_MEMLOCK = re.compile(
    r"\s*[Mm]ax locked memory\s+(?:\((?:kbytes|kB), -l\)\s+)?(?P<soft>unlimited|\d{1,20})\b"
    r"(?:\s+(?P<hard>unlimited|\d{1,20})\s+bytes)?"
)
_SHM = re.compile(
    r"\s*(?:shm|tmpfs|none)\s+(?P<size>\d{1,15}(?:\.\d{1,6})?[KMGT]?)\s+\S+\s+\S+\s+\d+%\s+/dev/shm\s*$"
)
_ACS = re.compile(r"\s*ACSCtl:\s+SrcValid(?P<on>[+-])")
_CMDLINE = re.compile(r"\bBOOT_IMAGE=\S+.*")
_IOMMU = re.compile(r"\b(?P<name>(?:intel_|amd_)?iommu)=(?P<value>[\w,]+)")
_CONF = re.compile(r"(?:^|[\s:])(?P<path>(?:/etc/|/\S*/|~/)\.?nccl\.conf)(?P<rest>.*)$")


class HostFacts(DeviceReader):
    """Reads `lsmod`, `ulimit -a`, /proc/self/limits, `df /dev/shm`, kernel options and ACSCtl."""

    name: ClassVar[str] = "host"
    kind: ClassVar[str] = "host"

    def take(self, line: Line, /) -> bool:
        """Takes single lines that tell one fact of the host."""
        text = line.text
        for mark, method in _HOST_FACTS.items():
            if mark in text and method(self.table, text):
                return True
        words = text.split(None, 1)
        if words and words[0] in _MODULES and (found := _LSMOD.match(text)) is not None:
            self.table.detail("modules", found["name"], "used", int(found["used"]))
            return True
        return text.startswith("Module") and _LSMOD_HEADER.match(text) is not None


def _memlock(table: DeviceTable, text: str) -> bool:
    found = _MEMLOCK.match(text)
    if found is None:
        return False
    soft = found["soft"]
    unit = 1 if found["hard"] else 1024  # /proc/self/limits counts bytes, ulimit kibibytes
    table.value("memlock_bytes", soft if soft == "unlimited" else int(soft) * unit)
    return True


def _shm(table: DeviceTable, text: str) -> bool:
    found = _SHM.match(text)
    if found is None:
        return False
    size = found["size"]
    factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(size[-1])
    # A bare number is in the 1-KiB blocks of plain df.
    table.value("shm_bytes", int(float(size[:-1]) * factor) if factor else int(float(size) * 1024))
    return True


def _acs(table: DeviceTable, text: str) -> bool:
    found = _ACS.match(text)
    if found is None:
        return False
    name = "acs_on" if found["on"] == "+" else "acs_off"
    before = table.values(name)
    table.value(name, (before if isinstance(before, int) else 0) + 1)
    return True


def _iommu(table: DeviceTable, text: str) -> bool:
    if _CMDLINE.search(text) is None:
        return False
    for found in _IOMMU.finditer(text):
        table.detail("kernel_options", found["name"], "value", found["value"])
    return True


def _peers(table: DeviceTable, text: str) -> bool:
    if "No such file" not in text:
        return False
    table.value("memory_peers_missing", True)
    return True


def _conf(table: DeviceTable, text: str) -> bool:
    found = _CONF.search(text)
    if found is None or "No such file" in found["rest"]:
        return False
    table.detail("nccl_conf", found["path"], "line", text.strip()[:200])
    return True


_HOST_FACTS: Final[dict[str, Callable[[DeviceTable, str], bool]]] = {
    "locked memory": _memlock,
    "dev/shm": _shm,
    "ACSCtl": _acs,
    "BOOT_IMAGE": _iommu,
    "nccl.conf": _conf,
    "memory_peers": _peers,
}


def read_sysfs(root: Path | str = "/") -> Devices:
    """The RDMA devices of this machine, or of a copy of its /sys under `root`.

    Reads only; what cannot be read is left unknown. Needs no privileges.
    """
    base = Path(root)
    table = DeviceTable()
    facts = SysfsFacts(table)
    folder = base / "sys/class/infiniband"
    for hca in sorted(_entries(folder)):
        for path in _hca_files(folder / hca):
            _take(facts, base, path)
    for netdev in sorted(_entries(base / "sys/class/net")):
        for fact in ("speed", "mtu", "operstate"):
            _take(facts, base, base / "sys/class/net" / netdev / fact)
    for name in PEER_MEMORY:
        _take(facts, base, base / "sys" / name)
    return table.devices()


_MAX_FILE: Final = 4096
_MAX_ENTRIES: Final = 4096


def _hca_files(folder: Path) -> list[Path]:
    files = [folder / name for name in _CARD_FACTS]
    files += [folder / "device" / name for name in sorted(_PCI_FACTS)]
    for port in sorted(_entries(folder / "ports")):
        at = folder / "ports" / port
        files += [at / name for name in _PORT_FACTS]
        for group in ("counters", "hw_counters"):
            files += [at / group / name for name in sorted(_entries(at / group))]
        for index in sorted(_entries(at / "gids"), key=lambda name: (len(name), name)):
            gid = _content(at / "gids" / index)
            if gid and gid.replace(":", "").strip("0"):  # empty entries give EINVAL below
                files += [at / "gids" / index]
                files += [at / "gid_attrs" / kind / index for kind in ("types", "ndevs")]
    return files


def _take(facts: SysfsFacts, base: Path, path: Path) -> None:
    content = _content(path)
    if content:
        facts.file("/" + str(path.relative_to(base)), content)


def _entries(folder: Path) -> list[str]:
    try:
        return [entry.name for _, entry in zip(range(_MAX_ENTRIES), folder.iterdir(), strict=False)]
    except OSError:
        return []


def _content(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE).decode("utf-8", "replace").strip()
    except OSError:
        return None
