"""The frame around NCCL's text: HOST:PID:TID [DEV] file.cc:LINE NCCL LEVEL."""

from __future__ import annotations

import re
from typing import Final

from gpufabric.net._lines import clean

_FRAME = re.compile(
    r"(?:(?P<label>[\w.-]+) >> )?(?:\[[\d :.-]+\] )?"
    r"(?P<host>[^\s:/]*):(?P<pid>\d+):(?P<tid>\d+)"
    # Behind the device stands a source file, or a plugin's function with its whole signature.
    r"(?:\s*$| \[(?P<dev>-?\d+)\](?: .*)?$)"
)
NEXT_FRAME = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] )?(?P<host>[^\s:]+):\d+:\d+ (?:\[-?\d+\] )?"
    r"(?:\S+:\d+ )?(?:\(\w+\) )?NCCL (?:INFO|WARN|TRACE|CALL) "
)
_OWN_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d[ _T]\d\d:\d\d:\d\d(?:\.\d+)?)\]\s*$")
# A row of an nccl-tests table whose rest comes later, with NCCL's line printed behind it.
_TORN_ROW = re.compile(r"(\s*\d+\s+\d+\s+[a-z][a-z0-9_]*(?:\s+[a-z]+)?(?:\s+(?:-1|\d))?)(?=\S)")
_TORN_HALF = re.compile(r"((?:\s+\d+(?:\.\d+)?){3}\s+(?:\d|N/A))(?=[^\s\d.])")
MAX_HEADS: Final = 24_576


class Who:
    """Who printed a line, and what stood before the frame."""

    __slots__ = ("dev", "host", "key", "left", "pid", "prefix", "seen", "time")

    def __init__(self, host: str | None) -> None:
        self.host = host
        self.pid: str | None = None
        self.key: str | None = None
        """The thread: pid:tid with the host."""
        self.dev: int | None = None
        self.prefix: str | None = None
        self.time: str | None = None
        self.left: str | None = None
        """The start of a table row that stood in front of the frame."""
        self.seen: set[str] = set()
        """Texts this host said before, shared by all its threads."""


def who_of(head: str, lineno: int) -> Who:
    """Takes the part of a line in front of "NCCL INFO" apart."""
    left = None
    torn = _TORN_ROW.match(head) if head[:1].isspace() or head[:1].isdecimal() else None
    torn = torn or (_TORN_HALF.match(head) if head[:1].isspace() else None)
    if torn and _FRAME.search(head, torn.end()):
        left, head = torn[1], head[torn.end() :]
        half = _TORN_HALF.match(head)
        if half:
            left, head = left + half[1], head[half.end() :]
    line = clean(head, lineno)
    match = _FRAME.search(line.text)
    if match is None:
        who = Who(None)
        who.prefix, who.time, who.left = line.prefix, line.time, left
        return who
    # Some frames have lost their host name; a collector's label in front names it then.
    host = match["host"] or match["label"]
    who = Who(host)
    who.pid = match["pid"]
    who.key = f"{host}:{match['pid']}:{match['tid']}"
    who.dev = int(match["dev"][:9]) if match["dev"] else None
    who.prefix = line.prefix
    own = _OWN_TIME.search(line.text, 0, match.start("host"))
    who.time = own[1] if own else line.time
    who.left = left
    return who
