"""Which cluster a backend means, and as whom: kubeconfig, context, or the pod around it."""

from pathlib import Path

from gpufabric._frozen import frozen
from gpufabric.backends.kubernetes._connection import Connections, load_urllib3
from gpufabric.backends.kubernetes._kubeconfig import Chosen, load_kubeconfig
from gpufabric.backends.kubernetes._login import (
    Credential,
    Login,
    credential_of,
    pod_credential,
)
from gpufabric.backends.kubernetes._official import OfficialClient, connections_of, place_of
from gpufabric.backends.kubernetes._target import pod_target, target_of
from gpufabric.config import environment
from gpufabric.errors import ConfigError

__all__ = ["ACCOUNT", "IN_CLUSTER", "Origin", "contexts", "in_cluster_namespace"]

IN_CLUSTER = "in-cluster"
"""The context that stands for the cluster around this process."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet keeps a pod's token, CA and namespace."""
#: What a plug-in needs of the environment where it is not trusted.
_PLUGIN_ENV = ("HOME", "LANG", "PATH", "TMPDIR")


def contexts(
    kubeconfig: str | None = None, *, trust_env: bool = True
) -> tuple[dict[str, str], str | None]:
    """The contexts of a kubeconfig with the namespace of each, and the current one's name.

    Raises `ConfigError` where the file cannot be read; gives nothing where there is none.
    """
    config = load_kubeconfig(kubeconfig, trust_env=trust_env)
    if config is None:
        return {}, None
    spaces = {name: part.text("namespace") or "default" for name, part in config.contexts.items()}
    return spaces, config.current


def in_cluster_namespace(account: Path = ACCOUNT) -> str | None:
    """The namespace of the pod that this process runs in; None outside a cluster."""
    try:
        return (account / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


@frozen(kw_only=True)
class Origin:
    """What was said of a cluster when a backend was made."""

    backend: str
    context: str | None
    kubeconfig: str | None
    trust_env: bool
    login_timeout_s: float
    account: Path
    client: OfficialClient | None = None

    def place(self) -> tuple[str, str]:
        """The context, or `IN_CLUSTER`, and its namespace. Raises `ConfigError`."""
        if self.client is not None:
            return self.context or place_of(self.client), "default"
        chosen = self.chosen()
        if chosen is None:
            return IN_CLUSTER, in_cluster_namespace(self.account) or "default"
        return chosen.context, chosen.namespace

    def chosen(self) -> Chosen | None:
        """The context that is meant; None for the cluster that this process runs in.

        As with kubectl, a kubeconfig comes before the cluster around this process.
        """
        named = self.kubeconfig is not None
        if self.context == IN_CLUSTER and not named:
            return None
        if not named and not self.trust_env:
            raise ConfigError(
                f"{self.backend}: with trust_env=False no kubeconfig is looked for: name one in"
                f" kubeconfig=, or the cluster around this process with context={IN_CLUSTER!r}"
            )
        config = load_kubeconfig(self.kubeconfig, trust_env=self.trust_env)
        inside = in_cluster_namespace(self.account) is not None
        if config is None or not config.contexts:
            if inside and self.context is None and not named:
                return None
            if config is None:
                raise ConfigError(
                    f"{self.backend}: there is no kubeconfig: neither where KUBECONFIG says, nor"
                    " ~/.kube/config; and this process runs in no cluster"
                )
        try:
            return config.choose(self.context)
        except ConfigError as exc:
            raise ConfigError(f"{self.backend}: {exc}") from exc

    def connections(self) -> Connections:
        """What requests go over. Reads the kubeconfig, and asks nobody yet."""
        load_urllib3()
        if self.client is not None:
            return connections_of(self.client, backend=self.backend)
        seen = environment()
        trusted = environment(trust_env=self.trust_env)
        chosen = self.chosen()
        if chosen is None:
            token = self.account / "token"
            return Connections(pod_target(self.account, seen), Login(lambda: pod_credential(token)))
        first: list[Chosen] = [chosen]
        program = trusted or {name: seen[name] for name in _PLUGIN_ENV if name in seen}

        def obtain() -> Credential:
            user = first.pop() if first else self._chosen_again(chosen)
            return credential_of(
                user, program, backend=self.backend, timeout_s=self.login_timeout_s
            )

        return Connections(target_of(chosen, trusted), Login(obtain))

    def _chosen_again(self, chosen: Chosen) -> Chosen:
        """The context as the kubeconfig has it now: its owner may have logged in again."""
        try:
            now = self.chosen()
        except ConfigError:  # it was removed meanwhile
            return chosen
        if now is None or now.cluster.text("server") != chosen.cluster.text("server"):
            raise ConfigError(
                f"{self.backend}: the kubeconfig's context {chosen.context!r} is now of another"
                " server: make a new backend"
            )
        return now
