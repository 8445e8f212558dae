"""A launch that brings code and secrets, with each of its requests failing in turn.

The whole table takes minutes: `pytest -m slow tests/kubernetes/test_code_faults.py`.
"""

import os
from itertools import count

import pytest
from faultproxy import CONFLICT, CUT, LOST, TOO_MANY, UNAVAILABLE, FaultProxy
from given import ended, nothing_left, plan_of

from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.config import Settings
from gpufabric.errors import BackendError
from gpufabric.job import JobRef, JobState

SIZES = {"in-a-secret": 10, "served": 1_100_000}
#: What runs by default.
FEW = {("in-a-secret", LOST, True, True)}
TABLE = [
    pytest.param(
        size, fault, lasting, writes,
        id=f"{size}-{fault}-{'for-good' if lasting else 'once'}-{'writes' if writes else 'any'}",
        marks=() if (size, fault, lasting, writes) in FEW else pytest.mark.slow,
    )
    for size in SIZES
    for fault in (UNAVAILABLE, TOO_MANY, CONFLICT, CUT, LOST)
    for lasting in (False, True)
    for writes in (True, False)
    if writes or (size == "in-a-secret" and fault is not CONFLICT)  # nothing that reads conflicts
]  # fmt: skip


@pytest.fixture
def proxied(cluster, make, tmp_path, fault, lasting):
    """A backend behind a proxy, and the proxy; its patience is longer than the server asks for.

    A fault that lasts is outlasted by no patience: enough for a few tries shows the same, sooner.
    """
    with FaultProxy.before(cluster.kubeconfig) as proxy:
        patience = (0.25 if lasting else 0.5) + (fault.retry_after or 0)
        settings = Settings(stop_grace_s=1.0, retry_s=patience, trust_env=False)
        yield make(kubeconfig=str(proxy.kubeconfig(tmp_path)), settings=settings), proxy


def outcome(backend, plan):
    try:
        return backend.apply(plan), None
    except BackendError as exc:
        return None, exc


def judge(backend, ref, error):
    """Fails unless the job is whole, or nothing is left but what the error names."""
    if error is None:
        assert ended(backend, ref).state is JobState.SUCCEEDED
        return
    left = leftovers(backend._api, backend._where()[1], ref.name, jobsets=True)
    assert error.leftovers or not left, f"{error} names nothing of {left}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("size", "fault", "lasting", "writes"), TABLE)
def test_a_launch_with_a_fault_at_any_request_is_whole_or_nothing(
    backend, proxied, tmp_path_factory, *, size, fault, lasting, writes
):
    folder = tmp_path_factory.mktemp("src")
    (folder / "data.bin").write_bytes(os.urandom(SIZES[size]))
    plan = plan_of(
        backend, "cksum data.bin", workdir=str(folder), secrets={"TOKEN": "s3cr3t"}, num_nodes=1
    )
    struck, proxy = proxied
    context, namespace = backend._where()
    owner = next(step.name for step in plan.steps if step.verb == "create")
    ref = JobRef(backend="kubernetes", place=f"{context}/{namespace}", name=owner)
    failed = 0
    for number in count(1):
        proxy.requests.clear()
        proxy.strike(fault, at=number, writes=writes, lasting=lasting)
        _, error = outcome(struck, plan)
        hit = any(one.fault for one in proxy.requests)
        proxy.heal()
        judge(backend, ref, error)
        backend.teardown(ref)
        nothing_left(backend)
        failed += error is not None
        if not hit:
            assert number > 3
            break
    assert failed == 0 or lasting, "one failed request must not end a launch"
