"""The cluster's network: one namespace for the control plane, one for each node, one switch.

    this machine         gfc-cp, the control plane           gfc-n1, node-1
    gfc-host 10.240.0.1 ─ br0 10.240.0.2, lo 10.241.0.1, .10 ─ eth0 10.240.0.11
                                                              pods 10.240.101.0/24

The switch is inside the control plane's namespace, so this machine's firewall never sees the
cluster's traffic, no port of this machine is taken, and deleting the namespaces removes it all.
"""

from . import layout
from .layout import CONTROL_NETNS, Node
from .shell import ClusterError, run


def inside(netns: str, *argv: str) -> list[str]:
    """The command that runs a program in a network namespace and nothing else changed.

    Not `ip netns exec`: that mounts a new /sys, which hides the control groups.
    """
    return ["nsenter", f"--net=/run/netns/{netns}", "--", *argv]


def _ip(netns: str, text: str) -> None:
    run(inside(netns, "ip", *text.split()))


def _forward(netns: str) -> None:
    run(inside(netns, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))


def up(nodes: tuple[Node, ...]) -> None:
    """Make the namespaces, the switch and the routes."""
    taken = run(["ip", "route", "show", "root", "10.240.0.0/15"]).strip()
    if taken:
        raise ClusterError(f"this machine already uses addresses of 10.240.0.0/15: {taken}")
    run(["ip", "netns", "add", CONTROL_NETNS])
    for text in (
        "link set lo up",
        f"address add {layout.API_SERVICE_ADDRESS}/32 dev lo",
        f"address add {layout.DNS_ADDRESS}/32 dev lo",
        "link add br0 type bridge",
        "link set br0 up",
        f"address add {layout.CONTROL_ADDRESS}/24 dev br0",
    ):
        _ip(CONTROL_NETNS, text)
    _forward(CONTROL_NETNS)
    run(f"ip link add {layout.HOST_LINK} type veth peer name host netns {CONTROL_NETNS}".split())
    _ip(CONTROL_NETNS, "link set host master br0 up")
    run(f"ip address add {layout.HOST_ADDRESS}/24 dev {layout.HOST_LINK}".split())
    run(f"ip link set {layout.HOST_LINK} up".split())
    for node in nodes:
        _node_up(node)
    for node in nodes:
        _ip(CONTROL_NETNS, f"route add {node.pod_subnet} via {node.address}")
        for other in nodes:
            if other != node:
                _ip(node.netns, f"route add {other.pod_subnet} via {other.address}")


def _node_up(node: Node) -> None:
    run(["ip", "netns", "add", node.netns])
    _ip(CONTROL_NETNS, f"link add {node.name} type veth peer name eth0 netns {node.netns}")
    _ip(CONTROL_NETNS, f"link set {node.name} master br0 up")
    for text in (
        "link set lo up",
        f"address add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {layout.CONTROL_ADDRESS}",
    ):
        _ip(node.netns, text)
    _forward(node.netns)


def cut(node: str, *, mend: bool = False) -> None:
    """Pull a node's cable, or put it back."""
    _ip(CONTROL_NETNS, f"link set {node} {'up' if mend else 'down'}")


def leftovers() -> list[str]:
    """The names of what is there of this network."""
    links = run(["ip", "-o", "link", "show", "type", "veth"])
    found = [f"link {layout.HOST_LINK}"] if f" {layout.HOST_LINK}@" in links else []
    spaces = (line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line)
    return found + [f"netns {name}" for name in spaces if name.startswith("gfc-")]


def down() -> None:
    """Remove the namespaces, and with them every link."""
    for thing in leftovers():
        kind, name = thing.split()
        if kind == "netns":
            run(["ip", "netns", "delete", name])
    if any(thing.startswith("link ") for thing in leftovers()):
        run(["ip", "link", "delete", layout.HOST_LINK])
