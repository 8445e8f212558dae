"""Quantities as users write them."""

import pytest

from gpufabric._units import AtLeast, parse_amount, parse_gib
from gpufabric.errors import SpecError


@pytest.mark.parametrize(
    ("text", "gib", "at_least"),
    [
        (64, 64, False), ("64", 64, False), ("64+", 64, True), (" 64 + ", 64, True),
        ("256GB", 256e9 / 2**30, False), ("256 gib+", 256, True), ("1TiB", 1024, False),
        ("1Ti", 1024, False), ("512MiB", 0.5, False), (0.5, 0.5, False),
        ("1.5TB", 1.5e12 / 2**30, False),
    ],
)  # fmt: skip
def test_sizes(text, gib, at_least):
    assert parse_gib(text) == AtLeast(amount=gib, at_least=at_least)


@pytest.mark.parametrize(
    "value",
    ["", "x", "-1", "0", "0GB", "8+8", "1e3", "8 XB", "inf", "nan", "٣", "1" * 400, True, None, [],
     0, -1, float("nan"), float("inf"), 10**400, b"8"],
)  # fmt: skip
def test_what_is_no_amount_is_refused(value):
    for parse in (parse_amount, parse_gib):
        with pytest.raises(SpecError):
            parse(value)


def test_an_unknown_unit_is_told_with_those_known():
    with pytest.raises(SpecError, match=r"unknown unit 'XB'; known: .*gib"):
        parse_gib("8XB")
    with pytest.raises(SpecError, match="unknown unit"):
        parse_amount("8GB")


def test_at_least_admits_more_and_an_amount_only_itself():
    assert parse_amount("8+").admits(9)
    assert not parse_amount("8+").admits(7)
    assert not parse_amount(8).admits(9)
    assert parse_amount(8).admits(8)
    assert not parse_amount("8+").admits(None)


def test_amounts_print_in_full():
    assert str(parse_amount(12345678)) == "12345678"
    assert str(parse_amount("0.00001+")) == "0.00001+"
    assert str(AtLeast(amount=1e17)) == "1" + "0" * 17
