"""Certificates of openssl, an API server of few words that speaks TLS, and a proxy before it."""

import base64
import contextlib
import datetime as dt
import http.server
import json
import select
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from gpufabric.backends.kubernetes._api import Api

_CA = """
[ca]
default_ca = here
[here]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
[any]
commonName = supplied
organizationName = optional
"""
V1 = "client.authentication.k8s.io/v1"
BETA = "client.authentication.k8s.io/v1beta1"
NAMES = "IP:127.0.0.1,DNS:kube.example"


class Certificates:
    """Two authorities, and what they signed: pairs of PEM texts by name."""

    def __init__(self, folder):
        if shutil.which("openssl") is None:
            pytest.skip("openssl makes the certificates of these tests, and is not installed")
        self.folder = folder
        for name in ("ours", "theirs"):
            self._authority(name)
        self.sign("server", alt=NAMES)
        self.sign("elsewhere", alt="DNS:other.example,IP:192.0.2.1")
        self.sign("past-server", alt=NAMES, years=("20200101", "20210101"))
        self.sign("client", usage="clientAuth")
        self.sign("client-2", usage="clientAuth")
        self.sign("past-client", usage="clientAuth", years=("20200101", "20210101"))
        self.sign("strange-client", authority="theirs", usage="clientAuth")

    def _openssl(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)

    def _authority(self, name):
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}",
            "-days", "3650", "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
        )  # fmt: skip

    def sign(self, name, *, authority="ours", alt="", usage="serverAuth", years=None):
        start, end = years or ("20250101", "20491231")
        (self.folder / "ca.cnf").write_text(_CA)
        (self.folder / "index.txt").write_text("")
        (self.folder / "serial").write_text(f"{abs(hash(name)) % 10**8 + 10**8:x}0\n"[-9:])
        extensions = f"extendedKeyUsage={usage}\n" + (f"subjectAltName={alt}\n" if alt else "")
        (self.folder / "ext").write_text(extensions)
        self._openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
        )  # fmt: skip
        self._openssl(
            "ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", f"{authority}.crt",
            "-keyfile", f"{authority}.key", "-in", f"{name}.csr", "-out", f"{name}.crt",
            "-startdate", f"{start}000000Z", "-enddate", f"{end}000000Z", "-extfile", "ext",
        )  # fmt: skip

    def text(self, name):
        return (self.folder / name).read_text()


class Stub(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers what `answers` holds, or who asked. Keeps every request."""

    request_queue_size = 128

    def __init__(self, certificates=None, name="server", *, clients=False):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = self.server_address[1]
        self.accepted = None  # Authorization headers; None for any
        self.answers = []
        self.respond = None  # request -> (code, JSON) or None
        self.seen = []
        self.open = set()
        self.context = None
        if certificates is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            folder = certificates.folder
            self.context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
            if clients:
                self.context.verify_mode = ssl.CERT_REQUIRED
                self.context.load_verify_locations(folder / "ours.crt")
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def finish_request(self, request, client_address):
        self.open.add(request)
        try:
            if self.context is not None:
                self.open.discard(request)
                request = self.context.wrap_socket(
                    request, server_side=True, do_handshake_on_connect=False
                )
                self.open.add(request)
                try:
                    request.do_handshake()
                except ssl.SSLError:
                    self.open.discard(request)
                    request = socket.socket(fileno=request.detach())
                    request.shutdown(socket.SHUT_WR)
                    while request.recv(4096):  # else the reset overtakes the alert
                        pass
                    return
            super().finish_request(request, client_address)
        except OSError:  # the client did not like it, or was not liked, or went away
            return
        finally:
            request.close()
            self.open.discard(request)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.shutdown()
        self.thread.join()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def _any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        peer = getattr(self.connection, "getpeercert", dict)() or {}
        names = dict(pair[0] for pair in peer.get("subject", ()))
        self.server.seen.append(
            {
                "method": self.command, "path": self.path, "body": body,
                "headers": list(self.headers.items()), "certificate": names.get("commonName"),
            }
        )  # fmt: skip
        given = self.headers.get("Authorization")
        accepted = self.server.accepted
        if accepted is not None and given not in accepted:
            status = {"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized"}
            self._send(401, {}, json.dumps(status).encode())
        elif self.server.respond and (made := self.server.respond(self.server.seen[-1])):
            self._send(made[0], {}, json.dumps(made[1]).encode())
        elif self.server.answers:
            self._send(*self.server.answers.pop(0))
        else:
            who = {"authorization": given, "certificate": names.get("commonName")}
            self._send(200, {}, json.dumps(who).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815  # the base's names

    def _send(self, code, headers, data):
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Says nothing."""


class Tunnel(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A proxy that leads every CONNECT to one port of this machine."""

    def __init__(self, port, *, wants=None):
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.target, self.wants = port, wants
        self.open = set()
        self.seen = []
        self.port = self.server_address[1]
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    __enter__, __exit__ = Stub.__enter__, Stub.__exit__


class _Tunnel(socketserver.StreamRequestHandler):
    rbufsize = 0

    def handle(self):
        words = self.rfile.readline().split()
        headers = {}
        while (line := self.rfile.readline().strip()) and b":" in line:
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode()
        self.server.seen.append((words[1].decode(), headers.get("proxy-authorization")))
        if self.server.wants not in {None, headers.get("proxy-authorization")}:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        self.server.open.add(self.connection)
        with socket.create_connection(("127.0.0.1", self.server.target)) as other:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            ends = {self.connection: other, other: self.connection}
            while True:
                for sock in select.select(list(ends), [], [])[0]:
                    data = sock.recv(1 << 16)
                    if not data:
                        return
                    ends[sock].sendall(data)


def write_plugin(path: Path, script: str) -> Path:
    """A program that a kubeconfig names."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def stub(certificates):
    with Stub(certificates) as server:
        yield server


@pytest.fixture
def kubeconfig(tmp_path, certificates):
    """Writes a kubeconfig of one context; `cluster` and `user` are fields of its entries."""

    def write(server, user, /, *, name="config", host="127.0.0.1", **cluster):
        scheme = "https" if server.context is not None else "http"
        body = {
            "server": f"{scheme}://{host}:{server.port}",
            "certificate-authority-data": encoded(certificates.text("ours.crt")),
            **cluster,
        }
        body = {key: value for key, value in body.items() if value is not None}
        path = tmp_path / name
        path.write_text(yaml.safe_dump(config_of(body, user)))
        return path

    return write


@pytest.fixture
def open_api():
    made = []

    def make(path, **fields):
        api = Api(backend="kubernetes", kubeconfig=str(path), **fields)
        made.append(api)
        return api

    yield make
    for api in made:
        api.close()


@pytest.fixture
def plugin(tmp_path):
    """Writes a plug-in and gives the user's entry that names it."""

    def write(script, *, name="login", version=V1, **fields):
        path = write_plugin(tmp_path / name, script)
        return {
            "exec": {
                "apiVersion": version, "command": str(path), "interactiveMode": "Never", **fields
            }
        }  # fmt: skip

    return write


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def config_of(cluster, user, *, context="prod"):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }


def printed(version=V1, **status):
    """A shell line that prints an ExecCredential."""
    body = {"kind": "ExecCredential", "apiVersion": version, "status": status}
    return f"cat <<'END'\n{json.dumps(body)}\nEND"


def in_an_hour():
    return (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def jwt(end):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": end}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"
