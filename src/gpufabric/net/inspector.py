"""Records of NCCL's inspector plugin: one JSON object for each collective of each rank.

Source: plugins/profiler/inspector of NVIDIA/nccl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, cast

from gpufabric.net.records import Header, InspectorOp

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_MAX_OPS: Final = 2_048
_MAX_BYTES: Final = 1 << 62


class _Sum:
    """What one kind of collective at one size came to so far."""

    def __init__(self) -> None:
        self.count = 0
        self.busbw = 0.0
        self.busbw_min = math.inf
        self.busbw_max = 0.0
        self.time = 0.0
        self.slowest = -1.0
        self.slowest_rank: int | None = None
        self.slowest_host: str | None = None
        self.n_ranks: int | None = None
        self.n_nodes: int | None = None


class InspectorReader:
    """Adds the records up by collective, size and communicator size."""

    name: ClassVar[str] = "inspector"
    kind: ClassVar[str] = "inspector"

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, int | None], _Sum] = {}
        self._n_ranks: int | None = None
        self._n_nodes: int | None = None

    def feed(self, line: Line) -> bool:
        """Takes no line: a record is a JSON object and comes by ``feed_json``."""
        del line
        return False

    def feed_json(self, document: Mapping[str, object], lineno: int) -> bool:
        """Takes one record."""
        del lineno
        perf = document.get("coll_perf")
        if not isinstance(perf, dict):
            return False
        values = cast("dict[str, object]", perf)
        header = _dict(document.get("header"))
        name, size = values.get("coll"), values.get("coll_msg_size_bytes")
        if not isinstance(name, str) or not isinstance(size, int) or not 0 <= size < _MAX_BYTES:
            return False
        n_ranks, n_nodes = _int(header.get("n_ranks")), _int(header.get("nnodes"))
        if n_ranks is not None and n_ranks >= (self._n_ranks or 0):
            self._n_ranks, self._n_nodes = n_ranks, n_nodes
        key = (name[:64], size, n_ranks)
        total = self._sums.get(key)
        if total is None:
            if len(self._sums) >= _MAX_OPS:
                return True
            total = self._sums[key] = _Sum()
            total.n_ranks, total.n_nodes = n_ranks, n_nodes
        self._add(total, values, header, _dict(document.get("metadata")))
        return True

    def _add(
        self,
        total: _Sum,
        values: Mapping[str, object],
        header: Mapping[str, object],
        metadata: Mapping[str, object],
    ) -> None:
        time, busbw = _float(values.get("coll_exec_time_us")), _float(values.get("coll_busbw_gbs"))
        if time is None or busbw is None:
            return
        total.count += 1
        total.busbw += busbw
        total.busbw_min = min(total.busbw_min, busbw)
        total.busbw_max = max(total.busbw_max, busbw)
        total.time += time
        if time > total.slowest:
            host = metadata.get("hostname")
            total.slowest = time
            total.slowest_rank = _int(header.get("rank"))
            total.slowest_host = host if isinstance(host, str) else None

    def close(self) -> None:
        """Nothing more comes."""

    def result(self) -> Mapping[str, object]:
        """Means and extremes of each kind of collective."""
        if not self._sums:
            return {}
        header = Header(
            n_ranks=self._n_ranks,
            n_ranks_basis=None if self._n_ranks is None else "inspector records",
            n_nodes=self._n_nodes,
        )
        ops = tuple(
            InspectorOp(
                collective=name,
                size_bytes=size,
                count=total.count,
                n_ranks=total.n_ranks,
                n_nodes=total.n_nodes,
                busbw_mean=total.busbw / total.count,
                busbw_min=total.busbw_min,
                busbw_max=total.busbw_max,
                time_us_mean=total.time / total.count,
                slowest_rank=total.slowest_rank,
                slowest_host=total.slowest_host,
            )
            for (name, size, _), total in self._sums.items()
            if total.count
        )
        return {"header": header, "inspector": ops}


def _dict(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = float(value) if abs(value) < 1e300 else math.inf
    return number if math.isfinite(number) else None
