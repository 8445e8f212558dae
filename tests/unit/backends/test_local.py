"""The local backend: start, end, restart, stop, environment, work folder."""

import fcntl
import json
import os
import pickle
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufabric._frozen import evolve
from gpufabric.backends._local_job import JobFolder
from gpufabric.backends._local_status import has_ended
from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.errors import (
    BackendError,
    ConfigError,
    NotFoundError,
    Remedy,
    SpecError,
    TransientError,
)
from gpufabric.job import JobRef, JobState, JobStatus, LogLine
from gpufabric.plan import LaunchPlan
from gpufabric.task import PythonCall, Secret, Task

Launch = Callable[..., JobRef]


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path / "jobs", Settings(stop_grace_s=0.5))


@pytest.fixture
def launch(local: Local):
    refs = []

    def start(**task: object) -> JobRef:
        ref = local.apply(plan_of(local, **task))
        refs.append(ref)
        return ref

    yield start
    for ref in refs:
        local.teardown(ref)
    assert not local.root.exists() or list(local.root.iterdir()) == []


def plan_of(local: Local, **task: object) -> LaunchPlan:
    site = local.discover()
    made = Task(**task)
    offers = local.offers(made, site)
    assert offers.best is not None, str(offers)
    return local.plan(made, offers.best, site)


def to_end(local: Local, ref: JobRef) -> tuple[list[LogLine], JobStatus]:
    lines = list(local.logs(ref, follow=True))
    return lines, local.status(ref)


def texts(lines: list[LogLine], rank: int = 0, stream: str = "stdout") -> list[str]:
    return [line.text for line in lines if line.node_rank == rank and line.stream == stream]


# --- start and end


def test_a_gang_runs_on_every_node_and_succeeds(local, launch):
    lines, status = to_end(local, launch(run="echo node $GPUFABRIC_NODE_RANK", num_nodes=3))
    assert [texts(lines, rank) for rank in range(3)] == [["node 0"], ["node 1"], ["node 2"]]
    assert status.state is JobState.SUCCEEDED
    assert status.exit_code == 0
    assert [(node.state, node.exit_code) for node in status.nodes] == [(JobState.SUCCEEDED, 0)] * 3
    assert status.started_at <= status.nodes[0].started_at <= status.nodes[0].ended_at
    assert status.nodes[0].ended_at <= status.ended_at


def test_the_first_failure_ends_the_gang_with_its_code_and_last_lines(local, launch):
    run = "[ $NODE_RANK = 1 ] || sleep 100; echo out; echo broken >&2; exit 7"
    _, status = to_end(local, launch(run=run, num_nodes=3))
    assert status.state is JobState.FAILED
    assert status.exit_code == 7
    assert status.reason == "node 1: exited with 7"
    assert sorted(status.tail) == ["broken", "out"]
    assert [node.state.value for node in status.nodes] == ["cancelled", "failed", "cancelled"]
    with pytest.raises(Exception, match="exited with 7") as raised:
        status.raise_for_state()
    assert raised.value.exit_codes == {0: 143, 1: 7, 2: 143}


def test_a_node_killed_by_a_signal_ends_as_the_shell_says(local, launch):
    _, status = to_end(local, launch(run="kill -SEGV $$"))
    assert status.exit_code == 139
    assert status.reason == "node 0: killed by SIGSEGV"


def test_processes_that_ignore_sigterm_or_made_their_own_session_are_ended(local, launch):
    run = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; touch a; sleep 300' & "
        "env -i setsid sh -c 'echo $$; touch b; exec sleep 300' & "
        "if [ $NODE_RANK = 0 ]; then wait; fi; "
        "for f in 0/0/work/a 0/0/work/b 1/0/work/a 1/0/work/b; do "
        "while [ ! -e ../../../$f ]; do sleep 0.01; done; done; exit 3"
    )
    lines, status = to_end(local, launch(run=run, num_nodes=2))
    pids = [int(text) for rank in (0, 1) for text in texts(lines, rank)]
    assert len(pids) == 4
    assert status.exit_code == 3
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_node_that_daemonises_and_holds_the_pipe_does_not_keep_the_job(local, launch):
    run = "(setsid sh -c 'echo $$; exec sleep 300' &); while ! [ -s pid ]; do echo x > pid; done"
    lines, status = to_end(local, launch(run=run))
    assert status.state is JobState.SUCCEEDED
    assert not any(Path(f"/proc/{text}").exists() for text in texts(lines))


