"""A disk that is full, before a launch and while a gang runs: a clear error or state, no hang."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MOUNT = ["unshare", "--map-root-user", "--mount", "sh", "-c"]

PROGRAM = """
import contextlib, os, sys
from pathlib import Path
from gpufabric.backends.local import Local
from gpufabric.config import Settings
from gpufabric.errors import BackendError
from gpufabric.job import JobState
from gpufabric.task import Task

disk, case = Path(sys.argv[1]), sys.argv[2]
local = Local(disk / "jobs", Settings(stop_grace_s=0.5))
site = local.discover()

def plan(run, **fields):
    task = Task(run=run, num_nodes=2, **fields)
    return local.plan(task, local.offers(task, site).offers[0], site)

def fill(leave=0):
    path = disk / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size - leave)

def refused(words, **fields):
    try:
        local.apply(plan("echo hi", **fields))
    except BackendError as exc:
        assert words in str(exc), exc
        assert exc.remedy == "fix-setup"
    else:
        raise AssertionError("it was launched")

def ended(ref):
    for _ in local.logs(ref, follow=True):
        pass
    return local.status(ref)

def logs_fill_it():
    status = ended(local.apply(plan("yes")))
    assert status.state is JobState.FAILED, status
    assert "cannot write the log of node" in status.reason, status
    assert "No space left" in status.reason, status

def a_rank_fills_it():
    status = ended(local.apply(plan("dd if=/dev/zero of=x bs=4k; exit 3")))
    assert status.state is JobState.FAILED, status
    assert "No space left" in status.reason or status.exit_code == 3, status

def full_before():
    local.root.mkdir(mode=0o700)
    for leave in range(0, 16 * 4096, 4096):
        fill(leave)
        with contextlib.suppress(BackendError):
            ref = local.apply(plan("echo hi"))
            assert ended(ref).state in {JobState.SUCCEEDED, JobState.FAILED}
            local.teardown(ref)
        assert list(local.root.iterdir()) == [], list(local.root.iterdir())
    fill()
    refused("No space left")

def work_folder_does_not_fit():
    code = disk / "code"
    code.mkdir()
    (code / "big").write_bytes(os.urandom(1_200_000))
    refused("No space left", workdir=str(code))

def full_while_it_runs():
    ref = local.apply(plan("sleep 1000"))
    fill()
    assert local.status(ref).state is JobState.RUNNING
    local.cancel(ref)
    assert local.status(ref).state is JobState.CANCELLED

globals()[case]()
for ref in local.jobs():
    local.teardown(ref)
assert list(local.root.iterdir()) == [], list(local.root.iterdir())
print("ok")
"""


def has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*MOUNT, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="needs user and mount namespaces for a small disk")
@pytest.mark.parametrize(
    "case",
    [
        "logs_fill_it",
        "a_rank_fills_it",
        "full_before",
        "work_folder_does_not_fit",
        "full_while_it_runs",
    ],
)
def test_a_full_disk_gives_a_clear_end(tmp_path: Path, case: str) -> None:
    script = 'mount -t tmpfs -o size=3m none "$1" && exec "$2" -c "$3" "$1" "$4"'
    done = subprocess.run(
        [*MOUNT, script, "sh", str(tmp_path), sys.executable, PROGRAM, case],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
