"""A click on a table's header sorts it; without scripts it is a plain table."""

import html
import json
import re
import shutil
import subprocess

import pytest

from gpufabric._display import html_table

ROWS = [("p5", 55.04, "best"), ("a3", "unknown", "best"), ("nd", 98, "standard"), ("h8", 9.5, "x")]
NODE = shutil.which("node")
HARNESS = """
const rows = INPUT.map(cells => ({cells: cells.map(t => ({textContent: t}))}));
const body = {rows: rows, appendChild: r => { order.push(r.cells[0].textContent); }};
let order = [];
const heads = rows[0].cells.map((_, i) => ({cellIndex: i, kept: {},
  getAttribute(n) { return this.kept[n] ?? null; }, setAttribute(n, v) { this.kept[n] = v; },
  removeAttribute(n) { delete this.kept[n]; }}));
const head = {parentNode: {tBodies: [body]}, querySelectorAll: () => heads};
const click = new Function('event', CODE);
const answers = CLICKS.map(i => {
  order = [];
  click.call(head, {target: {closest: () => heads[i]}});
  return [order, heads.map(h => h.getAttribute('aria-sort'))];
});
console.log(JSON.stringify(answers));
"""


def handler(table: str) -> str:
    found = re.search(r'onclick="([^"]*)"', table)
    assert found is not None
    return html.unescape(found[1])


def clicked(rows: list[tuple[object, ...]], *columns: int) -> list[tuple[list[str], list[str]]]:
    assert NODE is not None
    code = handler(html_table(["type", "price", "tier"], rows))
    script = (
        HARNESS.replace("INPUT", json.dumps([[str(cell) for cell in row] for row in rows]))
        .replace("CODE", json.dumps(code))
        .replace("CLICKS", json.dumps(columns))
    )
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(NODE is None, reason="node runs the handler as a browser would")


@needs_node
def test_numbers_are_sorted_as_numbers_and_unknown_stays_last_both_ways():
    up, down = clicked(ROWS, 1, 1)
    assert up[0] == ["h8", "p5", "nd", "a3"]
    assert down[0] == ["nd", "p5", "h8", "a3"]


@needs_node
def test_words_are_sorted_as_words_and_one_header_alone_is_marked():
    first, second = clicked(ROWS, 1, 0)
    assert first[1] == [None, "ascending", None]
    assert second == [["a3", "h8", "nd", "p5"], ["ascending", None, None]]


def test_a_table_needs_nothing_from_elsewhere_and_is_the_same_each_time():
    table = html_table(["a"], [("<b>",)])
    assert table == html_table(["a"], [("<b>",)])
    assert "<script" not in table
    assert not re.search(r"(src|href|https?:)", table)
    assert "<td>&lt;b&gt;</td>" in table


def test_without_its_handler_the_table_is_plain():
    plain = re.sub(r' onclick="[^"]*"', "", html_table(["a"], [(1,)], caption="c"))
    assert plain == (
        '<table class="gpufabric"><caption>c</caption><thead><tr><th>a</th></tr></thead>'
        "<tbody><tr><td>1</td></tr></tbody></table>"
    )
