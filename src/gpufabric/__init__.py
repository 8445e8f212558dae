"""gpufabric: multi-node GPU jobs on the fastest network a place has, and proof that it is used.

Names load on first use (PEP 562), so that importing the package costs next to nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufabric import bench, net, testing
    from gpufabric._forward import PortForward
    from gpufabric._jupyter import Jupyter
    from gpufabric.aio import AsyncFabric, AsyncJobHandle
    from gpufabric.backends.kubernetes import Kubernetes
    from gpufabric.backends.local import Local
    from gpufabric.config import Settings
    from gpufabric.errors import (
        BackendError,
        CapacityError,
        CatalogError,
        ConfigError,
        ConflictError,
        CredentialsError,
        GpuFabricError,
        JobError,
        JobFailedError,
        JobTimeoutError,
        MissingExtraError,
        NotFoundError,
        ParseError,
        PlacementError,
        Problem,
        QuotaError,
        Remedy,
        SpecError,
        TransientError,
    )
    from gpufabric.fabric import Event, Fabric
    from gpufabric.handle import JobHandle
    from gpufabric.job import ExecResult, JobRef, JobState, JobStatus, LogLine, NodeStatus
    from gpufabric.net.interconnect import FabricKind, Interconnect, Place
    from gpufabric.net.nics import Nic, NicLayout
    from gpufabric.net.tier import NetworkTier
    from gpufabric.plan import (
        Attempt,
        EnvVar,
        LaunchPlan,
        LaunchPolicy,
        NetworkItem,
        Offer,
        RankBy,
        Rejection,
        Resolution,
        Source,
        Step,
    )
    from gpufabric.resources import Accelerator, Resources
    from gpufabric.task import PythonCall, Secret, Task

__version__ = "0.1.0"

_WHERE = {
    "_forward": ("PortForward",),
    "_jupyter": ("Jupyter",),
    "aio": ("AsyncFabric", "AsyncJobHandle"),
    "backends.kubernetes": ("Kubernetes",),
    "backends.local": ("Local",),
    "config": ("Settings",),
    "errors": (
        "BackendError", "CapacityError", "CatalogError", "ConfigError", "ConflictError",
        "CredentialsError", "GpuFabricError", "JobError", "JobFailedError", "JobTimeoutError",
        "MissingExtraError", "NotFoundError", "ParseError", "PlacementError", "Problem",
        "QuotaError", "Remedy", "SpecError", "TransientError",
    ),
    "fabric": ("Event", "Fabric"),
    "handle": ("JobHandle",),
    "job": ("ExecResult", "JobRef", "JobState", "JobStatus", "LogLine", "NodeStatus"),
    "net.interconnect": ("FabricKind", "Interconnect", "Place"),
    "net.nics": ("Nic", "NicLayout"),
    "net.tier": ("NetworkTier",),
    "plan": (
        "Attempt", "EnvVar", "LaunchPlan", "LaunchPolicy", "NetworkItem", "Offer", "RankBy",
        "Rejection", "Resolution", "Source", "Step",
    ),
    "resources": ("Accelerator", "Resources"),
    "task": ("PythonCall", "Secret", "Task"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
_SUBMODULES = ("bench", "net", "testing")

__all__ = [
    "Accelerator",
    "AsyncFabric",
    "AsyncJobHandle",
    "Attempt",
    "BackendError",
    "CapacityError",
    "CatalogError",
    "ConfigError",
    "ConflictError",
    "CredentialsError",
    "EnvVar",
    "Event",
    "ExecResult",
    "Fabric",
    "FabricKind",
    "GpuFabricError",
    "Interconnect",
    "JobError",
    "JobFailedError",
    "JobHandle",
    "JobRef",
    "JobState",
    "JobStatus",
    "JobTimeoutError",
    "Jupyter",
    "Kubernetes",
    "LaunchPlan",
    "LaunchPolicy",
    "Local",
    "LogLine",
    "MissingExtraError",
    "NetworkItem",
    "NetworkTier",
    "Nic",
    "NicLayout",
    "NodeStatus",
    "NotFoundError",
    "Offer",
    "ParseError",
    "Place",
    "PlacementError",
    "PortForward",
    "Problem",
    "PythonCall",
    "QuotaError",
    "RankBy",
    "Rejection",
    "Remedy",
    "Resolution",
    "Resources",
    "Secret",
    "Settings",
    "Source",
    "SpecError",
    "Step",
    "Task",
    "TransientError",
    "bench",
    "net",
    "testing",
]


def __getattr__(name: str) -> object:
    import importlib

    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(f"gpufabric.{_MODULE_OF[name]}"), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"gpufabric.{name}")
    else:
        raise AttributeError(f"module 'gpufabric' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
