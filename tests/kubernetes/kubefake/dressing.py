"""Nodes dressed as any cloud's, from tests/cluster/profiles.json."""

import json
from typing import TYPE_CHECKING, Any

from gfcluster import dress, layout

if TYPE_CHECKING:
    from .cluster import FakeCluster

_MADE = "gpufabric.test/dressed"


class Dressing:
    """Changes the nodes, and gives them back as they were."""

    def __init__(self, cluster: "FakeCluster") -> None:
        self._cluster = cluster
        self._bare: dict[str, dict[str, Any]] = {}

    def dress(self, profile: str, *nodes: str, **words: str) -> None:
        """Makes nodes, or all of them, look like those of a profile."""
        api = self._cluster.api
        for item in api.call("GET", "/api/v1/nodes")["items"]:
            name = item["metadata"]["name"]
            if nodes and name not in nodes:
                continue
            bare = self._bare.setdefault(name, item)
            number = int(name.rpartition("-")[2])
            filled = dress.filled(profile, layout.Node(index=number), words)
            self._objects(filled)
            self._wear(json.loads(json.dumps(bare)), filled)

    def _objects(self, filled: dict[str, Any]) -> None:
        api = self._cluster.api
        definitions = [dress._definition(crd) for crd in filled.get("crds", ())]
        for item in [*definitions, *filled.get("objects", ())]:
            item["metadata"]["labels"] = {**item["metadata"].get("labels", {}), _MADE: "1"}
            api.ensure(item)
            if item["kind"] == "CustomResourceDefinition":
                api.wait_true(api.object_path(item), "Established")

    def _wear(self, bare: dict[str, Any], filled: dict[str, Any]) -> None:
        bare["apiVersion"], bare["kind"] = "v1", "Node"
        meta, spec, status = bare["metadata"], bare["spec"], bare["status"]
        meta["labels"].update(filled.get("labels", {}))
        meta["annotations"].update(filled.get("annotations", {}))
        taints = filled.get("taints", [])
        if taints:
            spec["taints"] = [*spec.get("taints", []), *taints]
        if filled.get("provider_id"):
            spec["providerID"] = filled["provider_id"]
        for part in ("capacity", "allocatable"):
            status[part].update(filled.get("capacity", {}))
        self._cluster.do(lambda: self._cluster.store.put("nodes", bare))

    def undress_all(self) -> None:
        """Gives every node back, and removes the platforms' objects."""
        api, cluster = self._cluster.api, self._cluster
        for bare in self._bare.values():
            made = {"kind": "Node", "apiVersion": "v1", **json.loads(json.dumps(bare))}
            cluster.do(lambda made=made: cluster.store.put("nodes", made))
        self._bare.clear()
        base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for item in api.call("GET", f"{base}?labelSelector={_MADE}=1")["items"]:
            self._remove_custom(item)
            api.call("DELETE", f"{base}/{item['metadata']['name']}")
        for collection in ("/apis/resource.k8s.io/v1/deviceclasses",
                           "/apis/resource.k8s.io/v1/resourceslices"):  # fmt: skip
            api.call("DELETE", f"{collection}?labelSelector={_MADE}=1")

    def _remove_custom(self, item: dict[str, Any]) -> None:
        """A definition takes its objects and its resource along."""
        cluster, spec = self._cluster, item["spec"]

        def remove() -> None:
            for version in spec["versions"]:
                found = cluster.kinds.find(spec["group"], version["name"], spec["names"]["plural"])
                if found is None:
                    continue
                for entry in cluster.store.all(found.table):
                    meta = entry.obj["metadata"]
                    cluster.store.drop(found.table, meta.get("namespace") or "", meta["name"])
                cluster.kinds.remove(found)

        cluster.do(remove)
