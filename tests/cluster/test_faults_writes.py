"""A launch whose k-th write fails, for every k and in every way: one job, or nothing and why.

A part of the matrix runs by default; all of it is `slow`: make test-cluster-faults.
"""

import itertools

import pytest
from attrs import evolve
from faultcases import assert_nothing_left, ended, impatient, objects_in
from faultproxy import CONFLICT, CUT, DONE_HANGS, FAULTS, HANGS, LOST, UNAVAILABLE
from given import plan_of

from gpufabric.errors import BackendError, ConflictError, TransientError
from gpufabric.job import JobRef, JobState

# What keeps being refused is given up after 90 s (`_GONE_S` of teardown), also by a launch.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SHAPES = {"jobset": (), "indexed-job": ("jobset",)}
# The owner, the Secret, the release; without JobSet also the Service and the scheduler's PodGroup.
WRITES = {"jobset": 3, "indexed-job": 5}


@pytest.fixture
def proxied(make, proxy, tmp_path):
    """A backend whose requests go through the proxy, and give up soon."""
    return impatient(make, proxy.kubeconfig(tmp_path))


def _plan(backend, shape):
    return plan_of(backend, "echo ${#TOKEN}", without=SHAPES[shape], secrets={"TOKEN": "s3cr3t"})


def _whole_and_once(backend, ref):
    """The job of a plan that was applied: both nodes ran with their secret, and it is the only."""
    assert list(backend.jobs()) == [ref]
    assert ended(backend, ref).state is JobState.SUCCEEDED
    lines = sorted(
        (line.node_rank, line.text) for line in backend.logs(ref) if line.stream == "stdout"
    )
    assert lines == [(0, "6"), (1, "6")]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_launch_makes_as_many_writes_as_the_matrix_has(proxied, proxy, shape):
    ref = proxied.apply(_plan(proxied, shape))
    assert len(proxy.writes) == WRITES[shape]
    proxied.teardown(ref)


def _cases(usual):
    """Every shape, write and fault; those that `usual` is true of run by default."""
    for shape, fault in itertools.product(SHAPES, FAULTS):
        for k in range(1, WRITES[shape] + 1):
            marks = () if usual(shape, fault, k) else (pytest.mark.slow,)
            yield pytest.param(shape, fault, k, marks=marks, id=f"{shape}-{fault}-{k}")


def _each_fault_once(shape, fault, k):
    """Every fault at some write, every write with a lost answer."""
    number = FAULTS.index(fault)
    return (shape == "indexed-job" and k == 1 + number % WRITES[shape]) or fault is LOST


def _some(shape, fault, k):
    return shape == "jobset" and fault in {LOST, CUT} and k > 1


def _faults(*usual):
    return [
        pytest.param(one, id=str(one), marks=() if one in usual else (pytest.mark.slow,))
        for one in FAULTS
    ]


@pytest.mark.parametrize(("shape", "fault", "k"), list(_cases(_each_fault_once)))
def test_a_write_that_fails_once_costs_nothing(cluster, namespace, proxied, proxy, shape, fault, k):  # noqa: PLR0917
    plan = _plan(proxied, shape)
    proxy.strike(fault, at=k, writes=True)
    ref = proxied.apply(plan)
    assert [one.fault for one in proxy.writes if one.fault] == [fault]
    _whole_and_once(proxied, ref)
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize(("shape", "fault", "k"), list(_cases(_some)))
def test_writes_that_fail_for_good_end_the_launch_and_leave_nothing_untold(  # noqa: PLR0917
    cluster, namespace, proxied, make, proxy, shape, fault, k
):
    plan = _plan(proxied, shape)
    proxy.strike(fault, at=k, writes=True, lasting=True)
    with pytest.raises((TransientError, ConflictError)) as caught:
        proxied.apply(plan)
    left = {one for one in objects_in(cluster, namespace) if not one.startswith("workloads/")}
    proxy.heal()
    assert bool(caught.value.leftovers) or not left, f"{caught.value} names nothing of {left}"
    context, _ = proxied._where()
    ref = JobRef(backend="kubernetes", place=f"{context}/{namespace}", name=plan.name)
    make().teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("fault", [UNAVAILABLE, LOST], ids=str)
def test_a_launch_that_failed_for_good_can_be_made_again(cluster, namespace, proxied, proxy, fault):
    plan = _plan(proxied, "jobset")
    proxy.strike(fault, at=2, writes=True, lasting=True)
    with pytest.raises(TransientError):
        proxied.apply(plan)
    proxy.heal()
    ref = proxied.apply(plan)
    _whole_and_once(proxied, ref)
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)


# ---- reads, cancel and teardown


def _error_of(call, *arguments):
    try:
        call(*arguments)
    except BackendError as exc:
        return exc
    return None


@pytest.mark.parametrize("fault", [UNAVAILABLE, HANGS], ids=str)
def test_a_read_that_fails_once_costs_nothing(cluster, namespace, proxied, proxy, fault):
    """Every third read of a launch, status and teardown fails; a log may be quiet for long."""
    proxied._settings = evolve(proxied._settings, retry_s=20.0)
    plan = _plan(proxied, "jobset")
    for k in range(1, 40, 3):
        proxy.strike(fault, at=k, where=lambda one: not one.writes and "/log?" not in one.path)
    ref = proxied.apply(plan)
    _whole_and_once(proxied, ref)
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("fault", _faults(CONFLICT, LOST))
def test_a_cancel_whose_write_fails_once_stops_the_job(cluster, namespace, proxied, proxy, fault):
    ref = proxied.apply(plan_of(proxied, "sleep infinity"))
    proxy.strike(fault, writes=True)
    proxied.cancel(ref)
    assert ended(proxied, ref).state is JobState.CANCELLED
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("fault", _faults(CONFLICT, LOST))
def test_a_teardown_whose_write_fails_once_removes_all(cluster, namespace, proxied, proxy, fault):
    ref = proxied.apply(_plan(proxied, "indexed-job"))
    proxy.strike(fault, writes=True)
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)


@pytest.mark.parametrize("fault", [UNAVAILABLE, DONE_HANGS, LOST], ids=str)
def test_a_teardown_whose_writes_fail_for_good_names_what_is_left(
    cluster, namespace, proxied, proxy, fault
):
    ref = proxied.apply(_plan(proxied, "indexed-job"))
    proxy.strike(fault, writes=True, lasting=True)
    error = _error_of(proxied.teardown, ref)
    if error is None:
        assert fault.acts
        assert_nothing_left(cluster, namespace)
    else:
        assert any(ref.name in path for path in error.leftovers), error
    proxy.heal()
    proxied.teardown(ref)
    assert_nothing_left(cluster, namespace)
