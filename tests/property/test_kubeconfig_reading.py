"""Whatever stands in a kubeconfig, it is used or refused as ours, and no secret of it is told."""

import tempfile
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufabric.backends.kubernetes._api import Api
from gpufabric.backends.kubernetes._pem import not_after
from gpufabric.errors import GpuFabricError

SECRET = "s3cr3t-t0ken"
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just(SECRET), st.floats()
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
CLUSTER = (
    "server", "certificate-authority", "certificate-authority-data", "tls-server-name",
    "insecure-skip-tls-verify", "proxy-url", "extensions",
)  # fmt: skip
USER = (
    "token", "tokenFile", "username", "password", "client-certificate", "client-key",
    "client-certificate-data", "client-key-data", "auth-provider", "as", "as-uid", "as-groups",
    "as-user-extra",
)  # fmt: skip
EXEC = ("apiVersion", "args", "env", "interactiveMode", "installHint", "provideClusterInfo")


def some(names, more=values):
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, more))


urls = st.sampled_from(["https://a", "http://a:1", "https://[::1]:6443", "x", "https://a:b", 7])
clusters = st.one_of(values, some(CLUSTER), st.builds(lambda u: {"server": u}, urls))
plugins = some(EXEC).map(lambda body: {"exec": {"command": "/nonexistent/login", **body}})
users = st.one_of(values, some(USER), plugins, st.builds(lambda v: {"token": v}, values))


@settings(max_examples=100, deadline=None)
@given(
    cluster=clusters, user=users, context=st.one_of(st.just({"cluster": "c", "user": "u"}), values)
)
def test_a_kubeconfig_is_used_or_refused_by_our_own_errors(cluster, user, context):
    body = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": context}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(yaml.safe_dump(body))
        api = Api(backend="kubernetes", kubeconfig=str(path), trust_env=False)
        try:
            api.target()
            api.credential()
        except GpuFabricError as exc:
            told = str(exc)
        else:
            told = repr(api.target()) + repr(api.credential())
        if "token" in (user if isinstance(user, dict) else {}):
            assert SECRET not in told
        api.close()


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_is_a_kubeconfig_or_refused(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            Api(backend="kubernetes", kubeconfig=str(path), trust_env=False).place()
        except GpuFabricError:
            return


@settings(max_examples=100, deadline=None)
@given(der=st.binary(max_size=80))
def test_any_bytes_have_an_end_or_none(der):
    import base64

    pem = base64.b64encode(der).decode()
    not_after(f"-----BEGIN CERTIFICATE-----\n{pem}\n-----END CERTIFICATE-----\n")
