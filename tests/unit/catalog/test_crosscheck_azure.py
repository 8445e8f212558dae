"""The Azure file against Azure's own SDK, which is generated from its REST specifications.

Needs the `crosscheck` group: `pip install --group crosscheck`. The SDK's sources are read as text,
never imported. Every difference is listed here with its reason; none is silent.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from gpufabric._frozen import thaw
from gpufabric.catalog import Catalog

PACKAGES = ("compute", "network", "containerservice")


def _folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(f"azure.mgmt.{package}")
    except ModuleNotFoundError:
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


ROOTS = {package: _folder(package) for package in PACKAGES}
pytestmark = pytest.mark.skipif(
    None in ROOTS.values(),
    reason="azure-mgmt-compute, -network, -containerservice are not installed (group crosscheck)",
)
CLOUD = Catalog.shipped().cloud("azure")
CALL = re.compile(r"azure-mgmt-(\w+):(\w+)(?:\.(\w+))?")
NOT_A_FIELD = {"filter": "an argument of ResourceSkusOperations.list"}


@cache
def text(package: str, part: str) -> str:
    """The sources of one part (`models`, `operations`) of a package."""
    root = ROOTS[package]
    assert root is not None
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted((root / part).glob("*.py")))


def methods(package: str, cls: str) -> set[str]:
    """The calls of one class of operations."""
    found = re.search(
        rf"^class {cls}\b.*?(?=^class |\Z)", text(package, "operations"), re.MULTILINE | re.DOTALL
    )
    return set(re.findall(r"^    def ([a-z]\w*)\(", found[0], re.MULTILINE)) if found else set()


def calls() -> Iterator[tuple[str, str, str, Mapping[str, object]]]:
    """Package, class, call and parameters of every step that names the SDK."""
    for row in CLOUD.rows("vm"):
        for step in row.steps:
            named = CALL.match(step.api)
            if named:
                yield named[1], named[2], named[3] or "", thaw(step.params)


def keys(params: object) -> Iterator[str]:
    """Every name of a field in a request's body, dotted ones taken apart."""
    if isinstance(params, Mapping):
        for name, value in params.items():
            yield from name.split(".")
            yield from keys(value)


def test_steps_name_the_sdk():
    assert len(list(calls())) > 10


def test_every_call_that_a_step_names_is_one_of_the_sdk():
    wrong = [
        f"{package}:{cls}.{call}"
        for package, cls, call, _ in calls()
        if call and call not in methods(package, cls)
    ]
    assert not wrong


def test_every_field_of_a_request_is_one_of_the_models():
    unknown = {
        name
        for package, _, _, params in calls()
        for name in keys(params)
        if not re.search(rf"\b{name}: ", text(package, "models"))
    }
    assert unknown == set(NOT_A_FIELD)


@pytest.mark.parametrize(
    ("package", "enum", "value"),
    [
        ("network", "InterconnectGroupScope", "InfiniBand"),
        ("network", "SubgroupProfileScope", "VerticalConnect"),
        ("compute", "DiskControllerTypes", "NVMe"),
        ("compute", "OrchestrationMode", "Flexible"),
        ("containerservice", "DRANETMode", "Managed"),
        ("containerservice", "GPUDriver", "None"),
    ],
)
def test_values_that_rows_name_are_values_of_the_sdk(package: str, enum: str, value: str):
    found = re.search(
        rf"^class {enum}\b.*?(?=^class |\Z)", text(package, "models"), re.MULTILINE | re.DOTALL
    )
    assert found, enum
    assert re.search(rf'= "{value}"', found[0])


def test_the_placement_is_a_field_of_a_scale_set():
    placed = next(iter(CLOUD.rows("placement")))
    assert set(placed.params) == {"single_placement_group"}
    assert "single_placement_group: " in text("compute", "models")
