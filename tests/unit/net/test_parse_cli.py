# ruff: noqa: E501 - a line of a log is as long as it is
from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nccl_tests_text import run

from gpufabric.net.cli import parse_main

SICK = "q-1:1:2 [0] m.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-Zz to 9 bytes, error: No space left on device (28)\n"  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.log"
    path.write_text("\n".join(run()) + "\n")
    return path


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    path = tmp_path / "sick.log"
    path.write_text(SICK)
    return path


def test_people_get_the_numbers_that_tell(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_main([str(table)]) == 0
    out = capsys.readouterr().out
    assert "16 ranks on 2 nodes" in out
    assert "health: " in out
    assert "all_reduce float sum: 6 rows up to 34359738368 bytes" in out


def test_one_file_gives_one_json_object(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_main([str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_ranks"] == 16


def test_several_files_give_one_line_each(
    table: Path, sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_main(["--json", str(table), str(sick)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["nccl_tests", "nccl_log"]


def test_a_sick_network_shows_in_the_exit_status(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_main([str(sick)]) == 1
    out = capsys.readouterr().out
    assert "shm_extend_failed, /dev/shm/nccl-Zz" in out
    assert "do: " in out


def test_a_file_that_is_not_there_is_told(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_main([str(tmp_path / "none"), str(table)]) == 2
    captured = capsys.readouterr()
    assert "No such file" in captured.err
    assert "16 ranks" in captured.out


def test_standard_input_is_read_until_the_job_ends() -> None:
    # The writer keeps the pipe open between its lines, as a running job does.
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", "from gpufabric.net.cli import parse_main; parse_main(['-', '--json'])"],
        stdin=read,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(read)
        for line in run():
            os.write(write, line.encode() + b"\n")
        os.close(write)
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["n_ranks"] == 16


def test_an_interrupt_ends_the_text_and_not_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Job(io.RawIOBase):
        """A pipe that gives a run and is then interrupted at the keyboard."""

        sent = False

        def read1(self, size: int = -1, /) -> bytes:
            del size
            if self.sent:
                raise KeyboardInterrupt
            self.sent = True
            return ("\n".join(run()) + "\n").encode()

    class Console:
        buffer = Job()

    monkeypatch.setattr(sys, "stdin", Console())
    assert parse_main(["-"]) == 0
    assert "16 ranks on 2 nodes" in capsys.readouterr().out


def test_nothing_of_a_log_reaches_the_terminal_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.log"
    path.write_text("q:1:2 [0] a.cc:1 NCCL WARN Cuda failure 'x\x1b[2J\x07\x9b31m'\n")
    parse_main([str(path)])
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
