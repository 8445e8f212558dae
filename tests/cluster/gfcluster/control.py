"""The control plane: etcd, API server, controller manager, scheduler and DNS, in one namespace."""

import json
import urllib.request
import uuid
from pathlib import Path

from . import build, daemons, layout, net, pki
from .api import Api, ApiError
from .daemons import Daemon
from .layout import CONTROL_ADDRESS, CONTROL_NETNS, state_folder
from .shell import run, tail, wait_until

# The scheduler's own gangs (alpha in 1.36): every part must be told, and the API group served.
_GATES = "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true"


def _start(name: str, *argv: str | Path) -> Daemon:
    return daemons.start(name, net.inside(CONTROL_NETNS, *(str(word) for word in argv)))


def certificates(nodes: tuple[layout.Node, ...]) -> None:
    """Every key and certificate of the control plane and the nodes."""
    pki.authority("ca")
    pki.authority("front-proxy-ca")
    pki.signing_key("service-accounts")
    pki.server(
        "apiserver",
        [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
            "kubernetes.default.svc.cluster.local",
        ],
        [CONTROL_ADDRESS, layout.API_SERVICE_ADDRESS, "127.0.0.1"],
    )
    pki.client("front-proxy", "front-proxy-client", ca="front-proxy-ca")
    pki.client("apiserver-kubelet", "kube-apiserver", ["system:masters"])
    for name, user, groups in (
        ("admin", "gpufabric-admin", ["system:masters"]),
        ("controller-manager", "system:kube-controller-manager", []),
        ("scheduler", "system:kube-scheduler", []),
        # Its rights are those of the ClusterRole that every API server brings.
        ("coredns", "system:kube-dns", []),
        *((node.name, f"system:node:{node.name}", ["system:nodes"]) for node in nodes),
    ):
        pki.client(name, user, groups)
        pki.write_kubeconfig(layout.kubeconfig(name), name, user=user)
    for node in nodes:
        pki.server(f"{node.name}-server", [node.name], [node.address])


def start_etcd() -> Daemon:
    """Etcd, with its files in memory: they need not outlive the cluster."""
    folder = state_folder() / "etcd"
    folder.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=512m,mode=700", "gpufabric-etcd", folder])
    return _start(
        "etcd",
        "etcd",
        f"--data-dir={folder}/data",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
        "--log-outputs=stderr",
    )


def start_apiserver() -> Daemon:
    """The API server, on the port that pods expect of the service `kubernetes`."""
    return _start(
        "apiserver",
        build.program("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={CONTROL_ADDRESS}",
        f"--service-cluster-ip-range={layout.SERVICE_SUBNET}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={layout.pki('ca.crt')}",
        f"--tls-cert-file={layout.pki('apiserver.crt')}",
        f"--tls-private-key-file={layout.pki('apiserver.key')}",
        f"--kubelet-certificate-authority={layout.pki('ca.crt')}",
        f"--kubelet-client-certificate={layout.pki('apiserver-kubelet.crt')}",
        f"--kubelet-client-key={layout.pki('apiserver-kubelet.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={layout.pki('service-accounts.pub')}",
        f"--service-account-signing-key-file={layout.pki('service-accounts.key')}",
        f"--requestheader-client-ca-file={layout.pki('front-proxy-ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={layout.pki('front-proxy.crt')}",
        f"--proxy-client-key-file={layout.pki('front-proxy.key')}",
        # There is no kube-proxy: webhooks' services are resolved to their endpoints here.
        "--enable-aggregator-routing=true",
        f"--feature-gates={_GATES}",
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        # A lost node's pods are given up after this, not after five minutes.
        "--default-not-ready-toleration-seconds=10",
        "--default-unreachable-toleration-seconds=10",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
    )


def start_controllers() -> list[Daemon]:
    """Controller manager and scheduler; one of each, so that neither waits to lead."""
    manager = _start(
        "controller-manager",
        build.program("kube-controller-manager"),
        f"--kubeconfig={layout.kubeconfig('controller-manager')}",
        f"--authentication-kubeconfig={layout.kubeconfig('controller-manager')}",
        f"--authorization-kubeconfig={layout.kubeconfig('controller-manager')}",
        f"--root-ca-file={layout.pki('ca.crt')}",
        f"--client-ca-file={layout.pki('ca.crt')}",
        f"--service-account-private-key-file={layout.pki('service-accounts.key')}",
        f"--cluster-signing-cert-file={layout.pki('ca.crt')}",
        f"--cluster-signing-key-file={layout.pki('ca.key')}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=10s",
        f"--feature-gates={_GATES}",
        "--profiling=false",
    )
    scheduler = _start(
        "scheduler",
        build.program("kube-scheduler"),
        f"--kubeconfig={layout.kubeconfig('scheduler')}",
        f"--authentication-kubeconfig={layout.kubeconfig('scheduler')}",
        f"--authorization-kubeconfig={layout.kubeconfig('scheduler')}",
        "--leader-elect=false",
        f"--feature-gates={_GATES}",
        "--profiling=false",
    )
    return [manager, scheduler]


def start_dns(api: Api) -> Daemon:
    """CoreDNS on the address that pods are told, and the Service and the rights that it needs."""
    for item in _dns_objects():
        api.ensure(item)
    corefile = state_folder() / "Corefile"
    # No cache: a name answers as soon as its pod has an address.
    corefile.write_text(
        ".:53 {\n"
        f"  bind {layout.DNS_ADDRESS}\n"
        "  errors\n"
        f"  ready {CONTROL_ADDRESS}:8181\n"
        "  kubernetes cluster.local in-addr.arpa {\n"
        f"    kubeconfig {layout.kubeconfig('coredns')}\n"
        "    ttl 1\n"
        "  }\n"
        "}\n"
    )
    return _start("coredns", build.program("coredns"), "-conf", corefile)


def _dns_objects() -> list[dict[str, object]]:
    meta = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}]
    ports.append({"name": "dns-tcp", "port": 53, "protocol": "TCP"})
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**meta, "labels": {"k8s-app": "kube-dns"}},
            "spec": {"clusterIP": layout.DNS_ADDRESS, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [CONTROL_ADDRESS]}],
            "ports": ports,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "gpufabric-test-dns"},
            "rules": [
                {
                    "apiGroups": ["", "discovery.k8s.io"],
                    "resources": ["endpointslices", "services", "pods", "namespaces"],
                    "verbs": ["list", "watch"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "gpufabric-test-dns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "gpufabric-test-dns",
            },
            "subjects": [
                {
                    "kind": "User",
                    "apiGroup": "rbac.authorization.k8s.io",
                    "name": "system:kube-dns",
                }
            ],
        },
    ]


