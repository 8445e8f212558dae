"""Errors: typed by remedy, with what was asked and found, and able to travel."""

import copy
import inspect
import pickle

import cloudpickle
import pytest

from gpufabric import errors
from gpufabric.errors import (
    BackendError,
    CapacityError,
    GpuFabricError,
    JobError,
    JobFailedError,
    JobTimeoutError,
    MissingExtraError,
    ParseError,
    PlacementError,
    Problem,
    Remedy,
    SpecError,
    shown,
)
from gpufabric.job import JobRef

REF = JobRef(backend="fake", place="a/b", name="x-1")


def made(cls):  # noqa: PLR0911  # one return a kind of error
    if issubclass(cls, SpecError):
        return cls([Problem(path="a.b", message="wrong", line=3)], what="Task")
    if cls is MissingExtraError:
        return cls("the aws backend", extra="aws")
    if cls is ParseError:
        return cls("no table", lineno=7, text="x")
    if cls is PlacementError:
        return cls("nowhere", rejections=["r"], attempts=["a"])
    if cls is CapacityError:
        return cls("full", backend="aws", operation="launch", wanted=4, got=3, leftovers=["i-1"])
    if issubclass(cls, BackendError):
        return cls("no", backend="aws", operation="launch", leftovers=["i-1"], remedy="elsewhere")
    if issubclass(cls, JobFailedError):
        return cls("failed", ref=REF, exit_codes=[(0, 0), (1, None)], tail=["last"])
    if issubclass(cls, JobError):
        return cls("late", ref=REF)
    return cls("words")


CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, GpuFabricError)
]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("again", [
    lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301  # our own bytes
    lambda error: pickle.loads(cloudpickle.dumps(error)),  # noqa: S301  # our own bytes
    copy.copy,
    copy.deepcopy,
], ids=["pickle", "cloudpickle", "copy", "deepcopy"])  # fmt: skip
def test_an_error_travels_whole(cls, again):
    error = made(cls)
    error.add_note("a note")
    other = again(error)
    assert type(other) is cls
    assert str(other) == str(error)
    assert vars(other) == vars(error)
    assert other.args == error.args
    assert isinstance(other.remedy, str)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_has_a_remedy_and_is_in_all(cls):
    assert made(cls).remedy in set(Remedy)
    assert cls.__name__ in errors.__all__


def test_errors_are_also_what_python_calls_them():
    assert issubclass(SpecError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(JobTimeoutError, TimeoutError)


def test_a_missing_extra_says_what_to_install():
    assert str(made(MissingExtraError)) == "the aws backend needs: pip install 'gpufabric[aws]'"


def test_problems_say_line_path_and_fault():
    assert str(made(SpecError)) == "Task: line 3: a.b: wrong"
    assert [str(p) for p in SpecError("wrong").under("x")] == ["x: wrong"]
    inner = SpecError([Problem(path="[0]", message="wrong"), Problem(path="y", message="too")])
    assert [p.path for p in inner.under("x")] == ["x[0]", "x.y"]


def test_a_value_in_an_errors_text_is_short_whatever_it_is():
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert shown("x" * 1000) == "'" + "x" * 56 + "..."
    assert shown(deep) == shown(10**5000) == "that cannot be shown"
