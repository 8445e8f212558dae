"""Up and down: the whole cluster, from nothing to ready and back to nothing."""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import addons, build, control, daemons, layout, machine, net, nodes
from .api import Api
from .layout import Node, state_folder
from .shell import ClusterError, run, say


def require_root() -> None:
    """Raise if this is not root."""
    if os.geteuid() != 0:
        raise ClusterError(
            "the test cluster makes network namespaces and containers, so it needs root; "
            "without root, set GPUFABRIC_TEST_KUBECONFIG to use another cluster"
        )


def description() -> dict[str, object] | None:
    """What `up` wrote once the cluster was ready; None while there is none."""
    try:
        row: dict[str, object] = json.loads((state_folder() / "up.json").read_text())
    except FileNotFoundError:
        return None
    return row


def running_nodes() -> tuple[Node, ...]:
    """The nodes of the cluster that is up."""
    row = description()
    if row is None:
        raise ClusterError("no cluster is up; run: cluster.py up")
    return layout.nodes(int(str(row["nodes"])))


def up(count: int = 2, wanted: tuple[str, ...] = layout.ADDONS) -> None:
    """Bring the cluster up, or leave it as it is when that very cluster is up and well."""
    if not 1 <= count <= layout.MAX_NODES:
        raise ClusterError(f"{count} nodes: from 1 to {layout.MAX_NODES} are possible")
    for name in wanted:
        addons.find(name)
    require_root()
    build.build()
    with layout.alone():
        row = _description(count, wanted)
        if description() == row and not control.health(Api(layout.kubeconfig())):
            say("already up")
            return
        _clear()
        started = time.monotonic()
        try:
            _start(layout.nodes(count), wanted)
        except BaseException:
            say(f"not up; see {state_folder()}/logs, then run: cluster.py down")
            raise
        (state_folder() / "up.json").write_text(json.dumps(row))
        say(f"up in {time.monotonic() - started:.1f} s")


def _description(count: int, wanted: tuple[str, ...]) -> dict[str, object]:
    folders = sorted(str(module.folder.name) for module in build.MODULES.values())
    return {"nodes": count, "addons": sorted(wanted), "built": folders}


def _start(all_nodes: tuple[Node, ...], wanted: tuple[str, ...]) -> None:
    state_folder().mkdir(parents=True, mode=0o711)
    machine.make_cgroups()
    with ThreadPoolExecutor() as pool:
        certificates = pool.submit(control.certificates, all_nodes)
        net.up(all_nodes)
        certificates.result()
        control.start_etcd()
        control.start_apiserver()
        images = [pool.submit(_start_runtime, node) for node in all_nodes]
        api = control.wait_apiserver()
        say("API server is ready")
        control.start_controllers()
        control.start_dns(api)
        installing = [pool.submit(addons.install, api, name) for name in wanted]
        for future in images:
            future.result()
        for node in all_nodes:
            nodes.start_kubelet(node)
        nodes.wait_ready(api, all_nodes)
        say(f"{len(all_nodes)} nodes are ready")
        control.wait_dns()
        for future in installing:
            future.result()
    for name in wanted:
        addons.wait_admitting(api, name)
        say(f"{name} is ready")
    control.wait_whole(api)


def _start_runtime(node: Node) -> None:
    machine.start(node)
    nodes.start_containerd(node)
    nodes.wait_containerd(node)
    nodes.import_image(node)
    nodes.write_kubelet_config(node)


def down() -> None:
    """End the cluster and remove everything that it made; succeeds when there is none."""
    require_root()
    with layout.alone():
        _clear()


def _clear() -> None:
    daemons.end_all()
    for mount in reversed(mounts()):
        run(["umount", "--lazy", mount])
    net.down()
    machine.remove_cgroups()
    shutil.rmtree(state_folder(), ignore_errors=False) if state_folder().exists() else None


def mounts() -> list[str]:
    """What is mounted under the cluster's folder."""
    prefix = f"{state_folder()}/"
    rows = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [row[1] for row in rows if row[1].startswith(prefix)]


def leftovers() -> list[str]:
    """All that is there of a cluster; nothing after `down`."""
    found = [f"process {pid}" for pid in sorted(daemons.marked())]
    found += [f"mount {mount}" for mount in mounts()]
    found += net.leftovers()
    if state_folder().exists():
        found.append(f"folder {state_folder()}")
    return found


def status() -> dict[str, object]:
    """What there is, and how it is."""
    row = description()
    if row is None:
        left = leftovers()
        return {"state": "half" if left else "down", "leftovers": left}
    api = Api(layout.kubeconfig())
    bad = control.health(api)
    return {
        "state": "degraded" if bad else "up",
        "bad": bad,
        "kubeconfig": str(layout.kubeconfig()),
        "server": layout.SERVER,
        "processes": {name: daemons.state(name) for name in daemons.names()},
        **row,
    }
