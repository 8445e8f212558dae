"""A proxy before a real API server that counts requests and makes chosen ones fail."""

import base64
import http.client
import http.server
import json
import ssl
import tempfile
import threading
import urllib.parse
from pathlib import Path

import yaml

_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "proxied",
    "contexts": [{"name": "proxied", "context": {"cluster": "proxied", "user": "anyone"}}],
    "users": [{"name": "anyone", "user": {}}],
}


class FaultProxy(http.server.ThreadingHTTPServer):
    """Speaks plain HTTP on this machine, and to the server as the kubeconfig's current user."""

    daemon_threads = True

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.target = urllib.parse.urlsplit(cluster["server"]).netloc
        self.tls = _tls(cluster, user)
        self.lock = threading.Lock()
        self.count = 0
        self.first: int | None = None
        self.lasting = False
        self.lost_answer = False

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig whose server is this proxy."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        path = folder / "proxied.kubeconfig"
        clusters = [{"name": "proxied", "cluster": {"server": url}}]
        path.write_text(yaml.safe_dump({**_KUBECONFIG, "clusters": clusters}))
        return path

    def fail(self, number: int, *, lost_answer: bool, lasting: bool) -> None:
        """The `number`-th request from now fails, and all after it if `lasting`."""
        with self.lock:
            self.first = self.count + number
            self.lost_answer, self.lasting = lost_answer, lasting

    def heal(self) -> None:
        """No request fails any more."""
        with self.lock:
            self.first = None

    def struck(self) -> bool:
        """Counts a request; whether it is one that fails."""
        with self.lock:
            self.count += 1
            if self.first is None:
                return False
            return self.count == self.first or (self.lasting and self.count > self.first)


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    def text(owner: dict[str, str], name: str) -> str:
        if f"{name}-data" in owner:
            return base64.b64decode(owner[f"{name}-data"]).decode()
        return Path(owner[name]).read_text()

    context = ssl.create_default_context(cadata=text(cluster, "certificate-authority"))
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "client.pem"
        pair.write_text(text(user, "client-certificate") + "\n" + text(user, "client-key"))
        context.load_cert_chain(pair)
    return context


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        struck = self.server.struck()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        if struck and not self.server.lost_answer:
            self._send(503, json.dumps({"message": "made to fail"}).encode())
            return
        connection = http.client.HTTPSConnection(self.server.target, context=self.server.tls)
        try:
            wanted = ("Content-Type", "Accept", "User-Agent")
            headers = {name: self.headers[name] for name in wanted if name in self.headers}
            connection.request(self.command, self.path, body=body, headers=headers)
            answer = connection.getresponse()
            if struck:
                answer.read()
                self.close_connection = True
            elif "follow=true" in self.path:
                self._stream(answer)
            else:
                self._send(answer.status, answer.read())
        finally:
            connection.close()

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _any  # noqa: N815  # the base's names

    def _send(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while data := answer.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: object) -> None:
        """Says nothing."""
