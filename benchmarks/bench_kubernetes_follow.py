"""What following costs: 256 ranks x 1,000 lines a second by one reader, none lost, none doubled.

Run it: `python benchmarks/bench_kubernetes_follow.py [--ranks 256] [--rate 1000] [--seconds 10]`.
It prints one line a figure; nothing is asserted. A small API server in another process makes the
lines as a kubelet does: every line a chunk of its own, with its time. It cuts a connection in
the middle of a line every quarter of a second. Only the reader's processor time counts.
"""

import argparse
import contextlib
import datetime as dt
import json
import multiprocessing
import os
import platform
import re
import resource
import selectors
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import cast

_PAD = b"loss 0.12345 grad_norm 1.2345 tokens/s 12345.6 mfu 0.4567 eta 1:23:45"
_TICK_S = 0.02
_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n"
_JOB = "bench-00000000"


def machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Server:
    """A job of so many pods that all write the same lines at the same times."""

    def __init__(self, args: argparse.Namespace, context: ssl.SSLContext | None) -> None:
        self.ranks, self.rate, self.total = args.ranks, args.rate, args.rate * args.seconds
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.logs: dict[socket.socket, int] = {}
        self.watches: dict[socket.socket, str] = {}
        self.unsent: dict[socket.socket, bytearray] = {}
        self.began = 0.0
        self.cuts = 0
        self.over = False
        self.made: dict[tuple[int, int], bytes] = {}

    # ---- what there is

    def line(self, number: int) -> bytes:
        micros = number * 1_000_000 // self.rate
        at = dt.datetime.fromtimestamp(self.began + micros // 1_000_000, dt.UTC)
        stamp = f"{at:%Y-%m-%dT%H:%M:%S}.{micros % 1_000_000:06d}000Z"
        return b"%s line %d %s\n" % (stamp.encode(), number, _PAD)

    def lines(self, first: int, after: int) -> bytes:
        if (first, after) not in self.made:
            if len(self.made) > 100:
                self.made.clear()
            self.made[first, after] = b"".join(chunk(self.line(n)) for n in range(first, after))
        return self.made[first, after]

    def objects(self, kind: str) -> list[dict[str, object]]:
        at = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z"}
        labels = {"gpufabric.io/job": _JOB}
        meta = {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}
        if kind == "jobs":
            done = [{"type": "Complete", "status": "True"}] if self.over else []
            notes = {"gpufabric.io/num-nodes": str(self.ranks)}
            return [{
                "metadata": {**meta, "name": _JOB, "uid": "j", "labels": labels,
                             "annotations": notes},
                "spec": {}, "status": {"conditions": done},
            }]  # fmt: skip
        if kind != "pods":
            return []
        state = {"terminated": {"exitCode": 0, **at}} if self.over else {"running": at}
        return [{
            "metadata": {
                **meta, "name": f"pod-{rank}", "uid": f"u{rank}",
                "labels": {**labels, "batch.kubernetes.io/job-completion-index": str(rank)},
            },
            "spec": {"nodeName": f"n{rank}"},
            "status": {"phase": "Succeeded" if self.over else "Running",
                       "containerStatuses": [{"name": "job", "state": state}]},
        } for rank in range(self.ranks)]  # fmt: skip

    # ---- requests

    def serve(self) -> None:
        due = time.monotonic()
        cut = due + 1.0
        while True:
            for key, _ in self.selector.select(max(0.0, due - time.monotonic())):
                if key.fileobj is self.listener:
                    self.accept()
                else:
                    self.read(cast("socket.socket", key.fileobj))
            if time.monotonic() < due:
                continue
            due = max(due + _TICK_S, time.monotonic())
            self.write()
            if self.logs and time.monotonic() > cut and not self.over:
                cut = time.monotonic() + 0.25
                self.cut()

    def accept(self) -> None:
        sock, _ = self.listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.context is not None:
            sock = self.context.wrap_socket(sock, server_side=True)
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ)

    def drop(self, sock: socket.socket) -> None:
        for table in (self.logs, self.watches, self.unsent):
            table.pop(sock, None)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(sock)
        sock.close()

    def read(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 16)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        if not data:
            self.drop(sock)
            return
        target = data.split(b" ", 2)[1].decode()
        path, _, query = target.partition("?")
        kind = path.rsplit("/", 1)[-1]
        if kind == "log":
            self.answer_log(sock, query)
        elif "watch=true" in query:
            self.watches[sock] = kind
            self.send(sock, _HEAD)
        else:
            body: dict[str, object] = {"groups": []}
            if kind != "apis":
                body = {"items": self.objects(kind), "metadata": {"resourceVersion": "1"}}
            if kind == _JOB:
                body = self.objects("jobs")[0]
            text = json.dumps(body).encode()
            self.send(sock, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))

    def answer_log(self, sock: socket.socket, query: str) -> None:
        if not self.began:
            self.began = float(int(time.time()) + 3)  # once all are connected
        first = 0
        since = re.search(r"sinceTime=([0-9T%A-]+?)Z", query)
        if since is not None:
            at = dt.datetime.fromisoformat(since[1].replace("%3A", ":") + "+00:00").timestamp()
            first = max(0, round((at - self.began) * self.rate))
        self.logs[sock] = first
        self.send(sock, _HEAD)
        if "follow" not in query:
            self.send(sock, self.lines(first, self.total) + b"0\r\n\r\n")
            del self.logs[sock]

    def send(self, sock: socket.socket, data: bytes) -> None:
        rest = self.unsent.setdefault(sock, bytearray())
        rest += data
        try:
            while rest:
                del rest[: sock.send(rest[: 1 << 16])]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError:
            self.drop(sock)

    def write(self) -> None:
        if not self.began:
            return
        now = min(self.total, max(0, int((time.time() - self.began) * self.rate)))
        for sock, first in list(self.logs.items()):
            if first < now:
                self.logs[sock] = now
                self.send(sock, self.lines(first, now))
                if now == self.total:
                    self.send(sock, b"0\r\n\r\n")
            elif self.unsent.get(sock):
                self.send(sock, b"")
            elif now == self.total:  # all of it has been taken
                del self.logs[sock]
        if now == self.total and not self.logs and not self.over:
            self.over = True
            for sock, kind in list(self.watches.items()):
                for one in self.objects(kind):
                    event = {"type": "MODIFIED", "object": one}
                    self.send(sock, chunk(json.dumps(event).encode() + b"\n"))

    def cut(self) -> None:
        """Ends a connection in the middle of a line."""
        socks = list(self.logs)
        sock = socks[self.cuts * 37 % len(socks)]
        self.cuts += 1
        if not self.unsent.get(sock):
            whole = self.lines(self.logs[sock], self.logs[sock] + 1)
            with contextlib.suppress(OSError):
                sock.send(whole[: len(whole) // 2])
        self.drop(sock)


def serve(args: argparse.Namespace, folder: str, port: "multiprocessing.Queue[int]") -> None:
    context = None
    if args.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    server = Server(args, context)
    port.put(server.listener.getsockname()[1])
    server.serve()


def config_of(args: argparse.Namespace, folder: str, port: int) -> str:
    scheme, authority = ("https", f", certificate-authority: {folder}/cert.pem") if args.tls else (
        "http", "")  # fmt: skip
    path = Path(folder) / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u, namespace: ml}}]\n"
        f'clusters: [{{name: c, cluster: {{server: "{scheme}://127.0.0.1:{port}"{authority}}}}}]\n'
        "users: [{name: u, user: {token: t}}]\n",
        encoding="utf-8",
    )
    return str(path)


