"""Logs of the local backend: every byte, in order, for any number of readers, in flat memory."""

import os
import struct
import sys
import threading
from pathlib import Path

import pytest

from gpufabric.backends import _supervisor as supervisor
from gpufabric.backends._local_logs import last_lines, read_lines
from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.errors import SpecError
from gpufabric.job import JobState
from gpufabric.task import Task


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path / "jobs", Settings(stop_grace_s=0.5))


@pytest.fixture
def launch(local: Local):
    refs = []

    def start(**words: object):
        task = Task(**words)
        site = local.discover()
        ref = local.apply(local.plan(task, local.offers(task, site).offers[0], site))
        refs.append(ref)
        return ref

    yield start
    for ref in refs:
        local.teardown(ref)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_stdout_and_stderr_are_kept_apart_and_each_in_order(local, launch):
    code = "import sys\nfor i in range(2000): print(i); print(-i, file=sys.stderr)"
    lines = list(local.logs(launch(run=python(code), num_nodes=2), follow=True))
    for rank in (0, 1):
        out = [
            int(line.data) for line in lines if (line.node_rank, line.stream) == (rank, "stdout")
        ]
        err = [
            int(line.data) for line in lines if (line.node_rank, line.stream) == (rank, "stderr")
        ]
        assert out == list(range(2000))
        assert err == [-i for i in range(2000)]


def test_bytes_that_are_not_utf8_are_kept(local, launch):
    code = "import os; os.write(1, bytes(range(256)).replace(b'\\n', b'') + b'\\n')"
    (line,) = local.logs(launch(run=python(code)), follow=True)
    assert line.data == bytes(range(256)).replace(b"\n", b"")
    assert "\\xff" in line.text


def test_empty_lines_carriage_returns_and_a_last_line_without_newline_are_kept(local, launch):
    lines = list(local.logs(launch(run=r"printf 'a\n\n 10%%\r 20%%\r\nend'"), follow=True))
    assert [line.data for line in lines] == [b"a", b"", b" 10%\r 20%\r", b"end"]


def test_a_line_of_10_mb_arrives_whole(local, launch):
    code = "import os\nfor c in b'ab': print(chr(c) * 10_000_000, flush=True)"
    first, second = local.logs(launch(run=python(code)), follow=True)
    assert first.data == b"a" * 10_000_000
    assert second.data == b"b" * 10_000_000


