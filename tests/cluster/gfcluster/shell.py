"""Running programs, waiting for conditions, and failing with words that help."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class ClusterError(Exception):
    """Something about the test cluster that a person must read."""


def say(text: str) -> None:
    """Tell what is being done, on standard error: standard output is for answers."""
    sys.stderr.write(f"cluster: {text}\n")
    sys.stderr.flush()


def answer(text: str) -> None:
    """Give the answer of a command, on standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    timeout_s: float = 120,
) -> str:
    """Run a program to its end; its standard output, or a ClusterError with what it said."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as exc:
        raise ClusterError(f"{words[0]} is not installed") from exc
    except subprocess.TimeoutExpired as exc:
        raise ClusterError(f"{' '.join(words)} did not end within {timeout_s:g} s") from exc
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ClusterError(f"{' '.join(words)} failed ({done.returncode}): {said}")
    return done.stdout


def wait_until(
    what: str,
    condition: Callable[[], T | None],
    *,
    timeout_s: float,
    diagnose: Callable[[], str] = str,
) -> T:
    """The condition's first true value; asked again and again until the deadline, then an error."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.02
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise ClusterError(f"{what}: not so within {timeout_s:g} s\n{diagnose()}".rstrip())
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.25)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"({path} does not exist)"
