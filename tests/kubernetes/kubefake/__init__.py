"""An in-process fake of a Kubernetes cluster: strict, with state, and pods that really run.

See `kubefake.cluster` for how it is used, and tests/kubernetes/test_server.py for the steps on
which it and a real server must agree.
"""

from .cluster import FakeCluster, node
from .logs import Synthetic

__all__ = ["FakeCluster", "Synthetic", "node"]
