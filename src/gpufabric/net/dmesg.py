"""Kernel and DCGM lines: Xid and SXid, GPUs that fell off the bus, mlx5 events, NVLink states.

These texts have no key of their own in the report: an event is a `NetError` whose kind starts
with `kernel_` or `dcgm_`, so that it stands in one order with NCCL's own errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric._frozen import FrozenDict, evolve
from gpufabric.net.records import Evidence, NetError

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_STAMP = re.compile(
    r"(?:[A-Z][a-z]{2}\s+\d{1,2} [\d:]{8} (?P<host>\S+) kernel:\s+)?\[?\s*(?P<time>\d+\.\d{6})?\]?"
)
_BDF: Final = r"(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)"
_XID = re.compile(rf"NVRM: Xid \(PCI:{_BDF}\): (?P<code>\d{{1,4}})(?:, (?P<text>.*))?")
_SXID = re.compile(
    rf"(?:nvidia-nvswitch\d+: )?SXid \(PCI:{_BDF}\): (?P<code>\d{{1,6}})(?:, (?P<text>.*))?"
)
_LOST = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_BDF}:?(?P<text>.*fallen off the bus.*|\s*)$"
)
_FALLEN = re.compile(r"NVRM: fallen off the bus and is not responding")
_MLX5 = re.compile(rf"mlx5_core {_BDF}:? ?(?P<text>.*)")
_MLX5_PORT = re.compile(r"(?P<hca>mlx5_\d+): Port: (?P<port>\d+) Link (?P<state>[A-Z]+)")
_MLX5_LINK = re.compile(r"(?P<netdev>[\w.-]+): Link (?P<state>up|down)\b")
_MLX5_FATAL = re.compile(
    r"health compromised|handling bad device here|Fatal error|device is in unknown state|"
    r"Firmware over temperature|synd(?:rome)? 0x[1-9a-f]|firmware internal error",
    re.IGNORECASE,
)
_MLX5_CABLE = re.compile(
    r"Port module event\[error\]|Bad or unsupported|Cable unplugged|Cable error"
)
_MLX5_TIMEOUT = re.compile(r"timeout\. Will cause a leak|cmd .*timeout|No done completion")
_PCIE_LIMIT = re.compile(
    r"(?P<have>\d+(?:\.\d+)?) Gb/s available PCIe bandwidth, "
    r"limited by (?P<limit>\S+ GT/s PCIe x\d+) link at (?P<at>\S+) "
    r"\(capable of (?P<want>\d+(?:\.\d+)?) Gb/s with (?P<able>[^)]*)\)"
)
_NVLINK_GPU = re.compile(r"\s*(?:gpuId|GPU) (\d+):?\s*$")
_NVLINK_ROW = re.compile(r"\s*((?:[UDX_] )*[UDX_])\s*$")
_DCGM_ROW = re.compile(r"\s*\|\s*(?P<name>[^|]*?)\s*\|\s*(?P<value>[^|]*?)\s*\|?\s*$")
_DCGM_FAIL = re.compile(r"(?:Fail|Failure)\b")
_KEPT: Final = 256

SERIOUS_XIDS: Final = frozenset(
    {48, 61, 62, 64, 74, 79, 92, 94, 95, 109, 119, 120, 121, 136, 137, 140, 143}
    | set(range(144, 151))
    | {154}
)
"""Xids of failing hardware or firmware; 74, 137 and 144-150 are NVLink's. 31, 43 and 45 are
most often the program's own, or follow from another one.

