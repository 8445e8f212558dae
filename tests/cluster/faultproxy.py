"""A proxy before an API server, real or fake: it records every request and makes chosen ones fail.

    with FaultProxy.before(cluster.kubeconfig) as proxy:
        backend = Kubernetes(kubeconfig=str(proxy.kubeconfig(tmp_path)), ...)
        proxy.strike(LOST, at=2, writes=True)  # the second write from now acts, unanswered
        ...
        assert [(one.method, one.code) for one in proxy.writes] == ...

Streams (watches, logs) and upgraded connections (exec, port forwarding) pass through.
"""

import base64
import contextlib
import hashlib
import http.client
import http.server
import json
import select
import socket
import ssl
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_REVIEWS = "/apis/authorization.k8s.io/"  # questions in the form of writes
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
_SOCKET_FAULTS = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What becomes of a request that is struck.

    `acts`: the server gets it. `code`: what is answered in the server's place; without one there is
    no answer: the connection is cut, or held open if `hangs` (until `heal`, or the caller goes).
    """

    name: str
    acts: bool = False
    code: int | None = None
    reason: str = ""
    message: str = ""
    retry_after: int | None = None
    hangs: bool = False

    def __str__(self) -> str:
        return self.name


# The words are an API server's own: k8s.io/apimachinery/pkg/api/errors.
UNAVAILABLE = Fault(
    name="503", code=503, reason="ServiceUnavailable",
    message="the server is currently unable to handle the request",
)  # fmt: skip
TOO_MANY = Fault(
    name="429", code=429, reason="TooManyRequests", retry_after=1,
    message="the server has received too many requests and has asked us to try again later",
)  # fmt: skip
INTERNAL = Fault(
    name="500", code=500, reason="InternalError",
    message="Internal error occurred: etcdserver: leader changed",
)  # fmt: skip
CONFLICT = Fault(  # as a quota that was counted by two requests at once gives, also to a POST
    name="409", code=409, reason="Conflict",
    message='Operation cannot be fulfilled on resourcequotas "quota": the object has been modified;'
    " please apply your changes to the latest version and try again",
)  # fmt: skip
CUT = Fault(name="cut")
LOST = Fault(name="answer lost", acts=True)
HANGS = Fault(name="no answer, not done", hangs=True)
DONE_HANGS = Fault(name="no answer, but done", acts=True, hangs=True)
FAULTS = (UNAVAILABLE, TOO_MANY, INTERNAL, CONFLICT, CUT, LOST, HANGS, DONE_HANGS)


@dataclass(kw_only=True)
class Record:
    """One request. `code` is what the caller got: None while it waits, 0 where none came."""

    number: int
    method: str
    path: str  # with its query
    body: bytes = field(repr=False)
    code: int | None = None
    fault: Fault | None = None

    @property
    def sha256(self) -> str:
        """Hash of the body."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def writes(self) -> bool:
        """Whether it would change something."""
        return self.method in WRITES and not self.path.startswith(_REVIEWS)

    @property
    def json(self) -> Any:
        """The body, None without one."""
        return json.loads(self.body) if self.body else None


@dataclass(kw_only=True)
class _Strike:
    """A fault that waits for its request."""

    fault: Fault
    left: int
    lasting: bool
    wanted: Callable[[Record], bool]

    def hits(self, record: Record) -> bool:
        if not self.wanted(record):
            return False
        self.left -= 1
        return self.left == 0 or (self.lasting and self.left < 0)


