"""Nodes as clouds dress them, and a site of them."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tools beside the tests, no packages

from dressednodes import node
from tlsstub import certificates, kubeconfig, open_api, plugin, stub

from gpufabric._frozen import freeze
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes.discover import pools_of, usage_of
from gpufabric.catalog.index import Catalog

__all__ = ["certificates", "kubeconfig", "open_api", "plugin", "stub"]

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}


@pytest.fixture(params=SHELLS)
def shell(request):
    """A POSIX shell of those that images have."""
    command = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not here")
    return [str(shutil.which(command[0])), *command[1:]]


@pytest.fixture(scope="session")
def catalog():
    return Catalog.shipped()


@pytest.fixture(scope="session")
def dressed():
    """Makes a node of a profile of the test cluster; `words` fill its labels."""
    return node


@pytest.fixture(scope="session")
def site_of(catalog):
    def make(*nodes, pods=(), controllers=("jobset",), **facts):
        custom = ("networks.networking.gke.io",)
        pools, by_pool = pools_of(
            nodes, usage_of(pods), catalog=catalog, context="prod", custom_resources=custom
        )
        every = {
            "context": "prod", "namespace": "ml", "quotas": [], "queues": [], "pod_security": None,
            "controllers": dict.fromkeys(controllers, "v1alpha2"), "pools": by_pool, **facts,
        }  # fmt: skip
        return Site(backend="kubernetes", pools=pools, facts=freeze(every))

    return make