def wait_apiserver(timeout_s: float = 120) -> Api:
    """The API server once it says that it is ready."""
    daemon, _ = daemons.load("apiserver")
    api = Api(layout.kubeconfig())

    def ready() -> bool:
        daemons.check(daemon)
        try:
            return api.text("GET", "/readyz", timeout_s=5) == "ok"
        except (ApiError, OSError):
            return False

    wait_until("the API server is ready", ready, timeout_s=timeout_s,
               diagnose=lambda: tail(daemon.log))  # fmt: skip
    return api


def wait_takes_pods(api: Api, namespace: str, timeout_s: float = 60) -> None:
    """Wait until a new namespace takes pods: its account is made, and webhooks know of it.

    Each controller hears of it by its own watch, and after an API server's restart late.
    """
    container = {"name": "main", "image": layout.JOB_IMAGE}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": namespace},
        "spec": {"containers": [container]},
    }
    said = ""

    def taken() -> bool:
        nonlocal said
        try:
            api.create(pod, dry_run=True)
        except (ApiError, OSError) as exc:
            said = str(exc)
            return False
        return True

    wait_until(f"{namespace} takes pods", taken, timeout_s=timeout_s, diagnose=lambda: said)


def wait_whole(api: Api) -> None:
    """Wait until all controllers follow the API server, by making a namespace for pods."""
    name = f"probe-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    api.create(body)
    wait_takes_pods(api, name)
    api.delete(body)


def wait_dns(timeout_s: float = 60) -> None:
    """Wait until CoreDNS has read the cluster."""
    daemon, _ = daemons.load("coredns")

    def ready() -> bool:
        daemons.check(daemon)
        return responds(f"http://{CONTROL_ADDRESS}:8181/ready")

    wait_until("DNS is ready", ready, timeout_s=timeout_s, diagnose=lambda: tail(daemon.log))


def responds(url: str) -> bool:
    """Whether a local health endpoint says 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def health(api: Api) -> dict[str, str]:
    """What does not run or is not ready; empty when all is well."""
    bad = {name: state for name in daemons.names() if (state := daemons.state(name)) != "running"}
    try:
        for item in api.call("GET", "/api/v1/nodes", timeout_s=5)["items"]:
            conditions = {row["type"]: row["status"] for row in item["status"]["conditions"]}
            if conditions.get("Ready") != "True":
                bad[item["metadata"]["name"]] = "not Ready"
    except (ApiError, OSError, json.JSONDecodeError) as exc:
        bad["API server"] = str(exc)
    return bad
