"""Every error of the library, typed by what to do about it.

A message says what was asked, what was found and what to do next. The failover loop reads
`remedy` and nothing else.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from attrs import evolve, field, frozen

__all__ = [
    "BackendError",
    "CapacityError",
    "CatalogError",
    "ConfigError",
    "ConflictError",
    "CredentialsError",
    "GpuFabricError",
    "JobError",
    "JobFailedError",
    "JobTimeoutError",
    "MissingExtraError",
    "NotFoundError",
    "ParseError",
    "PlacementError",
    "Problem",
    "QuotaError",
    "Remedy",
    "SpecError",
    "TransientError",
    "shown",
]


class Remedy(StrEnum):
    """What a caller can do about an error."""

    FIX_REQUEST = "fix-request"
    FIX_SETUP = "fix-setup"
    RETRY = "retry"
    ELSEWHERE = "elsewhere"


@frozen(kw_only=True)
class Problem:
    """One fault in what was asked: where (`resources.network_tier`), and what is wrong."""

    path: str
    message: str
    line: int | None = field(default=None)

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


def shown(value: object) -> str:
    """Gives `value` for an error's text: short, and whatever it is."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep; a number of too many digits
        return "that cannot be shown"
    return text if len(text) <= 60 else text[:57] + "..."


def _joined(path: str, name: str) -> str:
    if not path or not name:
        return path or name
    return path + name if name.startswith("[") else f"{path}.{name}"


def _rebuild(cls: type["GpuFabricError"], message: str, state: dict[str, object]) -> object:
    error = cls.__new__(cls)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class GpuFabricError(Exception):
    """The root of all errors of gpufabric."""

    default_remedy: ClassVar[Remedy] = Remedy.FIX_REQUEST
    remedy: Remedy

    def __init__(self, message: str, *, remedy: Remedy | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy if remedy is not None else self.default_remedy

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), dict(self.__dict__)))


class SpecError(GpuFabricError, ValueError):
    """What was asked is wrong; `problems` lists every fault, each with its path."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: Sequence[Problem] | str, *, what: str = "") -> None:
        if isinstance(problems, str):
            problems = (Problem(path="", message=problems),)
        self.problems = tuple(problems)
        text = "; ".join(str(problem) for problem in self.problems)
        super().__init__(f"{what}: {text}" if what else text)

    def under(self, path: str) -> tuple[Problem, ...]:
        """The problems, with `path` before the path of each."""
        return tuple(evolve(p, path=_joined(path, p.path)) for p in self.problems)


class ConfigError(GpuFabricError):
    """A setting or the composition of a fabric is wrong."""

    default_remedy = Remedy.FIX_SETUP


class MissingExtraError(GpuFabricError, ImportError):
    """An optional package is needed: the message has the `pip install` line."""

    default_remedy = Remedy.FIX_SETUP

    def __init__(self, needed_by: str, *, extra: str) -> None:
        super().__init__(f"{needed_by} needs: pip install 'gpufabric[{extra}]'")
        self.extra = extra


class CatalogError(GpuFabricError):
    """A catalog file is wrong: the message names file, row and field."""

    default_remedy = Remedy.FIX_SETUP


class ParseError(GpuFabricError):
    """Text that should be readable is not; `lineno` and `text` say where."""

    def __init__(self, message: str, *, lineno: int | None = None, text: str = "") -> None:
        super().__init__(message if lineno is None else f"line {lineno}: {message}")
        self.lineno = lineno
        self.text = text


class PlacementError(GpuFabricError):
    """No place could take the task: every rejection, and every attempt that failed."""

    default_remedy = Remedy.ELSEWHERE

    def __init__(
        self, message: str, *, rejections: Sequence[object] = (), attempts: Sequence[object] = ()
    ) -> None:
        super().__init__(message)
        self.rejections = tuple(rejections)
        self.attempts = tuple(attempts)


class BackendError(GpuFabricError):
    """A backend refused or failed; `leftovers` names what could not be removed again."""

    default_remedy = Remedy.FIX_SETUP

    def __init__(
        self,
        message: str,
        *,
        backend: str,
        operation: str,
        leftovers: Sequence[str] = (),
        remedy: Remedy | None = None,
    ) -> None:
        super().__init__(f"{backend} {operation}: {message}", remedy=remedy)
        self.backend = backend
        self.operation = operation
        self.leftovers = tuple(leftovers)


class CredentialsError(BackendError):
    """The credentials are missing, wrong, expired, or lack a permission."""


class QuotaError(BackendError):
    """The account may not have more."""

    default_remedy = Remedy.ELSEWHERE


class CapacityError(BackendError):
    """The provider has none left: `wanted` nodes, `got` of them before all were released."""

    default_remedy = Remedy.ELSEWHERE

    def __init__(  # noqa: PLR0913  # keyword-only facts of one error
        self,
        message: str,
        *,
        backend: str,
        operation: str,
        wanted: int | None = None,
        got: int | None = None,
        leftovers: Sequence[str] = (),
    ) -> None:
        super().__init__(message, backend=backend, operation=operation, leftovers=leftovers)
        self.wanted = wanted
        self.got = got


class TransientError(BackendError):
    """It may work the next time: throttled, timed out, connection lost."""

    default_remedy = Remedy.RETRY


class ConflictError(BackendError):
    """Something else with this name exists, or it changed meanwhile."""

    default_remedy = Remedy.FIX_REQUEST


class NotFoundError(BackendError):
    """What was named does not exist."""

    default_remedy = Remedy.FIX_REQUEST


class JobError(GpuFabricError):
    """A job ended badly; `ref` names it."""

    def __init__(self, message: str, *, ref: object) -> None:
        super().__init__(message)
        self.ref = ref


class JobFailedError(JobError):
    """The job failed: exit code by node rank, and the last lines of the first that failed."""

    def __init__(
        self,
        message: str,
        *,
        ref: object,
        exit_codes: Sequence[tuple[int, int | None]] = (),
        tail: Sequence[str] = (),
    ) -> None:
        super().__init__(message, ref=ref)
        self.exit_codes = dict(exit_codes)
        self.tail = tuple(tail)


class JobTimeoutError(JobError, TimeoutError):
    """The job ran, or was waited for, longer than allowed."""

    default_remedy = Remedy.RETRY
