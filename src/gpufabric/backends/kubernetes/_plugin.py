"""Exec plug-ins: programs that a kubeconfig names to obtain a credential.

https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

import base64
import datetime as dt
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from gpufabric._frozen import field, frozen
from gpufabric.backends.kubernetes._kubeconfig import Part, mapping_of
from gpufabric.errors import ConfigError

__all__ = ["Plugin", "PluginAnswer", "PluginError", "plugin_of"]

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXTENSION = "client.authentication.k8s.io/exec"
_MODES = ("Never", "IfAvailable", "Always")
_MOST_BYTES = 1 << 20
_HELD_OPEN_S = 0.5  # how long pipes are read that only a program left behind still holds
_SECRET = re.compile(r"(?i)(secret|passw|token|key|credential|assertion)")
_USERINFO = re.compile(r"://[^/@]+@")
_SHOWN = 200


class PluginError(Exception):
    """A plug-in gave no credential; the text says why and what to do."""


@frozen(kw_only=True)
class PluginAnswer:
    """What a plug-in printed."""

    token: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    expires: float | None = None


@frozen(kw_only=True)
class Plugin:
    """How a kubeconfig wants a plug-in to be run."""

    user: str
    version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(factory=dict[str, str], repr=False)
    mode: str = "IfAvailable"
    hint: str = ""
    cluster: Mapping[str, object] | None = field(default=None, repr=False)

    def shown(self) -> str:
        """The command line, without what may be a secret."""
        words: list[str] = [self.command]
        hide = False
        for word in self.args:
            name, equals, _ = word.partition("=")
            secret = bool(_SECRET.search(name))
            if hide and not word.startswith("-"):
                words.append("***")
            elif len(word.split()) != 1:  # a program of its own, or a sentence
                words.append("'...'")
            elif equals and secret:
                words.append(f"{name}=***")
            else:
                words.append(_USERINFO.sub("://***@", word))
            hide = word.startswith("-") and secret and not equals
        text = " ".join(words)
        return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

    def run(self, environment: Mapping[str, str], *, timeout_s: float) -> PluginAnswer:
        """Runs it without a terminal. Raises `PluginError`."""
        if self.mode == "Always":
            raise PluginError(
                f"it wants a terminal (interactiveMode: Always), which a library has none to give;"
                f" run it by hand: {self.shown()}"
            )
        code, out, err = self._output(environment, timeout_s)
        said = _last_words(err)
        if code != 0:
            ended = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise PluginError(f"it ended with {ended}{said}")
        return self._answer(out, said)

    def _output(self, environment: Mapping[str, str], timeout_s: float) -> tuple[int, bytes, bytes]:
        spec: dict[str, object] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        asked = {"kind": "ExecCredential", "apiVersion": self.version, "spec": spec}
        env = {**environment, **self.env, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        try:
            process = subprocess.Popen(
                [self.command, *self.args], env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            hint = f". {self.hint}" if self.hint else ""
            raise PluginError(f"it is not installed, or not on PATH{hint}") from None
        except (OSError, ValueError) as exc:
            raise PluginError(f"it cannot be started: {exc}") from exc
        with process:
            deadline = time.monotonic() + timeout_s
            try:
                out, err = _read(process, deadline)
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except (TimeoutError, subprocess.TimeoutExpired):
                raise PluginError(
                    f"it gave no answer within {timeout_s:g} s, and was ended. It may wait for"
                    f" someone to log in: run it by hand: {self.shown()}"
                ) from None
            finally:
                _end(process)
        return code, out, err

    def _answer(self, out: bytes, said: str) -> PluginAnswer:
        try:
            made = cast("object", json.loads(out))
        except ValueError:
            raise PluginError(f"it printed {len(out)} bytes that are not JSON{said}") from None
        body = mapping_of(made)
        if body.get("kind") != "ExecCredential":
            raise PluginError(f"it printed JSON that is no ExecCredential{said}")
        if body.get("apiVersion") != self.version:
            raise PluginError(
                f"the kubeconfig asks for {self.version}, it answered in"
                f" {body.get('apiVersion')!r}: update the plug-in, or the kubeconfig's apiVersion"
            )
        status = body.get("status")
        if not isinstance(status, dict):
            raise PluginError(f"its ExecCredential has no status{said}")
        given = cast("Mapping[str, object]", status)
        token, certificate, key = (
            str(given.get(name) or "")
            for name in ("token", "clientCertificateData", "clientKeyData")
        )
        if bool(certificate) != bool(key):
            raise PluginError("it gave a certificate or a key, not both")
        if not token and not certificate:
            raise PluginError(f"its ExecCredential has neither token nor certificate{said}")
        expires = _seconds(given.get("expirationTimestamp"))
        return PluginAnswer(token=token, certificate=certificate, key=key, expires=expires)


def plugin_of(user: Part, cluster: Part) -> Plugin:
    """The plug-in of a kubeconfig's user. Raises `ConfigError` where it is not written rightly."""
    body = user.table("exec")
    part = Part(name=user.name, body=body, folder=user.folder)
    version, command, mode = (part.text(n) for n in ("apiVersion", "command", "interactiveMode"))
    where = f"kubeconfig user {user.name!r}: exec"
    if version not in _VERSIONS:
        raise ConfigError(
            f"{where}: apiVersion {version or 'is missing'}; only {' and '.join(_VERSIONS)} are"
            " still spoken: let the tool that wrote the kubeconfig write it anew"
        )
    if not command:
        raise ConfigError(f"{where}: command is missing")
    if mode and mode not in _MODES:
        raise ConfigError(f"{where}: interactiveMode {mode!r} is none of {', '.join(_MODES)}")
    if "/" in command and not command.startswith("/"):
        command = str(user.folder / Path(command))
    env: dict[str, str] = {}
    for one in _listed(body.get("env"), where, "env"):
        entry = mapping_of(one)
        if not entry.get("name"):
            raise ConfigError(f"{where}: every entry of env needs a name")
        env[str(entry["name"])] = str(entry.get("value") or "")
    return Plugin(
        user=user.name,
        version=version,
        command=command,
        args=tuple(str(one) for one in _listed(body.get("args"), where, "args")),
        env=env,
        mode=mode or "IfAvailable",
        hint=" ".join(part.text("installHint").split()),
        cluster=_cluster_of(cluster) if part.flag("provideClusterInfo") else None,
    )


