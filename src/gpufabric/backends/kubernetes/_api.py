"""The only file that imports the Kubernetes client: plain JSON in and out, errors made ours.

The client's typed models cost a second and 66 MB on first use, so only its configuration
(kubeconfig, exec plug-ins, in-cluster, proxies) and its connection pool are used.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import base64
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote, urlencode

from gpufabric.errors import (
    BackendError,
    ConfigError,
    ConflictError,
    CredentialsError,
    GpuFabricError,
    MissingExtraError,
    NotFoundError,
    QuotaError,
    Remedy,
    TransientError,
)

if TYPE_CHECKING:
    import socket

    from kubernetes.client import ApiClient

__all__ = [
    "Api",
    "ExpiredError",
    "Json",
    "UpgradeRefusedError",
    "contexts",
    "in_cluster_namespace",
]

Json = dict[str, Any]
Query = Mapping[str, str | Sequence[str]]

_log = logging.getLogger(__name__)
_PAGE = 500
_CONNECT_S = 10.0
_WORDS = 4096
# https://www.rfc-editor.org/rfc/rfc6455#section-1.3
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class UpgradeRefusedError(BackendError):
    """A websocket, or its protocol, is not spoken by the server or by something before it."""


class ExpiredError(TransientError):
    """The version asked for is too old (410): list again."""


def _sdk() -> Any:
    try:
        import kubernetes
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "kubernetes":
            raise
        raise MissingExtraError("the kubernetes backend", extra="kubernetes") from exc
    return kubernetes


def contexts(kubeconfig: str | None = None) -> tuple[dict[str, str], str | None]:
    """The contexts of a kubeconfig with the namespace of each, and the current one's name.

    Raises `ConfigError` where the file cannot be read; gives nothing where there is none.
    """
    _sdk()
    from kubernetes.config import ConfigException, list_kube_config_contexts

    try:
        found, current = list_kube_config_contexts(config_file=kubeconfig)
    except ConfigException as exc:
        if "No configuration found" in str(exc) or "not found" in str(exc).lower():
            return {}, None
        raise ConfigError(f"kubeconfig {kubeconfig or '(default)'}: {exc}") from exc
    except Exception as exc:  # a broken YAML file raises the parser's own errors
        raise ConfigError(f"kubeconfig {kubeconfig or '(default)'} cannot be read: {exc}") from exc
    listed = cast("list[Json]", found)
    spaces = {
        str(one["name"]): str((one.get("context") or {}).get("namespace") or "default")
        for one in listed
    }
    return spaces, str(cast("Json", current)["name"]) if current else None


def in_cluster_namespace() -> str | None:
    """The namespace of the pod that this process runs in; None outside a cluster."""
    from pathlib import Path

    folder = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    try:
        return (folder / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return None


class Api:
    """Requests to one API server as one user. Safe to use from several threads."""

    def __init__(
        self,
        *,
        backend: str,
        context: str | None = None,
        kubeconfig: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Reads nothing yet; the configuration is loaded on the first request."""
        self.backend = backend
        self._context = context
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._client: ApiClient | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes every connection of the pool."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.rest_client.pool_manager.clear()

    # ---- requests

    def get(self, path: str, query: Query | None = None) -> Json:
        """One object or list."""
        return self.request("GET", path, query=query)

    def items(self, path: str, query: Query | None = None) -> Iterator[Json]:
        """Every item of a list, page by page, so that memory does not grow with the list."""
        token = ""
        while True:
            page = self.get(
                path,
                {"limit": str(_PAGE), **(query or {}), **({"continue": token} if token else {})},
            )
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
        timeout_s: float | None = None,
    ) -> Json:
        """One request; the answer's JSON. Raises the error that the answer means."""
        response = self._send(
            method, path, query=query, body=body, content_type=content_type,
            timeout=(_CONNECT_S, timeout_s or self._timeout_s),
        )  # fmt: skip
        operation = f"{method} {path}"
        try:
            data = cast("bytes", response.read())
        except Exception as exc:  # noqa: BLE001  # urllib3's and the socket's errors
            self._lost(operation, exc)
        finally:
            response.release_conn()
        if response.status >= 400:
            self._refused(operation, response.status, data, response.headers)
        try:
            return cast("Json", json.loads(data)) if data else {}
        except ValueError:
            raise BackendError(
                f"answered with {response.headers.get('Content-Type')} instead of JSON:"
                f" {data[:80]!r}; is this the API server's address?",
                backend=self.backend,
                operation=operation,
            ) from None

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
        if response.status >= 400:
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

    def _opened(self) -> "ApiClient":
        with self._lock:
            if self._client is None:
                self._client = self._load()
            return self._client

    def _load(self) -> "ApiClient":
        _sdk()
        from kubernetes.client import ApiClient, Configuration
        from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

        configuration = cast("Configuration", type.__call__(Configuration))
        configuration.retries = False  # tenacity alone decides what is tried again
        configuration.connection_pool_maxsize = 64
        try:
            if self._context is None and self._kubeconfig is None and in_cluster_namespace():
                load_incluster_config(client_configuration=configuration)
            else:
                load_kube_config(
                    config_file=self._kubeconfig,
                    context=self._context,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except ConfigException as exc:
            raise ConfigError(
                f"{self.backend}: {exc} (context {self._context or 'current'},"
                f" kubeconfig {self._kubeconfig or 'default'})"
            ) from exc
        except Exception as exc:
            raise CredentialsError(
                f"the kubeconfig's user cannot be made ready: {exc}",
                backend=self.backend,
                operation="login",
            ) from exc
        return ApiClient(configuration=configuration)

    def _url(self, client: "ApiClient", path: str, query: Query | None) -> str:
        pairs = [
            (name, item)
            for name, value in (query or {}).items()
            for item in ([value] if isinstance(value, str) else value)
        ]
        text = urlencode(pairs, quote_via=quote)
        return f"{client.configuration.host}{path}{'?' if text else ''}{text}"

    def _authorize(self, client: "ApiClient", headers: dict[str, str]) -> None:
        try:
            client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
        except Exception as exc:
            raise CredentialsError(
                f"the token could not be renewed: {exc}", backend=self.backend, operation="login"
            ) from exc

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
        import urllib3

        client = self._opened()
        headers = {"Accept": "application/json, */*", "User-Agent": "gpufabric", **(headers or {})}
        self._authorize(client, headers)
        data: bytes | None = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body, separators=(",", ":")).encode()
        try:
            return client.rest_client.pool_manager.request(
                method,
                self._url(client, path, query),
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                preload_content=False,
                retries=False,
                redirect=False,
            )
        except Exception as exc:  # noqa: BLE001  # urllib3's, ssl's and the socket's errors
            self._lost(f"{method} {path}", exc)

    def _lost(self, operation: str, exc: Exception) -> NoReturn:
        import ssl

        import urllib3

        if isinstance(exc, GpuFabricError):
            raise exc
        cause: BaseException | None = exc
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                raise CredentialsError(
                    f"TLS with the API server failed: {cause}. Check the CA and the client"
                    " certificate in the kubeconfig; verification is never turned off",
                    backend=self.backend,
                    operation=operation,
                ) from exc
            cause = cause.__cause__ or cause.__context__
        if not isinstance(exc, urllib3.exceptions.HTTPError | OSError):
            raise exc
        raise TransientError(
            f"no answer from the API server: {exc}", backend=self.backend, operation=operation
        ) from exc

    def _refused(
        self, operation: str, code: int, data: bytes, headers: Mapping[str, str]
    ) -> NoReturn:
        try:
            status = cast("Json", json.loads(data))
            message = str(status.get("message") or data[:300].decode("utf-8", "replace"))
            reason = str(status.get("reason") or "")
        except (ValueError, AttributeError):
            message, reason = data[:300].decode("utf-8", "replace").strip(), ""
        raise error_of(
            code, reason, message, backend=self.backend, operation=operation,
            retry_after=headers.get("Retry-After"),
        )  # fmt: skip


