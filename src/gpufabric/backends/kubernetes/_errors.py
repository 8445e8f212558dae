"""What an API server's answer means, and what the lack of one does.

Codes and reasons: k8s.io/apimachinery/pkg/apis/meta/v1, StatusReason.
"""

import re
import ssl
from collections.abc import Iterator
from typing import NoReturn

from gpufabric.backends.kubernetes._target import Target
from gpufabric.errors import (
    BackendError,
    ConflictError,
    CredentialsError,
    GpuFabricError,
    NotFoundError,
    QuotaError,
    Remedy,
    TransientError,
)

__all__ = ["BusyError", "ExpiredError", "error_of", "no_answer"]

_MOST_WAIT_S = 30.0
#: An authorizer's refusal goes on with `User "..." cannot ...`, anything else is of admission:
#: forbiddenMessage in k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
_ADMISSION = re.compile(r"is forbidden: (?!User )")
#: plugin/pkg/admission/limitranger in k8s.io/kubernetes
_LIMIT_RANGE = re.compile(r"(minimum|maximum) \S+ usage per|max limit to request ratio per")


class ExpiredError(TransientError):
    """The version asked for is too old (410): list again."""


class BusyError(TransientError):
    """The server asks to wait `retry_after_s` before the next try."""

    retry_after_s: float = 0.0


def error_of(  # noqa: PLR0911, PLR0913  # one return a kind of answer
    code: int,
    reason: str,
    message: str,
    *,
    backend: str,
    operation: str,
    retry_after: str | None = None,
    again: str = "log in again",
    conditional: bool = True,
) -> BackendError:
    """The error that an API server's answer means, with the server's own words.

    A request that is not `conditional` meets a conflict of reason `Conflict` only where the server
    itself lost a race, as over a quota that two requests count: it may be made again.
    """
    if code == 401:
        return CredentialsError(
            f"the API server does not accept the credentials ({message}): {again}",
            backend=backend, operation=operation,
        )  # fmt: skip
    refused = _admission(code, message, backend=backend, operation=operation)
    if refused is not None:
        return refused
    if code == 403:
        return CredentialsError(
            f"not allowed: {message}. check() lists every missing permission",
            backend=backend, operation=operation,
        )  # fmt: skip
    if code == 404 and message.startswith("namespaces "):  # of another cluster it may well be there
        return NotFoundError(
            f"{message}: kubectl create namespace, or use another", backend=backend,
            operation=operation, remedy=Remedy.FIX_SETUP,
        )  # fmt: skip
    if code == 404:
        return NotFoundError(message, backend=backend, operation=operation)
    if code == 409 and reason == "Conflict" and not conditional:
        return TransientError(f"{code} {message}", backend=backend, operation=operation)
    if code == 409:
        return ConflictError(f"{message} ({reason})", backend=backend, operation=operation)
    if code == 410 or reason in {"Expired", "Gone"}:
        return ExpiredError(message, backend=backend, operation=operation)
    if code in {408, 425, 429, 500, 502, 503, 504}:
        return _passing(code, message, backend, operation, retry_after)
    return BackendError(
        f"{code} {reason} {message}".strip(), backend=backend, operation=operation,
        remedy=Remedy.FIX_REQUEST,
    )  # fmt: skip


def _passing(
    code: int, message: str, backend: str, operation: str, retry_after: str | None
) -> TransientError:
    wait = retry_after.strip() if retry_after else ""
    if not wait.isdecimal():
        return TransientError(f"{code} {message}", backend=backend, operation=operation)
    words = f"{code} {message} (asks to wait {wait} s)"
    busy = BusyError(words, backend=backend, operation=operation)
    busy.retry_after_s = min(float(wait), _MOST_WAIT_S)
    return busy


def _admission(code: int, message: str, *, backend: str, operation: str) -> BackendError | None:
    """The error of what authorization let pass and admission did not."""
    lowered = message.lower()
    if code == 403 and "exceeded quota" in lowered:
        return QuotaError(message, backend=backend, operation=operation)
    if code == 403 and "failed quota" in lowered:
        return BackendError(
            f"{message}. The namespace's ResourceQuota counts these, so the request must name"
            " them: cpus and memory_gib in Resources, or resources in pod_patch",
            backend=backend, operation=operation, remedy=Remedy.FIX_REQUEST,
        )  # fmt: skip
    if code == 403 and _LIMIT_RANGE.search(message):
        return QuotaError(
            f"the namespace's LimitRange does not allow it: {message}",
            backend=backend, operation=operation,
        )  # fmt: skip
    told = any(
        words in lowered
        for words in ("violates podsecurity", "denied the request", "denied request")
    )
    if told or (code == 403 and _ADMISSION.search(message)):
        return BackendError(
            f"admission refused it: {message}", backend=backend, operation=operation,
            remedy=Remedy.FIX_SETUP,
        )  # fmt: skip
    return None


