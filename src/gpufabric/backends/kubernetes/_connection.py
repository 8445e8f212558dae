"""The connections to one API server: the only file that opens them, with `urllib3`."""

# urllib3's connections are used beyond what it types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import importlib.util
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gpufabric.backends.kubernetes._login import Credential, Login
from gpufabric.backends.kubernetes._target import Target, tls_context
from gpufabric.errors import ConfigError, MissingExtraError

__all__ = ["CONNECT_S", "Connections", "Query", "load_urllib3", "url_of"]

Query = Mapping[str, str | Sequence[str]]
CONNECT_S = 10.0
#: A proxy or load balancer forgets quiet connections; client-go asks as often.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30),
]


def load_urllib3() -> Any:
    """The package, or the extra that brings it."""
    try:
        import urllib3
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "urllib3":
            raise
        raise MissingExtraError("the kubernetes backend", extra="kubernetes") from exc
    return urllib3


class Connections:
    """One server, who asks it, and the connections that there are."""

    def __init__(self, target: Target, login: Login) -> None:
        self.target = target
        self.login = login
        self._pool: Any = None
        self._pair = ("", "")
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes those that no request uses; a used one closes after it."""
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
        """Sends one request; the answer, whose body is not read yet."""
        urllib3 = load_urllib3()
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
        connection.timeout = CONNECT_S
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
    urllib3 = load_urllib3()
    given: dict[str, Any] = {
        "maxsize": 64,
        "ssl_context": tls_context(target, credential),
        "socket_options": KEEPALIVE,
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


def url_of(target: Target, path: str, query: Query | None) -> str:
    """The address of a request."""
    pairs = [
        (name, item)
        for name, value in (query or {}).items()
        for item in ([value] if isinstance(value, str) else value)
    ]
    text = urlencode(pairs, quote_via=quote)
    return f"{target.server}{path}{'?' if text else ''}{text}"
