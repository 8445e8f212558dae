"""Plans that were reviewed against their sources stay what they were."""

import importlib.util
from pathlib import Path

import pytest

PLANS = Path(__file__).parents[2] / "data" / "plans"
_spec = importlib.util.spec_from_file_location("write_plans", PLANS / "write.py")
assert _spec is not None
assert _spec.loader is not None
write = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write)
CASES = write.cases()


@pytest.mark.parametrize(("cloud", "name", "asked"), CASES, ids=[f"{c}/{n}" for c, n, _ in CASES])
def test_a_plan_is_what_was_reviewed(cloud, name, asked):
    golden = PLANS / cloud / f"{name}.txt"
    assert write.planned(cloud, asked) == golden.read_text(encoding="utf-8"), (
        f"changed: python tests/data/plans/write.py {cloud}, and review the diff"
    )


def test_every_golden_file_has_its_case():
    named = {(cloud, name) for cloud, name, _ in CASES}
    assert {(path.parent.name, path.stem) for path in PLANS.glob("*/*.txt")} == named
