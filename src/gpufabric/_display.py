"""Tables for people: plain text and HTML. No I/O, no dependency."""

from collections.abc import Sequence
from html import escape

__all__ = ["html_table", "one_line", "text_table"]


def one_line(text: str, width: int = 200) -> str:
    """Gives `text` on one line of at most `width` characters, control characters shown escaped."""
    flat = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lays rows out in columns; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max([len(header), *(len(row[i]) for row in cells)]) for i, header in enumerate(headers)
    ]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(headers))
    ]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join([line(headers), line(["-" * w for w in widths]), *map(line, cells)])


_SORT = (
    "var h=event.target.closest('th');if(h){"
    "var i=h.cellIndex,d=h.getAttribute('aria-sort')=='ascending'?-1:1,"
    "b=this.parentNode.tBodies[0],"
    "k=function(r){var t=r.cells[i].textContent.trim(),n=t==''?NaN:Number(t);"
    "return isNaN(n)?[1,t]:[0,n]};"
    "this.querySelectorAll('th').forEach(function(t){t.removeAttribute('aria-sort')});"
    "h.setAttribute('aria-sort',d==1?'ascending':'descending');"
    "Array.from(b.rows).sort(function(x,y){var p=k(x),q=k(y);"
    "return p[0]!=q[0]?p[0]-q[0]:d*(p[0]?p[1].localeCompare(q[1]):p[1]-q[1])})"
    ".forEach(function(r){b.appendChild(r)})}"
)
"""What a click on a header does: sorts the rows, numbers before words (`unknown` stays last)."""


def html_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str = ""
) -> str:
    """A plain HTML table, every cell escaped. A click on a header sorts it where scripts may run.

    The sort is one attribute of the head, which notebooks that are not trusted strip: no script
    element, no file from elsewhere, the same text for the same rows.
    """
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<table class="gpufabric">{title}'
        f'<thead onclick="{_SORT}"><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
