"""What one node is: platform, type, accelerators, NICs, fabric, taints, and whether it works."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import re
from collections.abc import Mapping

from gpufabric.backends.kubernetes._api import Json
from gpufabric.backends.kubernetes._usage import amount_of
from gpufabric.catalog.detect import platform_of
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import InstanceTypeRow
from gpufabric.catalog.spelling import read_model, spellings
from gpufabric.resources import Accelerator

__all__ = [
    "GPU_RESOURCES",
    "MODEL_LABELS",
    "NEAR_LABELS",
    "SPOT",
    "TOPOLOGY_LABELS",
    "TYPE_LABELS",
    "ZONE",
    "Node",
    "is_nic",
    "type_of",
]

#: Resource -> vendor in the catalog's words. Each is what that vendor's device plug-in names.
GPU_RESOURCES = {
    "nvidia.com/gpu": "nvidia",
    "amd.com/gpu": "amd",
    "aws.amazon.com/neuron": "aws",
    "habana.ai/gaudi": "intel",
    "gpu.intel.com/i915": "intel",
    "gpu.intel.com/xe": "intel",
    "google.com/tpu": "google",
}
#: NICs, by whoever names them: shared RDMA plug-in, EFA, GKE, and the prefixes under which the
#: SR-IOV plug-ins and NVIDIA's network operator name whatever their configuration says.
_NIC = re.compile(
    r"^(rdma/|vpc\.amazonaws\.com/efa$|networking\.gke\.io\.networks/(?!.*\.IP$)"
    r"|nvidia\.com/(?!gpu|mig-|pgpu|vgpu|[A-Z])|openshift\.io/|amd\.com/v?nic"
    r"|intel\.com/(?!qat|dsa|iaa|iax|sgx|fpga|dlb|vpu|cpu))"
)
#: Labels with the accelerator's model in words, the most telling first.
MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.nvidia.com/class",
    "cloud.google.com/gke-accelerator",
    "nebius.com/gpu-name",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
)
TYPE_LABELS = (
    "node.coreweave.cloud/type",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
)
#: Nodes with one value of these are near each other on the fabric; pods are asked to be so too.
NEAR_LABELS = (
    # Only types whose topology has four layers have the fourth, and are nearest by it:
    # https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html
    "topology.k8s.aws/network-node-layer-4",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-subblock",
    "backend.coreweave.cloud/leafgroup",
    "topology.nebius.com/tier-1",
    "oci.oraclecloud.com/rdma.local_block_id",
    "crusoe.ai/pod.id",
)
ZONE = "topology.kubernetes.io/zone"
#: Every label that says where on its network a node is; counted by value.
TOPOLOGY_LABELS = (
    ZONE,
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "topology.k8s.aws/network-node-layer-4",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "backend.coreweave.cloud/superpod",
    "backend.coreweave.cloud/leafgroup",
    "ds.coreweave.com/nvlink.domain",
    "topology.nebius.com/tier-1",
    "topology.nebius.com/tier-2",
    "topology.nebius.com/tier-3",
    "topology.nebius.com/nvl-instance-group-id",
    "oci.oraclecloud.com/rdma.network_block_id",
    "oci.oraclecloud.com/rdma.local_block_id",
    "oci.oraclecloud.com/host.gpu_memory_fabric_id",
    "crusoe.ai/pod.id",
    "nvidia.com/gpu.clique",
)
#: What may be taken away. CoreWeave's nodes have no such label until they are about to be taken.
#: https://cloud.google.com/kubernetes-engine/docs/how-to/preemptible-vms
#: https://github.com/Azure/karpenter-provider-azure/blob/main/pkg/apis/v1beta1/labels.go
#: https://docs.oracle.com/iaas/Content/ContEng/Tasks/contengusingpreemptiblecapacity.htm
#: https://docs.together.ai/docs/preemptible-compute
#: https://docs.coreweave.com/platform/capacity-plans/spot-node-pools
SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "kubernetes.azure.com/priority": "spot",
    "nebius.com/preemptible": "true",
    "oci.oraclecloud.com/oke-is-preemptible": "true",
    "together.ai/compute-class": "preemptible",
}
_MOST_GPUS = 1024  # of one node, as `Accelerator` has it
#: Set by the cluster itself on nodes that are not usable for now; not part of what a node is.
_TRANSIENT_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def is_nic(resource: str) -> bool:
    """Whether a resource is a NIC, or a token that lets a pod use them."""
    return _NIC.match(resource) is not None


class Node:
    """What matters of one node; the object itself is not kept."""

    def __init__(self, node: Json, catalog: Catalog) -> None:
        meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        self.name = str(meta["name"])
        self.labels: dict[str, str] = dict(meta.get("labels") or {})
        self.allocatable: dict[str, str] = {
            name: str(value) for name, value in (status.get("allocatable") or {}).items()
        }
        self.provider_id = str(spec.get("providerID") or "")
        found = platform_of(
            catalog,
            labels=self.labels,
            provider_id=self.provider_id,
            allocatable=self.allocatable,
        )
        self.cloud: CloudCatalog = found[0] if found else catalog.cloud("onprem")
        self.platform = found[1].name if found else "onprem-k8s"
        prefix = found[1].type_prefix if found else ""
        self.row, self.type = type_of(self.labels, self.cloud, prefix)
        self.gpu_resource = next(
            (name for name in GPU_RESOURCES if self.count(name)), None
        )  # fmt: skip
        self.gpus = self.count(self.gpu_resource)
        self.shared = _shared(self.labels)
        self.nics = {
            name: self.count(name)
            for name in sorted(self.allocatable)
            if is_nic(name) and self.count(name)
        }
        self.taints = tuple(
            (str(t["key"]), str(t.get("value") or ""), str(t["effect"]))
            for t in sorted(spec.get("taints") or (), key=lambda t: str(t["key"]))
            if not str(t["key"]).startswith(_TRANSIENT_TAINTS)
        )
        self.unusable = _unusable(self.labels, spec, status)
        self.lacks = self._lacks()
        self.spot = any(self.labels.get(name) == value for name, value in SPOT.items())
        self.fabric_label = found[1].fabric_label if found else None
        value = self.labels.get(self.fabric_label or "")
        self.fabric = (self.fabric_label, value) if self.fabric_label and value else None
        self.zone = self.labels.get(ZONE)

    def count(self, resource: str | None) -> int:
        """How many of a resource the node has to give."""
        return int(amount_of(self.allocatable, resource))

    def key(self) -> tuple[object, ...]:
        """Nodes with one key are alike, and share a fabric where they have one."""
        return (
            self.platform, self.type, self.gpu_resource, self.gpus, tuple(self.nics.items()),
            self.zone, self.fabric, self.taints, self.spot, self.labels.get("kubernetes.io/arch"),
            self.model() if self.row is None else None, self.shared,
            *(self.labels.get(name) for name in TYPE_LABELS[:2]),  # pods select by their spelling
        )  # fmt: skip

    def _lacks(self) -> str:
        """Accelerators that its type has and its device plug-in does not give."""
        most = self.row.gpu.count if self.row is not None else 0
        if self.gpus >= most or self.shared:
            return ""
        return f"its nodes give {self.gpus} of the {most} accelerators of {self.type}"

    def model(self) -> str | None:
        """The accelerator in the words of whoever labels the node."""
        return next((self.labels[name] for name in MODEL_LABELS if self.labels.get(name)), None)

    def accelerator(self, catalog: Catalog) -> Accelerator | None:
        """What it has; None without, where no label or row tells, and where pods get parts."""
        if not 0 < self.gpus <= _MOST_GPUS or self.shared:
            return None
        if self.row is not None:
            return Accelerator(model=self.row.gpu.model, count=self.gpus)
        said = self.model()
        if said is None:
            return None
        known = spellings({model for cloud in catalog for model in cloud.models})
        read = read_model(said.replace("_NVLINK", ""), known)
        model = read.model if read else re.sub(r"[^A-Za-z0-9 ._-]", "-", said)
        return Accelerator(model=model, count=self.gpus) if model[:1].isalpha() else None


def _shared(labels: Mapping[str, str]) -> str:
    """How a GPU that pods are given is only part of one, "" where it is whole.

    https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md and
    https://cloud.google.com/kubernetes-engine/docs/concepts/timesharing-gpus
    """
    for name in ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy"):
        if labels.get(name, "none") not in {"", "none"}:
            return f"{name}={labels[name]}"
    for name in ("cloud.google.com/gke-gpu-partition-size", "nvidia.com/gpu.replicas"):
        if labels.get(name, "1") not in {"", "0", "1"}:
            return f"{name}={labels[name]}"
    product = labels.get("nvidia.com/gpu.product", "")
    if product.endswith("-SHARED") or "-MIG-" in product:
        return f"nvidia.com/gpu.product={product}"
    return ""


def _unusable(labels: Mapping[str, str], spec: Json, status: Json) -> str:
    """Why a node takes no pods of ours now, "" where it takes them."""
    if labels.get("kubernetes.io/os", "linux") != "linux":
        return f"it runs {labels['kubernetes.io/os']}"
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    if ready is None or ready.get("status") != "True":
        return "not ready"
    if spec.get("unschedulable"):
        return "cordoned"
    for taint in spec.get("taints") or ():
        key = str(taint["key"])
        if key.startswith(_TRANSIENT_TAINTS) and taint["effect"] != "PreferNoSchedule":
            return key
    return ""


def type_of(
    labels: Mapping[str, str], cloud: CloudCatalog, prefix: str
) -> tuple[InstanceTypeRow | None, str | None]:
    """The catalog's row of a node's type and its name as the catalog or the node has it."""
    said = [labels[name].removeprefix(prefix) for name in TYPE_LABELS if labels.get(name)]
    preset = labels.get("nebius.com/resource-preset")
    candidates = [f"{name} {preset}" for name in said if preset] + said
    for name in candidates:
        row = cloud.find_type(name)
        if row is not None:
            return row, row.name
    return None, candidates[0] if candidates else None
