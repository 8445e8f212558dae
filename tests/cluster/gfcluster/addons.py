"""JobSet, Kueue and LeaderWorkerSet: their own objects, their own programs, their own webhooks.

Their programs run beside the control plane, in a bare root folder that looks like their container:
there the certificates of their webhooks lie where they expect them. They act with the service
account names, and so the rights, that their own manifests give.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import build, daemons, layout, pki
from .api import Api, ApiError
from .control import responds
from .daemons import Daemon
from .layout import CONTROL_ADDRESS, CONTROL_NETNS, state_folder
from .shell import ClusterError, tail, wait_until

Item = dict[str, Any]

_JOB = {"template": {"spec": {"restartPolicy": "Never", "containers": [
    {"name": "c", "image": layout.JOB_IMAGE}]}}}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Addon:
    """How one add-on is run here. What it consists of comes from its own module."""

    name: str
    namespace: str
    account: str
    webhook_port: int
    health_port: int
    config: Mapping[str, Any]
    probe: Mapping[str, Any]  # an object that the webhooks must let through once all works
    arguments: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The root folder that its program sees."""
        return state_folder() / "addons" / self.name


ADDONS = {
    addon.name: addon
    for addon in (
        Addon(
            name="jobset",
            namespace="jobset-system",
            account="jobset-controller-manager",
            webhook_port=9443,
            health_port=8081,
            config={"apiVersion": "config.jobset.x-k8s.io/v1alpha1"},
            probe={
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "probe", "namespace": "default"},
                "spec": {"replicatedJobs": [{"name": "j", "template": {"spec": _JOB}}]},
            },
        ),
        Addon(
            name="kueue",
            namespace="kueue-system",
            account="kueue-controller-manager",
            webhook_port=9444,
            health_port=8082,
            config={
                "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                "integrations": {
                    "frameworks": [
                        "batch/job",
                        "jobset.x-k8s.io/jobset",
                        "leaderworkerset.x-k8s.io/leaderworkerset",
                        "statefulset",
                        "deployment",
                        "pod",
                    ]
                },
            },
            probe={
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "ResourceFlavor",
                "metadata": {"name": "probe"},
            },
            arguments=("--feature-gates=VisibilityOnDemand=false",),
        ),
        Addon(
            name="lws",
            namespace="lws-system",
            account="lws-controller-manager",
            webhook_port=9445,
            health_port=8083,
            config={"apiVersion": "config.lws.x-k8s.io/v1alpha1"},
            probe={
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "metadata": {"name": "probe", "namespace": "default"},
                "spec": {"leaderWorkerTemplate": {"workerTemplate": {
                    "spec": {"containers": _JOB["template"]["spec"]["containers"]}}}},
            },
        ),
    )
}  # fmt: skip


def find(name: str) -> Addon:
    """The add-on of a name."""
    if name not in ADDONS:
        raise ClusterError(f"no add-on {name!r}; there are: {', '.join(ADDONS)}")
    return ADDONS[name]


def _objects(addon: Addon) -> list[Item]:
    """The add-on's own objects, changed only where its program is not a pod here."""
    found: list[Item] = []
    for item in build.manifests(addon.name):
        kind = item["kind"]
        if kind in ("Deployment", "APIService", "Secret"):
            continue  # it runs on the host; no visibility server; its certificates are ours
        if kind == "Service" and "webhook" in item["metadata"]["name"]:
            item["spec"].pop("selector")
            found.append(_endpoints(addon, item))
        if kind == "CustomResourceDefinition":
            conversion = item["spec"].get("conversion", {})
            if "webhook" in conversion:
                conversion["webhook"]["clientConfig"]["caBundle"] = pki.text64("ca.crt")
        for webhook in item.get("webhooks", ()):
            webhook["clientConfig"]["caBundle"] = pki.text64("ca.crt")
        found.append(item)
    first = ("Namespace", "CustomResourceDefinition", "ServiceAccount")
    last = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return sorted(found, key=lambda item: (item["kind"] in last) - (item["kind"] in first))


def _endpoints(addon: Addon, service: Item) -> Item:
    port = service["spec"]["ports"][0]
    meta = service["metadata"]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {"kubernetes.io/service-name": meta["name"]},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [CONTROL_ADDRESS]}],
        "ports": [{"name": port.get("name", ""), "port": addon.webhook_port, "protocol": "TCP"}],
    }


