"""``python -m gpufabric parse``: what texts say about the network, for people or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from gpufabric.net.reading import read

if TYPE_CHECKING:
    from gpufabric.net.records import BenchTable, Measured, NetError
    from gpufabric.net.report import NetReport

_STANDARD_INPUT: Final = "-"
_SHOWN: Final = 5
_DESCRIPTION: Final = """\
Reads logs and outputs of NCCL, nccl-tests, torch.distributed, ibstat, nvidia-smi topo -m and
others, and says whether the network is right. "-" reads standard input until it ends or Ctrl-C is
pressed.
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


# -- for people ----------------------------------------------------------------------------


def summary(report: NetReport, document: dict[str, object]) -> str:
    """A few lines: what it is, whether it is well, the numbers that tell, what to do."""
    return "\n".join(_plain(line) for line in _summary(report, document))


def _summary(report: NetReport, document: dict[str, object]) -> Iterator[str]:
    header = report.header
    what = [report.kind]
    if header.n_ranks is not None:
        nodes = f" on {header.n_nodes} nodes" if header.n_nodes is not None else ""
        what.append(f"{header.n_ranks} ranks{nodes}")
    if header.gpu:
        what.append(header.gpu)
    if header.nccl_version:
        what.append(f"NCCL {header.nccl_version}")
    yield ", ".join(what)
    yield f"health: {document['health']}"
    for table in report.tables[:_SHOWN]:
        yield _table_line(table)
    if len(report.tables) > _SHOWN:
        yield f"... and {len(report.tables) - _SHOWN} more tables"
    yield from _log_lines(document)
    for error in report.errors[:_SHOWN]:
        yield _error_line(error)
    more = len(report.errors) - _SHOWN + report.errors_left_out
    if more > 0:
        yield f"... and {more} more errors"
    yield from _finding_lines(cast("list[dict[str, object]]", document["findings"]))
    for note in report.notes:
        yield f"note: {note}"
    if report.unread_count:
        first = f" (the first is line {report.unread[0].lineno})" if report.unread else ""
        yield f"note: {report.unread_count} lines could not be read{first}"


def _table_line(table: BenchTable) -> str:
    name = f"{table.collective or 'collective unknown'}"
    if not table.rows:
        return f"{name}: no rows"
    largest = max(reversed(table.rows), key=lambda row: row.size_bytes)
    halves = [
        f"{label} {_measured(half)}"
        for label, half in (("out of place", largest.out_of_place), ("in place", largest.in_place))
        if half is not None and half.busbw is not None
    ]
    kind = " ".join(word for word in (largest.dtype, largest.redop) if word and word != "none")
    sizes = f"{len(table.rows)} rows up to {largest.size_bytes} bytes"
    return f"{name} {kind}".strip() + f": {sizes}; there {', '.join(halves) or 'no bandwidth'}"


def _measured(half: Measured) -> str:
    wrong = f", {half.wrong:g} wrong" if half.wrong else ""
    return f"busbw {half.busbw:g} GB/s in {half.time_us:g} us{wrong}"


def _log_lines(document: dict[str, object]) -> Iterator[str]:
    network = document["network"]
    if network is not None:
        hcas = cast("list[str] | None", document.get("hcas"))
        devices = f", {len(hcas)} NICs" if hcas else ""
        plugin = f" ({document['net_plugin']})" if document["net_plugin"] else ""
        yield f"network: {network}{plugin}{devices}, GPUDirect {document['gdr'] or 'unknown'}"
    inter, intra = document["inter_node_transport"], document["intra_node_transport"]
    if inter is not None:
        yield f"between nodes: {inter}"
    if intra is not None:
        yield f"inside a node: {intra}"


def _error_line(error: NetError) -> str:
    where = error.device or error.peer or error.path or error.host
    parts = [f"line {error.evidence.lineno}: {error.kind}"]
    if error.rank is not None:
        parts.append(f"rank {error.rank}")
    if where:
        parts.append(where)
    if error.text:
        parts.append(error.text)
    if error.count > 1:
        parts.append(f"{error.count} times")
    follows = " (follows from an earlier one)" if error.root_cause is False else ""
    return ", ".join(parts) + follows


def _finding_lines(findings: list[dict[str, object]]) -> Iterator[str]:
    for finding in findings:
        yield f"[{finding['severity']}] {finding['code']}: {finding['cause']}"
        yield f"  do: {finding['remedy']}"
        evidence = finding.get("evidence")
        for line in cast("list[dict[str, object]]", evidence)[:2] if evidence else []:
            yield f"  line {line['lineno']}: {line['text']}"


def _plain(line: str) -> str:
    """Text of a log may hold anything; none of it reaches the terminal as a command."""
    return "".join(c if c.isprintable() else " " for c in line)
