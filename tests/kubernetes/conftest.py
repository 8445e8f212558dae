"""One suite, two servers: the fixtures of a real cluster, or of a fake one in this process.

With GPUFABRIC_TEST_CLUSTER=required or GPUFABRIC_TEST_KUBECONFIG the tests of this folder run
on a real cluster (`make test-cluster`), else on the fake (`make test`). What only a real one can
answer is marked `cluster`.
"""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "cluster")]  # tools, no packages

import pytest  # noqa: E402  # after the path

REAL = os.environ.get("GPUFABRIC_TEST_CLUSTER") == "required" or bool(
    os.environ.get("GPUFABRIC_TEST_KUBECONFIG")
)

if REAL:
    from gfcluster.fixture import cluster, limited_user, namespace, own_cluster
else:

    @pytest.fixture(scope="session")
    def cluster():
        pytest.skip("the fake API server does not live yet")

    @pytest.fixture
    def own_cluster(cluster):
        return cluster

    @pytest.fixture
    def namespace(cluster):
        raise NotImplementedError

    @pytest.fixture
    def limited_user(cluster, namespace):
        raise NotImplementedError


from given import backend, make  # noqa: E402  # after the path

__all__ = ["backend", "cluster", "limited_user", "make", "namespace", "own_cluster"]
