"""FrozenDict: a value like any other."""

import copy
import pickle

import pytest

from gpufabric._frozen import FrozenDict, freeze, thaw


def test_it_is_equal_and_hashes_by_its_items_in_any_order():
    assert FrozenDict({"a": 1, "b": 2}) == FrozenDict({"b": 2, "a": 1}) == {"a": 1, "b": 2}
    assert hash(FrozenDict({"a": 1, "b": 2})) == hash(FrozenDict({"b": 2, "a": 1}))
    assert FrozenDict({"a": 1}) != FrozenDict({"a": 2})
    assert FrozenDict({"a": 1}) != [("a", 1)]
    assert FrozenDict() == FrozenDict({})


def test_it_cannot_be_changed_nor_by_what_it_was_made_of():
    source = {"a": 1}
    frozen = FrozenDict(source)
    source["a"] = 2
    assert frozen["a"] == 1
    for change in (
        lambda: setattr(frozen, "_items", {}),
        lambda: delattr(frozen, "_items"),
        lambda: frozen.__setitem__("a", 3),
    ):
        with pytest.raises(AttributeError):
            change()


def test_it_keeps_order_and_copies_and_pickles():
    frozen = FrozenDict({"b": 1, "a": (2,)})
    assert list(frozen) == ["b", "a"]
    assert copy.copy(frozen) is frozen
    assert copy.deepcopy(frozen) == frozen
    assert pickle.loads(pickle.dumps(frozen)) == frozen  # noqa: S301  # our own bytes
    assert repr(frozen) == "FrozenDict({'b': 1, 'a': (2,)})"


def test_what_cannot_be_hashed_makes_it_unhashable():
    with pytest.raises(TypeError):
        hash(FrozenDict({"a": [1]}))


def test_freezing_goes_all_the_way_down():
    value = {"a": [1, {"b": [2]}], "c": (3,)}
    frozen = freeze(value)
    assert hash(frozen) == hash(freeze(value))
    assert frozen == {"a": (1, {"b": (2,)}), "c": (3,)}
    assert thaw(frozen) == {"a": [1, {"b": [2]}], "c": [3]}
