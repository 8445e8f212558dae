"""Nodes dressed as any cloud's: labels, taints, resources, devices, objects of the platform."""

import json
from typing import Any, cast

from . import daemons, layout, machine, nodes
from .api import MERGE, Api
from .layout import Node
from .shell import ClusterError, wait_until

Item = dict[str, Any]

_WORN = "gpufabric.test/dress"  # annotation: what a dress changed, so that it can be taken off
_MADE = "gpufabric.test/dressed"  # label of the platform's objects


def _data() -> Item:
    found: Item = json.loads((layout.HERE / "profiles.json").read_text())
    return found


def profiles() -> dict[str, Item]:
    """Every profile by its name."""
    found: dict[str, Item] = _data()["profiles"]
    return found


def _definition(name: str) -> Item:
    """A definition of a platform's own kind. Its schema takes anything: it is the platform's."""
    row = _data()["crds"][name]
    plural, _, group = name.partition(".")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": row["scope"],
            "names": {"plural": plural, "singular": row["kind"].lower(), "kind": row["kind"]},
            "versions": [
                {
                    "name": row["version"],
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": True,
                        }
                    },
                }
            ],
        },
    }


def _fill(value: Any, words: dict[str, str]) -> Any:
    """The same value with {node}, {index} and the profile's own words filled in."""
    if isinstance(value, dict):
        rows = cast("dict[str, Any]", value)
        return {_fill(key, words): _fill(item, words) for key, item in rows.items()}
    if isinstance(value, list):
        items: list[Any] = value
        return [_fill(item, words) for item in items]
    if isinstance(value, str):
        for word, text in words.items():
            value = value.replace("{" + word + "}", text)
    return value


def filled(name: str, node: Node, given: dict[str, str]) -> Item:
    """A profile as it is for one node."""
    known = profiles()
    if name not in known:
        raise ClusterError(f"no profile {name!r}; there are: {', '.join(sorted(known))}")
    own: dict[str, str] = known[name].get("words", {})
    if strange := set(given) - set(own):
        raise ClusterError(f"profile {name} has no word {sorted(strange)}; it has: {sorted(own)}")
    words = {"node": node.name, "index": str(node.index), **own, **given}
    profile: Item = _fill(known[name], words)
    return profile


def dress(api: Api, node: Node, name: str, words: dict[str, str] | None = None) -> None:
    """Make a node look like one of the profile, whatever it looked like before."""
    profile = filled(name, node, words or {})
    undress(api, node)
    _register(api, node, profile.get("provider_id"))
    definitions = [_definition(crd) for crd in profile.get("crds", ())]
    for item in [*definitions, *profile.get("objects", ())]:
        labels = {**item["metadata"].get("labels", {}), _MADE: "1"}
        item["metadata"]["labels"] = labels
        api.ensure(item)
        if item["kind"] == "CustomResourceDefinition":
            api.wait_true(api.object_path(item), "Established")
    _make_files(node, profile)
    before = _get(api, node)
    labels, annotations = profile.get("labels", {}), profile.get("annotations", {})
    worn: Item = {
        "profile": name,
        "labels": {key: before["metadata"]["labels"].get(key) for key in labels},
        "annotations": {key: before["metadata"]["annotations"].get(key) for key in annotations},
        "taints": profile.get("taints", []),
        "capacity": profile.get("capacity", {}),
        "paths": [*profile.get("devices", []), *profile.get("folders", [])],
    }
    taints = [*before["spec"].get("taints", []), *worn["taints"]]
    api.call(
        "PATCH",
        f"/api/v1/nodes/{node.name}",
        {
            "metadata": {
                "labels": labels,
                "annotations": {**annotations, _WORN: json.dumps(worn)},
            },
            "spec": {"taints": taints},
        },
        content_type=MERGE,
    )
    _set_capacity(api, node, worn["capacity"])