def test_many_lines_arrive_without_loss_through_followers_that_start_at_different_times(
    local, launch
):
    count = 30_000
    code = f"import sys; sys.stdout.writelines(f'{{i}}\\n' for i in range({count}))"
    ref = launch(run=python(code), num_nodes=2)
    found: dict[int, list[list[int]]] = {}

    def follow(reader: int) -> None:
        seen: list[list[int]] = [[], []]
        for line in local.logs(ref, follow=True):
            seen[line.node_rank].append(int(line.data))
        found[reader] = seen

    readers = [threading.Thread(target=follow, args=(i,)) for i in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    follow(2)
    whole = [list(range(count))] * 2
    assert [found[i] == whole for i in range(3)] == [True] * 3


def test_lines_of_one_node_alone_can_be_asked_for(local, launch):
    ref = launch(run="echo $NODE_RANK", num_nodes=3)
    assert [line.text for line in local.logs(ref, node_rank=2, follow=True)] == ["2"]
    with pytest.raises(SpecError, match="3 is not within 0 to 2"):
        local.logs(ref, node_rank=3)


def test_lines_of_all_nodes_come_in_order_of_time_after_the_end(local, launch):
    run = "for i in 1 2 3; do echo $i; sleep 0.02; done"
    ref = launch(run=run, num_nodes=3)
    list(local.logs(ref, follow=True))
    times = [line.time for line in local.logs(ref)]
    assert len(times) == 9
    assert times == sorted(times)


def test_since_leaves_out_what_was_written_before(local, launch):
    ref = launch(run="echo a; sleep 0.1; echo b; sleep 0.1; echo c")
    lines = list(local.logs(ref, follow=True))
    assert [line.text for line in lines] == ["a", "b", "c"]
    again = list(local.logs(ref, since=lines[1].time))
    assert again == lines[1:]
    assert list(local.logs(ref, since=lines[2].time + 1)) == []


def test_a_live_job_shows_what_it_wrote_so_far(local, launch):
    ref = launch(run="printf 'whole\\npart'; while [ ! -e go ]; do sleep 0.02; done; echo ial")
    assert next(local.logs(ref, follow=True)).text == "whole"
    follower = local.logs(ref, follow=True)
    assert next(follower).text == "whole"
    (Path(ref.place) / ref.name / "nodes/0/0/work/go").touch()
    assert [line.text for line in follower] == ["partial"]


def test_a_follower_left_early_holds_nothing_open(local, launch):
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names
    ref = launch(run="echo a; sleep 300", num_nodes=4)
    follower = local.logs(ref, follow=True)
    next(follower)
    follower.close()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  # names


def test_a_follower_ends_when_the_job_is_torn_down(local, launch):
    ref = launch(run="echo a; sleep 300")
    follower = local.logs(ref, follow=True)
    assert next(follower).text == "a"
    local.teardown(ref)
    assert list(follower) == []


def test_a_supervisor_that_was_killed_leaves_what_was_written_readable(local, launch):
    ref = launch(run="echo a; sleep 300")
    follower = local.logs(ref, follow=True)
    assert next(follower).text == "a"
    os.kill(local._folder(ref).state()["pid"], 9)
    assert list(follower) == []
    assert local.status(ref).state is JobState.LOST
    assert [line.text for line in local.logs(ref)] == ["a"]


def record(stream: int, data: bytes, when: float = 1.0) -> bytes:
    head = supervisor.RECORD.pack(supervisor.RECORD_MAGIC, stream, 0, len(data), when)
    return head + data + supervisor.RECORD_END.pack(len(data))


def written(tmp_path: Path, data: bytes) -> Path:
    folder = tmp_path / "nodes" / "0" / "0"
    folder.mkdir(parents=True)
    (folder / "log").write_bytes(data)
    return tmp_path


def every_line(job: Path) -> list[bytes]:
    found = read_lines(job, [0], since=None, ended=lambda: True, follow=False)
    return [line.data for line in found]


@pytest.mark.parametrize("cut", range(1, 38))
def test_a_record_cut_anywhere_loses_no_line_before_it(tmp_path, cut):
    whole = record(0, b"first\n") + record(0, b"second line\n")
    lines = every_line(written(tmp_path, whole[:-cut]))
    assert lines[0] == b"first"
    assert b"second line".startswith(b"".join(lines[1:]))


def test_a_line_may_span_records_and_streams_do_not_mix(tmp_path):
    data = record(0, b"one ") + record(1, b"err") + record(0, b"line\n") + record(1, b"or\n")
    assert every_line(written(tmp_path, data)) == [b"one line", b"error"]


def test_the_last_lines_are_read_from_the_end(tmp_path):
    data = b"".join(record(i % 2, b"%d\n" % i) for i in range(1000))
    job = written(tmp_path, data)
    assert last_lines(job, 0, 0) == tuple(str(i) for i in range(980, 1000))


def test_the_last_lines_of_a_huge_line_are_bounded(tmp_path):
    job = written(tmp_path, record(0, b"x" * 1_000_000 + b"\nend\n"))
    tail = last_lines(job, 0, 0)
    assert tail[-1] == "end"
    assert sum(map(len, tail)) <= 64 * 1024


def test_last_lines_of_a_torn_or_missing_log_are_none(tmp_path):
    job = written(tmp_path, struct.pack("<I", 12345) * 3)
    assert last_lines(job, 0, 0) == ()
    assert last_lines(job, 1, 0) == ()


def test_a_full_disk_takes_back_the_record_it_could_not_hold(tmp_path, monkeypatch):
    log = supervisor.Log(str(tmp_path / "log"))
    log.write(0, b"kept\n", 1.0)
    size = (tmp_path / "log").stat().st_size
    real = os.writev

    def half(fd: int, parts: list[bytes]) -> int:
        return real(fd, [parts[0][:7]])

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervisor.os, "writev", half)
    monkeypatch.setattr(supervisor.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        log.write(0, b"lost\n", 1.0)
    assert (tmp_path / "log").stat().st_size == size
    log.close()


def test_a_state_half_written_shows_the_one_before(tmp_path):
    file = supervisor.StateFile(str(tmp_path / "state"), 1)
    file.write({"n": 1})
    file.write({"n": 2})
    data = bytearray((tmp_path / "state").read_bytes())
    assert supervisor.read_slots(bytes(data)) == (2, {"n": 2})
    data[supervisor.SLOT.size] ^= 255  # the slot of the second write
    assert supervisor.read_slots(bytes(data)) == (1, {"n": 1})
    again = supervisor.StateFile(str(tmp_path / "state"), 1)
    again.write({"n": 3})
    assert supervisor.read_slots((tmp_path / "state").read_bytes()) == (3, {"n": 3})
    assert supervisor.read_slots(bytes(100)) is None
