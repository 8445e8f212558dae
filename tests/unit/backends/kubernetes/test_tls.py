"""TLS, proxies, and what answers in an API server's place: each told as what it is."""
# ruff: noqa: PLR0917  # a fixture asked for is an argument

import datetime as dt
import importlib.util
import subprocess

import pytest
import yaml
from tlsstub import (
    Stub,
    Tunnel,
    config_of,
    encoded,
)

from gpufabric.backends.kubernetes._pem import not_after
from gpufabric.errors import BackendError, ConfigError, CredentialsError, TransientError

# ---- TLS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("elsewhere", "is for other addresses"),
        ("past-server", "has expired"),
    ],
)
def test_a_server_certificate_that_is_wrong_is_told_as_such(
    certificates, kubeconfig, open_api, name, words
):
    with (
        Stub(certificates, name) as server,
        pytest.raises(CredentialsError, match=words) as caught,
    ):
        open_api(kubeconfig(server, {"token": "abc"})).get("/x")
    assert "never turned off" in str(caught.value)
    assert server.seen == []


def test_a_wrong_authority_is_told_as_such(stub, certificates, kubeconfig, open_api):
    authority = {"certificate-authority-data": encoded(certificates.text("theirs.crt"))}
    with pytest.raises(CredentialsError, match="comes from another authority"):
        open_api(kubeconfig(stub, {"token": "abc"}, **authority)).get("/x")
    authority = {"certificate-authority-data": None}  # the machine's own authorities
    with pytest.raises(CredentialsError, match=r"another authority|signed by itself"):
        open_api(kubeconfig(stub, {"token": "abc"}, **authority)).get("/x")


def test_a_wrong_host_name_is_told_and_tls_server_name_mends_it(certificates, kubeconfig, open_api):
    with Stub(certificates, "elsewhere") as server:
        api = open_api(kubeconfig(server, {"token": "a"}, **{"tls-server-name": "x.example"}))
        with pytest.raises(CredentialsError, match="is for other names"):
            api.get("/x")
        api = open_api(kubeconfig(server, {"token": "a"}, **{"tls-server-name": "other.example"}))
        assert api.get("/x")["authorization"] == "Bearer a"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_verification_is_off_only_where_the_kubeconfig_says_so(certificates, kubeconfig, open_api):
    with Stub(certificates, "past-server") as server:
        fields = {"certificate-authority-data": None, "insecure-skip-tls-verify": True}
        api = open_api(kubeconfig(server, {"token": "a"}, **fields))
        assert api.get("/x")["authorization"] == "Bearer a"
        assert not api.target().verified
        both = open_api(kubeconfig(server, {"token": "a"}, **{"insecure-skip-tls-verify": True}))
        with pytest.raises(ConfigError, match="take out the latter"):
            both.get("/x")


@pytest.mark.parametrize("name", ["past-client", "strange-client"])
def test_a_client_certificate_that_is_not_taken_is_told(certificates, kubeconfig, open_api, name):
    user = {
        "client-certificate-data": encoded(certificates.text(f"{name}.crt")),
        "client-key-data": encoded(certificates.text(f"{name}.key")),
    }
    with (
        Stub(certificates, clients=True) as server,
        pytest.raises(CredentialsError, match="does not take the client certificate"),
    ):
        open_api(kubeconfig(server, user)).get("/x")


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"client-certificate": "client.crt"}, "come together"),
        ({"client-certificate": "none.crt", "client-key": "client.key"}, "cannot be read"),
        ({"client-certificate": "client.crt", "client-key": "client-2.key"}, "no pair"),
        ({"client-certificate": "server.csr", "client-key": "client.key"}, "no PEM"),
        ({"client-certificate-data": "&", "client-key": "client.key"}, "come together|base64"),
        ({"tokenFile": "none"}, "cannot be read"),
        ({"token": "a\nb"}, "characters that no token has"),
        ({"as-groups": ["x"]}, "need `as`"),
        ({"as": "x", "as-groups": "ops"}, "are lists"),
    ],
)
def test_a_user_that_cannot_be_used_is_told(stub, certificates, kubeconfig, open_api, user, words):
    paths = ("client-certificate", "client-key")
    full = {k: str(certificates.folder / v) if k in paths else v for k, v in user.items()}
    with pytest.raises(ConfigError, match=words):
        open_api(kubeconfig(stub, full)).get("/x")
    assert stub.seen == []


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(
    certificates, kubeconfig, open_api, stub
):
    locked = certificates.folder / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", "client.key", "-out", locked],
        cwd=certificates.folder, check=True, capture_output=True,
    )  # fmt: skip
    pair = {
        "client-certificate": str(certificates.folder / "client.crt"), "client-key": str(locked)
    }  # fmt: skip
    with pytest.raises(ConfigError, match="the key is encrypted"):
        open_api(kubeconfig(stub, pair)).get("/x")


