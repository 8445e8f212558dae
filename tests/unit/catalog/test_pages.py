"""The pages of clouds and of Kubernetes platforms are what the catalog makes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("program", ["clouds.py", "kubernetes.py"])
def test_pages_are_not_stale(program):
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "_gen" / program), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
