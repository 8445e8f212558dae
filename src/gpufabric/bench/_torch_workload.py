"""Measure collectives with torch.distributed, printed as nccl-tests prints them.

Runs on every node of a gang beside `gpufabric_bench_tcp.py` (this package's `_tcp_workload.py`),
from which it takes the command line, the sizes and the table, and needs PyTorch there: nccl where
each rank has a GPU, gloo else. It must not import gpufabric, which a node need not have.

torch.distributed runs each collective in one way only: all_reduce, reduce and broadcast in place,
the others out of place. The other half of the table says N/A.

Exit code: as `_tcp_workload`.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035  (Python 3.8 has no other Callable)

if TYPE_CHECKING:
    from gpufabric.bench import _tcp_workload as base
else:
    import gpufabric_bench_tcp as base

IN_PLACE = ("all_reduce", "reduce", "broadcast")
CHUNK = 1 << 24  # elements that are made or compared at once: little memory beside the buffers
LOCAL_RANK = "GPUFABRIC_BENCH_LOCAL_RANK"


def add_backend_flag(p: Any) -> Any:
    """Add the one flag that the tcp workload does not have."""
    p.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    return p


class Rank:
    """One rank: its device, its buffers, its collectives."""

    def __init__(self, o: base.Options, local_rank: int, backend: str) -> None:
        # By name: the machine that checks this file's types need not have PyTorch.
        torch: Any = importlib.import_module("torch")
        self.dist: Any = importlib.import_module("torch.distributed")
        if o.pairwise:
            raise base.BenchError("--pairwise is for the tcp workload alone", code=2)
        self.o = o
        self.torch = torch
        self.rank = o.node_rank * o.nproc + local_rank
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if backend == "auto":
            backend = "nccl" if gpus >= o.nproc else "gloo"
        if backend == "nccl" and gpus < o.nproc:
            text = f"nccl needs a GPU for each of {o.nproc} ranks; this node shows {gpus}"
            raise base.BenchError(text, code=2)
        self.backend = backend
        self.device: Any = torch.device(f"cuda:{local_rank}" if backend == "nccl" else "cpu")
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        names = {"int32": torch.int32, "float": torch.float32, "double": torch.float64}
        self.dtype = names[o.dtype]
        self.element = base.ELEMENT_BYTES[o.dtype]
        self.sums = torch.tensor(
            [
                sum((i + 31 * peer) % base.PERIOD for peer in range(o.world))
                for i in range(base.PERIOD)
            ],
            device=self.device,
        )
        self.rep = 0

    def join(self) -> None:
        """Meet the other ranks."""
        o = self.o
        self.dist.init_process_group(
            self.backend,
            init_method=f"tcp://{_bracketed(o.master_addr)}:{o.master_port}",
            rank=self.rank,
            world_size=o.world,
            timeout=dt.timedelta(seconds=max(o.start_timeout_s, o.timeout_s)),
        )

    def about(self) -> list[str]:
        """Say who takes part; every rank must call it."""
        name = self.torch.cuda.get_device_name() if self.backend == "nccl" else "cpu"
        host = socket.gethostname().split(".")[0]
        node = self.rank // self.o.nproc
        mine = f"rank={self.rank} node={node} host={host} pid={os.getpid()} device={name}"
        everyone: list[str] = [""] * self.o.world
        self.dist.all_gather_object(everyone, mine)
        return everyone

    def sync(self) -> None:
        """Wait for the device."""
        if self.backend == "nccl":
            self.torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.merged([0.0], "MAX")

    def merged(self, values: list[float], how: str) -> list[float]:
        """Combine numbers over all ranks."""
        t = self.torch.tensor(values, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(t, op=getattr(self.dist.ReduceOp, how))
        return [float(v) for v in t.tolist()]

    def half(self, s: base.Shape) -> base.Half:
        """Check one operation, then time the rest; the slowest rank's time counts."""
        o = self.o
        send = self.torch.zeros(s.send // self.element, dtype=self.dtype, device=self.device)
        recv = send
        if o.collective not in IN_PLACE:
            recv = self.torch.zeros(s.recv // self.element, dtype=self.dtype, device=self.device)
        run = self.operation(send, recv)
        wrong = self.check(s, send, recv, run) if o.check else None
        for _ in range(o.warmup):
            run()
        self.sync()
        self.barrier()
        start = time.perf_counter()
        for _ in range(o.iters):
            run()
        self.sync()
        seconds = self.merged([(time.perf_counter() - start) / o.iters], "MAX")[0]
        if wrong is not None:
            wrong = int(self.merged([float(wrong)], "SUM")[0])
        algbw = s.size / 1e9 / seconds
        factor = base.bus_factor(o.collective, o.world)
        return base.Half(seconds * 1e6, algbw, algbw * factor, wrong)

    def operation(self, send: Any, recv: Any) -> Callable[[], object]:
        """Return the collective as torch.distributed runs it on these buffers."""
        dist, o = self.dist, self.o
        # PyTorch 2.13 renamed two and warns at the old names.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        if not len(send) and not len(recv):  # a size that was rounded down to nothing
            return lambda: None
        table: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(send),
            "reduce": lambda: dist.reduce(send, o.root),
            "broadcast": lambda: dist.broadcast(send, o.root),
            "all_gather": lambda: gather(recv, send),
            "reduce_scatter": lambda: scatter(recv, send),
            "alltoall": lambda: dist.all_to_all_single(recv, send),
            "sendrecv": lambda: self._send_receive(send, recv),
        }
        return table[o.collective]

    def _send_receive(self, send: Any, recv: Any) -> None:
        dist, n = self.dist, self.o.world
        ops = [
            dist.P2POp(dist.isend, send, (self.rank + 1) % n),
            dist.P2POp(dist.irecv, recv, (self.rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def check(self, s: base.Shape, send: Any, recv: Any, run: Callable[[], object]) -> int:
        """Run once on known data, new each time, and count what came out wrong here."""
        self.rep += 1
        recv.fill_(-1)
        for start in range(0, len(send), CHUNK):
            i = self._indices(start, len(send))
            send[start : start + CHUNK] = (i + 31 * self.rank + 17 * self.rep) % base.PERIOD
        run()
        self.sync()
        if self.o.collective == "reduce" and self.rank != self.o.root:
            return 0
        wrong = 0
        for start in range(0, len(recv), CHUNK):
            want = self.expected(s, self._indices(start, len(recv))).to(self.dtype)
            wrong += int((recv[start : start + CHUNK] != want).sum())
        return wrong

    def _indices(self, start: int, total: int) -> Any:
        return self.torch.arange(start, min(start + CHUNK, total), device=self.device)

    def expected(self, s: base.Shape, i: Any) -> Any:
        """Return what elements i of the receive buffer must hold."""
        o, count, rep = self.o, max(1, s.elements), 17 * self.rep
        if o.collective in ("all_reduce", "reduce"):
            return self.sums[(i + rep) % base.PERIOD]
        if o.collective == "reduce_scatter":
            return self.sums[(self.rank * count + i + rep) % base.PERIOD]
        if o.collective == "broadcast":
            return (i + 31 * o.root + rep) % base.PERIOD
        if o.collective == "sendrecv":
            return (i + 31 * ((self.rank - 1) % o.world) + rep) % base.PERIOD
        first = self.rank * count if o.collective == "alltoall" else 0
        return (first + i % count + 31 * (i // count) + rep) % base.PERIOD


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def measure(me: Rank) -> int:
    """Run and print the table; return the exit code, the same on every rank."""
    o = me.o
    about = me.about()
    if me.rank == 0:
        ours = f"workload=torch backend={me.backend} torch={me.torch.__version__}"
        if me.backend == "nccl":
            ours += " nccl=" + ".".join(str(part) for part in me.torch.cuda.nccl.version())
        base.head(o, ours, about, gpus=1 if me.backend == "nccl" else 0)
    bad = 0
    speeds: list[float] = []
    for nbytes in base.sweep(o):
        s = base.shape(o.collective, nbytes, me.element, o.world)
        half = me.half(s)
        bad += 1 if half.wrong else 0
        speeds.append(half.busbw)
        if me.rank == 0:
            base.row(o, s, [None, half] if o.collective in IN_PLACE else [half, None])
    if me.rank == 0:
        base.foot(o, bad, speeds)
    return 1 if bad else 0


def run_rank(o: base.Options, local_rank: int, backend: str) -> int:
    """Run one rank from meeting to the last line; return its exit code."""
    rank = o.node_rank * o.nproc + local_rank
    try:
        me = Rank(o, local_rank, backend)
        me.join()
        code = measure(me)
        me.barrier()
        me.dist.destroy_process_group()
    except ImportError as exc:
        return _fail(rank, f"the torch workload needs PyTorch on every node: {exc}", 2)
    except base.BenchError as exc:
        return _fail(rank, exc.text, exc.code)
    except RuntimeError as exc:  # what torch.distributed raises for all faults of the network
        _fail(rank, str(exc).strip().split("\n", 1)[0], 3)
        # Its threads wait for a peer that is gone, or abort the process, when Python ends.
        os._exit(3)
    return code


def _fail(rank: int, text: str, code: int) -> int:
    host = socket.gethostname().split(".")[0]
    sys.stderr.write(f"gpufabric-bench: rank {rank} ({host}): {text}\n")
    sys.stderr.flush()
    return code


def use_interface(wanted: str) -> None:
    """Let gloo, and NCCL's own sockets, use this interface; what is set already wins."""
    if not wanted:
        return
    address = base.bind_address(wanted)
    name = wanted if wanted in base.interfaces() else base.device_of(address)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, name)


def _die_with_parent() -> None:
    """Ask Linux to end this rank when the process that started it is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def start_ranks(o: base.Options, argv: list[str]) -> int:
    """Run this node's ranks as processes; the first that fails ends the others."""
    if not o.master_port:  # one node: any free port of this machine
        with base.listen("127.0.0.1", 0, or_any=False) as s:
            port = int(s.getsockname()[1])
        argv = [*argv, "--master", f"127.0.0.1:{port}"]
    program = [sys.executable, os.path.abspath(__file__), *argv]  # noqa: PTH100  (a plain script)
    ranks = [
        subprocess.Popen(program, env={**os.environ, LOCAL_RANK: str(i)}) for i in range(o.nproc)
    ]
    code = 0
    stop_at = 0.0
    left = list(ranks)
    while left:
        time.sleep(0.05)
        for one in [one for one in left if one.poll() is not None]:
            left.remove(one)
            ended = one.returncode if one.returncode >= 0 else 128 - one.returncode
            if ended and not code:
                code = ended
                stop_at = time.monotonic() + 10  # the others may say what they saw
        if code and left and time.monotonic() > stop_at:
            for one in left:
                one.kill()
    return code


def main(argv: list[str] | None = None) -> int:
    """Run this node's ranks; return the node's exit code."""
    argv = sys.argv[1:] if argv is None else argv
    a = add_backend_flag(base.parser()).parse_args(argv)
    try:
        o = base.options(a, dict(os.environ))
        use_interface(o.bind)
    except base.BenchError as exc:
        sys.stderr.write(f"gpufabric-bench: {exc.text}\n")
        return exc.code
    local_rank = os.environ.get(LOCAL_RANK)
    if local_rank is None and o.nproc > 1:
        return start_ranks(o, argv)
    if local_rank is not None:
        _die_with_parent()
    return run_rank(o, int(local_rank or 0), a.backend)


if __name__ == "__main__":
    sys.exit(main())
