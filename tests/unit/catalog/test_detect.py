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
        ({}, "ocid1.instance.oc1.iad.a", "oke"),
        ({}, "oci://ocid1.instance.oc1.iad.a", "oke"),
        ({"oci.oraclecloud.com/fault-domain": "FAULT-DOMAIN-2"}, "", "oke"),
        ({"nebius.com/gpu-name": "H100"}, "", "nebius-mk8s"),
        ({}, "nebius://computeinstance-1", "nebius-mk8s"),
        ({"kubernetes.azure.com/cluster": "c"}, "", "aks"),
        ({}, "azure:///subscriptions/1/virtualMachines/2", "aks"),
        ({"karpenter.sh/nodepool": "gpu"}, "aws:///us-east-1a/i-1", "eks"),
        ({"node.coreweave.cloud/class": "gpu"}, "", "cks"),
        ({"crusoe.ai/ib.partition.id": "p"}, "", "crusoe-cmk"),
    ],
)
def test_a_node_is_of_the_platform_whose_marks_it_bears(labels, provider_id, platform):
    found = platform_of(CATALOG, labels=labels, provider_id=provider_id)
    assert found is not None
    assert found[1].name == platform


@pytest.mark.parametrize(
    ("provider_id", "platform"),
    [("ocid1.instance.oc1.iad.a", "oke"), ("aws:///a/i-1", "eks"), ("azure:///s", "aks")],
)
def test_the_network_operators_label_does_not_hide_whose_the_node_is(provider_id, platform):
    labels = {"feature.node.kubernetes.io/pci-15b3.present": "true"}
    found = platform_of(CATALOG, labels=labels, provider_id=provider_id)
    assert found is not None
    assert found[1].name == platform


def test_a_mark_that_must_not_be_there_holds():
    detect = Detect(labels={"a": ""}, without_labels={"planes": "4|8"})
    assert fits(detect, {"a": "1", "planes": "1"}, "", {}) > 0
    assert fits(detect, {"a": "1"}, "", {}) > 0
    assert fits(detect, {"a": "1", "planes": "8"}, "", {}) == 0


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
