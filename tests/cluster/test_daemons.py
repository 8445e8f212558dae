"""The cluster's own processes: when one has ended."""

import subprocess
import sys
from pathlib import Path

import pytest
from gfcluster import daemons
from gfcluster.shell import wait_until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="how a process stands is read from /proc"
)

# Its first thread ends, as of a killed program whose other threads are slower; the second goes on.
_HALF_ENDED = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_has_ended_when_its_last_thread_has():
    with subprocess.Popen([sys.executable, "-c", _HALF_ENDED], stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat")

        def half_ended() -> bool:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"

        wait_until("the first thread has ended", half_ended, timeout_s=30)
        assert daemons.started_at(process.pid) is not None
        process.communicate()
    assert daemons.started_at(process.pid) is None
