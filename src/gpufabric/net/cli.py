"""``python -m gpufabric parse``: what texts say about the network, for people or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from gpufabric.net._summary import summary
from gpufabric.net.reading import read

if TYPE_CHECKING:
    from gpufabric.net.report import NetReport

_STANDARD_INPUT: Final = "-"
_DESCRIPTION: Final = """\
Reads logs and outputs of NCCL, nccl-tests, torch.distributed, ibstat, nvidia-smi topo -m and
others, and says whether the network is right. "-" reads standard input until it ends or Ctrl-C is
pressed. Each FILE is judged alone: give the files of all ranks of one job as one text,
"cat rank-*.log | python -m gpufabric parse -".
Exit status: 0 read, 1 the network is sick, 2 a file cannot be read."""


def parse_main(argv: Sequence[str]) -> int:
    """Runs ``parse FILE... [--json]`` and gives the exit status."""
    arguments = _parser().parse_args(list(argv))
    files = cast("list[str]", arguments.files)
    as_json = cast("bool", arguments.json)
    status = 0
    for index, name in enumerate(files):
        try:
            report = _read(name)
        except OSError as error:
            sys.stderr.write(f"parse: {name}: {error.strerror or error}\n")
            status = 2
            continue
        document = report.to_dict()
        if as_json:
            text = json.dumps(document, indent=2 if len(files) == 1 else None, allow_nan=False)
        else:
            title = f"{name}: " if len(files) > 1 else ""
            text = ("\n" if index else "") + title + summary(report, document)
        sys.stdout.write(text + "\n")
        if document["health"] == "sick":
            status = max(status, 1)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpufabric parse", description=_DESCRIPTION)
    parser.add_argument("files", nargs="+", metavar="FILE", help='a text; "-" is standard input')
    parser.add_argument(
        "--json", action="store_true", help="the whole report; one line each for several files"
    )
    return parser


def _read(name: str) -> NetReport:
    if name != _STANDARD_INPUT:
        return read(Path(name))
    return read(cast("IO[bytes]", _UntilInterrupted(sys.stdin.buffer)))


class _UntilInterrupted:
    """A stream that ends at Ctrl-C, so that what came so far is still reported."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        """Gives what is there, up to ``size``; nothing at the end or when interrupted."""
        if size == 0:
            return b""
        read1 = getattr(self._stream, "read1", self._stream.read)
        try:
            return cast("bytes", read1(size))
        except KeyboardInterrupt:
            return b""

    read1 = read
