"""The fixtures of a real cluster, for every test in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # gfcluster is a tool beside the tests, no package

from gfcluster.fixture import cluster, limited_user, namespace, own_cluster

__all__ = ["cluster", "limited_user", "namespace", "own_cluster"]
