"""Faults: end, pause or cut off any part of the cluster, and heal it again."""

import functools
import shutil

from . import addons, control, daemons, dress, layout, machine, net, nodes
from .api import Api
from .layout import Node
from .shell import ClusterError, say, wait_until


def kill(name: str) -> None:
    """End a program with SIGKILL, as a crash does."""
    daemons.kill(name)


def start(name: str) -> None:
    """Start a program that ended, and wait until it serves."""
    daemons.restart(name)
    _wait(name)


def pause(name: str) -> None:
    """Stop a program where it is: it answers nothing, and its connections stay open."""
    daemons.pause(name)


def resume(name: str) -> None:
    """Let a paused program go on."""
    daemons.resume(name)


def cut(node: Node) -> None:
    """Pull a node's network cable: its pods run on, and nobody hears of them."""
    net.cut(node.name)


def mend(node: Node) -> None:
    """Put the cable back."""
    net.cut(node.name, mend=True)


def crash(node: Node) -> None:
    """Cut a node's power: kubelet, containerd and every container end at once."""
    daemons.kill(f"{node.name}/machine")
    for name in ("containerd", "kubelet"):
        program = f"{node.name}/{name}"
        wait_until(f"{program} has ended", functools.partial(_ended, program), timeout_s=30)


def _ended(name: str) -> bool:
    return daemons.state(name) == "ended"


def boot(node: Node) -> None:
    """Start a node that crashed: its images are there, its containers are gone."""
    shutil.rmtree(node.folder / "run", ignore_errors=True)
    for name in ("containerd", "kubelet"):
        daemons.forget(f"{node.name}/{name}")
    machine.start(node)
    nodes.start_containerd(node)
    nodes.wait_containerd(node)
    nodes.start_kubelet(node)


FAULTS = {"kill": kill, "start": start, "pause": pause, "resume": resume}
NODE_FAULTS = {"cut": cut, "mend": mend, "crash": crash, "boot": boot}


def inflict(fault: str, target: str, all_nodes: tuple[Node, ...]) -> None:
    """Do a fault of this name to a program or a node."""
    if fault in FAULTS:
        FAULTS[fault](target)
        return
    by_name = {node.name: node for node in all_nodes}
    if target not in by_name:
        raise ClusterError(f"no node {target!r}; there are: {', '.join(by_name)}")
    NODE_FAULTS[fault](by_name[target])


def heal(all_nodes: tuple[Node, ...]) -> Api:
    """Undo every fault: all programs run, all cables are in, all nodes are ready."""
    for node in all_nodes:
        mend(node)
    for name in daemons.names():
        if daemons.state(name) == "paused":
            say(f"resuming {name}")
            daemons.resume(name)
    for name in ("etcd", "apiserver"):
        daemons.restart(name)
    api = control.wait_apiserver()
    for node in all_nodes:
        if daemons.state(f"{node.name}/machine") == "ended":
            say(f"booting {node.name}")
            boot(node)
    ended = [name for name in daemons.names() if daemons.state(name) == "ended"]
    for name in sorted(ended):  # containerd comes before kubelet
        say(f"starting {name}")
        daemons.restart(name)
        _wait(name)
    nodes.wait_ready(api, all_nodes)
    for name in addons.ADDONS:
        if name in daemons.names():
            addons.wait_serving(name)
            addons.wait_admitting(api, name)
    control.wait_whole(api)
    for node in all_nodes:
        dress.again(api, node)
    return api


def _wait(name: str) -> None:
    """Wait until a program that was started serves; kubelets are waited for as nodes."""
    if name == "apiserver":
        control.wait_apiserver()
    elif name == "coredns":
        control.wait_dns()
    elif name in addons.ADDONS:
        addons.wait_serving(name)
    elif name.endswith("/containerd"):
        nodes.wait_containerd(layout.node(name.partition("/")[0]))
