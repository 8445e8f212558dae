"""Two clusters for 03-kubernetes.ipynb: stand-ins in this process, with pods that really run.

The notebook knows nothing of it: it reads a kubeconfig, as it would on yours. `eks-prod` has two
p5.48xlarge nodes with EFA, `nebius-eu` two H100 nodes in one GPU cluster.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / part) for part in ("kubernetes", "cluster")]

IMAGE = "registry.example/train:3"
PLACES = {"eks-prod": "eks-p5", "nebius-eu": "nebius-h100"}


@contextlib.contextmanager
def clusters(folder: Path) -> Iterator[Path]:
    """Gives a kubeconfig with both; they end with the block."""
    from kubefake import FakeCluster

    with contextlib.ExitStack() as stack:
        parts: list[dict[str, Any]] = []
        for name, profile in PLACES.items():
            cluster = FakeCluster(folder / name, image=IMAGE)
            stack.callback(cluster.stop)
            cluster.start()
            cluster.dress(profile)
            cluster.api.create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
            )
            parts.append(_renamed(cluster.kubeconfig, name))
        merged = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "eks-prod",
            **{key: [part[key] for part in parts] for key in ("clusters", "users", "contexts")},
        }
        kubeconfig = folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(json.dumps(merged), encoding="utf-8")
        yield kubeconfig


def _renamed(kubeconfig: Path, name: str) -> dict[str, Any]:
    """Its only cluster, user and context, under one name."""
    read = json.loads(kubeconfig.read_text(encoding="utf-8"))
    return {
        "clusters": {"name": name, "cluster": read["clusters"][0]["cluster"]},
        "users": {"name": name, "user": read["users"][0]["user"]},
        "contexts": {
            "name": name,
            "context": {"cluster": name, "user": name, "namespace": "ml"},
        },
    }
