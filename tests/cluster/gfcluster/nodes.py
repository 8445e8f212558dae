"""Containerd and kubelet of a node."""

import json

from . import build, daemons, image, layout
from .api import Api
from .daemons import Daemon
from .layout import PAUSE_IMAGE, Node
from .machine import inside
from .shell import ClusterError, run, tail, wait_until


def start_containerd(node: Node) -> Daemon:
    """The node's containerd with its network plug-in's configuration."""
    folder = node.folder
    cni = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": f"{folder}/addresses",
                    "ranges": [[{"subnet": node.pod_subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    (folder / "net.d").mkdir(exist_ok=True)
    (folder / "net.d" / "pods.conflist").write_text(json.dumps(cni, indent=1))
    # restrict_oom_score_adj: a machine may refuse scores below its own, and every pod would fail.
    (folder / "containerd.toml").write_text(
        f"""version = 2
root = "{folder}/containerd"
state = "{folder}/run"
oom_score = 0
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.ttrpc.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "{node.address}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/net.d"
"""
    )
    return daemons.start(
        f"{node.name}/containerd",
        inside(node, "containerd", "--config", folder / "containerd.toml"),
        node=True,
    )


def _ctr(node: Node) -> list[str]:
    socket = node.folder / "containerd.sock"
    return inside(node, "ctr", "--address", socket, "--namespace", "k8s.io")


def wait_containerd(node: Node) -> None:
    """Wait until the node's containerd serves."""
    daemon, _ = daemons.load(f"{node.name}/containerd")

    def serving() -> bool:
        daemons.check(daemon)
        try:
            run([*_ctr(node), "plugins", "ls"], timeout_s=5)
        except ClusterError:
            return False
        return True

    wait_until(f"{node.name}'s containerd serves", serving, timeout_s=60,
               diagnose=lambda: tail(daemon.log))  # fmt: skip


def import_image(node: Node) -> None:
    """Give the node the image; there is no registry to pull from."""
    run([*_ctr(node), "images", "import", image.path()])


def _kubelet_config(node: Node, provider_id: str | None) -> dict[str, object]:
    return {
        **({"providerID": provider_id} if provider_id else {}),
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzBindAddress": node.address,
        "authentication": {
            "x509": {"clientCAFile": str(layout.pki("ca.crt"))},
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki(f"{node.name}-server.crt")),
        "tlsPrivateKeyFile": str(layout.pki(f"{node.name}-server.key")),
        "containerRuntimeEndpoint": f"unix://{node.folder}/containerd.sock",
        "podLogsDir": "/var/log/pods",
        "clusterDNS": [layout.DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.folder / "resolv.conf"),
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,  # never: the image could not be pulled again
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "10s",
        "nodeLeaseDurationSeconds": 8,
        "syncFrequency": "10s",
        "maxPods": 200,
        # Small enough that a test sees logs rotate.
        "containerLogMaxSize": "4Mi",
        "containerLogMaxFiles": 4,
        "containerLogMonitorInterval": "3s",
    }


def write_kubelet_config(node: Node, provider_id: str | None = None) -> None:
    """Write what a kubelet reads when it starts."""
    text = json.dumps(_kubelet_config(node, provider_id), indent=1)
    (node.folder / "kubelet.json").write_text(text)


def start_kubelet(node: Node) -> Daemon:
    """The node's kubelet, with the settings that `write_kubelet_config` wrote."""
    (node.folder / "resolv.conf").write_text(f"nameserver {layout.DNS_ADDRESS}\n")
    return daemons.start(
        f"{node.name}/kubelet",
        inside(
            node,
            build.program("kubelet"),
            f"--config={node.folder}/kubelet.json",
            f"--kubeconfig={layout.kubeconfig(node.name)}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            "--root-dir=/var/lib/kubelet",
        ),
        node=True,
    )


def wait_ready(api: Api, nodes: tuple[Node, ...], timeout_s: float = 120) -> None:
    """Wait until every node takes pods."""

    def ready() -> bool:
        for node in nodes:
            daemon, _ = daemons.load(f"{node.name}/kubelet")
            daemons.check(daemon)
            path = f"/api/v1/nodes/{node.name}"
            if not api.is_true(path, "Ready"):
                return False
            taints = api.call("GET", path)["spec"].get("taints", ())
            if any(taint["key"].startswith("node.kubernetes.io/") for taint in taints):
                return False
        return True

    def diagnose() -> str:
        logs = [daemons.load(f"{node.name}/kubelet")[0].log for node in nodes]
        return "\n".join(tail(log) for log in logs)

    wait_until("all nodes are ready", ready, timeout_s=timeout_s, diagnose=diagnose)
