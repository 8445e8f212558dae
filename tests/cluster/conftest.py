"""The fixtures of a real cluster, for every test in this folder."""

import sys
from pathlib import Path

# Tools beside the tests, no packages.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "kubernetes")]

from gfcluster.fixture import cluster, limited_user, namespace, own_cluster  # noqa: E402  # after the path
from given import backend, make, proxy  # noqa: E402  # after the path

__all__ = ["backend", "cluster", "limited_user", "make", "namespace", "own_cluster", "proxy"]


def pytest_collection_modifyitems(items):
    """Those that need the cluster alone come last, so that the others need not wait for them."""
    items.sort(key=lambda item: "own_cluster" in getattr(item, "fixturenames", ()))
