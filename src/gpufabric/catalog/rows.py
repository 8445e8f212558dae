"""The rows of the catalog: one frozen class for each table of `data/<cloud>.toml`.

A field here is a key there; nothing else is accepted. `docs/explanation/catalog.md` says how a
row is written, `load.py` reads them.
"""

from datetime import date
from enum import StrEnum
from typing import Any, Literal

from gpufabric._frozen import FrozenDict, Json
from gpufabric.catalog._row import Row

__all__ = [
    "Avoid",
    "CatalogRow",
    "CloudRow",
    "ClusterObject",
    "Component",
    "Confidence",
    "Container",
    "Detect",
    "Disagreement",
    "DiscoveryRow",
    "EnvRow",
    "Evidence",
    "FrontendNetwork",
    "Gpu",
    "GpuDirect",
    "Image",
    "InstanceTypeRow",
    "InterconnectRow",
    "KubernetesRow",
    "LimitRow",
    "Mount",
    "NcclVariableRow",
    "NetworkCards",
    "NicLayoutRow",
    "NicSlot",
    "Pitfall",
    "Placement",
    "PlatformRow",
    "PriceRow",
    "ReferenceRow",
    "Script",
    "SourceRow",
    "Toleration",
    "Var",
    "VmRow",
    "VmStep",
]

NONE: FrozenDict[str, Any] = FrozenDict()


class Confidence(StrEnum):
    """How sure a row is."""

    DOCUMENTED = "documented"
    """The vendor's own page, API or code says it."""
    OBSERVED = "observed"
    """Seen in public code or output, or reported by a user."""
    INFERRED = "inferred"
    """Concluded from something else. Shown, never promised, never a default."""


class GpuDirect(StrEnum):
    """How a NIC reaches GPU memory."""

    RDMA = "rdma"
    TCPX = "tcpx"
    TCPXO = "tcpxo"
    NONE = "none"
    UNKNOWN = "unknown"


class Disagreement(Row):
    """Two sources that say different things: what this row holds, and what the other says."""

    about: str
    ours: str
    theirs: str
    why: str
    sources: tuple[str, ...] = ()


class Evidence(Row):
    """Where a row comes from: every row of the catalog has these."""

    sources: tuple[str, ...] = ()
    """Names of rows of `[source.*]`, or addresses."""
    checked: date | None = None
    confidence: Confidence = Confidence.DOCUMENTED
    inferred: tuple[str, ...] = ()
    """Fields of this row that are inferred though the rest is not: `nics.gbps_each`."""
    notes: tuple[str, ...] = ()
    disagreement: tuple[Disagreement, ...] = ()
    origin: str = ""
    """The file this row was read from; set by the loader."""


class SourceRow(Row):
    """`[source.<name>]`: a page, file or package that rows point at."""

    name: str
    title: str
    url: str | None = None


class CloudRow(Evidence):
    """`[cloud]`: the provider itself."""

    name: str
    title: str
    as_of: date
    regions: tuple[str, ...] = ()
    """Regions a user may name though no row of a type names them."""


class Detect(Row):
    """How a client can tell, from a node, that it is on this platform (all must hold)."""

    labels: FrozenDict[str, str] = NONE
    """Label -> value; an empty value means that the label exists, `a|b` either value."""
    without_labels: FrozenDict[str, str] = NONE
    """Label -> value that the node must not have; an empty value means any, `a|b` either."""
    label_prefix: str | None = None
    provider_id_prefix: str | None = None
    allocatable: FrozenDict[str, str] = NONE
    """Resource -> count; an empty count means that the resource is there."""
    custom_resources: tuple[str, ...] = ()
    """CRD or DeviceClass names that must exist in the cluster."""
    note: str = ""


class PlatformRow(Evidence):
    """`[[platform]]`: one way this cloud sells nodes: `vm`, `eks`, `gke`, ..."""

    name: str
    title: str
    kind: Literal["vm", "kubernetes", "slurm", "container"]
    any_type: bool = False
    """Every instance type of this cloud can be a node here; else only those that rows name."""
    type_prefix: str = ""
    """What this platform writes before the type's name (`ml.`)."""
    gpu_resource: str = "nvidia.com/gpu"
    gpu_taint: str | None = None
    """Taint that GPU nodes carry here by default."""
    detect: Detect = Detect()
    detect_also: tuple[Detect, ...] = ()
    """Other sets of marks, each of which is enough too."""
    fabric_label: str | None = None
    """Nodes with different values of this label share no fabric."""
    generic: bool = False
    """Its marks tell how a node is equipped, not whose it is: only where no other platform fits."""


