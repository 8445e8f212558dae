"""Run a program of nccl-tests on a gang, with the binary that is on the nodes or in the image.

nccl-tests needs MPI to reach several nodes, and mpirun needs a way to start its daemon on each of
them, which is ssh as a rule. A gang has no ssh. So every node runs this file: those after the first
connect to the first and wait; on the first, mpirun gets this file as its "ssh", which hands the
command to the waiting node. No node but the first listens, nothing is installed, and each daemon
starts with the environment that the launch gave its node.

It runs beside `gpufabric_bench_tcp.py` (this package's `_tcp_workload.py`), from which it takes
the gang's variables and the meeting, and must not import gpufabric. What follows `--` goes to the
program as it is.

Exit code: that of mpirun or the program; 2 for a wrong request, 3 where a node never came or left.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from gpufabric.bench import _tcp_workload as base
else:
    import gpufabric_bench_tcp as base

# Where images are known to keep the binaries, besides PATH.
FOLDERS = (
    "/opt/nccl-tests/build",  # awslabs/awsome-distributed-training, micro-benchmarks/nccl-tests
    "/opt/nccl_tests/build",
    "/third_party/nccl-tests/build",  # GoogleCloudPlatform/container-engine-accelerators
    "/root/nccl-tests/build",  # dstackai/efa
    "/workspace/rccl-tests/build",
    "/usr/local/cuda*/efa/test-cuda*",  # AWS Deep Learning AMIs
)


def find_binary(collective: str, wanted: str | None) -> str:
    """Return the program's path on this node; BenchError names where it was looked for."""
    if wanted:
        path = shutil.which(wanted)
        if path is None:
            raise base.BenchError(f"{wanted} is not a program on this node", code=2)
        return os.path.abspath(path)  # noqa: PTH100  (a plain script)
    home = os.environ.get("NCCL_TESTS_HOME", "")
    folders = [home, os.path.join(home, "build")] if home else []  # noqa: PTH118
    for pattern in (*folders, *FOLDERS):
        folders += sorted(glob.glob(pattern))  # noqa: PTH207
    search = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    for name in (f"{collective}_perf_mpi", f"{collective}_perf"):
        path = shutil.which(name, path=search)
        if path:
            return path
    raise base.BenchError(
        f"no {collective}_perf on this node: not on PATH, in NCCL_TESTS_HOME or in"
        f" {', '.join(FOLDERS)}; use an image that has nccl-tests, or give its path",
        code=2,
    )


def find_mpirun() -> str:
    """Return Open MPI's mpirun; other MPIs start their daemons in other ways."""
    path = shutil.which("mpirun") or shutil.which("mpirun", path="/opt/amazon/openmpi/bin")
    if path is None:
        raise base.BenchError("nccl-tests on several nodes needs Open MPI's mpirun", code=2)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if not any(name in said.stdout for name in ("Open MPI", "OpenRTE", "PRRTE")):
        first = (said.stdout or said.stderr).strip().split("\n", 1)[0]
        raise base.BenchError(f"{path} is not Open MPI's but: {first[:100]}", code=2)
    return os.path.abspath(path)  # noqa: PTH100


# --- the nodes after the first --------------------------------------------------------------------


