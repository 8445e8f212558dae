"""A node of a gang as its start script sees it: a shell, a folder, and the programs of an image."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from gpufabric.backends.kubernetes._code import packed
from gpufabric.backends.kubernetes._script import start_script
from gpufabric.task import Task

PLAIN = ("cat", "ls", "rm", "mv", "sleep", "env")


def addresses(count: int) -> list[str]:
    """Of this machine, below those of the fake cluster's pods; hardly ever another test's."""
    block = f"127.{1 + secrets.randbelow(60)}.{secrets.randbelow(256)}"
    return [f"{block}.{rank + 1}" for rank in range(count)]


class Node:
    """A folder in the place of /gpufabric, and a PATH with nothing but what is named."""

    def __init__(self, root: Path, shell: list[str]):
        self.root, self.shell = root, shell
        for name in ("work", "code", "fetched", "bin"):
            (root / name).mkdir()
        self.code_env = ""
        self.process = None

    def bring(self, task: Task) -> None:
        """Lays the packed code where the kubelet would lay the Secret."""
        with packed(task, limit_bytes=1e8) as code:
            self.code_env = code.manifest
            for part in code.parts:
                (self.root / "code" / part.key).write_bytes(code.read(part.key))

    def tools(self, *names: str) -> None:
        for name in (*PLAIN, *names):
            found = sys.executable if name == "python3" else shutil.which(name)
            (self.root / "bin" / name).symlink_to(str(found))

    def script(self, *, num_nodes: int = 1, code: bool = True, **fields) -> str:
        text = start_script(
            host="gang-n-0", subdomain="gang", num_nodes=num_nodes, variables=[], source=None,
            envs={}, code=code, **fields,
        )  # fmt: skip
        return text.replace("/gpufabric/", f"{self.root}/")

    def start(self, *words: str, setup: str = "", script: str | None = None, env=(), **fields):
        path = {"PATH": str(self.root / "bin"), "GPUFABRIC_POD_IP": "10.0.0.1", **dict(env)}
        if self.code_env:
            path["GPUFABRIC_CODE"] = self.code_env
        self.process = subprocess.Popen(
            [*self.shell, "-c", script or self.script(), "gpufabric", setup, *words],
            env=path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **fields,
        )  # fmt: skip
        return self.process

    def end(self) -> None:
        """As a container ends: with its process 1 all others."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()

    def run(self, *words: str, **fields) -> tuple[int, str, str]:
        process = self.start(*words, **fields)
        out, err = process.communicate(timeout=60)
        self.process = None
        return process.returncode, out, err
