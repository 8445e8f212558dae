"""Parts of the supervisor: ports, clocks, signals, processes."""

import ast
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpufabric.backends import _supervisor as supervisor

IP_LOCAL_PORT_RANGE = 51  # linux/in.h, since Linux 6.3


def only_from(port: int, *, reuse: bool) -> socket.socket:
    """A socket to which the kernel can give this port only, when asked for any."""
    made = socket.socket()
    try:
        made.setsockopt(
            socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", (port << 16) | port)
        )
    except OSError:
        made.close()
        pytest.skip("this kernel cannot narrow the choice of a port to one")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    return made


@pytest.fixture
def held():
    holder, port = supervisor.hold_port()
    with holder:
        yield port


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])  # noqa: S104  # as servers do
def test_a_program_that_asks_for_the_held_port_gets_it(held, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, held), family=family, dualstack_ipv6=":" in address) as s:
        with socket.create_connection(("127.0.0.1", held), timeout=10) as client:
            peer, _ = s.accept()
            peer.close()
        client.close()


@pytest.mark.parametrize("reuse", [False, True])
def test_the_held_port_is_given_to_nobody_who_asks_for_any(held, reuse):
    with only_from(held, reuse=reuse) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", 0))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        only_from(held, reuse=reuse) as client,
        pytest.raises(OSError, match="Cannot assign"),
    ):
        client.connect(server.getsockname())


def test_a_port_that_nobody_holds_is_given_or_the_test_above_proves_nothing():
    holder, port = supervisor.hold_port()
    holder.close()
    with only_from(port, reuse=False) as other:
        other.bind(("127.0.0.1", 0))
        assert other.getsockname()[1] == port


def test_a_clock_that_is_moved_moves_no_time_of_ours(monkeypatch):
    clock = supervisor.Clock()
    before = clock.now()
    monkeypatch.setattr(supervisor.time, "time", lambda: 1.0)
    after = clock.now()
    assert before <= after < before + 60


def test_no_signal_reaches_a_process_that_started_at_another_time():
    with subprocess.Popen(["sleep", "300"]) as process:
        started = supervisor.start_time(process.pid)
        assert not supervisor.signal_process(process.pid, signal.SIGKILL, started + 1)
        assert not supervisor.signal_process(process.pid, signal.SIGKILL, None)
        assert process.poll() is None
        assert supervisor.signal_process(process.pid, signal.SIGKILL, started)
    assert not supervisor.signal_process(process.pid, signal.SIGKILL, started)


def test_a_process_with_any_name_has_a_start_time(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert supervisor.start_time(process.pid) >= supervisor.start_time(os.getpid())


@pytest.mark.parametrize("kept", [True, False])
def test_descendants_are_found_with_and_without_the_kernels_own_list(monkeypatch, kept):
    if not kept:
        monkeypatch.setattr(supervisor, "_KEPT", False)
        real = open

        def hide(path, *args, **kwargs):
            if str(path).endswith("/children"):
                raise FileNotFoundError(path)
            return real(path, *args, **kwargs)

        monkeypatch.setattr(supervisor, "open", hide, raising=False)
    run = "sleep 300 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", run], stdout=subprocess.PIPE, text=True) as process:
        below = int(process.stdout.readline())
        found = supervisor.descendants(os.getpid())
        assert found.index(process.pid) < found.index(below)
        for pid in (process.pid, below):
            os.kill(pid, signal.SIGKILL)


def test_marks_and_pipes_find_a_process():
    with subprocess.Popen(["sleep", "300"], env={"MARK": "x=1"}, stdout=subprocess.PIPE) as process:
        inode = os.fstat(process.stdout.fileno()).st_ino
        assert list(supervisor.marked(b"MARK=x=1")) == [process.pid]
        assert list(supervisor.marked(b"MARK=x")) == []
        assert list(supervisor.holding([inode])) == [process.pid]
        process.kill()


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "exited with 1"), (137, "killed by SIGKILL"), (255, "exited with 255")],
)
def test_exit_codes_in_words(code, words):
    assert supervisor.exit_words(code) == words


def test_a_state_of_the_longest_reasons_fits_its_slot(tmp_path):
    nodes = 256
    worst = "\U0001f4a5"  # twelve bytes in JSON
    row = ["cancelled", 143, worst * 80, 1796026016.940761, 1796026016.953565]
    file = supervisor.StateFile(str(tmp_path / "state"), nodes)
    state = {"reason": worst * 500, "nodes": [row] * nodes, "pipes": [2**32] * 2 * nodes}
    file.write(state)
    file.write(state)
    assert supervisor.read_slots((tmp_path / "state").read_bytes()) == (2, state)
    assert (tmp_path / "state").stat().st_size == 2 * supervisor.slot_bytes(nodes)


def test_a_caller_that_ends_before_it_has_said_all_leaves_nothing(tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    boot = "import sys; sys.path.append(sys.argv[1]); import _supervisor as s; s.main(sys.argv[2])"
    home = str(Path(supervisor.__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", boot, home, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"locked\n"
        process.stdin.write(struct.pack("<Q", 1000) + b'{"job": ')
        process.stdin.close()
        assert process.stdout.read() == b""  # its end
        deadline = time.monotonic() + 60
        while folder.exists() and time.monotonic() < deadline:
            os.sched_yield()
    assert not folder.exists()


def test_the_file_needs_no_more_than_the_standard_library_of_python_38():
    source = Path(supervisor.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported <= set(sys.stdlib_module_names)
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))


@pytest.fixture(autouse=True)
def no_child_is_left():
    yield
    with contextlib.suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
