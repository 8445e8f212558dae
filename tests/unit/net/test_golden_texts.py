"""Texts beside what must be read from them: tests/data/<format>/<case>.log and .json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpufabric import net

DATA = Path(__file__).parents[2] / "data"
CASES = sorted(
    path
    for folder in ("nccl_tests", "nccl_log", "torch_log")
    for path in (DATA / folder).glob("*.log")
)


def part(wanted: object, found: object) -> object:
    """Of what was found, the part that the case asks for, in its shape."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return {key: part(value, found.get(key, "missing")) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [part(one, other) for one, other in zip(wanted, found, strict=True)]
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_must_be_read_is_read(path: Path) -> None:
    wanted = json.loads(path.with_suffix(".json").read_text())["expect"]
    document = net.read(path).to_dict()
    assert part(wanted, document) == wanted


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_says_where_its_shape_is_from(path: Path) -> None:
    assert json.loads(path.with_suffix(".json").read_text())["origin"]


def test_there_are_cases_of_each_format() -> None:
    assert {path.parent.name for path in CASES} == {"nccl_tests", "nccl_log", "torch_log"}
