"""Each kind of credential, on an API server that speaks TLS."""
# ruff: noqa: PLR0917  # a fixture asked for is an argument

import datetime as dt
import os
import subprocess
import sys
import threading

import pytest
import yaml
from tlsstub import Stub, config_of, encoded, jwt, printed

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._api import Api
from gpufabric.errors import ConfigError, CredentialsError, MissingExtraError

# ---- each kind of credential


def test_a_token_is_sent(stub, kubeconfig, open_api):
    assert open_api(kubeconfig(stub, {"token": "abc"})).get("/x")["authorization"] == "Bearer abc"


def test_a_token_file_counts_from_the_kubeconfig_and_comes_before_a_token(
    stub, kubeconfig, open_api, tmp_path
):
    (tmp_path / "t").write_text("from-file\n")
    api = open_api(kubeconfig(stub, {"tokenFile": "t", "token": "old"}))
    assert api.get("/x")["authorization"] == "Bearer from-file"


def test_a_token_file_that_was_replaced_is_read_again_after_401(
    stub, kubeconfig, open_api, tmp_path
):
    (tmp_path / "t").write_text("first")
    api = open_api(kubeconfig(stub, {"tokenFile": "t"}))
    api.get("/x")
    (tmp_path / "t").write_text("second")
    stub.accepted = {"Bearer second"}
    assert api.get("/x")["authorization"] == "Bearer second"


def test_a_kubeconfig_that_was_written_anew_is_read_after_401(stub, kubeconfig, open_api):
    api = open_api(kubeconfig(stub, {"token": "first"}))
    api.get("/x")
    kubeconfig(stub, {"token": "second"})
    stub.accepted = {"Bearer second"}
    assert api.get("/x")["authorization"] == "Bearer second"


def test_a_new_token_never_goes_to_another_server(stub, kubeconfig, open_api, certificates):
    api = open_api(kubeconfig(stub, {"token": "first"}))
    api.get("/x")
    stub.accepted = set()
    with Stub(certificates) as other:
        kubeconfig(other, {"token": "second"})
        with pytest.raises(ConfigError, match="now of another server"):
            api.get("/x")
        assert other.seen == []
    assert all("second" not in str(request) for request in stub.seen)


def test_a_password_is_sent(stub, kubeconfig, open_api):
    api = open_api(kubeconfig(stub, {"username": "me", "password": "ä"}))
    assert api.get("/x")["authorization"] == "Basic " + encoded("me:ä")


@pytest.mark.parametrize("by", ["data", "files"])
def test_client_certificates_come_as_data_or_as_files(
    certificates, kubeconfig, open_api, by, tmp_path
):
    pair = {"client-certificate": "client.crt", "client-key": "client.key"}
    if by == "data":
        pair = {f"{key}-data": encoded(certificates.text(file)) for key, file in pair.items()}
    else:
        pair = {key: str(certificates.folder / file) for key, file in pair.items()}
    with Stub(certificates, clients=True) as server:
        api = open_api(kubeconfig(server, pair))
        assert api.get("/x")["certificate"] == "client"
        assert api.credential().expires == dt.datetime(2049, 12, 31, tzinfo=dt.UTC).timestamp()


def test_words_between_the_certificates_of_an_authority_do_no_harm(
    stub, certificates, kubeconfig, open_api, tmp_path
):
    texts = [certificates.text("theirs.crt"), certificates.text("ours.crt")]
    (tmp_path / "ca.crt").write_text("# Főtanúsítvány\n".join(["", *texts]), encoding="utf-8")
    fields = {"certificate-authority": "ca.crt", "certificate-authority-data": None}
    assert open_api(kubeconfig(stub, {"token": "a"}, **fields)).get("/x")["authorization"]


def test_a_server_behind_a_path_is_asked_there(stub, kubeconfig, open_api):
    server = f"https://127.0.0.1:{stub.port}/k8s/clusters/c-1/"
    open_api(kubeconfig(stub, {"token": "a"}, server=server)).get("/version", {"a": "b c"})
    assert stub.seen[0]["path"] == "/k8s/clusters/c-1/version?a=b%20c"


def test_another_user_is_impersonated_where_the_kubeconfig_says_so(stub, kubeconfig, open_api):
    user = {
        "token": "abc", "as": "jane", "as-uid": "7", "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.org/scope": ["a b"]},
    }  # fmt: skip
    open_api(kubeconfig(stub, user)).get("/x")
    told = [pair for pair in stub.seen[0]["headers"] if pair[0].startswith("Impersonate")]
    assert told == [
        ("Impersonate-User", "jane"), ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"), ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-example.org%2Fscope", "a b"),
    ]  # fmt: skip


