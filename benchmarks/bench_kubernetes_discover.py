"""What discovery of a large cluster costs: python benchmarks/bench_kubernetes_discover.py

5,000 nodes and 50,000 pods of the size that real ones have (10 kB and 6 kB: images, managed
fields, statuses), given in pages by a small server in a process of its own. Wall time, CPU time
and peak memory of the client alone, in a fresh interpreter. Figures are printed, never asserted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Item = dict[str, Any]
BUDGET = "15 s, 400 MiB"

CLIENT = """
import json, resource, sys, time
bare = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.config import Settings
backend = Kubernetes(kubeconfig=sys.argv[1], settings=Settings(trust_env=False), image="i")
wall, cpu = time.perf_counter(), time.process_time()
site = backend.discover()
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
text = site.to_yaml()
print(json.dumps({
    "wall": wall, "cpu": cpu, "peak": peak / 1024, "bare": bare / 1024,
    "pools": len(site.pools), "nodes": sum(p.nodes_total for p in site.pools),
    "free": sum(p.nodes_free for p in site.pools), "unseen": site.unseen,
    "yaml": len(text) / 2**20, "yaml_cpu": time.process_time() - start,
}))
"""


def managed(manager: str, size: int) -> Item:
    """A record of who owns which field, as the server keeps several of for every object."""
    fields = {f"f:field-{number}": {} for number in range(size)}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1",
            "time": "2026-11-30T08:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": fields}}  # fmt: skip


def node() -> Item:
    """A node of EKS: NAME and NUMBER are filled in."""
    labels = {
        "node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/region": "us-e",
        "topology.kubernetes.io/zone": "us-east-1a", "topology.k8s.aws/network-node-layer-1": "nn1",
        "topology.k8s.aws/network-node-layer-2": "nn-1-RACK",
        "topology.k8s.aws/network-node-layer-3": "nn-1-1-RACK", "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "NAME", "eks.amazonaws.com/nodegroup": "gpu",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        **{f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{n}": "true" for n in range(40)},
    }  # fmt: skip
    amounts = {"cpu": "191450m", "memory": "2047Gi", "nvidia.com/gpu": "8", "pods": "100",
               "vpc.amazonaws.com/efa": "32", "ephemeral-storage": "1Ti"}  # fmt: skip
    images = [
        {"names": [f"registry.example/team/image-{n}@sha256:{n:064x}"], "sizeBytes": 9 * 10**9}
        for n in range(40)
    ]
    conditions = [
        {"type": kind, "status": "True" if kind == "Ready" else "False", "reason": "KubeletSays",
         "message": "the kubelet says so", "lastHeartbeatTime": "2026-11-30T08:00:00Z"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]  # fmt: skip
    return {
        "metadata": {"name": "NAME", "uid": "NUMBER", "labels": labels,
                     "managedFields": [managed("kubelet", 40), managed("nfd", 60)]},
        "spec": {"providerID": "aws:///us-east-1a/i-NUMBER", "taints": [
            {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions,
                   "images": images, "nodeInfo": {"kubeletVersion": "v1.36.3"}},
    }  # fmt: skip


def pod() -> Item:
    """A pod of a training job or a daemon: NAME, NUMBER, NODE and GPUS are filled in."""
    env = [{"name": f"VARIABLE_{n}", "value": f"some value of the job {n}"} for n in range(36)]
    container = {
        "name": "job", "image": "registry.example/team/train:3", "env": env,
        "command": ["/bin/sh", "-c", "exec torchrun --nnodes 4 train.py"],
        "resources": {"requests": {"cpu": "1500m", "memory": "8Gi", "nvidia.com/gpu": "GPUS"},
                      "limits": {"nvidia.com/gpu": "GPUS"}},
        "volumeMounts": [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(6)],
    }  # fmt: skip
    status = {"name": "job", "ready": True, "restartCount": 0, "image": container["image"],
              "imageID": f"registry.example/team/train@sha256:{7:064x}",
              "state": {"running": {"startedAt": "2026-11-30T08:00:00Z"}}}  # fmt: skip
    return {
        "metadata": {"name": "NAME", "namespace": "team", "uid": "NUMBER",
                     "labels": {"app": "train", "job-name": "train"},
                     "managedFields": [managed("kube-controller-manager", 80),
                                       managed("kubelet", 60)]},
        "spec": {"nodeName": "NODE", "containers": [container], "restartPolicy": "Never",
                 "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(6)],
                 "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [status],
                   "conditions": [{"type": kind, "status": "True",
                                   "lastTransitionTime": "2026-11-30T08:00:00Z"}
                                  for kind in ("PodScheduled", "Initialized", "Ready")]},
    }  # fmt: skip


def serve(nodes: int, pods: int) -> None:
    """Answers on a free port, whose number is the first line of the output, until killed."""
    of_node, of_pod = (json.dumps(one, separators=(",", ":")) for one in (node(), pod()))

    def item(kind: str, number: int) -> str:
        if kind == "nodes":
            filled = of_node.replace("NAME", f"node-{number}").replace("NUMBER", f"{number:08d}")
            return filled.replace("RACK", str(number // 16))
        gpus = "8" if number < nodes // 2 else "0"
        filled = of_pod.replace("NAME", f"pod-{number}").replace("NUMBER", f"{number:08d}")
        return filled.replace("NODE", f"node-{number % nodes}").replace("GPUS", gpus)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 20

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            counts = {"/api/v1/nodes": ("nodes", nodes), "/api/v1/pods": ("pods", pods)}
            if url.path in counts:
                kind, total = counts[url.path]
                start, most = int(query.get("continue", "0")), int(query.get("limit", "500"))
                end = min(total, start + most)
                more = str(end) if end < total else ""
                items = ",".join(item(kind, number) for number in range(start, end))
                text = f'{{"metadata":{{"continue":"{more}"}},"items":[{items}]}}'
            else:
                text = '{"items":[],"groups":[],"metadata":{},"data":{"status":"nodeGroups: []"}}'
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]} {len(of_node)} {len(of_pod)}\n")
    sys.stdout.flush()
    server.serve_forever()


def kubeconfig(port: int) -> str:
    """A kubeconfig of the server."""
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "c", "user": "u"}}],
    })  # fmt: skip


def main() -> None:
    """Starts the server, and measures a client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--serve", action="store_true", help="be the server")
    given = parser.parse_args()
    if given.serve:
        serve(given.nodes, given.pods)
        return
    sizes = ["--nodes", str(given.nodes), "--pods", str(given.pods)]
    words = [sys.executable, __file__, "--serve", *sizes]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port, of_node, of_pod = map(int, server.stdout.readline().split())
            with tempfile.TemporaryDirectory() as folder:
                config = Path(folder) / "config"
                config.write_text(kubeconfig(port), encoding="utf-8")
                took = json.loads(
                    subprocess.run(
                        [sys.executable, "-c", CLIENT, str(config)],
                        check=True, capture_output=True, text=True,
                    ).stdout
                )  # fmt: skip
        finally:
            server.kill()
    print(f"{given.nodes} nodes of {of_node} bytes, {given.pods} pods of {of_pod}")
    print(f"  discover: {took['wall']:.1f} s, {took['cpu']:.1f} s CPU (budget {BUDGET})")
    print(f"  peak memory: {took['peak']:.0f} MiB, {took['bare']:.0f} of it a bare interpreter")
    print(f"  {took['nodes']} nodes in {took['pools']} pools, {took['free']} whole and free")
    print(f"  the site as YAML: {took['yaml']:.1f} MiB, {took['yaml_cpu']:.1f} s CPU")
    for text in took["unseen"]:
        print(f"  unseen: {text}")


if __name__ == "__main__":
    main()
