"""A server and a login taken from a client of the official `kubernetes` package.

A platform whose tenants have clients already, with credentials of its own kind, gives one of them
instead of a kubeconfig. Its configuration is read and its token hook is asked; nothing is changed,
and requests travel as all others do.
https://github.com/kubernetes-client/python/blob/HEAD/kubernetes/client/configuration.py
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from gpufabric.backends.kubernetes._connection import Connections
from gpufabric.backends.kubernetes._login import Credential, Login
from gpufabric.backends.kubernetes._pem import not_after
from gpufabric.backends.kubernetes._target import Target, given_proxy
from gpufabric.errors import ConfigError, CredentialsError

__all__ = ["OfficialClient", "connections_of", "place_of"]

_FRESH_S = 30.0  # a hook tells no end of its token: it is asked as often
_WHO = "the client that was given"


class OfficialConfiguration(Protocol):
    """What is read of a `kubernetes.client.Configuration`."""

    host: str
    verify_ssl: bool
    ssl_ca_cert: str | None
    ca_cert_data: str | bytes | None
    cert_file: str | None
    key_file: str | None
    tls_server_name: str | None
    assert_hostname: bool | str | None
    proxy: str | None
    no_proxy: str | None


class OfficialClient(Protocol):
    """What is used of a `kubernetes.client.ApiClient`."""

    configuration: OfficialConfiguration
    default_headers: Mapping[str, str]

    def update_params_for_auth(  # noqa: PLR0913, PLR0917  # not ours
        self,
        headers: dict[str, str],
        queries: list[tuple[str, str]],
        auth_settings: list[str],
        resource_path: str,
        method: str,
        body: object,
    ) -> None: ...


def place_of(client: OfficialClient) -> str:
    """What stands for the context in refs where none was named: the server's host and port."""
    return urlsplit(client.configuration.host).netloc.rpartition("@")[2] or "client"


def connections_of(
    client: OfficialClient, *, backend: str, clock: Callable[[], float] = time.time
) -> Connections:
    """The same server as the same user. Raises `ConfigError`."""
    target = _target(client.configuration)
    return Connections(target, Login(lambda: _credential(client, backend=backend, clock=clock)))


def _target(configuration: OfficialConfiguration) -> Target:
    if configuration.assert_hostname is not None:
        raise ConfigError(
            f"{_WHO} sets assert_hostname: say the name in the server's certificate with"
            " tls_server_name instead"
        )
    authority = configuration.ca_cert_data or ""
    if isinstance(authority, bytes):
        authority = authority.decode("ascii", "replace")
    if not authority and configuration.ssl_ca_cert:
        authority = _text(configuration.ssl_ca_cert, "certificate authority")
    server = configuration.host.rstrip("/")
    return Target(
        server=server,
        authority=authority,
        server_name=configuration.tls_server_name or "",
        verified=bool(configuration.verify_ssl),
        proxy=given_proxy(server, configuration.proxy, configuration.no_proxy, _WHO),
    )


def _text(file: str, what: str) -> str:
    try:
        return Path(file).read_text(encoding="ascii")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{_WHO}: its {what} {file} cannot be read: {exc}") from exc


def _credential(client: OfficialClient, *, backend: str, clock: Callable[[], float]) -> Credential:
    headers: dict[str, str] = {}
    try:
        client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
    except Exception as exc:
        raise CredentialsError(
            f"the token hook of {_WHO} failed: {type(exc).__name__}: {exc}",
            backend=backend, operation="login",
        ) from exc  # fmt: skip
    others = {
        name: value
        for name, value in client.default_headers.items()
        if name.lower() not in {"user-agent", "accept", "content-type"}
    }
    configuration = client.configuration
    certificate = key = ""
    if configuration.cert_file and configuration.key_file:
        certificate = _text(configuration.cert_file, "client certificate")
        key = _text(configuration.key_file, "client key")
    return Credential(
        how=_WHO,
        again=f"{_WHO} has credentials that the server does not take: give one that it takes",
        headers=tuple({**others, **headers}.items()),
        certificate=certificate,
        key=key,
        expires=not_after(certificate) if certificate else None,
        fresh_until=clock() + _FRESH_S,
    )
