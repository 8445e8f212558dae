"""Starts a local gang: the folder under another name, the supervisor, what to run, its answer."""

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from gpufabric.backends import _supervisor as supervisor
from gpufabric.backends._local_job import BOOT, SCHEMA, SPEC, STOP_SLACK_S, JobFolder
from gpufabric.config import environment
from gpufabric.errors import BackendError, ConfigError, Problem, Remedy, SpecError, TransientError
from gpufabric.task import Task

__all__ = ["Filler", "inherited", "secret_values", "start"]

START_TIMEOUT_S = 120.0  # unpacking the work folder on every node included

Filler = Callable[[Path], dict[str, object]]
"""Puts files into a new folder, and gives what they add to the spec."""


def inherited(*, trust_env: bool) -> dict[str, str]:
    """The caller's environment, without what belongs to a gang that the caller is part of."""
    seen = environment(trust_env=trust_env)
    return {name: value for name, value in seen.items() if not name.startswith("GPUFABRIC_")}


def secret_values(task: Task) -> dict[str, str]:
    """The values of the task's secrets. Raises `SpecError` for those that have none."""
    missing = [name for name, secret in task.secrets.items() if secret.value is None]
    if missing:
        raise SpecError(
            [Problem(path=f"secrets.{name}", message="has no value yet") for name in missing]
        )
    return {name: cast("str", secret.value) for name, secret in task.secrets.items()}


def start(
    folder: JobFolder,
    spec: dict[str, object],
    runtime: dict[str, object],
    fill: Filler,
    *,
    timeout_s: float | None = None,
) -> None:
    """Makes the folder and starts the gang: all nodes run, or nothing is left.

    `spec` is kept on disk; `runtime` (secrets, the caller's environment) goes to the supervisor
    alone. `timeout_s` is the plan's own limit. Raises `BackendError`.
    """
    new = Path(tempfile.mkdtemp(prefix=f".new-{folder.name}.", dir=folder.root))
    process: subprocess.Popen[bytes] | None = None
    try:
        filled = fill(new)
        filled["schema"] = SCHEMA
        spec = {**spec, **filled}
        (new / SPEC).write_text(json.dumps(spec), encoding="utf-8")
        os.mkfifo(new / "control", 0o600)
        process = _run_supervisor(new)
        process.wait()  # the starter: it ends as soon as it has detached
        limit_s = START_TIMEOUT_S if timeout_s is None else timeout_s
        until = time.monotonic() + limit_s
        _expect_lock(folder, _read_line(folder, process, until, limit_s))
        os.rename(new, folder.path)  # noqa: PTH104  # atomic: from here there is a job
        _converse(process, {**spec, **runtime})
        _expect_ok(folder, _answer(_read_line(folder, process, until, limit_s)))
    except BaseException:
        if process is not None:
            _give_up(folder, process)
            folder.wait_unsupervised(STOP_SLACK_S)
        left = folder.remove()
        exc = sys.exc_info()[1]
        if left and isinstance(exc, BackendError):
            exc.leftovers = left
        raise
    finally:
        if process is not None:
            _hang_up(process)


def _run_supervisor(new: Path) -> "subprocess.Popen[bytes]":
    if not sys.executable:
        raise ConfigError("local: this process does not say which Python runs it")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BOOT, str(Path(supervisor.__file__).parent), str(new)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={},
    )


def _give_up(folder: JobFolder, process: "subprocess.Popen[bytes]") -> None:
    """Tells the supervisor to give up, and waits until it has."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(TransientError):
        while _read_line(folder, process, time.monotonic() + STOP_SLACK_S):
            pass


def _hang_up(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _read_line(
    folder: JobFolder,
    process: "subprocess.Popen[bytes]",
    until: float,
    limit_s: float = START_TIMEOUT_S,
) -> bytes:
    pipe = cast("IO[bytes]", process.stdout)
    got = b""
    while not got.endswith(b"\n"):
        ready = select.poll()  # not select(2): the caller may have more than 1,024 open files
        ready.register(pipe, select.POLLIN)
        if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TransientError(
                f"not all nodes were ready within {limit_s:g} s",
                backend=folder.backend, operation="launch",
            )  # fmt: skip
        part = os.read(pipe.fileno(), 65536)
        if not part:
            break
        got += part
    return got.rstrip(b"\n")


def _converse(process: "subprocess.Popen[bytes]", spec: dict[str, object]) -> None:
    pipe = cast("IO[bytes]", process.stdin)
    body = json.dumps(spec).encode("ascii")
    with contextlib.suppress(BrokenPipeError):  # then the answer says why, or there is none
        pipe.write(struct.pack("<Q", len(body)) + body)
        pipe.flush()


def _answer(line: bytes) -> dict[str, object]:
    if not line:
        return {"error": "the supervisor was killed", "stage": "start"}
    return cast("dict[str, object]", json.loads(line))


def _expect_lock(folder: JobFolder, line: bytes) -> None:
    if line != b"locked":
        raise BackendError(
            "the supervisor did not start", backend=folder.backend, operation="launch"
        )


def _expect_ok(folder: JobFolder, answer: dict[str, object]) -> None:
    if "ok" in answer:
        return
    message = f"no node was left running: {answer['error']}"
    wrong = str(answer.get("stage", "")).startswith("cannot run")
    raise BackendError(
        message,
        backend=folder.backend,
        operation="launch",
        remedy=Remedy.FIX_REQUEST if wrong else Remedy.FIX_SETUP,
    )
