"""A secret is in no text that the library makes."""

import copy
import json
import pickle

import pytest

import gpufabric as gf
from gpufabric.errors import SpecError
from gpufabric.task import Secret
from gpufabric.testing import FakeBackend

HUSH = "hush-9f3c"


@pytest.fixture
def task():
    return gf.Task(run="echo", secrets={"TOKEN": HUSH, "LATER": None})


def test_no_text_of_a_task_or_a_plan_shows_it(task):
    backend = FakeBackend()
    site = backend.discover()
    plan = backend.plan(task, backend.offers(task, site).offers[0], site)
    for text in (
        repr(task), str(task), json.dumps(task.to_dict()), task.to_yaml(), repr(task.secrets),
        str(task.secrets["TOKEN"]), f"{task.secrets['TOKEN']!r}", repr(plan), str(plan),
        plan.to_yaml(), json.dumps(plan.to_dict()), plan._repr_html_(), plan.diff(plan),
    ):  # fmt: skip
        assert HUSH not in text
    assert "TOKEN" in str(plan)


def test_it_is_given_where_it_is_asked_for(task):
    assert task.to_dict(reveal_secrets=True)["secrets"] == {"TOKEN": HUSH, "LATER": None}
    assert task.to_dict()["secrets"] == {"TOKEN": None, "LATER": None}


def test_it_travels_to_another_process(task):
    again = pickle.loads(pickle.dumps(task))  # noqa: S301  # our own bytes
    assert again == task == copy.deepcopy(task)
    assert again.secrets["TOKEN"].value == HUSH


def test_the_key_of_a_plan_does_not_depend_on_it():
    backend = FakeBackend()
    site = backend.discover()
    keys = set()
    for value in (HUSH, "other"):
        task = gf.Task(run="echo", secrets={"TOKEN": value})
        keys.add(backend.plan(task, backend.offers(task, site).offers[0], site).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"run": "x", "secrets": HUSH},
        {"run": "x", "secrets": {"TOKEN": {"value": HUSH}}},
        {"run": "x", "secrets": {"TOKEN": [HUSH]}},
        {"run": "x", "secrets": {"TOKEN": HUSH + "\0"}},
        {"run": "x", "secrets": {"1T": HUSH}},
        {"run": "x", "secret": {"TOKEN": HUSH}},
        {"run": "x", "secrets": {"TOKEN": HUSH}, "envs": {"TOKEN": "y"}},
        {"run": "", "secrets": {"TOKEN": HUSH}},
        f"TOKEN={HUSH}",
        [HUSH],
    ],
)
def test_no_error_shows_it(body):
    with pytest.raises(SpecError) as caught:
        gf.Task.from_dict(body)
    assert HUSH not in f"{caught.value} {caught.value!r} {caught.value.problems!r}"


@pytest.mark.parametrize("text", [
    f"run: x\nsecrets:\n  TOKEN: {HUSH}\nnmae: y",
    f"run: x\nsecrets:\n  TOKEN: [{HUSH}",
    f"run: x\nsecrets: {{TOKEN: {HUSH}}} }}",
    f"run: x\nsecrets: {HUSH}",
    HUSH,
])  # fmt: skip
def test_no_error_of_yaml_shows_it(text):
    with pytest.raises(SpecError) as caught:
        gf.Task.from_yaml(text)
    assert HUSH not in f"{caught.value} {caught.value!r}"


def test_a_secret_says_only_that_it_is_one():
    assert str(Secret(value=HUSH)) == "<secret>"
    assert repr(Secret(value=HUSH)) == "Secret()"
