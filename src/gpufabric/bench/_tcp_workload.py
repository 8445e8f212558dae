"""Measure collectives over plain TCP sockets, printed as nccl-tests prints them.

One self-contained file: it is sent to every node of a gang and needs Python 3.8 or later there,
numpy if it is to reduce floats, and nothing else. It must therefore not import gpufabric, and it
reads its place in the gang from the variables that every gpufabric backend sets
(GPUFABRIC_NODE_RANK, GPUFABRIC_NUM_NODES, GPUFABRIC_NODE_IPS, MASTER_ADDR, MASTER_PORT) or from
flags. Sizes, counts and bus bandwidth follow nccl-tests:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

Exit code: 0 all data right, 1 wrong data, 2 wrong request, 3 a peer never came, left or stalled.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import select
import socket
import struct
import sys
import time
import traceback
import warnings
from typing import Any, Callable, NamedTuple, cast  # noqa: UP035  (Python 3.8 has no other Callable)

FORMAT = 1  # of the "# gpufabric-bench" line
MAGIC = b"gpufabrc"
GREETING = struct.Struct("!8sI")  # what a data connection starts with: MAGIC, own rank
PERIOD = 251  # a prime: a chunk that lands in the wrong place does not look right by chance
BLOCK_BYTES = 256 * 1024  # how much is received before it is reduced: the kernel fills up meanwhile
MAX_SEND_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 1 << 20
PAIRWISE_BYTES = 4 << 20
PAIRWISE_PASSES = 2  # the better one counts: a busy moment is no slow link
HEAR_S = 2.0  # how long rank 0 hears the others before it says what ended the run
ELEMENT_BYTES = {"int32": 4, "float": 4, "double": 8}
STRUCT_CODE = {"int32": "i", "float": "f", "double": "d"}
SPLIT_BY_RANK = ("all_gather", "reduce_scatter", "alltoall")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
NO_IN_PLACE_CHECK = ("alltoall", "sendrecv")  # as in nccl-tests: timed, not checked
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "sendrecv",
)


class BenchError(Exception):
    """The benchmark can't go on; `peer` is the rank that this process holds responsible."""

    def __init__(self, text: str, peer: int | None = None, code: int = 3) -> None:
        super().__init__(text)
        self.text = text
        self.peer = peer
        self.code = code


class VerdictError(BenchError):
    """Rank 0 has told every rank what ended the benchmark."""


class Peer(NamedTuple):
    """One rank as the others see it."""

    rank: int
    host: str
    address: str
    port: int
    device: str
    pid: int

    def __str__(self) -> str:
        """Name the rank so that a person finds the machine."""
        return f"rank {self.rank} ({self.host}, {self.address})"


class Options(NamedTuple):
    """What to run, and this node's place in the gang."""

    collective: str
    min_bytes: int
    max_bytes: int
    factor: int
    step_bytes: int
    iters: int
    warmup: int
    check: bool
    dtype: str
    root: int
    pairwise: bool
    timeout_s: float
    start_timeout_s: float
    node_rank: int
    num_nodes: int
    nproc: int
    node_ips: tuple[str, ...]
    master_addr: str
    master_port: int
    bind: str
    job: str

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.num_nodes * self.nproc


# --- request ------------------------------------------------------------------------------------


def size_bytes(text: str) -> int:
    """Read a size as nccl-tests does: 8, 64K, 32M, 1G are binary."""
    text = text.strip()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = text[:-1] if scale > 1 else text
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8, 64K, 32M or 1G")
    return int(number) * scale


def parser() -> argparse.ArgumentParser:
    """Return the command line: nccl-tests' short flags, and the gang's place as long ones."""
    p = argparse.ArgumentParser(prog="gpufabric_bench", description="Collectives over TCP sockets.")
    p.add_argument("--collective", choices=COLLECTIVES, default="all_reduce")
    p.add_argument("-b", "--minbytes", type=size_bytes, default=1 << 10)
    p.add_argument("-e", "--maxbytes", type=size_bytes, default=16 << 20)
    p.add_argument("-f", "--stepfactor", type=int, default=4)
    p.add_argument("-i", "--stepbytes", type=size_bytes, default=0)
    p.add_argument("-n", "--iters", type=int, default=10)
    p.add_argument("-w", "--warmup_iters", type=int, default=2)
    p.add_argument("-c", "--check", type=int, choices=(0, 1), default=1)
    p.add_argument("-d", "--datatype", choices=sorted(ELEMENT_BYTES), default="int32")
    p.add_argument("-r", "--root", type=int, default=0)
    p.add_argument("--pairwise", action="store_true", help="also measure every pair of ranks")
    p.add_argument("-T", "--timeout", type=float, default=60.0, help="seconds without progress")
    p.add_argument("--start-timeout", type=float, default=120.0, help="seconds for all to come")
    p.add_argument("--nproc", type=int, default=1, help="ranks on each node")
    p.add_argument("--node-rank", type=int)
    p.add_argument("--num-nodes", type=int)
    p.add_argument("--node-ips", help="the nodes' addresses by rank, separated by commas")
    p.add_argument("--master", help="ADDRESS:PORT of rank 0")
    p.add_argument("--bind", help="interface name or address that data must use on this node")
    return p