class FaultProxy(http.server.ThreadingHTTPServer):
    """Speaks plain HTTP on this machine, and to the server as the kubeconfig's current user."""

    daemon_threads = True

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        server = urllib.parse.urlsplit(cluster["server"])
        self.target = (server.hostname or "", server.port or 443)
        self.tls = _tls(cluster, user) if server.scheme == "https" else None
        self.token = str(user.get("token") or "")
        self.requests: list[Record] = []
        self.lock = threading.Lock()
        self.healed = threading.Event()
        self._strikes: list[_Strike] = []
        self._open: set[socket.socket] = set()

    @classmethod
    @contextlib.contextmanager
    def before(cls, kubeconfig: Path) -> Generator[Self]:
        """A proxy that serves for as long as the block runs."""
        with cls(kubeconfig) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield server
            finally:
                server.heal()
                server.shutdown()
                server.cut_streams()
                thread.join()

    def kubeconfig(self, folder: Path, *, context: str = "proxied") -> Path:
        """A kubeconfig whose server is this proxy."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        path = folder / f"{context}.kubeconfig"
        made = {
            "apiVersion": "v1", "kind": "Config", "current-context": context,
            "contexts": [{"name": context, "context": {"cluster": context, "user": "anyone"}}],
            "users": [{"name": "anyone", "user": {}}],
            "clusters": [{"name": context, "cluster": {"server": url}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(made))
        return path

    # ---- what was asked

    @property
    def count(self) -> int:
        """How many requests there were."""
        return len(self.requests)

    @property
    def writes(self) -> list[Record]:
        """Every request that would change something."""
        with self.lock:
            return [one for one in self.requests if one.writes]

    # ---- faults

    def strike(
        self,
        fault: Fault,
        *,
        at: int = 1,
        writes: bool = False,
        lasting: bool = False,
        where: Callable[[Record], bool] = lambda _: True,
    ) -> None:
        """The `at`-th request from now fails, of writes or of those `where` is true.

        `lasting`: and all such after it.
        """
        strike = _Strike(
            fault=fault, left=at, lasting=lasting,
            wanted=lambda one: (one.writes or not writes) and where(one),
        )  # fmt: skip
        self.healed.clear()
        with self.lock:
            self._strikes.append(strike)

    def fail(self, number: int, *, lost_answer: bool, lasting: bool) -> None:
        """The `number`-th request from now fails, and all after it if `lasting`."""
        self.strike(LOST if lost_answer else UNAVAILABLE, at=number, lasting=lasting)

    def heal(self) -> None:
        """No request fails any more; those that hang are cut."""
        with self.lock:
            self._strikes.clear()
        self.healed.set()

    def cut_streams(self) -> None:
        """Cuts every watch, log and upgraded connection that is open."""
        with self.lock:
            streams = tuple(self._open)
        for one in streams:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    # ---- for the handler

    def take(self, method: str, path: str, body: bytes) -> Record:
        """Records a request, with the fault that it meets."""
        with self.lock:
            record = Record(
                number=len(self.requests) + 1, method=method, path=path, body=body
            )  # fmt: skip
            self.requests.append(record)
            hits = [one.fault for one in self._strikes if one.hits(record)]
            record.fault = hits[0] if hits else None
            return record

    @contextlib.contextmanager
    def streaming(self, *ends: socket.socket) -> Iterator[None]:
        """While it runs, `cut_streams` cuts these."""
        with self.lock:
            self._open.update(ends)
        try:
            yield
        finally:
            with self.lock:
                self._open.difference_update(ends)

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: a caller that went away is no fault of the proxy."""


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    def text(owner: dict[str, str], name: str) -> str:
        if f"{name}-data" in owner:
            return base64.b64decode(owner[f"{name}-data"]).decode()
        return Path(owner[name]).read_text()

    context = ssl.create_default_context(cadata=text(cluster, "certificate-authority"))
    if "token" not in user:
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "client.pem"
            pair.write_text(text(user, "client-certificate") + "\n" + text(user, "client-key"))
            context.load_cert_chain(pair)
    return context


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"
    upstream: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        if self.upstream is not None:
            self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        record = self.server.take(self.command, self.path, body)
        record.code = 0
        fault = record.fault
        if fault is not None and not fault.acts:
            self._struck(record, fault)
        elif self.headers.get("Upgrade"):
            self._tunnel(record)
        else:
            self._pass(record, fault)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = do_HEAD = _any  # noqa: N815  # the base's

    def _struck(self, record: Record, fault: Fault) -> None:
        if fault.hangs:
            self._hang()
        if fault.code is None:
            self.close_connection = True
            return
        status: dict[str, Any] = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": fault.message, "reason": fault.reason, "code": fault.code,
        }  # fmt: skip
        extra: dict[str, str] = {}
        if fault.retry_after is not None:
            status["details"] = {"retryAfterSeconds": fault.retry_after}
            extra["Retry-After"] = str(fault.retry_after)
        self._send(record, fault.code, json.dumps(status).encode(), extra)

    def _hang(self) -> None:
        """Holds the connection until the faults are healed or the caller is gone."""
        while not self.server.healed.wait(0.02):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return

    def _pass(self, record: Record, fault: Fault | None) -> None:
        try:
            answer = self._ask(record.body)
            if fault is not None:
                if answer.getheader("Content-Length") is not None:
                    answer.read()  # it has acted
                self._struck(record, fault)
            elif answer.getheader("Content-Length") is not None or answer.length == 0:
                headers = {"Content-Type": answer.getheader("Content-Type") or "text/plain"}
                if after := answer.getheader("Retry-After"):
                    headers["Retry-After"] = after
                self._send(record, answer.status, answer.read(), headers)
            else:
                self._stream(record, answer)
        except _SOCKET_FAULTS:  # either end is gone: the other sees the same
            self.close_connection = True
            if self.upstream is not None:
                self.upstream.close()

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        if self.upstream is None:
            host, port = self.server.target
            if self.server.tls is None:
                self.upstream = http.client.HTTPConnection(host, port)
            else:
                self.upstream = http.client.HTTPSConnection(host, port, context=self.server.tls)
        self.upstream.request(self.command, self.path, body=body or None, headers=self._headers())
        return self.upstream.getresponse()

    def _headers(self, *, upgrade: bool = False) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self.headers.items()
            if upgrade or (name.lower() not in _HOP and name.lower() != "accept-encoding")
        }
        if self.server.token and "Authorization" not in self.headers:
            kept["Authorization"] = f"Bearer {self.server.token}"
        return kept

    def _send(self, record: Record, code: int, data: bytes, headers: dict[str, str]) -> None:
        record.code = code
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, record: Record, answer: http.client.HTTPResponse) -> None:
        record.code = answer.status
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        assert self.upstream is not None
        with self.server.streaming(self.connection, self.upstream.sock):
            while data := answer.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

    def _tunnel(self, record: Record) -> None:
        """Passes an upgraded connection byte for byte."""
        self.close_connection = True
        host, port = self.server.target
        with contextlib.suppress(*_SOCKET_FAULTS), contextlib.ExitStack() as stack:
            there = stack.enter_context(socket.create_connection((host, port)))
            if self.server.tls is not None:
                there = stack.enter_context(
                    self.server.tls.wrap_socket(there, server_hostname=host)
                )
            headers = {**self._headers(upgrade=True), "Host": f"{host}:{port}"}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            there.sendall(f"{self.command} {self.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            first = there.recv(65536)
            record.code = int(first.split(b" ", 2)[1]) if first.startswith(b"HTTP/1.") else 0
            if record.fault is not None:
                return  # it acted, and the answer is lost
            self.connection.sendall(first)
            stack.enter_context(self.server.streaming(self.connection, there))
            back = threading.Thread(target=_pump, args=(there, self.connection), daemon=True)
            back.start()
            _pump(self.connection, there, already=self.rfile.peek())
            back.join()

    def log_message(self, *args: object) -> None:
        """Says nothing."""


def _pump(source: socket.socket, target: socket.socket, *, already: bytes = b"") -> None:
    """Moves bytes until the source ends, and then ends the target."""
    with contextlib.suppress(OSError):
        data = already
        while True:
            target.sendall(data)
            data = source.recv(65536)
            if not data:
                break
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