def _write_root(addon: Addon, objects: list[Item]) -> None:
    """The root folder of its program: program, settings, kubeconfig, certificates."""
    root = addon.root
    hosts = [
        f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc"
        for item in objects
        if item["kind"] == "Service"
    ]
    certificate = f"{addon.name}-webhook"
    pki.server(certificate, hosts, [CONTROL_ADDRESS])
    for place in ("tmp/k8s-webhook-server/serving-certs", "etc/kueue/metrics/certs"):
        folder = root / place
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(layout.pki(f"{certificate}.crt"), folder / "tls.crt")
        shutil.copy(layout.pki(f"{certificate}.key"), folder / "tls.key")
    user = f"system:serviceaccount:{addon.namespace}:{addon.account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{addon.namespace}"]
    pki.client(addon.name, user, groups)
    pki.write_kubeconfig(root / "kubeconfig", addon.name, user=addon.account)
    config = {
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{CONTROL_ADDRESS}:{addon.health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": addon.webhook_port},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        **addon.config,
    }
    (root / "config.json").write_text(json.dumps(config, indent=1))
    shutil.copy(build.program(addon.name), root / addon.name)


def install(api: Api, name: str) -> None:
    """Create an add-on's objects and start its program; `wait` tells when it works."""
    addon = find(name)
    objects = _objects(addon)
    _write_root(addon, objects)
    hooks = [item for item in objects if "webhooks" in item]
    rest = [item for item in objects if "webhooks" not in item]
    definitions = [item for item in rest if item["kind"] == "CustomResourceDefinition"]
    for item in rest:
        api.ensure(item)
    _wait_definitions(api, definitions)
    daemons.start(
        name,
        [
            "nsenter",
            f"--net=/run/netns/{CONTROL_NETNS}",
            f"--root={addon.root}",
            "--",
            f"/{name}",
            "--config=/config.json",
            "--kubeconfig=/kubeconfig",
            *addon.arguments,
        ],
    )
    wait_serving(name)
    for item in hooks:
        api.ensure(item)


def _wait_definitions(api: Api, definitions: list[Item]) -> None:
    for item in definitions:
        api.wait_true(api.object_path(item), "Established")


def wait_serving(name: str, timeout_s: float = 120) -> Daemon:
    """Wait until an add-on's program says that it is ready."""
    addon = find(name)
    daemon, _ = daemons.load(name)

    def ready() -> bool:
        daemons.check(daemon)
        return responds(f"http://{CONTROL_ADDRESS}:{addon.health_port}/readyz")

    wait_until(f"{name} is ready", ready, timeout_s=timeout_s, diagnose=lambda: tail(daemon.log))
    return daemon


def wait_admitting(api: Api, name: str, timeout_s: float = 60) -> None:
    """Wait until the API server lets an object of the add-on through its webhooks."""
    addon = find(name)
    said = ""

    def admitted() -> bool:
        nonlocal said
        try:
            api.create(addon.probe, dry_run=True)
        except (ApiError, OSError) as exc:
            said = str(exc)
            return False
        return True

    wait_until(f"{name} admits objects", admitted, timeout_s=timeout_s, diagnose=lambda: said)


def remove(api: Api, name: str) -> None:
    """Stop an add-on's program and delete its objects: the cluster is then one without it."""
    addon = find(name)
    objects = _objects(addon)
    hooks = [item for item in objects if "webhooks" in item]
    for item in hooks:
        api.delete(item)
    for item in objects:
        if item["kind"] == "CustomResourceDefinition":
            api.delete(item)
    for item in objects:
        if item["kind"] == "CustomResourceDefinition":
            api.wait_gone(api.object_path(item))
    daemons.kill(name)
    daemons.forget(name)
    for item in reversed([item for item in objects if item not in hooks]):
        if item["kind"] != "CustomResourceDefinition":
            api.delete(item)
    api.wait_gone(f"/api/v1/namespaces/{addon.namespace}")
    shutil.rmtree(addon.root)


def installed(api: Api) -> list[str]:
    """The add-ons that this cluster has."""
    return [
        name for name, addon in ADDONS.items() if api.get(f"/api/v1/namespaces/{addon.namespace}")
    ]