def _number(environ: dict[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise BenchError(f"{name}={text!r} is not a number", code=2)
    return int(text)


def _master(text: str | None, environ: dict[str, str]) -> tuple[str, int]:
    if text is None:
        return environ.get("MASTER_ADDR", ""), _number(environ, "MASTER_PORT", 0)
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit():
        raise BenchError(f"--master {text!r} is not ADDRESS:PORT", code=2)
    return address.strip("[]"), int(port)


def options(a: argparse.Namespace, environ: dict[str, str]) -> Options:
    """Take the request from the command line and the gang's variables; flags win."""
    ips = a.node_ips.split(",") if a.node_ips else environ.get("GPUFABRIC_NODE_IPS", "").split()
    node_rank = _number(environ, "GPUFABRIC_NODE_RANK", 0) if a.node_rank is None else a.node_rank
    num_nodes = _number(environ, "GPUFABRIC_NUM_NODES", 1) if a.num_nodes is None else a.num_nodes
    address, port = _master(a.master, environ)
    o = Options(
        collective=a.collective,
        min_bytes=a.minbytes,
        max_bytes=a.maxbytes,
        factor=a.stepfactor,
        step_bytes=a.stepbytes,
        iters=a.iters,
        warmup=a.warmup_iters,
        check=bool(a.check),
        dtype=a.datatype,
        root=a.root,
        pairwise=a.pairwise,
        timeout_s=a.timeout,
        start_timeout_s=a.start_timeout,
        node_rank=node_rank,
        num_nodes=num_nodes,
        nproc=a.nproc,
        node_ips=tuple(ip for ip in ips if ip),
        master_addr=address,
        master_port=port,
        bind=a.bind or environ.get("GPUFABRIC_SOCKET_IFNAME", ""),
        job=environ.get("GPUFABRIC_JOB", "") + "/" + environ.get("GPUFABRIC_ATTEMPT", ""),
    )
    _refuse(o)
    return o


def _refuse(o: Options) -> None:
    """Raise for a request that can't be run, with what to write instead."""
    faults = [
        (o.nproc < 1, "--nproc must be 1 or more"),
        (o.world < 2, "a collective needs two ranks: more nodes, or --nproc 2"),
        (not 0 <= o.node_rank < o.num_nodes, f"node rank {o.node_rank} of {o.num_nodes}"),
        (o.min_bytes > o.max_bytes, f"-b {o.min_bytes} is more than -e {o.max_bytes}"),
        (o.factor < 2 and not o.step_bytes, "-f must be 2 or more, or give -i"),
        (o.iters < 1, "-n must be 1 or more"),
        (o.warmup < 0, "-w must be 0 or more"),
        (not 0 <= o.root < o.world, f"root {o.root} is none of {o.world} ranks"),
        (o.timeout_s <= 0 or o.start_timeout_s <= 0, "timeouts must be more than 0"),
        (
            o.num_nodes > 1 and not (o.master_addr and o.master_port),
            "set MASTER_ADDR and MASTER_PORT, or give --master ADDRESS:PORT",
        ),
        (
            bool(o.node_ips) and len(o.node_ips) != o.num_nodes,
            f"{len(o.node_ips)} node addresses for {o.num_nodes} nodes",
        ),
    ]
    wrong = [text for found, text in faults if found]
    if wrong:
        raise BenchError("; ".join(wrong), code=2)


# --- addresses ----------------------------------------------------------------------------------


def interfaces() -> dict[str, list[str]]:
    """Return this node's addresses by interface; empty where the system does not tell."""
    found: dict[str, list[str]] = {}
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    answer = fcntl.ioctl(s.fileno(), 0x8915, request)  # SIOCGIFADDR
                except OSError:  # an interface without an IPv4 address
                    continue
                found.setdefault(name, []).append(socket.inet_ntoa(answer[20:24]))
        with open("/proc/net/if_inet6", encoding="ascii") as lines:  # noqa: PTH123 (no pathlib gain)
            for line in lines:
                digits, _, _, scope, _, name = line.split()
                if scope != "20":  # a link-local address needs a scope that peers don't share
                    packed = bytes.fromhex(digits)
                    found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, packed))
    except (ImportError, OSError):  # not Linux
        pass
    return found