def test_an_oidc_token_is_used_while_it_holds_and_read_anew_when_kubectl_has_renewed_it(
    stub, kubeconfig, open_api
):
    def user(token):
        config = {"id-token": token, "refresh-token": "r", "idp-issuer-url": "https://idp.example"}
        return {"auth-provider": {"name": "oidc", "config": config}}

    first, second = jwt(4_000_000_000), jwt(4_000_000_001)
    path = kubeconfig(stub, user(first))
    before = path.read_bytes()
    api = open_api(path)
    assert api.get("/x")["authorization"] == f"Bearer {first}"
    assert path.read_bytes() == before
    kubeconfig(stub, user(second))
    stub.accepted = {f"Bearer {second}"}
    assert api.get("/x")["authorization"] == f"Bearer {second}"


@pytest.mark.parametrize(
    ("provider", "error", "words"),
    [
        ({"name": "oidc", "config": {"id-token": jwt(1)}}, CredentialsError, "let kubectl renew"),
        ({"name": "oidc"}, CredentialsError, "is not there"),
        ({"name": "gcp"}, ConfigError, "gke-gcloud-auth-plugin"),
        ({"name": "azure"}, ConfigError, "kubelogin"),
    ],
)
def test_auth_providers_that_cannot_be_used_are_told_with_what_to_use(
    stub, kubeconfig, open_api, provider, error, words
):
    with pytest.raises(error, match=words):
        open_api(kubeconfig(stub, {"auth-provider": provider})).get("/x")
    assert stub.seen == []


# ---- inside a cluster


@pytest.fixture
def pod(tmp_path, monkeypatch, stub, certificates):
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first")
    (folder / "namespace").write_text("ml")
    (folder / "ca.crt").write_text(certificates.text("ours.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(stub.port))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return folder


def test_in_a_pod_its_service_account_asks_and_its_token_is_read_again(pod, stub):
    api = Api(backend="kubernetes", account=pod)
    assert api.place() == ("in-cluster", "ml")
    assert api.get("/x")["authorization"] == "Bearer first"
    (pod / "token").write_text("second\n")
    stub.accepted = {"Bearer second"}
    assert api.get("/x")["authorization"] == "Bearer second"
    api.close()


def test_in_a_pod_a_kubeconfig_comes_first_and_the_pod_can_be_named(pod, tmp_path, monkeypatch):
    (tmp_path / "config").write_text(yaml.safe_dump(config_of({"server": "https://x"}, {})))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert Api(backend="kubernetes", account=pod).place() == ("prod", "default")
    named = Api(backend="kubernetes", context="in-cluster", account=pod, trust_env=False)
    assert named.place() == ("in-cluster", "ml")


def test_what_a_pod_lacks_is_told(pod, monkeypatch):
    (pod / "token").write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        Api(backend="kubernetes", account=pod).get("/x")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST"):
        Api(backend="kubernetes", account=pod).get("/x")


def test_outside_of_any_cluster_the_lack_of_a_kubeconfig_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there is no kubeconfig"):
        Api(backend="kubernetes", account=tmp_path).get("/x")


# ---- several at once, and the guest's manners


def test_contexts_with_other_credentials_do_not_mix(
    certificates, kubeconfig, open_api, plugin, tmp_path
):
    with Stub(certificates) as one, Stub(certificates) as two:
        apis = {
            "Bearer one": open_api(kubeconfig(one, {"token": "one"}, name="one")),
            "Bearer two": open_api(kubeconfig(two, {"token": "two"}, name="two")),
            "Bearer three": open_api(kubeconfig(two, plugin(printed(token="three")), name="three")),
        }
        wrong = []

        def ask(token, api):
            answers = [api.get("/x")["authorization"] for _ in range(20)]
            wrong.extend(one for one in answers if one != token)

        threads = [threading.Thread(target=ask, args=pair) for pair in apis.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert {dict(r["headers"])["Authorization"] for r in one.seen} == {"Bearer one"}


def test_a_login_changes_nothing_of_the_process_or_its_folders(stub, kubeconfig, plugin, tmp_path):
    path = kubeconfig(stub, plugin(printed(token="abc")))
    home = tmp_path / "home"
    home.mkdir()
    program = """
import os, sys, logging
before = dict(os.environ)
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._api import Api
api = Api(backend="kubernetes", kubeconfig=sys.argv[1])
assert api.get("/x")["authorization"] == "Bearer abc"
api.close()
assert dict(os.environ) == before
assert not logging.getLogger().handlers
assert "kubernetes" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=home, check=True, env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
    )  # fmt: skip
    assert list(home.iterdir()) == []


def test_without_the_extra_its_name_is_told_by_every_call_that_asks_a_server(
    stub, kubeconfig, monkeypatch
):
    monkeypatch.setitem(sys.modules, "urllib3", None)
    backend = Kubernetes(kubeconfig=str(kubeconfig(stub, {"token": "a"})))
    with pytest.raises(MissingExtraError, match=r"pip install 'gpufabric\[kubernetes\]'"):
        backend.discover()
    report = backend.check()
    assert not report.ok
    assert "gpufabric[kubernetes]" in str(report)