def certify(folder: str) -> None:
    subprocess.run(  # fixed words
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=bench",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def follow(args: argparse.Namespace, kubeconfig: str) -> None:
    from gpufabric.backends.kubernetes import Kubernetes
    from gpufabric.config import Settings
    from gpufabric.job import JobRef

    total = args.rate * args.seconds
    wanted = [b"line %d %s" % (number, _PAD) for number in range(total)]
    counts = [0] * args.ranks
    wrong = others = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    backend = Kubernetes(kubeconfig=kubeconfig, settings=Settings(trust_env=False))
    ref = JobRef(backend="kubernetes", place="c/ml", name=_JOB)
    lines = iter(backend.logs(ref, follow=True))
    first = next(lines)
    begun, cpu = time.monotonic(), time.process_time()
    counts[first.node_rank] += 1
    for line in lines:
        if line.stream != "stdout":
            others += 1
            print(line)
            continue
        rank = line.node_rank
        number = counts[rank]
        if number >= total or line.data != wanted[number]:
            wrong += 1
        counts[rank] = number + 1
    wall, used = time.monotonic() - begun, time.process_time() - cpu
    backend.close()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    count = sum(counts)
    way = "TLS" if args.tls else "plain HTTP"
    print(f"{args.ranks} ranks x {args.rate} lines/s over {way}: {count} lines in {wall:.1f} s")
    print(f"lost or doubled: {abs(args.ranks * total - count)}, out of order: {wrong}"
          f", other lines: {others}")  # fmt: skip
    print(f"processor time: {used:.2f} s, {used / wall:.2f} cores; {count / used:,.0f} lines/s of"
          f" one core")  # fmt: skip
    print(f"memory grown by {grown:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--rate", type=int, default=1000, help="lines a second of each rank")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--tls", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if args.tls:
            certify(folder)
        port: multiprocessing.Queue[int] = multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(args, folder, port), daemon=True)
        server.start()
        try:
            follow(args, config_of(args, folder, port.get(timeout=30)))
        finally:
            server.kill()
            server.join()


if __name__ == "__main__":
    main()
