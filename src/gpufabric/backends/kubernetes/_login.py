"""Who a request is made as: credentials obtained, kept while they hold, and obtained anew.

Nothing is written: not to the kubeconfig, not to the environment, not to a file.
"""

import base64
import copy
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast
from urllib.parse import quote

from gpufabric._frozen import evolve, field, frozen
from gpufabric.backends.kubernetes._kubeconfig import Chosen, Part, mapping_of
from gpufabric.backends.kubernetes._pem import not_after
from gpufabric.backends.kubernetes._plugin import PluginError, plugin_of
from gpufabric.errors import ConfigError, CredentialsError, GpuFabricError

__all__ = ["Credential", "Login", "credential_of", "pod_credential"]

_FILE_FRESH_S = 60.0  # the kubelet writes a new token long before the old one ends
_EARLY_S = 60.0  # a credential is renewed so long before its end, or a tenth of its life


@frozen(kw_only=True)
class Credential:
    """What a request carries to say who makes it.

    Fields:
        how: where it came from, for a person.
        again: what a person can do where it is not accepted.
        expires: when it ends, in seconds since 1970; None where it does not say.
        fresh_until: when it is obtained anew.
        renews: whether a new one comes by itself before it ends.
    """

    how: str
    again: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    expires: float | None = None
    fresh_until: float | None = None
    renews: bool = False

    def same_as(self, other: "Credential") -> bool:
        """Whether a server would see no difference."""
        mine = (self.headers, self.certificate, self.key)
        return mine == (other.headers, other.certificate, other.key)