# ---- no answer

#: What OpenSSL says of a server's certificate: X509_V_ERR_* of its x509_vfy.h
_UNTRUSTED = {
    9: "the server's certificate is not valid yet: is this machine's clock right?",
    10: "the server's certificate has expired: its operator must renew it, or this machine's"
    " clock is wrong",
    18: "the server's certificate is signed by itself, not by the kubeconfig's"
    " certificate-authority",
    19: "the server's certificate comes from another authority than the kubeconfig's"
    " certificate-authority: is the kubeconfig of this cluster, or does a proxy break TLS up?",
    20: "the server's certificate comes from another authority than the kubeconfig's"
    " certificate-authority: is the kubeconfig of this cluster, or does a proxy break TLS up?",
    62: "the server's certificate is for other names: use one of those in `server`, or set"
    " tls-server-name",
    64: "the server's certificate is for other addresses: use one of its names in `server`, or set"
    " tls-server-name",
}
_CLIENT_CERTIFICATE = re.compile(
    r"ALERT_(CERTIFICATE_(EXPIRED|REQUIRED|REVOKED|UNKNOWN)|BAD_CERTIFICATE|UNKNOWN_CA"
    r"|UNSUPPORTED_CERTIFICATE|ACCESS_DENIED|HANDSHAKE_FAILURE)"
)
_NO_TLS = re.compile(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|RECORD_LAYER_FAILURE")


def no_answer(
    exc: Exception, *, backend: str, operation: str, target: Target, again: str = ""
) -> NoReturn:
    """Raises what a request without an answer means. What is no trouble of the network passes."""
    import urllib3

    if isinstance(exc, GpuFabricError) or not isinstance(
        exc, urllib3.exceptions.HTTPError | OSError
    ):
        raise exc
    where = target.server
    if target.proxy is not None and isinstance(exc, urllib3.exceptions.ProxyError):
        reason = exc.original_error
        raise TransientError(
            f"the proxy {target.proxy.origin} lets nothing through to {where}: {reason}",
            backend=backend, operation=operation,
        ) from exc  # fmt: skip
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLError):
            _tls(exc, cause, backend=backend, operation=operation, target=target, again=again)
    raise TransientError(
        f"no answer from the API server: {_unanswered(exc, where)}",
        backend=backend, operation=operation,
    ) from exc  # fmt: skip


def _causes(exc: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _tls(  # noqa: PLR0913  # one caller
    exc: Exception, cause: ssl.SSLError, *, backend: str, operation: str, target: Target, again: str
) -> None:
    """Raises what a fault of TLS means; gives where the connection was only cut."""
    where, reason = target.server, str(cause.reason or "")
    if isinstance(cause, ssl.SSLCertVerificationError):
        words = _UNTRUSTED.get(cause.verify_code, f"the server's certificate: {cause}")
        detail = f" ({cause.verify_message})" if cause.verify_message else ""
        words = f"TLS with {where}: {words}{detail}. Verification is never turned off"
    elif _CLIENT_CERTIFICATE.search(reason):
        words = f"TLS with {where}: the server does not take the client certificate ({reason})"
        words += f": {again}" if again else ""
    elif _NO_TLS.search(reason):
        raise BackendError(
            f"{where} does not speak TLS ({reason}): is its port right, or is it http?",
            backend=backend, operation=operation, remedy=Remedy.FIX_SETUP,
        ) from exc  # fmt: skip
    else:
        return
    raise CredentialsError(words, backend=backend, operation=operation) from exc


def _unanswered(exc: Exception, where: str) -> str:
    import urllib3

    refused = any(isinstance(cause, ConnectionRefusedError) for cause in _causes(exc))
    if isinstance(exc, urllib3.exceptions.NameResolutionError):
        return f"the name of {where} is not known to DNS here: is a VPN or a private zone needed?"
    if refused:
        return f"{where} refuses connections: is the server up, the port right, a tunnel open?"
    if isinstance(exc, urllib3.exceptions.ConnectTimeoutError):
        return f"{where} cannot be reached: is a firewall between, or a VPN needed?"
    if isinstance(exc, urllib3.exceptions.ReadTimeoutError):
        return f"{where} took the request and said nothing in time"
    return f"{where}: {exc}"
