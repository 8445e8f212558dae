"""One suite, two servers: the fixtures of a real cluster, or of a fake one in this process.

With GPUFABRIC_TEST_CLUSTER=required or GPUFABRIC_TEST_KUBECONFIG the tests of this folder run
on a real cluster (`make test-cluster`), else on the fake (`make test`). What only a real one can
answer is marked `cluster`.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "cluster")]  # tools beside tests, no packages

import pytest  # noqa: E402  # after the path

REAL = os.environ.get("GPUFABRIC_TEST_CLUSTER") == "required" or bool(
    os.environ.get("GPUFABRIC_TEST_KUBECONFIG")
)

if REAL:
    from gfcluster.fixture import cluster, limited_user, namespace, own_cluster
else:
    from kubefake.fixture import cluster, limited_user, namespace, own_cluster

from given import backend, make, proxy, queue  # noqa: E402  # after the path

__all__ = [
    "backend",
    "cluster",
    "limited_user",
    "make",
    "namespace",
    "own_cluster",
    "proxy",
    "queue",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """On a real cluster every test here is one of the cluster's; on the fake some are left out."""
    beside = {path for path in {item.path for item in items} if FOLDER not in path.parents}
    for item in items:
        if item.path in beside:
            continue
        if REAL:
            item.add_marker(pytest.mark.cluster)
        elif item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.skip(reason="only a real cluster can answer it"))