def undress(api: Api, node: Node) -> None:
    """Give a node back the look it had before it was dressed."""
    item = _get(api, node)
    text = item["metadata"].get("annotations", {}).get(_WORN)
    if text is None:
        return
    worn: Item = json.loads(text)
    _set_capacity(api, node, dict.fromkeys(worn["capacity"]))
    taints = [taint for taint in item["spec"].get("taints", []) if not _same(taint, worn["taints"])]
    api.call(
        "PATCH",
        f"/api/v1/nodes/{node.name}",
        {
            "metadata": {
                "labels": worn["labels"],
                "annotations": {**worn["annotations"], _WORN: None},
            },
            "spec": {"taints": taints},
        },
        content_type=MERGE,
    )
    if worn["paths"]:
        machine.execute(node, "rm", "-rf", "--", *worn["paths"])


def undress_all(api: Api, all_nodes: tuple[Node, ...]) -> None:
    """Undress every node, and remove the platforms' objects."""
    for node in all_nodes:
        undress(api, node)
        _register(api, node, None)
    selector = f"?labelSelector={_MADE}=1"
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for item in api.call("GET", base + selector)["items"]:
        path = f"{base}/{item['metadata']['name']}"
        api.call("DELETE", path)  # its objects go with it
        api.wait_gone(path)
    for collection in ("/apis/resource.k8s.io/v1/deviceclasses",
                       "/apis/resource.k8s.io/v1/resourceslices"):  # fmt: skip
        api.call("DELETE", collection + selector)


def again(api: Api, node: Node) -> None:
    """Give a node its resources again after its kubelet was started anew, which may zero them."""
    text = _get(api, node)["metadata"].get("annotations", {}).get(_WORN)
    if text is not None:
        _set_capacity(api, node, json.loads(text)["capacity"])


def worn(api: Api, node: Node) -> str | None:
    """The name of the profile that a node wears."""
    text = _get(api, node)["metadata"].get("annotations", {}).get(_WORN)
    return None if text is None else str(json.loads(text)["profile"])


def _get(api: Api, node: Node) -> Item:
    item = api.get(f"/api/v1/nodes/{node.name}")
    if item is None:
        raise ClusterError(f"the cluster has no node {node.name}")
    return item


def _same(taint: Item, others: list[Item]) -> bool:
    keys = ("key", "value", "effect")
    return any(all(taint.get(k) == other.get(k) for k in keys) for other in others)


def _set_capacity(api: Api, node: Node, amounts: dict[str, str | None]) -> None:
    """Set extended resources; None takes one away. Kubelet keeps what it does not know."""
    if not amounts:
        return
    path = f"/api/v1/nodes/{node.name}"
    body = {"status": {"capacity": amounts, "allocatable": amounts}}

    def agreed() -> bool:
        status = api.call("GET", path)["status"]
        seen = [{key: status[part].get(key) for key in amounts}
                for part in ("capacity", "allocatable")]  # fmt: skip
        if seen == [amounts, amounts]:
            return True
        # A kubelet that was just writing its own status may have undone it.
        api.call("PATCH", f"{path}/status", body, content_type=MERGE)
        return False

    wait_until(f"{node.name} has {amounts}", agreed, timeout_s=60)


def _register(api: Api, node: Node, provider_id: str | None) -> None:
    """Register a node anew if its provider id must be another: it cannot be changed."""
    if _get(api, node)["spec"].get("providerID") == provider_id:
        return
    name = f"{node.name}/kubelet"
    daemons.kill(name)
    api.call("DELETE", f"/api/v1/nodes/{node.name}")
    nodes.write_kubelet_config(node, provider_id)
    daemons.restart(name)
    nodes.wait_ready(api, (node,))


def _make_files(node: Node, profile: Item) -> None:
    """Make device files (each a twin of /dev/null) and folders, on the node alone."""
    lines = [f"mkdir -p {folder}" for folder in profile.get("folders", ())]
    lines += [
        f"mkdir -p $(dirname {device}) && mknod -m 666 {device} c 1 3"
        for device in profile.get("devices", ())
    ]
    if lines:
        machine.execute(node, "sh", "-ec", "\n".join(lines))
