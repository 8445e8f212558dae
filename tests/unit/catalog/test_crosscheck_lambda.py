"""The Lambda file against a client that a third party generates from Lambda's own OpenAPI document.

Needs the `crosscheck` group: `pip install --group crosscheck`. The client's sources are read as
text, never imported. Every difference is listed here with its reason; none is silent.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from gpufabric._frozen import thaw
from gpufabric.catalog import Catalog

SPEC = importlib.util.find_spec("lambda_ai_cloud_api_client")
pytestmark = pytest.mark.skipif(
    SPEC is None,
    reason="lambda-ai-cloud-api-client is not installed (group crosscheck): the API is not here",
)
ROOT = Path(next(iter(SPEC.submodule_search_locations or []), "none")) if SPEC else Path("none")
CLOUD = Catalog.shipped().cloud("lambda")
NOT_AN_ENDPOINT = {"Authorization": "the header of every request"}


def assigned(path: str, cls: str) -> dict[str, ast.AnnAssign | ast.Assign]:
    """What a class of one of the client's files sets or declares, by name."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    named: dict[str, ast.AnnAssign | ast.Assign] = {}
    for node in body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign | ast.Assign):
            named[target.id] = node
    return named


def endpoints() -> set[str]:
    """`GET /instances` and the like: every call that the client has."""
    found: set[str] = set()
    for path in (ROOT / "api").glob("*/*.py"):
        text = path.read_text(encoding="utf-8")
        method = re.search(r'"method": "(\w+)"', text)
        url = re.search(r'"url": f?"/api/v1([^"]*)"', text)
        if method and url:
            found.add(f"{method[1].upper()} {url[1]}")
    return found


def test_regions_are_those_of_the_api():
    codes = assigned("models/public_region_code.py", "PublicRegionCode")
    theirs = {ast.literal_eval(node.value) for node in codes.values() if node.value is not None}
    assert set(CLOUD.row.regions) == theirs


def test_the_body_of_a_launch_has_the_fields_that_must_be_there():
    declared = assigned("models/instance_launch_request.py", "InstanceLaunchRequest")
    required = {name for name, node in declared.items() if node.value is None}
    steps = [step for row in CLOUD.rows("vm") for step in row.steps]
    launch = next(step for step in steps if step.api.endswith("launch"))
    assert set(thaw(launch.params)) == required
    assert "quantity" not in declared, "one launch is one instance"


def test_every_call_that_a_row_names_is_one_of_the_api():
    named = {
        step.api.removeprefix("lambda:")
        for row in CLOUD.rows("vm")
        for step in row.steps
        if step.api.startswith("lambda:")
    }
    assert named - endpoints() == set(NOT_AN_ENDPOINT)


def test_the_api_still_makes_no_cluster():
    assert not [call for call in endpoints() if "cluster" in call], (
        "Lambda has cluster calls now: the 1-Click Cluster rows say that no API makes one"
    )