def test_a_program_that_is_missing_stops_the_launch_and_leaves_nothing(local):
    with pytest.raises(BackendError, match=r"node 0: cannot run 'no such'") as raised:
        local.apply(plan_of(local, run=["no such", "x"], num_nodes=3))
    assert raised.value.remedy is Remedy.FIX_REQUEST
    assert list(local.root.iterdir()) == []


def test_a_busy_port_stops_the_launch(local):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BackendError, match=f"port {port}: Address already in use"):
            local.apply(plan_of(local, run="true", ports=[port]))
    assert list(local.root.iterdir()) == []


def test_setup_runs_on_every_node_before_run_on_any(local, launch):
    setup = "if [ $NODE_RANK = 1 ]; then sleep 0.3; fi; touch ready"
    run = "ls ../../../0/0/work/ready ../../../1/0/work/ready"
    _, status = to_end(local, launch(setup=setup, run=run, num_nodes=2))
    assert status.state is JobState.SUCCEEDED


def test_a_setup_that_fails_ends_the_job_and_its_words_stay(local, launch):
    lines, status = to_end(local, launch(setup="echo no pip >&2; exit 5", run="echo ran"))
    assert status.state is JobState.FAILED
    assert status.exit_code == 5
    assert status.reason == "node 0: setup: exited with 5"
    assert status.tail == ("no pip",)
    assert texts(lines) == []


def test_a_run_that_setup_should_have_made_and_did_not_is_a_failed_job(local, launch):
    _, status = to_end(local, launch(setup="true", run=["./made", "x"]))
    assert status.state is JobState.FAILED
    assert status.exit_code == 127
    assert "cannot run './made'" in status.reason


def test_time_runs_out_for_the_whole_gang(local, launch):
    _, status = to_end(local, launch(run="sleep 100", num_nodes=2, timeout_s=0.2))
    assert status.state is JobState.TIMED_OUT
    assert status.reason == "ran longer than 0.2 s"
    assert {node.state for node in status.nodes} == {JobState.TIMED_OUT}


def test_time_includes_restarts(local, launch):
    run = "[ $GPUFABRIC_ATTEMPT -lt 1 ] && exit 1; sleep 100"
    _, status = to_end(local, launch(run=run, max_restarts=9, timeout_s=0.4))
    assert status.state is JobState.TIMED_OUT
    assert status.attempt == 1


def test_a_restart_keeps_ranks_and_counts_attempts(local, launch):
    run = "echo $GPUFABRIC_ATTEMPT; [ $GPUFABRIC_ATTEMPT = 2 ] || exit $NODE_RANK"
    lines, status = to_end(local, launch(run=run, num_nodes=2, max_restarts=2))
    assert status.state is JobState.SUCCEEDED
    assert status.attempt == 2
    assert texts(lines, 1) == ["0", "1", "2"]
    assert [line.attempt for line in lines if line.node_rank == 1] == [0, 1, 2]


def test_restarts_end_with_the_last_failure(local, launch):
    _, status = to_end(local, launch(run="exit 4", max_restarts=1))
    assert (status.state, status.attempt, status.exit_code) == (JobState.FAILED, 1, 4)


