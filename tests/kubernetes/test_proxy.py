"""The proxy passes everything, records it, and strikes what it is told to."""

import select
import threading

import pytest
from faultproxy import (
    CONFLICT,
    CUT,
    DONE_HANGS,
    HANGS,
    INTERNAL,
    LOST,
    TOO_MANY,
    UNAVAILABLE,
)

from gpufabric.backends.kubernetes._api import Api
from gpufabric.errors import NotFoundError, TransientError


@pytest.fixture
def api(proxy, tmp_path):
    made = Api(backend="proxied", kubeconfig=str(proxy.kubeconfig(tmp_path)), timeout_s=2.0)
    yield made
    made.close()


@pytest.fixture
def path(namespace):
    return f"/api/v1/namespaces/{namespace}/configmaps"


def body(name="one"):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}


def exists(api, path, name="one"):
    try:
        api.get(f"{path}/{name}")
    except NotFoundError:
        return False
    return True


def test_requests_pass_and_are_recorded(api, proxy, path):
    api.request("POST", path, body=body())
    assert api.get(f"{path}/one")["data"] == {"a": "b"}
    api.request("DELETE", f"{path}/one")
    with pytest.raises(NotFoundError):
        api.get(f"{path}/one")
    assert [(one.method, one.path, one.code) for one in proxy.requests] == [
        ("POST", path, 201), ("GET", f"{path}/one", 200),
        ("DELETE", f"{path}/one", 200), ("GET", f"{path}/one", 404),
    ]  # fmt: skip
    assert [one.number for one in proxy.writes] == [1, 3]
    assert proxy.writes[0].json == body()
    assert len(proxy.writes[0].sha256) == 64


@pytest.mark.parametrize("fault", [UNAVAILABLE, TOO_MANY, INTERNAL, CUT, HANGS], ids=str)
def test_what_is_refused_is_not_done(api, proxy, path, fault):
    proxy.strike(fault)
    with pytest.raises(TransientError):
        api.request("POST", path, body=body())
    assert proxy.requests[-1].fault is fault
    assert not exists(api, path)


@pytest.mark.parametrize("fault", [LOST, DONE_HANGS], ids=str)
def test_what_is_done_can_lose_its_answer(api, proxy, path, fault):
    proxy.strike(fault)
    with pytest.raises(TransientError):
        api.request("POST", path, body=body())
    assert exists(api, path)


def test_a_conflict_of_a_quota_may_pass(api, proxy, path):
    proxy.strike(CONFLICT)
    with pytest.raises(TransientError, match="has been modified"):
        api.request("POST", path, body=body())
    assert not exists(api, path)


def test_the_kth_write_is_struck_and_no_other(api, proxy, path):
    proxy.strike(UNAVAILABLE, at=2, writes=True)
    api.request("POST", path, body=body("one"))
    api.get(f"{path}/one")
    with pytest.raises(TransientError):
        api.request("POST", path, body=body("two"))
    api.request("POST", path, body=body("three"))
    assert [exists(api, path, name) for name in ("one", "two", "three")] == [True, False, True]


def test_a_lasting_fault_strikes_until_it_is_healed(api, proxy, path):
    proxy.strike(UNAVAILABLE, at=2, lasting=True, where=lambda one: one.method == "GET")
    api.get(path)
    for _ in range(3):
        with pytest.raises(TransientError):
            api.get(path)
    api.request("POST", path, body=body())
    proxy.heal()
    assert exists(api, path)


def test_a_watch_passes_as_it_comes_and_can_be_cut(api, proxy, path):
    stream, seen = api.open(path, {"watch": "true"}), b""
    maker = threading.Thread(target=lambda: api.request("POST", path, body=body("seen")))
    maker.start()
    while b'"seen"' not in seen:
        assert select.select([stream], [], [], 20)[0]
        seen += stream.read()
    maker.join()
    proxy.cut_streams()
    while not stream.over:
        assert select.select([stream], [], [], 20)[0]
        stream.read()
    assert isinstance(stream.error, TransientError)
    stream.close()
