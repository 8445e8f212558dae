"""The Google Cloud file against Compute Engine's own description of its API (discovery document).

Needs the `crosscheck` group: `pip install --group crosscheck`; google-api-python-client carries the
document. The API describes no machine types, so what is compared is every request body, NIC kind
and method that the rows name. Every difference is listed here with its reason; none is silent.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufabric._frozen import thaw
from gpufabric.catalog import Catalog

SPEC = importlib.util.find_spec("googleapiclient")
pytestmark = pytest.mark.skipif(
    SPEC is None,
    reason="google-api-python-client is not installed (group crosscheck): its API is not here",
)
FOLDERS = (SPEC.submodule_search_locations or []) if SPEC else []
DOCUMENTS = Path(next(iter(FOLDERS), "none")) / "discovery_cache" / "documents"
CLOUD = Catalog.shipped().cloud("gcp")

RESERVATION_KEY = {
    "ours": "compute.googleapis.com/reservation-name",
    "theirs": "googleapis.com/reservation-name",
}
"""The document's text has the short key; Google's guides, GKE and dstack use the long one."""


@pytest.fixture(scope="module")
def compute() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DOCUMENTS / "compute.v1.json").read_text("utf-8"))
    return document


def requests() -> list[tuple[str, str, dict[str, Any]]]:
    """Every request that a row describes: where it stands, the API's method, its body."""
    found = [
        (f"vm {row.name}", step.api, thaw(step.params))
        for row in CLOUD.rows("vm")
        for step in row.steps
    ]
    found += [
        (f"placement {row.name}", row.api, thaw(row.params)) for row in CLOUD.rows("placement")
    ]
    return [
        (where, api.removeprefix("compute:"), body)
        for where, api, body in found
        if api.startswith("compute:")
    ]


def faults(
    document: dict[str, Any], schema: dict[str, Any], value: Any, path: str
) -> Iterator[str]:
    """What of a value the document does not describe."""
    if "$ref" in schema:
        schema = document["schemas"][schema["$ref"]]
    kind = schema.get("type")
    if kind == "array":
        for index, item in enumerate(value):
            yield from faults(document, schema["items"], item, f"{path}[{index}]")
    elif kind == "object":
        known = schema.get("properties", {})
        for key, item in value.items():
            if key in known:
                yield from faults(document, known[key], item, f"{path}.{key}")
            elif "additionalProperties" not in schema:
                yield f"{path}.{key}: unknown field"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    elif not isinstance(value, {"string": str, "integer": int, "boolean": bool}.get(kind, object)):
        yield f"{path}: {value!r} is no {kind}"


@pytest.mark.parametrize(("where", "api", "body"), requests())
def test_a_request_is_one_that_the_api_describes(compute, where, api, body):
    resource, method = api.split(".")
    described = compute["resources"][resource]["methods"][method]
    if "request" not in described:
        assert body == {}
        return
    assert list(faults(compute, described["request"], body, f"{where} {api}")) == []


def test_the_check_of_bodies_finds_what_is_wrong(compute):
    body = {"networkInterfaces": [{"nicType": "gVNIC", "nick": 1}], "scheduling": {"preempt": True}}
    found = list(faults(compute, {"$ref": "Instance"}, body, "x"))
    assert [fault.split(":")[0] for fault in found] == [
        "x.networkInterfaces[0].nicType",
        "x.networkInterfaces[0].nick",
        "x.scheduling.preempt",
    ]


def test_kinds_of_nics_are_the_words_of_the_api(compute):
    kinds = set(compute["schemas"]["NetworkInterface"]["properties"]["nicType"]["enum"])
    used = {slot.kind for row in CLOUD.rows("nic_layout") for slot in row.slots}
    assert used <= kinds
    assert kinds - used == {"UNSPECIFIED_NIC_TYPE", "VIRTIO_NET", "IRDMA"}, (
        "IRDMA is Falcon, for H4D machines without GPUs; VIRTIO_NET is slower than gVNIC"
    )


def test_markets_are_provisioning_models_or_reservations(compute):
    words = compute["schemas"]["Scheduling"]["properties"]["provisioningModel"]["enum"]
    model = {"on_demand": "STANDARD", "spot": "SPOT", "flex_start": "FLEX_START"}
    model |= dict.fromkeys(("calendar", "reserved"), "RESERVATION_BOUND")
    used = {market for row in CLOUD.types() for market in row.markets}
    assert {model[market] for market in used} == set(words)


def test_the_key_of_a_reservation_differs_as_said(compute):
    text = json.dumps(compute["schemas"]["ReservationAffinity"])
    assert RESERVATION_KEY["theirs"] in text
    assert RESERVATION_KEY["ours"] not in text, "the document has the long key now: no difference"
    keys = {
        body["reservationAffinity"]["key"]
        for _, _, body in requests()
        if "reservationAffinity" in body
    }
    assert keys == {RESERVATION_KEY["ours"]}
