"""A small API server of one Job with one pod, its log and its events, which can break."""

import http.server
import json
import threading
import time
import urllib.parse
from contextlib import contextmanager

from gpufabric.backends.kubernetes._api import Api

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: ml}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {token: secret-token}}]
"""
_BEGAN = "2026-01-01T00:00:00Z"


class Server(http.server.ThreadingHTTPServer):
    """One pod of rank 0, whose log breaks off after so many lines on each connection."""

    daemon_threads = True

    def __init__(self, lines, breaks, *, how, ends, newline, watch, logs, events, port):
        super().__init__(("127.0.0.1", port), Handler)
        self.lines = list(lines)
        self.breaks = list(breaks)
        self.how, self.ends, self.newline = how, ends, newline
        self.watch, self.logs, self.events = watch, logs, events
        self.answers = []
        self.seen = []
        self.changed = threading.Condition()
        self.version = 1
        self.removed = self.finished = self.judged = False
        self.uid = "j1"
        self.refused = None
        self.connection = 0
        self.restarts, self.before = 0, []
        self.past = {}  # what there was at each version before this one
        self.open = 0
        self.stopping = False

    @property
    def over(self):
        return self.finished or (self.ends and not self.breaks)

    # What a test does

    def _change(self, **fields):
        with self.changed:
            self.past[self.version] = {kind: self.objects(kind) for kind in ("pods", "jobs")}
            for name, value in fields.items():
                setattr(self, name, value)
            self.version += 1
            self.changed.notify_all()

    def rotate(self, number):
        """The log begins with line `number` now."""
        self._change(lines=self.lines[number:])

    def refuse(self, code):
        """Every request is refused."""
        self._change(refused=code)

    def remove(self):
        """The job and its pod are not there any more."""
        self._change(removed=True)

    def replace(self):
        """Another job has its name."""
        self._change(uid="j2")

    def restart(self, lines):
        """The container was started again, and has written these lines since."""
        self._change(before=self.lines, lines=lines, restarts=self.restarts + 1)

    def hang_up(self, how="cut"):
        """Ends every watch: in order, or as a connection that breaks."""
        self._change(connection=self.connection + 1, how=how)

    def finish(self):
        """The job has ended."""
        self._change(finished=True)

    def judge(self):
        """The job has ended, and nobody has heard of its pod: its node has no power."""
        self._change(judged=True)

    def tell(self, event):
        """The cluster says something, and something more of what it said before."""
        self._change(events=[event])
        while True:  # until a watch has brought it
            with self.changed:
                if self.told >= self.version:
                    return
                self.changed.wait(0.01)

    def until_asked(self, end):
        """Waits until a request with this end of its path has come."""
        deadline = time.monotonic() + 10
        while not any(path.endswith(end) for path, _ in self.seen):
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody asked for {end}")
            time.sleep(0.01)

    told = 0

    def idle(self):
        """Whether no connection is open, soon."""
        deadline = time.monotonic() + 10
        while self.open and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.open

    # What there is

    def objects(self, kind):
        if kind == "events":
            return [] if self.events == 403 else self.events
        if self.removed:
            return []
        return [self.pod() if kind == "pods" else self.job()] if kind in {"pods", "jobs"} else []

    def job(self):
        over = self.over or self.judged
        conditions = [{"type": "Complete", "status": "True"}] if over else []
        return {
            "metadata": {
                "name": "j", "uid": self.uid, "labels": {"gpufabric.io/job": "j"},
                "annotations": {"gpufabric.io/num-nodes": "1"}, "creationTimestamp": _BEGAN,
            },
            "spec": {}, "status": {"conditions": conditions},
        }  # fmt: skip

    def pod(self):
        state = {"running": {"startedAt": _BEGAN}}
        if self.over:
            state = {"terminated": {"exitCode": 0, "startedAt": _BEGAN, "finishedAt": _BEGAN}}
        return {
            "metadata": {"name": "p-0", "uid": f"of-{self.uid}", "creationTimestamp": _BEGAN},
            "spec": {"nodeName": "n1"},
            "status": {
                "phase": "Succeeded" if self.over else "Running",
                "containerStatuses": [
                    {"name": "job", "state": state, "restartCount": self.restarts}
                ],
            },
        }


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        server = self.server
        server.seen.append((url.path, query))
        kind = url.path.rsplit("/", 1)[-1]
        try:
            if server.answers:
                self._send(*server.answers.pop(0))
            elif server.refused:
                self._send(server.refused, {"message": "Unauthorized"})
            elif kind == "log":
                self._streaming(lambda: self._log(query))
            elif kind == "events" and server.events == 403:
                self._send(403, {"message": "events is forbidden: User u cannot list"})
            elif query.get("watch"):
                self._streaming(lambda: self._watch(kind, int(query["resourceVersion"])))
            elif kind in {"pods", "jobs", "events"}:
                meta = {"resourceVersion": str(server.version)}
                self._send(200, {"items": server.objects(kind), "metadata": meta})
            else:
                self._send(200, server.job() if "/jobs/" in url.path else server.pod())
        except OSError:
            self.close_connection = True

    def _streaming(self, answer):
        self.server.open += 1
        try:
            answer()
        finally:
            self.server.open -= 1

    def _send(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _begin(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True

    def _watch(self, kind, since):
        server = self.server
        if server.watch in {403, 410}:
            code, server.watch = server.watch, 403 if server.watch == 403 else None
            self._send(code, {"message": "no", "reason": "Expired" if code == 410 else "Forbidden"})
            return
        self._begin()
        if server.watch == "ERROR":
            server.watch = None
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            self._chunk(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return
        if server.watch == "noise":
            server.watch = None
            self._chunk(b'{"type": "MODI\n')
            return
        before = {one["metadata"]["uid"]: one for one in server.past.get(since, {}).get(kind, ())}
        connection = server.connection
        while not server.refused:
            if server.connection != connection:
                if server.how == "ended":
                    self.wfile.write(b"0\r\n\r\n")
                return
            with server.changed:
                now = {one["metadata"]["uid"]: one for one in server.objects(kind)}
                version = server.version
            for uid, one in before.items():
                if uid not in now:
                    self._event("DELETED", one, version)
            for one in now.values():
                self._event("MODIFIED", one, version)
            before = now
            with server.changed:
                if kind == "events":
                    server.told = version
                    server.changed.notify_all()
                over = server.over
                server.changed.wait_for(
                    lambda v=version, o=over: (
                        server.version > v or server.over != o or server.stopping
                    ),
                    timeout=0.05,
                )
                if server.stopping:
                    return
            self._chunk(b"\n")  # notices a client that went

    def _event(self, kind, one, version):
        one["metadata"]["resourceVersion"] = str(version)
        self._chunk(json.dumps({"type": kind, "object": one}).encode() + b"\n")

    def _log(self, query):
        server = self.server
        if server.logs is not None:
            self._send(server.logs, {"message": "pods/log is forbidden: User u cannot get"})
            return
        since = query.get("sinceTime", "")[:19]
        every = server.before if query.get("previous") else server.lines
        lines = [line for line in every if line[:19] >= since or line[0] != "2"]
        text = "\n".join(lines) + ("\n" if server.newline and lines else "")
        most = server.breaks.pop(0) if server.breaks else len(lines)
        self._begin()
        if isinstance(most, str):
            self._chunk(text.encode()[: int(most[:-1])])
        else:
            for line in text.splitlines(keepends=True)[:most]:
                self._chunk(line.encode())
        while not server.ends and not server.finished and not server.removed:
            if server.refused or server.uid != "j1" or server.stopping:
                break
            time.sleep(0.01)
        if most == len(lines) or server.how == "ended":
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args):
        pass


@contextmanager
def served(folder, lines=(), breaks=(), **fields):
    given = {
        "how": "cut", "ends": True, "newline": True, "watch": None, "logs": None, "events": [],
        "port": 0, **fields,
    }  # fmt: skip
    with Server(lines, breaks, **given) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        config = folder / "config"
        config.write_text(KUBECONFIG % server.server_address[1])
        api = Api(backend="kubernetes", kubeconfig=str(config))
        try:
            yield api, server
        finally:
            server.stopping = True
            api.close()
            server.shutdown()
            thread.join()