class Login:
    """The credential of one user, for all threads: at most one of them obtains it at a time."""

    def __init__(
        self, obtain: Callable[[], Credential], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._obtain = obtain
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: Credential | None = None
        self._flight: Future[Credential] | None = None

    @property
    def again(self) -> str:
        """What a person can do where the credential is not accepted."""
        return self._kept.again if self._kept is not None else "log in again"

    def current(self) -> Credential:
        """A credential that still holds."""
        kept = self._kept
        fresh = kept is not None and (kept.fresh_until is None or self._clock() < kept.fresh_until)
        return kept if kept is not None and fresh else self._anew(kept)

    def renewed(self, rejected: Credential) -> Credential | None:
        """Another credential than the one that a server rejected; None where there is none."""
        made = self._anew(rejected)
        return None if made.same_as(rejected) else made

    def _anew(self, stale: Credential | None) -> Credential:
        with self._lock:
            if self._kept is not stale and self._kept is not None:
                return self._kept  # another thread was faster
            flight, leads = self._flight, self._flight is None
            if flight is None:
                flight = self._flight = Future[Credential]()
        if not leads:
            try:
                return flight.result()
            except GpuFabricError as exc:
                raise copy.copy(exc) from exc  # every thread has its own traceback
        try:
            made = self._obtain()
        except BaseException as exc:
            with self._lock:
                self._flight = None
            known = isinstance(exc, GpuFabricError)
            flight.set_exception(exc if known else ConfigError("the login was interrupted"))
            raise
        with self._lock:
            self._kept, self._flight = made, None
        flight.set_result(made)
        return made


# ---- a kubeconfig's user


def credential_of(
    chosen: Chosen,
    environment: Mapping[str, str],
    *,
    backend: str,
    timeout_s: float,
    clock: Callable[[], float] = time.time,
) -> Credential:
    """The credential of a context's user. Raises `ConfigError` or `CredentialsError`.

    As with kubectl a token is preferred to a password, and a plug-in is run where neither of them
    nor a certificate is there.
    https://pkg.go.dev/k8s.io/client-go/tools/clientcmd/api#AuthInfo
    """
    user = chosen.user
    if user is None:
        return Credential(how="nobody: the context names no user", again="name a user in it")
    where = f"user {user.name!r} of the kubeconfig {chosen.source}"
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if bool(certificate) != bool(key):
        raise ConfigError(f"{where}: client-certificate and client-key come together, one is there")
    ends = not_after(certificate) if certificate else None
    made = Credential(
        how=f"the client certificate of {where}" if certificate else f"nothing of {where}",
        again=(
            f"the client certificate of {where} may have ended or be of another cluster:"
            " let the tool that wrote it write it anew"
        )
        if certificate
        else f"{where} has no credential",
        certificate=certificate,
        key=key,
        expires=ends,
    )
    given = _with_token(made, user, where, clock)
    if given is made and not certificate:
        if user.table("auth-provider"):
            given = _with_provider(made, user, where, backend=backend, clock=clock)
        elif user.table("exec"):
            given = _with_plugin(
                made, chosen, user, environment,
                backend=backend, timeout_s=timeout_s, clock=clock,
            )  # fmt: skip
    return evolve(given, headers=(*given.headers, *_impersonated(user, where)))


def _bearer(token: str, where: str) -> tuple[tuple[str, str], ...]:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{where}: its token has characters that no token has")
    return (("Authorization", f"Bearer {token}"),)


def _with_token(made: Credential, user: Part, where: str, clock: Callable[[], float]) -> Credential:
    file, token = user.path("tokenFile"), user.text("token")
    if file is not None:
        return evolve(
            made,
            headers=_bearer(_token_in(file, where), where),
            how=f"the token file {file} of {where}",
            again=f"the token in {file} has ended, or is of another cluster",
            expires=_jwt_end(_token_in(file, where)),
            fresh_until=clock() + _FILE_FRESH_S,
            renews=True,
        )
    if token:
        return evolve(
            made,
            headers=_bearer(token.strip(), where),
            how=f"the token of {where}",
            again=f"the token of {where} has ended, or is of another cluster: write a new one",
            expires=_jwt_end(token),
        )
    name, password = user.text("username"), user.text("password")
    if name or password:
        plain = base64.b64encode(f"{name}:{password}".encode()).decode("ascii")
        return evolve(
            made,
            headers=(("Authorization", f"Basic {plain}"),),
            how=f"the password of {where}",
            again=(
                f"{where} logs in with a password, which API servers from 1.19 on do not accept"
            ),
        )
    return made


def _token_in(file: Path, where: str) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{where}: the token file {file} cannot be read: {exc}") from exc
    if not token:
        raise ConfigError(f"{where}: the token file {file} is empty")
    return token


#: What client-go says of the providers that it had: k8s.io/client-go/plugin/pkg/client/auth
_PROVIDERS = {
    "gcp": "gke-gcloud-auth-plugin, which `gcloud container clusters get-credentials` writes",
    "azure": "kubelogin, which `kubelogin convert-kubeconfig` writes",
}


def _with_provider(
    made: Credential, user: Part, where: str, *, backend: str, clock: Callable[[], float]
) -> Credential:
    provider = user.table("auth-provider")
    name = str(provider.get("name") or "")
    if name != "oidc":
        instead = _PROVIDERS.get(name, "an exec plug-in")
        raise ConfigError(
            f"{where} logs in with the auth-provider {name!r}, which Kubernetes no longer has:"
            f" use {instead}"
        )
    given = mapping_of(provider.get("config"))
    token = str(given.get("id-token") or "").strip()
    again = (
        "a renewal may replace the refresh token, which only the owner of the kubeconfig may"
        " write: let kubectl renew it (kubectl version), and it is read anew; or use an exec"
        " plug-in for OIDC"
    )
    ends = _jwt_end(token)
    if not token or (ends is not None and ends <= clock()):
        state = "has ended" if token else "is not there"
        raise CredentialsError(
            f"the OIDC id-token of {where} {state}: {again}", backend=backend, operation="login"
        )
    return evolve(
        made,
        headers=_bearer(token, where),
        how=f"the OIDC id-token of {where}",
        again=again,
        expires=ends,
        fresh_until=ends,
    )


def _with_plugin(  # noqa: PLR0913  # one caller
    made: Credential,
    chosen: Chosen,
    user: Part,
    environment: Mapping[str, str],
    *,
    backend: str,
    timeout_s: float,
    clock: Callable[[], float],
) -> Credential:
    plugin = plugin_of(user, chosen.cluster)
    begun = clock()
    try:
        answer = plugin.run(environment, timeout_s=timeout_s)
    except PluginError as exc:
        raise CredentialsError(
            f"the login plug-in `{plugin.shown()}` of user {user.name!r} gave no credential: {exc}",
            backend=backend,
            operation="login",
        ) from exc
    where = f"the plug-in `{plugin.shown()}` of user {user.name!r}"
    ends = answer.expires if answer.expires is not None else not_after(answer.certificate)
    if answer.expires is not None and answer.expires <= begun:
        raise CredentialsError(
            f"{where} gave a credential that had ended already: log in again with the tool that"
            " it belongs to, and see that this machine's clock is right",
            backend=backend,
            operation="login",
        )
    early = None if ends is None else ends - min(_EARLY_S, 0.1 * (ends - begun))
    return evolve(
        made,
        headers=_bearer(answer.token, where) if answer.token else (),
        certificate=answer.certificate,
        key=answer.key,
        how=where,
        again=f"{where} gave what the server rejects: log in again with the tool it belongs to",
        expires=ends,
        fresh_until=early,
        renews=True,
    )


def _impersonated(user: Part, where: str) -> list[tuple[str, str]]:
    """https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/."""
    name = user.text("as")
    groups: object = user.body.get("as-groups") or ()
    extra = user.table("as-user-extra")
    if not name:
        if groups or extra or user.text("as-uid"):
            raise ConfigError(f"{where}: as-uid, as-groups and as-user-extra need `as`")
        return []
    headers = [("Impersonate-User", name)]
    if user.text("as-uid"):
        headers.append(("Impersonate-Uid", user.text("as-uid")))
    headers += [("Impersonate-Group", one) for one in _texts(groups, where)]
    for key, values in extra.items():
        escaped = quote(key, safe="!#$&'*+^`|")
        headers += [(f"Impersonate-Extra-{escaped}", one) for one in _texts(values, where)]
    if any(re.search(r"[\r\n]", value) for _, value in headers):
        raise ConfigError(f"{where}: `as` and its groups have no line breaks")
    return headers


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: as-groups and the values of as-user-extra are lists")
    return [str(one) for one in cast("Sequence[object]", value)]


def _jwt_end(token: str) -> float | None:
    """When a token says that it ends; None where it is of a kind that does not say."""
    parts = token.strip().split(".")
    if len(parts) != 3:
        return None
    try:
        claims = cast("object", json.loads(base64.urlsafe_b64decode(parts[1] + "===")))
    except ValueError:
        return None
    ends = cast("Mapping[str, object]", claims).get("exp") if isinstance(claims, dict) else None
    return float(ends) if isinstance(ends, int | float) else None


# ---- the cluster that this process runs in


def pod_credential(token_file: Path, *, clock: Callable[[], float] = time.time) -> Credential:
    """The service account's token, which the kubelet replaces while the process runs."""
    where = "this pod's service account"
    token = _token_in(token_file, where)
    return Credential(
        how=where,
        again="the pod's service account may be gone, or its token of another cluster",
        headers=_bearer(token, where),
        expires=_jwt_end(token),
        fresh_until=clock() + _FILE_FRESH_S,
        renews=True,
    )
