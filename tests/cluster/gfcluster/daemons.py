"""The cluster's own processes: started, found again, paused, killed, started again."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .layout import MARK, state_folder
from .shell import ClusterError, say, tail, wait_until


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """One program that runs as long as the cluster does."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def log(self) -> Path:
        """What it prints."""
        return state_folder() / "logs" / f"{self.name.replace('/', '-')}.log"


def _record(name: str) -> Path:
    return state_folder() / "daemons" / f"{name.replace('/', '-')}.json"


def child(pid: int) -> int | None:
    """The first child of a process."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(found[0]) if found else None


def started_at(pid: int) -> int | None:
    """The start time of a process in clock ticks: with the id it names one process for ever.

    None once it has ended. One whose first thread alone has ended, as a killed program's may for a
    moment, has not: the others still hold its ports.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), int(fields[19])  # proc_pid_stat(5)
    return None if state in "ZX" and threads <= 1 else started


def start(
    name: str,
    argv: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    node: bool = False,
) -> Daemon:
    """Start a program in the background and write down how, so that a fault can start it again.

    On a node, `nsenter` stays as the parent of the program, which is the one that is written down.
    """
    daemon = Daemon(name=name, argv=tuple(str(word) for word in argv), env=dict(env or {}))
    daemon.log.parent.mkdir(parents=True, exist_ok=True)
    _record(name).parent.mkdir(parents=True, exist_ok=True)
    with daemon.log.open("ab") as log:
        process = subprocess.Popen(
            daemon.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**_environment(), **daemon.env},
        )
    parent, pid = process.pid, process.pid
    process.returncode = 0  # it outlives this program on purpose: no ResourceWarning for that
    if node:
        pid = wait_until(
            f"{name} started",
            lambda: child(parent) or (-1 if started_at(parent) is None else None),
            timeout_s=30,
        )
    row = {
        "name": name,
        "pid": pid,
        "parent": parent,
        "started_at": started_at(pid),  # None: it has ended already
        "argv": daemon.argv,
        "env": dict(daemon.env),
        "node": node,
    }
    partial = _record(name).with_suffix(".partial")
    partial.write_text(json.dumps(row, indent=1))
    partial.rename(_record(name))  # whoever reads it meanwhile sees all of it or nothing
    check(daemon)
    return daemon


def _environment() -> dict[str, str]:
    """A small environment of our own: nothing of the caller's reaches the cluster."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", MARK: str(state_folder())}


def names() -> list[str]:
    """The names of all programs that were started."""
    folder = state_folder() / "daemons"
    return sorted(json.loads(path.read_text())["name"] for path in folder.glob("*.json"))


def _row(name: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(_record(name).read_text())
    except FileNotFoundError as exc:
        raise ClusterError(
            f"no program {name!r} in this cluster; there are: {', '.join(names()) or 'none'}"
        ) from exc
    return row


def load(name: str) -> tuple[Daemon, int | None]:
    """A program that was started, and its process id if it still runs."""
    row = _row(name)
    daemon = Daemon(name=name, argv=tuple(row["argv"]), env=row["env"])
    _reap(row["parent"])
    alive = row["started_at"] is not None and started_at(row["pid"]) == row["started_at"]
    return daemon, row["pid"] if alive else None


def _reap(pid: int) -> None:
    """Collect a program that ended and was this process's child; a stranger's is none of ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def state(name: str) -> str:
    """Running, paused or ended."""
    _, pid = load(name)
    if pid is None:
        return "ended"
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    return "paused" if letter == "T" else "running"


def pause(name: str) -> None:
    """Stop a program where it is (SIGSTOP): it answers nothing, and its connections stay open."""
    os.kill(_alive(name), signal.SIGSTOP)
    wait_until(f"{name} is paused", lambda: state(name) == "paused", timeout_s=20)


def resume(name: str) -> None:
    """Let a paused program go on."""
    pid, parent = _alive(name), _row(name)["parent"]
    for one in dict.fromkeys((pid, parent)):  # nsenter stops itself when its child stops
        os.kill(one, signal.SIGCONT)
    wait_until(f"{name} goes on", lambda: state(name) == "running", timeout_s=20)


def _alive(name: str) -> int:
    _, pid = load(name)
    if pid is None:
        raise ClusterError(f"{name} does not run")
    return pid


def kill(name: str) -> None:
    """End a program at once (SIGKILL) and wait until it is gone."""
    _, pid = load(name)
    if pid is None:
        return
    os.kill(pid, signal.SIGKILL)
    wait_until(f"{name} is gone", lambda: load(name)[1] is None, timeout_s=30)


def forget(name: str) -> None:
    """Drop the record of a program that is to run no more."""
    _record(name).unlink(missing_ok=True)


def restart(name: str) -> None:
    """Start a program again just as it was started before."""
    daemon, pid = load(name)
    if pid is None:
        start(name, daemon.argv, daemon.env, node=_row(name)["node"])


def check(daemon: Daemon) -> None:
    """Raise, with the end of its log, if a program that should run has ended."""
    if load(daemon.name)[1] is None:
        raise ClusterError(f"{daemon.name} ended:\n{tail(daemon.log)}")


# ---- everything of this cluster, also what no record names


def marked() -> Iterator[int]:
    """Process ids that carry this cluster's mark in the environment they were started with."""
    mark = f"{MARK}={state_folder()}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            found = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or is a kernel thread
            continue
        if found and started_at(int(entry.name)) is not None:
            yield int(entry.name)


def cgroup_roots() -> list[Path]:
    """The mounted control group hierarchies: several for version 1, one for version 2."""
    found: list[Path] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        kind, where = line.split()[2], Path(line.split()[1])
        if kind in ("cgroup", "cgroup2"):
            found.append(where)
    return found


def end_all() -> None:
    """End every process of this cluster: politely, then not.

    What runs in containers carries no mark, but ends with the first process of its node.
    """
    everything = set(marked())
    if not everything:
        return
    say(f"ending {len(everything)} processes")
    _signal(everything, signal.SIGTERM)
    with contextlib.suppress(ClusterError):  # SIGKILL is next
        wait_until("all ended politely", lambda: not set(marked()), timeout_s=2)

    def gone() -> bool:
        left = set(marked())
        _signal(left, signal.SIGKILL)
        return not left

    wait_until("every process of the cluster is gone", gone, timeout_s=20)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        _reap(pid)
