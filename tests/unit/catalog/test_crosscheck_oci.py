"""The Oracle file against Oracle's own Python SDK: its calls, request bodies and enumerations.

Needs the `crosscheck` group: `pip install --group crosscheck`. No call is made; the SDK's classes
are only looked at. Every difference is listed here with its reason; none is silent.
"""

import importlib
import importlib.util
import re
from types import ModuleType
from typing import Any

import pytest

from gpufabric._frozen import thaw
from gpufabric.catalog import Catalog
from gpufabric.catalog.rows import VmRow, VmStep

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("oci") is None,
    reason="oci is not installed (group crosscheck): the SDK is not here to compare with",
)
CLOUD = Catalog.shipped().cloud("oci")
CLIENTS = {
    "ComputeClient": "oci.core",
    "ComputeManagementClient": "oci.core",
    "VirtualNetworkClient": "oci.core",
    "LimitsClient": "oci.limits",
}
CALL = re.compile(r"\b(\w+Client)\.([a-z]\w+)")
MODEL = re.compile(r"\b[A-Z]\w+(?:Details|Config)\b")
BODIES = {
    "create_cluster_network": "CreateClusterNetworkDetails",
    "create_compute_cluster": "CreateComputeClusterDetails",
    "create_compute_gpu_memory_cluster": "CreateComputeGpuMemoryClusterDetails",
    "create_compute_capacity_report": "CreateComputeCapacityReportDetails",
    "launch_instance": "LaunchInstanceDetails",
    "create_subnet": "CreateSubnetDetails",
}
NO_MODELS = {
    "GpuMemoryClusterScaleConfig": "the row says itself that it does not exist",
    "SriovNetworkPoolConfig": "an object of Kubernetes",
}


def part_of(name: str) -> Any:
    """A module of the SDK. It is imported late: it is large, and often absent."""
    return importlib.import_module(name)


@pytest.fixture
def models() -> ModuleType:
    module: ModuleType = part_of("oci.core.models")
    return module


def fields_of(models: Any, name: str) -> set[str]:
    return set(getattr(models, name)().swagger_types)


def constants_of(models: Any, name: str, prefix: str) -> set[str]:
    cls = getattr(models, name)
    return {getattr(cls, key) for key in vars(cls) if key.startswith(prefix)}


def every_text() -> str:
    tables = ("vm", "placement", "discovery", "interconnect", "pitfall")
    return "\n".join(str(row) for table in tables for row in CLOUD.rows(table))


def steps() -> list[VmStep]:
    rows: tuple[VmRow, ...] = CLOUD.rows("vm")
    return [step for row in rows for step in row.steps]


def test_every_call_that_is_named_is_a_method_of_the_sdk():
    called = {(c, m) for c, m in CALL.findall(every_text()) if c in CLIENTS}
    assert len(called) > 8
    missing = [
        f"{client}.{method}"
        for client, method in called
        if not hasattr(getattr(part_of(CLIENTS[client]), client), method)
    ]
    assert not missing


def test_every_model_that_is_named_exists(models: ModuleType):
    named = {name for name in MODEL.findall(every_text()) if name not in NO_MODELS}
    assert len(named) > 10
    assert not [name for name in named if not hasattr(models, name)]


def test_what_is_said_not_to_exist_does_not(models: ModuleType):
    assert not [name for name in NO_MODELS if hasattr(models, name)]


def test_the_fields_of_each_request_are_fields_of_its_model(models: ModuleType):
    checked = set()
    for step in steps():
        body = BODIES.get(step.api.rpartition(".")[2])
        if body is not None:
            checked.add(body)
            assert set(step.params) <= fields_of(models, body), step.what
    assert checked == set(BODIES.values())


def test_the_agent_config_has_the_fields_and_states_of_the_model(models: ModuleType):
    found = [thaw(s.params["agent_config"]) for s in steps() if "agent_config" in s.params]
    states = constants_of(models, "InstanceAgentPluginConfigDetails", "DESIRED_STATE_")
    assert found
    for config in found:
        assert set(config) <= fields_of(models, "LaunchInstanceAgentConfigDetails")
        for plugin in config["plugins_config"]:
            assert set(plugin) <= fields_of(models, "InstanceAgentPluginConfigDetails")
            assert plugin["desired_state"] in states


def test_the_placement_constraints_are_those_of_the_sdk(models: ModuleType):
    placement = CLOUD.placement("cluster-network")
    assert placement is not None
    ours = set(re.findall(r"[A-Z_]{6,}", str(placement.params["placement_constraint"])))
    cls = "ClusterNetworkPlacementConfigurationDetails"
    assert ours == constants_of(models, cls, "PLACEMENT_CONSTRAINT_")


def test_the_platform_types_are_those_of_the_sdk(models: ModuleType):
    theirs = constants_of(models, "LaunchInstancePlatformConfig", "TYPE_")
    named = {
        word
        for step in steps()
        for word in re.findall(r"\b[A-Z]+_[A-Z_]*BM[A-Z_]*\b", str(step.params))
    }
    assert named
    assert named <= theirs


def test_the_answers_of_the_capacity_report_are_those_of_the_sdk(models: ModuleType):
    step = next(s for s in steps() if s.api.endswith("create_compute_capacity_report"))
    ours = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", step.why)) - {"RDMA"}
    assert ours == constants_of(models, "CapacityReportShapeAvailability", "AVAILABILITY_STATUS_")
