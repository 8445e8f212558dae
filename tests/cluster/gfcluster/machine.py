"""A node as a machine: its own processes, mounts, network and files, and the size of a GPU server.

Its root is a copy-on-write view of this machine's, so whatever a pod writes to its host, or a
plug-in installs there, never reaches this machine. When its first process ends, the kernel ends
all its other processes, containers too, and its mounts are gone.
"""

import errno
import functools
import re
import shutil
from pathlib import Path

from . import daemons
from .daemons import Daemon
from .layout import CGROUP, Node, cache_folder, state_folder
from .shell import ClusterError, run, tail, wait_until

CPUS = 192
MEMORY_GIB = 2048
HUGE_PAGES_2MI = 16384

# Folders that need a real file system, which the copy-on-write root is not: containers' layers
# and volumes lie there.
_REAL = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
)

_DEVICES = {
    "null": "c 1 3",
    "zero": "c 1 5",
    "full": "c 1 7",
    "random": "c 1 8",
    "urandom": "c 1 9",
    "kmsg": "c 1 11",
    "tty": "c 5 0",
}


def _script(node: Node) -> str:
    """What the first process does before it waits: build the root folder, and move into it."""
    folder, root = node.folder, node.folder / "root"
    size = folder / "size"
    lines = [
        "set -e",
        "mount --make-rprivate /",
        f"mkdir {folder}/changes {root}",
        f"mount -t tmpfs -o size=1g changes {folder}/changes",
        f"mkdir {folder}/changes/files {folder}/changes/work",
        (
            f"mount -t overlay overlay {root} "
            f"-o lowerdir=/,upperdir={folder}/changes/files,workdir={folder}/changes/work"
        ),
        f"cd {root}",
        "mount -t proc proc proc",
        "mount --rbind /sys sys",
        "mount -t tmpfs -o mode=755 dev dev",
        *(f"mknod -m 666 dev/{name} {numbers}" for name, numbers in _DEVICES.items()),
        "mkdir dev/pts dev/shm",
        "mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts",
        "ln -s pts/ptmx dev/ptmx",
        "ln -s /proc/self/fd dev/fd",
        "mount -t tmpfs shm dev/shm",
        "mount -t tmpfs -o mode=755 run run",
        "mount -t tmpfs -o mode=1777 tmp tmp",
    ]
    for shared in (state_folder(), cache_folder()):
        lines += [f"mkdir -p .{shared}", f"mount --bind {shared} .{shared}"]
    for real in _REAL:
        mine = folder / "real" / real.strip("/").replace("/", "-")
        lines += [f"mkdir -p {mine} .{real}", f"mount --bind {mine} .{real}"]
    lines += [
        f"mount --bind {size}/meminfo proc/meminfo",
        f"mount --bind {size}/node sys/devices/system/node",
        f"mount --bind {size}/online sys/devices/system/cpu/online",
        f"mount --bind {size}/hugepages sys/kernel/mm/hugepages",
        "mkdir -p old-root",
        "pivot_root . old-root",
        "umount --lazy /old-root",
        "mount --make-rshared /",  # pods may ask for mount propagation
        f"touch {folder}/ready",
        # bash collects the processes that lose their parents, as a first process must
        "sleep infinity & wait",
    ]
    return "\n".join(lines)


def _write_size(node: Node) -> None:
    """The files that kubelet reads a machine's size from. Real GPU pods ask for most of it."""
    size = node.folder / "size"
    size.mkdir(parents=True)
    memory = Path("/proc/meminfo").read_text()
    total = f"MemTotal: {MEMORY_GIB * 2**20} kB"
    (size / "meminfo").write_text(
        re.sub(r"^MemTotal:.*$", total, memory, count=1, flags=re.MULTILINE)
    )
    (size / "online").write_text(f"0-{CPUS - 1}\n")
    numa = size / "node" / "node0"
    for cpu in range(CPUS):
        topology = numa / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{cpu // 2}\n")
        (topology / "physical_package_id").write_text("0\n")
    (numa / "meminfo").write_text(f"Node 0 {total}\n")
    (numa / "distance").write_text("10\n")
    for folder in (size / "hugepages", numa / "hugepages"):
        pages = folder / "hugepages-2048kB"
        pages.mkdir(parents=True)
        (pages / "nr_hugepages").write_text(f"{HUGE_PAGES_2MI}\n")


def start(node: Node) -> Daemon:
    """Start a node's first process, and wait until the node has its root folder."""
    node.folder.mkdir(parents=True, exist_ok=True)
    for name in ("size", "changes", "root"):  # of a node that crashed
        if (node.folder / name).exists():
            shutil.rmtree(node.folder / name)
    (node.folder / "ready").unlink(missing_ok=True)
    _write_size(node)
    daemon = daemons.start(
        f"{node.name}/machine",
        [
            "nsenter",
            f"--net=/run/netns/{node.netns}",
            "--",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            _script(node),
        ],
    )

    def ready() -> bool:
        daemons.check(daemon)
        return (node.folder / "ready").exists()

    wait_until(f"{node.name} has its root folder", ready, timeout_s=30,
               diagnose=lambda: tail(daemon.log))  # fmt: skip
    return daemon


def holder(node: Node) -> int:
    """The process id of a node's first process, as seen from this machine."""
    _, outer = daemons.load(f"{node.name}/machine")
    inner = daemons.child(outer) if outer else None
    if inner is None:
        raise ClusterError(f"{node.name} does not run: is the cluster up?")
    return inner


def inside(node: Node, *argv: str | Path) -> list[str]:
    """The command that runs a program on a node."""
    target = f"--target={holder(node)}"
    return ["nsenter", target, "--mount", "--net", "--pid", "--", *(str(word) for word in argv)]


def execute(node: Node, *argv: str | Path) -> str:
    """Run a program on a node to its end; what it said."""
    return run(inside(node, *argv))


# ---- control groups: the one thing that nodes share with this machine


def make_cgroups() -> None:
    """Make the group that containerd puts containers in, noting where it was absent."""
    for hierarchy in daemons.cgroup_roots():
        group = hierarchy / CGROUP
        if not group.exists():
            group.mkdir()
            with (state_folder() / "made-cgroups").open("a") as notes:
                notes.write(f"{group}\n")
        # A new version 1 cpuset has no processors, and nothing can run in it until it has some.
        for name in ("cpuset.cpus", "cpuset.mems"):
            setting = group / name
            if setting.exists() and not setting.read_text().strip():
                setting.write_text((hierarchy / name).read_text())


def remove_cgroups() -> None:
    """Remove the groups that `make_cgroups` made, and none that was there before."""
    notes = state_folder() / "made-cgroups"
    if not notes.exists():
        return
    for line in notes.read_text().splitlines():
        top = Path(line)
        wait_until(f"{top} is empty", functools.partial(_remove, top), timeout_s=30)


def _remove(top: Path) -> bool:
    """Remove a tree of groups; not yet possible while the kernel still empties one."""
    try:
        for group in sorted(top.glob("**/"), reverse=True):
            group.rmdir()
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        return False
    return True
