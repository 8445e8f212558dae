"""What reading costs: lines of an NCCL INFO log in a second, memory, a table of 1,000 rows.

Run it: `python benchmarks/bench_parse.py [--lines 10000000]`. It prints one line a figure; nothing
is asserted. The log is generated as it is read, so only the reader's memory counts.
"""

import argparse
import io
import itertools
import os
import platform
import resource
import time
from pathlib import Path

from gpufabric import net

HOSTS, GPUS, CHANNELS = 32, 8, 16
SIZE_STEP = 1 << 16


def machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}"


def log_block(run: int) -> str:
    """What 256 ranks print when one communicator starts: connections, orders, settings, life."""
    ranks = HOSTS * GPUS
    lines = []
    for rank in range(ranks):
        host, gpu = divmod(rank, GPUS)
        head = f"gpu-{host:03d}:{4000 + gpu}:{5000 + gpu + run % 40} [{gpu}] NCCL INFO "
        peer = (rank + 1) % ranks
        for channel in range(CHANNELS):
            end = f"{rank}[{gpu}] -> {peer}[{peer % GPUS}]"
            via = "via P2P/CUMEM/read"
            if peer // GPUS != host:
                via = f"[send] via NET/IB/{channel % 8}/GDRDMA"
            lines.append(f"{head}Channel {channel:02d}/0 : {end} {via}")
        comm = f"ncclCommInitRank comm 0x{run:x}{rank:04x}00 rank {rank} nranks {ranks}"
        lines += [
            f"{head}NCCL_IB_HCA set to mlx5",
            f"{head}Trees [0] {rank}/{run}/-1->{rank}->-1 [1] {rank}/-1/-1->0->{run}",
            f"{head}P2P Chunksize set to 524288",
            f"{head}Connected all rings, use ring PXN 0 GDR 1",
            f"{head}threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
            f"{head}{comm} cudaDev {gpu} busId {gpu + 1}b000 commId 0x{run:x}ee7 - Init COMPLETE",
        ]
    return "\n".join(lines) + "\n"


class Log(io.RawIOBase):
    """A log of so many lines that is made while it is read; making it is timed apart."""

    def __init__(self, lines: int, blocks: list[bytes]) -> None:
        per_block = blocks[0].count(b"\n")
        self.lines = lines // per_block * per_block
        self._blocks = itertools.islice(itertools.cycle(blocks), lines // per_block)
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        if size == 0:
            return b""
        return next(self._blocks, b"")


def log_figures(lines: int) -> tuple[float, float]:
    """Lines a second of processor time, and MiB by which the process grew."""
    blocks = [log_block(run).encode() for run in range(40)]
    net.read(blocks[0])  # what is loaded once is loaded now
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log = Log(lines, blocks)
    begun = time.process_time()
    report = net.read(log)
    spent = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if report.lines != log.lines:
        raise SystemExit(f"{report.lines} lines were read of {log.lines}")
    return report.lines / spent, grown


def table_ms() -> float:
    half = "{time:9.2f} {alg:8.2f} {bus:8.2f}      0"
    rows = []
    for i in range(1, 1001):
        size = i * SIZE_STEP
        time_us = 20 + size / 400e3
        alg = size / time_us / 1e3
        values = half.format(time=time_us, alg=alg, bus=alg * 1.875)
        rows.append(f"{size:14d} {size // 4:13d}     float     sum      -1 {values} {values}")
    columns = "time   algbw   busbw #wrong"
    text = f"#       size         count      type   redop    root     {columns}     {columns}\n"
    text += "\n".join(rows) + "\n"
    times = []
    for _ in range(15):
        begun = time.process_time()
        report = net.read(text)
        times.append(time.process_time() - begun)
    if len(report.tables[0].rows) != 1000:
        raise SystemExit(f"{len(report.tables[0].rows)} rows were read of 1000")
    return min(times) * 1000  # what other processes take away is not the reader's


def show(what: str, value: str, budget: str) -> None:
    print(f"{what:<40} {value:>20}   budget {budget}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    lines = parser.parse_args().lines
    print(machine())
    show("nccl-tests table of 1,000 rows", f"{table_ms():.1f} ms", "<= 10 ms")
    short, _ = log_figures(lines // 10)
    rate, grown = log_figures(lines)
    show(f"INFO lines/s, {lines // 10:,} lines", f"{short:,.0f}", ">= 300,000")
    show(f"INFO lines/s, {lines:,} lines", f"{rate:,.0f}", ">= 300,000")
    show(f"memory grown over the last {lines:,} lines", f"{grown:.1f} MiB", "<= 60 MiB")


if __name__ == "__main__":
    main()
