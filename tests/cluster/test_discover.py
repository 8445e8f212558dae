"""What a real server's nodes are taken for, profile by profile."""

import json
from pathlib import Path

import pytest

from gpufabric._frozen import thaw
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.config import Settings

pytestmark = pytest.mark.cluster

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "kubernetes" / "profiles.json").read_text()
)
_FACTS = ("nics", "way", "tier", "near", "topology", "no_fabric", "devices", "devices_free")
_ARCH = "kubernetes.io/arch"


@pytest.fixture
def discovered(own_cluster, namespace):
    """Discovers as administrator, or as the user of another kubeconfig."""

    def read(kubeconfig=None):
        backend = Kubernetes(
            kubeconfig=str(kubeconfig or own_cluster.kubeconfig),
            namespace=namespace,
            settings=Settings(trust_env=False),
        )
        try:
            return backend.discover()
        finally:
            backend.close()

    return read


def _seen(site, pool):
    fact = thaw(site.facts["pools"][pool.name])
    seen = {
        "platform": pool.platform,
        "instance_type": pool.instance_type,
        "accelerator": pool.accelerator and str(pool.accelerator),
        "fabric": pool.interconnect and pool.interconnect.kind.value,
        "fabric_name": pool.interconnect and pool.interconnect.name,
        "selector": {name: value for name, value in pool.labels.items() if name != _ARCH},
        **{name: fact[name] for name in _FACTS if name in fact},
    }
    return json.loads(json.dumps(seen))


@pytest.mark.parametrize("profile", sorted(GOLDEN))
def test_a_dressed_node_is_known_by_its_marks(profile, own_cluster, discovered):
    own_cluster.dress(profile, "node-1")
    site = discovered()
    expected = {**GOLDEN[profile], "selector": dict(GOLDEN[profile]["selector"])}
    expected["selector"].pop(_ARCH, None)
    seen = [_seen(site, pool) for pool in site.pools]
    assert expected in seen
    assert Site.from_yaml(site.to_yaml()) == site