class Gpu(Row):
    """The accelerators of one node."""

    model: str
    """The one spelling of the catalog: `H100`, `A100`, `GB200`, `MI300X`, `Trainium2`."""
    count: int
    memory_gib_each: float | None = None
    label_gb: int | None = None
    """The size in the product's name (H100-80GB)."""
    form: str | None = None
    """`SXM`, `PCIe`, `NVL`, `OAM`, `superchip`."""
    vendor: str = "nvidia"
    fraction: float | None = None
    """Part of one GPU that the node has, where it is not a whole one."""


class NetworkCards(Row):
    """The NICs of the fabric (not the front end)."""

    model: str
    count: int | None = None
    gbps_each: float | None = None
    total_gbps: float | None = None
    """Only where count x gbps_each is not it, or neither is known."""
    gpudirect: GpuDirect = GpuDirect.UNKNOWN


class FrontendNetwork(Row):
    """The ordinary network beside the fabric."""

    gbps: float | None = None
    model: str = ""
    shared: bool = False
    """It uses the fabric's own cards, so it is no extra bandwidth."""


class InterconnectRow(Evidence):
    """`[[interconnect]]`: a network that a gang can share, and its rules."""

    name: str
    kind: Literal[
        "efa", "infiniband", "roce", "gpudirect-tcpx", "gpudirect-tcpxo", "falcon", "ethernet"
    ]
    scope: str
    """What all nodes must share: "one availability zone and VPC"."""
    max_nodes: int | None = None
    needs: tuple[str, ...] = ()
    """What must exist before it works, each a sentence."""
    placement: str | None = None
    """Name of the `[[placement]]` row that holds the nodes together."""


class Placement(Evidence):
    """`[[placement]]`: the cloud's own closeness object."""

    name: str
    object: str
    """The cloud's word: "cluster placement group"."""
    api: str
    required: bool
    why: str
    params: FrozenDict[str, Json] = NONE
    not_with: tuple[str, ...] = ()
    """Markets in which it is left out (`capacity_block`)."""


class InstanceTypeRow(Evidence):
    """`[[instance_type]]`: one thing that can be rented, with its GPUs and NICs."""

    name: str
    gpu: Gpu
    interconnect: str
    """Name of the `[[interconnect]]` row between nodes."""
    nics: NetworkCards
    aliases: tuple[str, ...] = ()
    arch: Literal["x86_64", "arm64"] = "x86_64"
    vcpus: int | None = None
    memory_gib: float | None = None
    local_disk_gib: float | None = None
    intra_node: str = ""
    """GPU to GPU inside the node, in words: "nvlink4-nvswitch"."""
    nvlink: bool = False
    """All GPUs of the node reach each other over NVLink/NVSwitch (or the vendor's like)."""
    nvlink_domain_gpus: int | None = None
    """GPUs of one NVLink domain where it is larger than the node (72)."""
    nvlink_domain_nodes: int | None = None
    frontend: FrontendNetwork = FrontendNetwork()
    platforms: tuple[str, ...] = ()
    """Where it is sold; names of `[[platform]]`."""
    fabric_platforms: tuple[str, ...] | None = None
    """Platforms where its fabric can be used; unset: all of `platforms`."""
    markets: tuple[str, ...] = ()
    """`on_demand`, `spot`, `capacity_block`, `reserved`; empty: not known."""
    max_nodes: int | None = None
    """Largest gang on one fabric of this type, where it differs from the interconnect's."""
    min_nodes: int = 1
    """Smallest number of nodes that is sold together (a cluster product)."""
    regions: tuple[str, ...] = ()
    """Where it was seen; empty: not known."""
    fabrics: FrozenDict[str, tuple[str, ...]] = NONE
    """Region -> names of its separate fabrics, where the cloud makes the user choose."""
    needs: tuple[str, ...] = ()
    """What this type needs beyond its interconnect's `needs`."""
    whole_node: bool = True
    """Only a job that takes all GPUs of the node gets the fabric."""