class Follower:
    """A node that runs what the first one hands it."""

    def __init__(self, s: socket.socket) -> None:
        self.sock = s
        self.lock = threading.Lock()
        self.running: list[subprocess.Popen[bytes]] = []

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; the first node may be gone, which the reader will notice."""
        with self.lock, contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> int:
        """Run commands until the first node says that all is over."""
        try:
            for line in self.sock.makefile("rb"):
                message = json.loads(line)
                if "end" in message:
                    return int(message["end"])
                threading.Thread(target=self.execute, args=(message,), daemon=True).start()
            sys.stderr.write("gpufabric-bench: lost the first node\n")
            return 3
        finally:
            for process in self.running:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGTERM)

    def execute(self, message: dict[str, Any]) -> None:
        """Run one command and send what it prints, then its exit code."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", message["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(process)
        if process.stdout is not None:
            for text in process.stdout:
                self.send({"id": message["id"], "text": text.decode("utf-8", "replace")})
        self.send({"id": message["id"], "code": process.wait()})


# --- the first node -------------------------------------------------------------------------------


class Leader:
    """The node on which mpirun runs; it passes mpirun's commands to the others."""

    def __init__(self, o: base.Options, lines: dict[int, base.Line], folder: str) -> None:
        self.o = o
        self.lock = threading.Lock()
        self.nodes = {rank: line.sock for rank, line in lines.items()}
        self.agents: dict[int, socket.socket] = {}
        self.lost: list[int] = []
        self.mpirun: subprocess.Popen[bytes] | None = None
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(os.path.join(folder, "agent"))  # noqa: PTH118
        self.door.listen(64)
        for rank, s in self.nodes.items():
            s.settimeout(None)
            threading.Thread(target=self.hear, args=(rank, s), daemon=True).start()
        threading.Thread(target=self.answer, daemon=True).start()

    def hear(self, rank: int, s: socket.socket) -> None:
        """Pass on what a node sends; end the run when the node is gone."""
        with contextlib.suppress(OSError):
            for line in s.makefile("rb"):
                message = json.loads(line)
                agent = self.agents.get(message["id"])
                if agent is not None:
                    with contextlib.suppress(OSError):
                        agent.sendall(line)
        self.lost.append(rank)
        if self.mpirun is not None and self.mpirun.poll() is None:
            self.mpirun.terminate()

    def answer(self) -> None:
        """Take what mpirun's agents ask for, and send it to the node that it is for."""
        ids = 0
        while True:
            try:
                agent = self.door.accept()[0]
            except OSError:
                return
            ids += 1
            line: IO[bytes] = agent.makefile("rb")
            wish = json.loads(line.readline())
            rank = self.rank_of(wish["host"])
            if rank is None or rank in self.lost:
                text = f"no node {wish['host']} in this gang\n"
                agent.sendall(json.dumps({"text": text, "code": 255}).encode() + b"\n")
                continue
            self.agents[ids] = agent
            message = json.dumps({"id": ids, "command": wish["command"]}).encode() + b"\n"
            with self.lock, contextlib.suppress(OSError):
                self.nodes[rank].sendall(message)

    def rank_of(self, host: str) -> int | None:
        """Return which node an address is."""
        ips = self.o.node_ips
        return ips.index(host) if host in ips else None

    def run(self, command: list[str], environ: dict[str, str]) -> int:
        """Run mpirun to its end, then let the other nodes go."""
        self.mpirun = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
        code = self.mpirun.wait()
        code = 128 - code if code < 0 else code
        lost = list(self.lost)
        for s in self.nodes.values():
            with contextlib.suppress(OSError):
                s.sendall(json.dumps({"end": code}).encode() + b"\n")
        self.door.close()
        if lost:
            names = ", ".join(f"node {rank} ({self.o.node_ips[rank]})" for rank in lost)
            sys.stderr.write(f"gpufabric-bench: lost {names}\n")
            return 3
        return code


def agent(path: str, words: list[str]) -> NoReturn:
    """Stand in for ssh: `agent HOST COMMAND...`, as mpirun calls it."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        wish = {"host": words[0], "command": " ".join(words[1:])}
        s.sendall(json.dumps(wish).encode() + b"\n")
        for line in s.makefile("rb"):
            message = json.loads(line)
            sys.stdout.write(message.get("text", ""))
            sys.stdout.flush()
            if "code" in message:
                sys.exit(min(255, abs(int(message["code"]))))
    sys.exit(255)


def mpi_environment(wrapper: str, interface: str) -> dict[str, str]:
    """Return the environment in which mpirun uses our agent; names of Open MPI 4 and of 5."""
    environ = dict(os.environ)
    for prefix, framework in (("OMPI", "rsh"), ("PRTE", "ssh")):
        environ[f"{prefix}_MCA_plm"] = framework
        environ[f"{prefix}_MCA_plm_{framework}_agent"] = wrapper
        environ[f"{prefix}_MCA_plm_{framework}_no_tree_spawn"] = "1"
    if interface:
        for name in ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"):
            environ.setdefault(name, interface)
        environ.setdefault("PRTE_MCA_prte_if_include", interface)
        environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    return environ


def mpi_command(o: base.Options, mpirun: str, nproc: int, program: list[str]) -> list[str]:
    """Return mpirun with one process for each GPU of each node."""
    hosts = ",".join(f"{ip}:{nproc}" for ip in o.node_ips)
    ranks = str(o.num_nodes * nproc)
    command = [mpirun, "-H", hosts, "-n", ranks, "--map-by", f"ppr:{nproc}:node"]
    command += ["--bind-to", "none"]
    if os.geteuid() == 0:  # containers run as root; Open MPI wants to be told
        command.append("--allow-run-as-root")
    return [*command, *program]


def lead(o: base.Options, a: argparse.Namespace) -> int:
    """Be the first node."""
    program = [find_binary(a.collective, a.binary), "-g", "1", *a.flags]
    mpirun = find_mpirun()
    star = base.Star(0, {}, o.timeout_s)
    listener = base.listen(o.master_addr, o.master_port, or_any=True)
    base.accept_all(o, star, listener, time.monotonic() + o.start_timeout_s)
    with tempfile.TemporaryDirectory(prefix="gpufabric-bench-") as folder:
        wrapper = os.path.join(folder, "rsh")  # noqa: PTH118
        this = os.path.abspath(__file__)  # noqa: PTH100
        with open(wrapper, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(
                f'#!/bin/sh\nexec "{sys.executable}" "{this}" --agent "{folder}/agent" "$@"\n'
            )
        os.chmod(wrapper, 0o700)  # noqa: PTH101
        leader = Leader(o, star.lines, folder)
        return leader.run(
            mpi_command(o, mpirun, a.nproc, program), mpi_environment(wrapper, o.bind)
        )


def follow(o: base.Options) -> int:
    """Be another node."""
    deadline = time.monotonic() + o.start_timeout_s
    s = base.dial(o.master_addr, o.master_port, "", deadline, "node 0")
    base.tune(s, o.timeout_s)
    s.settimeout(None)
    s.sendall(json.dumps({"rank": o.node_rank, "job": o.job}).encode() + b"\n")
    return Follower(s).serve()


def parser() -> argparse.ArgumentParser:
    """Return the command line: ours, and behind `--` that of nccl-tests."""
    p = argparse.ArgumentParser(prog="gpufabric_bench", description="nccl-tests on a gang.")
    p.add_argument("--collective", required=True)
    p.add_argument("--nproc", type=int, default=1, help="GPUs of each node")
    p.add_argument("--binary", help="the program, where it is not found by itself")
    p.add_argument("--bind", default="", help="interface for MPI's and NCCL's sockets")
    p.add_argument("--start-timeout", type=float, default=120.0)
    p.add_argument("flags", nargs="*", help="flags of nccl-tests, behind --")
    return p


def run_node(a: argparse.Namespace) -> int:
    """Run this node's part of the gang."""
    if int(os.environ.get("GPUFABRIC_NUM_NODES") or 1) == 1:
        program = [find_binary(a.collective, a.binary), "-g", str(a.nproc), *a.flags]
        os.execv(program[0], program)  # noqa: S606  (one node needs no MPI; its code is ours)
    # One "rank" a node here: who runs on it is mpirun's affair.
    o = base.options(base.parser().parse_args([]), dict(os.environ))
    o = o._replace(start_timeout_s=a.start_timeout, bind=a.bind or o.bind)
    if len(o.node_ips) != o.num_nodes:
        raise base.BenchError("GPUFABRIC_NODE_IPS must have every node's address", code=2)
    if len(set(o.node_ips)) != o.num_nodes:
        raise base.BenchError("nodes share an address; mpirun needs one for each node", code=2)
    return follow(o) if o.node_rank else lead(o, a)


def main(argv: list[str] | None = None) -> int:
    """Run this node's part; return the node's exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--agent"]:
        agent(argv[1], argv[2:])
    try:
        return run_node(parser().parse_args(argv))
    except base.BenchError as exc:
        sys.stderr.write(f"gpufabric-bench: {exc.text}\n")
        return exc.code


if __name__ == "__main__":
    sys.exit(main())
