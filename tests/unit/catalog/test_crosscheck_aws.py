"""The AWS file against EC2's own DescribeInstanceTypes answers, which moto carries (Apache-2.0).

Needs the `crosscheck` group: `pip install --group crosscheck`. Every difference is listed here with
its reason; none is silent.
"""

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from gpufabric.catalog import Catalog
from gpufabric.net._layout import indexes

SPEC = importlib.util.find_spec("moto")
pytestmark = pytest.mark.skipif(
    SPEC is None, reason="moto is not installed (group crosscheck): EC2's own data is not here"
)
FOLDERS = (SPEC.submodule_search_locations or []) if SPEC else []
RESOURCES = Path(next(iter(FOLDERS), "moto")) / "ec2" / "resources"
CLOUD = Catalog.shipped().cloud("aws")

NOT_DESCRIBED = {
    "p6e-gb200.36xlarge": "sold in a Local Zone by Capacity Block; absent from the stored data",
    "p6e-gb300.36xlarge": "the same",
}
MEMORY_DIFFERS = {
    "trn2.3xlarge": "EC2 gives 512 GiB a device; the product page says 96 GB a chip",
    "trn2.48xlarge": "the same",
}
NOT_COUNTED = {"trn2u.48xlarge": "EC2's answer has no device list for it"}
NOT_LISTED = {
    "g5g": "T4G for graphics, no EFA",
    "g6f": "a part of one L4, no EFA",
    "gr6f": "a part of one L4, no EFA",
    "inf1": "for inference",
    "inf2": "for inference, no EFA",
}


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    raw = json.loads(gzip.decompress((RESOURCES / "instance_types.json.gz").read_bytes()))
    return raw if isinstance(raw, dict) else {one["InstanceType"]: one for one in raw}


def types() -> list[str]:
    return [row.name for row in CLOUD.types() if row.name not in NOT_DESCRIBED]


def accelerators(one: dict[str, Any]) -> tuple[int, float]:
    devices = one.get("GpuInfo", {}).get("Gpus") or one["NeuronInfo"]["NeuronDevices"]
    return sum(d["Count"] for d in devices), devices[0]["MemoryInfo"]["SizeInMiB"] / 1024


@pytest.mark.parametrize("name", types())
def test_a_type_has_what_ec2_says(described, name):
    row, one = CLOUD.find_type(name), described[name]
    assert row is not None
    assert row.vcpus == one["VCpuInfo"]["DefaultVCpus"]
    assert row.memory_gib == one["MemoryInfo"]["SizeInMiB"] / 1024
    if name in NOT_COUNTED:
        assert "NeuronInfo" not in one
        return
    count, memory = accelerators(one)
    assert row.gpu.count == count
    if name not in MEMORY_DIFFERS:
        assert row.gpu.memory_gib_each == pytest.approx(memory, rel=0.02)


@pytest.mark.parametrize("name", types())
def test_a_type_has_as_many_efa_interfaces_as_ec2_allows(described, name):
    row, network = CLOUD.find_type(name), described[name]["NetworkInfo"]
    assert row is not None
    if row.interconnect == "ethernet":
        assert not network.get("EfaSupported", False)
    else:
        assert row.nics.count == network["EfaInfo"]["MaximumEfaInterfaces"]


@pytest.mark.parametrize("name", types())
def test_every_interface_of_a_layout_is_allowed_by_its_card(described, name):
    layout = CLOUD.nic_layout(name, "vm")
    assert layout is not None
    cards = {c["NetworkCardIndex"]: c for c in described[name]["NetworkInfo"]["NetworkCards"]}
    used: dict[int, list[tuple[int | None, str]]] = {}
    for slot in layout.slots:
        for index in indexes(slot):
            used.setdefault(index, []).append((slot.device, slot.kind))
    for index, devices in used.items():
        card = cards[index]
        assert len(devices) <= card["MaximumNetworkInterfaces"], index
        assert len({device for device, _ in devices}) == len(devices), index
        assert sum(kind.startswith("efa") for _, kind in devices) <= 1, index
        for device, kind in devices:
            assert device is not None
            assert device < card["MaximumNetworkInterfaces"], index
            allowed = card.get("InterfaceTypes")
            assert allowed is None or kind in allowed, (index, kind)
    assert used[0][0] == (0, "interface"), "the primary interface"


@pytest.mark.parametrize("name", types())
def test_regions_are_those_that_ec2_offers(name):
    row = CLOUD.find_type(name)
    assert row is not None
    offered = set()
    for path in (RESOURCES / "instance_type_offerings" / "region").glob("*.json.gz"):
        listed = json.loads(gzip.decompress(path.read_bytes()))
        if any(one["InstanceType"] == name for one in listed):
            offered.add(path.name.removesuffix(".json.gz"))
    assert set(row.regions) == offered


def test_every_type_with_accelerators_is_in_the_catalog(described):
    missing = [
        name
        for name, one in described.items()
        if (one.get("GpuInfo") or one.get("NeuronInfo"))
        and CLOUD.find_type(name) is None
        and name.split(".")[0] not in NOT_LISTED
    ]
    assert not missing