def test_cancel_stops_the_processes_and_keeps_the_logs(local, launch):
    ref = launch(run="echo here; sleep 300", num_nodes=2)
    assert next(local.logs(ref, follow=True)).text == "here"
    local.cancel(ref)
    status = local.status(ref)
    assert status.state is JobState.CANCELLED
    assert status.exit_code is None
    assert "here" in [line.text for line in local.logs(ref)]
    local.cancel(ref)


def test_cancel_of_what_is_gone_says_so(local):
    with pytest.raises(NotFoundError, match="is gone"):
        local.cancel(JobRef(backend="local", place=str(local.root), name="never-12345678"))


# --- once, found again, removed


def test_applying_a_plan_twice_makes_one_job(local, launch):
    plan = plan_of(local, run="sleep 300")
    ref = launch(run="sleep 300")
    assert local.apply(plan) == ref
    assert list(local.jobs()) == [ref]


def test_an_ended_job_is_not_started_again_by_its_plan(local, launch):
    ref = launch(run="echo once")
    to_end(local, ref)
    local.apply(plan_of(local, run="echo once"))
    assert texts(list(local.logs(ref))) == ["once"]


def test_another_run_of_a_task_is_another_job(local):
    site = local.discover()
    task = Task(run="true")
    offer = local.offers(task, site).offers[0]
    names = {local.plan(task, offer, site, run=run).name for run in ("", "a", "b")}
    assert len(names) == 3


def test_a_plan_that_travelled_as_text_is_the_same_job(local, launch):
    plan = plan_of(local, run="echo $A", envs={"A": "1"}, num_nodes=2)
    ref = launch(run="echo $A", envs={"A": "1"}, num_nodes=2)
    assert local.apply(LaunchPlan.from_yaml(plan.to_yaml().partition("key:")[0])) == ref


def test_any_process_finds_a_job_by_its_text(local, launch):
    ref = launch(run="echo out; exit 6")
    to_end(local, ref)
    code = (
        "import sys; from gpufabric.backends.local import Local; from gpufabric.job import JobRef;"
        "ref = JobRef.parse(sys.argv[1]); other = Local('/nowhere/else');"
        "print(other.status(ref).exit_code, [l.text for l in other.logs(ref)]);"
        "other.teardown(ref); print(other.status(ref).state)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(ref)], capture_output=True, text=True, check=True
    ).stdout
    assert out.split("\n")[:2] == ["6 ['out']", "gone"]


def test_a_job_outlives_the_process_that_started_it(local, tmp_path):
    plan = plan_of(local, run="while [ ! -e go ]; do sleep 0.02; done; echo done")
    code = (
        "import pickle, sys; from gpufabric.backends.local import Local;"
        "print(Local(sys.argv[1]).apply(pickle.load(sys.stdin.buffer)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(local.root)],
        input=pickle.dumps(plan), capture_output=True, check=True,
    ).stdout  # fmt: skip
    ref = JobRef.parse(out.decode())
    assert local.status(ref).state is JobState.RUNNING
    (local.root / ref.name / "nodes/0/0/work/go").touch()
    lines, status = to_end(local, ref)
    assert (texts(lines), status.state) == (["done"], JobState.SUCCEEDED)
    local.teardown(ref)


def test_a_torn_down_job_is_gone_and_tearing_it_down_again_succeeds(local):
    ref = local.apply(plan_of(local, run="sleep 300", num_nodes=2))
    local.teardown(ref)
    assert local.status(ref) == JobStatus(ref=ref, state=JobState.GONE)
    assert list(local.jobs()) == []
    local.teardown(ref)
    with pytest.raises(NotFoundError):
        local.logs(ref)


def test_teardown_removes_no_folder_that_is_no_job(local, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "spec.json").write_text("{}")
    local.teardown(JobRef(backend="local", place=str(tmp_path), name="precious"))
    assert (precious / "spec.json").exists()


