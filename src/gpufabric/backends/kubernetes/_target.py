"""Where an API server is and how it is reached: address, TLS, proxy."""

import contextlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from gpufabric._frozen import field, frozen
from gpufabric.backends.kubernetes._kubeconfig import Chosen
from gpufabric.backends.kubernetes._login import Credential
from gpufabric.errors import ConfigError

__all__ = ["Proxy", "Target", "given_proxy", "pod_target", "target_of", "tls_context"]


@frozen(kw_only=True)
class Proxy:
    """A proxy on the way. Its password is in no text that is shown."""

    url: str
    origin: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


@frozen(kw_only=True)
class Target:
    """One API server."""

    server: str
    authority: str = field(default="", repr=False)
    server_name: str = ""
    verified: bool = True
    proxy: Proxy | None = None

    @property
    def encrypted(self) -> bool:
        """Whether it is spoken to over TLS."""
        return self.server.startswith("https://")


def target_of(chosen: Chosen, environment: Mapping[str, str]) -> Target:
    """The API server of a context. `environment` is empty where its proxies do not count."""
    cluster = chosen.cluster
    where = f"cluster {cluster.name!r} of the kubeconfig {chosen.source}"
    server = cluster.text("server").rstrip("/")
    parts = _split(server, where, "server")
    if "@" in parts.netloc:  # every message names the server
        raise ConfigError(f"{where}: server has a user in it: write the user under `users`")
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ConfigError(f"{where}: server {server!r} is no http or https address")
    authority = cluster.pem("certificate-authority")
    insecure = cluster.flag("insecure-skip-tls-verify")
    if insecure and authority:
        raise ConfigError(
            f"{where}: has a certificate authority and insecure-skip-tls-verify: true; take out"
            " the latter, so that the server is verified"
        )
    given = cluster.text("proxy-url")
    proxy = _proxy(given, where, "proxy-url") if given else _environment_proxy(parts, environment)
    return Target(
        server=server,
        authority=authority,
        server_name=cluster.text("tls-server-name"),
        verified=not insecure,
        proxy=proxy,
    )


def pod_target(folder: Path, environment: Mapping[str, str]) -> Target:
    """The API server of the cluster that this process runs in.

    https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "in-cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; this"
            " process runs in no pod, or its environment was cleared"
        )
    file = folder / "ca.crt"
    try:
        authority = file.read_text(encoding="ascii")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"in-cluster: {file} cannot be read: {exc}") from exc
    return Target(server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
                  authority=authority)  # fmt: skip


# ---- TLS


def tls_context(target: Target, credential: Credential) -> ssl.SSLContext | None:
    """What TLS with this server needs; None where it is spoken to without."""
    if not target.encrypted:
        return None
    try:
        context = ssl.create_default_context(cadata=target.authority or None)
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(
            f"the certificate authority of {target.server} in the kubeconfig is no PEM"
            f" certificate: {exc}"
        ) from exc
    if not target.verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate:
        try:
            _load_pair(context, f"{credential.certificate}\n{credential.key}\n")
        except (ssl.SSLError, ValueError) as exc:
            raise ConfigError(
                f"{credential.how} cannot be used: certificate and key are no pair, or no PEM"
                f" ({exc})"
            ) from exc
    return context


def _load_pair(context: ssl.SSLContext, pair: str) -> None:
    with _private_file(pair.encode("ascii")) as path:
        context.load_cert_chain(path, password=_no_password)


def _no_password() -> str:  # else OpenSSL asks on the terminal
    raise ValueError("the key is encrypted")


@contextlib.contextmanager
def _private_file(data: bytes) -> Generator[str]:
    """A name for data that only OpenSSL's own reading of files takes: in memory where possible."""
    try:
        number = os.memfd_create("gpufabric")
    except (AttributeError, OSError):
        number = -1
    if number >= 0:
        try:
            os.write(number, data)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile(prefix="gpufabric-") as file:  # mode 0600, gone at once
        file.write(data)
        file.flush()
        yield file.name


# ---- proxies


def _split(url: str, where: str, key: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise ConfigError(f"{where}: {key} is no address: {exc}") from None
    return parts


def _proxy(url: str, where: str, key: str) -> Proxy:
    parts = _split(url if "://" in url else f"http://{url}", where, key)
    if parts.scheme not in {"http", "https", "socks5", "socks5h"} or not parts.hostname:
        raise ConfigError(f"{where}: {key} is none of http://, https:// and socks5:// with a host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    origin = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
    return Proxy(
        url=origin,
        origin=origin,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


def given_proxy(server: str, url: str | None, skipped: str | None, where: str) -> Proxy | None:
    """A proxy that was named, unless the server is one of those that are reached without."""
    parts = _split(server, where, "host")
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ConfigError(f"{where}: host {server!r} is no http or https address")
    return None if not url or _is_skipped(parts, skipped) else _proxy(url, where, "proxy")


def _is_skipped(server: SplitResult, skipped: str | None) -> bool:
    host = (server.hostname or "").lower()
    port = server.port or (443 if server.scheme == "https" else 80)
    return any(_matches(entry.strip().lower(), host, port) for entry in (skipped or "").split(","))


def _environment_proxy(server: SplitResult, environment: Mapping[str, str]) -> Proxy | None:
    """HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as Go's programs read them.

    https://pkg.go.dev/golang.org/x/net/http/httpproxy
    """
    name = f"{server.scheme}_proxy"
    url = environment.get(name.upper()) or environment.get(name)
    if not url or _is_loopback((server.hostname or "").lower()):
        return None
    if _is_skipped(server, environment.get("NO_PROXY") or environment.get("no_proxy")):
        return None
    return _proxy(url, "the environment", name.upper())


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _matches(entry: str, host: str, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit() and ":" not in name.strip("[]"):
        if int(wanted) != port:
            return False
        entry = name
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    if entry.startswith("*."):
        entry = entry[1:]
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")
