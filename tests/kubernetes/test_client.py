"""A client of the official package instead of a kubeconfig."""

import attrs
import pytest
from kubernetes.client import ApiClient, Configuration

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.config import Settings
from gpufabric.errors import ConfigError, CredentialsError, SpecError
from gpufabric.task import Task
from kubernetes import config


@pytest.fixture
def client(cluster):
    made = config.new_client_from_config(str(cluster.kubeconfig))
    yield made
    made.close()


@pytest.fixture
def backend(client, cluster, namespace):
    settings = Settings(stop_grace_s=1.0, trust_env=False)
    made = Kubernetes(
        "theirs", namespace, settings=settings, client=client, image=cluster.image
    )  # fmt: skip
    yield made
    made.close()


def test_a_gang_runs_as_the_user_of_a_client_that_was_given(backend, namespace):
    task = Task(run="echo hi", num_nodes=2)
    site = backend.discover()
    plan = backend.plan(task, backend.offers(task, site).best, site)
    ref = backend.apply(plan)
    assert (str(ref), backend.owns(ref)) == (
        f"kubernetes://theirs/{namespace}/{plan.steps[0].name}", True
    )  # fmt: skip
    assert sorted(x.text for x in backend.logs(ref, follow=True) if x.stream == "stdout") == [
        "hi",
        "hi",
    ]
    backend.teardown(ref)
    assert list(backend.jobs()) == []


def test_the_login_of_a_given_client_is_told(backend):
    said = {item.name: item for item in backend.check().items}
    assert said["context"].message.startswith("theirs")
    assert "the client that was given" in said["login"].message


def test_the_hook_of_a_client_is_asked_for_its_token(cluster):
    configuration = Configuration(host="https://127.0.0.1:1", api_key={"authorization": "old"})

    def hook(mine):
        raise RuntimeError("the token service is down")

    configuration.refresh_api_key_hook = hook
    backend = Kubernetes(client=ApiClient(configuration), image=cluster.image)
    with pytest.raises(CredentialsError, match="token service is down"):
        backend.discover()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": "nowhere"}, "no http or https address"),
        ({"host": "https://a", "ssl_ca_cert": "/no/such/file"}, "cannot be read"),
        ({"host": "https://a", "assert_hostname": "b"}, "tls_server_name"),
    ],
)
def test_a_client_that_cannot_be_used_is_refused_with_the_reason(fields, words):
    configuration = Configuration(host=fields.pop("host"))
    for name, value in fields.items():
        setattr(configuration, name, value)
    with pytest.raises(ConfigError, match=words):
        Kubernetes(client=ApiClient(configuration)).discover()


def test_client_and_kubeconfig_together_are_refused(client):
    with pytest.raises(SpecError, match="not both"):
        Kubernetes(kubeconfig="x", client=client)


def test_nothing_of_a_client_is_in_the_backends_text(client):
    backend = Kubernetes(client=client)
    assert "Bearer" not in f"{backend!r}{attrs.asdict(backend._api._origin)!r}"
