"""What all tests share."""

import os
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("gpufabric.testing")  # before any test imports a part of it

# The `python3` of jobs is the one that made the environment of the tests, with nothing installed.
# The machine's own may be another, or a shim that takes eight times as long to start (pyenv).
PYTHON = Path(sys._base_executable)  # type: ignore[attr-defined]
os.environ["PATH"] = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