def test_a_private_key_is_in_no_file(certificates, kubeconfig, open_api, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    user = {
        "client-certificate-data": encoded(certificates.text("client.crt")),
        "client-key-data": encoded(certificates.text("client.key")),
    }
    with Stub(certificates, clients=True) as server:
        assert open_api(kubeconfig(server, user)).get("/x")["certificate"] == "client"
    assert list(folder.iterdir()) == []


def test_the_end_of_a_certificate_is_read(certificates):
    end = dt.datetime(2021, 1, 1, tzinfo=dt.UTC).timestamp()
    assert not_after(certificates.text("past-client.crt")) == end
    certificates.sign("far", years=("20250101", "20600101"))
    assert not_after(certificates.text("far.crt")) == 2840140800.0
    for broken in ("", "no PEM", certificates.text("client.key"), "-----BEGIN CERTIFICATE-----"):
        assert not_after(broken) is None


# ---- who answers


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html><title>Sign in</title>"), BackendError,
         "titled 'Sign in' instead of JSON"),
        ((403, {"Content-Type": "text/html"}, b"<html>"), BackendError, "403 with text/html"),
        ((401, {"Content-Type": "text/html"}, b"<html>"), CredentialsError, "login page"),
        ((502, {"Content-Type": "text/html"}, b"<html>"), TransientError, "502 with text/html"),
        ((302, {"Location": "https://sso.example/?state=s3cret"}, b""), BackendError,
         "a redirect to sso.example"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["get", "raw"])
def test_what_is_no_api_server_is_told_as_such(
    stub, kubeconfig, open_api, answer, error, words, way
):
    stub.answers = [answer, answer]
    api = open_api(kubeconfig(stub, {"token": "abc"}))
    with pytest.raises(error, match=words) as caught:
        api.get("/x") if way == "get" else api.raw("/x")
    assert "s3cret" not in str(caught.value)


def test_plain_text_is_a_log_and_no_object(stub, kubeconfig, open_api):
    stub.answers = [(200, {"Content-Type": "text/plain"}, b"ok\n")] * 2
    api = open_api(kubeconfig(stub, {"token": "abc"}))
    assert api.raw("/x") == b"ok\n"
    with pytest.raises(BackendError, match="text/plain instead of JSON"):
        api.get("/x")


def test_a_port_that_speaks_no_tls_is_told(kubeconfig, open_api, certificates):
    with Stub() as plain:
        plain.context = True  # the kubeconfig says https
        path = kubeconfig(plain, {"token": "abc"})
        plain.context = None
        with pytest.raises(BackendError, match="does not speak TLS"):
            open_api(path).get("/x")


def test_nothing_at_the_address_is_told_by_its_kind(certificates, kubeconfig, open_api):
    with Stub(certificates) as server:
        pass
    refused = open_api(kubeconfig(server, {"token": "abc"}))
    with pytest.raises(TransientError, match="refuses connections"):
        refused.get("/x")
    unknown = open_api(kubeconfig(server, {"token": "abc"}, host="kube.invalid"))
    with pytest.raises(TransientError, match="not known to DNS"):
        unknown.get("/x")


# ---- proxies


def test_the_kubeconfigs_proxy_is_used_with_its_password(stub, kubeconfig, open_api):
    wanted = "Basic " + encoded("me:p@ss")
    with Tunnel(stub.port, wants=wanted) as proxy:
        url = f"http://me:p%40ss@127.0.0.1:{proxy.port}"
        path = kubeconfig(stub, {"token": "a"}, host="kube.example", **{"proxy-url": url})
        assert open_api(path).get("/x")["authorization"] == "Bearer a"
        assert proxy.seen == [(f"kube.example:{stub.port}", wanted)]


def test_a_proxy_that_refuses_is_told_without_its_password(stub, kubeconfig, open_api):
    with Tunnel(stub.port, wants="Basic other") as proxy:
        url = f"http://me:s3cret@127.0.0.1:{proxy.port}"
        path = kubeconfig(stub, {"token": "a"}, host="kube.example", **{"proxy-url": url})
        with pytest.raises(TransientError, match=r"the proxy http://127.*407") as caught:
            open_api(path).get("/x")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(TransientError, match="the proxy"):
        open_api(path).get("/y")  # it is gone now


def test_a_proxy_that_needs_another_package_is_told_with_its_name(stub, kubeconfig, open_api):
    if importlib.util.find_spec("socks") is not None:
        pytest.skip("the package for SOCKS proxies is installed")
    path = kubeconfig(stub, {"token": "a"}, **{"proxy-url": "socks5://127.0.0.1:1"})
    with pytest.raises(ConfigError, match=r"pip install 'urllib3\[socks\]'"):
        open_api(path).get("/x")


def test_the_environments_proxies_count_only_where_it_is_trusted(
    stub, kubeconfig, open_api, monkeypatch
):
    path = kubeconfig(stub, {"token": "a"}, host="kube.example")
    with Tunnel(stub.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert open_api(path).get("/x")["authorization"] == "Bearer a"
        assert open_api(path, trust_env=False).target().proxy is None
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.example")
        assert open_api(path).target().proxy is None


@pytest.mark.parametrize(
    ("skipped", "server", "used"),
    [
        ("", "https://kube.example", True),
        ("*", "https://kube.example", False),
        ("example", "https://kube.example", False),
        ("ube.example", "https://kube.example", True),
        (".kube.example", "https://kube.example", True),
        ("*.example", "https://kube.example", False),
        ("kube.example:6443", "https://kube.example:6443", False),
        ("kube.example:6443", "https://kube.example", True),
        ("10.0.0.0/8", "https://10.2.3.4:6443", False),
        ("10.0.0.0/8", "https://11.2.3.4:6443", True),
        ("fd00::/8", "https://[fd00::1]:6443", False),
        ("KUBE.example , other", "https://Kube.Example", False),
        ("", "https://127.0.0.1:6443", False),
        ("", "https://localhost:6443", False),
    ],
)
def test_no_proxy_is_read_as_gos_programs_read_it(
    tmp_path, open_api, monkeypatch, skipped, server, used
):
    (tmp_path / "config").write_text(yaml.safe_dump(config_of({"server": server}, {})))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", skipped)
    proxy = open_api(tmp_path / "config").target().proxy
    assert (proxy is not None) == used
