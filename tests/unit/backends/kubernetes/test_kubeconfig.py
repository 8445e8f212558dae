"""Kubeconfig files as they come: merged, chosen from, and told where they are wrong."""
# ruff: noqa: PLR0917  # a fixture asked for is an argument

import pytest
import yaml
from tlsstub import config_of, printed

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._api import Api, contexts
from gpufabric.config import Settings
from gpufabric.errors import ConfigError

# ---- kubeconfigs


def test_of_several_files_the_first_to_name_something_wins(tmp_path, monkeypatch):
    one = config_of({"server": "https://one"}, {"token": "one"}, context="first")
    two = config_of({"server": "https://two"}, {"token": "two"}, context="second")
    for name, body in (("one", one), ("two", two)):
        (tmp_path / name).write_text(yaml.safe_dump(body))
    (tmp_path / "empty").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", f"~/empty:{tmp_path}/gone:~/one::~/two")
    assert contexts() == ({"first": "default", "second": "default"}, "first")
    api = Api(backend="kubernetes", context="second")
    assert (api.target().server, api.credential().headers[0][1]) == ("https://one", "Bearer one")


def test_kubeconfig_is_read_when_it_is_asked_for(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).write_text(
            yaml.safe_dump(config_of({"server": "https://x"}, {}, context=name))
        )
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / name))
        assert contexts()[1] == name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": None}, r"no context is current .*there are: prod"),
        ({"current-context": "gone"}, "no context 'gone'"),
        ({"users": []}, "names the user 'u', which the kubeconfig"),
        ({"clusters": []}, "names the cluster 'c', which the kubeconfig"),
        ({"clusters": {"c": 1}}, "clusters is not a list"),
        ({"users": [{"user": {}}]}, "every entry of users needs name"),
        ({"users": [{"name": "u", "user": "x"}]}, "every entry of users needs name and user"),
        ({"users": [{"name": "u"}, {"name": "u"}]}, "two entries of users are named 'u'"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "server '' is no http"),
        ({"clusters": [{"name": "c", "cluster": {"server": "kube:6443"}}]}, "no http"),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://x:port"}}]}, "no address"),
        ({"clusters": [{"name": "c", "cluster": {"server": ["x"]}}]}, "server is not text"),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://me:s3cret@x"}}]},
         "under `users`"),
        ({"clusters": [{"name": "c", "cluster": {
            "server": "https://x", "proxy-url": "ftp://x"}}]}, "proxy-url is none of"),
        ({"clusters": [{"name": "c", "cluster": {
            "server": "https://x", "certificate-authority-data": "eA=="}}]}, "no PEM"),
    ],
)  # fmt: skip
def test_a_kubeconfig_that_is_not_whole_is_told(tmp_path, open_api, change, words):
    body = {**config_of({"server": "https://x"}, {}), **change}
    (tmp_path / "config").write_text(yaml.safe_dump(body))
    with pytest.raises(ConfigError, match=words) as caught:
        open_api(tmp_path / "config").get("/x")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no context is current"),
        ("a: [", "is not YAML at line"),
        ("- a\n- b\n", "is not a mapping"),
        ("users:\n- user: {token: s3cret\n", "is not YAML at line"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("[" * 2000, "nests too deep|is not YAML"),
        ("a: 2001-13-45", "is not YAML"),
        (f"a: {'9' * 5000}", "is not YAML|no context"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_told_without_its_words(tmp_path, open_api, text, words):
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        open_api(tmp_path / "config").get("/x")
    assert "s3cret" not in str(caught.value)


def test_a_home_of_nobody_is_an_ordinary_name(tmp_path, open_api):
    body = config_of({"server": "https://x"}, {"tokenFile": "~no-such-user/t"})
    (tmp_path / "config").write_text(yaml.safe_dump(body))
    with pytest.raises(ConfigError, match="~no-such-user/t cannot be read"):
        open_api(tmp_path / "config").credential()
    with pytest.raises(ConfigError, match="there is no such file"):
        open_api("~no-such-user/config").target()
    with pytest.raises(ConfigError, match="there is no such file"):
        open_api("x" * 5000).target()


def test_a_kubeconfig_that_was_named_and_is_not_there_is_told(tmp_path, open_api):
    with pytest.raises(ConfigError, match="there is no such file"):
        open_api(tmp_path / "none").get("/x")


def test_without_trust_in_the_environment_a_kubeconfig_must_be_named(tmp_path, monkeypatch):
    (tmp_path / "config").write_text(yaml.safe_dump(config_of({"server": "https://x"}, {})))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    settings = Settings(trust_env=False)
    report = Kubernetes("prod", settings=settings).check()
    assert not report.ok
    assert "name one in kubeconfig=" in str(report)
    assert Kubernetes.found(settings) == ()
    assert [one.name for one in Kubernetes.found(Settings())] == ["kubernetes:prod"]


def test_a_plugin_gets_no_variables_of_an_environment_that_is_not_trusted(
    stub, kubeconfig, open_api, plugin, tmp_path, monkeypatch
):
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")
    user = plugin(f"env > {tmp_path}/env; {printed(token='abc')}")
    path = kubeconfig(stub, user)
    open_api(path, trust_env=False).get("/x")
    assert "CLOUD_SECRET" not in (tmp_path / "env").read_text()
    open_api(path).get("/x")
    assert "CLOUD_SECRET" in (tmp_path / "env").read_text()
