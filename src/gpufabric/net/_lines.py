"""Lines of text as every reader of this package sees them, and the one place that cleans them.

Launchers, collectors and terminals put things around a line: a rank tag, a time stamp, a pod
name, colours, a quote sign, a JSON envelope. They are taken off here and nowhere else, so a
reader only knows its own format. What was taken off is kept: ``prefix`` tells two interleaved
streams apart, ``time`` is the text of the first time stamp.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINE: Final = 64 * 1024
"""Characters of one line that are looked at; the rest of a longer line is cut off."""

_MAX_ROUNDS: Final = 8  # launcher, collector, pod and rank tags stack; more is not a prefix
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
# "[36m" without its ESC: some collectors drop control bytes and leave the rest.
_BARE_ANSI = re.compile(r"\[(?:[0-9]{1,3}(?:;[0-9]{1,3})*)?m")

_LONG: Final = 1_000
# Python refuses to convert thousands of digits; no number of a log has so many.
_ENDLESS_NUMBER = re.compile(r"[0-9]{1000,}")

_DATE: Final = r"\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?"
_STAMP: Final = _DATE + r"(?:Z|[ ]?[+-]\d\d:?\d\d|[ ]UTC)?"
_WEEKDAY: Final = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_PREFIXES: Final = (
    rf"(?P<time1>{_STAMP})(?:[ \t]+\|[ \t]+|[ \t]|$)",  # kubectl --timestamps, collectors
    rf"\|[ \t]+(?P<time2>{_STAMP})[ \t]+\|[ \t]?",  # CloudWatch export
    r"(?P<time5>[A-Z][a-z]{2} [ \d]\d [\d:]{8}) [\w.-]+ [\w./-]+\[\d+\]: ?",  # journald, syslog
    rf"(?P<time3>{_WEEKDAY} [A-Z][a-z]{{2}} +\d+ [\d:]{{8}} \d{{4}})(?=[\[<])",  # mpirun's
    # Open MPI, PRRTE
    r"(?P<tag1>\[(?:[\w.@-]*\d,\d+|[\w.-]+@\d+,\d+)\]<std(?:out|err|diag)>): ?",
    r"(?P<tag8>\[\d+,mpirank:\d+,[\w.-]+\]<std(?:out|err)>): ?",  # SageMaker
    r"(?P<tag2>\[[A-Za-z_]+\d+\]):[ ]?",  # torch.distributed: [rank0], torchrun: [default0]
    r"(?P<tag3>\[pod/[^\]\s]+\])[ ]?",  # kubectl logs --prefix
    r"(?P<tag4>\((?:[\w.-]+, )?(?:rank=\d+, )?pid=\s*\d+(?:, ip=[\w.:]+)?\))[ ]?",  # SkyPilot
    # Ray, vLLM
    r"(?P<tag5>\([A-Za-z_]\w*(?:\.\w+)*(?: \w+)?(?: rank=\d+)? pid=\d+(?:, ip=[\w.:]+)?\))[ ]?",
    # MPICH -prepend-rank, line numbers of a viewer
    r"(?P<tag6>\[\d+\]) (?=#|\s*\d+\s+\d+|\S+:\d+:\d+ |NCCL |\[(?:rank|default)\d)",
    r"(?P<tag7>\d+): ?(?=#|\s|\S+:\d+:\d+ |NCCL |[A-Za-z<'/\[])",  # srun --label
    r"(?P<quote>[>│┃║] ?)",
)
_PREFIX = re.compile(r"\s*(?:" + "|".join(_PREFIXES) + ")")
# "node-1: text" (pdsh, DeepSpeed) looks like "State: Active" of ibstat: the name needs a digit,
# starts the line, and what follows must be the start of something read here.
_HOST_LABEL = re.compile(
    r"(?P<tag>(?=[A-Za-z.-]*\d)[A-Za-z0-9][A-Za-z0-9.-]*):[ ]"
    r"(?=\#|\s*\d+\s+\d+\s|[\w.<>\[\]-]+:\d+:\d+\ |NCCL\ |CA\ '|\t|hca_id:|<|\[rank\d|GPU\d"
    r"|\[\d{4}-|\s*$)"
)
# stern: "pod-name container text"; only where an NCCL frame or a table line follows.
_STERN = re.compile(
    r"(?P<tag>[a-z0-9][a-z0-9.-]*-[a-z0-9.-]+\ [a-z0-9][a-z0-9-]*)\ "
    r"(?=\#|\s*\d+\s+\d+\s|[\w.<>\[\]-]+:\d+:\d+\ |NCCL\ )"
)
_BOX_END = re.compile(r"[ \t]*[│┃║][ \t]*$")
_JSON_STRING = re.compile(
    r'\s*"(?:message|log|msg|textPayload)"\s*:\s*("(?:[^"\\]|\\.)*")\s*,?\s*$'
)
_ENVELOPE_KEYS: Final = ("log", "message", "msg", "textPayload", "@message", "line", "body")
_MAYBE_PREFIX: Final = frozenset("[(>|│┃║0123456789 \tJFMASONDTW")


class Line:
    """One cleaned line: its number in the source, its text, and what stood in front of it."""

    __slots__ = ("lineno", "prefix", "text", "time")

    def __init__(
        self, lineno: int, text: str, prefix: str | None = None, time: str | None = None
    ) -> None:
        self.lineno = lineno
        self.text = text
        self.prefix = prefix
        self.time = time

    def __repr__(self) -> str:
        return f"Line({self.lineno}, {self.text!r}, prefix={self.prefix!r}, time={self.time!r})"


class Reader(Protocol):
    """One format. It is fed every line that no earlier reader took, and answers at the end.

    ``feed`` says whether the line is of this format and must turn other formats' lines away
    cheaply. A reader keeps its own state small: what it holds may not grow with the text.
    ``result`` maps names of ``NetReport``'s parts (``devices``, ``topology``, ``errors``, ...)
    to their values; ``unread`` there is a tuple of ``Unread``, the lines that looked like this
    format and could not be read, and ``unread_count`` how many there were.
    """

    name: ClassVar[str]
    kind: ClassVar[str]

    def feed(self, line: Line, /) -> bool: ...
    def close(self) -> None: ...
    def result(self) -> Mapping[str, object]: ...


def clean(raw: str, lineno: int) -> Line:
    """The line without colours, quoting, launcher tags, time stamps and envelopes."""
    text = strip_marks(raw)
    time: str | None = None
    tags: list[str] = []
    if text and text[0] in "{ \t" and '"' in text:
        text, time = _unwrapped(text)
    for _ in range(_MAX_ROUNDS):
        if not text:
            break
        match = _PREFIX.match(text) if text[0] in _MAYBE_PREFIX else None
        if match is None:
            match = _HOST_LABEL.match(text) or _STERN.match(text)
        if match is None:
            break
        text = text[match.end() :]
        kind = match.lastgroup or ""
        if kind.startswith("time"):
            time = time or match[kind]
        elif kind == "quote":
            if match[kind].strip() != ">":
                text = _BOX_END.sub("", text)
        else:
            tags.append(match[kind])
    return Line(lineno, text, " ".join(tags) or None, time)


def strip_marks(raw: str) -> str:
    """The text without line end, NUL bytes, byte order mark and colours."""
    text = raw[:MAX_LINE].rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\x00" in text or "\ufeff" in text:
        text = text.replace("\x00", "").replace("\ufeff", "")
    if "m" in text and "[" in text:
        text = _BARE_ANSI.sub("", text)
    if len(text) > _LONG:
        text = _ENDLESS_NUMBER.sub("#", text)
    return text


def _unwrapped(text: str) -> tuple[str, str | None]:
    """The message inside a JSON log line (docker, CloudWatch, Cloud Logging), or the text."""
    line = _JSON_STRING.match(text)
    source = line[1] if line else text.strip()
    if not line and not (source.startswith("{") and source.endswith("}")):
        return text, None
    try:
        value: object = json.loads(source)
    except (ValueError, RecursionError):
        return text, None
    if isinstance(value, str):
        return strip_marks(value), None
    if not isinstance(value, dict):
        return text, None
    envelope = cast("dict[str, object]", value)
    message = next((envelope[k] for k in _ENVELOPE_KEYS if isinstance(envelope.get(k), str)), None)
    if message is None:
        return text, None
    time = envelope.get("time", envelope.get("timestamp"))
    return strip_marks(cast("str", message)), time if isinstance(time, str) else None
