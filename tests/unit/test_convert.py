"""Plain data to values: every fault at once, with its path and near miss."""

import json

import pytest

import gpufabric as gf
from gpufabric._convert import from_dict, near, to_dict
from gpufabric.backends.base import Pool, Site


def faults(cls: type, data: object) -> dict[str, str]:
    with pytest.raises(gf.SpecError) as caught:
        from_dict(cls, data)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_every_fault_is_told_with_its_path():
    found = faults(
        gf.Task,
        {
            "num_nodes": 0,
            "timeout": 5,
            "envs": {"A-B": "1"},
            "resources": {"netwrk_tier": "best", "cpus": "x", "places": ["aws", "a/b/c/d"]},
        },
    )
    assert set(found) == {
        "run", "num_nodes", "timeout", "envs.A-B",
        "resources.netwrk_tier", "resources.cpus", "resources.places[1]",
    }  # fmt: skip
    assert found["run"] == "needed, but missing"
    assert found["timeout"].endswith("did you mean timeout_s?")
    assert found["resources.netwrk_tier"].endswith("did you mean network_tier?")


def test_faults_deep_in_lists_have_their_index():
    pool = {"name": "a", "place": {"backend": "x"}, "platform": "vm", "gpus_free": [1, "two"]}
    assert faults(Site, {"backend": "x", "pools": [pool, {"name": 5}]}) == {
        "pools[0].gpus_free[1]": "expected a whole number, found str 'two'",
        "pools[1].name": "expected text, found int 5",
        "pools[1].place": "needed, but missing",
        "pools[1].platform": "needed, but missing",
    }


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("usd_hour", True, "expected a number, found bool True"),
        ("usd_hour", float("nan"), "expected a finite number"),
        ("usd_hour", 10**400, "expected a finite number"),
        ("nodes_total", 2.0, "expected a whole number, found float 2.0"),
        ("spot", 1, "expected true or false, found int 1"),
        ("labels", {1: "a"}, "a name must be text"),
        ("gpus_free", "123", "expected a list"),
        ("place", 5, "expected Place's fields, found int 5"),
    ],
)
def test_nothing_is_taken_for_what_it_is_not(field, value, told):
    body = {"name": "a", "place": {"backend": "x"}, "platform": "vm", field: value}
    assert any(told in message for message in faults(Pool, body).values())


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_what_is_no_mapping_is_refused_without_showing_it(data):
    assert "expected a mapping of Task's fields" in faults(gf.Task, data)[""]


def test_a_text_that_may_hold_a_secret_is_not_shown():
    assert "s3cr3t" not in faults(gf.Task, "s3cr3t")[""]


def test_data_of_another_schema_is_refused():
    assert "is not 'gpufabric/Task/1'" in faults(gf.Task, {"schema": "gpufabric/Task/2"})["schema"]


def test_data_nested_without_end_is_a_fault():
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    with pytest.raises(gf.SpecError):
        from_dict(gf.Task, {"run": "true", "resources": {"any_of": [deep]}})


def test_defaults_are_left_out_and_come_back():
    task = gf.Task(run="true", resources=gf.Resources(accelerators="H100:8"))
    assert to_dict(task) == {
        "schema": "gpufabric/Task/1",
        "run": "true",
        "resources": json.loads(json.dumps(to_dict(task)["resources"])),
    }
    assert from_dict(gf.Task, to_dict(task)) == task


@pytest.mark.parametrize(
    ("word", "hint"),
    [("bst", ", did you mean best?"), ("BEST", ", did you mean best?"), ("zzz", "")],
)
def test_a_near_miss_is_named_and_a_far_one_is_not(word, hint):
    assert near(word, ["best", "standard"]) == hint
