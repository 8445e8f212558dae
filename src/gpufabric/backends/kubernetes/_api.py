"""The only file that speaks HTTP: plain JSON in and out, errors made ours.

`urllib3` and the kubeconfig are all that it takes. The official client costs a second and 66 MB,
and its login goes on as nobody where a plug-in fails; docs/decisions/0005-kubernetes-login.md.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import base64
import hashlib
import importlib.util
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import quote, urlencode, urlsplit

from gpufabric.backends.kubernetes._errors import ExpiredError, error_of, no_answer
from gpufabric.backends.kubernetes._kubeconfig import Chosen, load_kubeconfig
from gpufabric.backends.kubernetes._login import (
    Credential,
    Login,
    credential_of,
    pod_credential,
)
from gpufabric.backends.kubernetes._streams import Stream
from gpufabric.backends.kubernetes._target import Target, pod_target, target_of, tls_context
from gpufabric.config import environment
from gpufabric.errors import (
    BackendError,
    ConfigError,
    CredentialsError,
    GpuFabricError,
    MissingExtraError,
    TransientError,
)

__all__ = [
    "IN_CLUSTER",
    "Api",
    "ExpiredError",
    "Json",
    "UpgradeRefusedError",
    "contexts",
    "error_of",
    "in_cluster_namespace",
]

Json = dict[str, Any]
Query = Mapping[str, str | Sequence[str]]

_log = logging.getLogger(__name__)
_PAGE = 500
_CONNECT_S = 10.0
IN_CLUSTER = "in-cluster"
"""The context that stands for the cluster around this process."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet keeps a pod's token, CA and namespace."""
#: What a plug-in needs of the environment where it is not trusted.
_PLUGIN_ENV = ("HOME", "LANG", "PATH", "TMPDIR")
_TITLE = re.compile(rb"(?is)<title[^>]*>(.*?)</title>")
#: A proxy or load balancer forgets quiet connections; client-go asks as often.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30),
]
# https://kubernetes.io/docs/reference/using-api/api-concepts/#alternate-representations-of-resources
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_WORDS = 4096
# https://www.rfc-editor.org/rfc/rfc6455#section-1.3
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class UpgradeRefusedError(BackendError):
    """A websocket, or its protocol, is not spoken by the server or by something before it."""


def _urllib3() -> Any:
    try:
        import urllib3
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "urllib3":
            raise
        raise MissingExtraError("the kubernetes backend", extra="kubernetes") from exc
    return urllib3


def contexts(
    kubeconfig: str | None = None, *, trust_env: bool = True
) -> tuple[dict[str, str], str | None]:
    """The contexts of a kubeconfig with the namespace of each, and the current one's name.

    Raises `ConfigError` where the file cannot be read; gives nothing where there is none.
    """
    config = load_kubeconfig(kubeconfig, trust_env=trust_env)
    if config is None:
        return {}, None
    spaces = {name: part.text("namespace") or "default" for name, part in config.contexts.items()}
    return spaces, config.current


