"""Backends: one module or folder a place, loaded by name on first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from gpufabric.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufabric.backends.base import Backend
    from gpufabric.config import Settings
    from gpufabric.job import JobRef

__all__ = ["TABLE", "BackendClass", "backend_class", "backend_names"]

#: The backends of this package: name, and where its class is.
TABLE: dict[str, str] = {
    "local": "gpufabric.backends.local:Local",
    "kubernetes": "gpufabric.backends.kubernetes:Kubernetes",
}

_GROUP = "gpufabric.backends"


class BackendClass(Protocol):
    """What `Fabric` asks of a backend's class, beside the calls of its instances."""

    def __call__(self, *, settings: "Settings | None" = None) -> "Backend":
        """An instance with the settings' defaults."""
        ...

    def found(self, settings: "Settings") -> "Iterable[Backend]":
        """Every instance that this machine's configuration gives; errors say why one is not."""
        ...

    def from_ref(self, ref: "JobRef", settings: "Settings") -> "Backend":
        """The instance that holds the job."""
        ...


def backend_names() -> tuple[str, ...]:
    """The names in the table, then those of plug-ins."""
    return (*TABLE, *sorted(_plugins()))


def backend_class(name: str) -> BackendClass:
    """Loads the class of a backend by its name. Raises `ConfigError` with the near miss."""
    import importlib

    plugins = _plugins()
    if name in TABLE:
        module, _, attribute = TABLE[name].partition(":")
        return cast("BackendClass", getattr(importlib.import_module(module), attribute))
    if name in plugins:
        return plugins[name]()
    from gpufabric._convert import near

    known = backend_names()
    raise ConfigError(f"no backend {name!r}{near(name, known)}; there are: {', '.join(known)}")


def _plugins() -> dict[str, Callable[[], BackendClass]]:
    from importlib.metadata import entry_points

    found: dict[str, Callable[[], BackendClass]] = {}
    for point in entry_points(group=_GROUP):
        if point.name in TABLE or point.name in found:
            raise ConfigError(
                f"two backends are named {point.name!r}: {point.value} is one of them;"
                " uninstall one, or ask its authors for another name"
            )
        found[point.name] = point.load
    return found
