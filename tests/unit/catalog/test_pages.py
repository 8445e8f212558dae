"""The page of each cloud is what the catalog makes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_cloud_pages_are_not_stale():
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "_gen" / "clouds.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
