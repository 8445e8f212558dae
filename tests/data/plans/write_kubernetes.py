"""Writes the objects that a gang would be on each profile of the test cluster, as YAML.

`python tests/data/plans/write_kubernetes.py [profile ...]`. Review the diff. The text of the start
script is left out, and the job's name stands as `golden`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpufabric._frozen import freeze, thaw
from gpufabric._yaml import dump
from gpufabric.backends.base import Site
from gpufabric.backends.kubernetes._slices import class_driver, counted, devices_of
from gpufabric.backends.kubernetes._ways import Served
from gpufabric.backends.kubernetes.discover import pools_of
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.catalog.index import Catalog
from gpufabric.plan import LaunchPlan, Offer
from gpufabric.task import Task

HERE = Path(__file__).parent
PROFILES = json.loads((HERE.parents[1] / "cluster" / "profiles.json").read_text())["profiles"]
#: What stands beside each gang: JobSet, and what NVLink between nodes needs.
FACTS = {
    "context": "prod", "namespace": "ml", "quotas": [], "queues": [], "pod_security": None,
    "controllers": {"jobset": "v1alpha2"}, "gang_apis": {"resource.nvidia.com": "v1beta1"},
}  # fmt: skip


def node(profile: str, name: str) -> dict[str, Any]:
    """A node of the API server, dressed as a profile says."""
    body = PROFILES[profile]
    words = {"node": name, "index": 1, **body.get("words", {})}

    def fill(text: str) -> str:
        for word, value in words.items():
            text = text.replace("{" + word + "}", str(value))
        return text

    return {
        "metadata": {
            "name": name,
            "labels": {key: fill(value) for key, value in body.get("labels", {}).items()},
        },
        "spec": {
            "providerID": fill(body.get("provider_id", "")),
            "taints": body.get("taints", []),
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "192", "memory": "2Ti", **body.get("capacity", {})},
        },
    }


def served(profile: str, names: list[str]) -> Served:
    """The cluster's side of a profile: its definitions, device classes and slices."""
    body = PROFILES[profile]
    texts = [json.dumps(body.get("objects", [])).replace("{node}", name) for name in names]
    objects = [one for text in texts for one in json.loads(text)]
    classes = {o["metadata"]["name"]: o for o in objects if o["kind"] == "DeviceClass"}
    total, free = counted(devices_of(o for o in objects if o["kind"] == "ResourceSlice"), set())
    return Served(
        custom_resources=(*body.get("crds", ()), *(f"deviceclass/{name}" for name in classes)),
        class_drivers={name: class_driver(one) for name, one in classes.items()},
        devices=total,
        devices_free=free,
    )


def site(profile: str, nodes: int = 2) -> Site:
    """A cluster of such nodes."""
    names = [f"n{i}" for i in range(nodes)]
    pools, facts = pools_of(
        [node(profile, name) for name in names], {}, catalog=Catalog.shipped(), context="prod",
        served=served(profile, names),
    )  # fmt: skip
    return Site(backend="kubernetes", pools=pools, facts=freeze({**FACTS, "pools": facts}))


def best_offer(found: Site) -> tuple[Task, Offer]:
    """A gang on two whole nodes by the best network that is promised there."""
    (pool,) = found.pools
    for tier in ("best", "gpudirect", "standard"):
        wish: dict[str, object] = {"image": "registry.example/train:1"}
        if pool.accelerator is not None:
            wish |= {"accelerators": str(pool.accelerator), "network_tier": tier}
        task = Task.from_dict({"run": "train", "name": "golden", "num_nodes": 2, "resources": wish})
        offer = make_offers(task, found, Catalog.shipped(), image=None, patch={}).best
        if offer is not None:
            return task, offer
    raise AssertionError(f"no offer at all on {pool}")


def planned(profile: str) -> str:
    """The golden text of a profile."""
    found = site(profile)
    task, offer = best_offer(found)
    plan = make_plan(
        task, offer, found, Catalog.shipped(), run="", image=None, patch={}, grace_s=10
    )
    text = dump(
        {
            "profile": PROFILES[profile]["about"],
            "tier": plan.offer.tier.value,
            "interconnect": str(plan.offer.interconnect),
            "warnings": [*plan.offer.warnings, *plan.warnings],
            "steps": list(_steps(plan)),
        }
    )
    return text.replace(plan.name, "golden")


def _steps(plan: LaunchPlan) -> Iterator[dict[str, object]]:
    for step in plan.steps:
        body = thaw(step.body)
        _without_script(body)
        yield {"step": str(step), "body": body}


def _without_script(value: object) -> None:
    if isinstance(value, list):
        for one in value:
            _without_script(one)
    elif isinstance(value, dict):
        command = value.get("command")
        if isinstance(command, list) and command[:2] == ["/bin/sh", "-c"] and len(command) > 2:
            command[2] = "(the start script)"
        for one in value.values():
            _without_script(one)


def main(names: list[str]) -> None:
    """Writes the files of these profiles, or of all."""
    for profile in names or PROFILES:
        path = HERE / f"kubernetes-{profile}.yaml"
        path.write_text(planned(profile), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
