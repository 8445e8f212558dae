"""Writes the objects that a gang would be on each profile of the test cluster, as YAML.

And what it would be in other ways on one of them. `python tests/data/plans/write_kubernetes.py
[name ...]`. Review the diff. The text of the start script is left out, and the job's name stands as
`golden`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "backends" / "kubernetes"))

from dressednodes import PROFILES, node

from gpufabric._frozen import evolve, freeze, thaw
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
#: What stands beside each gang: JobSet, and what NVLink between nodes needs.
FACTS = {
    "context": "prod", "namespace": "ml", "quotas": [], "queues": [], "pod_security": None,
    "controllers": {"jobset": "v1alpha2"}, "gang_apis": {"resource.nvidia.com": "v1beta1"},
}  # fmt: skip


#: Other ways to run one gang: what the site says beside `FACTS`, the task, the backend's settings.
VARIANTS: dict[str, dict[str, Any]] = {
    "indexed-job": {
        "facts": {"controllers": {}, "gang_apis": {"scheduling.k8s.io": "v1alpha2"}},
        "task": {"secrets": {"TOKEN": "x"}, "timeout_s": 60},
    },
    "code-and-secrets": {
        "facts": {"pod_security": "restricted"},
        "task": {"secrets": {"TOKEN": "x"}, "workdir": "/src", "files": {"a": "b"},
                 "volumes": {"/data": "claim"}, "ports": [80], "max_restarts": 2},
    },
    "queue": {
        "facts": {
            "queues": ["team"], "priority_classes": ["high"], "workload_priority_classes": ["high"],
            "queue_topology": {"team": ["topology.k8s.aws/network-node-layer-3"]},
        },
        "given": {"priority": "high"},
    },
    "volcano": {
        "facts": {"gang_apis": {"scheduling.volcano.sh": "v1beta1"}},
        "given": {"scheduler": "volcano"},
    },
    "serve": {
        "facts": {"controllers": {"jobset": "v1alpha2", "lws": "v1"}},
        "task": {"secrets": {"TOKEN": "x"}, "workdir": "/src", "ports": [80]},
        "given": {"serve": True},
    },
}  # fmt: skip


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


def best_offer(found: Site, fields: dict[str, object], given: dict[str, Any]) -> tuple[Task, Offer]:
    """A gang on two whole nodes by the best network that is promised there."""
    (pool,) = found.pools
    for tier in ("best", "gpudirect", "standard"):
        wish: dict[str, object] = {"image": "registry.example/train:1"}
        if pool.accelerator is not None:
            wish |= {"accelerators": str(pool.accelerator), "network_tier": tier}
        asked = {"run": "train", "name": "golden", "num_nodes": 2, "resources": wish, **fields}
        task = Task.from_dict(asked)
        offer = make_offers(task, found, Catalog.shipped(), **given).best
        if offer is not None:
            return task, offer
    raise AssertionError(f"no offer at all on {pool}")


def planned(name: str) -> str:
    """The golden text of a profile, or of a variant."""
    variant = VARIANTS.get(name, {})
    profile = "eks-p5" if variant else name
    found = site(profile)
    found = evolve(found, facts=freeze({**thaw(found.facts), **variant.get("facts", {})}))
    given = {"image": None, "patch": {}, **variant.get("given", {})}
    task, offer = best_offer(found, variant.get("task", {}), given)
    plan = make_plan(task, offer, found, Catalog.shipped(), run="", grace_s=10, **given)
    gang = [f"{item.name}: {item.value}" for item in plan.network if item.kind == "gang"]
    text = dump(
        {
            "profile": PROFILES[profile]["about"],
            "tier": plan.offer.tier.value,
            "interconnect": str(plan.offer.interconnect),
            "gang": gang,
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
        if isinstance(command, list) and len(command) > 2 and command[1] == "-c":
            command[2] = "(the start script)" if command[0] == "/bin/sh" else "(a program)"
        for one in value.values():
            _without_script(one)


def main(names: list[str]) -> None:
    """Writes the files of these profiles and variants, or of all."""
    for name in names or (*PROFILES, *VARIANTS):
        path = HERE / f"kubernetes-{name}.yaml"
        path.write_text(planned(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
