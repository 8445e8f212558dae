"""Nodes of the API server as the profiles of the test cluster dress them: no server is needed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[3] / "cluster" / "profiles.json"
PROFILES = json.loads(_FILE.read_text(encoding="utf-8"))["profiles"]


def node(
    profile: str, name: str = "n1", *, taints: Sequence[dict[str, str]] = (), **words: object
) -> dict[str, Any]:
    """A node of the API server, dressed as a profile says; `words` fill its labels."""
    body = PROFILES[profile]
    given = {"node": name, "index": 1, **body.get("words", {}), **words}

    def fill(text: str) -> str:
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
