"""What launchers and shells say around a run: variables handed to it, and how it was ended.

NCCL logs only variables that it knows, so a misspelled one shows nowhere else than in the command
line or in a dump of the environment. Nothing but network variables is kept: no secrets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric.net._device_table import DeviceReader

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

_VARIABLE = re.compile(
    r"(?<![\w/])(?P<name>(?:NCCL|TORCH_NCCL|FI|OFI_NCCL|UCX|GLOO)_[A-Z0-9_]{1,60})"
    r"\s{0,8}=\s{0,8}(?P<value>\"[^\"]{0,200}\"|'[^']{0,200}'|[^\s,;\"'\\\])}]{0,200})"
)
_YAML = re.compile(
    r"\s*(?:- )?(?P<name>NCCL_[A-Z0-9_]{1,60}):\s+\"?(?P<value>[^\s\"#]{1,200})\"?\s*$"
)
_NAME_ONLY = re.compile(r"\s-x\s{1,8}(?P<name>NCCL_[A-Z0-9_]{1,60})(?=\s|$)")
_ENDED = re.compile(
    r"DUE TO TIME LIMIT|CANCELLED AT|exited on signal (?:9|15)|"
    r"signal (?:9|15) \((?:Killed|Terminated)\)|^\s*Terminated\s*$|^\s*Killed\s*$|^\s*\^C|"
    r"KeyboardInterrupt|timed? ?out after \d|"
    r"DeadlineExceeded|activeDeadlineSeconds|timeout: sending signal"
)
_HINTS: Final = (
    "LIMIT",
    "CANCELLED",
    "signal",
    "Terminated",
    "Killed",
    "^C",
    "Interrupt",
    "out after",
    "eadline",
)
"""One of these is in every line that `_ENDED` takes; looking for them is cheaper."""
_NAMES: Final = re.compile(r"(?:NCCL|FI|UCX|GLOO)_")
_NCCL_FRAME: Final = re.compile(r"NCCL (?:INFO|WARN|TRACE)")


class Launcher(DeviceReader):
    """Notes variables and ends of runs, and takes no line: those lines stay what they are."""

    name: ClassVar[str] = "launcher"
    kind: ClassVar[str] = "launcher"

    def feed(self, line: Line, /) -> bool:
        """Looks at every line that no other reader took."""
        text = line.text
        self.table.lineno = line.lineno
        if "_" in text and _NAMES.search(text) and not _NCCL_FRAME.search(text):
            self._variables(text)
        if any(hint in text for hint in _HINTS) and _ENDED.search(text):
            self.consumed += 1
            self.table.value("ended_by", text.strip()[:200])
        return False

    def take(self, line: Line, /) -> bool:
        """Takes nothing."""
        del line
        return False

    def _variables(self, text: str) -> None:
        rows = [*_VARIABLE.finditer(text), *_NAME_ONLY.finditer(text)]
        if (yaml := _YAML.match(text)) is not None:
            rows.append(yaml)
        for row in rows[:256]:
            value = row.groupdict().get("value")
            told = None if value is None else value.strip("\"'")
            self.consumed += 1
            self.table.detail("environment", row["name"], "value", told)
