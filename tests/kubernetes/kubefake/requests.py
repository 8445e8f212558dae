"""What a request asks for: path and query as k8s.io/apiserver/pkg/endpoints/request reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

from .access import Ask

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}
_SUBRESOURCE_ONLY = {"status", "finalize"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, read."""

    method: str
    path: str
    query: Mapping[str, str]
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def verb(self) -> str:
        """What the user wants to do, as rules name it."""
        if self.method in {"GET", "HEAD"}:
            if self.query.get("watch") in {"true", "1"} and not self.subresource:
                return "watch"
            return "get" if self.name else "list"
        if self.method == "DELETE" and not self.name:
            return "deletecollection"
        return _VERBS.get(self.method, self.method.lower())

    @property
    def ask(self) -> Ask:
        """What the authorizer judges."""
        if not self.plural:
            return Ask(verb=self.verb if self.verb != "list" else "get", path=self.path)
        return Ask(
            verb=self.verb, group=self.group, resource=self.plural, namespace=self.namespace,
            subresource=self.subresource, name=self.name,
        )  # fmt: skip

    @property
    def dry_run(self) -> bool:
        """Whether nothing may change."""
        return self.query.get("dryRun") == "All"


def read(method: str, path: str, query: Mapping[str, str]) -> Asked:
    """The parts of a path."""
    parts = [part for part in path.split("/") if part]
    group = version = ""
    if parts[:1] == ["api"] and len(parts) > 2:
        version, rest = parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Asked(method=method, path=path, query=query)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _SUBRESOURCE_ONLY:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", ""][:3]
    if plural == "namespaces" and not group:
        namespace = name  # as the real one reads it: rules of a namespace are rules for it
    return Asked(
        method=method, path=path, query=query, group=group, version=version, plural=plural,
        namespace=namespace, name=name, subresource=subresource,
    )  # fmt: skip
