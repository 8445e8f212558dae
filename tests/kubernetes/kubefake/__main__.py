"""A fake cluster in a process of its own, for benchmarks: it shares no core with what is measured.

    python -m kubefake [--nodes N] [--load FILE] [--logs NAMESPACE/POD=RATE:SECONDS ...]

(with tests/kubernetes and tests/cluster on PYTHONPATH). The first line of its output is the path of
a kubeconfig; it serves until its standard input ends. FILE holds one object a line.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from .cluster import FakeCluster
from .logs import Synthetic


def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(prog="kubefake", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--logs", nargs="*", default=[])
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeCluster.started(Path(folder), nodes=args.nodes) as cluster,
    ):
        if args.load is not None:
            with args.load.open(encoding="utf-8") as lines:
                cluster.load(json.loads(line) for line in lines)
        for row in args.logs:
            place, _, spec = row.partition("=")
            rate, _, seconds = spec.partition(":")
            namespace, _, pod = place.partition("/")
            cluster.say(namespace, pod, Synthetic(rate=int(rate), seconds=float(seconds)))
        sys.stdout.write(f"{cluster.kubeconfig}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
