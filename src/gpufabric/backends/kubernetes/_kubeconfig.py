"""Kubeconfig files as they are written: merged, one context picked, nothing acted upon.

The rules are kubectl's: of several files in KUBECONFIG the first that names something wins,
files that do not exist are passed over, and paths count from the file that has them.
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpufabric._frozen import field, frozen
from gpufabric.config import environment
from gpufabric.errors import ConfigError

__all__ = ["Chosen", "Kubeconfig", "Part", "load_kubeconfig", "mapping_of", "paths_of"]

_DEFAULT = "~/.kube/config"
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----", re.DOTALL)
_LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}


def mapping_of(value: object) -> Mapping[str, object]:
    """A mapping as it was read; an empty one for what is none."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


@frozen(kw_only=True)
class Part:
    """One named entry of a kubeconfig, and the folder that its relative paths count from."""

    name: str
    body: Mapping[str, object] = field(repr=False)
    folder: Path

    def text(self, key: str) -> str:
        """A field that is text; empty where it is absent."""
        value = self.body.get(key)
        if value is None:
            return ""
        if isinstance(value, dict | list):
            raise ConfigError(f"kubeconfig entry {self.name!r}: {key} is not text")
        return str(value)

    def flag(self, key: str) -> bool:
        """A field that is true or false; false where it is absent."""
        value = self.body.get(key)
        if not isinstance(value, bool | None):
            raise ConfigError(f"kubeconfig entry {self.name!r}: {key} is not true or false")
        return bool(value)

    def table(self, key: str) -> Mapping[str, object]:
        """A field that is a mapping; empty where it is absent."""
        value = self.body.get(key)
        if not isinstance(value, dict | None):
            raise ConfigError(f"kubeconfig entry {self.name!r}: {key} is not a mapping")
        return cast("Mapping[str, object]", value or {})

    def path(self, key: str) -> Path | None:
        """A field that is a path."""
        text = self.text(key)
        return self.folder / _home(text) if text else None

    def pem(self, key: str) -> str:
        """The text of `<key>-data`, or else of the file that `<key>` names; empty without."""
        data = self.text(f"{key}-data")
        if data:
            try:
                return _blocks(base64.b64decode(data))
            except binascii.Error:
                raise ConfigError(
                    f"kubeconfig entry {self.name!r}: {key}-data is not base64"
                ) from None
        file = self.path(key)
        if file is None:
            return ""
        try:
            return _blocks(file.read_bytes())
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"kubeconfig entry {self.name!r}: {key} {file} cannot be read: {exc}"
            ) from exc


@frozen(kw_only=True)
class Chosen:
    """One context: the cluster and the user that it stands for. `user` is None for nobody."""

    context: str
    namespace: str
    cluster: Part
    user: Part | None
    source: str


@frozen(kw_only=True)
class Kubeconfig:
    """All files of a kubeconfig as one."""

    source: str
    current: str | None
    clusters: Mapping[str, Part]
    contexts: Mapping[str, Part]
    users: Mapping[str, Part]

    def choose(self, context: str | None) -> Chosen:
        """The context of that name, or the current one. Raises `ConfigError`."""
        name = context or self.current
        known = ", ".join(self.contexts) or "none"
        if name is None or name not in self.contexts:
            what = f"no context {name!r}" if name else "no context is current"
            raise ConfigError(f"{what} in the kubeconfig {self.source} (there are: {known})")
        part = self.contexts[name]
        cluster, user = part.text("cluster"), part.text("user")
        if cluster not in self.clusters:
            raise ConfigError(
                f"context {name!r} names the cluster {cluster!r}, which the kubeconfig"
                f" {self.source} does not have"
            )
        if user and user not in self.users:
            raise ConfigError(
                f"context {name!r} names the user {user!r}, which the kubeconfig"
                f" {self.source} does not have"
            )
        return Chosen(
            context=name,
            namespace=part.text("namespace") or "default",
            cluster=self.clusters[cluster],
            user=self.users[user] if user else None,
            source=self.source,
        )


def _blocks(data: bytes) -> str:
    """The PEM blocks of a file, whatever is written between them; all of it where there is none."""
    text = data.decode("ascii", "ignore")
    return "".join(f"{block}\n" for block in _PEM.findall(text)) or text


def _home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # of a user that does not exist: then it is an ordinary name
        return Path(text)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except (OSError, ValueError):  # a name too long, or of another kind
        return False


def paths_of(kubeconfig: str | None, *, trust_env: bool = True) -> tuple[Path, ...]:
    """The files that make up a kubeconfig, those that exist."""
    named = kubeconfig
    if named is None:
        if not trust_env:
            return ()
        named = environment().get("KUBECONFIG") or _DEFAULT
    return tuple(file for one in named.split(os.pathsep) if one and _exists(file := _home(one)))


def load_kubeconfig(kubeconfig: str | None, *, trust_env: bool = True) -> Kubeconfig | None:
    """Reads and merges the files; None where there are none.

    Raises `ConfigError` for a file that was named and is not there, or that cannot be read.
    """
    files = paths_of(kubeconfig, trust_env=trust_env)
    if not files:
        if kubeconfig is None:
            return None
        raise ConfigError(f"kubeconfig {kubeconfig}: there is no such file")
    merged: dict[str, dict[str, Part]] = {kind: {} for kind in _LISTS}
    current: str | None = None
    for file in files:
        body = _read(file)
        current = current or _current(file, body)
        for kind in _LISTS:
            for name, part in _parts(file, kind, body.get(kind)).items():
                merged[kind].setdefault(name, part)
    return Kubeconfig(source=os.pathsep.join(map(str, files)), current=current, **merged)


def _read(file: Path) -> Mapping[str, object]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        body = cast("object", yaml.load(text, Loader=_loader()))  # noqa: S506  # a safe loader
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"kubeconfig {file} cannot be read: {exc}") from exc
    except (yaml.YAMLError, ValueError) as exc:  # a date of month 13 is a ValueError
        mark = cast("object", getattr(exc, "problem_mark", None))  # its text would quote secrets
        line = f" at line {cast('int', getattr(mark, 'line', 0)) + 1}" if mark is not None else ""
        raise ConfigError(f"kubeconfig {file} is not YAML{line}") from None
    except RecursionError:
        raise ConfigError(f"kubeconfig {file} nests too deep") from None
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise ConfigError(f"kubeconfig {file} is no kubeconfig: it is not a mapping")
    return cast("Mapping[str, object]", body)


def _loader() -> Any:
    """The safe loader; where libyaml is there it is ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _current(file: Path, body: Mapping[str, object]) -> str | None:
    name = body.get("current-context")
    if not isinstance(name, str | None):
        raise ConfigError(f"kubeconfig {file}: current-context is not text")
    return name or None


def _parts(file: Path, kind: str, listed: object) -> dict[str, Part]:
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise ConfigError(f"kubeconfig {file}: {kind} is not a list")
    found: dict[str, Part] = {}
    for one in cast("Sequence[object]", listed):
        entry = mapping_of(one)
        name, body = entry.get("name"), entry.get(_LISTS[kind])
        if name is None or not isinstance(body, dict | None):
            raise ConfigError(
                f"kubeconfig {file}: every entry of {kind} needs name and {_LISTS[kind]}"
            )
        if str(name) in found:
            raise ConfigError(f"kubeconfig {file}: two entries of {kind} are named {name!r}")
        folder = file.parent.absolute()
        made = Part(name=str(name), body=cast("Mapping[str, object]", body or {}), folder=folder)
        found[str(name)] = made
    return found