def test_teardown_finds_the_processes_of_a_job_whose_folder_someone_removed(local):
    run = "setsid sleep 300 & echo $!; echo $$; wait"
    for folder in (lambda ref: local.root / ref.name, lambda _: local.root):
        ref = local.apply(plan_of(local, run=run, num_nodes=2, max_restarts=3))
        lines = local.logs(ref, follow=True)
        pids = [int(next(lines).text) for _ in range(4)]
        lines.close()
        shutil.rmtree(folder(ref))
        handles = [os.pidfd_open(pid) for pid in pids]
        local.teardown(ref)
        for handle in handles:  # readable when its process has ended
            assert select.select([handle], [], [], 10)[0] == [handle]
            os.close(handle)


def test_a_follower_waits_for_a_job_that_is_about_to_start(tmp_path):
    folder = JobFolder(tmp_path, "job-1")
    folder.path.mkdir()
    (folder.path / "lock").touch()
    with (folder.path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not has_ended(folder)
    assert has_ended(folder)


@pytest.mark.parametrize("name", ["..", ".", "a b", "A", "x" * 80])
def test_a_ref_that_can_be_no_job_is_refused(local, name):
    with pytest.raises(NotFoundError, match="is no local job"):
        local.teardown(JobRef(backend="local", place=str(local.root), name=name))


def test_teardown_removes_folders_that_their_owner_may_not_enter(local):
    run = "mkdir -p a/b; touch a/b/c; chmod 0 a/b a; chmod 0 ."
    ref = local.apply(plan_of(local, run=run))
    to_end(local, ref)
    local.teardown(ref)
    assert list(local.root.iterdir()) == []


# --- environment, secrets, code


def test_the_environment_is_the_one_of_the_table(local, launch):
    ref = launch(run="env -0 | tr '\\n\\0' '|\\n'", num_nodes=2)
    lines, _ = to_end(local, ref)
    seen = dict(text.split("=", 1) for text in texts(lines, 1))
    port = seen["MASTER_PORT"]
    assert port.isdecimal()
    expected = {
        "GPUFABRIC_NODE_RANK": "1",
        "GPUFABRIC_NUM_NODES": "2",
        "GPUFABRIC_GPUS_PER_NODE": "0",
        "GPUFABRIC_NODE_IPS": "127.0.0.1|127.0.0.1",
        "GPUFABRIC_JOB": str(ref),
        "GPUFABRIC_ATTEMPT": "0",
        "MASTER_ADDR": "127.0.0.1",
        "NODE_RANK": "1",
        "NNODES": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": port,
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert {v.name for v in plan_of(local, run="true", num_nodes=2).env} == {
        *expected,
        "MASTER_PORT",
    }


def test_the_users_variables_win_and_the_plan_shows_what_they_overrode(local, launch):
    envs = {"MASTER_ADDR": "::1", "X": "a 'b' \"c\"\n$d"}
    plan = plan_of(local, run="true", envs=envs)
    (address,) = [var for var in plan.env if var.name == "MASTER_ADDR"]
    assert (address.value, address.overridden) == ("::1", "127.0.0.1")
    lines, _ = to_end(local, launch(run='echo "$MASTER_ADDR $X"', envs=envs))
    assert texts(lines) == ["::1 a 'b' \"c\"", "$d"]


def test_braces_in_the_users_variables_are_no_templates(local, launch):
    lines, _ = to_end(local, launch(run='echo "$X"', envs={"X": "{node_rank}"}))
    assert texts(lines) == ["{node_rank}"]


def test_the_callers_environment_is_inherited_unless_it_is_not_trusted(
    local, tmp_path, monkeypatch
):
    monkeypatch.setenv("CALLERS", "word")
    monkeypatch.setenv("GPUFABRIC_POLL_S", "3")
    blind = Local(tmp_path / "blind", Settings(trust_env=False, stop_grace_s=0.5))
    seen = []
    for backend in (local, blind):
        ref = backend.apply(plan_of(backend, run="echo $CALLERS:$GPUFABRIC_POLL_S; env -0 | wc -c"))
        seen.append(texts(to_end(backend, ref)[0]))
        backend.teardown(ref)
    assert [first for first, _ in seen] == ["word:", ":"]
    assert {"PATH", "HOME"} <= {var.name for var in plan_of(blind, run="true").env}


def test_a_secret_reaches_the_node_and_no_file_plan_or_process_list(local, launch):
    word = "hush-3f9a"
    task = {"run": "echo ${#TOKEN}; sleep 300", "secrets": {"TOKEN": Secret(value=word)}}
    plan = plan_of(local, **task)
    ref = launch(**task)
    assert next(local.logs(ref, follow=True)).text == str(len(word))
    kept = [path for path in local.root.rglob("*") if path.is_file()]
    assert not any(word.encode() in path.read_bytes() for path in kept)
    assert word not in str(plan) + repr(plan) + plan.to_yaml()
    commands = b"".join(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )
    assert word.encode() not in commands
    state = json.loads(json.dumps(local._folder(ref).state()))
    for who in ("pid", "guard"):
        assert word.encode() not in Path(f"/proc/{state[who]}/environ").read_bytes()


def test_a_secret_without_a_value_is_asked_for(local):
    with pytest.raises(SpecError, match=r"secrets\.TOKEN: has no value yet"):
        local.apply(plan_of(local, run="true", secrets=["TOKEN"]))


def test_the_job_folder_is_closed_to_others(local, launch):
    ref = launch(run="true")
    assert (local.root / ref.name).stat().st_mode & 0o077 == 0
    assert local.root.stat().st_mode & 0o077 == 0


def test_each_node_has_its_own_copy_of_the_work_folder_with_files_on_top(local, launch, tmp_path):
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "sub" / "main.sh").write_text("echo from workdir\n")
    (code / "config").write_text("old\n")
    (code / "link").symlink_to("config")
    os.mkfifo(code / "pipe")
    files = {"config": "new\n", "deep/er": "x\n"}
    run = "sh sub/main.sh; cat config deep/er; readlink link; echo $NODE_RANK > mine; cat mine; ls"
    ref = launch(run=run, workdir=str(code), files=files, num_nodes=2)
    lines, status = to_end(local, ref)
    assert status.state is JobState.SUCCEEDED
    for rank in (0, 1):
        assert texts(lines, rank) == [
            "from workdir", "new", "x", "config", str(rank),
            "config", "deep", "link", "mine", "sub",
        ]  # fmt: skip
    assert texts(lines, 0, "event") == ["pipe: a FIFO, left out"]
    assert (code / "config").read_text() == "old\n"


def test_files_replace_links_of_the_work_folder_and_never_write_through_them(
    local, launch, tmp_path
):
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    code = tmp_path / "code"
    code.mkdir()
    (code / "a").symlink_to(outside)
    lines, _ = to_end(local, launch(run="cat a", workdir=str(code), files={"a": "mine"}))
    assert texts(lines) == ["mine"]
    assert outside.read_text() == "untouched"


def test_a_work_folder_that_holds_the_folder_of_jobs_does_not_take_it_along(tmp_path):
    (tmp_path / "code.py").touch()
    local = Local(tmp_path / "deep" / "jobs", Settings(stop_grace_s=0.5))
    ref = local.apply(plan_of(local, run="ls -A; ls -A deep", workdir=str(tmp_path)))
    lines, _ = to_end(local, ref)
    local.teardown(ref)
    assert texts(lines) == ["code.py", "deep"]
    assert texts(lines, stream="event") == ["deep/jobs: the folder of jobs, left out"]


def test_a_restart_starts_from_a_fresh_copy(local, launch, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "f").write_text("f")
    run = "ls; touch dirt; [ $GPUFABRIC_ATTEMPT = 1 ]"
    lines, _ = to_end(local, launch(run=run, workdir=str(code), max_restarts=1))
    assert texts(lines) == ["f", "f"]


def test_a_work_folder_that_is_not_there_stops_the_launch(local, tmp_path):
    with pytest.raises(SpecError, match="does not exist"):
        local.apply(plan_of(local, run="true", workdir=str(tmp_path / "none")))
    assert list(local.root.iterdir()) == []


def test_a_relative_work_folder_is_taken_from_where_the_site_was_read(
    local, launch, tmp_path, monkeypatch
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "here").touch()
    monkeypatch.chdir(tmp_path)
    plan = plan_of(local, run="ls", workdir="code")
    monkeypatch.chdir("/")
    ref = local.apply(plan)
    assert texts(to_end(local, ref)[0]) == ["here"]
    local.teardown(ref)


def test_a_function_runs_on_every_node(local, launch):
    def work(word: str, *, times: int) -> None:
        import os as system

        print(word * times, system.environ["NODE_RANK"])  # noqa: T201  # what the node writes

    ref = launch(run=PythonCall.of(work, "ab", times=2), num_nodes=2)
    lines, status = to_end(local, ref)
    assert status.state is JobState.SUCCEEDED, status
    assert [texts(lines, rank) for rank in (0, 1)] == [["abab 0"], ["abab 1"]]


def test_a_function_that_raises_fails_the_job_with_its_traceback(local, launch):
    def work() -> None:
        raise RuntimeError("not today")

    _, status = to_end(local, launch(run=PythonCall.of(work)))
    assert status.exit_code == 1
    assert status.tail[-1] == "RuntimeError: not today"


@pytest.mark.parametrize("name", ["a b", 'it\'s "q"', "two\nlines", "größe-语", "-rf /", "$(id)"])
def test_a_task_of_any_name_runs(local, launch, name):
    lines, status = to_end(local, launch(name=name, run=["sh", "-c", "echo ok"]))
    assert (texts(lines), status.state) == (["ok"], JobState.SUCCEEDED)


def test_a_folder_of_jobs_with_spaces_quotes_and_letters_beyond_ascii_works(tmp_path):
    local = Local(tmp_path / "my \"jobs\" 'größe'", Settings(stop_grace_s=0.5))
    ref = local.apply(plan_of(local, run="echo $GPUFABRIC_JOB"))
    assert JobRef.parse(str(ref)) == ref
    assert texts(to_end(local, ref)[0]) == [str(ref)]
    local.teardown(ref)


def test_a_folder_of_jobs_that_no_ref_can_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Local(tmp_path / "two\nlines")


def test_a_folder_of_jobs_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    local = Local(tmp_path / "file")
    assert not local.check().ok
    with pytest.raises(ConfigError, match="cannot make"):
        local.apply(plan_of(local, run="true"))


def test_a_folder_of_jobs_that_all_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="all may write"):
        Local(tmp_path).apply(plan_of(Local(tmp_path), run="true"))


def test_without_a_usable_home_jobs_live_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/nonexistent/home")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("gpufabric.backends._local_job.os.access", lambda *_: False)
    assert Local(settings=Settings()).root.name == f"gpufabric-{os.getuid()}"


def test_check_says_what_is_needed(local):
    report = local.check()
    assert report.ok, str(report)
    assert {item.name for item in report.items} >= {"Linux", "shell", "folder of jobs"}


def test_teardown_of_a_job_leaves_alone_another_whose_name_begins_with_its_name(local, launch):
    ref = launch(run="true")
    other = launch(run="sleep 300", name=ref.name)
    assert other.name.startswith(f"{ref.name}-")
    local.teardown(ref)
    assert local.status(other).state is JobState.RUNNING


def test_a_gang_that_is_not_whole_in_the_plans_time_is_rolled_back(local):
    plan = evolve(plan_of(local, run="echo hi", num_nodes=2), gang_timeout_s=1e-6)
    with pytest.raises(TransientError, match="not all nodes were ready within 1e-06 s"):
        local.apply(plan)
    assert list(local.jobs()) == []
    assert list(local.root.iterdir()) == []
