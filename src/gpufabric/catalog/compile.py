"""Compiles `data/*.toml` to what is read at run time: `python -m gpufabric.catalog.compile`.

One file a cloud, four lines of JSON: a header, what resolving needs, what planning needs, and
what explaining needs; only the lines asked for are parsed. A test refuses a compiled file that
its TOML no longer makes.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpufabric.catalog.load import LINES, parse_text, read_raw

__all__ = ["compile_text", "main"]

DATA = Path(__file__).parent / "data"


def compile_text(text: str, origin: str) -> str:
    """The compiled form of one file's text. Raises `CatalogError` where the file is wrong."""
    raw = parse_text(text, origin)
    read_raw(raw, origin=origin, text=text)
    header = {"schema": 1, "cloud": raw["cloud"]["name"], "of": sha256(text.encode()).hexdigest()}
    lines = [header, *({t: raw[t] for t in tables if t in raw} for tables in LINES)]
    return "".join(f"{json.dumps(x, default=_iso, separators=(',', ':'))}\n" for x in lines)


def _iso(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} has no JSON form")


def main(argv: list[str] | None = None) -> int:
    """Compiles the named clouds' files, or all; the exit code is 0 unless one is wrong."""
    from gpufabric.errors import CatalogError

    names = sys.argv[1:] if argv is None else argv
    wrong = 0
    for path in sorted(DATA.glob("*.toml")):
        if names and path.stem not in names:
            continue
        try:
            made = compile_text(path.read_text(encoding="utf-8"), path.name)
        except CatalogError as exc:
            sys.stderr.write(f"{exc}\n")
            wrong += 1
            continue
        (DATA / "compiled").mkdir(exist_ok=True)
        (DATA / "compiled" / f"{path.stem}.jsonl").write_text(made, encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
