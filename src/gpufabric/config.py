"""Settings, and where each came from. The only module that reads the environment.

Order: argument, `GPUFABRIC_*` variables, `gpufabric.toml` of the current folder, the user's file,
default. `trust_env=False` leaves the argument and the default.
"""

import contextlib
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import attrs

from gpufabric._frozen import FrozenDict, field, frozen
from gpufabric.errors import ConfigError, Problem, SpecError, shown

__all__ = ["Settings", "environment"]

_PROJECT_FILE = "gpufabric.toml"


def environment(*, trust_env: bool = True) -> dict[str, str]:
    """A copy of this process's environment, for programs that are started; empty if not trusted."""
    return dict(os.environ) if trust_env else {}


@frozen(kw_only=True)
class Settings:
    """How the library behaves in one `Fabric`. Two fabrics may have different ones.

    Fields:
        discover_timeout_s: how long a backend may take to say what it has; then it is a rejection.
        workdir_limit_mb: the largest packed work folder, 10^6 bytes.
        stop_grace_s: between SIGTERM and SIGKILL when a gang is stopped.
        local_root: folder of the local backend's jobs; None for the user's state folder.
        poll_s: the longest pause between two looks at a job's state.
        retry_s: how long a server is borne that fails, from the first failure of several in a row.
        trust_env: read `GPUFABRIC_*` variables and files.
        origins: where each value came from.
    """

    discover_timeout_s: float = 20.0
    workdir_limit_mb: float = 100.0
    stop_grace_s: float = 10.0
    local_root: str | None = None
    poll_s: float = 1.0
    retry_s: float = 20.0
    trust_env: bool = True
    origins: FrozenDict[str, str] = field(
        factory=FrozenDict[str, str], converter=FrozenDict[str, str], eq=False
    )

    def __attrs_post_init__(self) -> None:
        for name in ("discover_timeout_s", "workdir_limit_mb", "poll_s", "retry_s", "stop_grace_s"):
            value = cast("object", getattr(self, name))
            if isinstance(value, bool) or not isinstance(value, int | float):
                told = f"{shown(value)} is not a number"
            elif value < 0 or (value == 0 and name != "stop_grace_s"):
                told = f"{value:g} is too small"
            elif not value < math.inf:
                told = f"{value:g} is not a finite number"
            else:
                continue
            raise SpecError([Problem(path=name, message=told)], what="Settings")

    @classmethod
    def load(cls, **given: object) -> "Settings":
        """Reads the settings; `given` wins over all else. Raises `ConfigError`."""
        values: dict[str, object] = {}
        origins: dict[str, str] = {}
        layers = [(given, "argument")]
        if given.get("trust_env", True):
            layers = [*_from_files(), (_from_variables(), "variable"), *layers]
        names = {a.name for a in attrs.fields(cls) if a.name != "origins"}
        for layer, origin in layers:
            for name, value in layer.items():
                if name not in names:
                    from gpufabric._convert import near

                    raise ConfigError(f"{origin}: unknown setting {name}{near(name, names)}")
                values[name] = value
                origins[name] = f"GPUFABRIC_{name.upper()}" if origin == "variable" else origin
        every = FrozenDict({name: origins.get(name, "default") for name in sorted(names)})
        if not values:
            return cls(origins=every)
        from gpufabric._convert import structure

        try:
            made = structure(cls, values)
        except SpecError as exc:
            told = "; ".join(
                f"{origins.get(p.path.split('.')[0], 'settings')}: {p}" for p in exc.problems
            )
            raise ConfigError(told) from exc
        return attrs.evolve(made, origins=every)


def _from_variables() -> dict[str, object]:
    found: dict[str, object] = {}
    for attribute in attrs.fields(Settings):
        text = os.environ.get(f"GPUFABRIC_{attribute.name.upper()}")
        if text is None or attribute.name in {"origins", "trust_env"}:
            continue
        found[attribute.name] = _number(attribute.name, text) if attribute.type is float else text
    return found


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"GPUFABRIC_{name.upper()}={text!r} is not a number") from None


def _user_folder() -> Path:
    """What platformdirs says; on Linux with the usual variables it needs no import to say it."""
    if sys.platform == "linux" and "ANDROID_DATA" not in os.environ:
        named, home = os.environ.get("XDG_CONFIG_HOME", ""), os.environ.get("HOME", "")
        if named.startswith("/"):
            return Path(named, "gpufabric")
        if not named and home.startswith("/"):
            return Path(home, ".config", "gpufabric")
    import platformdirs

    return platformdirs.user_config_path("gpufabric")


def _from_files() -> list[tuple[dict[str, object], str]]:
    files = [Path(_PROJECT_FILE)]
    with contextlib.suppress(RuntimeError, OSError, KeyError):  # no usable home: no user's file
        files.insert(0, _user_folder() / "config.toml")
    found: list[tuple[dict[str, object], str]] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError:  # absent, or not ours to read: no layer
            continue
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{file}: {exc}") from exc
        import tomllib

        try:
            found.append((dict(cast("Mapping[str, object]", tomllib.loads(text))), str(file)))
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{file}: {exc}") from exc
    return found
