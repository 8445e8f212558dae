"""Nodes as clouds dress them, and a site of them."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tlsstub is a tool beside the tests, no package

from tlsstub import certificates, kubeconfig, open_api, plugin, stub

from gpufabric._frozen import freeze
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes.discover import pools_of, usage_of
from gpufabric.catalog.index import Catalog

__all__ = ["certificates", "kubeconfig", "open_api", "plugin", "stub"]

_PROFILES = Path(__file__).parents[3] / "cluster" / "profiles.json"


@pytest.fixture(scope="session")
def catalog():
    return Catalog.shipped()


@pytest.fixture(scope="session")
def dressed():
    """Makes a node of a profile of the test cluster; `words` fill its labels."""
    profiles = json.loads(_PROFILES.read_text())["profiles"]

    def make(profile, name="n1", *, taints=(), **words):
        body = profiles[profile]
        given = {"node": name, "index": 1, **body.get("words", {}), **words}

        def fill(text):
            for word, value in given.items():
                text = text.replace("{" + word + "}", str(value))
            return text

        return {
            "metadata": {
                "name": name,
                "labels": {key: fill(value) for key, value in body.get("labels", {}).items()},
            },
            "spec": {
                "providerID": fill(body.get("provider_id", "")),
                "taints": [*body.get("taints", []), *taints],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "192", "memory": "2Ti", **body.get("capacity", {})},
            },
        }

    return make


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
