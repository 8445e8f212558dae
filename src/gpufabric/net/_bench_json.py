"""The JSON file that nccl-tests writes with -J, since 2.17.3, into tables.

Its traps: the average's key is misspelled before 2.17.9, the root is padded text, booleans and NaN
are text, the list of devices holds the first device of each process only, and ``env`` holds the
whole environment, secrets too: it is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net._bench_math import (
    COLLECTIVES,
    average_matches,
    infer_collective,
    mean,
    rank_range,
)
from gpufabric.net._bench_rows import ratio_of
from gpufabric.net.records import BenchRow, BenchTable, Device, Header, Measured

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_MAX_ROWS: Final = 20_000
_MAX_TABLES: Final = 1_000
_NAME = re.compile(r"\b(" + "|".join(COLLECTIVES) + r")_perf")

_Json = Mapping[str, object]


class NcclTestsJson:
    """Whole result files of nccl-tests found in the text."""

    name: ClassVar[str] = "nccl_tests_json"
    kind: ClassVar[str] = "nccl_tests"

    def __init__(self) -> None:
        self._tables: list[BenchTable] = []
        self._header: Header | None = None

    def feed(self, line: Line) -> bool:
        """Takes no line: a file is a JSON object and comes by ``feed_json``."""
        del line
        return False

    def feed_json(self, document: _Json, lineno: int) -> bool:
        """Takes one result file."""
        results = document.get("results")
        if not isinstance(results, list) or not isinstance(document.get("config"), dict):
            return False
        config = cast("_Json", document["config"])
        if len(self._tables) < _MAX_TABLES:
            devices = _devices(config)
            table = _table(document, cast("list[object]", results), lineno, _ranks(config, devices))
            self._tables.append(table)
            if self._header is None:
                self._header = _header(document, config, devices, table)
        return True

    def close(self) -> None:
        """Nothing more comes."""

    def result(self) -> _Json:
        """The tables, and the header of the first file."""
        if self._header is None:
            return {}
        return {"header": self._header, "tables": tuple(self._tables)}


def _table(document: _Json, results: list[object], lineno: int, ranks: int | None) -> BenchTable:
    rows = tuple(row for result in results[:_MAX_ROWS] if (row := _row(result)) is not None)
    args = document.get("args")
    named = None
    if isinstance(args, list) and args:
        match = _NAME.search(str(cast("list[object]", args)[0]))
        named = match[1] if match else None
    collective = named or infer_collective(rows, has_redop=True, has_root=True)
    words = [
        (repr(half.algbw), repr(half.busbw))
        for row in rows[-64:]
        for half in (row.out_of_place, row.in_place)
        if half and half.algbw is not None and half.busbw is not None
    ]
    ratio = ratio_of(words)
    allowed = rank_range(collective, *ratio) if ratio else None
    basis: str | None = "devices x nGpus x nThreads"
    if allowed and (ranks is None or not allowed[0] <= ranks <= allowed[1]):
        ranks = allowed[0] if allowed[0] == allowed[1] else None
        basis = "busbw/algbw at the largest sizes"
    average = _dict(document.get("average_bus_bandwidth") or document.get("average_bus_bandwidith"))
    bounds = _dict(document.get("out_of_bounds"))
    values = [busbw for row in rows for busbw in row.busbws()]
    printed = _float(average.get("bandwidth"))
    errors = document.get("errors")
    return BenchTable(
        rows=rows,
        collective=collective,
        collective_basis=None if collective is None else ("named" if named else "inferred"),
        n_ranks=ranks,
        n_ranks_basis=basis if ranks is not None else None,
        n_ranks_range=allowed,
        avg_bus_bandwidth=printed,
        out_of_bounds_count=_int(bounds.get("count")),
        out_of_bounds_word={True: "OK", False: "FAILED"}.get(_bool(bounds.get("okay")) or False)
        if _bool(bounds.get("okay")) is not None
        else None,
        mean_of_printed_rows=mean(values),
        printed_rows_are_complete=None
        if printed is None or not values
        else average_matches(printed, values),
        time_is_cpu=any("cpu_time" in _dict(_dict(r).get("out_of_place")) for r in results[:1]),
        per_iteration=any("out_of_place_per_iter" in _dict(r) for r in results[:1]),
        lineno=lineno,
        rows_left_out=max(0, len(results) - _MAX_ROWS),
        errors=tuple(str(e)[:400] for e in cast("list[object]", errors)[:100])
        if isinstance(errors, list)
        else (),
    )


def _row(result: object) -> BenchRow | None:
    fields = _dict(result)
    size = _int(fields.get("size"))
    if size is None or size < 0:
        return None
    dtype, redop = fields.get("type"), fields.get("redop")
    return BenchRow(
        size_bytes=size,
        count=_int(fields.get("count")),
        out_of_place=_half(fields.get("out_of_place")),
        in_place=_half(fields.get("in_place")),
        dtype=dtype.strip() if isinstance(dtype, str) else None,
        redop=redop.strip() if isinstance(redop, str) else None,
        root=_int(fields.get("root")),
    )


def _half(value: object) -> Measured | None:
    if not isinstance(value, dict):
        return None
    half = cast("_Json", value)
    return Measured(
        _float(half.get("time", half.get("cpu_time"))),
        _float(half.get("alg_bw")),
        _float(half.get("bus_bw")),
        _float(half.get("nwrong")),
    )


def _header(
    document: _Json, config: _Json, devices: tuple[Device, ...], table: BenchTable
) -> Header:
    number = _int(document.get("nccl_version"))
    hosts = {device.host for device in devices}
    n_nodes = len(hosts) if devices and None not in hosts else None
    per_node = None
    if n_nodes and table.n_ranks and table.n_ranks % n_nodes == 0:
        counts = {sum(d.host == host for d in devices) for host in hosts}
        per_node = table.n_ranks // n_nodes if len(counts) == 1 else None
    check = _int(config.get("validation"))
    gpus = list(dict.fromkeys(device.gpu for device in devices if device.gpu))
    return Header(
        nccl_version=version_text(number) if number is not None else None,
        gpu=" + ".join(gpus) or None,
        n_ranks=table.n_ranks,
        n_ranks_basis=table.n_ranks_basis,
        n_nodes=n_nodes,
        ranks_per_node=per_node,
        iters=_int(config.get("iterations")),
        warmup_iters=_int(config.get("warmup_iters")),
        validation=None if check is None else check != 0,
        complete="end_time" in document and table.avg_bus_bandwidth is not None,
        devices=devices,
        parameters=FrozenDict(
            {k: str(v) for k, v in config.items() if isinstance(v, (str, int, float))}
        ),
        n_headers=1,
        n_footers=1,
    )


def version_text(number: int) -> str | None:
    """22807 is 2.28.7; before 2.9 the integer was major*1000 + minor*100 + patch."""
    if number >= 10_000:
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    if number >= 1_000:
        return f"{number // 1_000}.{number // 100 % 10}.{number % 100}"
    return None


def _devices(config: _Json) -> tuple[Device, ...]:
    listed = config.get("devices")
    if not isinstance(listed, list):
        return ()
    out: list[Device] = []
    for item in cast("list[object]", listed)[:100_000]:
        fields = _dict(item)
        rank = _int(fields.get("rank"))
        host, gpu = fields.get("hostname"), fields.get("device_info")
        if rank is None:
            continue
        out.append(
            Device(
                rank=rank,
                host=host if isinstance(host, str) and host else None,
                gpu=gpu.strip() if isinstance(gpu, str) else "",
                local_dev=_int(fields.get("device")),
                pid=_int(fields.get("pid")),
                group=_int(fields.get("group")),
                bus_id=str(fields["device_hex"]) if "device_hex" in fields else None,
            )
        )
    return tuple(out)


def _ranks(config: _Json, devices: tuple[Device, ...]) -> int | None:
    """Each process lists its first device only; it drives nGpus of them in nThreads threads."""
    threads, gpus = _int(config.get("nthreads")), _int(config.get("ngpus"))
    if not devices or threads is None or gpus is None:
        return None
    return len(devices) * threads * gpus


def _dict(value: object) -> _Json:
    return cast("_Json", value) if isinstance(value, dict) else {}


def _int(value: object) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
        return int(value)
    return None


def _float(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = float(value) if abs(value) < 1e300 else math.inf
    return number if math.isfinite(number) else None


def _bool(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False, "OK": True, "FAILED": False}.get(value.strip())
    return None