def in_cluster_namespace(account: Path = ACCOUNT) -> str | None:
    """The namespace of the pod that this process runs in; None outside a cluster."""
    try:
        return (account / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


class Api:
    """Requests to one API server as one user. Safe to use from several threads."""

    def __init__(  # noqa: PLR0913  # which server, as whom; by keyword
        self,
        *,
        backend: str,
        context: str | None = None,
        kubeconfig: str | None = None,
        timeout_s: float = 30.0,
        trust_env: bool = True,
        login_timeout_s: float = 60.0,
        account: Path = ACCOUNT,
    ) -> None:
        """Reads nothing yet; the configuration is loaded on the first request."""
        self.backend = backend
        self._context = context
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._trust_env = trust_env
        self._login_timeout_s = login_timeout_s
        self._account = account
        self._way: _Way | None = None
        self._lock = threading.Lock()

    def place(self) -> tuple[str, str]:
        """The context, or `IN_CLUSTER`, and its namespace. Raises `ConfigError`."""
        chosen = self._chosen()
        if chosen is None:
            return IN_CLUSTER, in_cluster_namespace(self._account) or "default"
        return chosen.context, chosen.namespace

    def target(self) -> Target:
        """The server and how it is reached."""
        return self._opened().target

    def credential(self) -> Credential:
        """What requests are made with now. Raises `ConfigError` or `CredentialsError`."""
        return self._opened().login.current()

    def close(self) -> None:
        """Closes every connection of the pool."""
        with self._lock:
            way, self._way = self._way, None
        if way is not None:
            way.close()

    # ---- requests

    def get(self, path: str, query: Query | None = None, *, metadata_only: bool = False) -> Json:
        """One object or list; with `metadata_only` an object without spec, status and data."""
        headers = {"Accept": _METADATA.format("")} if metadata_only else None
        return self.request("GET", path, query=query, headers=headers)

    def items(
        self,
        path: str,
        query: Query | None = None,
        *,
        metadata_only: bool = False,
    ) -> Iterator[Json]:
        """Every item of a list, page by page, so that memory does not grow with the list."""
        token = ""
        headers = {"Accept": _METADATA.format("List")} if metadata_only else None
        while True:
            part = {"continue": token} if token else {}
            asked = {"limit": str(_PAGE), **(query or {}), **part}
            page = self.request("GET", path, query=asked, headers=headers)
            yield from cast("list[Json]", page.get("items") or ())
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return

    def request(  # noqa: PLR0913  # the parts of a request, by keyword
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Json:
        """One request; the answer's JSON. Raises the error that the answer means."""
        response = self._send(
            method, path, query=query, body=body, content_type=content_type, headers=headers,
            timeout=(_CONNECT_S, timeout_s or self._timeout_s),
        )  # fmt: skip
        data = self._received(f"{method} {path}", response)
        try:
            return cast("Json", json.loads(data)) if data else {}
        except ValueError:
            raise self._stranger(
                f"{method} {path}", response.status, data, response.headers
            ) from None

    def raw(self, path: str, query: Query | None = None) -> bytes:
        """The text of an answer, for whoever parses it while the next is on its way."""
        response = self._send("GET", path, query=query, timeout=(_CONNECT_S, self._timeout_s))
        return self._received(f"GET {path}", response)

    def _received(self, operation: str, response: Any) -> bytes:
        try:
            data = cast("bytes", response.read())
        except Exception as exc:  # noqa: BLE001  # urllib3's and the socket's errors
            self._lost(operation, exc)
        finally:
            response.release_conn()
        if response.status >= 300 or _is_page(response):
            self._refused(operation, response.status, data, response.headers)
        return data

    def lines(
        self,
        path: str,
        query: Query | None = None,
        *,
        read_timeout_s: float | None = None,
        on_open: Callable[[Callable[[], None]], None] | None = None,
    ) -> Iterator[bytes]:
        """The lines of a streamed answer (a watch, a log), as they come, without their newlines.

        The last line is given also without a newline. `on_open` gets a function that ends the
        stream from another thread.
        """
        operation = f"GET {path}"
        response = self._send("GET", path, query=query, timeout=(_CONNECT_S, read_timeout_s))
        if response.status >= 300 or _is_page(response):
            data = cast("bytes", response.read())
            response.release_conn()
            self._refused(operation, response.status, data, response.headers)
        if on_open is not None:
            on_open(lambda: _abort(response))
        rest = bytearray()
        try:
            for chunk in response.stream(1 << 16):
                rest += chunk
                *whole, tail = rest.split(b"\n")
                for line in whole:
                    yield bytes(line)
                rest = bytearray(tail)
            if rest:
                yield bytes(rest)
        except GeneratorExit:
            raise
        except Exception as exc:  # noqa: BLE001  # urllib3's and the socket's errors
            self._lost(operation, exc)
        finally:
            response.close()

    def open(self, path: str, query: Query | None = None) -> Stream:
        """Sends a GET whose answer is read as it comes, without blocking, by a `Loop`.

        Raises what keeps it from being sent; the stream tells what the answer means.
        """
        way = self._opened()
        try:
            connection = way.send(_url(way.target, path, query), way.login.current())
        except Exception as exc:  # noqa: BLE001  # urllib3's, ssl's and the socket's errors
            self._lost(f"GET {path}", exc)
        return Stream(_Open(self, f"GET {path}", connection))

    def refusal(
        self, operation: str, code: int, data: bytes, headers: Mapping[str, str]
    ) -> GpuFabricError:
        """The error that a refused request means."""
        try:
            self._refused(operation, code, data, headers)
        except GpuFabricError as exc:
            return exc

    def upgrade(
        self, path: str, query: Query | None, protocols: Sequence[str]
    ) -> "tuple[socket.socket, bytes, str]":
        """Opens a websocket with the credentials, CA and proxy of every other request.

        Gives its connection, what the server has sent on it already, and the subprotocol that it
        chose. Raises `UpgradeRefusedError` where something does not speak it.
        """
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": ", ".join(protocols),
        }  # fmt: skip
        operation = f"GET {path}"
        response = self._send(
            "GET", path, query=query, headers=headers, timeout=(_CONNECT_S, self._timeout_s)
        )
        if response.status != 101:
            data = cast("bytes", response.read(_WORDS))
            response.close()
            if response.status >= 400 and data.lstrip().startswith(b"{"):
                self._refused(operation, response.status, data, response.headers)
            raise UpgradeRefusedError(
                f"no websocket ({', '.join(protocols)}): the API server, or a proxy before it,"
                f" answered {response.status} {data[:200].decode('utf-8', 'replace').strip()}",
                backend=self.backend, operation=operation,
            )  # fmt: skip
        chosen = str(response.headers.get("Sec-WebSocket-Protocol") or "")
        proof = hashlib.sha1(f"{key}{_WEBSOCKET}".encode(), usedforsecurity=False).digest()
        accepted = response.headers.get("Sec-WebSocket-Accept") == base64.b64encode(proof).decode()
        if not accepted or chosen not in protocols:
            response.close()
            raise UpgradeRefusedError(
                f"a websocket was opened with protocol {chosen!r}, not {', '.join(protocols)};"
                " is this the API server's address?",
                backend=self.backend, operation=operation,
            )  # fmt: skip
        return (*_taken(response), chosen)

    # ---- inside

    def _opened(self) -> "_Way":
        with self._lock:
            if self._way is None:
                self._way = self._load()
            return self._way

    def _chosen(self) -> Chosen | None:
        """The context that is meant; None for the cluster that this process runs in.

        As with kubectl, a kubeconfig comes before the cluster around this process.
        """
        named = self._kubeconfig is not None
        if self._context == IN_CLUSTER and not named:
            return None
        if not named and not self._trust_env:
            raise ConfigError(
                f"{self.backend}: with trust_env=False no kubeconfig is looked for: name one in"
                f" kubeconfig=, or the cluster around this process with context={IN_CLUSTER!r}"
            )
        config = load_kubeconfig(self._kubeconfig, trust_env=self._trust_env)
        inside = in_cluster_namespace(self._account) is not None
        if config is None or not config.contexts:
            if inside and self._context is None and not named:
                return None
            if config is None:
                raise ConfigError(
                    f"{self.backend}: there is no kubeconfig: neither where KUBECONFIG says, nor"
                    " ~/.kube/config; and this process runs in no cluster"
                )
        try:
            return config.choose(self._context)
        except ConfigError as exc:
            raise ConfigError(f"{self.backend}: {exc}") from exc

    def _load(self) -> "_Way":
        _urllib3()
        seen = environment()
        trusted = environment(trust_env=self._trust_env)
        chosen = self._chosen()
        if chosen is None:
            token = self._account / "token"
            return _Way(pod_target(self._account, seen), Login(lambda: pod_credential(token)))
        first: list[Chosen] = [chosen]
        program = trusted or {name: seen[name] for name in _PLUGIN_ENV if name in seen}

        def obtain() -> Credential:
            user = first.pop() if first else self._chosen_again(chosen)
            return credential_of(
                user, program, backend=self.backend, timeout_s=self._login_timeout_s
            )

        return _Way(target_of(chosen, trusted), Login(obtain))

    def _chosen_again(self, chosen: Chosen) -> Chosen:
        """The context as the kubeconfig has it now: its owner may have logged in again."""
        try:
            now = self._chosen()
        except ConfigError:  # it was removed meanwhile
            return chosen
        if now is None or now.cluster.text("server") != chosen.cluster.text("server"):
            raise ConfigError(
                f"{self.backend}: the kubeconfig's context {chosen.context!r} is now of another"
                " server: make a new backend"
            )
        return now

    def _send(  # noqa: PLR0913  # the parts of a request, by keyword
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: tuple[float, float | None],
    ) -> Any:
        sent = {"Accept": "application/json, */*", "User-Agent": "gpufabric", **(headers or {})}
        data: bytes | None = None
        if body is not None:
            sent["Content-Type"] = content_type
            data = json.dumps(body, separators=(",", ":")).encode()
        way = self._opened()
        credential = way.login.current()
        url = _url(way.target, path, query)
        try:
            response = way.request(method, url, credential, sent, data, timeout)
            if response.status == 401:
                renewed = self._renewed(way, credential, response)
                if renewed is not None:
                    response.drain_conn()
                    response = way.request(method, url, renewed, sent, data, timeout)
        except Exception as exc:  # noqa: BLE001  # urllib3's, ssl's and the socket's errors
            self._lost(f"{method} {path}", exc)
        return response

    def _renewed(self, way: "_Way", rejected: Credential, response: Any) -> Credential | None:
        try:
            return way.login.renewed(rejected)
        except BaseException:
            response.close()
            raise

    def _lost(self, operation: str, exc: Exception) -> NoReturn:
        way = self._opened()
        no_answer(
            exc, backend=self.backend, operation=operation, target=way.target,
            again=way.login.again,
        )  # fmt: skip

    def _refused(
        self, operation: str, code: int, data: bytes, headers: Mapping[str, str]
    ) -> NoReturn:
        if code < 400 or "html" in str(headers.get("Content-Type") or "").lower():
            raise self._stranger(operation, code, data, headers)
        try:
            status = cast("Json", json.loads(data))
            message = str(status.get("message") or data[:300].decode("utf-8", "replace"))
            reason = str(status.get("reason") or "")
        except (ValueError, AttributeError):
            message, reason = data[:300].decode("utf-8", "replace").strip(), ""
        raise error_of(
            code, reason, message, backend=self.backend, operation=operation,
            retry_after=headers.get("Retry-After"), again=self._opened().login.again,
        )  # fmt: skip

    def _stranger(
        self, operation: str, code: int, data: bytes, headers: Mapping[str, str]
    ) -> BackendError:
        """The error of an answer that no API server gives."""
        server = self._opened().target.server
        kind = str(headers.get("Content-Type") or "no content type").partition(";")[0]
        title = _TITLE.search(data)
        named = f" titled {title[1].decode('utf-8', 'replace').strip()[:80]!r}" if title else ""
        told = f"answered {code} with {kind}{named} instead of JSON"
        elsewhere = urlsplit(str(headers.get("Location") or "")).hostname
        if 300 <= code < 400:
            told = f"answered {code}, a redirect to {elsewhere or 'another path'}"
        words = (
            f"{server} {told}: something else than an API server speaks there, such as the login"
            " page of a proxy. Check `server` and the proxy settings of the kubeconfig"
        )
        if code in {502, 503, 504}:
            return TransientError(words, backend=self.backend, operation=operation)
        if code == 401:
            return CredentialsError(words, backend=self.backend, operation=operation)
        return BackendError(words, backend=self.backend, operation=operation)


class _Open:
    """The connection of one `Stream`, and what its answers mean."""

    def __init__(self, api: Api, operation: str, connection: Any) -> None:
        self.sock: socket.socket = connection.sock
        self._api = api
        self._operation = operation
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def refused(self, status: int, data: bytes, headers: Mapping[str, str]) -> GpuFabricError:
        return self._api.refusal(self._operation, status, data, headers)

    def lost(self, why: str) -> GpuFabricError:
        return TransientError(
            f"the answer broke off: {why}", backend=self._api.backend, operation=self._operation
        )


class _Way:
    """One server, who asks it, and the connections that there are."""

    def __init__(self, target: Target, login: Login) -> None:
        self.target = target
        self.login = login
        self._pool: Any = None
        self._pair = ("", "")
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def request(  # noqa: PLR0913, PLR0917  # one caller
        self,
        method: str,
        url: str,
        credential: Credential,
        headers: Mapping[str, str],
        data: bytes | None,
        timeout: tuple[float, float | None],
    ) -> Any:
        urllib3 = _urllib3()
        sent = urllib3.HTTPHeaderDict(headers)
        for name, value in credential.headers:
            sent.add(name, value)
        return self._pool_for(credential).request(
            method, url, body=data, headers=sent,
            timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
            preload_content=False, retries=False, redirect=False,
        )  # fmt: skip

    def send(self, url: str, credential: Credential) -> Any:
        """A connection of its own, on which a GET was sent and nothing read."""
        manager = self._pool_for(credential)
        pool = manager.connection_from_url(url)
        connection = pool._new_conn()  # noqa: SLF001  # urllib3 has no other way to one alone
        connection.timeout = _CONNECT_S
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        headers = [("Accept", "application/json, */*"), ("User-Agent", "gpufabric")]
        try:
            if self.target.proxy is None or manager.proxy is None:
                connection.connect()
            elif parts.scheme == "https":
                pool._prepare_proxy(connection)  # noqa: SLF001  # as its own requests do
            else:
                connection.connect()
                path, headers = url, [*headers, *(manager.proxy_headers or {}).items()]
            connection.putrequest("GET", path)
            for name, value in (*headers, *credential.headers):
                connection.putheader(name, value)
            connection.endheaders()
        except BaseException:
            connection.close()
            raise
        return connection

    def _pool_for(self, credential: Credential) -> Any:
        """The connections made with this client certificate: a new one opens new connections."""
        pair = (credential.certificate, credential.key)
        with self._lock:
            if self._pool is None or self._pair != pair:
                old, self._pool, self._pair = self._pool, _pool(self.target, credential), pair
                if old is not None:
                    old.clear()
            return self._pool


def _pool(target: Target, credential: Credential) -> Any:
    urllib3 = _urllib3()
    given: dict[str, Any] = {
        "maxsize": 64,
        "ssl_context": tls_context(target, credential),
        "socket_options": _KEEPALIVE,
    }
    if target.server_name:
        given["server_hostname"] = target.server_name
    proxy = target.proxy
    if proxy is None:
        return urllib3.PoolManager(**given)
    if proxy.url.startswith("socks"):
        if importlib.util.find_spec("socks") is None:
            raise ConfigError(f"the proxy {proxy.url} needs: pip install 'urllib3[socks]'")
        from urllib3.contrib.socks import SOCKSProxyManager

        return SOCKSProxyManager(
            proxy.url, username=proxy.user or None, password=proxy.password or None, **given
        )
    told = (
        urllib3.make_headers(proxy_basic_auth=f"{proxy.user}:{proxy.password}")
        if proxy.user
        else None
    )
    return urllib3.ProxyManager(proxy.url, proxy_headers=told, **given)


def _url(target: Target, path: str, query: Query | None) -> str:
    pairs = [
        (name, item)
        for name, value in (query or {}).items()
        for item in ([value] if isinstance(value, str) else value)
    ]
    text = urlencode(pairs, quote_via=quote)
    return f"{target.server}{path}{'?' if text else ''}{text}"


def _is_page(response: Any) -> bool:
    return "html" in str(response.headers.get("Content-Type") or "").lower()


def _taken(response: Any) -> "tuple[socket.socket, bytes]":
    """The connection of an answer that is not HTTP any more, and what was read of it too far."""
    import ssl

    connection, answer = response.connection, response._original_response  # noqa: SLF001
    sock = cast("socket.socket", connection.sock)
    sock.setblocking(False)
    try:
        ahead = bytes(answer.fp.peek())
    except ssl.SSLWantReadError:
        ahead = b""
    connection.sock = None  # it is the caller's now
    answer.close()
    return sock, ahead


def _abort(response: Any) -> None:
    """Ends a streamed answer that another thread is reading."""
    import socket

    connection = getattr(response, "_connection", None)
    sock = getattr(connection, "sock", None)
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            _log.debug("the stream had ended already")
