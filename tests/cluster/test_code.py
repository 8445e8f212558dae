"""How code reaches the nodes of a gang: by its hash, shared while it is used, then gone."""

import os

import pytest
from gfcluster.shell import wait_until
from given import plan_of

from gpufabric.backends.kubernetes._carry import CODE_LABEL
from gpufabric.errors import SpecError
from gpufabric.job import JobState

pytestmark = pytest.mark.cluster


def lines_of(backend, ref):
    lines = list(backend.logs(ref, follow=True))
    return {rank: [x.text for x in lines if x.node_rank == rank] for rank in (0, 1)}


def carriers(backend):
    """Kind and name of all that holds code in the namespace, with the names of its owners."""
    _, namespace = backend._where()
    found = {}
    for kind in ("secrets", "pods"):
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        for one in backend._api.items(path, {"labelSelector": CODE_LABEL}):
            owners = [ref["name"] for ref in one["metadata"].get("ownerReferences", [])]
            found[kind, one["metadata"]["name"]] = sorted(owners)
    return found


def nothing_left(backend):
    _, namespace = backend._where()
    paths = [f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("pods", "secrets", "services")]
    assert [one["metadata"]["name"] for path in paths for one in backend._api.items(path)] == []
    assert list(backend.jobs()) == []


@pytest.fixture(params=[10, 2_000_000], ids=["in-a-secret", "served"])
def workdir(request, tmp_path):
    """A folder whose packed size is below and above what a Secret holds."""
    (tmp_path / "train.sh").write_text("cksum data.bin")
    (tmp_path / "data.bin").write_bytes(os.urandom(request.param))
    return tmp_path


def test_equal_code_is_uploaded_once_and_goes_with_its_last_user(backend, workdir):
    first, second = (
        plan_of(backend, "sh train.sh; sleep infinity", workdir=str(workdir), run_id=run)
        for run in ("a", "b")
    )
    one = backend.apply(first)
    before = carriers(backend)
    versions = held(backend)
    two = backend.apply(second)
    assert set(carriers(backend)) == set(before)
    assert all(owners == sorted([one.name, two.name]) for owners in carriers(backend).values())
    assert held(backend) == versions
    backend.teardown(one)
    wait_until(
        "the first has gone from the owners",
        lambda: all(owners == [two.name] for owners in carriers(backend).values()),
        timeout_s=30,
    )
    assert set(carriers(backend)) == set(before)
    assert backend.status(two).state is JobState.RUNNING
    backend.teardown(two)
    nothing_left(backend)


def held(backend):
    """What holds code, by uid and content: it changes when something is uploaded again."""
    _, namespace = backend._where()
    query = {"labelSelector": CODE_LABEL}
    secrets = backend._api.items(f"/api/v1/namespaces/{namespace}/secrets", query)
    pods = backend._api.items(f"/api/v1/namespaces/{namespace}/pods", query)
    return [(one["metadata"]["uid"], one.get("data")) for one in (*secrets, *pods)]


def test_code_arrives_on_every_node_as_it_was(backend, workdir):
    import subprocess

    wanted = subprocess.run(
        ["cksum", "data.bin"], cwd=workdir, check=True, capture_output=True, text=True
    ).stdout.strip()
    ref = backend.apply(plan_of(backend, "sh train.sh", workdir=str(workdir)))
    assert lines_of(backend, ref) == {0: [wanted], 1: [wanted]}
    backend.teardown(ref)
    nothing_left(backend)


def test_code_above_the_limit_is_refused_before_anything_is_made(make, tmp_path):
    from gpufabric.config import Settings

    backend = make(settings=Settings(workdir_limit_mb=1.0, trust_env=False))
    (tmp_path / "data.bin").write_bytes(os.urandom(1_100_000))
    with pytest.raises(SpecError, match=r"more than the limit of 1 MB.*data\.bin"):
        backend.apply(plan_of(backend, workdir=str(tmp_path)))
    nothing_left(backend)