https://docs.nvidia.com/deploy/xid-errors/
"""


class KernelLog:
    """Reads dmesg and journalctl -k lines, bare or with a stamp, and dcgmi's tables."""

    name: ClassVar[str] = "kernel"
    kind: ClassVar[str] = "dmesg"

    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], NetError] = {}
        self._left_out = 0
        self._lost: tuple[str, int] | None = None  # "The NVIDIA GPU <bdf>" of a three-line message
        self._nvlink: int | None = None
        self._in_nvlink = self._in_dcgm = False
        self._checks = 0
        self._consumed = 0

    def feed(self, line: Line, /) -> bool:
        """Takes lines of the kernel's drivers and of dcgmi."""
        text = line.text
        taken = False
        for mark, method in _MARKS.items():
            if mark in text and method(self, line):
                taken = True
                break
        if not taken and (self._in_nvlink or self._in_dcgm):
            taken = self._dcgm(line)
        self._consumed += taken
        return taken

    def close(self) -> None:
        """Nothing is held back."""

    def result(self) -> dict[str, object]:
        """The events, each once with its count."""
        return {
            "errors": tuple(self._errors.values()),
            "errors_left_out": self._left_out,
        }

    def _keep(self, kind: str, line: Line, *, key: tuple[object, ...], **facts: object) -> None:
        at = (kind, *key)
        known = self._errors.get(at)
        if known is not None:
            self._errors[at] = evolve(known, count=known.count + 1)
            return
        if len(self._errors) >= _KEPT:
            self._left_out += 1
            return
        stamp = _STAMP.match(line.text)
        values = {name: str(fact) for name, fact in facts.items() if fact is not None}
        device = values.pop("device", None)
        code = values.get("code")
        self._errors[at] = NetError(
            kind=kind,
            evidence=Evidence(line.lineno, line.text[:400]),
            level="KERNEL" if kind.startswith("kernel") else "DCGM",
            host=(stamp["host"] if stamp else None) or line.prefix,
            device=device,
            status=int(code) if code and code.isdigit() else None,
            text=values.pop("text", None),
            time=(stamp["time"] if stamp else None) or line.time,
            values=FrozenDict(values),
        )

    def take_nvrm(self, line: Line) -> bool:
        """Takes the GPU driver's lines."""
        if (found := _XID.search(line.text)) is not None:
            self._keep(
                "kernel_xid", line, key=(found["device"], found["code"]), **found.groupdict()
            )
            return True
        if _FALLEN.search(line.text) and self._lost is not None:
            device, _ = self._lost
            self._keep("kernel_gpu_lost", line, key=(device,), device=device)
            return True
        if (found := _LOST.search(line.text)) is not None:
            self._lost = (found["device"], line.lineno)
            if found["text"].strip():
                self._keep("kernel_gpu_lost", line, key=(found["device"],), device=found["device"])
            return True
        return "NVRM:" in line.text

    def take_sxid(self, line: Line) -> bool:
        """Takes an NVSwitch's error."""
        found = _SXID.search(line.text)
        if found is not None:
            key = (found["device"], found["code"])
            self._keep("kernel_sxid", line, key=key, **found.groupdict())
        return found is not None

    def take_pcie(self, line: Line) -> bool:
        """Takes the line on a slow PCIe link."""
        found = _PCIE_LIMIT.search(line.text)
        if found is None:
            return False
        told = found.groupdict()
        at = told.pop("at")
        self._keep("kernel_pcie_limited", line, key=(at,), device=at, **told)
        return True

    def take_mlx5(self, line: Line) -> bool:
        """Takes the NIC driver's lines."""
        found = _MLX5.search(line.text)
        if found is None:
            return False
        if self.take_pcie(line):
            return True
        device, text = found["device"], found["text"]
        if (port := _MLX5_PORT.search(text)) is not None:
            self._link(line, device, port["hca"], port["state"])
        elif (link := _MLX5_LINK.search(text)) is not None:
            self._link(line, device, link["netdev"], link["state"].upper())
        elif _MLX5_FATAL.search(text):
            self._keep("kernel_hca_fatal", line, key=(device,), device=device, text=text)
        elif _MLX5_CABLE.search(text):
            self._keep("kernel_cable", line, key=(device,), device=device, text=text)
        elif _MLX5_TIMEOUT.search(text):
            self._keep("kernel_hca_timeout", line, key=(device,), device=device, text=text)
        return True

    def _link(self, line: Line, bdf: str, name: str, state: str) -> None:
        """Keeps a link that went down; coming up is no event, but says that it recovered."""
        at = ("kernel_link_down", bdf)
        if state == "DOWN":
            self._keep("kernel_link_down", line, key=(bdf,), device=name, bdf=bdf)
            state_now = "no"
        elif state in {"UP", "ACTIVE"}:
            state_now = "yes"
        else:
            return
        if at in self._errors:
            known = self._errors[at]
            values = FrozenDict({**known.values, "up_again": state_now})
            self._errors[at] = evolve(known, values=values)

    def take_begin_nvlink(self, line: Line) -> bool:
        """Takes the title of dcgmi's table of NVLinks."""
        self._in_nvlink = "NvLink Link Status" in line.text
        return self._in_nvlink

    def take_begin_dcgm(self, line: Line) -> bool:
        """Takes the title of dcgmi's table of checks."""
        self._in_dcgm = (
            re.search(r"\| *(?:Diagnostic|Overall Health|Health Monitor)\b", line.text) is not None
        )
        if self._in_dcgm and "Overall Health" in line.text:
            self._row(line)
        return self._in_dcgm

    def _dcgm(self, line: Line) -> bool:
        text = line.text.strip()
        if not text or set(text) <= set("+-=|"):
            return bool(text)
        if self._in_nvlink and (found := _NVLINK_GPU.match(line.text)) is not None:
            self._nvlink = int(found[1][:6])
            return True
        if self._in_nvlink and (found := _NVLINK_ROW.match(line.text)) is not None:
            down = found[1].count("D")
            if down:
                self._keep(
                    "dcgm_nvlink_down",
                    line,
                    key=(self._nvlink,),
                    gpu=self._nvlink,
                    down=down,
                    links=len(found[1].split()),
                )
            return True
        if self._in_nvlink and text.startswith(
            ("GPUs:", "NvSwitches:", "No NvSwitches", "Key:", "physicalId")
        ):
            return True
        if self._in_dcgm and text.startswith(("|", "+")):
            self._row(line)
            return True
        self._in_nvlink = self._in_dcgm = False
        return False

    def _row(self, line: Line) -> None:
        row = _DCGM_ROW.match(line.text)
        if row is not None and row["name"] and _DCGM_FAIL.match(row["value"]):
            name = row["name"].lstrip("-> ").strip()
            self._keep("dcgm_fail", line, key=(name,), check=name, text=row["value"])


_MARKS: Final[dict[str, Callable[[KernelLog, Line], bool]]] = {
    "SXid": KernelLog.take_sxid,
    "NVRM:": KernelLog.take_nvrm,
    "mlx5_core ": KernelLog.take_mlx5,
    "available PCIe bandwidth": KernelLog.take_pcie,
    "NvLink Link Status": KernelLog.take_begin_nvlink,
    "| Diagnostic": KernelLog.take_begin_dcgm,
    "Overall Health": KernelLog.take_begin_dcgm,
}
