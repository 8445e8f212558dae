"""What torch.distributed says of its NCCL process groups: watchdog texts and flight recorder dumps.

Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and FlightRecorder.hpp of pytorch/pytorch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net._nccl_errors import fault_of
from gpufabric.net._nccl_frame import Who
from gpufabric.net._nccl_state import clipped, error_of
from gpufabric.net.records import Evidence, FlightEntry, Header, NetError, RankState, TorchLog

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_KEEP: Final = 100
_MAX_RANKS: Final = 4_096

_WHERE = re.compile(
    r"\[(?:PG (?:ID )?(?P<pg>\d+)"
    r"(?: PG GUID \S*?(?:\((?P<name>[^)]*)\))?| ?\((?P<name2>[^)]*)\))? )?"
    r"Rank (?P<rank>\d+)\]"
)
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^()]*"
    r"(?:\([^()]*\)[^()]*)*)\) ran for (?P<ran>\d+) milliseconds"
)
_WORKS = re.compile(
    r"[Ll]ast enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: "
    r"(?P<completed>-?\d+)"
)
_GLOG_TIME = re.compile(r"\[[EWIF](\d{3,4} [\d:]{8}\.\d+) ")
_RANK_TAG = re.compile(r"\[(?:rank|default)(\d+)\]")
_BACKEND_ERROR = re.compile(
    r"NCCL error in: ?(?P<file>\S+?):\d+, (?P<text>.+?)(?:, NCCL version (?P<version>[\d.]+))?\s*$"
)
_CODES: Final = {
    "unhandled cuda error": 1,
    "unhandled system error": 2,
    "internal error": 3,
    "invalid argument": 4,
    "invalid usage": 5,
    "remote process exited or there was a network error": 6,
}
_STORE = re.compile(
    r"client socket has (?P<what>timed out after (?P<ms>\d+)ms|failed) (?:while )?(?:trying to )?"
    r"connect(?:ing)? to \(?(?P<peer>[^\s,)\]]+)[,:] ?(?P<port>\d+)\)?"
)
_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) ?(?:seconds|sec)")
_UPDATE: Final = "NCCL Work update periodically"


class TorchLogReader:
    """Watchdog, heartbeat and exception texts of ProcessGroupNCCL; JSON flight recorder dumps."""

    name: ClassVar[str] = "torch_log"
    kind: ClassVar[str] = "torch_log"

    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], NetError] = {}
        self._ranks: dict[tuple[int | None, int], RankState] = {}
        self._first: RankState | None = None
        self._flight: list[FlightEntry] = []
        self._flight_count = 0
        self._flight_works: tuple[int | None, int | None] | None = None
        self._version: str | None = None
        self._last_error_line = 0
        self._seen = False

    def feed(self, line: Line) -> bool:  # noqa: PLR0911 - one for each kind of line
        """Takes a line that ProcessGroupNCCL or torch's exceptions print."""
        text = line.text
        if self._last_error_line and text.strip():
            due, self._last_error_line = self._last_error_line, 0
            if line.lineno <= due + 2 and self._cause(line):
                return True
        if "NCCL work" in text or _UPDATE in text:
            return self._works(line)
        if "Watchdog caught" in text:
            return self._timeout(line)
        if "NCCL error in:" in text:
            return self._backend_error(line)
        if text.startswith("Last error:"):
            self._last_error_line = line.lineno
            return self._cause(line) or self._seen
        if "client socket has" in text:
            return self._store(line)
        if "watchdog got stuck" in text:
            return self._stuck(line)
        return self._seen and ("ProcessGroupNCCL.cpp:" in text or text.startswith("nccl"))

    def feed_json(self, document: Mapping[str, object], lineno: int) -> bool:
        """Takes a flight recorder dump (the JSON form; the pickled form is code, not text)."""
        entries = document.get("entries")
        if not isinstance(entries, list) or "pg_config" not in document:
            return False
        del lineno
        self._seen = True
        version = document.get("nccl_version")
        if isinstance(version, str) and re.fullmatch(r"\d+(\.\d+)+", version):
            self._version = self._version or version
        for entry in cast("list[object]", entries):
            self._flight_count += 1
            if isinstance(entry, dict) and len(self._flight) < _KEEP:
                record = _flight(cast("dict[str, object]", entry))
                # What is done needs no look; what is not tells where the ranks stand.
                if record.state != "completed":
                    self._flight.append(record)
        status = document.get("pg_status")
        if isinstance(status, dict):
            self._flight_works = _pg_works(cast("dict[str, object]", status))
        return True

    def close(self) -> None:
        """Nothing more comes."""

    # -- lines -----------------------------------------------------------------------------

    def _place(self, line: Line, before: int) -> tuple[int | None, str | None, int | None]:
        """Process group, its name and the rank: the last such tag in front of a text."""
        every = list(_WHERE.finditer(line.text, 0, before))
        if every:
            found = every[-1]
            pg = found["pg"]
            return (
                int(pg[:9]) if pg else None,
                found["name"] or found["name2"],
                int(found["rank"][:9]),
            )
        tag = _RANK_TAG.search(line.prefix or "")
        return None, None, int(tag[1][:9]) if tag else None

    def _works(self, line: Line) -> bool:
        match = _WORKS.search(line.text)
        if match is None:
            return False
        self._seen = True
        if _UPDATE in line.text:
            return True
        pg, name, rank = self._place(line, match.start())
        if rank is None:
            return True
        old = self._ranks.get((pg, rank))
        state = RankState(
            rank=rank,
            pg=pg,
            pg_name=name,
            last_enqueued=int(match["enqueued"][:18]),
            last_completed=int(match["completed"][:18]),
            timed_out="detected by watchdog" in line.text or (old is not None and old.timed_out),
            lineno=line.lineno,
        )
        if old is None and len(self._ranks) < _MAX_RANKS:
            self._ranks[(pg, rank)] = state
        if self._first is None and "dump signal" not in line.text:
            self._first = state
        return True

    def _timeout(self, line: Line) -> bool:
        match = _TIMEOUT.search(line.text)
        if match is None:
            return False
        self._seen = True
        work: dict[str, str] = {}
        for part in match["work"].split(", "):
            key, equals, value = part.partition("=")
            if equals:
                work[key.strip()] = value.strip()
        pg, _, rank = self._place(line, match.start())
        error = NetError(
            kind="watchdog_timeout",
            evidence=Evidence(line.lineno, clipped(line.text)),
            level="ERROR",
            rank=rank,
            ranks=() if rank is None else (rank,),
            op=work.get("OpType"),
            seq=_int(work.get("SeqNum")),
            numel=_int(work.get("NumelIn")),
            timeout_ms=_int(work.get("Timeout(ms)")),
            pg=pg,
            time=_time(line),
            values=FrozenDict({"ran_ms": match["ran"]}),
        )
        # The same timeout is told again by the terminated watchdog and by the exception.
        self._keep((error.kind, rank, error.op, error.seq), error)
        return True

    def _backend_error(self, line: Line) -> bool:
        match = _BACKEND_ERROR.search(line.text)
        if match is None:
            return False
        self._seen = True
        self._version = self._version or match["version"]
        tag = _RANK_TAG.search(line.prefix or "")
        words = match["text"].partition(" (run with")[0].partition(" - please")[0]
        error = NetError(
            kind="nccl_call_failed",
            evidence=Evidence(line.lineno, clipped(line.text)),
            level="ERROR",
            rank=int(tag[1][:9]) if tag else None,
            text=words,
            time=_time(line),
            values=FrozenDict({"result": str(_CODES[words])} if words in _CODES else {}),
        )
        self._keep((error.kind, error.rank, words), error)
        return True

    def _cause(self, line: Line) -> bool:
        """The NCCL warning that torch repeats behind "Last error:"."""
        text = line.text.removeprefix("Last error:").strip()
        fault = fault_of(text) if text else None
        if fault is None or fault.note:
            return False
        who = Who(None)
        who.time = _time(line)
        error = error_of(fault, who, line.lineno, line.text)
        self._keep((error.kind, error.peer, error.errno, error.text), error)
        return True

    def _store(self, line: Line) -> bool:
        match = _STORE.search(line.text)
        if match is None:
            return False
        self._seen = True
        error = NetError(
            kind="rendezvous_failed",
            evidence=Evidence(line.lineno, clipped(line.text)),
            level="ERROR",
            peer=match["peer"],
            peer_port=int(match["port"][:9]),
            timeout_ms=_int(match["ms"]),
            phase="rendezvous",
            time=_time(line),
        )
        self._keep((error.kind, error.peer, error.peer_port), error)
        return True

    def _stuck(self, line: Line) -> bool:
        match = _STUCK.search(line.text)
        if match is None:
            return False
        self._seen = True
        pg, _, rank = self._place(line, match.start())
        error = NetError(
            kind="watchdog_stuck",
            evidence=Evidence(line.lineno, clipped(line.text)),
            level="ERROR",
            rank=rank,
            pg=pg,
            timeout_ms=int(match["seconds"][:12]) * 1000,
            time=_time(line),
        )
        self._keep((error.kind, rank, pg), error)
        return True

    def _keep(self, key: tuple[object, ...], error: NetError) -> None:
        if len(self._errors) < _MAX_RANKS:
            self._errors.setdefault(key, error)

    # -- the answer ------------------------------------------------------------------------

    def result(self) -> Mapping[str, object]:
        """What the process groups said; nothing where the text has none of it."""
        if not self._seen:
            return {}
        first = self._first
        works = self._flight_works or (None, None)
        errors = tuple(self._errors.values())
        timeout = next((e for e in errors if e.kind == "watchdog_timeout"), None)
        out: dict[str, object] = {
            "torch": TorchLog(
                pg=first.pg if first else (timeout.pg if timeout else None),
                pg_name=first.pg_name if first else None,
                rank=first.rank if first else (timeout.rank if timeout else None),
                last_enqueued=first.last_enqueued if first else works[0],
                last_completed=first.last_completed if first else works[1],
                ranks=tuple(self._ranks.values()),
                flight=tuple(self._flight),
                flight_count=self._flight_count,
            ),
            "errors": errors,
        }
        if self._version:
            out["header"] = Header(nccl_version=self._version)
        return out