class PriceRow(Evidence):
    """`[[price]]`: what a whole instance costs, in one market and region, on one date."""

    instance_type: str
    usd_hour: float
    market: Literal["on_demand", "spot", "capacity_block", "reserved", "negotiated"] = "on_demand"
    region: str | None = None
    """Unset: one list price for every region."""
    platforms: tuple[str, ...] = ()
    """Where it holds; empty: on every platform."""
    as_of: date | None = None
    until: date | None = None
    """Last day on which it holds."""


class NicSlot(Row):
    """One NIC of a node, or a run of equal ones (`index` to `to_index`)."""

    index: int
    kind: str
    """The API's word: `interface`, `efa-only`, `GVNIC`, `MRDMA`, `infiniband-vf`."""
    role: Literal["frontend", "fabric"]
    to_index: int | None = None
    step: int = 1
    device: int | None = None
    """Device index on the card, where the cloud counts cards and devices."""
    subnet: str = ""
    """Which subnet it lies in: `shared`, `own` (one a NIC), `rdma`, or empty for none."""
    name: str = ""
    """Its name in the guest; `{i}` counts from 0 over the run, `{n}` is the index."""
    gbps: float | None = None
    attached_by: Literal["request", "provider"] = "request"
    """`request`: the launch must list it; `provider`: it comes with the type."""


class NicLayoutRow(Evidence):
    """`[[nic_layout]]`: every NIC of a type, and the rules that place them."""

    name: str
    applies_to: tuple[str, ...]
    slots: tuple[NicSlot, ...]
    platforms: tuple[str, ...] = ()
    """Empty: every platform."""
    rules: str = ""


class Image(Evidence):
    """An image that carries the drivers."""

    name: str
    find: str
    """How its id is found."""


class VmStep(Row):
    """One request of a launch, as the vendor describes it."""

    what: str
    api: str
    why: str = ""
    params: FrozenDict[str, Json] = NONE


class VmRow(Evidence):
    """`[[vm]]`: how a cluster of machines is wired, per family."""

    name: str
    applies_to: tuple[str, ...]
    when: str = ""
    """Only when this is so, in words; empty: the ordinary way."""
    steps: tuple[VmStep, ...] = ()
    images: tuple[Image, ...] = ()


class Toleration(Row):
    """A taint that a pod must bear."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: str | None = "NoSchedule"


class Mount(Row):
    """A volume and where it is mounted."""

    name: str
    mount_path: str
    source: Literal["empty_dir", "host_path", "config_map"]
    path: str | None = None
    """The node's path (host_path) or the object's name (config_map)."""
    key: str | None = None
    medium: Literal["Memory"] | None = None
    size_limit: str | None = None
    containers: tuple[str, ...] = ("job",)
    """`job`, or names of sidecars."""
    read_only: bool = False
    optional: bool = False
    why: str = ""


class Container(Row):
    """A sidecar or init container that the network needs."""

    name: str
    image: str
    why: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: FrozenDict[str, str] = NONE
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    native: bool = True
    """An init container with restartPolicy Always, so that the Job can end."""
    since: str | None = None
    until: str | None = None


class Component(Row):
    """A program or driver, and the versions that work."""

    name: str
    minimum: str | None = None
    recommended: str | None = None
    broken: tuple[str, ...] = ()
    why: str = ""
    sources: tuple[str, ...] = ()
    """Unset: the row's."""


class ClusterObject(Row):
    """An object that must exist in the cluster (or is made for the job)."""

    kind: str
    names: tuple[str, ...] = ()
    api_version: str | None = None
    count: int | None = None
    made_by: Literal["cluster", "job"] = "cluster"
    spec: FrozenDict[str, Json] = NONE
    note: str = ""


