"""A node's platform is told by its own marks."""

import pytest

from gpufabric.catalog import Catalog
from gpufabric.catalog.detect import fits, platform_of
from gpufabric.catalog.rows import Detect

CATALOG = Catalog.shipped()


@pytest.mark.parametrize(
    ("labels", "provider_id", "platform"),
    [
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "aws:///us-east-1a/i-1", "eks"),
        (
            {"sagemaker.amazonaws.com/node-health-status": "Schedulable"},
            "aws:///usw2-az1/sagemaker/cluster/x",
            "hyperpod-eks",
        ),
        ({"cloud.google.com/gke-nodepool": "gpu"}, "gce://project/zone/node", "gke"),
        ({"feature.node.kubernetes.io/pci-15b3.present": "true"}, "", "onprem-k8s"),
    ],
)
def test_a_node_is_of_the_platform_whose_marks_it_bears(labels, provider_id, platform):
    found = platform_of(CATALOG, labels=labels, provider_id=provider_id)
    assert found is not None
    assert found[1].name == platform


def test_a_node_without_marks_is_of_no_platform():
    assert platform_of(CATALOG, labels={"kubernetes.io/os": "linux"}) is None


def test_every_mark_that_is_named_must_hold():
    detect = Detect(labels={"a": "x|y"}, provider_id_prefix="p:", allocatable={"n": "8", "m": ""})
    node = ({"a": "y"}, "p:1", {"n": "8", "m": "1"})
    assert fits(detect, *node) > 0
    assert fits(detect, {"a": "z"}, *node[1:]) == 0
    assert fits(detect, {}, *node[1:]) == 0
    assert fits(detect, node[0], "q:1", node[2]) == 0
    assert fits(detect, *node[:2], {"n": "4", "m": "1"}) == 0
    assert fits(detect, *node[:2], {"n": "8", "m": "0"}) == 0


def test_a_row_that_names_no_mark_fits_nothing():
    assert fits(Detect(), {"a": "b"}, "x", {}) == 0