def _time(line: Line) -> str | None:
    """A collector's time stamp, or the month, day and time that torch's own logger prints."""
    match = _GLOG_TIME.search(line.text)
    return line.time or (match[1] if match else None)


def _int(text: str | None) -> int | None:
    return int(text[:18]) if text and text.isdecimal() else None


def _flight(entry: dict[str, object]) -> FlightEntry:
    seq = entry.get("p2p_seq_id") if entry.get("is_p2p") is True else entry.get("collective_seq_id")
    pg = entry.get("pg_id")
    name = entry.get("profiling_name")
    return FlightEntry(
        seq=seq if isinstance(seq, int) else None,
        op=name if isinstance(name, str) else None,
        state=_text(entry.get("state")),
        pg=pg if isinstance(pg, int) else None,
        numel=_numel(entry.get("input_sizes")),
        timeout_ms=_number(entry.get("timeout_ms")),
    )


def _numel(sizes: object) -> int | None:
    """Elements of all inputs: each is a list of dimensions."""
    if not isinstance(sizes, list) or not sizes:
        return None
    total = 0
    for shape in cast("list[object]", sizes):
        product = 1
        for dimension in cast("list[object]", shape) if isinstance(shape, list) else [None]:
            if not isinstance(dimension, int):
                return None
            product *= dimension
        total += product
    return total


def _pg_works(status: dict[str, object]) -> tuple[int | None, int | None]:
    """Last enqueued and completed collective of the first group that has any."""
    for group in status.values():
        if isinstance(group, dict):
            works = cast("dict[str, object]", group)
            enqueued = _number(works.get("last_enqueued_collective"))
            completed = _number(works.get("last_completed_collective"))
            if enqueued is not None:
                return enqueued, completed
    return None, None


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return _int(value) if isinstance(value, str) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
