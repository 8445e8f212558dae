"""How the nodes of a gang meet before their commands start: processes on loopback addresses."""

import ast
import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
from scriptnode import Node, addresses

from gpufabric.backends.kubernetes._meeting import MEET, PORT

LIMIT_S, QUIET_S = 900, 1


@pytest.fixture
def gang():
    made = Gang()
    yield made
    made.end()


class Gang:
    """Nodes on addresses that no other test has."""

    def __init__(self):
        self.ips = addresses(40)
        self.started = []

    def node(self, rank, *, size=2, gang="g 0", limit_s=LIMIT_S):
        words = [gang, self.ips[rank], rank, PORT, limit_s, QUIET_S, *self.ips[:size]]
        made = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", MEET, *map(str, words)],
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(made)
        return made

    def stranger(self, rank, *, full=False):
        """Another program at the port; `full`, packets to it are dropped, as by a NetworkPolicy."""
        server = socket.create_server((self.ips[rank], PORT), backlog=0)
        held = [server]
        while full:
            client = socket.socket()
            held.append(client)
            client.settimeout(0.2)
            try:
                client.connect((self.ips[rank], PORT))
            except TimeoutError:
                break
        return held

    def end(self):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind, too
            process.communicate()


def close(held):
    for one in held:
        one.close()


def waits(process):
    """Until it says that it waits, which it does when nobody has come for a while."""
    line = process.stderr.readline()
    assert line.startswith(f"gpufabric: waiting up to {LIMIT_S} s for node")
    assert process.poll() is None
    return line


def goes_on(process):
    """What it says until it goes on, which is never a failure."""
    code = process.wait(timeout=60)
    assert code == 0
    return process.stderr.read()


def test_it_is_written_for_python_3_6_and_for_a_shells_quotes():
    ast.parse(MEET, feature_version=(3, 6))
    assert "'" not in MEET


def test_three_nodes_meet_and_have_nothing_to_say(gang):
    assert [goes_on(p) for p in [gang.node(rank, size=3) for rank in (2, 0, 1)]] == [""] * 3


@pytest.mark.parametrize("late", [0, 1, 2])
def test_no_node_goes_on_before_the_last_has_come(gang, late):
    others = [gang.node(rank, size=3) for rank in range(3) if rank != late]
    told = [waits(others[0]), *([waits(others[1])] if late == 0 else ())]
    assert all(str(late) in line.partition(" s for ")[2] for line in told)
    assert [p.poll() for p in others] == [None, None]
    assert [goes_on(p) for p in (gang.node(late, size=3), *others)] == [""] * 3


@pytest.mark.parametrize("other", ["h 0", "g 1"], ids=["gang", "attempt"])
def test_a_node_of_another_gang_or_attempt_does_not_count(gang, other):
    first = gang.node(0)
    assert "(another program answers)" in goes_on(gang.node(1, gang=other))
    waits(first)
    assert [goes_on(p) for p in (gang.node(1), first)] == ["", ""]


def test_strangers_at_the_port_do_not_disturb(gang):
    first = gang.node(0)
    waits(first)
    words = (b"", b"GET / HTTP/1.1\r\n\r\n", b"gpufabric g 0 x", b"gpufabric g 0 99")
    links = [socket.create_connection((gang.ips[0], PORT)) for _ in words]
    for link, said in zip(links, words, strict=True):
        link.sendall(said)
    links[1].close()
    assert [goes_on(p) for p in (gang.node(1), first)] == ["", ""]
    close(links)


def test_a_taken_port_is_told_and_keeps_no_node(gang):
    held = gang.stranger(0)
    nodes = [gang.node(rank, size=3) for rank in (0, 1)]
    assert f"the others not reached at port {PORT}" in (said := goes_on(nodes[0]))
    assert "Address already in use" in said
    assert "node 0 not reached" in goes_on(nodes[1])
    close(held)
    assert goes_on(gang.node(2, size=3)) == ""  # what node 0 left behind has the port now


def test_dropped_packets_are_told_to_the_person_and_keep_no_node(gang):
    held = gang.stranger(0, full=True)
    said = goes_on(gang.node(1))
    assert f"node 0 not reached at port {PORT}" in said
    assert "timed out: does a NetworkPolicy let them meet?" in said
    assert said.count("\n") == 1
    close(held)


def test_node_0_does_not_wait_for_nodes_that_it_cannot_reach_and_lets_the_others_go(gang):
    held = gang.stranger(1, full=True)
    first, other = gang.node(0, size=3), gang.node(2, size=3)
    assert "gpufabric: node 1" in goes_on(first)
    assert goes_on(other) == ""
    close(held)
    assert goes_on(gang.node(1, size=3)) == ""  # what node 0 left behind tells it


def test_node_0_does_not_wait_for_a_node_that_has_gone_on_without_it(gang):
    held = gang.stranger(0)
    assert "node 0 not reached" in goes_on(gang.node(1))
    close(held)
    assert "not reached" not in goes_on(gang.node(0))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_wait_has_an_end_which_is_no_failure(gang, rank):
    assert "(not started); the command starts" in goes_on(gang.node(rank, limit_s=0))


def test_a_node_that_loses_node_0_goes_on(gang):
    with socket.create_server((gang.ips[0], PORT)) as first:
        second = gang.node(1)
        link = first.accept()[0]
        assert link.recv(100) == b"gpufabric g 0 1"
        link.sendall(b"wait\n")
        link.close()
    assert goes_on(second) == ""


@pytest.mark.parametrize("size", [2, 40])
def test_the_port_is_the_commands_as_soon_as_all_have_met(gang, size):
    nodes = [gang.node(rank, size=size) for rank in range(size)]
    for node in nodes:
        goes_on(node)
    with socket.socket() as own:
        own.bind((gang.ips[0], PORT))


# ---- as a part of the start script


@pytest.fixture
def pair(tmp_path, shell):
    """Two nodes with python3 alone, and what starts one of them; addresses no other test has."""
    if "busybox" in shell[0]:
        pytest.skip("busybox has its own getent or finds it in no PATH")
    ips, nodes = addresses(2), []
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        nodes.append(Node(tmp_path / str(rank), shell))
        nodes[-1].tools("python3")

    def start(rank, *words):
        script = nodes[rank].script(num_nodes=2, code=False)
        script = script.replace("gang-n-0-$rank.gang", ips[0][:-1] + "$((rank + 1))")
        env = {"JOB_COMPLETION_INDEX": str(rank), "GPUFABRIC_POD_IP": ips[rank]}
        return nodes[rank].start(*words, script=script, env=env)

    yield ips, start
    for one in nodes:
        one.end()


def test_python_finds_the_nodes_where_getent_is_not_and_they_meet(pair):
    ips, start = pair
    nodes = [start(rank, "/bin/sh", "-c", 'echo "$GPUFABRIC_NODE_IPS"') for rank in (0, 1)]
    for process in nodes:
        assert process.communicate(timeout=60) == (f"{ips[0]}\n{ips[1]}\n", "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_while_another_node_is_awaited_ends_the_node(pair, rank):
    ips, start = pair
    process = start(rank, "ls")
    if rank:
        with socket.create_server((ips[0], PORT)) as first:
            first.accept()[0].close()
    else:
        knock(ips[0])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143


def knock(address: str) -> None:
    """Comes back once node 0 awaits the others."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((address, PORT)).close()
            return
        os.sched_yield()
