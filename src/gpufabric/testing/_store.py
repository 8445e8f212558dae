"""Where the state of a simulated cloud lives: in memory, or in a folder for several processes."""

import contextlib
import os
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import cast

from attrs import define, field

from gpufabric.backends.base import Pool
from gpufabric.testing._records import Behaviour, Call, ClockMode, CloudObject, Fault, Run

__all__ = ["FolderStore", "MemoryStore", "State"]

_KEPT_CALLS = 20_000


@define(kw_only=True)
class State:
    """All that a simulated cloud knows. Its parts are values; the dicts are replaced in place."""

    pools: list[Pool]
    capacity: dict[str, int | None]
    clock: ClockMode
    boot_s: float
    tells_free: bool
    now: float
    serial: int = 0
    objects: dict[str, CloudObject] = field(factory=dict[str, CloudObject])
    secrets: dict[str, dict[str, str]] = field(factory=dict[str, dict[str, str]], repr=False)
    runs: dict[str, Run] = field(factory=dict[str, Run])
    behaviours: list[Behaviour] = field(factory=list[Behaviour])
    faults: list[tuple[Fault, int]] = field(factory=list[tuple[Fault, int]])
    calls: list[Call] = field(factory=list[Call])
    call_count: int = 0

    def strike(self, operation: str) -> Fault | None:
        """Counts a call for every fault; gives the first that strikes it."""
        hit: Fault | None = None
        for i, (fault, seen) in enumerate(self.faults):
            if not fault.counts(operation):
                continue
            self.faults[i] = (fault, seen + 1)
            if hit is None and fault.strikes(seen + 1):
                hit = fault
        return hit

    def record(self, call: Call) -> None:
        """Keeps a call; the oldest go first when there are too many."""
        self.calls.append(call)
        del self.calls[:-_KEPT_CALLS]

    def to_json(self) -> dict[str, object]:
        """The state as JSON-safe data."""
        from gpufabric._convert import plain

        return {
            "pools": plain(self.pools),
            "capacity": dict(self.capacity),
            "clock": self.clock.value,
            "boot_s": self.boot_s,
            "tells_free": self.tells_free,
            "now": self.now,
            "serial": self.serial,
            "objects": plain(list(self.objects.values())),
            "secrets": {name: dict(values) for name, values in self.secrets.items()},
            "runs": plain(list(self.runs.values())),
            "behaviours": plain(self.behaviours),
            "faults": [{"fault": plain(fault), "seen": seen} for fault, seen in self.faults],
            "calls": plain(self.calls),
            "call_count": self.call_count,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "State":
        """The state from JSON-safe data."""
        from gpufabric._convert import structure

        def many(kind: type, name: str) -> list[object]:
            items = cast("list[Mapping[str, object]]", data[name])
            return [cast("object", structure(kind, item)) for item in items]

        objects = cast("list[CloudObject]", many(CloudObject, "objects"))
        runs = cast("list[Run]", many(Run, "runs"))
        faults = cast("list[Mapping[str, object]]", data["faults"])
        return cls(
            pools=cast("list[Pool]", many(Pool, "pools")),
            capacity=cast("dict[str, int | None]", data["capacity"]),
            clock=ClockMode(cast("str", data["clock"])),
            boot_s=cast("float", data["boot_s"]),
            tells_free=cast("bool", data["tells_free"]),
            now=cast("float", data["now"]),
            serial=cast("int", data["serial"]),
            objects={f"{made.kind}/{made.name}": made for made in objects},
            secrets=cast("dict[str, dict[str, str]]", data["secrets"]),
            runs={run.job: run for run in runs},
            behaviours=cast("list[Behaviour]", many(Behaviour, "behaviours")),
            faults=[
                (
                    structure(Fault, cast("Mapping[str, object]", item["fault"])),
                    cast("int", item["seen"]),
                )
                for item in faults
            ],
            calls=cast("list[Call]", many(Call, "calls")),
            call_count=cast("int", data["call_count"]),
        )


class MemoryStore:
    """The state in this process."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def open(self) -> Generator[State, None, None]:
        """Gives the state; no one else has it meanwhile."""
        with self._lock:
            yield self._state


class FolderStore:
    """The state in `folder`: one JSON file, replaced as a whole under a file lock.

    A process that is killed leaves the state of its last finished call.
    """

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            if not self._file.exists():
                self._write(state)

    @property
    def _file(self) -> Path:
        return self.folder / "cloud.json"

    @contextlib.contextmanager
    def _locked(self) -> Generator[None, None, None]:
        import fcntl

        with self._lock:
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def open(self) -> Generator[State, None, None]:
        """Gives the state; no one else has it meanwhile. What was changed is kept at the end."""
        import json

        with self._locked():
            text = self._file.read_text(encoding="utf-8")
            state = State.from_json(json.loads(text))
            yield state
            self._write(state, text)

    def _write(self, state: State, before: str = "") -> None:
        import json

        text = json.dumps(state.to_json())
        if text == before:
            return
        fresh = self._file.with_name(f"cloud.json.{os.getpid()}")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        fresh.replace(self._file)