def error_of(  # noqa: PLR0911, PLR0913  # one return a kind of answer
    code: int,
    reason: str,
    message: str,
    *,
    backend: str,
    operation: str,
    retry_after: str | None = None,
) -> BackendError:
    """The error that an API server's answer means, with the server's own words.

    Codes and reasons: k8s.io/apimachinery/pkg/apis/meta/v1, StatusReason.
    """
    lowered = message.lower()
    if code == 401:
        return CredentialsError(
            f"the API server does not accept the credentials ({message}): log in again",
            backend=backend, operation=operation,
        )  # fmt: skip
    if code == 403 and "exceeded quota" in lowered:
        return QuotaError(message, backend=backend, operation=operation)
    # a policy in the cluster says "denied request", a webhook "denied the request"
    if any(w in lowered for w in ("violates podsecurity", "denied the request", "denied request")):
        return BackendError(
            f"admission refused it: {message}", backend=backend, operation=operation,
            remedy=Remedy.FIX_SETUP,
        )  # fmt: skip
    if code == 403:
        return CredentialsError(
            f"not allowed: {message}. check() lists every missing permission",
            backend=backend, operation=operation,
        )  # fmt: skip
    if code == 404:
        return NotFoundError(message, backend=backend, operation=operation)
    if code == 409:
        return ConflictError(f"{message} ({reason})", backend=backend, operation=operation)
    if code == 410 or reason in {"Expired", "Gone"}:
        return ExpiredError(message, backend=backend, operation=operation)
    if code in {408, 425, 429, 500, 502, 503, 504}:
        hint = f" (asks to wait {retry_after} s)" if retry_after else ""
        return TransientError(f"{code} {message}{hint}", backend=backend, operation=operation)
    return BackendError(
        f"{code} {reason} {message}".strip(), backend=backend, operation=operation,
        remedy=Remedy.FIX_REQUEST,
    )  # fmt: skip


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
