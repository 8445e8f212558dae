"""The Nebius file against the descriptors in Nebius' own SDK: services, calls, messages, fields.

Needs the `crosscheck` group: `pip install --group crosscheck`. Every difference is listed here.
"""

import importlib
import importlib.util
import re

import pytest

from gpufabric._frozen import thaw
from gpufabric.catalog import Catalog

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nebius") is None,
    reason="nebius is not installed (group crosscheck): Nebius' descriptors are not here",
)
CLOUD = Catalog.shipped().cloud("nebius")
PACKAGES = ("compute.v1", "iam.v1", "vpc.v1", "capacity.v1", "common.v1")
#: Calls that only a catalog row names in words, not by package.
NOT_IN_THE_SDK: dict[str, str] = {}


def found(name: str) -> object | None:
    for package in PACKAGES:
        module = importlib.import_module(f"nebius.api.nebius.{package}")
        if hasattr(module, name):
            return getattr(module, name)
    return None


def steps() -> str:
    rows = [row for name in CLOUD.type_names for row in CLOUD.vm_rows(name)]
    return "\n".join(
        f"{step.api} {thaw(step.params)}" for row in dict.fromkeys(rows) for step in row.steps
    )


def test_every_client_and_call_of_a_launch_is_in_the_sdk():
    named = re.findall(r"\b([A-Za-z]+ServiceClient)\.([a-z_]+)", steps())
    assert len(set(named)) > 5
    for client, call in set(named):
        assert hasattr(found(client), call), f"{client}.{call}"


def test_every_message_of_a_launch_is_in_the_sdk():
    named = set(re.findall(r"\b([A-Z][A-Za-z]+(?:Spec|Request|Metadata))\(", steps()))
    assert {"InstanceSpec", "GpuClusterSpec", "NetworkInterfaceSpec"} <= named
    missing = {name for name in named if found(name) is None} - set(NOT_IN_THE_SDK)
    assert not missing


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("GpuClusterSpec", ["infiniband_fabric"]),
        ("InstanceGpuClusterSpec", ["id"]),
        ("InstanceSpec", ["gpu_cluster", "nvl_instance_group_id", "network_interfaces",
                          "boot_disk", "resources", "cloud_init_user_data", "preemptible",
                          "recovery_policy", "service_account_id", "hostname", "local_disks"]),
        ("NetworkInterfaceSpec", ["name", "subnet_id", "ip_address", "public_ip_address"]),
        ("NVLInstanceGroupSpec", ["type", "size"]),
        ("ResourcesSpec", ["platform", "preset"]),
    ],
)  # fmt: skip
def test_the_fields_that_plans_name_are_those_of_the_message(message, fields):
    cls = found(message)
    assert [name for name in fields if not hasattr(cls, name)] == []


def test_the_placement_sets_a_field_of_the_gpu_cluster():
    placement = CLOUD.placement("gpu-cluster")
    assert placement is not None
    assert [name for name in placement.params if not hasattr(found("GpuClusterSpec"), name)] == []


def test_only_eight_network_interfaces_are_allowed_and_one_is_declared():
    for name in CLOUD.type_names:
        layout = CLOUD.nic_layout(name, "vm")
        declared = [s for s in layout.slots if s.attached_by == "request"] if layout else []
        assert len(declared) <= 8


def test_nvl_groups_are_of_the_racks_that_are_sold():
    kinds = {item.name for item in found("NVLInstanceGroupSpec").NVLInstanceGroupType}
    sold = {row.gpu.model for row in CLOUD.types() if row.nvlink_domain_gpus}
    assert all(any(model in kind for kind in kinds) for model in sold), kinds
