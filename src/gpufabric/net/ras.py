"""NCCL's RAS: the text of `ncclras`, its JSON (2.28.7 and later) and the events of monitor mode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, cast

from gpufabric._frozen import FrozenDict
from gpufabric.net.records import Ras, RasCommunicator, Unread

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_VERSION = re.compile(r"\s*NCCL version (\S+) compiled with CUDA (\S+)\s*$")
_SUMMARY = re.compile(r"\s*Job summary\s*$")
_SECTION = re.compile(r"\s*(Communicators|Errors|Warnings)\b")
_NUMBERS = re.compile(r"\s*\d{1,12}(?:\s+\d{1,12})*\s*$")
_GROUP = re.compile(
    r"\s*(?P<group>\d{1,12})\s+(?P<comms>\d{1,12})\s+(?P<nodes>\d{1,12})\s+(?P<per_node>\d{1,12}(?:-\d{1,12})?)\s+"
    r"(?P<ranks>\d{1,12})\s+(?P<in_group>\d{1,12})\s+"
    r"(?P<status>INIT|RUNNING|FINALIZE|ABORT|NOCOMM|UNKNOWN)\s+"
    r"(?P<errors>(?:OK|MISMATCH|INCOMPLETE|ERROR|TIMEOUT)(?:,\w+)*)\s*$"
)
_COMM = re.compile(
    r"\s*#(?P<group>\d{1,12})-(?P<number>\d{1,12}) \((?P<hash>[0-9a-f]+)\) (?P<what>[A-Z]+)\s*$"
)
_DIFFERENT = re.compile(
    r"\s*Communicator ranks have different (?:(?P<status>status)|(?P<op>\w+) operation counts)"
)
_LAUNCHED = re.compile(
    r"\s*(?P<n>\d{1,12}) ranks have (?:launched up to operation (?P<op>\d{1,12})|"
    r"(?P<none>not launched any operations)|status (?P<status>[A-Z]+))"
)
_OUTLIER = re.compile(
    r"\s*Rank (?P<rank>\d{1,12})(?: has (?:launched up to operation (?P<op>\d{1,12})|"
    r"(?P<none>not launched any operations)|status (?P<status>[A-Z]+))| reported (?P<error>.*?))?"
    r" -- (?:GPU (?P<gpu>\d{1,12})(?: \(NVML \d{1,12}\))? managed by process (?P<pid>\d{1,12})"
    r" on node (?P<node>\S+)"
    r"|\[process information not found\])"
)
_PROCESS = re.compile(
    r"\s*Process (?P<pid>\d{1,12}) on node (?P<node>\S+) managing GPUs? (?P<gpus>\S+)"
)
_MISSING = re.compile(r"\s*Missing communicator data from (\d{1,12}) (?:job )?(process|rank)")
_DEAD = re.compile(r"\s*(\d{1,12}) job process(?:es are| is) considered dead")
_FAULT = re.compile(r"\s*(Initialization|Asynchronous) errors? on (\d{1,12}) rank")
_TIMEOUTS = re.compile(r"\s*Encountered (\d{1,12}) communication timeouts?")
_EVENT = re.compile(
    r"\s*\[(?P<time>[^\]]{1,40})\]\s+(?P<event>PEER_[A-Z_]+|[A-Z]+_DEAD):\s+"
    r"Process (?P<pid>\d{1,12}) on node (?P<node>\S+) managing GPUs? (?P<gpus>\S+)"
)
_MAX: Final = 1024  # entries kept of any list; RAS itself names at most ten outliers a list


class RasText:
    """Reads the sections of a RAS report, and monitor events."""

    name: ClassVar[str] = "ras"
    kind: ClassVar[str] = "ras"

    def __init__(self) -> None:
        self.unread: list[Unread] = []
        self.unread_count = 0
        self._open = False
        self._events = False
        self._section = ""
        self._facts: dict[str, object] = {}
        self._groups: list[RasCommunicator] = []
        self._totals: tuple[int | None, int | None, int | None] = (None, None, None)
        self._comm = ""
        self._mismatches: list[dict[str, object]] = []
        self._before: list[tuple[object, ...]] = []
        self._lists: dict[str, list[FrozenDict[str, object]]] = {}
        self._missing_from = "missing"
        self._reports = 0
        self._at = 0

    def feed(self, line: Line, /) -> bool:
        """Takes the lines from the version to the last warning."""
        text = line.text
        self._at = line.lineno
        if "compiled with CUDA" in text and (found := _VERSION.match(text)):
            self._begin()
            self._facts |= {"nccl_version": found[1], "cuda_build": found[2]}
            return True
        if not self._open and text.startswith("CUDA runtime version") and self._versions(text):
            facts = dict(self._facts)  # the NCCL line before it may have gone to the log's reader
            self._begin()
            self._facts |= facts
            return True
        if text.startswith("Job summary") and _SUMMARY.match(text):
            if not self._open or self._section:
                self._begin()
            self._section = "Job summary"
            return True
        if "PEER_" in text or "_DEAD:" in text:
            return self._event(text)
        return self._body(line) if self._open and text.strip() else False

    def close(self) -> None:
        """Nothing is held back."""

    def result(self) -> dict[str, object]:
        """The last report of the text (they are queried again and again), and all events."""
        if not self._reports and not self._events:
            return {}
        values = dict(self._facts)
        values |= {name: tuple(items) for name, items in self._lists.items()}
        if self._mismatches and self._before:
            # The same counts in two queries: the ranks do not move.
            values["unchanged"] = any(_told(each) in self._before for each in self._mismatches)
        if len(self._mismatches) > 1:
            values["mismatches"] = tuple(_frozen(each) for each in self._mismatches)
        gpus, processes, nodes = self._totals
        return {
            "ras": Ras(
                n_gpus=gpus,
                n_processes=processes,
                n_nodes=nodes,
                communicators=tuple(self._groups) if self._groups else None,
                mismatch=_frozen(_telling(self._mismatches)) if self._mismatches else None,
                values=FrozenDict(values),
            ),
            "unread": tuple(self.unread),
            "unread_count": self.unread_count,
        }

    def _begin(self) -> None:
        self._reports += 1
        self._open, self._section, self._comm = True, "", ""
        self._totals = (None, None, None)
        self._before = [_told(each) for each in self._mismatches]
        self._groups, self._mismatches = [], []
        events = self._lists.pop("events", None)
        self._lists = {"events": events} if events else {}
        self._facts = {"reports": self._reports, "lineno": self._at}

    def _event(self, text: str) -> bool:
        found = _EVENT.match(text)
        if found is None:
            return False
        self._events = True
        self._keep("events", {**found.groupdict()})
        return True

    def _body(self, line: Line) -> bool:
        text = line.text
        if (found := _SECTION.match(text)) is not None:
            self._section = found[1]
            return True
        if set(text.strip()) == {"="}:
            return True
        taken = {
            "": self._versions,
            "Job summary": self._summary,
            "Communicators": self._communicators,
            "Errors": self._errors,
            "Warnings": self._warnings,
        }[self._section](text)
        if (
            not taken
            and self._section in {"Errors", "Warnings"}
            and not text.startswith((" ", "#"))
        ):
            self._open = False
        elif not taken and text.startswith((" ", "#")):
            self.unread_count += 1
            if len(self.unread) < 64:
                self.unread.append(Unread(line.lineno, text[:200]))
            return True
        return taken

    def _versions(self, text: str) -> bool:
        found = re.match(r"\s*CUDA runtime version (\d{1,9}), driver version (\d{1,9})", text)
        if found is not None:
            self._facts |= {"cuda_runtime": int(found[1]), "cuda_driver": int(found[2])}
        return found is not None

    def _summary(self, text: str) -> bool:
        if not _NUMBERS.match(text):
            words = ("Nodes", "Processes", "GPUs", "per ", "(total)", "The outlier", "Node ")
            return text.strip().startswith(words)
        numbers = [int(word[:12]) for word in text.split()]
        if len(numbers) == 5:  # nodes, per node, per process, processes, GPUs
            self._totals = (numbers[4], numbers[3], numbers[0])
        elif len(numbers) == 3:  # the last such row holds the totals
            self._totals = (numbers[2], numbers[1], numbers[0])
        return True

    def _communicators(self, text: str) -> bool:
        row = _GROUP.match(text)
        if row is None:
            return text.strip().startswith(("Group", "#", "No communicator"))
        if len(self._groups) < _MAX:
            self._groups.append(
                RasCommunicator(
                    group=int(row["group"]),
                    ranks=int(row["ranks"]),
                    status=row["status"],
                    errors=row["errors"],
                    values=FrozenDict(
                        {
                            "comms": int(row["comms"]),
                            "nodes": int(row["nodes"]),
                            "ranks_in_group": int(row["in_group"]),
                        }
                    ),
                )
            )
        return True

    def _errors(self, text: str) -> bool:
        if text.strip() in {"INCOMPLETE", "DEAD"}:
            self._missing_from = "missing" if text.strip() == "INCOMPLETE" else "dead"
            return True
        if (found := _COMM.match(text)) is not None:
            self._comm, self._missing_from = found["hash"], found["what"].lower()
            return True
        if self._counts(text):
            return True
        if (found := _PROCESS.match(text)) is not None:
            self._keep(f"{self._missing_from}_process_list", found.groupdict())
            return True
        if (found := _OUTLIER.match(text)) is not None:
            told = {key: value for key, value in found.groupdict().items() if value is not None}
            self._keep(f"{self._missing_from}_ranks", told)
            return True
        return re.match(r"\s*(?:\d+ ranks reported|\[could not find)", text) is not None

    def _counts(self, text: str) -> bool:
        """The lines that only say how many."""
        if (found := _MISSING.match(text)) is not None:
            name = "missing_processes" if found[2] == "process" else "missing_ranks_count"
            self._facts.setdefault(name, int(found[1]))
        elif (found := _DEAD.match(text)) is not None:
            self._facts["dead_processes"] = int(found[1])
        elif (found := _FAULT.match(text)) is not None:
            self._facts[f"{found[1].lower()}_errors"] = int(found[2])
        return found is not None

    def _warnings(self, text: str) -> bool:
        if (found := _COMM.match(text)) is not None:
            self._comm = found["hash"]
            return True
        if (found := _TIMEOUTS.match(text)) is not None:
            self._facts["timeouts"] = int(found[1])
            return True
        if (found := _DIFFERENT.match(text)) is not None:
            if len(self._mismatches) < _MAX:
                self._mismatches.append(
                    {
                        "op": found["op"],
                        "comm": self._comm,
                        "counts": {},
                        "statuses": {},
                        "outlier_ranks": [],
                        "lineno": self._at,
                    }
                )
            return True
        if self._mismatches and (found := _LAUNCHED.match(text)) is not None:
            _count(self._mismatches[-1], found, int(found["n"]))
            return True
        if self._mismatches and (found := _OUTLIER.match(text)) is not None:
            ranks = cast("list[int]", self._mismatches[-1]["outlier_ranks"])
            if len(ranks) < _MAX:
                ranks.append(int(found["rank"]))
            if found["op"] or found["none"] or found["status"]:
                _count(self._mismatches[-1], found, 1)
            return True
        return text.strip() == "TIMEOUT"

    def _keep(self, name: str, facts: Mapping[str, object]) -> None:
        kept = self._lists.setdefault(name, [])
        if len(kept) < _MAX:
            kept.append(FrozenDict(facts))


def _count(mismatch: dict[str, object], found: re.Match[str], ranks: int) -> None:
    """Notes that so many ranks stand at an operation, or have a status."""
    if found["status"]:
        cast("dict[str, int]", mismatch["statuses"])[found["status"]] = ranks
    else:
        operation = "0" if found["none"] else found["op"]
        cast("dict[str, int]", mismatch["counts"])[operation] = ranks


def _told(mismatch: dict[str, object]) -> tuple[object, ...]:
    """What of a mismatch shows whether ranks moved."""
    return (mismatch["comm"], mismatch["op"], str(mismatch["counts"]))


def _telling(mismatches: list[dict[str, object]]) -> dict[str, object]:
    """The first mismatch that names an operation, else the first."""
    return next((each for each in mismatches if each["op"] is not None), mismatches[0])


def _frozen(mismatch: dict[str, object]) -> FrozenDict[str, object]:
    told: dict[str, object] = {}
    for name, value in mismatch.items():
        if isinstance(value, dict):
            if value:
                told[name] = FrozenDict(cast("dict[str, int]", value))
        elif isinstance(value, list):
            told[name] = tuple(cast("list[int]", value))
        else:
            told[name] = value
    return FrozenDict(told)
