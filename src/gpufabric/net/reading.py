"""``read``: any text about a GPU network, of any kind and of several at once, into a report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import attrs

from gpufabric.net._causes import with_causes
from gpufabric.net._lines import Line, Reader, clean
from gpufabric.net._source import Source, Text
from gpufabric.net.nccl_log import NcclLogReader
from gpufabric.net.nccl_tests import NcclTestsReader
from gpufabric.net.records import Evidence, NetError, Unread
from gpufabric.net.report import NetReport

if TYPE_CHECKING:
    from gpufabric.net._nccl_frame import Who

_KEEP: Final = 100
_MAX_ERRORS: Final = 1_000
_MAX_JSON: Final = 16 * 1024 * 1024
_MAX_JSON_LINES: Final = 400_000
_BRACES = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}]')
_JSON_LINE = re.compile(r'\s*(?:["{}\[\],\-\d]|true|false|null|nan|inf)')
# What launchers and shells say around a run; not a program of its own.
_CHATTER = re.compile(
    r"\s*(?:Warning: Permanently added|\$ |\S{1,64}[@:]\S{0,256}[$#] |srun: |slurmstepd: "
    r"|mpirun|orterun|prterun|-{8,}|#|={4,}|```|Authorized users|The authenticity"
    r"|WARNING: Open MPI|\+ )"
)
# Signs that more than a prefix is around the text: JSON, a frame of lines, colours.
_ENVELOPED: Final = frozenset('{" \t|│┃║\x1b')
_ROW_STARTS: Final = frozenset(" 0123456789")
_TRACEBACK: Final = "Traceback (most recent call last)"


class JsonReader(Protocol):
    """A reader that also takes whole JSON documents found in the text."""

    def feed_json(self, document: Mapping[str, object], lineno: int, /) -> bool:
        """Takes the document if it is of this format."""
        ...


def read(source: Source, /) -> NetReport:
    """Reads a text and says what it holds; never raises on content.

    ``source`` is the text itself (``str`` or ``bytes``), a ``Path``, an open file, or any iterable
    of lines. It is read once, line by line, and not kept.
    """
    return _Reading(Text(source)).report()


def readers() -> list[Reader]:
    """One reader of each format, in the order in which they are asked."""
    from gpufabric.net._formats import other_readers

    return [NcclTestsReader(), NcclLogReader(), *other_readers()]


class _Reading:
    """One pass over one text."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._readers = readers()
        self._tests = cast("NcclTestsReader", self._readers[0])
        self._log = cast("NcclLogReader", self._readers[1])
        # Not isinstance: a protocol's costs more than reading a short text.
        self._json = [cast("JsonReader", r) for r in self._readers if hasattr(r, "feed_json")]
        self._used: dict[str, None] = {}
        self._lineno = 0
        self._foreign = 0
        self._chatter = 0
        self._traceback: Evidence | None = None
        self._document: list[str] = []
        self._document_size = 0
        self._document_depth = 0
        self._document_line = 0

    def report(self) -> NetReport:
        """Reads all of it and puts together what the readers found."""
        last: str | None = None
        for batch in self._text.batches():
            if last is not None:
                batch.insert(0, last)
            # The last line waits: only at the end is it known whether it was cut.
            last = batch.pop()
            self._lines(batch)
        if last is not None:
            self._lines([last], cut=self._text.ends_open)
        self._give_up_document()
        for reader in self._readers:
            reader.close()
        return self._assembled()

    # -- lines -----------------------------------------------------------------------------

    def _lines(self, batch: list[str], *, cut: bool = False) -> None:
        """The hot loop: a framed INFO line costs a search, two look-ups and a count."""
        lineno = self._lineno
        info, row = self._log.info, self._tests.row
        for raw in batch:
            lineno += 1
            at = raw.find(" NCCL INFO ") if not cut else -1
            if at > 0 and raw[0] not in _ENVELOPED:
                torn = info(raw, at, lineno)
                if torn is not None:
                    self._torn_row(torn, lineno)
            elif raw and (cut or raw[0] not in _ROW_STARTS or not row(raw, lineno)):
                self._line(raw, lineno, cut=cut)
        self._lineno = lineno

    def _torn_row(self, who: Who, lineno: int) -> None:
        self._tests.feed_torn(who.left or "", Line(lineno, "", who.prefix))

    def _line(self, raw: str, lineno: int, *, cut: bool) -> None:
        if "\r" in raw[:-1]:
            # A progress bar draws over itself: what was overdrawn counts as lines too.
            for part in raw.rstrip("\r").split("\r"):
                self._one(part, lineno, cut=cut)
        else:
            self._one(raw, lineno, cut=cut)

    def _one(self, raw: str, lineno: int, *, cut: bool) -> None:
        line = clean(raw, lineno)
        text = line.text
        if (self._document or text.lstrip()[:1] == "{") and self._in_document(line):
            return
        self._dispatch(line, cut=cut)

    def _dispatch(self, line: Line, *, cut: bool = False) -> None:
        text = line.text
        if not text or text.isspace():
            for reader in self._readers:
                reader.feed(line)
            return
        if "NCCL " in text:
            if cut and self._log.feed_cut(line):
                return
            at = text.find(" NCCL INFO ")
            if at > 0 and not cut:
                torn = self._log.info(text, at, line.lineno)
                if torn is not None:
                    self._torn_row(torn, line.lineno)
                return
        if cut and self._tests.feed_cut(line):
            self._used[self._tests.kind] = None
            return
        for reader in self._readers:
            if reader.feed(line):
                self._used[reader.kind] = None
                return
        self._other(text, line.lineno)

    def _other(self, text: str, lineno: int) -> None:
        if _CHATTER.match(text):
            self._chatter += 1
            return
        self._foreign += 1
        if self._traceback is None and _TRACEBACK in text:
            self._traceback = Evidence(lineno, text.strip()[:400])

    # -- JSON documents --------------------------------------------------------------------

    def _in_document(self, line: Line) -> bool:
        """Collects a JSON object that may span lines, and hands it over when it is whole."""
        text = line.text
        if self._document and not _JSON_LINE.match(text) and text.strip():
            self._give_up_document()
            return False
        if not self._document:
            self._document_line = line.lineno
        self._document.append(text)
        self._document_size += len(text)
        self._document_depth += _depth(text)
        if self._document_depth > 0:
            if self._document_size > _MAX_JSON or len(self._document) > _MAX_JSON_LINES:
                self._give_up_document()
            return True
        lines, first = self._document, self._document_line
        self._forget_document()
        value = _parsed("\n".join(lines))
        if isinstance(value, dict):
            document = cast("dict[str, object]", value)
            for reader in self._json:
                if reader.feed_json(document, first):
                    self._used[cast("Reader", reader).kind] = None
                    return True
        self._replay(lines, first)
        return True

    def _forget_document(self) -> None:
        self._document = []
        self._document_size = self._document_depth = 0

    def _give_up_document(self) -> None:
        """What began like JSON was none: its lines are read as lines."""
        lines, first = self._document, self._document_line
        self._forget_document()
        self._replay(lines, first)

    def _replay(self, lines: list[str], first: int) -> None:
        for offset, text in enumerate(lines):
            self._dispatch(Line(first + offset, text))

    # -- the answer ------------------------------------------------------------------------

    def _assembled(self) -> NetReport:
        parts: dict[str, object] = {}
        errors: list[NetError] = []
        unread: list[Unread] = []
        unread_count = errors_left_out = 0
        for reader in self._readers:
            result = dict(reader.result())
            errors += cast("tuple[NetError, ...]", result.pop("errors", ()))
            unread += cast("tuple[Unread, ...]", result.pop("unread", ()))
            unread_count += cast("int", result.pop("unread_count", 0))
            errors_left_out += cast("int", result.pop("errors_left_out", 0))
            for name, part in result.items():
                parts[name] = _merged(parts[name], part) if name in parts else part
        if self._log.framed or self._log.state.info_lines or self._log.state.warn_lines:
            self._used[self._log.kind] = None
        else:
            self._used.pop(self._log.kind, None)
        errors.sort(key=lambda error: error.evidence.lineno)
        kinds = tuple(self._used)
        return NetReport(
            kind=self._kind(kinds, parts),
            kinds=kinds,
            errors=with_causes(errors[:_MAX_ERRORS]),
            errors_left_out=errors_left_out + max(0, len(errors) - _MAX_ERRORS),
            traceback=self._traceback,
            unread=tuple(sorted(unread, key=lambda u: u.lineno)[:_KEEP]),
            unread_count=unread_count,
            foreign_lines=self._foreign,
            lines=self._lineno,
            notes=tuple(self._text.notes),
            **parts,  # type: ignore[arg-type]  # parts of NetReport, by the readers' protocol
        )

    def _kind(self, kinds: tuple[str, ...], parts: Mapping[str, object]) -> str:
        """One word for the text. A log with another program's lines in it is mixed."""
        failed = bool(parts.get("tests_failure")) and "nccl_tests" not in kinds
        if len(kinds) > 1 or (kinds and failed):
            return "mixed"
        if kinds == ("nccl_log",) and self._foreign:
            return "mixed"
        return kinds[0] if kinds else "unknown"


def _depth(text: str) -> int:
    """By how much a line opens more braces than it closes, strings aside."""
    depth = 0
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
    return depth


def _parsed(text: str) -> object:
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _merged(first: object, second: object) -> object:
    """Two readers' views of one part: what the first does not tell, the second may."""
    if isinstance(first, tuple):
        return cast("tuple[object, ...]", first) + cast("tuple[object, ...]", second)
    if type(first) is not type(second) or not attrs.has(type(first)):
        return first
    changes: dict[str, object] = {}
    for attribute in attrs.fields(type(first)):  # type: ignore[arg-type]  # an attrs class
        old = getattr(first, attribute.name)
        new = getattr(second, attribute.name)
        if old is None or old in ((), attribute.default):
            changes[attribute.name] = new
    return cast("object", attrs.evolve(cast("Any", first), **changes))
