"""Login plug-ins that a kubeconfig names: what they give, and what is told where they fail."""
# ruff: noqa: PLR0917  # a fixture asked for is an argument

import json
import os
import threading
from pathlib import Path

import pytest
import yaml
from tlsstub import (
    BETA,
    V1,
    Stub,
    config_of,
    encoded,
    in_an_hour,
    printed,
    write_plugin,
)

from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._plugin import Plugin
from gpufabric.errors import ConfigError, CredentialsError, TransientError

# ---- exec plug-ins


@pytest.mark.parametrize("version", [V1, BETA])
def test_a_plugin_gives_a_token_and_gets_its_arguments_and_variables(
    stub, kubeconfig, open_api, plugin, version, tmp_path
):
    script = f'echo "$1 $2 $KIND" > {tmp_path}/told; {printed(version, token="abc")}'
    user = plugin(
        script, version=version, args=["get", "it"], env=[{"name": "KIND", "value": "x y"}]
    )
    assert open_api(kubeconfig(stub, user)).get("/x")["authorization"] == "Bearer abc"
    assert (tmp_path / "told").read_text() == "get it x y\n"
    assert "KIND" not in os.environ


def test_a_plugin_is_told_of_the_cluster_only_if_it_asks(
    stub, kubeconfig, open_api, plugin, tmp_path, certificates
):
    script = f'echo "$KUBERNETES_EXEC_INFO" >> {tmp_path}/info; {printed(token="abc")}'
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a1"}}
    for asks in (False, True):
        user = plugin(script, provideClusterInfo=asks)
        open_api(kubeconfig(stub, user, extensions=[extension])).get("/x")
    without, told = [json.loads(line) for line in (tmp_path / "info").read_text().splitlines()]
    assert without["spec"] == {"interactive": False}
    assert told["apiVersion"] == V1
    assert told["spec"]["cluster"] == {
        "server": f"https://127.0.0.1:{stub.port}",
        "certificate-authority-data": encoded(certificates.text("ours.crt")),
        "config": {"audience": "a1"},
    }


def test_a_plugin_beside_the_kubeconfig_is_found(stub, kubeconfig, open_api, plugin):
    user = plugin(printed(token="abc"), name="beside")
    user["exec"]["command"] = "./beside"
    assert open_api(kubeconfig(stub, user)).get("/x")["authorization"] == "Bearer abc"


def test_a_plugin_gives_client_certificates_and_new_ones_open_new_connections(
    certificates, kubeconfig, open_api, plugin, tmp_path
):
    for name in ("client", "client-2"):
        answer = printed(
            clientCertificateData=certificates.text(f"{name}.crt"),
            clientKeyData=certificates.text(f"{name}.key"),
        )
        (tmp_path / f"print-{name}").write_text(answer)
    user = plugin(
        f". {tmp_path}/print-client; mv {tmp_path}/print-client-2 {tmp_path}/print-client || true"
    )
    with Stub(certificates, clients=True) as server:
        api = open_api(kubeconfig(server, user))
        assert [api.get("/x")["certificate"] for _ in range(2)] == ["client", "client"]
        server.answers = [(401, {}, b'{"message": "Unauthorized"}')]
        assert api.get("/x")["certificate"] == "client-2"


def counting(tmp_path, **status):
    return f"echo run >> {tmp_path}/runs; {printed(**status)}"


def runs(tmp_path):
    return len((tmp_path / "runs").read_text().split())


def test_a_token_is_kept_until_it_ends(stub, kubeconfig, open_api, plugin, tmp_path):
    user = plugin(counting(tmp_path, token="abc", expirationTimestamp=in_an_hour()))
    api = open_api(kubeconfig(stub, user))
    for _ in range(5):
        api.get("/x")
    assert runs(tmp_path) == 1


def test_a_token_without_an_end_is_kept(stub, kubeconfig, open_api, plugin, tmp_path):
    api = open_api(kubeconfig(stub, plugin(counting(tmp_path, token="abc"))))
    for _ in range(5):
        api.get("/x")
    assert runs(tmp_path) == 1


def numbered(tmp_path):
    """Prints token-1, token-2, ... of its runs."""
    body = json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "token-%s"}})
    return f"echo run >> {tmp_path}/runs; printf '{body}' $(($(wc -l < {tmp_path}/runs)))"


def test_a_request_that_was_rejected_is_sent_once_more_with_a_new_token(
    stub, kubeconfig, open_api, plugin, tmp_path
):
    api = open_api(kubeconfig(stub, plugin(numbered(tmp_path))))
    api.get("/x")
    stub.accepted = {"Bearer token-2"}
    body = {"metadata": {"name": "a"}}
    assert api.request("POST", "/x", body=body)["authorization"] == "Bearer token-2"
    assert runs(tmp_path) == 2
    assert [json.loads(r["body"]) for r in stub.seen if r["method"] == "POST"] == [body, body]


