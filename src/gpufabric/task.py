"""Task: a command that runs on every node of a gang, and what each node needs."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from gpufabric._frozen import FrozenDict, field, frozen
from gpufabric.errors import MissingExtraError, Problem, SpecError, shown
from gpufabric.resources import Resources

__all__ = ["PythonCall", "Secret", "Task", "safe_name"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_WIDTH = 40
_MAX_NODES = 100_000


def safe_name(text: str) -> str:
    """Makes a name that every cloud takes: `[a-z]([a-z0-9-]*[a-z0-9])?`, at most 40 long.

    DNS labels (RFC 1123 and 1035) are the narrowest rule among the clouds; 40 leaves room for the
    suffixes that backends add within 63.
    """
    import unicodedata

    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not name or not name[0].isalpha():
        name = f"job-{name}".strip("-")
    return name[:_NAME_WIDTH].rstrip("-")


@frozen(kw_only=True)
class Secret:
    """A secret value that no text of this library shows. `value` is None until it is supplied.

    It pickles with its value, so that a plan can travel to another process; `to_dict` leaves the
    value out.
    """

    value: str | None = field(default=None, repr=False)

    def __plain__(self) -> None:
        return None

    @classmethod
    def __parse__(cls, value: object) -> "Secret":
        if isinstance(value, Secret):
            return value
        if value is not None and not isinstance(value, str):
            raise SpecError("a secret is text, or null where it is supplied at launch")
        if value is not None and "\0" in value:
            raise SpecError("a secret holds no NUL byte")
        return cls(value=value)

    def __str__(self) -> str:
        return "<secret>"


@frozen(kw_only=True)
class PythonCall:
    """A Python function with its arguments, packed by cloudpickle to run on every node."""

    name: str
    payload: bytes = field(repr=False)

    @classmethod
    def of(
        cls, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> "PythonCall":
        """Packs a call. Raises `MissingExtraError` without cloudpickle, `SpecError` if it can't."""
        try:
            import cloudpickle
        except ImportError as exc:
            raise MissingExtraError("a Python function as Task.run", extra="functions") from exc
        name = getattr(function, "__qualname__", type(function).__name__)
        try:
            dumps: Callable[[object], bytes] = cloudpickle.dumps  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # untyped
            payload = dumps((function, args, kwargs))
        except Exception as exc:
            raise SpecError(f"{name} cannot be shipped: {exc}") from exc
        return cls(name=name, payload=payload)

    def __plain__(self) -> dict[str, str]:
        import base64

        return {"name": self.name, "payload": base64.b64encode(self.payload).decode("ascii")}


def _run(value: object) -> str | tuple[str, ...] | PythonCall:
    if isinstance(value, PythonCall):
        return value
    if isinstance(value, str):
        if not value.strip():
            raise SpecError("nothing to run: the text is empty")
        return _no_nul(value)
    if isinstance(value, Mapping):
        return _call_from_dict(cast("Mapping[str, object]", value))
    if callable(value):
        return PythonCall.of(value)
    if isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        if not items:
            raise SpecError("nothing to run: the argument list is empty")
        wrong = [f"[{i}]" for i, item in enumerate(items) if not isinstance(item, str)]
        if wrong:
            raise SpecError([Problem(path=path, message="an argument is text") for path in wrong])
        return tuple(_no_nul(cast("str", item)) for item in items)
    raise SpecError(f"{shown(value)} is not shell text, an argument list or a function")


def _call_from_dict(value: Mapping[str, object]) -> PythonCall:
    import base64
    import binascii

    name, payload = value.get("name"), value.get("payload")
    if set(value) == {"name", "payload"} and isinstance(name, str) and isinstance(payload, str):
        try:
            return PythonCall(name=name, payload=base64.b64decode(payload, validate=True))
        except binascii.Error:
            pass
    raise SpecError("a packed function has name, and payload in base64")


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise SpecError("a NUL byte cannot be part of a command")
    return text


