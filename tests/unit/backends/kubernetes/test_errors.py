"""What each answer of an API server means: by its code, its reason and its words."""

import pickle

import pytest
import tenacity

from gpufabric.backends.kubernetes._errors import BusyError, ExpiredError, error_of
from gpufabric.backends.kubernetes._patience import Patience
from gpufabric.errors import (
    BackendError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    QuotaError,
    Remedy,
    TransientError,
)

#: Every StatusReason that the API server has a code for, with that code:
#: k8s.io/apimachinery v0.36.3, pkg/apis/meta/v1/types.go
REASONS = {
    "Unauthorized": (401, CredentialsError, Remedy.FIX_SETUP),
    "Forbidden": (403, CredentialsError, Remedy.FIX_SETUP),
    "NotFound": (404, NotFoundError, Remedy.FIX_REQUEST),
    "AlreadyExists": (409, ConflictError, Remedy.FIX_REQUEST),
    "Conflict": (409, ConflictError, Remedy.FIX_REQUEST),
    "Gone": (410, ExpiredError, Remedy.RETRY),
    "Invalid": (422, BackendError, Remedy.FIX_REQUEST),
    "ServerTimeout": (500, TransientError, Remedy.RETRY),
    "StorageReadError": (500, TransientError, Remedy.RETRY),
    "Timeout": (504, TransientError, Remedy.RETRY),
    "TooManyRequests": (429, TransientError, Remedy.RETRY),
    "BadRequest": (400, BackendError, Remedy.FIX_REQUEST),
    "MethodNotAllowed": (405, BackendError, Remedy.FIX_REQUEST),
    "NotAcceptable": (406, BackendError, Remedy.FIX_REQUEST),
    "RequestEntityTooLarge": (413, BackendError, Remedy.FIX_REQUEST),
    "UnsupportedMediaType": (415, BackendError, Remedy.FIX_REQUEST),
    "InternalError": (500, TransientError, Remedy.RETRY),
    "Expired": (410, ExpiredError, Remedy.RETRY),
    "ServiceUnavailable": (503, TransientError, Remedy.RETRY),
}


def made(code, reason, message, **fields):
    return error_of(code, reason, message, backend="kubernetes", operation="POST /x", **fields)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_api_server_has_its_error_and_remedy(reason):
    code, kind, remedy = REASONS[reason]
    error = made(code, reason, "the server's own words")
    assert (type(error), error.remedy) == (kind, remedy)
    assert "the server's own words" in str(error)


#: 403 and its kin as servers word them: RBAC, ResourceQuota, LimitRanger, PodSecurity, webhooks
#: and policies. Sources: k8s.io/apiserver v0.36.3 (endpoints/handlers/responsewriters,
#: admission/plugin), k8s.io/kubernetes v1.36.3 (plugin/pkg/admission/limitranger).
REFUSALS = [
    (403, ('pods is forbidden: User "u" cannot list resource "pods" in API group "" in the'
     ' namespace "ml"'), CredentialsError, Remedy.FIX_SETUP, "not allowed"),
    (403, 'forbidden: User "u" cannot get path "/x"', CredentialsError, Remedy.FIX_SETUP,
     "check() lists"),
    (403, ('users "j" is forbidden: User "u" cannot impersonate resource "users" in API group ""'
     " at the cluster scope"), CredentialsError, Remedy.FIX_SETUP, "not allowed"),
    (403, ('pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited:'
     " pods=1"), QuotaError, Remedy.ELSEWHERE, "exceeded quota"),
    (403, 'pods "p" is forbidden: failed quota: q: must specify limits.cpu for: main',
     BackendError, Remedy.FIX_REQUEST, "cpus and memory_gib"),
    (403, 'pods "p" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
     QuotaError, Remedy.ELSEWHERE, "LimitRange"),
    (403, 'pods "p" is forbidden: minimum memory usage per Pod is 1Gi, but request is 1Mi',
     QuotaError, Remedy.ELSEWHERE, "LimitRange"),
    (403, 'pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
     BackendError, Remedy.FIX_SETUP, "admission refused it"),
    (403, 'pods "p" is forbidden: no PriorityClass with name high was found',
     BackendError, Remedy.FIX_SETUP, "admission refused it"),
    (403, ('jobs.batch "p" is forbidden: unable to create new content in namespace ml because it'
     " is being terminated"), BackendError, Remedy.FIX_SETUP, "being terminated"),
    (403, 'admission webhook "w.example" denied the request: no such team', BackendError,
     Remedy.FIX_SETUP, "no such team"),
    (400, 'admission webhook "w.example" denied the request: bad', BackendError,
     Remedy.FIX_SETUP, "admission refused it"),
    (422, ("jobs.batch \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied"
     " request: no"), BackendError, Remedy.FIX_SETUP, "admission refused it"),
    (500, 'Internal error occurred: failed calling webhook "w.example": connection refused',
     TransientError, Remedy.RETRY, "failed calling webhook"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message", "kind", "remedy", "words"), REFUSALS)
def test_a_refusal_is_told_by_who_refused(code, message, kind, remedy, words):
    error = made(code, "Forbidden" if code == 403 else "", message)
    assert (type(error), error.remedy) == (kind, remedy)
    assert words in str(error)


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), (" 1 ", 1.0), ("0", 0.0), ("86400", 30.0)]
)
def test_a_server_that_asks_to_wait_is_heard_within_bounds(header, seconds):
    error = made(429, "TooManyRequests", "slow down", retry_after=header)
    assert isinstance(error, BusyError)
    assert error.retry_after_s == seconds
    assert pickle.loads(pickle.dumps(error)).retry_after_s == seconds  # noqa: S301  # our own


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "soon", ""])
def test_a_time_to_wait_that_is_no_number_of_seconds_is_passed_over(header):
    error = made(503, "ServiceUnavailable", "later", retry_after=header)
    assert type(error) is TransientError


def paused(patience, error):
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.set_exception((type(error), error, None))
    return patience._pause(state)


def test_a_request_is_tried_again_when_the_server_asks_for_it_and_patience_lasts():
    busy = made(429, "TooManyRequests", "slow down", retry_after="7")
    assert paused(Patience(60.0), busy) == 7.0
    assert paused(Patience(0.0), busy) <= 2.0
    assert paused(Patience(60.0), made(503, "ServiceUnavailable", "later")) <= 2.0


def test_rejected_credentials_are_told_with_what_to_do():
    error = made(401, "Unauthorized", "Unauthorized", again="run: sso login")
    assert str(error).endswith("(Unauthorized): run: sso login")
