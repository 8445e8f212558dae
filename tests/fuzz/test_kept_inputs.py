"""The inputs that fuzzing keeps, without the fuzzer: each is read, judged and printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_read import changed, kept, one_input  # after its folder

KEPT = kept()
SEED = 6
MANY = pytest.param(1_500, marks=pytest.mark.slow)  # 3.4 s of CPU; the first 200 are both's


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_input_is_read_and_no_line_is_lost(name: str) -> None:
    report = one_input(KEPT[name])
    assert report.kind
    if not report.notes:
        text = KEPT[name].decode("utf-8", "replace")
        assert report.lines == text.count("\n") + (not text.endswith("\n") and bool(text))


@pytest.mark.parametrize("count", [200, MANY])
def test_inputs_changed_blindly_are_read(count: int) -> None:
    for data in changed(count, SEED):
        assert one_input(data).lines >= 0, data