def test_a_text_that_was_rejected_is_asked_for_once_more(
    stub, kubeconfig, open_api, plugin, tmp_path
):
    api = open_api(kubeconfig(stub, plugin(numbered(tmp_path))))
    api.get("/x")
    stub.accepted = {"Bearer token-2"}
    assert json.loads(api.raw("/x"))["authorization"] == "Bearer token-2"


def test_a_stream_that_another_thread_reads_is_to_be_asked_for_again(
    stub, kubeconfig, open_api, plugin, tmp_path
):
    api = open_api(kubeconfig(stub, plugin(numbered(tmp_path))))
    stream = api.open("/x")
    refused = stream._connection.refused(401, b'{"message": "Unauthorized"}', {})
    assert isinstance(refused, TransientError)
    stream._connection.close()
    assert api.credential().headers == (("Authorization", "Bearer token-2"),)


def test_a_stream_whose_credential_cannot_be_renewed_is_refused(stub, kubeconfig, open_api):
    stream = open_api(kubeconfig(stub, {"token": "abc"})).open("/x")
    refused = stream._connection.refused(401, b'{"message": "Unauthorized"}', {})
    assert isinstance(refused, CredentialsError)
    stream._connection.close()


def test_of_64_threads_one_obtains_the_new_token(stub, kubeconfig, open_api, plugin, tmp_path):
    api = open_api(kubeconfig(stub, plugin(numbered(tmp_path))))
    api.get("/x")
    stub.accepted = {"Bearer token-2"}
    gate, got = threading.Barrier(64), []

    def ask():
        gate.wait()
        got.append(api.get("/x")["authorization"])

    threads = [threading.Thread(target=ask) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["Bearer token-2"] * 64
    assert runs(tmp_path) == 2


def test_threads_that_wait_for_a_failing_plugin_all_get_its_words(
    stub, kubeconfig, open_api, plugin, tmp_path
):
    go = tmp_path / "go"
    os.mkfifo(go)
    user = plugin(f"echo run >> {tmp_path}/runs; read x < {go}; echo 'no session' >&2; exit 4")
    api = open_api(kubeconfig(stub, user))
    started, told = threading.Semaphore(0), []

    def ask():
        started.release()
        try:
            api.get("/x")
        except CredentialsError as exc:
            told.append(str(exc))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    for _ in threads:  # a run that began later than the others reads a line of its own
        if any(thread.is_alive() for thread in threads):
            opened = os.open(go, os.O_RDWR)
            os.write(opened, b"\n" * 16)
            for thread in threads:
                thread.join()
            os.close(opened)
    assert len(told) == 16
    assert all("exit status 4: no session" in text for text in told)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "exit status 3"),
        ("echo 'session has expired, run: sso login' >&2; exit 255", "sso login"),
        ("kill -9 $$", "signal 9"),
        ("echo hello", "6 bytes that are not JSON"),
        ("true", "0 bytes that are not JSON"),
        ("echo '[1]'", "no ExecCredential"),
        ('echo \'{"kind": "List"}\'', "no ExecCredential"),
        (printed(BETA, token="abc"), "asks for client.authentication.k8s.io/v1, it answered in"),
        (printed(), "neither token nor certificate"),
        (printed(clientCertificateData="x"), "not both"),
        (printed(token="abc", expirationTimestamp="soon"), "'soon' is no time"),
        (printed(token="abc", expirationTimestamp="2020-01-01T00:00:00Z"), "ended already"),
        ("yes", "more than 1048576 bytes"),
        (f'echo \'{{"kind":"ExecCredential","apiVersion":"{V1}"}}\'', "no status"),
    ],
)
def test_a_plugin_that_gives_nothing_is_told_by_its_name_and_words(
    stub, kubeconfig, open_api, plugin, script, words
):
    with pytest.raises((CredentialsError, ConfigError), match="login") as caught:
        open_api(kubeconfig(stub, plugin(script))).get("/x")
    assert words in str(caught.value)
    assert stub.seen == []  # never as nobody


def test_a_plugin_that_hangs_is_ended_with_what_it_started(
    stub, kubeconfig, open_api, plugin, tmp_path
):
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    user = plugin(f"sh -c 'sleep 600; true' 9> {held}; true")
    api = open_api(kubeconfig(stub, user), login_timeout_s=1.0)
    with pytest.raises(CredentialsError, match=r"no answer within 1 s.*run it by hand"):
        api.get("/x")
    assert os.read(reader, 1) == b""  # once nobody holds its other end
    os.close(reader)


def test_a_program_that_a_plugin_leaves_behind_does_not_hold_the_answer_up(
    stub, kubeconfig, open_api, plugin, tmp_path
):
    script = f"sleep 600 & echo $! > {tmp_path}/child; {printed(token='abc')}"
    api = open_api(kubeconfig(stub, plugin(script)))
    assert api.get("/x")["authorization"] == "Bearer abc"
    pid = int((tmp_path / "child").read_text())
    os.kill(pid, 9)  # it was let live, as kubectl does