def bind_address(wanted: str) -> str:
    """Turn `--bind` (an interface or one of this node's addresses) into an address."""
    table = interfaces()
    if wanted in table:
        return table[wanted][0]
    if any(wanted in addresses for addresses in table.values()):
        return wanted
    try:
        return str(socket.getaddrinfo(wanted, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        names = ", ".join(sorted(table)) or "none"
        text = f"no interface or address {wanted!r} on {socket.gethostname()}; it has {names}"
        raise BenchError(text, code=2) from None


def device_of(address: str) -> str:
    """Name the interface that has this address; "?" where the system does not tell."""
    return next((name for name, has in interfaces().items() if address in has), "?")


def listen(address: str, port: int, *, or_any: bool) -> socket.socket:
    """Listen on the address; on all of them where a translated address is not one of ours."""
    try:
        where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        raise BenchError(f"can't resolve {address!r}: {exc}") from None
    s = socket.socket(where[0], socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind(where[4])
    except OSError as exc:
        if exc.errno != errno.EADDRNOTAVAIL or not or_any:
            s.close()
            text = f"can't listen on {address} port {port}: {exc.strerror}"
            raise BenchError(text) from None
        s.bind(("", port))
    s.listen(256)
    return s


def dial(address: str, port: int, source: str, deadline: float, what: str) -> socket.socket:
    """Connect, trying again until the deadline: the other side may start later."""
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection(
                (address, port),
                timeout=max(0.1, min(left, 10.0)),
                source_address=(source, 0) if source else None,
            )
        except OSError as exc:
            if time.monotonic() >= deadline:
                text = f"can't reach {what} at {address} port {port}: {exc}"
                raise BenchError(text) from None
        time.sleep(0.05)


def tune(s: socket.socket, timeout_s: float) -> None:
    """Send at once, and let the kernel notice a host that is gone without a word."""
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", max(2, int(timeout_s / 5))),
        ("TCP_USER_TIMEOUT", int(timeout_s * 1000)),
    ):
        if hasattr(socket, name):
            s.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- control: JSON lines between rank 0 and each other rank ---------------------------------------


class Line:
    """JSON messages over one connection, with a time limit on each."""

    def __init__(self, s: socket.socket) -> None:
        self.sock = s
        self.rest = b""
        self.ready: list[dict[str, Any]] = []
        self.closed = False
        s.setblocking(False)

    def send(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send one message; OSError where the peer is gone."""
        self.sock.settimeout(timeout_s)
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        finally:
            self.sock.setblocking(False)

    def fill(self) -> None:
        """Take what has arrived, without waiting."""
        while not self.closed:
            try:
                piece = self.sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                piece = b""
            self.closed = not piece
            *whole, self.rest = (self.rest + piece).split(b"\n")
            for text in whole:
                try:
                    message: Any = json.loads(text.decode("utf-8"))
                except ValueError:
                    message = None
                if isinstance(message, dict):
                    self.ready.append(cast("dict[str, Any]", message))
                else:
                    self.closed = True
            if len(self.rest) > MAX_MESSAGE_BYTES:
                self.closed = True

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message, or None at the deadline or when the peer is gone."""
        while True:
            self.fill()
            if self.ready:
                return self.ready.pop(0)
            left = deadline - time.monotonic()
            if self.closed or left <= 0:
                return None
            select.select([self.sock], [], [], left)


class Star:
    """Barriers, results and the end of a failed run: rank 0 with a line to each other rank."""

    def __init__(self, rank: int, lines: dict[int, Line], timeout_s: float) -> None:
        self.rank = rank
        self.lines = lines
        self.timeout_s = timeout_s
        self.peers: list[Peer] = []

    def watch(self) -> None:
        """Raise if a rank has left or a failure has been told; keep other messages."""
        for rank, line in self.lines.items():
            line.fill()
            for message in list(line.ready):
                self._raise_if_ended(rank, message)
            if line.closed and not line.ready:
                raise BenchError(f"lost {self.peers[rank]}", peer=rank)

    def _raise_if_ended(self, rank: int, message: dict[str, Any]) -> None:
        if "verdict" in message:
            raise VerdictError(str(message["verdict"]))
        if "abort" in message:
            # Kept for `conclude`, which must know that this rank has spoken.
            self.lines[rank].ready.insert(0, message)
            peer = message.get("peer")
            raise BenchError(str(message["abort"]), peer=rank if peer is None else peer)

    def _next(self, rank: int) -> Any:
        line = self.lines[rank]
        # A rank may rightly be busy for long; its own stall limit ends it, then it tells us.
        message = line.receive(time.monotonic() + 5 * self.timeout_s)
        if message is None:
            how = "lost" if line.closed else "no word from"
            raise BenchError(f"{how} {self.peers[rank]}", peer=rank)
        self._raise_if_ended(rank, message)
        return message["value"]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on rank 0; an empty list elsewhere."""
        if self.rank:
            self._send(0, {"value": value})
            return []
        return [value] + [self._next(rank) for rank in sorted(self.lines)]

    def share(self, value: Any) -> Any:
        """Return rank 0's value everywhere."""
        if self.rank:
            return self._next(0)
        for rank in self.lines:
            self._send(rank, {"value": value})
        return value

    def barrier(self) -> None:
        """Return once every rank has come here."""
        self.gather(None)
        self.share(None)

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        try:
            self.lines[rank].send(message, self.timeout_s)
        except OSError:
            raise BenchError(f"lost {self.peers[rank]}", peer=rank) from None

    def conclude(self, error: BenchError) -> str:
        """Agree on who ended the run, and return it in words; every rank calls this once."""
        if self.rank:
            return self._ask_rank_0(error)
        spoke, gone, silent = self._hear()
        blamed = [peer for peer in [error.peer, *spoke] if peer is not None]
        text = error.text
        if gone:
            text = "lost " + self._names(gone)
        elif blamed and silent:
            text = f"{error.text}; no word from {self._names(silent)}"
        elif blamed and self.peers:
            worst = max(set(blamed), key=blamed.count)
            text = f"{error.text}; most ranks wait for {self.peers[worst]}"
        for line in self.lines.values():
            try:
                line.send({"verdict": text}, 1.0)
            except OSError:  # gone: it is in the verdict
                continue
        return text

    def _hear(self) -> tuple[list[int | None], list[int], list[int]]:
        """Return whom the others blame, and which ranks have left or stay silent.

        A rank that has left without a word was killed or crashed; one that saw a fault says so.
        """
        start = time.monotonic()
        spoke: dict[int, int | None] = {}
        while True:
            for rank, line in self.lines.items():
                line.fill()
                for message in line.ready:
                    if "abort" in message:
                        spoke[rank] = message.get("peer")
            left = [rank for rank in sorted(self.lines) if rank not in spoke]
            gone = [rank for rank in left if self.lines[rank].closed]
            silent = [rank for rank in left if rank not in gone]
            waited = time.monotonic() - start
            if not silent or waited > HEAR_S or (gone and waited > HEAR_S / 4):
                return list(spoke.values()), gone, silent
            select.select([self.lines[rank].sock for rank in silent], [], [], 0.1)

    def _names(self, ranks: list[int]) -> str:
        names = [str(self.peers[r]) if r < len(self.peers) else f"rank {r}" for r in ranks]
        return ", ".join(names)

    def _ask_rank_0(self, error: BenchError) -> str:
        if isinstance(error, VerdictError):
            return error.text
        line = self.lines[0]
        try:
            line.send({"abort": error.text, "peer": error.peer}, 1.0)
        except OSError:
            return self._without_rank_0(error)
        deadline = time.monotonic() + 4.0
        message = line.receive(deadline)
        while message is not None and "verdict" not in message:
            message = line.receive(deadline)
        if message is not None:
            return str(message["verdict"])
        return self._without_rank_0(error) if line.closed else error.text

    def _without_rank_0(self, error: BenchError) -> str:
        """Rank 0 left without a verdict: it ended the run, whichever rank was missed first."""
        return error.text if error.peer == 0 else f"lost {self._names([0])}; {error.text}"


# --- data: a full mesh of non-blocking connections ------------------------------------------------

Fold = Callable[[int, int], None]  # called with [start, end) of what has arrived


class Flow:
    """One direction of one connection during an exchange."""

    __slots__ = ("fold", "folded", "peer", "pos", "sock", "view")

    def __init__(self, sock: socket.socket, peer: int, view: memoryview, fold: Fold | None) -> None:
        self.sock = sock
        self.peer = peer
        self.view = view
        self.pos = 0
        self.fold = fold
        self.folded = 0

    def send(self) -> bool:
        """Send what fits; True when something went out."""
        try:
            sent = self.sock.send(self.view[self.pos : self.pos + MAX_SEND_BYTES])
        except (BlockingIOError, InterruptedError):
            return False
        self.pos += sent
        return True

    def receive(self) -> bool:
        """Take what is there and fold whole blocks; True when something came in."""
        limit = len(self.view) if self.fold is None else self.pos + BLOCK_BYTES
        try:
            got = self.sock.recv_into(self.view[self.pos : limit])
        except (BlockingIOError, InterruptedError):
            return False
        if not got:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        self.pos += got
        if self.fold is not None:
            end = len(self.view) if self.pos == len(self.view) else self.pos & ~7
            if end - self.folded >= BLOCK_BYTES or end == len(self.view):
                self.fold(self.folded, end)
                self.folded = end
        return True


class Mesh:
    """A connection to every other rank, and exchanges over them that can't deadlock."""

    def __init__(self, star: Star, socks: dict[int, socket.socket], timeout_s: float) -> None:
        self.star = star
        self.socks = socks
        self.timeout_s = timeout_s
        self.rank = star.rank
        self.world = len(socks) + 1
        self.scratch = memoryview(bytearray(0))
        self.now = "start"
        for s in socks.values():
            s.setblocking(False)

    def room(self, nbytes: int) -> memoryview:
        """Return scratch space, kept from one operation to the next."""
        if len(self.scratch) < nbytes:
            self.scratch = memoryview(bytearray(nbytes))
        return self.scratch[:nbytes]

    def exchange(
        self,
        sends: list[tuple[int, memoryview]],
        receives: list[tuple[int, memoryview, Fold | None]],
    ) -> None:
        """Send and receive all of it at once, in any order that the network allows."""
        out = [Flow(self.socks[peer], peer, view, None) for peer, view in sends if len(view)]
        into = [
            Flow(self.socks[peer], peer, view, fold) for peer, view, fold in receives if len(view)
        ]
        idle_since: float | None = None
        while out or into:
            moved = self._advance(out, into)
            out = [flow for flow in out if flow.pos < len(flow.view)]
            into = [flow for flow in into if flow.pos < len(flow.view)]
            if moved:
                idle_since = None  # the clock is read only before a wait
            elif out or into:
                if idle_since is None:
                    idle_since = time.monotonic()
                self._wait(out, into, idle_since)

    def _advance(self, out: list[Flow], into: list[Flow]) -> bool:
        moved = False
        flow = None
        try:
            for flow in out:
                moved = flow.send() or moved
            for flow in into:
                moved = flow.receive() or moved
        except OSError as exc:
            peer = flow.peer if flow else 0
            who = self.star.peers[peer]
            raise BenchError(f"lost {who} in {self.now}: {exc.strerror}", peer) from None
        return moved

    def _wait(self, out: list[Flow], into: list[Flow], idle_since: float) -> None:
        poll = select.poll()
        masks: dict[int, int] = {line.sock.fileno(): select.POLLIN for line in self._lines()}
        for flow in out:
            masks[flow.sock.fileno()] = select.POLLOUT
        for flow in into:
            masks[flow.sock.fileno()] = masks.get(flow.sock.fileno(), 0) | select.POLLIN
        for fd, mask in masks.items():
            poll.register(fd, mask)
        left = idle_since + self.timeout_s - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(0, int(left * 1000)))}
        if not ready and left <= 0:
            waited = sorted({flow.peer for flow in into} or {flow.peer for flow in out})
            names = ", ".join(str(self.star.peers[peer]) for peer in waited)
            text = f"{self.now}: nothing from {names} for {self.timeout_s:g} s"
            raise BenchError(text, waited[0])
        if any(line.sock.fileno() in ready for line in self._lines()):
            self.star.watch()

    def _lines(self) -> list[Line]:
        return [line for line in self.star.lines.values() if not line.closed]


# --- rendezvous ---------------------------------------------------------------------------------


def meet(o: Options, star: Star, listener: socket.socket | None) -> Mesh:
    """Bring all ranks together through rank 0, then connect each with each."""
    rank = star.rank
    deadline = time.monotonic() + o.start_timeout_s
    local = bind_address(o.bind) if o.bind else ""
    if rank == 0:
        listener = listener or listen(o.master_addr, o.master_port, or_any=True)
        control = listener.getsockname()[0]
        hellos = accept_all(o, star, listener, deadline)
    else:
        s = dial(o.master_addr, o.master_port, "", deadline, "rank 0")
        star.lines[0] = Line(s)
        hellos = {}
        control = s.getsockname()[0]
    for line in star.lines.values():
        tune(line.sock, o.timeout_s)
    address = local or (o.node_ips[o.node_rank] if o.node_ips else control)
    if address in ("0.0.0.0", "::"):  # noqa: S104  (compared with, not bound to)
        address = o.master_addr
    door = listen(address, 0, or_any=not local)
    me = Peer(
        rank,
        socket.gethostname().split(".")[0],
        address,
        int(door.getsockname()[1]),
        device_of(address),
        os.getpid(),
    )
    star.peers = _introduce(o, star, me, hellos, deadline)
    socks = _connect_all(o, star, door, local, deadline)
    door.close()
    return Mesh(star, socks, o.timeout_s)


def accept_all(
    o: Options, star: Star, listener: socket.socket, deadline: float
) -> dict[int, dict[str, Any]]:
    """Take each rank's first message; strangers and silent connections are turned away."""
    lines = star.lines
    hellos: dict[int, dict[str, Any]] = {}
    waiting: list[Line] = []
    listener.setblocking(False)
    while len(lines) < o.world - 1:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BenchError(_who_is_missing(o, set(lines) | {0}))
        select.select([listener] + [line.sock for line in waiting], [], [], min(left, 1.0))
        with contextlib.suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            waiting.append(Line(listener.accept()[0]))
        for line in list(waiting):
            line.fill()
            if not line.ready and not line.closed:
                continue
            waiting.remove(line)
            hello = line.ready.pop(0) if line.ready else {}
            rank = hello.get("rank")
            if hello.get("job") == o.job and isinstance(rank, int) and 0 < rank < o.world:
                lines[rank] = line
                hellos[rank] = hello
            else:
                line.sock.close()
    for line in waiting:
        line.sock.close()
    listener.close()
    return hellos


def _who_is_missing(o: Options, here: set[int]) -> str:
    missing = [rank for rank in range(o.world) if rank not in here]
    names: list[str] = []
    for rank in missing:
        node = rank // o.nproc
        names.append("rank {}{}".format(rank, f" ({o.node_ips[node]})" if o.node_ips else ""))
    return "{} never came to {} port {} in {:g} s".format(
        ", ".join(names),
        o.master_addr,
        o.master_port,
        o.start_timeout_s,
    )


def _introduce(
    o: Options, star: Star, me: Peer, hellos: dict[int, dict[str, Any]], deadline: float
) -> list[Peer]:
    """Exchange names, addresses and ports; refuse ranks that were asked something else."""
    wish = [o.collective, o.min_bytes, o.max_bytes, o.factor, o.step_bytes, o.iters, o.warmup]
    wish += [o.check, o.dtype, o.root, o.pairwise, o.world]
    if me.rank:
        star.lines[0].send({"rank": me.rank, "job": o.job, "me": me, "wish": wish}, o.timeout_s)
        answer = star.lines[0].receive(deadline + 5.0)  # its clock may have started later
        if answer is None:
            raise BenchError(f"rank 0 at {o.master_addr} did not answer")
        if "verdict" in answer:
            raise VerdictError(str(answer["verdict"]))
        return [Peer(*entry) for entry in answer["peers"]]
    star.peers = [me] + [Peer(*hellos[rank]["me"]) for rank in sorted(hellos)]
    for rank, hello in hellos.items():
        if hello["wish"] != wish:
            text = "{} was asked {}, rank 0 {}".format(star.peers[rank], hello["wish"], wish)
            raise BenchError(text, code=2)
    for line in star.lines.values():
        line.send({"peers": star.peers}, o.timeout_s)
    return star.peers


def _answer(door: socket.socket) -> tuple[int, socket.socket | None]:
    """Take one connection and read which rank it is from; no socket where nobody fit came."""
    try:
        s = door.accept()[0]
    except OSError:
        return -1, None
    try:
        s.settimeout(5.0)
        word = s.recv(GREETING.size, socket.MSG_WAITALL)
    except OSError:
        word = b""
    if len(word) == GREETING.size:
        magic, rank = GREETING.unpack(word)
        if magic == MAGIC:
            return int(rank), s
    s.close()
    return -1, None


def _connect_all(
    o: Options, star: Star, door: socket.socket, local: str, deadline: float
) -> dict[int, socket.socket]:
    """Dial every lower rank, answer every higher one; the first bytes say who it is."""
    socks: dict[int, socket.socket] = {}
    for peer in star.peers[: star.rank]:
        s = dial(peer.address, peer.port, local, deadline, f"{peer} for data")
        s.sendall(GREETING.pack(MAGIC, star.rank))
        socks[peer.rank] = s
    while len(socks) < len(star.peers) - 1:
        door.settimeout(min(1.0, max(0.1, deadline - time.monotonic())))
        rank, found = _answer(door)
        if found is not None and star.rank < rank < len(star.peers) and rank not in socks:
            socks[rank] = found
            continue
        if found is not None:
            found.close()
        star.watch()
        if time.monotonic() >= deadline:
            missing = [str(p) for p in star.peers[star.rank + 1 :] if p.rank not in socks]
            text = f"no data connection to {star.peers[star.rank]} from {', '.join(missing)}"
            raise BenchError(text)
    for s in socks.values():
        tune(s, o.timeout_s)
    star.barrier()
    return socks


# --- collectives --------------------------------------------------------------------------------


class Adder:
    """`target += source` for one type, with the fastest of three ways that this Python has.

    numpy; audioop, C code of the standard library up to 3.12; one wide integer addition.
    """

    def __init__(self, dtype: str) -> None:
        self.numpy: Any = None
        self.type: Any = None
        self.audioop: Any = None
        self.name = "python"
        try:
            import numpy  # noqa: ICN001  (one name in this file)

            self.numpy = numpy
            self.type = numpy.dtype({"float": "f4", "double": "f8"}.get(dtype, "i4"))
            self.name = "numpy-" + str(numpy.__version__)
        except ImportError:
            if dtype != "int32":
                raise BenchError(f"-d {dtype} needs numpy on every node", code=2) from None
            self._load_audioop()

    def _load_audioop(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.audioop = importlib.import_module("audioop")
            self.name = "audioop"
        except ImportError:  # Python 3.13 and later
            self.audioop = None

    def add(self, target: memoryview, source: memoryview) -> None:
        """Add source to target, element by element."""
        if self.numpy is not None:
            with self.numpy.errstate(all="ignore"):  # repeated in-place sums may overflow
                into = self.numpy.frombuffer(target, self.type)
                into += self.numpy.frombuffer(source, self.type)
            return
        if self.audioop is not None:
            target[:] = self.audioop.add(target, source, 4)
            return
        # All elements at once: small positive numbers in 32-bit fields of one long integer never
        # carry into the next field. (Timed in-place repeats do; nobody reads their values.)
        total = int.from_bytes(target, "little") + int.from_bytes(source, "little")
        total &= (1 << (8 * len(target))) - 1
        target[:] = total.to_bytes(len(target), "little")


class Job(NamedTuple):
    """One operation on one pair of buffers."""

    mesh: Mesh
    adder: Adder | None
    send: memoryview
    recv: memoryview
    in_place: bool
    root: int
    element: int

    def cuts(self, nbytes: int) -> list[int]:
        """Return the borders of n nearly equal pieces, on whole elements."""
        count = nbytes // self.element
        n = self.mesh.world
        return [i * count // n * self.element for i in range(n + 1)]

    def adds(self, target: memoryview, source: memoryview) -> Fold:
        """Return a function that adds a range of source to the same range of target."""
        adder = self.adder
        if adder is None:
            raise BenchError("a collective that reduces has no adder", code=2)
        add = adder.add

        def fold(start: int, end: int) -> None:
            add(target[start:end], source[start:end])

        return fold


def all_reduce(j: Job) -> None:
    """Reduce round the ring, then gather round it: each rank moves 2(n-1)/n of the data."""
    mesh, n, r = j.mesh, j.mesh.world, j.mesh.rank
    if not j.in_place:
        j.recv[:] = j.send
    cuts = j.cuts(len(j.recv))
    parts = [j.recv[cuts[i] : cuts[i + 1]] for i in range(n)]
    right, left = (r + 1) % n, (r - 1) % n
    for step in range(n - 1):
        part = parts[(r - step - 2) % n]
        scratch = mesh.room(len(part))
        mesh.exchange(
            [(right, parts[(r - step - 1) % n])], [(left, scratch, j.adds(part, scratch))]
        )
    for step in range(n - 1):
        mesh.exchange([(right, parts[(r - step) % n])], [(left, parts[(r - step - 1) % n], None)])


def all_gather(j: Job) -> None:
    """Pass every rank's part round the ring."""
    n, r, size = j.mesh.world, j.mesh.rank, len(j.send)
    if not j.in_place:
        j.recv[r * size : (r + 1) * size] = j.send
    parts = [j.recv[i * size : (i + 1) * size] for i in range(n)]
    for step in range(n - 1):
        j.mesh.exchange(
            [((r + 1) % n, parts[(r - step) % n])],
            [((r - 1) % n, parts[(r - step - 1) % n], None)],
        )


def reduce_scatter(j: Job) -> None:
    """Reduce round the ring; rank r keeps part r."""
    n, r, size = j.mesh.world, j.mesh.rank, len(j.send) // j.mesh.world
    parts = [j.send[i * size : (i + 1) * size] for i in range(n)]
    room = j.mesh.room(2 * size)
    spare = [room[:size], room[size:]]
    outgoing = parts[(r - 1) % n]
    for step in range(n - 1):
        incoming = spare[step % 2]
        mine = parts[(r - step - 2) % n]
        j.mesh.exchange(
            [((r + 1) % n, outgoing)], [((r - 1) % n, incoming, j.adds(incoming, mine))]
        )
        outgoing = incoming
    j.recv[:] = outgoing


def alltoall(j: Job) -> None:
    """Send part i to rank i, all at once."""
    n, r, size = j.mesh.world, j.mesh.rank, len(j.send) // j.mesh.world
    sends = [(p % n, j.send[p % n * size : (p % n + 1) * size]) for p in range(r + 1, r + n)]
    receives: list[tuple[int, memoryview, Fold | None]] = [
        (p % n, j.recv[p % n * size : (p % n + 1) * size], None) for p in range(r + 1, r + n)
    ]
    j.mesh.exchange(sends, receives)
    if not j.in_place:
        j.recv[r * size : (r + 1) * size] = j.send[r * size : (r + 1) * size]


def _pieces(view: memoryview, element: int) -> list[memoryview]:
    """Cut a buffer for a pipeline: fine enough to overlap, coarse enough to be cheap."""
    step = max(64 << 10, min(1 << 20, len(view) // 16)) // element * element
    return [view[i : i + step] for i in range(0, len(view), step)]


def broadcast(j: Job) -> None:
    """Pass the root's data down a chain, piece by piece."""
    n, place = j.mesh.world, (j.mesh.rank - j.root) % j.mesh.world
    down, up = (j.mesh.rank + 1) % n, (j.mesh.rank - 1) % n
    if place == 0:
        j.mesh.exchange([(down, j.send)], [])
        if not j.in_place:
            j.recv[:] = j.send
        return
    before: list[tuple[int, memoryview]] = []
    for piece in _pieces(j.recv, j.element):
        j.mesh.exchange(before, [(up, piece, None)])
        before = [(down, piece)] if place < n - 1 else []
    j.mesh.exchange(before, [])


def reduce(j: Job) -> None:
    """Sum along a chain that ends at the root, piece by piece."""
    n, place = j.mesh.world, (j.mesh.rank - j.root) % j.mesh.world
    up, down = (j.mesh.rank + 1) % n, (j.mesh.rank - 1) % n
    if place == n - 1:
        j.mesh.exchange([(down, j.send)], [])
        return
    target = j.recv if place == 0 else j.mesh.room(2 * len(j.send))[len(j.send) :]
    if not (place == 0 and j.in_place):
        target[:] = j.send
    before: list[tuple[int, memoryview]] = []
    for piece in _pieces(target, j.element):
        scratch = j.mesh.room(2 * len(j.send))[: len(piece)]
        j.mesh.exchange(before, [(up, scratch, j.adds(piece, scratch))])
        before = [(down, piece)] if place else []
    j.mesh.exchange(before, [])


def sendrecv(j: Job) -> None:
    """Send to the next rank while receiving from the one before."""
    n, r = j.mesh.world, j.mesh.rank
    j.mesh.exchange([((r + 1) % n, j.send)], [((r - 1) % n, j.recv, None)])


RUN: dict[str, Callable[[Job], None]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "alltoall": alltoall,
    "broadcast": broadcast,
    "reduce": reduce,
    "sendrecv": sendrecv,
}


def bus_factor(collective: str, n: int) -> float:
    """Return busbw / algbw, as nccl-tests' PERFORMANCE notes define it."""
    if collective == "all_reduce":
        return 2.0 * (n - 1) / n
    return (n - 1.0) / n if collective in SPLIT_BY_RANK else 1.0


# --- data that can be checked ---------------------------------------------------------------------


class Shape(NamedTuple):
    """The buffers of one size: bytes sent and received, and the count that is printed."""

    send: int
    recv: int
    elements: int

    @property
    def size(self) -> int:
        """Return the size that is printed: the larger buffer."""
        return max(self.send, self.recv)


def shape(collective: str, nbytes: int, element: int, n: int) -> Shape:
    """Round a wished size as nccl-tests does: split sizes to whole 16 bytes for each rank."""
    count = nbytes // element
    if collective not in SPLIT_BY_RANK:
        return Shape(count * element, count * element, count)
    base = count // n & ~(16 // element - 1)
    parts = {"all_gather": (1, n), "reduce_scatter": (n, 1), "alltoall": (n, n)}[collective]
    return Shape(parts[0] * base * element, parts[1] * base * element, base)


def _repeat(values: list[int], dtype: str, first: int, count: int) -> bytes:
    period = struct.pack(f"={len(values)}{STRUCT_CODE[dtype]}", *values)
    element = ELEMENT_BYTES[dtype]
    first %= len(values)
    whole = period * ((first + count) // len(values) + 1)
    return whole[first * element : (first + count) * element]


def own_data(rank: int, rep: int, dtype: str, first: int, count: int) -> bytes:
    """Return elements [first, first + count) of what a rank contributes."""
    return _repeat(list(range(PERIOD)), dtype, first + 31 * rank + 17 * rep, count)


def summed_data(n: int, rep: int, dtype: str, first: int, count: int) -> bytes:
    """Return the same range of the sum over all ranks; exact in every type."""
    sums = [sum((i + 31 * rank + 17 * rep) % PERIOD for rank in range(n)) for i in range(PERIOD)]
    return _repeat(sums, dtype, first, count)


def expected_data(  # noqa: PLR0911  (one return a collective)
    o: Options, s: Shape, rank: int, rep: int
) -> bytes | None:
    """Return what the receive buffer must hold; None where this rank receives nothing."""
    n, kind, count = o.world, o.dtype, s.elements
    if o.collective == "all_gather":
        return b"".join(own_data(peer, rep, kind, 0, count) for peer in range(n))
    if o.collective == "alltoall":
        return b"".join(own_data(peer, rep, kind, rank * count, count) for peer in range(n))
    if o.collective == "reduce_scatter":
        return summed_data(n, rep, kind, rank * count, count)
    if o.collective == "broadcast":
        return own_data(o.root, rep, kind, 0, count)
    if o.collective == "sendrecv":
        return own_data((rank - 1) % n, rep, kind, 0, count)
    if o.collective == "reduce" and rank != o.root:
        return None
    return summed_data(n, rep, kind, 0, count)


def count_wrong(got: memoryview, want: bytes, element: int) -> int:
    """Count the elements that differ."""
    have = bytes(got)
    if have == want:
        return 0
    wrong = 0
    for start in range(0, len(want), 4096):
        if have[start : start + 4096] != want[start : start + 4096]:
            for i in range(start, min(start + 4096, len(want)), element):
                wrong += have[i : i + element] != want[i : i + element]
    return wrong


# --- measuring ----------------------------------------------------------------------------------


class Half(NamedTuple):
    """One half of a row: out of place, or in place."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


class Runner:
    """Runs the sweep on one rank."""

    def __init__(self, o: Options, mesh: Mesh, adder: Adder | None) -> None:
        self.o = o
        self.mesh = mesh
        self.adder = adder
        self.element = ELEMENT_BYTES[o.dtype]
        self.rep = 0

    def buffers(self, s: Shape, *, in_place: bool) -> Job:
        """Make the buffers of one half; in place they overlap as in nccl-tests."""
        rank = self.mesh.rank
        if not in_place:
            send, recv = memoryview(bytearray(s.send)), memoryview(bytearray(s.recv))
        else:
            both = memoryview(bytearray(s.size))
            send, recv = both, both
            if self.o.collective == "all_gather":
                send = both[rank * s.send : (rank + 1) * s.send]
            elif self.o.collective == "reduce_scatter":
                recv = both[rank * s.recv : (rank + 1) * s.recv]
        return Job(self.mesh, self.adder, send, recv, in_place, self.o.root, self.element)

    def half(self, s: Shape, *, in_place: bool) -> Half:
        """Check one operation, then time the rest; the slowest rank's time counts."""
        o, mesh, run = self.o, self.mesh, RUN[self.o.collective]
        place = "in place" if in_place else "out of place"
        mesh.now = f"{o.collective} of {s.size} bytes {place}"
        job = self.buffers(s, in_place=in_place)
        wrong = self.check(job, s) if o.check else None
        if in_place and o.collective in NO_IN_PLACE_CHECK:
            wrong = None
        for _ in range(o.warmup):
            run(job)
        mesh.star.barrier()
        start = time.perf_counter()
        for _ in range(o.iters):
            run(job)
        seconds = (time.perf_counter() - start) / o.iters
        everyone = mesh.star.gather([seconds, wrong])
        if not everyone:
            return Half(0.0, 0.0, 0.0, None)
        slowest = max(entry[0] for entry in everyone)
        algbw = s.size / 1e9 / slowest
        total = None if wrong is None else sum(entry[1] for entry in everyone)
        return Half(slowest * 1e6, algbw, algbw * bus_factor(o.collective, o.world), total)

    def check(self, job: Job, s: Shape) -> int:
        """Run once on known data, new each time, and count what came out wrong here."""
        self.rep += 1
        rank, rep = self.mesh.rank, self.rep
        job.recv[:] = b"\xff" * len(job.recv)
        job.send[:] = own_data(rank, rep, self.o.dtype, 0, len(job.send) // self.element)
        RUN[self.o.collective](job)
        want = expected_data(self.o, s, rank, rep)
        return 0 if want is None else count_wrong(job.recv, want, self.element)

    def pairs(self) -> list[tuple[int, int, float]]:
        """Measure every pair both ways at once, in rounds of disjoint pairs; GB/s on rank 0."""
        n = self.mesh.world
        best: dict[tuple[int, int], float] = {}
        for turn in [*range(n - 1 + n % 2)] * PAIRWISE_PASSES:
            mate = round_mate(self.mesh.rank, turn, n)
            self.mesh.now = f"pairwise round {turn}"
            speed = self.pair(mate)
            for target, found in enumerate(self.mesh.star.gather([mate, speed])):
                if found[0] is not None:
                    key = (found[0], target)
                    best[key] = max(found[1], best.get(key, 0.0))
        self.mesh.star.barrier()
        return [(source, target, speed) for (source, target), speed in sorted(best.items())]

    def pair(self, mate: int | None) -> float:
        """Exchange with one rank, or rest; return the GB/s that came from it."""
        view = memoryview(bytearray(PAIRWISE_BYTES))
        into = memoryview(bytearray(PAIRWISE_BYTES))
        if mate is not None:
            self.mesh.exchange([(mate, view[:1])], [(mate, into[:1], None)])
        self.mesh.star.barrier()
        if mate is None:
            return 0.0
        start = time.perf_counter()
        for _ in range(self.o.iters):
            self.mesh.exchange([(mate, view)], [(mate, into, None)])
        return PAIRWISE_BYTES * self.o.iters / 1e9 / (time.perf_counter() - start)


def round_mate(rank: int, turn: int, n: int) -> int | None:
    """Return whom a rank meets in a round of a round-robin tournament; None: it rests."""
    size = n + n % 2
    last = size - 1
    if rank == last:
        mate = turn * (size // 2) % last
    else:
        mate = (turn - rank) % last
        mate = last if mate == rank else mate
    return mate if mate < n else None


# --- printing -----------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a line at once: someone follows it live."""
    print(text, flush=True)  # noqa: T201  (a program whose output is the result)


def fit(value: float, width: int, decimals: int) -> str:
    """Print as many digits as fit, as nccl-tests 2.17.3 and later do."""
    for places in range(decimals, -1, -1):
        text = f"{value:{width}.{places}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def head(o: Options, ours: str, about: list[str], *, gpus: int) -> None:
    """Print what is run, on which ranks, and the table's header."""
    step = f"{o.step_bytes}(bytes)" if o.step_bytes else f"{o.factor}(factor)"
    say(
        f"# gpufabric-bench format={FORMAT} collective={o.collective} n_ranks={o.world}"
        f" num_nodes={o.num_nodes} dtype={o.dtype} python={sys.version.split()[0]} {ours}"
    )
    say(f"# Collective test starting: {o.collective}_perf")
    say(
        f"# nThread 1 nGpus {gpus} minBytes {o.min_bytes} maxBytes {o.max_bytes} step: {step}"
        f" warmup iters: {o.warmup} iters: {o.iters} agg iters: 1"
        f" validation: {int(o.check)} graph: 0"
    )
    say("#")
    say("# A row's time is that of its slowest rank")
    for text in about:
        say(f"# {text}")
    left = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format
    half = "  {:>7}  {:>6}  {:>6}  {:>6}".format
    say("#")
    say(left("", "", "", "", "") + "           out-of-place                       in-place")
    names = half("time", "algbw", "busbw", "#wrong")
    say(left("size", "count", "type", "redop", "root") + names + names)
    units = half("(us)", "(GB/s)", "(GB/s)", "")
    say(left("(B)", "(elements)", "", "", "") + units + units)


def foot(o: Options, bad: int, speeds: list[float]) -> None:
    """Print the lines below the table."""
    say(f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}")
    say(f"# Avg bus bandwidth    : {sum(speeds) / len(speeds):.6g}")
    say("#")
    say(f"# Collective test concluded: {o.collective}_perf")


def row(o: Options, s: Shape, halves: list[Half | None]) -> None:
    """Print one size."""
    redop = "sum" if o.collective in REDUCING else "none"
    root = o.root if o.collective in ROOTED else -1
    text = f"{s.size:12}  {s.elements:12}  {o.dtype:>8}  {redop:>6}  {root:6}"
    for h in halves:
        if h is None:  # this way is not measured
            text += "  {:>7}  {:>6}  {:>6}  {:>6}".format("N/A", "N/A", "N/A", "N/A")
            continue
        wrong = "N/A" if h.wrong is None else f"{h.wrong}"
        bandwidths = (fit(h.algbw, 6, 4), fit(h.busbw, 6, 4))
        text += "  {:>7}  {:>6}  {:>6}  {:>6}".format(fit(h.time_us, 7, 2), *bandwidths, wrong)
    say(text)


def sweep(o: Options) -> list[int]:
    """Return the wished sizes."""
    sizes = [o.min_bytes]
    while True:
        following = sizes[-1] + o.step_bytes if o.step_bytes else max(1, sizes[-1]) * o.factor
        if following > o.max_bytes:
            return sizes
        sizes.append(following)


def measure(o: Options, mesh: Mesh, adder: Adder | None) -> int:
    """Run and print the table; return the exit code, the same on every rank."""
    runner = Runner(o, mesh, adder)
    is_printer = mesh.rank == 0
    if is_printer:
        reducer = "none" if adder is None else adder.name
        about = [
            f"rank={p.rank} node={p.rank // o.nproc} host={p.host} pid={p.pid}"
            f" address={p.address} interface={p.device}"
            for p in mesh.star.peers
        ]
        head(o, f"workload=tcp reducer={reducer}", about, gpus=0)
    bad = 0
    speeds: list[float] = []
    for nbytes in sweep(o):
        s = shape(o.collective, nbytes, runner.element, o.world)
        halves = [runner.half(s, in_place=in_place) for in_place in (False, True)]
        bad += sum(1 for h in halves if h.wrong)
        speeds += [h.busbw for h in halves]
        if is_printer:
            row(o, s, [*halves])
    pairs = runner.pairs() if o.pairwise else []
    bad = int(mesh.star.share(bad))
    if is_printer:
        for source, target, speed in pairs:
            names = (source, mesh.star.peers[source].host, target, mesh.star.peers[target].host)
            say("# pair {} ({}) -> {} ({}): {:.4f} GB/s".format(*names, speed))
        foot(o, bad, speeds)
    return 1 if bad else 0


def run_rank(o: Options, local_rank: int, listener: socket.socket | None) -> int:
    """Run one rank from meeting to the last line; return its exit code."""
    rank = o.node_rank * o.nproc + local_rank
    star = Star(rank, {}, o.timeout_s)
    try:
        adder = Adder(o.dtype) if o.collective in REDUCING else None
        mesh = meet(o, star, listener)
        code = measure(o, mesh, adder)
        star.barrier()
    except (BenchError, OSError) as any_error:
        exc = any_error if isinstance(any_error, BenchError) else BenchError(str(any_error))
        text = star.conclude(exc) if star.lines else exc.text
        host = socket.gethostname().split(".")[0]
        line = f"gpufabric-bench: rank {rank} ({host}): {text}\n"
        sys.stderr.write(line)
        sys.stderr.flush()
        return exc.code
    return code


def _child(o: Options, local_rank: int, listener: socket.socket | None) -> int:
    """Run a forked rank; whatever happens, it must not return into the parent's code."""
    if listener is not None:
        listener.close()
    try:
        return run_rank(o, local_rank, None)
    except BaseException:  # noqa: BLE001  (printed in full; the parent sees the exit code)
        traceback.print_exc()
        return 70


def main(argv: list[str] | None = None) -> int:
    """Run this node's ranks; return the node's exit code."""
    try:
        o = options(parser().parse_args(argv), dict(os.environ))
    except BenchError as exc:
        sys.stderr.write(f"gpufabric-bench: {exc.text}\n")
        return exc.code
    listener: socket.socket | None = None
    if not o.master_port:  # one node: meet on this machine, at any free port
        listener = listen("127.0.0.1", 0, or_any=False)
        o = o._replace(master_addr="127.0.0.1", master_port=int(listener.getsockname()[1]))
    children: list[int] = []
    for local_rank in range(1, o.nproc):
        pid = os.fork()
        if pid == 0:
            os._exit(_child(o, local_rank, listener))
        children.append(pid)
    code = run_rank(o, 0, listener)
    for pid in children:
        status = os.waitpid(pid, 0)[1]
        ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        code = code or ended
    return code


if __name__ == "__main__":
    sys.exit(main())
