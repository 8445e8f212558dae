"""Users of the cluster with few rights, for tests of permissions."""

import re
from collections.abc import Sequence
from pathlib import Path

from . import layout, pki
from .shell import ClusterError


def mint(name: str, *, groups: Sequence[str] = (), namespace: str = "default") -> Path:
    """A kubeconfig of a user who may do nothing but what Roles give to this name or its groups."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,62}", name):
        raise ClusterError(f"{name!r} is not a user name that this makes: a-z, 0-9, dot and dash")
    if not layout.pki("ca.key").exists():
        raise ClusterError("no cluster is up; run: cluster.py up")
    certificate = f"user-{name}"
    pki.client(certificate, name, groups)
    path = layout.kubeconfig(certificate)
    return pki.write_kubeconfig(path, certificate, user=name, namespace=namespace)