class KubernetesRow(Evidence):
    """`[[kubernetes]]`: what a pod needs so that its NICs are those of the fabric."""

    name: str
    platform: str
    applies_to: tuple[str, ...]
    preference: int = 1
    """1 is tried first; a higher number is another way on the same platform."""
    when: str = ""
    """What a cluster must have for this way, in words; empty: nothing special."""
    fabric: bool = True
    """False: this way gives no RDMA (shown, never counted for a tier)."""
    detect: Detect = Detect()
    node_selector: FrozenDict[str, str] = NONE
    """Labels the pods select nodes by; `{type}` is the type as this platform writes it."""
    node_labels: FrozenDict[str, str] = NONE
    """Labels worth reading -> what they tell."""
    requests: FrozenDict[str, str] = NONE
    tolerations: tuple[Toleration, ...] = ()
    annotations: FrozenDict[str, str] = NONE
    labels: FrozenDict[str, str] = NONE
    """Labels put on the pod."""
    mounts: tuple[Mount, ...] = ()
    sidecars: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    privilege_why: str = ""
    """Why the pod needs the capabilities, the host network or privilege it asks for."""
    host_network: bool = False
    host_ipc: bool = False
    runtime_class: str | None = None
    scheduler: str | None = None
    claims: FrozenDict[str, Json] = NONE
    """Dynamic resource allocation: claim name -> body of its ResourceClaimTemplate's spec."""
    compute_domain: bool = False
    """One ComputeDomain object a job, for NVLink between nodes."""
    objects: tuple[ClusterObject, ...] = ()
    daemons: tuple[Component, ...] = ()


class Var(Row):
    """One variable of the environment."""

    name: str
    value: str
    why: str
    since: str | None = None
    """First version of `component` that takes it."""
    until: str | None = None
    component: str = "NCCL"
    default: bool = True
    """False: shown as something that can be set, not set."""
    sources: tuple[str, ...] = ()
    confidence: Confidence | None = None
    """Unset: the row's."""


class Avoid(Row):
    """A setting that is commonly copied and wrong here."""

    name: str
    why: str
    value: str | None = None
    """Unset: any value."""
    breaks: bool = False
    """It breaks the network or loses it silently (a warning); else it only costs speed."""
    kinds: tuple[str, ...] = ()
    """Kinds of network on which this holds; empty: every one."""


class Script(Row):
    """A script or file of the platform that sets the environment itself."""

    path: str
    why: str
    before: FrozenDict[str, str] = NONE
    """Variables that must be set before it is sourced."""
    sets: tuple[str, ...] = ()
    """Variables it is known to set: these are then not set by hand."""


class EnvRow(Evidence):
    """`[[env]]`: the NCCL / libfabric / UCX / MPI variables of some types on some platforms."""

    name: str
    applies_to: tuple[str, ...]
    platforms: tuple[str, ...]
    """Names of `[[platform]]`; `*`: every one."""
    when: str = ""
    """Only for this use, in words ("SHARP", "mpirun"); such a row is shown, never set."""
    ways: tuple[str, ...] = ()
    """Only where pods get their NICs in one of these ways (of `[[kubernetes]]`); empty: all."""
    vars: tuple[Var, ...] = ()
    avoid: tuple[Avoid, ...] = ()
    script: Script | None = None
    versions: tuple[Component, ...] = ()


class ReferenceRow(Evidence):
    """`[[reference]]`: a published benchmark, for judging a measured one."""

    instance_type: str
    """The type; in nccl.toml, which is not of one cloud, the hardware in words."""
    collective: str
    size_bytes: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    algbw_gbytes_s: float | None = None
    busbw_gbytes_s: float | None = None
    library: str = ""
    cloud: str = ""
    """Where it ran, in nccl.toml."""
    fabric: str = ""
    """Its network in words, in nccl.toml."""


class Pitfall(Evidence):
    """`[[pitfall]]`: a symptom with its cause and remedy."""

    symptom: str
    cause: str
    fix: str


class DiscoveryRow(Evidence):
    """`[[discovery]]`: how prices, capacity and quota are read from the live service."""

    what: str
    api: str
    auth: str = ""
    python_client: str = ""


class NcclVariableRow(Evidence):
    """`[[variable]]` of nccl.toml: one environment variable that NCCL reads."""

    name: str
    meaning: str = ""
    type: str = ""
    default: str = ""
    since: str | None = None
    until: str | None = None
    status: str = ""
    danger: str = ""
    bad_values: tuple[Avoid, ...] = ()
    """Values that break or lose the network; `name` repeats the variable."""


class LimitRow(Evidence):
    """`[[limit]]` of nccl.toml: what bounds a result, as a formula or in words."""

    name: str
    text: str


CatalogRow = (
    LimitRow
    | CloudRow
    | SourceRow
    | PlatformRow
    | InterconnectRow
    | Placement
    | InstanceTypeRow
    | PriceRow
    | NicLayoutRow
    | VmRow
    | KubernetesRow
    | EnvRow
    | ReferenceRow
    | Pitfall
    | DiscoveryRow
    | NcclVariableRow
)
