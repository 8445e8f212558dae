"""RAS's JSON (`ncclras -f json`): per-rank facts, from which the text form's words follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net.records import Ras, RasCommunicator

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_FINE: Final = frozenset({0, 7})  # ncclSuccess, ncclInProgress
_Json = Mapping[str, object]


class RasJson:
    """Takes whole JSON documents; the last report of the text is the answer."""

    name: ClassVar[str] = "ras_json"
    kind: ClassVar[str] = "ras"

    def __init__(self) -> None:
        self._last: Ras | None = None

    def feed(self, line: Line, /) -> bool:
        """Takes no line: a report is one JSON document."""
        del line
        return False

    def feed_json(self, document: _Json, _lineno: int, /) -> bool:
        """Takes a document with RAS's keys."""
        if "communicators_count" not in document or "communicators" not in document:
            return False
        self._last = _ras(document)
        return True

    def close(self) -> None:
        """Nothing is held back."""

    def result(self) -> dict[str, object]:
        """The last report."""
        return {} if self._last is None else {"ras": self._last}


def _ras(document: _Json) -> Ras:
    communicators = _objects(document.get("communicators"))
    everyone = [rank for comm in communicators for rank in _ranks_of(comm)]
    found = [_communicator(number, comm) for number, comm in enumerate(communicators)]
    mismatches = [told for comm in communicators if (told := _mismatch(comm)) is not None]
    values: dict[str, object] = {
        name: document.get(name)
        for name in ("nccl_version", "cuda_runtime_version", "cuda_driver_version", "timestamp")
        if isinstance(document.get(name), str | int)
    }
    missing = [rank for comm in communicators for rank in _objects(comm.get("missing_ranks"))]
    for name, flag in (("dead_ranks", "considered_dead"), ("missing_ranks", "unresponsive")):
        places = [_place(rank) for rank in missing if _status(rank).get(flag) is True]
        if places:
            values[name] = tuple(places)
    return Ras(
        n_gpus=len({(rank.get("host"), rank.get("nvml_dev")) for rank in everyone}) or None,
        n_processes=len({(rank.get("host"), rank.get("pid")) for rank in everyone}) or None,
        n_nodes=len({rank.get("host") for rank in everyone}) or None,
        communicators=tuple(found),
        mismatch=mismatches[0] if mismatches else None,
        values=FrozenDict(values),
    )


def _communicator(number: int, comm: _Json) -> RasCommunicator:
    ranks = _objects(comm.get("ranks"))
    missing = _objects(comm.get("missing_ranks"))
    states = {_state(rank) for rank in ranks}
    errors: list[str] = []
    silent = [rank for rank in missing if _status(rank).get("unresponsive") is True]
    if silent:
        errors.append("INCOMPLETE")
    if any(_faulty(rank) for rank in ranks):
        errors.append("ERROR")
    if len(states) > 1 or len(missing) > len(silent) or _mismatch(comm) is not None:
        errors.append("MISMATCH")
    size = comm.get("size")
    return RasCommunicator(
        group=number,
        ranks=size if isinstance(size, int) else None,
        # RAS shows the furthest state: NOCOMM < INIT < RUNNING < FINALIZE < ABORT.
        status=max(states, key=_STATES.index) if states else None,
        errors=",".join(errors) or "OK",
        values=FrozenDict({"hash": str(comm.get("hash"))}),
    )


_STATES: Final = ("INIT", "RUNNING", "FINALIZE", "ABORT")


def _state(rank: _Json) -> str:
    status = _status(rank)
    if status.get("abort_flag") is True:
        return "ABORT"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING" if status.get("init_state") == 0 else "INIT"


def _faulty(rank: _Json) -> bool:
    status = _status(rank)
    codes = (status.get("init_state"), status.get("async_error"))
    return any(isinstance(code, int) and code not in _FINE for code in codes)


def _mismatch(comm: _Json) -> FrozenDict[str, object] | None:
    """The first operation whose counts differ, and the ranks away from the majority."""
    by_operation: dict[str, dict[int, list[int]]] = {}
    for rank in _objects(comm.get("ranks")):
        number = rank.get("rank")
        for operation, count in _object(rank.get("collective_counts")).items():
            if isinstance(count, int) and isinstance(number, int):
                by_operation.setdefault(operation, {}).setdefault(count, []).append(number)
    for operation, groups in by_operation.items():
        if len(groups) > 1:
            order = sorted(groups.items(), key=lambda group: (-len(group[1]), -group[0]))
            told: dict[str, object] = {
                "op": operation,
                "comm": str(comm.get("hash")),
                "counts": FrozenDict({str(count): len(ranks) for count, ranks in order}),
                "outlier_ranks": tuple(rank for _, ranks in order[1:] for rank in ranks)[:1024],
            }
            return FrozenDict(told)
    return None


def _place(rank: _Json) -> FrozenDict[str, object]:
    return FrozenDict({name: rank.get(name) for name in ("rank", "host", "pid", "cuda_dev")})


def _ranks_of(comm: _Json) -> Iterable[_Json]:
    yield from _objects(comm.get("ranks"))
    yield from _objects(comm.get("missing_ranks"))


def _status(rank: _Json) -> _Json:
    return _object(rank.get("status"))


def _object(value: object) -> _Json:
    return cast("_Json", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[_Json]:
    if not isinstance(value, list):
        return []
    return [cast("_Json", item) for item in cast("list[object]", value) if isinstance(item, dict)]