def _listed(value: object, where: str, key: str) -> Sequence[object]:
    if not isinstance(value, list | None):
        raise ConfigError(f"{where}: {key} is not a list")
    return cast("Sequence[object]", value or ())


def _cluster_of(cluster: Part) -> dict[str, object]:
    """What a plug-in is told of the cluster.

    https://kubernetes.io/docs/reference/config-api/client-authentication.v1/#client-authentication-k8s-io-v1-Cluster
    """
    told: dict[str, object] = {"server": cluster.text("server")}
    for name in ("tls-server-name", "proxy-url"):
        if cluster.text(name):
            told[name] = cluster.text(name)
    for name in ("insecure-skip-tls-verify", "disable-compression"):
        if cluster.flag(name):
            told[name] = True
    authority = cluster.pem("certificate-authority")
    if authority:
        told["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    for one in _listed(cluster.body.get("extensions"), cluster.name, "extensions"):
        entry = mapping_of(one)
        if entry.get("name") == _EXTENSION:
            told["config"] = entry.get("extension")
    return told


def _seconds(stamp: object) -> float | None:
    if stamp is None:
        return None
    try:
        when = dt.datetime.fromisoformat(str(stamp))
    except ValueError:
        raise PluginError(f"its expirationTimestamp {str(stamp)[:40]!r} is no time") from None
    return (when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp()


def _last_words(err: bytes) -> str:
    text = " ".join(err.decode("utf-8", "replace").split())
    return f": {text[-300:]}" if text else ""


def _read(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bytes]:
    """Both outputs, until both end or the process has ended and nothing more comes."""
    taken = {"out": bytearray(), "err": bytearray()}
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("out", process.stdout), ("err", process.stderr)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = selector.select(min(left, _HELD_OPEN_S))
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                taken[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
                if len(taken[key.data]) > _MOST_BYTES:
                    raise PluginError(f"it printed more than {_MOST_BYTES} bytes, and was ended")
            if not ready and process.poll() is not None:
                break
    return bytes(taken["out"]), bytes(taken["err"])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a plug-in that still runs, with the programs that it started."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
