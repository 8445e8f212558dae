"""YAML: what was written is what is read, and every fault has its line."""

import pytest

import gpufabric as gf
from gpufabric.errors import SpecError


def fault(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        gf.Task.from_yaml(text)
    return str(caught.value)


def test_words_that_yaml_1_1_would_turn_into_others_stay_as_written():
    text = "run: x\nenvs: {V: 1.10, M: 0777, T: 12:30, D: 2026-11-30, N: no, E: 1e3, Z: 0x10}"
    assert gf.Task.from_yaml(text).envs == {
        "V": "1.10", "M": "0777", "T": "12:30", "D": "2026-11-30", "N": "no", "E": "1e3",
        "Z": "0x10",
    }  # fmt: skip


def test_numbers_are_plain_numbers():
    task = gf.Task.from_yaml("run: x\nnum_nodes: 2\ntimeout_s: 1e3\nresources: {cpus: 4}")
    assert (task.num_nodes, task.timeout_s) == (2, 1000.0)
    assert type(task.num_nodes) is int
    assert gf.Task.from_yaml(task.to_yaml()) == task


def test_true_is_ambiguous_for_a_variable_and_told_with_its_line():
    assert fault("run: x\nenvs:\n  A: true").startswith("Task: line 3: envs.A: True is ambiguous")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run: x\nnmae: y", "line 2: nmae: unknown field, did you mean name?"),
        ("run: x\nresources:\n  any_of:\n  - netwrk_tier: best",
         "line 4: resources.any_of[0].netwrk_tier: unknown field, did you mean network_tier?"),
        ("run: x\nrun: y", "line 2: run: written twice"),
        ("run: [", "line 1: not YAML"),
        ("? [a]\n: b", "unhashable key"),
        ("run: !!python/object:os.system x", "could not determine a constructor"),
        ("run: x\n---\nrun: y", "another document"),
        ("- 1", "expected a mapping of Task's fields, found list"),
        ("", "holds no document"),
        ("{}", "run: needed, but missing"),
        ("\0", "not YAML"),
        ("a: &a [*a]", "nested too deep"),
        ("[" * 5000, "nested more than 50 deep"),
        ("run: " + "9" * 5000, "not YAML that can be read"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line(text, told):
    assert told in fault(text)


def test_aliases_that_grow_without_bound_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "too large" in fault("\n".join(lines))


def test_an_alias_is_what_it_stands_for():
    text = "run: x\nenvs: &e {A: b}\nresources: {any_of: [&r {cpus: 1}, *r]}"
    task = gf.Task.from_yaml(text)
    assert len(task.resources.alternatives()) == 2
    assert "&" not in task.to_yaml()


def test_text_of_several_lines_is_a_block():
    assert gf.Task(run="set -e\necho hi\n").to_yaml() == (
        "schema: gpufabric/Task/1\nrun: |\n  set -e\n  echo hi\n"
    )
