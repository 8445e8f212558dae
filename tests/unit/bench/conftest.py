"""A gang of real processes on loopback, with the variables that every backend sets."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import gpufabric.bench

# What a node has: a Python, nothing installed, and the workload. That is imported and not run as a
# file, since only what is imported is not compiled again by every rank.
START = "import sys; sys.path[0] = sys.argv.pop(1); import _tcp_workload as w; "
FOLDER = str(Path(gpufabric.bench.__file__).parent)
TCP_WORKLOAD = ("-S", "-c", START + "sys.exit(w.main())", FOLDER)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Gangs:
    """Starts nodes; whatever is left of them ends with the test."""

    def __init__(self) -> None:
        self.nodes: list[subprocess.Popen[str]] = []

    def port(self) -> int:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return int(s.getsockname()[1])

    def node(
        self,
        rank: int,
        num_nodes: int,
        *args: str,
        port: int,
        program: Sequence[str] = TCP_WORKLOAD,
        envs: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        environ = {
            "PATH": os.environ["PATH"],
            "GPUFABRIC_NODE_RANK": str(rank),
            "GPUFABRIC_NUM_NODES": str(num_nodes),
            "GPUFABRIC_NODE_IPS": "\n".join(["127.0.0.1"] * num_nodes),
            "GPUFABRIC_JOB": "local://test/bench-1",
            "GPUFABRIC_ATTEMPT": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **(envs or {}),
        }
        started = subprocess.Popen(
            [sys.executable, "-E", *program, *args],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.nodes.append(started)
        return started

    def start(
        self, num_nodes: int, *args: str, program: Sequence[str] = TCP_WORKLOAD
    ) -> list[subprocess.Popen[str]]:
        port = self.port()
        return [
            self.node(i, num_nodes, *args, port=port, program=program) for i in range(num_nodes)
        ]

    def finish(self, nodes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
        ended = []
        for node in nodes:
            out, err = node.communicate(timeout=60)
            ended.append(Ended(node.returncode, out, err))
        return ended

    def run(self, num_nodes: int, *args: str, program: Sequence[str] = TCP_WORKLOAD) -> str:
        """What rank 0 prints; fails where a node fails or another one prints."""
        ended = self.finish(self.start(num_nodes, *args, program=program))
        assert [(node.code, node.err) for node in ended] == [(0, "")] * num_nodes
        assert [node.out for node in ended[1:]] == [""] * (num_nodes - 1)
        return ended[0].out


@pytest.fixture
def gangs() -> Iterator[Gangs]:
    made = Gangs()
    yield made
    for node in made.nodes:
        node.send_signal(signal.SIGCONT)
        node.kill()
        node.communicate()


@pytest.fixture(scope="session")
def workload() -> ModuleType:
    """The workload as a module, for its pure functions."""
    from gpufabric.bench import _tcp_workload

    return _tcp_workload