def _setup(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise SpecError(f"expected shell text, found {type(value).__name__}")
    return _no_nul(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{shown(value)} is not a name")
    return value


def _nodes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_NODES:
        raise SpecError(f"{shown(value)} is not a number of nodes from 1 to {_MAX_NODES}")
    return value


def _restarts(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(f"{shown(value)} is not a number of restarts, 0 or more")
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise SpecError(f"{shown(value)} is not a number of seconds above 0")
    return float(value)


def _pairs(value: object, *, what: str) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise SpecError(f"expected a mapping of {what}, found {type(value).__name__}")
    return list(cast("Mapping[str, object]", value).items())


def _variables(value: object) -> FrozenDict[str, str]:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name, item in _pairs(value, what="environment variables"):
        fault = _variable_fault(name)
        if fault is None and isinstance(item, bool):
            fault = f"{shown(item)} is ambiguous as text: write it in quotes"
        if fault is None and not isinstance(item, str | int | float):
            fault = f"a value is text or a number, found {type(item).__name__}"
        text = "" if fault is not None else _variable_text(item)
        if fault is None and (text is None or "\0" in text):
            fault = "a value holds no NUL byte" if text else "a number of too many digits"
        if fault is None:
            found[name] = text or ""
        else:
            problems.append(Problem(path=str(name), message=fault))
    if problems:
        raise SpecError(problems)
    return FrozenDict(found)


def _variable_text(item: object) -> str | None:
    try:
        return str(item)
    except ValueError:  # Python writes no number of more than 4300 digits
        return None


def _variable_fault(name: object) -> str | None:
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        return "not the name of a variable: letters, digits and _, no digit first"
    if name.startswith("GPUFABRIC_"):
        return "names that start with GPUFABRIC_ are set by the library"
    return None


def _secrets(value: object) -> FrozenDict[str, Secret]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        names = cast("Sequence[object]", value)
        wrong = [f"[{i}]" for i, name in enumerate(names) if not isinstance(name, str)]
        if wrong:
            raise SpecError([Problem(path=path, message="a name is text") for path in wrong])
        value = dict.fromkeys(cast("Sequence[str]", value))
    found: dict[str, Secret] = {}
    problems: list[Problem] = []
    for name, item in _pairs(value, what="secrets"):
        fault = _variable_fault(name)
        if fault is not None:
            problems.append(Problem(path=str(name), message=fault))
            continue
        try:
            found[name] = Secret.__parse__(item)
        except SpecError as exc:
            problems.extend(exc.under(name))
    if problems:
        raise SpecError(problems)
    return FrozenDict(found)


def _files(value: object) -> FrozenDict[str, str]:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name, item in _pairs(value, what="path to text"):
        path = str(name)
        parts = path.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or "\0" in path:
            problems.append(Problem(path=path, message="not a path below the work folder"))
        elif not isinstance(item, str):
            problems.append(Problem(path=path, message="the content of a file is text"))
        else:
            found[path] = item
    for path in found:
        above = next((other for other in found if path.startswith(f"{other}/")), None)
        if above is not None:
            problems.append(Problem(path=path, message=f"{above} is a file, not a folder"))
    if problems:
        raise SpecError(problems)
    return FrozenDict(found)


def _ports(value: object) -> tuple[int, ...]:
    items: Sequence[object] = (
        cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)
    )
    wrong = [
        Problem(path=f"[{i}]", message=f"{shown(port)} is not a port from 1 to 65535")
        for i, port in enumerate(items)
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535
    ]
    if wrong:
        raise SpecError(wrong)
    return tuple(cast("Sequence[int]", items))


def _workdir(value: object) -> str | None:
    import os

    if value is None:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if not isinstance(value, str) or not value:
        raise SpecError(f"{shown(value)} is not a folder")
    if "\0" in value:
        raise SpecError("a path holds no NUL byte")
    return value


def _volumes(value: object) -> FrozenDict[str, str]:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for path, name in _pairs(value, what="path to volume"):
        if not str(path).startswith("/"):
            problems.append(Problem(path=str(path), message="a mount path starts with /"))
        elif not isinstance(name, str) or not name:
            problems.append(
                Problem(path=str(path), message=f"{shown(name)} is not a volume's name")
            )
        else:
            found[str(path)] = name
    if problems:
        raise SpecError(problems)
    return FrozenDict(found)


def _resources(value: object) -> Resources:
    if isinstance(value, Resources):
        return value
    if value is None:
        return Resources()
    if isinstance(value, Mapping):
        from gpufabric._convert import structure

        return structure(Resources, cast("Mapping[str, object]", value))
    raise SpecError(f"{shown(value)} is not Resources")


@frozen(kw_only=True)
class Task:
    """A command that runs on every node of a gang, and what each node needs.

    Fields:
        name: for people; made safe for the place by `safe_name`.
        run: shell text, an argument list, or a function (`PythonCall.of(f, x)` for arguments).
        setup: shell text that runs on every node before `run`, also after a restart.
        workdir: local folder, a copy of which is the work folder of every node.
        files: small text files laid into the work folder, by path below it.
        num_nodes: the size of the gang.
        resources: what each node needs.
        envs: environment variables; they win over those of the network plan.
        secrets: like `envs`, never shown; a null value must be supplied before launch.
        ports: TCP ports that the task serves.
        volumes: mount path on the node to the volume's name.
        timeout_s: the longest the gang may run, restarts included.
        max_restarts: how often the whole gang may start again after a failure.
    """

    run: str | tuple[str, ...] | PythonCall = field(converter=_run)
    name: str = field(default="task", converter=_name)
    setup: str | None = field(default=None, converter=_setup)
    workdir: str | None = field(default=None, converter=_workdir)
    files: FrozenDict[str, str] = field(factory=FrozenDict[str, str], converter=_files)
    num_nodes: int = field(default=1, converter=_nodes)
    resources: Resources = field(factory=Resources, converter=_resources)
    envs: FrozenDict[str, str] = field(factory=FrozenDict[str, str], converter=_variables)
    secrets: FrozenDict[str, Secret] = field(factory=FrozenDict[str, Secret], converter=_secrets)
    ports: tuple[int, ...] = field(default=(), converter=_ports)
    volumes: FrozenDict[str, str] = field(factory=FrozenDict[str, str], converter=_volumes)
    timeout_s: float | None = field(default=None, converter=_seconds)
    max_restarts: int = field(default=0, converter=_restarts)

    def __attrs_post_init__(self) -> None:
        both = sorted(set(self.envs) & set(self.secrets))
        if both:
            raise SpecError(
                [Problem(path=f"secrets.{name}", message="is in envs too") for name in both]
            )

    @property
    def safe_name(self) -> str:
        """The name in the form that every cloud takes."""
        return safe_name(self.name)

    def to_dict(self, *, reveal_secrets: bool = False) -> dict[str, object]:
        """JSON-safe data with `schema`. The values of secrets are null unless asked for."""
        from gpufabric._convert import to_dict

        body = to_dict(self)
        if reveal_secrets and self.secrets:
            body["secrets"] = {name: secret.value for name, secret in self.secrets.items()}
        return body

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Task":
        """Builds it from plain data. Raises `SpecError` with every fault and its path."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def to_yaml(self) -> str:
        """The same as `to_dict`, as YAML."""
        from gpufabric._yaml import dump

        return dump(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str) -> "Task":
        """Builds it from YAML text. Raises `SpecError`; each fault has its line."""
        from gpufabric._yaml import load_value

        return load_value(cls, text)
