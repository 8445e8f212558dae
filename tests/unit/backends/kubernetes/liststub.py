"""A stand-in of an API server's reads: lists in pages, refusals, and versions that expire."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Item = dict[str, Any]


def status(code: int, reason: str, message: str) -> tuple[int, Item]:
    """An answer as Kubernetes words it."""
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message,
                  "code": code}  # fmt: skip


class ListStub:
    """Serves `lists` by path in pages and `objects` by path; all else is 404.

    `forbidden` are paths that answer 403, `failing` 500; `expiring` has by path how often the
    second page is 410. `asked` records every request: path and query.
    """

    def __init__(self) -> None:
        """Starts to answer on a free port of 127.0.0.1."""
        self.lists: dict[str, list[Item]] = {}
        self.objects: dict[str, Item] = {"/version": {"gitVersion": "v1.36.3"}}
        self.groups: dict[str, str] = {}
        self.forbidden: set[str] = set()
        self.expiring: dict[str, int] = {}
        self.failing: set[str] = set()
        self.code = 200
        self.metadata_last = False  # as no real server does
        self.asked: list[tuple[str, dict[str, str]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # head and body in one packet, or each answer waits 40 ms

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer()

            def _answer(self) -> None:
                url = urlsplit(self.path)
                code, body = stub.answer(url.path, dict(parse_qsl(url.query)))
                data = json.dumps(body, separators=(",", ":")).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self) -> str:
        """A kubeconfig of the one context `stub`."""
        host, port = self._server.server_address[:2]
        cluster = {"server": f"http://{host}:{port}"}
        return json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "stub",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "stub", "context": {"cluster": "c", "user": "u",
                                                      "namespace": "ml"}}],
        })  # fmt: skip

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Item]:  # noqa: PLR0911
        """The code and body of one request."""
        self.asked.append((path, query))
        if self.code != 200:
            return status(self.code, "Unauthorized", "Unauthorized")
        if path in self.forbidden:
            return status(403, "Forbidden", f'User "u" cannot list resource "x" at {path}')
        if path in self.failing:
            return status(500, "InternalError", "conversion webhook for x failed: no endpoints")
        if path == "/apis":
            return 200, {"groups": [self._group(*one) for one in self.groups.items()]}
        if path in self.lists:
            return self._page(path, query)
        if path in self.objects:
            return 200, self.objects[path]
        return status(404, "NotFound", f"{path} not found")

    @staticmethod
    def _group(name: str, version: str) -> Item:
        served = {"groupVersion": f"{name}/{version}", "version": version}
        return {"name": name, "versions": [served], "preferredVersion": served}

    def _page(self, path: str, query: dict[str, str]) -> tuple[int, Item]:
        start, most = int(query.get("continue", "0")), int(query.get("limit", "100000"))
        if start and self.expiring.get(path, 0) > 0:
            self.expiring[path] -= 1
            return status(410, "Expired", "The provided continue parameter is too old")
        items = self.lists[path]
        more = str(start + most) if start + most < len(items) else ""
        page = {"metadata": {"continue": more}, "items": items[start : start + most]}
        return 200, dict(reversed(page.items())) if self.metadata_last else page
