"""NCCL's own log lines, INFO, WARN and TRACE, of every generation and plugin.

A job of a thousand ranks prints tens of millions of lines that say few things. So a line is first
looked up among what was seen before; only new things are taken apart. What is kept is bounded:
first examples with their line numbers, and counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric._frozen import evolve
from gpufabric.net._lines import Line, strip_marks
from gpufabric.net._nccl_errors import FOLLOW_UPS, Fault, fault_of
from gpufabric.net._nccl_frame import MAX_HEADS, NEXT_FRAME, Who, who_of
from gpufabric.net._nccl_log_patterns import HANDLERS, transport_of
from gpufabric.net._nccl_state import (
    LogState,
    clipped,
    error_of,
)
from gpufabric.net.records import Evidence, NetError, Unread

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ERRORS: Final = 1_000
_MAX_KEYS: Final = 4_096
_MAX_SEEN: Final = 100_000
_MAX_SEEN_TEXT: Final = 300
_KEEP: Final = 100
_LEVEL = re.compile(r"(?:^|\s)NCCL (WARN|INFO|TRACE|CALL) ")
# Lines that say nothing kept here, each time in other words: orders of ranks, single calls.
_SILENT: Final = (
    "Trees [",
    "Tree ",
    "AllReduce: ",
    "AllGather: ",
    "ReduceScatter: ",
    "Broadcast: ",
    "Reduce: ",
    "Send: ",
    "Recv: ",
    "AlltoAll: ",
)
# What NCCL prints below a warning, RCCL below its version, libfabric beside its plugin.
_COMPANIONS: Final = (
    "This is usually caused by",
    "Do not force-enable NVLS",
    "HIP version",
    "ROCm version",
    "Hostname ",
    "Librccl path",
    "libfabric:",
    "libibverbs: ",
)
_NO_EFA: Final = "fi_getinfo: provider efa output empty list"
_FRAGMENT = re.compile(r"(?:\bvia (?:NET|P2P|SHM)/|/GDRDMA\s*$|\d\] -> \d+\[)")
_VERSION_LINE = re.compile(r"(?:NCCL|RCCL) version\b")
_RETURN_CODE = re.compile(r"(\S+\.(?:cc|h|cu|c|cpp|hpp)):\d+ -> (\d+)")
# Texts that a cut could not have shortened into another: safe at the very end of a text.
_SURELY_WHOLE = re.compile(
    r"(?:GDRDMA|Init COMPLETE|Init START|Abort COMPLETE|Destroy COMPLETE"
    r"|Connected all (?:rings|trees)"
    r"|Using network (?:Socket|AWS Libfabric|Libfabric|FasTrak|FastSocket|gIB)"
    r"|for HCA \d+ '[^']+'|<\d+>|P2P/IPC|SHM/direct/direct|No device found\.)$"
)


class NcclLogReader:
    """Lines of the form "HOST:PID:TID [DEV] NCCL INFO ...", and NCCL's unframed ones."""

    name: ClassVar[str] = "nccl_log"
    kind: ClassVar[str] = "nccl_log"

    def __init__(self) -> None:
        self.state = LogState()
        self._heads: dict[str, Who] = {}
        self._host_seen: dict[str | None, set[str]] = {}
        self._seen_count = 0
        self._connections: dict[str, list[int]] = {}
        self._errors: list[NetError] = []
        self._error_at: dict[tuple[object, ...], int] = {}
        self._errors_left_out = 0
        self._last_error: dict[str | None, int] = {}
        self._unread: list[Unread] = []
        self._unread_count = 0
        self.framed = False
        """A framed line was seen: the text holds a NCCL log, not only a version line."""

    # -- feeding ---------------------------------------------------------------------------

    def info(self, raw: str, at: int, lineno: int) -> Who | None:
        """Takes an INFO line whose marker stands at ``at``; the hot path.

        Answers with the origin only where a torn table row stood in front of the frame.
        """
        head = raw[:at]
        who = self._heads.get(head)
        if who is None:
            who = self._new_head(head, lineno)
            if who.left is not None:
                self.state.info_lines += 1
                self._new_text(raw[at + 11 :].rstrip(), who, lineno, raw)
                return who
        body = raw[at + 11 :]
        self.state.info_lines += 1
        if body.startswith("Channel "):
            via = body.rfind(" via ")
            if via > 0 and " NCCL " not in body:
                # "nd]" of [send], "ve]" of [receive], else the end of a bracket in a node.
                seen = self._connections.get(body[via - 3 :])
                if seen is not None:
                    seen[0] += 1
                    return None
                self._connection(body, via, lineno, raw)
                return None
        elif body in who.seen:
            return None
        self._new_text(body.rstrip(), who, lineno, raw)
        return None

    def feed(self, line: Line) -> bool:
        """Takes any other line of NCCL: WARN, TRACE, CALL, torn INFO, the version line."""
        text = line.text
        match = _LEVEL.search(text)
        if match is None:
            if text.startswith(("NCCL version", "RCCL version")) and _VERSION_LINE.match(text):
                self._handle(text.rstrip(), self._anonymous(), line.lineno, text)
                return True
            if "nccl==" in text:
                self._handle(text.rstrip(), self._anonymous(), line.lineno, text)
            if _NO_EFA in text:
                self.state.mark("efa_list_empty", None, line.lineno, text, "WARN")
                return True
            return self.framed and self._belongs(text, line.lineno)
        who = self._new_head(text[: match.start()], line.lineno)
        if who.time is None:
            who.time = line.time
        if who.prefix is None:
            who.prefix = line.prefix
        body = text[match.end() :].rstrip()
        if match[1] == "WARN":
            self.state.warn_lines += 1
            self._warn(body, who, line.lineno, text)
        elif match[1] == "INFO":
            self.state.info_lines += 1
            self._new_text(body, who, line.lineno, text)
        else:
            self.state.trace_lines += 1
        return True

    def _belongs(self, text: str, lineno: int) -> bool:
        """Whether an unframed line is part of a log: its library's own words, or a torn piece."""
        if _FRAGMENT.search(text):
            self.state.torn_lines += 1
            self._mark_unread(lineno, text)
            return True
        return text.startswith(_COMPANIONS)

    def feed_cut(self, line: Line) -> bool:
        """Takes the last line of a text that does not end in a line feed: it may be cut.

        Only what a cut could not have made out of something else is believed.
        """
        match = _LEVEL.search(line.text)
        if match is None:
            return False
        if match[1] == "WARN":
            body = line.text[match.end() :]
            fault = fault_of(body.rstrip())
            if fault:
                # A field at the very end may have been longer.
                whole = {k: v for k, v in fault.fields.items() if not body.endswith(v)}
                if "text" in fault.fields and "errno" in fault.fields:
                    whole["text"], whole["errno"] = fault.fields["text"], fault.fields["errno"]
                who = self._new_head(line.text[: match.start()], line.lineno)
                self.state.warn_lines += 1
                self._error(Fault(fault.kind, whole, fault.note), who, line.lineno, line.text)
                return True
        elif match[1] == "INFO" and _SURELY_WHOLE.search(line.text):
            return self.feed(line)
        self._mark_unread(line.lineno, line.text)
        return True

    def close(self) -> None:
        """Nothing more comes."""

    # -- inside ----------------------------------------------------------------------------

    def _anonymous(self) -> Who:
        return self._heads.get("") or self._new_head("", 0)

    def _new_head(self, head: str, lineno: int) -> Who:
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        who = who_of(head, lineno)
        who.seen = self._host_seen.setdefault(who.host, set()) if self._room() else set()
        if who.host is not None:
            self.framed = True
            self.state.host(who.host, lineno)
        if who.left is None:
            self._heads[head] = who
        if who.time:
            self.state.last_time = who.time
        return who

    def _room(self) -> bool:
        return len(self._host_seen) < _MAX_KEYS

    def _new_text(self, body: str, who: Who, lineno: int, raw: str) -> None:
        """A text this host has not said before, or one of those that differ each time."""
        if " NCCL " in body:
            body = self._unglued(body, lineno)
        if "\x1b" in body or "\x00" in body or body.endswith("m"):
            body = strip_marks(body).rstrip()
        if " [repeated " in body:
            body = body.partition(" [repeated ")[0]  # Ray's summary of lines it did not print
        if body.startswith(("Channel ", "Ring ", "Coll")):
            via = body.rfind(" via ")
            if via > 0:
                self._connection(body, via, lineno, raw)
                return
        if body.startswith(_SILENT):
            return
        once = self._handle(body, who, lineno, raw)
        if once and self._seen_count < _MAX_SEEN and len(body) < _MAX_SEEN_TEXT:
            self._seen_count += 1
            who.seen.add(body)

    def _unglued(self, body: str, lineno: int) -> str:
        """Feeds the frames glued behind this text on their own and gives the text itself."""
        match = NEXT_FRAME.search(body)
        if match is None:
            return body
        start, host = match.start(), match["host"]
        if host not in self.state.hosts:
            # "...GDRDMAnode-3:12:13 [0] NCCL": the host name begins where a known one does.
            known = next((name for name in self.state.hosts if host.endswith(name)), None)
            if known is not None:
                start = match.end("host") - len(known)
            elif "/" in host:
                # No name holds a slash; whose line this is, and where the other ends, is lost.
                self.state.torn_lines += 1
                self.feed(Line(lineno, body[body.index("NCCL ", match.end("host")) :]))
                return ""
        rest, body = body[start:], body[:start].rstrip(" |")
        if rest.count(" NCCL ") <= 16:
            self.feed(Line(lineno, rest))
        return body

    def _handle(self, body: str, who: Who, lineno: int, raw: str) -> bool:
        """Takes a text apart; true where the same text again would say nothing new."""
        for hint, pattern, handler in HANDLERS.get(body[:3], ()):
            if hint in body:
                match = pattern.match(body)
                if match:
                    return handler(self.state, match, who, lineno, raw)
        for hint, pattern, handler in HANDLERS[""]:
            if hint in body:
                match = pattern.search(body)
                if match:
                    return handler(self.state, match, who, lineno, raw)
        if " -> " in body:
            match = _RETURN_CODE.match(body)
            if match:
                self._return_code(match, who.key)
                return False
        fault = fault_of(body) if "rror" in body or "fail" in body or "ailed" in body else None
        if fault and not fault.note and fault.kind == "nvls_bind_failed":
            self.state.mark("nvls_proceeding_without", who.host, lineno, raw, "INFO")
        elif fault and fault.note:
            self.state.mark(f"{fault.kind}_retry", who.host, lineno, raw, "INFO")
        return " opCount " not in body and "0x" not in body

    def _connection(self, body: str, via: int, lineno: int, raw: str) -> None:
        """The first connection of its kind, or one whose printed form was not seen yet."""
        key = body[via - 3 :]
        transport = transport_of(strip_marks(body[via + 5 :]).partition(" [repeated ")[0])
        if transport is None:
            self.state.torn_lines += 1
            self._mark_unread(lineno, raw)
            return
        ends = body[via - 3 : via]
        direction = {"nd]": "send", "ve]": "receive"}.get(ends)
        counter = self.state.connection(transport, direction, Evidence(lineno, clipped(raw)))
        if len(self._connections) < _MAX_KEYS:
            self._connections[key] = counter
        counter[0] += 1

    def _return_code(self, match: re.Match[str], thread: str | None) -> None:
        code = int(match[2][:9])
        if len(self.state.return_codes) < _KEEP:
            self.state.return_codes.setdefault(code)
        at = self._last_error.get(thread)
        if at is not None and self._errors[at].phase is None:
            phase = _phase(match[1])
            if phase:
                self._errors[at] = _evolved(self._errors[at], phase=phase)

    def _warn(self, body: str, who: Who, lineno: int, text: str) -> None:
        if " NCCL " in body:
            body = self._unglued(body, lineno)
        fault = fault_of(body)
        if fault and not fault.note:
            self._error(fault, who, lineno, text)
        elif fault:
            self.state.mark(fault.kind, who.host, lineno, text, "WARN", fault.fields)
        elif not self._known_warning(body, who, lineno, text):
            self.state.mark("unknown_warning", who.host, lineno, text, "WARN", {"text": body[:200]})

    def _known_warning(self, body: str, who: Who, lineno: int, text: str) -> bool:
        """A WARN whose text INFO lines use too, in another NCCL."""
        for key in (body[:3], ""):
            for hint, pattern, handler in HANDLERS.get(key, ()):
                if hint in body:
                    match = pattern.match(body) if key else pattern.search(body)
                    if match:
                        handler(self.state, match, who, lineno, text)
                        return True
        return False

    def _error(self, fault: Fault, who: Who, lineno: int, text: str) -> None:
        error = error_of(fault, who, lineno, text)
        identity = (
            error.kind, error.host, error.local_dev, error.device, error.port, error.peer,
            error.peer_port, error.status, error.vendor_err, error.errno, error.text, error.path,
            error.bytes, error.rank,
        )  # fmt: skip
        at = self._error_at.get(identity)
        if at is not None:
            self._errors[at] = _evolved(self._errors[at], count=self._errors[at].count + 1)
        elif len(self._errors) >= MAX_ERRORS:
            self._errors_left_out += 1
            return
        else:
            at = self._error_at[identity] = len(self._errors)
            self._errors.append(error)
        before = self._last_error.get(who.key)
        if error.rank is not None and before is not None and error.kind in FOLLOW_UPS:
            cause = self._errors[before]
            if cause.rank is None and cause.kind not in FOLLOW_UPS:
                # The proxy names the rank it served when its own thread failed just before.
                self._errors[before] = _evolved(cause, rank=error.rank, ranks=(error.rank,))
        if len(self._last_error) < _MAX_KEYS:
            self._last_error[who.key] = at

    def _mark_unread(self, lineno: int, text: str) -> None:
        self._unread_count += 1
        if len(self._unread) < _KEEP:
            self._unread.append(Unread(lineno, clipped(text)))

    # -- the answer ------------------------------------------------------------------------

    def result(self) -> Mapping[str, object]:
        """The log's facts, its faults and what could not be read."""
        from gpufabric.net._nccl_summary import header_of, log_of

        out: dict[str, object] = {
            "unread": tuple(self._unread),
            "unread_count": self._unread_count,
        }
        if self.framed or self.state.info_lines or self.state.warn_lines:
            out["nccl_log"] = log_of(self.state)
        out["header"] = header_of(self.state)
        if self._errors:
            out["errors"] = tuple(self._errors)
            out["errors_left_out"] = self._errors_left_out
        return out


def _evolved(error: NetError, **changes: object) -> NetError:
    return evolve(error, **changes)  # type: ignore[arg-type]  # fields of NetError


def _phase(file: str) -> str | None:
    """The stage of set-up that unwound, by the first source file that tells."""
    if file.endswith("bootstrap.cc"):
        return "bootstrap"
    if "transport" in file or "proxy" in file or "net_ib" in file:
        return "transport"
    return None