def test_a_plugin_that_is_missing_is_told_with_its_install_hint(
    stub, kubeconfig, open_api, tmp_path
):
    user = {
        "exec": {
            "apiVersion": V1, "command": "no-such-login", "interactiveMode": "Never",
            "installHint": "Install it from https://login.example",
        }
    }  # fmt: skip
    with pytest.raises(CredentialsError, match=r"not installed.*https://login\.example"):
        open_api(kubeconfig(stub, user)).get("/x")


def test_a_plugin_that_wants_a_terminal_is_not_run(stub, kubeconfig, open_api, plugin, tmp_path):
    user = plugin(f"touch {tmp_path}/ran", interactiveMode="Always")
    with pytest.raises(CredentialsError, match="wants a terminal"):
        open_api(kubeconfig(stub, user)).get("/x")
    assert not (tmp_path / "ran").exists()


def test_a_plugin_has_no_terminal_and_no_input(stub, kubeconfig, open_api, plugin, tmp_path):
    script = f"cat > {tmp_path}/input; [ -t 0 ] && exit 9; {printed(token='abc')}"
    user = plugin(script, interactiveMode="IfAvailable")
    assert open_api(kubeconfig(stub, user)).get("/x")["authorization"] == "Bearer abc"
    assert (tmp_path / "input").read_text() == ""


def test_a_rejected_plugins_token_is_told_with_its_command_and_no_secret(
    stub, kubeconfig, open_api, plugin
):
    user = plugin(
        printed(token="s3cret-token"),
        args=["get-token", "--client-secret", "s3cret-a", "--token=s3cret-b", "--cluster", "prod"],
    )
    stub.accepted = set()
    with pytest.raises(CredentialsError, match="get-token --client-secret") as caught:
        open_api(kubeconfig(stub, user)).get("/x")
    assert "--cluster prod" in str(caught.value)
    assert "log in again with the tool" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["eks", "get-token", "--cluster-name", "prod"], "eks get-token --cluster-name prod"),
        (["--client-secret", "s3cret", "--x", "1"], "--client-secret *** --x 1"),
        (["--token=s3cret", "-v"], "--token=*** -v"),
        (["--password", "--verbose"], "--password --verbose"),
        (["-c", "TOKEN=s3cret curl https://x"], "-c '...'"),
        (["TOKEN=s3cret"], "TOKEN=***"),
        (
            ["--server", "https://me:s3cret@vault.example/v1"],
            "--server https://***@vault.example/v1",
        ),
        ([""], "'...'"),
    ],
)
def test_a_command_is_shown_without_its_secrets(args, shown):
    plugin = Plugin(user="u", version=V1, command="login", args=tuple(args))
    assert plugin.shown() == f"login {shown}"
    assert "s3cret" not in repr(plugin)


def test_secrets_are_in_no_repr(stub, kubeconfig, open_api, plugin):
    user = plugin(printed(token="s3cret-token"), env=[{"name": "A", "value": "s3cret-env"}])
    api = open_api(kubeconfig(stub, user, **{"proxy-url": "http://u:s3cret@127.0.0.1:1"}))
    shown = repr(api.credential()) + repr(api.target()) + repr(api._origin.chosen())
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "still spoken"),
        ({"apiVersion": None}, "apiVersion is missing"),
        ({"command": ""}, "command is missing"),
        ({"interactiveMode": "Maybe"}, "interactiveMode 'Maybe'"),
        ({"env": [{"value": "x"}]}, "needs a name"),
        ({"args": "one two"}, "args is not a list"),
    ],
)
def test_a_plugin_that_is_not_written_rightly_is_told(
    stub, kubeconfig, open_api, plugin, fields, words
):
    user = plugin(printed(token="abc"), **{k: v for k, v in fields.items() if k != "apiVersion"})
    if "apiVersion" in fields:
        user["exec"]["apiVersion"] = fields["apiVersion"]
    with pytest.raises(ConfigError, match=words):
        open_api(kubeconfig(stub, user)).get("/x")


def test_the_page_shows_what_is_really_told(stub, certificates, tmp_path, monkeypatch):
    page = (Path(__file__).parents[4] / "docs/how-to/kubernetes.md").read_text()
    blocks = page.split("```")
    shown = next(one for one in blocks if one.startswith("text\nkubernetes:prod login"))
    write_plugin(
        tmp_path / "aws",
        "echo 'Error loading SSO Token: Token for main does not exist' >&2; exit 255",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = ["--region", "eu-1", "eks", "get-token", "--cluster-name", "prod"]
    user = {"exec": {"apiVersion": V1, "command": "aws", "args": words}}
    body = config_of({"server": f"https://127.0.0.1:{stub.port}"}, user)
    body["users"][0]["name"] = body["contexts"][0]["context"]["user"] = "prod"
    (tmp_path / "config").write_text(yaml.safe_dump(body))
    api = Api(backend="kubernetes:prod", kubeconfig=str(tmp_path / "config"))
    with pytest.raises(CredentialsError) as caught:
        api.credential()
    assert " ".join(shown.removeprefix("text\n").split()) == str(caught.value)
