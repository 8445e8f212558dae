"""The Google Cloud file against xpk, Google's own launcher of training jobs on GKE (Apache-2.0).

Needs xpk: `pip install --no-deps xpk` (its pins are too narrow for a dependency group). It brings
a table of machine types, and functions that put what the network needs into a JobSet: both are
compared with the rows. Every difference is listed here with its reason; none is silent.
"""

import importlib.util
from typing import Any

import pytest
import yaml

from gpufabric.catalog import Catalog
from gpufabric.catalog.rows import GpuDirect, KubernetesRow

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xpk") is None,
    reason="xpk is not installed (pip install --no-deps xpk): Google's table is not here",
)
CLOUD = Catalog.shipped().cloud("gcp")
WAYS = {"tcpx": "a3-highgpu-8g", "tcpxo": "a3-megagpu-8g", "rdma": "a4-highgpu-8g"}
EMPTY_JOBSET = """
spec:
  replicatedJobs:
  - template:
      spec:
        template:
          spec:
            containers: [{name: job, resources: {limits: {nvidia.com/gpu: 8}}}]
"""

MOUNT_DIFFERS = {
    ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"): (
        "/home/kubernetes/bin/nvidia/lib64",
        "/usr/local/nvidia/lib64",
        "xpk mounts the parent for TCPXO; Google's sample manifest mounts lib64 alone",
    )
}
ARGS_DIFFER = {
    "tcpx-daemon": "xpk keeps the quotes and a blank that a shell would take off",
    "tcpxo-daemon": "xpk passes flags that the daemon ignores with a warning since v1.0.18",
}
TAGS_DIFFER = {
    "tcpx-daemon": "xpk pins v2.0.11; v2.0.15 is of June 2026",
    "tcpxo-daemon": "xpk pins v1.0.12; v1.0.21 belongs to the plugin of the present installer",
}
ONLY_XPK = {"user-workload": "a taint that xpk itself puts on its pools"}
ONLY_OURS = {"IPC_LOCK": "in Google's TCPX sample for the job's container; xpk asks for none"}


def systems() -> list[Any]:
    if importlib.util.find_spec("xpk") is None:
        return []
    from xpk.core import system_characteristics as xpk

    table = xpk.UserFacingNameToSystemCharacteristics.values()
    return [one for one in table if one.accelerator_type == xpk.AcceleratorType.GPU]


def decorated(name: str) -> dict[str, Any]:
    """What xpk makes of a job for this kind of network: its pod template."""
    decorator = importlib.import_module(f"xpk.core.workload_decorators.{name}_decorator")
    fabric = [network for _, network in interfaces(way(name))]
    made = yaml.safe_load(decorator.decorate_jobset(EMPTY_JOBSET, fabric))
    template: dict[str, Any] = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def way(name: str) -> KubernetesRow:
    return CLOUD.kubernetes_rows(WAYS[name], "gke")[0]


def interfaces(row: KubernetesRow) -> list[tuple[str, str]]:
    listed = yaml.safe_load(row.annotations["networking.gke.io/interfaces"])
    return [(one["interfaceName"], one["network"]) for one in listed]


def host_mounts(template: dict[str, Any], container: dict[str, Any]) -> set[tuple[str, str]]:
    paths = {
        v["name"]: v["hostPath"]["path"] for v in template["spec"]["volumes"] if "hostPath" in v
    }
    return {
        (paths[m["name"]], m["mountPath"]) for m in container["volumeMounts"] if m["name"] in paths
    }


@pytest.mark.parametrize("system", systems(), ids=lambda one: one.gce_machine_type)
def test_a_machine_type_is_as_google_s_launcher_has_it(system):
    row = CLOUD.find_type(system.gce_machine_type)
    assert row is not None
    assert row.gpu.count == system.chips_per_vm
    assert (row.arch == "arm64") == ("arm" in str(system.docker_platform).lower())
    assert (row.nvlink_domain_gpus == 72) == (system.topology == "1x72")
    direct = system.gpu_config.gpu_direct_name
    theirs = GpuDirect.NONE if direct == "fastrak" else GpuDirect(direct)
    assert row.nics.gpudirect == theirs, "fastrak is xpk's default: it says nothing of a type"


@pytest.mark.parametrize("name", ["tcpx", "tcpxo"])
def test_annotations_are_those_of_google_s_launcher(name):
    annotations = decorated(name)["metadata"]["annotations"]
    ours = way(name).annotations
    assert set(ours) == set(annotations)
    for key, text in annotations.items():
        assert yaml.safe_load(ours[key]) == yaml.safe_load(text), key


@pytest.mark.parametrize("name", sorted(WAYS))
def test_host_paths_in_the_job_are_those_of_google_s_launcher(name):
    template = decorated(name)
    theirs = host_mounts(template, template["spec"]["containers"][0])
    if name == "tcpxo":
        theirs = {MOUNT_DIFFERS[pair][:2] if pair in MOUNT_DIFFERS else pair for pair in theirs}
    ours = {
        (mount.path, mount.mount_path)
        for mount in way(name).mounts
        if mount.source == "host_path" and "job" in mount.containers
    }
    assert ours == theirs


@pytest.mark.parametrize("name", ["tcpx", "tcpxo"])
def test_the_daemon_is_that_of_google_s_launcher(name):
    template = decorated(name)
    (theirs,) = template["spec"]["initContainers"]
    (ours,) = way(name).sidecars
    assert ours.name == theirs["name"]
    assert ours.native == (theirs["restartPolicy"] == "Always")
    assert list(ours.capabilities) == theirs["securityContext"]["capabilities"]["add"]
    assert ours.env == {one["name"]: one["value"] for one in theirs["env"]}
    assert ours.command[0] == theirs["command"][0]
    assert ours.name in ARGS_DIFFER
    image, _, tag = ours.image.rpartition(":")
    their_image, _, their_tag = theirs["image"].rpartition(":")
    assert image == their_image
    assert tag != their_tag, f"no difference any more: {TAGS_DIFFER[ours.name]}"
    mounted = host_mounts(template, theirs)
    if name == "tcpxo":
        mounted = {MOUNT_DIFFERS[pair][:2] if pair in MOUNT_DIFFERS else pair for pair in mounted}
    assert mounted == {
        (mount.path, mount.mount_path)
        for mount in way(name).mounts
        if mount.source == "host_path" and ours.name in mount.containers
    }


@pytest.mark.parametrize("name", sorted(WAYS))
def test_what_only_one_of_the_two_asks_for_is_known(name):
    template = decorated(name)
    keys = {one["key"] for one in template["spec"]["tolerations"]}
    assert keys - {one.key for one in way(name).tolerations} == set(ONLY_XPK)
    job = template["spec"]["containers"][0]
    assert "securityContext" not in job
    assert set(way(name).capabilities) == (set(ONLY_OURS) if name == "tcpx" else set())
