"""Tables for people: plain text and static HTML. No I/O, no dependency."""

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


def html_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str = ""
) -> str:
    """A static HTML table; every cell escaped."""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<table class="gpufabric">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
