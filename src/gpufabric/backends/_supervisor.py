r"""Runs one gang on one machine: a session of its own a node, all or none, nothing left after.

Self-contained on purpose: standard library only, no import of gpufabric, Linux, Python 3.8 or
later, because other backends send this file to machines where nothing is installed.

Three processes stand between the caller and the nodes:

- the *starter*, which the caller runs and reaps: it detaches and is gone;
- the *guard*, which holds the lock, adopts orphans, and does nothing else: when the supervisor is
  killed, it kills all that is left and writes `lost`;
- the *supervisor*, parent of the nodes: it copies what they write into records, stops them, starts
  them again, and writes the state.

How the caller speaks with them: it runs `main(folder)` with two pipes. It reads `locked\n`, may
then give the folder its final name, and writes the spec (8 bytes of length, JSON). It reads one
JSON line: `{"ok": true}` or `{"error": ...}`. Until then the end of its pipe means: give up, remove
everything. Secrets come in the spec and are kept in memory only.
"""

# pathlib would be a fifth of the time that this file needs to start:
# ruff: noqa: PTH103, PTH106, PTH108, PTH109, PTH110, PTH112, PTH114, PTH115, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

RECORD = struct.Struct("<BBHId")  # magic, stream, 0, length, seconds since 1970
RECORD_END = struct.Struct("<I")  # the length again: the last record is found from the end
RECORD_MAGIC = 0xA7
STREAMS = ("stdout", "stderr", "event")
SLOT = struct.Struct("<QII")  # sequence number, length, CRC-32
CHUNK_BYTES = 256 * 1024
KILL_WAIT_S = 10.0  # how long processes that got SIGKILL may take to be gone
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_KEPT = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
ENDED = ("succeeded", "failed", "timed-out", "cancelled", "lost")

Spec = Any  # plain JSON data: this file must run without the classes of the library


# --- files that other processes read -----------------------------------------------------------


def slot_bytes(num_nodes: int) -> int:
    """The size of one of the two slots of a state file."""
    return 8192 + 1280 * num_nodes  # JSON may need 12 bytes for a character of a reason


class StateFile:
    """The state of a job in a file that is full-size from the start, so no full disk can stop it.

    Two slots are written in turn; a reader takes the newest that is whole.
    """

    def __init__(self, path: str, num_nodes: int) -> None:
        self.size = slot_bytes(num_nodes)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        while (have := os.fstat(self.fd).st_size) < 2 * self.size:
            os.pwrite(self.fd, bytes(2 * self.size - have), have)  # on a full disk a part of it
        newest = read_slots(os.pread(self.fd, 2 * self.size, 0))
        self.sequence = newest[0] if newest else 0

    def write(self, state: Spec) -> None:
        """Makes `state` what readers see."""
        self.sequence += 1
        body = json.dumps(state, separators=(",", ":")).encode()
        head = SLOT.pack(self.sequence, len(body), zlib.crc32(body))
        os.pwrite(self.fd, head + body, (self.sequence % 2) * self.size)


def read_slots(data: bytes) -> tuple[int, Spec] | None:
    """Gives sequence number and content of the newest whole slot, None where there is none."""
    found: tuple[int, Spec] | None = None
    half = len(data) // 2
    for slot in (data[:half], data[half:]):
        if len(slot) < SLOT.size:
            continue
        sequence, length, check = SLOT.unpack_from(slot)
        body = slot[SLOT.size : SLOT.size + length]
        if sequence == 0 or len(body) != length or zlib.crc32(body) != check:
            continue
        if found is None or sequence > found[0]:
            found = (sequence, json.loads(body))
    return found


