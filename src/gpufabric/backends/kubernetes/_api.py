"""Requests to an API server: plain JSON in and out, errors made ours.

Only `_connection.py` knows how they travel. The official client costs a second and 66 MB,
and its login goes on as nobody where a plug-in fails; docs/decisions/0005-kubernetes-login.md.
"""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import base64
import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

from gpufabric.backends.kubernetes._connection import (
    CONNECT_S,
    Connections,
    Query,
    url_of,
)
from gpufabric.backends.kubernetes._errors import ExpiredError, error_of, no_answer
from gpufabric.backends.kubernetes._login import Credential
from gpufabric.backends.kubernetes._official import OfficialClient
from gpufabric.backends.kubernetes._origin import (
    ACCOUNT,
    IN_CLUSTER,
    Origin,
    contexts,
    in_cluster_namespace,
)
from gpufabric.backends.kubernetes._streams import Stream
from gpufabric.backends.kubernetes._target import Target
from gpufabric.errors import (
    BackendError,
    ConflictError,
    CredentialsError,
    GpuFabricError,
    NotFoundError,
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

_PAGE = 500
_TITLE = re.compile(rb"(?is)<title[^>]*>(.*?)</title>")
# https://kubernetes.io/docs/reference/using-api/api-concepts/#alternate-representations-of-resources
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_WORDS = 4096
# https://www.rfc-editor.org/rfc/rfc6455#section-1.3
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class UpgradeRefusedError(BackendError):
    """A websocket, or its protocol, is not spoken by the server or by something before it."""


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
        client: OfficialClient | None = None,
    ) -> None:
        """Reads nothing yet; the configuration is loaded on the first request."""
        self.backend = backend
        self._origin = Origin(
            backend=backend, context=context, kubeconfig=kubeconfig, trust_env=trust_env,
            login_timeout_s=login_timeout_s, account=account, client=client,
        )  # fmt: skip
        self._timeout_s = timeout_s
        self._way: Connections | None = None
        self._lock = threading.Lock()

    def place(self) -> tuple[str, str]:
        """The context, or `IN_CLUSTER`, and its namespace. Raises `ConfigError`."""
        return self._origin.place()

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
            timeout=(CONNECT_S, timeout_s or self._timeout_s),
        )  # fmt: skip
        data = self._received(f"{method} {path}", response, conditional=_conditional(body))
        try:
            return cast("Json", json.loads(data)) if data else {}
        except ValueError:
            raise self._stranger(
                f"{method} {path}", response.status, data, response.headers
            ) from None

    def merge(self, path: str, body: object) -> Json:
        """Changes what `body` has of an object, by a JSON merge patch; the object as it is then."""
        return self.request(
            "PATCH", path, body=body, content_type="application/merge-patch+json"
        )  # fmt: skip

    def delete(
        self, path: str, uid: str, *, version: str | None = None, policy: str | None = None
    ) -> None:
        """Removes that very object; of one that is gone, or another since, it succeeds.

        With `version` only as it was then; `policy` is what becomes of what it owns.
        """
        only: Json = {"uid": uid}
        if version is not None:
            only["resourceVersion"] = version
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": only}
        if policy is not None:
            body["propagationPolicy"] = policy
        try:
            self.request("DELETE", path, body=body)
        except (NotFoundError, ConflictError):
            return

    def raw(self, path: str, query: Query | None = None) -> bytes:
        """The text of an answer, for whoever parses it while the next is on its way."""
        response = self._send("GET", path, query=query, timeout=(CONNECT_S, self._timeout_s))
        return self._received(f"GET {path}", response)

    def _received(self, operation: str, response: Any, *, conditional: bool = True) -> bytes:
        try:
            data = cast("bytes", response.read())
        except Exception as exc:  # noqa: BLE001  # urllib3's and the socket's errors
            self._lost(operation, exc)
        finally:
            response.release_conn()
        if response.status >= 300 or _is_page(response):
            self._refused(
                operation, response.status, data, response.headers, conditional=conditional
            )
        return data

    def open(self, path: str, query: Query | None = None) -> Stream:
        """Sends a GET whose answer is read as it comes, without blocking, by a `Loop`.

        Raises what keeps it from being sent; the stream tells what the answer means.
        """
        way = self._opened()
        credential = way.login.current()
        try:
            connection = way.send(url_of(way.target, path, query), credential)
        except Exception as exc:  # noqa: BLE001  # urllib3's, ssl's and the socket's errors
            self._lost(f"GET {path}", exc)
        return Stream(_Open(self, f"GET {path}", connection, credential))

    def renewal(self, operation: str, rejected: Credential) -> GpuFabricError | None:
        """What a 401 means where the asker must ask again: None where nothing can be renewed."""
        try:
            renewed = self._opened().login.renewed(rejected)
        except GpuFabricError as exc:
            return exc
        if renewed is None:
            return None
        words = "the credential had ended and was renewed: ask again"
        return TransientError(words, backend=self.backend, operation=operation)

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
            "GET", path, query=query, headers=headers, timeout=(CONNECT_S, self._timeout_s)
        )
        if response.status != 101:
            connection = response.connection
            try:
                data = cast("bytes", response.read(_WORDS))
            except Exception as exc:  # noqa: BLE001  # urllib3's and the socket's errors
                self._lost(operation, exc)
            finally:
                response.close()
            if connection is not None:  # reading gave it back; who refuses a websocket may hang up
                connection.close()
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
            told = f"speaks {chosen!r}" if accepted else "proves nothing"
            raise UpgradeRefusedError(
                f"a websocket was opened that {told}"
                f" instead of one of {', '.join(protocols)}; is this the API server's address?",
                backend=self.backend, operation=operation,
            )  # fmt: skip
        return (*_taken(response), chosen)

    # ---- inside

    def _opened(self) -> Connections:
        with self._lock:
            if self._way is None:
                self._way = self._origin.connections()
            return self._way

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
        url = url_of(way.target, path, query)
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

    def _renewed(self, way: Connections, rejected: Credential, response: Any) -> Credential | None:
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
        self,
        operation: str,
        code: int,
        data: bytes,
        headers: Mapping[str, str],
        *,
        conditional: bool = True,
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
            conditional=conditional,
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

    def __init__(self, api: Api, operation: str, connection: Any, credential: Credential) -> None:
        self.sock: socket.socket = connection.sock
        self._credential = credential
        self._api = api
        self._operation = operation
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def refused(self, status: int, data: bytes, headers: Mapping[str, str]) -> GpuFabricError:
        renewal = self._api.renewal(self._operation, self._credential) if status == 401 else None
        return renewal or self._api.refusal(self._operation, status, data, headers)

    def lost(self, why: str) -> GpuFabricError:
        return TransientError(
            f"the answer broke off: {why}", backend=self._api.backend, operation=self._operation
        )


def _is_page(response: Any) -> bool:
    return "html" in str(response.headers.get("Content-Type") or "").lower()


def _conditional(body: object) -> bool:
    """Whether a request is to be done only while something is as its sender last saw it."""
    if not isinstance(body, dict):
        return True  # a JSON patch tests what it changes
    sent = cast("Json", body)
    return "preconditions" in sent or "resourceVersion" in (sent.get("metadata") or {})


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
