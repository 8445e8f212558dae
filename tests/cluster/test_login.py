"""Logins as a real API server takes and refuses them."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

import gpufabric as gf
from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._role import role_text
from gpufabric.config import Settings
from gpufabric.errors import CredentialsError

pytestmark = pytest.mark.cluster

V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def account(own_cluster, namespace, tmp_path):
    """Makes a token of a service account that may list pods; the folder is as pods have it."""
    cluster, folder = own_cluster, tmp_path / "serviceaccount"
    folder.mkdir()
    cluster.kubectl("-n", namespace, "create", "role", "look", "--verb=list", "--resource=pods")
    config = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    (folder / "namespace").write_text(namespace)
    authority = cluster.kubectl(
        "-n", namespace, "get", "configmap", "kube-root-ca.crt", "-o", r"jsonpath={.data.ca\.crt}"
    )
    (folder / "ca.crt").write_text(authority)

    def token(name):
        cluster.kubectl("-n", namespace, "create", "serviceaccount", name)
        cluster.kubectl(
            "-n", namespace, "create", "rolebinding", name, "--role=look",
            f"--serviceaccount={namespace}:{name}",
        )  # fmt: skip
        return cluster.kubectl("-n", namespace, "create", "token", name).strip()

    return folder, urlsplit(config["server"]), token


def config_of(cluster, user, folder, **changes):
    """A kubeconfig of the test cluster, as another user."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = user
    config["clusters"][0]["cluster"].update(changes)
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_service_account_asks_from_inside_and_its_new_token_is_read(
    account, own_cluster, namespace, monkeypatch
):
    folder, server, token = account
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", server.hostname)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port or 443))
    (folder / "token").write_text(token("first"))
    api = Api(backend="kubernetes", context="in-cluster", account=folder, trust_env=False)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    assert list(api.items(pods)) == []
    own_cluster.kubectl("-n", namespace, "delete", "serviceaccount", "first")
    (folder / "token").write_text(token("second"))  # as the kubelet does
    assert list(api.items(pods)) == []
    assert api.credential().expires is not None
    api.close()


def test_a_rejected_token_of_a_plugin_is_renewed_and_else_told(
    account, own_cluster, namespace, tmp_path
):
    _, _, token = account
    good, given = token("good"), tmp_path / "given"
    given.write_text("not-a-token")
    script = tmp_path / "login.py"
    script.write_text(
        f"#!{sys.executable}\nimport json\nprint(json.dumps({{'kind': 'ExecCredential',"
        f" 'apiVersion': '{V1}', 'status': {{'token': open({str(given)!r}).read()}}}}))\n"
    )
    script.chmod(0o755)
    plugin = {"apiVersion": V1, "command": str(script), "interactiveMode": "Never"}
    path = config_of(own_cluster, {"exec": plugin}, tmp_path)
    api = Api(backend="kubernetes", kubeconfig=str(path))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(CredentialsError, match=r"login\.py.*log in again with the tool"):
        api.get(pods)
    given.write_text(good)
    assert api.get(pods)["kind"] == "PodList"
    api.close()


def test_another_user_is_impersonated_and_named_in_what_is_refused(cluster, namespace, tmp_path):
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    user = {**config["users"][0]["user"], "as": "jane", "as-groups": ["system:authenticated"]}
    path = config_of(cluster, user, tmp_path)
    backend = Kubernetes(
        kubeconfig=str(path), namespace=namespace, settings=Settings(trust_env=False)
    )
    with pytest.raises(CredentialsError, match='User "jane" cannot list'):
        list(backend.jobs())
    assert "may not create, delete, get, list, patch jobs.batch" in str(backend.check())
    backend.close()


def test_a_kubeconfig_of_another_cluster_is_told_by_its_authority(cluster, tmp_path):
    other = Path(__file__).parents[1] / "unit/backends/kubernetes"
    sys.path.insert(0, str(other))
    from tlsstub import Certificates, encoded

    made = Certificates(tmp_path)
    wrong = {"certificate-authority-data": encoded(made.text("theirs.crt"))}
    path = config_of(cluster, {"token": "x"}, tmp_path, **wrong)
    api = Api(backend="kubernetes", kubeconfig=str(path))
    with pytest.raises(CredentialsError, match="comes from another authority"):
        api.get("/version")
    api.close()
    name = {"tls-server-name": "elsewhere.example"}
    api = Api(backend="kubernetes", kubeconfig=str(config_of(cluster, {}, tmp_path, **name)))
    with pytest.raises(CredentialsError, match="is for other names"):
        api.get("/version")
    api.close()


def test_nodes_without_their_nics_are_told_with_what_is_missing(own_cluster, namespace):
    own_cluster.dress("eks-p5-no-efa")
    backend = Kubernetes(
        kubeconfig=str(own_cluster.kubeconfig), namespace=namespace,
        settings=Settings(trust_env=False),
    )  # fmt: skip
    report = backend.check()
    assert report.ok, str(report)
    (item,) = [one for one in report.items if one.name.startswith("nodes ")]
    assert item.warn
    assert "nodes have 0 vpc.amazonaws.com/efa, pods need 32" in item.message
    assert "aws-efa-k8s-device-plugin" in item.message
    assert json.loads(json.dumps(str(report)))
    backend.close()


PROBE = """
import gpufabric as gf
backend = gf.Kubernetes()
print(backend.check())
print("jobs:", *backend.jobs())
"""
NEEDED_HERE = ("attr", "attrs", "cattrs", "pathspec", "platformdirs", "tenacity", "urllib3", "yaml")


@pytest.fixture
def inside(tmp_path):
    """A folder with this library, what it needs, and a program that uses it."""
    folder = tmp_path / "work"
    for name in ("gpufabric", *NEEDED_HERE):
        (origin,) = importlib.util.find_spec(name).submodule_search_locations
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.toml")
        shutil.copytree(origin, folder / name, ignore=ignored)
    shutil.copy(importlib.util.find_spec("typing_extensions").origin, folder)
    (folder / "probe.py").write_text(PROBE)
    return folder


def test_a_process_in_a_pod_uses_its_service_account(own_cluster, namespace, inside):
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = yaml.safe_load(role_text(namespace, cluster=False))
    group = "rbac.authorization.k8s.io"
    own_cluster.api.create(role)
    own_cluster.api.create({
        "apiVersion": f"{group}/v1", "kind": "RoleBinding",
        "metadata": {"name": "gpufabric", "namespace": namespace}, "subjects": [subject],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "gpufabric"},
    })  # fmt: skip
    outside = Kubernetes(
        kubeconfig=str(own_cluster.kubeconfig), namespace=namespace, image=own_cluster.image,
        settings=Settings(trust_env=False), pod_patch={"automountServiceAccountToken": True},
    )  # fmt: skip
    fabric = gf.Fabric(outside, settings=Settings(trust_env=False))
    job = fabric.launch(gf.Task(run="python3 probe.py", workdir=str(inside), name="probe"))
    told = [line.text for line in job.logs(follow=True) if line.stream == "stdout"]
    job.teardown()
    fabric.close()
    assert f"  ok   context: in-cluster, namespace {namespace}" in told, told
    (login,) = [line for line in told if line.startswith("  ok   login:")]
    assert "this pod's service account; it ends at" in login
    assert login.endswith("and is renewed by then")
    assert f"  ok   permissions: enough in {namespace}" in told
    assert f"jobs: kubernetes://in-cluster/{namespace}/{job.ref.name}" in told
