"""Where the cluster lives: folders, names, addresses and versions, in one place."""

import contextlib
import fcntl
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
KUBERNETES_VERSION = "v1.36.3"

# Every process of the cluster carries this variable, so that `down` finds all of them, also those
# of an `up` that was killed before it could write down what it had started.
MARK = "GPUFABRIC_TEST_CLUSTER_STATE"

JOB_IMAGE = "gpufabric.test/python:1"
PAUSE_IMAGE = "gpufabric.test/pause:1"

# Packages of the job image. Each must be a Debian package that is installed on this machine.
IMAGE_PACKAGES = (
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "iproute2",
    "libc-bin",
    "mawk",
    "netbase",
    "procps",
    "python3",
    "sed",
    "tar",
    "util-linux",
)
APT_PACKAGES = {  # program or file that must be there → the package that has it
    "/usr/bin/etcd": "etcd-server",
    "/usr/bin/containerd": "containerd",
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/sbin/ip": "iproute2",
    "/usr/bin/openssl": "openssl",
    "/usr/bin/nsenter": "util-linux",
    "/usr/bin/python3": "python3",
}

ADDONS = ("jobset", "kueue", "lws")


def cache_folder() -> Path:
    """The folder of what was built: programs, manifests and the image, by version."""
    named = os.environ.get("GPUFABRIC_CLUSTER_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "gpufabric-cluster"


@contextlib.contextmanager
def alone() -> Generator[None, None, None]:
    """Only one build, `up`, `down` or fault at a time. The file stays: its removal would race."""
    lock = cache_folder() / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def state_folder() -> Path:
    """The folder of the running cluster; `down` removes it."""
    return Path(os.environ.get("GPUFABRIC_CLUSTER_STATE") or "/var/lib/gpufabric-cluster")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: its own network and mount namespace, containerd and kubelet."""

    index: int

    @property
    def name(self) -> str:
        """The name that Kubernetes knows it by."""
        return f"node-{self.index}"

    @property
    def netns(self) -> str:
        """The name of its network namespace."""
        return f"gfc-n{self.index}"

    @property
    def address(self) -> str:
        """Its address on the nodes' network."""
        return f"10.240.0.{10 + self.index}"

    @property
    def pod_subnet(self) -> str:
        """The addresses that its pods get."""
        return f"10.240.{100 + self.index}.0/24"

    @property
    def folder(self) -> Path:
        """Its files: containerd's and kubelet's roots, sockets, logs."""
        return state_folder() / "nodes" / self.name


CONTROL_NETNS = "gfc-cp"
CONTROL_ADDRESS = "10.240.0.2"
HOST_LINK = "gfc-host"
HOST_ADDRESS = "10.240.0.1"
SERVICE_SUBNET = "10.241.0.0/16"
API_SERVICE_ADDRESS = "10.241.0.1"
DNS_ADDRESS = "10.241.0.10"
SERVER = f"https://{CONTROL_ADDRESS}:443"
CGROUP = "k8s.io"  # the group that containerd gives to what Kubernetes runs
MAX_NODES = 16


def nodes(count: int) -> tuple[Node, ...]:
    """The first `count` nodes."""
    return tuple(Node(index=index) for index in range(1, count + 1))


def node(name: str) -> Node:
    """The node of a name."""
    return Node(index=int(name.removeprefix("node-")))


def pki(name: str) -> Path:
    """A certificate or key of the cluster."""
    return state_folder() / "pki" / name


def kubeconfig(user: str = "admin") -> Path:
    """The kubeconfig of a user of the cluster."""
    return state_folder() / "users" / f"{user}.kubeconfig"
