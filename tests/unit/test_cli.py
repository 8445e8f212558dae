"""What the command line says to wrong calls, and its exit status."""

import io
import sys

import pytest

import gpufabric as gf
from gpufabric.cli import main


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUFABRIC_LOCAL_ROOT", str(tmp_path / "jobs"))


def say(capsys, *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    return status, capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the text holds no document"),
        ("- a\n", "line 1: expected a mapping of Task's fields, found list"),
        ("run: a\n  b: [\n", "line 2: not YAML"),
        ("run: a\nrun: b\n", "line 2: run: written twice"),
        ("run: a\nnum_nodes: two\n", "line 2: num_nodes: 'two' is not a number of nodes"),
        ("run: a\nresorces: {}\n", "line 2: resorces: unknown field, did you mean resources?"),
        ("run: a\nworkdir: /nowhere/at/all\n", "/nowhere/at/all does not exist"),
        ("run: a\nsecrets: [TOKEN]\n", "TOKEN; supply them: Task(secrets={NAME: value}), or"),
    ],
)
def test_a_wrong_task_is_told_with_its_line(capsys, tmp_path, text, told):
    (tmp_path / "task.yaml").write_text(text)
    status, error = say(capsys, "launch", "task.yaml")
    assert status == 2
    assert told in error
    assert not list(gf.Local(tmp_path / "jobs").jobs())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("launch", "none.yaml"), "none.yaml: No such file or directory"),
        (("launch", "."), ".: Is a directory"),
        (("launch", "bytes.yaml"), "bytes.yaml: it is not UTF-8 text"),
        (("launch", "ok.yaml", "--secret", "TOKEN"), "--secret TOKEN: write NAME=FILE"),
        (("launch", "ok.yaml", "--secret", "TOKEN=none"), "--secret TOKEN: none: No such file"),
        (("launch", "ok.yaml", "--backend", "lokal"), "no backend 'lokal', did you mean local?"),
        (("status", "xyz"), "'xyz' is not a job: write backend://place/name"),
        (("status", "awz://a/b"), "no backend 'awz'"),
        (("demo", "--nodes", "0"), "ask for 2 or more"),
        (("offers", "-a", "H100:8", "--tier", "bst"), "did you mean best?"),
        (("offers", "-a", "H100:8", "--cloud", "awss"), "no cloud 'awss', did you mean aws?"),
        (("offers", "-a", "H100:x"), "is not a whole number of accelerators"),
        (("offers", "-a", "H100:8", "--overlay", "none.toml"), "none.toml"),
        (("env", "--env", "FOO"), "--env FOO: write NAME=VALUE"),
    ],
)
def test_a_wrong_call_says_what_to_write_and_is_2(capsys, tmp_path, arguments, told):
    (tmp_path / "ok.yaml").write_text("run: 'true'\nsecrets: [TOKEN]\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    status, error = say(capsys, *arguments)
    assert (status, told in error) == (2, True), error
    assert error.startswith("gpufabric: ")


@pytest.mark.parametrize("arguments", [(), ("lanch",), ("launch",), ("demo", "--nodes", "x")])
def test_an_unknown_call_prints_the_usage_and_is_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("GPUFABRIC_POLL_S", "abc", "GPUFABRIC_POLL_S='abc' is not a number"),
        ("GPUFABRIC_POLL_S", "-1", "GPUFABRIC_POLL_S: poll_s: -1 is too small"),
        ("GPUFABRIC_STOP_GRACE_S", "nan", "GPUFABRIC_STOP_GRACE_S"),
        ("GPUFABRIC_DISCOVER_TIMEOUT_S", "inf", "GPUFABRIC_DISCOVER_TIMEOUT_S"),
    ],
)
def test_a_wrong_setting_names_its_variable(capsys, monkeypatch, variable, value, told):
    monkeypatch.setenv(variable, value)
    status, error = say(capsys, "jobs")
    assert status == 2
    assert told in error


def test_a_wrong_file_of_settings_is_named_with_the_near_miss(capsys, tmp_path):
    (tmp_path / "gpufabric.toml").write_text("poll = 3\n")
    status, error = say(capsys, "jobs")
    assert status == 2
    assert "gpufabric.toml: unknown setting poll, did you mean poll_s?" in error


def test_a_job_that_is_gone_is_1_and_its_teardown_0(capsys, tmp_path):
    ref = f"local://{tmp_path}/jobs/none-1"
    assert say(capsys, "status", ref)[0] == 1
    assert say(capsys, "logs", ref) == (
        1, f"gpufabric: local logs: {ref} is gone: torn down, or it never was"
    )  # fmt: skip
    assert say(capsys, "cancel", ref)[0] == 1
    assert say(capsys, "teardown", ref) == (0, "")


def test_a_task_goes_from_standard_input_to_its_end(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("run: 'echo out; exit 3'\n"))
    assert main(["launch", "-", "--follow"]) == 1
    shown = capsys.readouterr()
    ref, *lines = shown.out.splitlines()
    assert lines == ["[0] out"]
    assert "exited with 3" in shown.err
    assert main(["status", ref]) == 1
    assert "node 0 failed exit code 3" in capsys.readouterr().out
    assert main(["logs", ref]) == 0
    assert capsys.readouterr().out == "[0] out\n"
    assert main(["jobs"]) == 0
    assert ref in capsys.readouterr().out.splitlines()
    assert main(["teardown", ref]) == 0
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out == ""


def test_a_dry_run_prints_the_plan_and_makes_nothing(capsys, tmp_path):
    (tmp_path / "task.yaml").write_text("run: 'true'\nname: dry\n")
    assert main(["launch", "task.yaml", "--dry-run"]) == 0
    assert "steps:" in capsys.readouterr().out
    assert not (tmp_path / "jobs").exists()
