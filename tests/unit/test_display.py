"""Tables and lines for people."""

from html import escape

import pytest

from gpufabric._display import html_table, one_line, text_table


def test_numbers_stand_at_the_right_and_words_at_the_left():
    assert text_table(("n", "word"), [(5, "a"), (12345, "bb")]) == (
        "    n  word\n-----  ----\n    5  a\n12345  bb"
    )


def test_a_column_with_one_word_is_all_words():
    assert text_table(("n",), [(5,), ("unknown",)]).splitlines()[2] == "5"


def test_a_table_without_rows_is_its_head():
    assert text_table(("a", "bb"), []) == "a  bb\n-  --"


def test_a_row_of_another_length_is_a_fault():
    with pytest.raises(ValueError, match="zip"):
        text_table(("a", "b"), [(1, 2, 3)])


@pytest.mark.parametrize("hostile", ["<script>", '"><img src=x>', "&amp;"])
def test_html_shows_every_cell_as_text(hostile):
    html = html_table((hostile,), [(hostile,)], caption=hostile)
    assert html.count(f">{escape(hostile)}<") == 3


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x1b[2Jb", "a\u202eb", "a\u2028b", "a\0b"])
def test_one_line_shows_what_would_move_the_cursor(text):
    shown = one_line(text)
    assert shown.isprintable()
    assert shown.startswith("a")
    assert shown.endswith("b")


def test_one_line_is_cut_with_a_mark():
    assert one_line("x" * 300, 10) == "x" * 9 + "…"
    assert one_line("x" * 10, 10) == "x" * 10
