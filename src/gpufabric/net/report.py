"""``NetReport``: all that a text says about the network, in the library's vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

import attrs

from gpufabric._frozen import FrozenDict, frozen
from gpufabric.net.records import (
    BenchTable,
    Devices,
    Evidence,
    Gdr,
    Header,
    InspectorOp,
    Measured,
    NcclLog,
    NetError,
    Ras,
    Topology,
    TorchLog,
    Unread,
)

if TYPE_CHECKING:
    from gpufabric.net.diagnosis import Diagnosis

KINDS: Final = (
    "nccl_tests",
    "nccl_log",
    "mixed",
    "torch_log",
    "topo_xml",
    "nvidia_smi_topo",
    "ibstat",
    "ibdev2netdev",
    "show_gids",
    "sysfs",
    "ras",
    "unknown",
)
"""The kinds of the published vocabulary. A reader of another format names its own beside them."""

_LOG_KEYS: Final = (
    "network",
    "net_plugin",
    "provider",
    "link_layer",
    "relaxed_ordering",
    "inter_node_transport",
    "intra_node_transport",
    "oob_interface",
    "channels",
    "n_hosts_seen",
    "comm_id",
)
_HEADER_KEYS: Final = (
    "nccl_version",
    "cuda_driver",
    "cuda_build",
    "gpu",
    "n_ranks",
    "n_ranks_basis",
    "n_nodes",
    "ranks_per_node",
    "iters",
    "warmup_iters",
    "validation",
    "complete",
)


@frozen(kw_only=True)
class NetReport:
    """What one text says. Parts that the text does not have are None or empty."""

    kind: str = "unknown"
    kinds: tuple[str, ...] = ()
    header: Header = Header()
    tables: tuple[BenchTable, ...] = ()
    nccl_log: NcclLog | None = None
    torch: TorchLog | None = None
    errors: tuple[NetError, ...] = ()
    errors_left_out: int = 0
    topology: Topology | None = None
    devices: Devices | None = None
    ras: Ras | None = None
    inspector: tuple[InspectorOp, ...] = ()
    tests_failure: bool | None = None
    traceback: Evidence | None = None
    unread: tuple[Unread, ...] = ()
    unread_count: int = 0
    foreign_lines: int = 0
    """Lines with text that belong to no format read here."""
    lines: int = 0
    notes: tuple[str, ...] = ()
    """What the reader itself has to say: binary content, compressed data, lines cut."""

    @property
    def return_codes(self) -> tuple[int, ...]:
        """NCCL result numbers in the order first seen."""
        return self.nccl_log.return_codes if self.nccl_log else ()

    def diagnose(self) -> Diagnosis:
        """Health and findings from this text alone, without an offer to hold against it."""
        from gpufabric.net.diagnosis import diagnose

        return diagnose(self)

    def __str__(self) -> str:
        from gpufabric.net._summary import summary

        return summary(self, self.to_dict())

    def _repr_html_(self) -> str:
        from gpufabric._display import html_table

        told = [
            (key, value)
            for key, value in self.to_dict().items()
            if isinstance(value, (str, int, float)) and value not in {"", 0} and key != "kind"
        ]
        rows = [(key, str(value)) for key, value in told]
        rows += [(error.kind, error.evidence.text) for error in self.errors[:10]]
        return html_table(("key", "value"), rows, caption=f"Network text: {self.kind}")

    def to_dict(self) -> dict[str, object]:
        """The report as plain JSON values: every key there, None where the text does not tell."""
        out: dict[str, object] = {"kind": self.kind, **_judged(self)}
        out |= {key: plain(getattr(self.header, key)) for key in _HEADER_KEYS}
        out["tables"] = [_table(table) for table in self.tables]
        out |= self._log_dict()
        out["errors"] = [_error(error) for error in self.errors]
        out["return_codes"] = list(self.return_codes)
        out["tests_failure"] = self.tests_failure
        out |= self._torch_dict()
        clashes: dict[str, object] = {}
        for name, part in self._part_dicts():
            for key, value in part.items():
                if out.get(key) is None:
                    out[key] = value
                elif value is not None and value != out[key]:
                    # Two parts tell different things by one name: the later keeps its own.
                    own = cast("dict[str, object]", clashes.setdefault(name, {}))
                    own[key] = value
        out |= clashes
        out["inspector"] = [plain(op) for op in self.inspector]
        out["unread_count"] = self.unread_count
        out["notes"] = list(self.notes)
        return out

    def _log_dict(self) -> dict[str, object]:
        log = self.nccl_log or NcclLog()
        out: dict[str, object] = {key: plain(getattr(log, key)) for key in _LOG_KEYS}
        out["hcas"] = None if log.hcas is None else [hca.name for hca in log.hcas]
        out["gdr"] = str(log.gdr) if log.gdr else (str(Gdr.UNKNOWN) if self.nccl_log else None)
        out["gdr_by_hca"] = plain(log.gdr_by_hca)
        out["socket_interfaces"] = plain(log.socket_interfaces)
        out["env"] = plain(log.env)
        return out

    def _torch_dict(self) -> dict[str, object]:
        torch = self.torch or TorchLog()
        return {
            key: plain(getattr(torch, key))
            for key in ("pg", "rank", "last_enqueued", "last_completed")
        }

    def _part_dicts(self) -> list[tuple[str, dict[str, object]]]:
        topology = _fields(self.topology or Topology())
        topology.pop("matrix")
        devices = _fields(self.devices or Devices())
        hcas = cast("list[dict[str, object]] | None", devices.get("hcas"))
        if hcas is not None:
            devices["hcas"] = {hca["name"]: _hca(hca) for hca in hcas}
        return [
            ("ras", _fields(self.ras or Ras())),
            ("topology", topology),
            ("devices", devices),
        ]


def plain(value: object) -> object:
    """The value in the types JSON has."""
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it, and it measures nothing
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return {str(key): plain(item) for key, item in items.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [plain(item) for item in cast("tuple[object, ...]", value)]
    if attrs.has(type(value)):
        return _fields(value)
    return value


def _fields(value: object) -> dict[str, object]:
    """An attrs value as a dict, with what stands in its ``values`` beside its own fields."""
    out: dict[str, object] = {}
    for name in (a.name for a in attrs.fields(type(value))):  # type: ignore[arg-type]  # any attrs class
        if name == "values":
            continue
        out[name] = plain(getattr(value, name))
    extra: object = getattr(value, "values", None)
    if isinstance(extra, FrozenDict):
        for key, item in cast("FrozenDict[str, object]", extra).items():
            out.setdefault(key, plain(item))
    return out


def _hca(hca: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in hca.items() if k != "name"}


def _half(half: Measured | None) -> dict[str, object] | None:
    return None if half is None else _fields(half)


def _table(table: BenchTable) -> dict[str, object]:
    rows = table.rows
    largest = max(reversed(rows), key=lambda row: row.size_bytes) if rows else None
    first = rows[0] if rows else None
    return {
        "collective": table.collective,
        "dtype": largest.dtype if largest else None,
        "redop": largest.redop if largest else None,
        "root": largest.root if largest else None,
        "n_ranks": table.n_ranks,
        "rows": len(rows) + table.rows_left_out,
        "first_size_bytes": first.size_bytes if first else None,
        "largest_size_bytes": largest.size_bytes if largest else None,
        "at_largest": {
            "out_of_place": _half(largest.out_of_place) if largest else None,
            "in_place": _half(largest.in_place) if largest else None,
        },
        "avg_bus_bandwidth": table.avg_bus_bandwidth,
        "out_of_bounds_count": table.out_of_bounds_count,
        "out_of_bounds_word": table.out_of_bounds_word,
        "mean_of_printed_rows": table.mean_of_printed_rows,
        "printed_rows_are_complete": table.printed_rows_are_complete,
    }


def _error(error: NetError) -> dict[str, object]:
    out = _fields(error)
    out["lineno"] = error.evidence.lineno
    out["message"] = error.evidence.text
    del out["evidence"]
    return out


def _judged(report: NetReport) -> dict[str, object]:
    """``health`` and ``findings``, judged from the text alone."""
    diagnosis = report.diagnose()
    return {
        "health": str(diagnosis.health),
        "findings": [plain(finding) for finding in diagnosis.findings],
    }