class Log:
    """What one node wrote in one attempt, as records; a record is never left half-written."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self.fd).st_size

    def write(self, stream: int, data: bytes, now: float) -> None:
        """Appends one record. Raises OSError, and then the file is as it was."""
        head = RECORD.pack(RECORD_MAGIC, stream, 0, len(data), now)
        parts = [head, data, RECORD_END.pack(len(data))]
        want = sum(map(len, parts))
        try:
            done = os.writev(self.fd, parts)
            if done < want:
                rest = b"".join(parts)[done:]
                while rest:
                    rest = rest[os.write(self.fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.size)
            raise
        self.size += want

    def close(self) -> None:
        """Closes the file."""
        os.close(self.fd)


# --- processes ---------------------------------------------------------------------------------


def prctl(option: int, value: int) -> None:
    """Sets an option of this process. Raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "prctl: " + os.strerror(code))


def start_time(pid: int) -> int | None:
    """When a process started, in ticks since boot: with the pid it names a process for good."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name may hold anything, ")" included


def _parents() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _stat(int(name))
            if stat:
                found.setdefault(int(stat[1]), []).append(int(name))
    return found


def children(pid: int) -> list[int]:
    """The children of a process, from the kernel's own list where it keeps one."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        return _parents().get(pid, []) if not _KEPT else found
    return found


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`, parents first. One that just forks may be missed."""
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children(todo.pop(0))
        found += below
        todo += below
    return found


def marked(mark: bytes) -> Iterator[int]:
    """All processes of this user whose environment at their start held `mark` (NAME=value)."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    yield int(name)


def holding(pipes: list[int]) -> Iterator[int]:
    """All processes of this user that hold one of the pipes, named by their inodes."""
    wanted = {f"pipe:[{inode}]" for inode in pipes}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                folder = f"/proc/{name}/fd"
                if any(os.readlink(f"{folder}/{fd}") in wanted for fd in os.listdir(folder)):
                    yield int(name)


def signal_process(pid: int, number: int, started: int | None) -> bool:
    """Sends a signal to the process `pid` that started at `started`, never to a later one."""
    if started is None:
        return False
    if not hasattr(os, "pidfd_open"):  # Python 3.8: a short race remains
        if start_time(pid) == started:
            os.kill(pid, number)
        return True
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def signal_all(pids: list[int], number: int) -> None:
    """Signals each of the processes that still is the one it was when this was called."""
    for pid, started in [(pid, start_time(pid)) for pid in pids]:
        signal_process(pid, number, started)


def has_children() -> bool:
    """Whether a child is left. Orphans become children of a subreaper, so this misses nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap_all() -> None:
    """Collects every child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_descendants(reap: Callable[[], None] = reap_all) -> list[int]:
    """Kills everything below this process; gives what could not be killed in time."""
    until = time.monotonic() + KILL_WAIT_S
    while True:
        reap()
        if not has_children():
            return []
        left = descendants(os.getpid())
        if time.monotonic() > until:
            return left
        signal_all(left, signal.SIGKILL)
        time.sleep(0.002)


class Clock:
    """Seconds since 1970 that never jump: the clock as it was at the start, and what passed."""

    def __init__(self) -> None:
        self.zero = time.time() - self._passed()

    def _passed(self) -> float:
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def now(self) -> float:
        """The present time."""
        return self.zero + self._passed()


def hold_port() -> tuple[socket.socket, int]:
    """Chooses a free TCP port and holds it.

    The socket is bound with SO_REUSEADDR and never listens, so that the kernel gives the port to
    nobody who asks for any port, while a program that asks for it with SO_REUSEADDR gets it.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("0.0.0.0", 0))  # noqa: S104  # never listens: nothing can connect
    return holder, holder.getsockname()[1]


# --- a node ------------------------------------------------------------------------------------


class StartError(Exception):
    """A node could not start: which, at what, and why."""

    def __init__(self, node: int, stage: str, reason: str) -> None:
        super().__init__(f"node {node}: {stage}: {reason}" if node >= 0 else f"{stage}: {reason}")
        self.node = node
        self.stage = stage
        self.reason = reason


def refuse_taken_ports(ports: list[int]) -> None:
    """Raises `StartError` where a server could not listen on one of the ports."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104  # closed at once
                probe.listen(1)
            except OSError as exc:
                raise StartError(-1, f"port {port}", os.strerror(exc.errno or 0)) from exc


class Node:
    """One node of the gang: its process, its pipes, its log, and how it ended."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.pipes: dict[int, int] = {}  # fd → stream
        self.inodes: list[int] = []  # of the pipes: who holds them is of this node
        self.report = -1
        self.gate = -1
        self.log: Log | None = None
        self.state = "pending"
        self.exit_code: int | None = None
        self.reason = ""
        self.started_at: float | None = None
        self.ended_at: float | None = None

    def plain(self) -> list[Any]:
        """The node in the state file."""
        return [self.state, self.exit_code, self.reason[:80], self.started_at, self.ended_at]

    def folder(self, attempt: int) -> str:
        """Where its attempt lives, below the folder of the job."""
        return f"nodes/{self.rank}/{attempt}"


def environment_of(spec: Spec, rank: int, attempt: int, port: int) -> dict[str, str]:
    """What a node sees: the caller's, the plan's, the user's, the secrets; later ones win."""
    words = {"{node_rank}": str(rank), "{attempt}": str(attempt), "{master_port}": str(port)}
    found: dict[str, str] = dict(spec["inherit"])
    templates: dict[str, str] = spec["env"]
    for name, template in templates.items():
        found[name] = words.get(template, template)
    for name, by_rank in spec["env_by_rank"].items():
        found[name] = by_rank[rank]
    found.update(spec["envs"])
    found.update(spec["secrets"])
    return found


def unpack(archive: str, target: str) -> None:
    """Lays the packed work folder into `target`."""
    import tarfile

    with tarfile.open(archive) as tar:
        # Our own archive, as the user's folder was: symlinks that lead out are kept as they are.
        tar.extraction_filter = lambda member, _: member
        tar.extractall(target)  # noqa: S202


def write_files(files: dict[str, str], target: str) -> None:
    """Lays the task's small files into `target`."""
    for name, text in files.items():
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # never write through a symlink of the work folder
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)


def fill_work(spec: Spec, work: str) -> None:
    """Lays a copy of the task's code into a node's work folder."""
    if spec["packed"]:
        unpack(os.path.join(spec["folder"], "workdir.tar"), work)
    write_files(spec["files"], work)


def enter(gang: Gang, node: Node, argv: list[str], *, fresh: bool) -> None:
    """Becomes the node: in the forked child, up to exec. Reports what fails, and never returns."""
    stage = "work folder"
    try:
        work = os.path.join(gang.spec["folder"], node.folder(gang.attempt), "work")
        if fresh:
            fill_work(gang.spec, work)
        os.chdir(work)
        env = environment_of(gang.spec, node.rank, gang.attempt, gang.port)
        os.write(node.report, b"ready\n")
        if os.read(node.gate, 1) != b"g":
            os._exit(0)
        stage = f"cannot run {argv[0]!r}"
        os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell unless the task asks for one
    except BaseException as exc:  # noqa: BLE001  # the child must report and end, whatever it is
        reason = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
        if isinstance(exc, OSError) and exc.errno == errno.E2BIG:
            reason += " (131,071 bytes are the most for one variable or argument; use files=)"
        named = getattr(exc, "filename", None)
        if stage == "work folder" and named:
            reason = f"{reason}: {named}"
        with contextlib.suppress(OSError):
            os.write(node.report, json.dumps([stage, reason]).encode())
    finally:
        os._exit(127)


def become_child(parent: int, pipes: list[tuple[int, int]]) -> None:
    """Makes a forked child a session of its own that dies with its parent and writes to `pipes`."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (pipes[0][1], 1), (pipes[1][1], 2)):
        os.dup2(fd, target)
    set_file_limit(back=True)


# --- the supervisor ----------------------------------------------------------------------------


class Gang:
    """All nodes of one job, from their start to their end."""

    def __init__(self, spec: Spec, launcher: int) -> None:
        self.spec = spec
        self.launcher = launcher  # the caller's pipe while it still waits, else -1
        self.clock = Clock()
        self.attempt = 0
        self.nodes = [Node(rank) for rank in range(spec["num_nodes"])]
        self.file = StateFile("state", len(self.nodes))
        self.state, self.reason = "pending", ""
        self.exit_code: int | None = None
        self.first: int | None = None  # the node whose failure ended the attempt
        self.started_at = self.clock.now()
        self.ended_at: float | None = None
        timeout = spec["timeout_s"]
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.ending: str | None = None  # the state that the gang is being stopped for
        self.stops: str | None = None  # a request to stop that a signal or the pipe brought
        self.log_fault = ""
        self.by_fd: dict[int, Node] = {}
        self.poll = select.epoll()
        self.control = os.open("control", os.O_RDWR | os.O_NONBLOCK)
        self.port_holder, self.port = hold_port()
        self._watch_signals()
        self.save()

    def _watch_signals(self) -> None:
        wake, self.wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.signal(signal.SIGTERM, self._on_term)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.wake = wake
        for fd in (wake, self.control):
            self.poll.register(fd, select.EPOLLIN)

    def _on_child(self, *_: object) -> None:
        """Wakes the loop, by the file that `set_wakeup_fd` names."""

    def _on_term(self, *_: object) -> None:
        self.stops = "the supervisor got SIGTERM"

    def save(self) -> None:
        """Writes the state for other processes to read."""
        self.file.write(
            {
                "state": self.state,
                "reason": self.reason[:500],
                "exit_code": self.exit_code,
                "first": self.first,
                "attempt": self.attempt,
                "started_at": self.started_at,
                "ended_at": self.ended_at,
                "pid": os.getpid(),
                "guard": os.getppid(),
                "port": self.port,
                "pipes": [pipe for node in self.nodes for pipe in node.inodes],
                "nodes": [node.plain() for node in self.nodes],
            }
        )

    # what nodes write

    def record(self, node: Node, stream: int, data: bytes) -> None:
        """Appends to a node's log. A log that cannot be written ends the gang."""
        if node.log is None or self.log_fault:
            return
        try:
            node.log.write(stream, data, self.clock.now())
        except OSError as exc:
            self.log_fault = f"cannot write the log of node {node.rank}: {exc.strerror}"

    def event(self, node: Node, text: str) -> None:
        """Appends the place's own words to a node's log."""
        self.record(node, STREAMS.index("event"), text.encode("utf-8", "surrogateescape") + b"\n")

    def read_pipe(self, node: Node, fd: int, limit: int = CHUNK_BYTES) -> int:
        """Copies one chunk of what a node wrote; gives its size, 0 where there is none now."""
        try:
            data = os.read(fd, limit)
        except BlockingIOError:
            return 0
        if not data:
            self.close_pipe(node, fd)
            return 0
        self.record(node, node.pipes[fd], data)
        return len(data)

    def close_pipe(self, node: Node, fd: int) -> None:
        """Lets go of one of a node's pipes."""
        self.poll.unregister(fd)
        del self.by_fd[fd], node.pipes[fd]
        os.close(fd)

    def drain(self, node: Node) -> None:
        """Takes what is in a node's pipes now. A process that still holds one is not waited for."""
        for fd in list(node.pipes):
            left = fcntl.fcntl(fd, getattr(fcntl, "F_GETPIPE_SZ", 1032))
            while left > 0 and fd in node.pipes:
                size = self.read_pipe(node, fd)
                if not size:
                    break
                left -= size
            if fd in node.pipes:
                self.close_pipe(node, fd)

    # starting

    def spawn(self, node: Node, argv: list[str], *, fresh: bool) -> None:
        """Forks a node's process up to its gate."""
        report, report_end = os.pipe2(os.O_CLOEXEC)
        gate_end, gate = os.pipe2(os.O_CLOEXEC)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                become_child(parent, pipes)
                os.close(gate)
                node.report, node.gate = report_end, gate_end
                enter(self, node, argv, fresh=fresh)
            finally:
                os._exit(127)
        for fd in (report_end, gate_end, pipes[0][1], pipes[1][1]):
            os.close(fd)
        node.pid, node.report, node.gate = pid, report, gate
        node.inodes = [os.fstat(fd).st_ino for fd, _ in pipes]
        for stream, (fd, _) in enumerate(pipes):
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), CHUNK_BYTES)
            node.pipes[fd] = stream
            self.by_fd[fd] = node
            self.poll.register(fd, select.EPOLLIN)

    def start_stage(self, argv: list[str], *, fresh: bool) -> None:
        """Starts one program on every node at once. Raises `StartError`; then some may run."""
        try:
            for node in self.nodes:
                try:
                    if fresh:
                        os.makedirs(node.folder(self.attempt) + "/work", mode=0o700, exist_ok=True)
                        node.log = Log(node.folder(self.attempt) + "/log")
                        if self.attempt == 0:
                            for text in self.spec["events"]:
                                self.event(node, text)
                    self.spawn(node, argv, fresh=fresh)
                except OSError as exc:
                    reason = f"{exc.strerror}" + (f": {exc.filename}" if exc.filename else "")
                    raise StartError(node.rank, "start", reason) from exc
            if self.log_fault:
                raise StartError(-1, "log", self.log_fault)
            self.await_reports(ready=True)
            for node in self.nodes:
                os.write(node.gate, b"g")
            self.await_reports(ready=False)
        finally:
            for node in self.nodes:
                for fd in (node.gate, node.report):
                    if fd >= 0:
                        os.close(fd)
                node.gate = node.report = -1

    def await_reports(self, *, ready: bool) -> None:
        """Waits until every node says `ready`, or (by closing the pipe) that its program runs."""
        for node in self.nodes:
            got = b""
            while not (ready and got == b"ready\n"):
                self.await_report(node)
                data = os.read(node.report, 65536)
                if not data:
                    break
                got += data
            if got != (b"ready\n" if ready else b""):
                raise StartError(node.rank, *fault_of(got))

    def await_report(self, node: Node) -> None:
        """Waits until a node reports. Raises `StartError` when the start is given up."""
        poll = select.poll()
        asking = [self.control, self.wake] + ([self.launcher] if self.launcher >= 0 else [])
        for fd in (node.report, *asking):
            poll.register(fd, select.POLLIN)
        while True:
            readable = {fd for fd, _ in poll.poll()}
            if self.wake in readable:
                os.read(self.wake, 4096)
            if self.launcher in readable:
                raise StartError(-1, "given up", "the caller is gone")
            if self.control in readable or self.stops:
                raise StartError(-1, "given up", "asked to stop")
            if node.report in readable:
                return

    # ending

    def reap(self) -> bool:
        """Notes every node that has ended; says whether one has."""
        by_pid = {node.pid: node for node in self.nodes if node.pid}
        ended = False
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return ended
            if found is None:
                return ended
            node = by_pid.pop(found.si_pid, None)
            if node is not None:
                ended = True
                self.node_ended(node, found)
            os.waitpid(found.si_pid, 0)

    def node_ended(self, node: Node, found: os.waitid_result) -> None:
        """Notes how a node ended, and ends what it left, while its pid still is its own."""
        with contextlib.suppress(OSError):
            os.killpg(node.pid, signal.SIGKILL)
        self.kill_orphans(node.rank)
        self.drain(node)
        code = found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status
        node.pid, node.exit_code, node.ended_at = 0, code, self.clock.now()

    def kill_orphans(self, rank: int) -> None:
        """Kills the processes of a node that made their own session: a node ends as one."""
        mark = f"GPUFABRIC_NODE_RANK={rank}".encode()
        mine = {node.pid for node in self.nodes}
        orphans = [pid for pid in children(os.getpid()) if pid not in mine]
        if orphans:
            with_mark = set(marked(mark))
            signal_all([pid for pid in orphans if pid in with_mark], signal.SIGKILL)

    def stop(self) -> None:
        """Ends everything: SIGTERM, the grace time, SIGKILL, until nothing is left."""
        signal_all(descendants(os.getpid()), signal.SIGTERM)
        killing = time.monotonic() + self.spec["stop_grace_s"]
        while any(node.pid for node in self.nodes) and time.monotonic() < killing:
            self.turn(killing - time.monotonic())
        left = kill_descendants(self.take)
        if left:
            self.reason += f"; processes {left} could not be killed"

    def turn(self, wait_s: float | None) -> None:
        """Waits for something to happen, at most `wait_s`, and deals with it."""
        try:
            ready = self.poll.poll(-1 if wait_s is None else max(0.0, wait_s))
        except InterruptedError:
            ready = []
        for fd, _ in ready:
            node = self.by_fd.get(fd)
            if node is not None:
                self.read_pipe(node, fd)
            elif fd == self.control:
                if os.read(fd, 4096):
                    self.stops = self.stops or "cancelled"
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
        self.take()

    def take(self) -> None:
        """Notes every node that has ended, for readers too."""
        if self.reap():
            self.save()

    # the whole life

    def run(self) -> None:
        """Runs the gang, again after a failure as often as allowed, and writes its end."""
        while True:
            outcome = self.run_attempt()
            stopped = {node.rank for node in self.nodes if node.pid}
            self.stop()
            for node in self.nodes:
                self.settle(node, outcome, stopped=node.rank in stopped)
                if node.log is not None:
                    node.log.close()
            if outcome != "failed" or self.attempt >= self.spec["max_restarts"] or self.log_fault:
                break
            self.restart()
        self.state, self.ended_at = outcome, self.clock.now()
        self.save()

    def restart(self) -> None:
        """Makes the next attempt's nodes, with the same ranks."""
        self.attempt += 1
        self.state, self.reason, self.exit_code, self.first = "starting", "", None, None
        self.nodes = [Node(rank) for rank in range(len(self.nodes))]
        self.save()

    def settle(self, node: Node, outcome: str, *, stopped: bool) -> None:
        """Gives a node its last state."""
        if node.rank == self.first:
            node.state = "failed"
        elif stopped or node.exit_code is None or (self.state == "starting" and not node.exit_code):
            node.state = outcome if outcome == "timed-out" else "cancelled"
            if outcome == "failed":
                node.reason = f"stopped: {self.reason}"
        else:
            node.state = "failed" if node.exit_code else "succeeded"
            node.reason = node.reason or (exit_words(node.exit_code) if node.exit_code else "")

    def run_attempt(self) -> str:
        """Starts all nodes and waits for the end; gives the state to end in."""
        setup = self.spec["setup"]
        try:
            self.start_stage(setup or self.spec["argv"], fresh=True)
        except StartError as exc:
            if self.launcher >= 0:
                raise
            return self.start_failed(exc)
        self.note_start("starting" if setup else "running")
        if not setup:
            return self.watch("") or "succeeded"
        ended = self.watch("setup: ")
        if ended is not None:
            return ended
        for node in self.nodes:
            node.exit_code, node.ended_at = None, None
        try:
            self.start_stage(self.spec["argv"], fresh=False)
        except StartError as exc:
            return self.start_failed(exc)
        self.note_start("running")
        return self.watch("") or "succeeded"

    def start_failed(self, exc: StartError) -> str:
        """Ends an attempt of which a node did not start."""
        if exc.stage == "given up":
            self.reason = "cancelled"
            return "cancelled"
        self.reason, self.exit_code = str(exc), 127
        if exc.node >= 0:
            self.first = exc.node
            self.nodes[exc.node].state = "failed"
            self.event(self.nodes[exc.node], str(exc))
        return "failed"

    def note_start(self, state: str) -> None:
        """Says that every node runs, and lets the caller go."""
        self.state = state
        for node in self.nodes:
            node.state, node.started_at = state, self.clock.now()
        self.save()
        if self.launcher >= 0:
            reply({"ok": True})
            self.launcher = -1
            detach()

    def watch(self, stage: str) -> str | None:
        """Waits for the end of every node's program; None when all of them gave 0."""
        while True:
            failed = [node for node in self.nodes if node.exit_code]
            if failed:
                node = min(failed, key=lambda node: node.ended_at or 0.0)
                node.state, self.first, self.exit_code = "failed", node.rank, node.exit_code
                node.reason = f"{stage}{exit_words(node.exit_code or 0)}"
                self.reason = f"node {node.rank}: {node.reason}"
                return "failed"
            if self.log_fault:
                self.reason = self.log_fault
                return "failed"
            if self.stops:
                self.reason = self.stops
                return "cancelled"
            if not any(node.pid for node in self.nodes):
                return None
            wait = None if self.deadline is None else self.deadline - time.monotonic()
            if wait is not None and wait <= 0:
                self.reason = f"ran longer than {self.spec['timeout_s']:g} s"
                return "timed-out"
            self.turn(wait)


def exit_words(code: int) -> str:
    """An exit code in words."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(code - 128).name}"
    return f"exited with {code}"


def fault_of(report: bytes) -> tuple[str, str]:
    """At what a node failed to start, and why."""
    try:
        stage, reason = json.loads(report.decode().rpartition("ready\n")[2])
    except ValueError:
        return "start", "it ended before its program ran"
    return stage, reason


_file_limit: list[tuple[int, int]] = []


def set_file_limit(*, back: bool = False) -> None:
    """Allows this process as many open files as it may have; nodes get the caller's limit."""
    import resource

    if back:
        resource.setrlimit(resource.RLIMIT_NOFILE, _file_limit[0])
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _file_limit.append((soft, hard))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- speaking with the caller ------------------------------------------------------------------


def reply(message: Spec) -> None:
    """Answers the caller, if it still listens."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def detach() -> None:
    """Lets go of the caller's pipes."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def read_spec() -> Spec | None:
    """Reads what to run; None when the caller ends before it has said all."""
    head = _read_exactly(8)
    body = _read_exactly(struct.unpack("<Q", head)[0]) if head else None
    return json.loads(body) if body is not None else None


def _read_exactly(size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def remove_own_folder() -> None:
    """Removes the folder of a job that never was: the caller may be gone and cannot.

    All by the folder itself, not by its path: another launch may have taken that already.
    """
    import shutil

    for name in os.listdir("."):
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(name)
    with contextlib.suppress(OSError):
        os.rmdir(os.getcwd())  # refused unless empty


def supervise() -> None:
    """The supervisor's life: it ends in order only when it has written the job's end."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    set_file_limit()
    spec = read_spec()
    if spec is None:
        remove_own_folder()
        return
    gang: Gang | None = None
    try:
        refuse_taken_ports(spec["ports"])
        gang = Gang(spec, 0)
        gang.run()
    except (StartError, OSError) as exc:
        if gang is not None and gang.launcher < 0:
            raise  # a fault of this program: the guard ends the job
        left = kill_descendants()
        stage = exc.stage if isinstance(exc, StartError) else "start"
        if stage == "given up":
            remove_own_folder()
        told = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        reply({"error": told, "stage": stage, "left": left})


def guard(child: int) -> None:
    """Waits for the supervisor; if it was killed, kills what it left and says so."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    detach()
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    kill_descendants()
    if status == 0 or not os.path.exists("state"):
        return
    with open("state", "rb") as file:
        found = read_slots(file.read())
    if found is None or found[1]["state"] in ENDED:
        return
    state = found[1]
    how = "failed" if os.WIFEXITED(status) else "was killed"
    state.update(state="lost", reason=f"its supervisor {how}", ended_at=Clock().now())
    for node in state["nodes"]:
        if node[0] not in ENDED:
            node[0] = "lost"
    StateFile("state", len(state["nodes"])).write(state)


def main(folder: str) -> None:
    """Runs a gang in `folder`, detached from the caller, which reaps the process it started."""
    os.chdir(folder)
    if os.fork():
        os._exit(0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(1, b"locked\n")
    child = os.fork()
    if child:
        guard(child)
        os._exit(0)
    code = 0
    try:
        supervise()
    except BaseException:
        code = 1
        import traceback

        with contextlib.suppress(OSError), open("supervisor.err", "w") as file:
            traceback.print_exc(file=file)
        raise
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
