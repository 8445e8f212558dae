# ruff: noqa: E501, S311, FLY002, ISC004 - lines of logs, as long as they are; repeatable chance
from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nccl_tests_text import run

from gpufabric import net

LOG = "\n".join(
    [
        "vk-1:100:120 [0] NCCL INFO NCCL version 2.27.5+cuda12.9",
        "vk-1:100:120 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.4.0.7<0>",
        "vk-1:100:120 [0] NCCL INFO Using network IB",
        "vk-1:100:120 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "vk-1:100:120 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "",
        "vk-1:100:120 [0] transport/net_ib.cc:77 NCCL WARN NET/IB: Got completion from peer 10.4.0.8<41> with"
        " status=12 opcode=1 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_1",
        "",
    ]
)
TABLE = "\n".join(run()) + "\n"


def facts(text: net.NetReport) -> tuple[object, ...]:
    log = text.nccl_log
    assert log is not None
    return (
        log.network,
        [hca.name for hca in log.hcas or ()],
        log.inter_node_transport,
        log.intra_node_transport,
        log.oob_interface,
        [host.host for host in log.hosts],
        [(e.kind, e.status, e.device, e.peer, e.host) for e in text.errors],
        text.header.nccl_version,
    )


PREFIXES: dict[str, Callable[[int, str], str]] = {
    "Open MPI --tag-output": lambda _, line: f"[1,5]<stdout>:{line}",
    "Open MPI --tag-output to stderr": lambda _, line: f"[1,13]<stderr>: {line}",
    "Open MPI --timestamp-output": lambda _, line: f"Wed Sep  6 17:26:52 2023[1,5]<stdout>:{line}",
    "PRRTE": lambda _, line: f"[prterun-vk-1-4242@1,0]<stdout>: {line}",
    "MPICH": lambda _, line: f"[0] {line}",
    "srun --label": lambda _, line: f" 0: {line}",
    "srun --label, two digits": lambda _, line: f"11: {line}",
    "kubectl --timestamps": lambda _, line: f"2026-02-03T19:30:56.633819710Z {line}",
    "kubectl --prefix": lambda _, line: f"[pod/worker-0/main] {line}",
    "kubectl --prefix --timestamps": lambda _, line: f"[pod/worker-0/main] 2026-02-03T19:30:56.6Z {line}",
    "stern": lambda _, line: f"worker-0 main {line}",
    "SageMaker": lambda _, line: f"[1,mpirank:3,algo-1]<stdout>:{line}",
    "journald": lambda _, line: f"Feb  3 12:00:01 vk-host python3[4242]: {line}",
    "vLLM": lambda _, line: f"(EngineCore_DP0 pid=7) (VllmWorker rank=0 pid=123) {line}",
    "torch elastic role": lambda _, line: f"[trainer0]:{line}",
    "torchrun": lambda _, line: f"[rank0]:{line}",
    "torchrun tee": lambda _, line: f"[default3]:{line}",
    "Ray": lambda _, line: f"\x1b[36m(RayWorkerWrapper pid=284, ip=10.0.0.5)\x1b[0m {line}",
    "SkyPilot": lambda _, line: f"\x1b[36m(head, rank=0, pid=3808)\x1b[0m {line}",
    "SkyPilot worker": lambda _, line: f"(worker1, rank=1, pid=12, ip=10.0.0.2) {line}",
    "pdsh": lambda _, line: f"worker-1: {line}",
    "DeepSpeed by address": lambda _, line: f"10.0.0.5: {line}",
    "CloudWatch export": lambda _, line: f"  | 2026-02-03T16:39:51.208-07:00 | {line}",
    "log collector": lambda _, line: f"2026-02-03 15:39:31.043 +08:00 {line}",
    "docker json-file": lambda _, line: json.dumps({"log": line + "\n", "stream": "stdout", "time": "t"}),
    "CloudWatch JSON lines": lambda _, line: json.dumps({"timestamp": 17, "message": line}),
    "pretty-printed events": lambda _, line: f'      "message": {json.dumps(line)},',
    "GitHub quote": lambda _, line: f"> {line}",
    "k9s frame": lambda _, line: f"│ {line:<220} │",
    "colours without ESC": lambda _, line: f"[36m{line}[0m",
    "coloured": lambda _, line: f"\x1b[2m{line}\x1b[0m",
    "CRLF": lambda _, line: line + "\r",
    "NUL bytes": lambda _, line: "\x00" + line + "\x00",
    "indented": lambda _, line: "    " + line,
    "two at once": lambda _, line: f"2026-02-03T19:30:56.633Z [1,0]<stdout>:[rank0]:{line}",
}  # fmt: skip


@pytest.mark.parametrize("name", PREFIXES)
def test_a_log_reads_the_same_behind_every_prefix(name: str) -> None:
    wrap = PREFIXES[name]
    text = "\n".join(wrap(i, line) for i, line in enumerate(LOG.splitlines())) + "\n"
    assert facts(net.read(text)) == facts(net.read(LOG))


@pytest.mark.parametrize("name", PREFIXES)
def test_a_table_reads_the_same_behind_every_prefix(name: str) -> None:
    wrap = PREFIXES[name]
    text = "\n".join(wrap(i, line) for i, line in enumerate(TABLE.splitlines())) + "\n"
    report, plain = net.read(text), net.read(TABLE)
    assert report.header == plain.header
    (one,), (other,) = report.tables, plain.tables
    assert [r.out_of_place for r in one.rows] == [r.out_of_place for r in other.rows]
    assert (one.collective, one.avg_bus_bandwidth) == (other.collective, other.avg_bus_bandwidth)
    assert one.printed_rows_are_complete is True
    assert report.unread_count == 0


def test_line_numbers_in_front_do_not_split_a_table() -> None:
    text = "".join(f"[{i + 80000}] {line}\n" for i, line in enumerate(TABLE.splitlines()))
    (table,) = net.read(text).tables
    assert len(table.rows) == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path,
        lambda path: path.read_bytes(),
        lambda path: path.read_text(),
        lambda path: io.StringIO(path.read_text()),
        lambda path: io.BytesIO(path.read_bytes()),
        lambda path: path.read_text().splitlines(),
        lambda path: iter(path.read_text().splitlines(keepends=True)),
        lambda path: path.read_bytes().splitlines(keepends=True),
    ],
    ids=["Path", "bytes", "str", "text file", "binary file", "lines", "iterator", "bytes lines"],
)
def test_every_kind_of_source_reads_the_same(
    tmp_path: Path, make: Callable[[Path], net.reading.Source]
) -> None:
    path = tmp_path / "log"
    path.write_text(TABLE + LOG)
    report = net.read(make(path))
    assert facts(report) == facts(net.read(LOG))
    assert len(report.tables[0].rows) == 6
    assert report.kind == "mixed"
    assert report.lines == len((TABLE + LOG).splitlines())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32"])
def test_other_encodings_are_recognised(encoding: str) -> None:
    assert facts(net.read(LOG.encode(encoding))) == facts(net.read(LOG))


def test_broken_utf8_does_not_stop_reading() -> None:
    assert facts(net.read(b"\xff\xfe\xfd caf\xe9\n"[2:] + LOG.encode())) == facts(net.read(LOG))


@pytest.mark.parametrize("empty", ["", b"", "\n", "\n\n  \n", []])
def test_nothing_is_unknown(empty: net.reading.Source) -> None:
    report = net.read(empty)
    assert (report.kind, report.tables, report.errors, report.nccl_log) == ("unknown", (), (), None)
    assert report.to_dict()["health"] == "inconclusive"


def test_binary_data_is_told_and_not_read() -> None:
    data = random.Random(7).randbytes(20_000)
    report = net.read(data)
    assert report.kind == "unknown"
    assert "binary" in report.notes[0]


def test_archives_are_told_and_not_opened() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("log", LOG)
    for data, word in ((buffer.getvalue(), "zip"), (gzip.compress(LOG.encode()), "gzip")):
        report = net.read(data)
        assert (report.kind, report.nccl_log) == ("unknown", None)
        assert word in report.notes[0]


def test_one_endless_line_is_cut_and_told() -> None:
    def chunks() -> Iterator[bytes]:
        yield LOG.encode()
        for _ in range(300):
            yield b"x" * 65_536
        yield b"\n" + LOG.encode()

    class Stream(io.RawIOBase):
        def __init__(self) -> None:
            self._chunks = chunks()

        def read(self, size: int = -1, /) -> bytes:
            return b"" if size == 0 else next(self._chunks, b"")

    tracemalloc.start()
    report = net.read(Stream())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert any("cut" in note for note in report.notes)
    assert report.errors[0].count == 2


def test_memory_does_not_grow_with_the_log() -> None:
    def lines(count: int) -> Iterator[str]:
        for i in range(count):
            yield f"vk-{i % 4}:{i % 8}:{i % 64} [{i % 8}] NCCL INFO Channel {i % 16:02d}/0 : {i % 32}[{i % 8}] -> {i % 31}[0] [send] via NET/IB/{i % 8}/GDRDMA"
            yield f"vk-{i % 4}:{i % 8}:{i % 64} [{i % 8}] NCCL INFO AllReduce: opCount {i:x} sendbuff 0x{i:x}"

    def peak(count: int) -> int:
        tracemalloc.start()
        report = net.read(lines(count))
        assert report.lines == 2 * count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(8_000) < 1.3 * peak(2_000)


def cut_values(report: net.NetReport) -> dict[str, object]:
    """What a cut may hide but not change."""
    log = report.nccl_log or net.NcclLog()
    values: dict[str, object] = {
        "version": report.header.nccl_version,
        "ranks": report.header.n_ranks,
        "nodes": report.header.n_nodes,
        "gpu": report.header.gpu,
        "iters": report.header.iters,
        "warmup": report.header.warmup_iters,
        "network": log.network,
        "oob": log.oob_interface,
        "channels": log.channels,
    }
    for table in report.tables:
        values["average"] = table.avg_bus_bandwidth
        values["collective"] = table.collective
        values["table ranks"] = table.n_ranks
        for row in table.rows:
            values[f"row {row.size_bytes}"] = (row.out_of_place, row.in_place, row.count)
    for number, error in enumerate(report.errors):
        for name in (
            "kind",
            "errno",
            "status",
            "vendor_err",
            "device",
            "peer",
            "peer_port",
            "text",
        ):
            values[f"error {number} {name}"] = getattr(error, name)
    for hca in log.hcas or ():
        values[f"hca {hca.name}"] = hca.link_layer
    return values


@pytest.mark.parametrize("text", [LOG, TABLE, LOG + TABLE], ids=["log", "table", "both"])
def test_a_cut_anywhere_hides_values_and_invents_none(text: str) -> None:
    whole = cut_values(net.read(text))
    rng = random.Random(20260203)
    ends = [i for i, c in enumerate(text) if c == "\n"]
    places = [*ends, *(e + 1 for e in ends), *(rng.randrange(len(text)) for _ in range(200))]
    for place in places:
        for name, value in cut_values(net.read(text[:place])).items():
            assert value is None or value == whole.get(name), (name, text[:place][-120:])


def test_a_text_without_a_final_line_feed_keeps_what_a_cut_cannot_fake() -> None:
    report = net.read(TABLE.rpartition("# Avg")[0].rstrip())
    assert report.tables[0].out_of_bounds_word == "OK"
    whole = net.read("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA")
    assert whole.nccl_log is not None
    assert whole.nccl_log.inter_node_transport == "NET/IB/0/GDRDMA"


def test_another_programs_lines_make_a_log_mixed_but_not_a_table() -> None:
    assert net.read(LOG + "step 12 loss 0.7\n").kind == "mixed"
    assert net.read("Welcome to Ubuntu\n" + TABLE).kind == "nccl_tests"
    assert net.read(LOG).kind == "nccl_log"


def test_json_that_is_not_ours_is_read_as_lines() -> None:
    text = '{"a": {"b": 1,\n' + LOG + "}\n"
    assert facts(net.read(text)) == facts(net.read(LOG))


def test_an_object_that_never_closes_is_given_up() -> None:
    text = "{\n" + '"a": 1,\n' * 50 + TABLE
    assert len(net.read(text).tables[0].rows) == 6


def test_reports_are_values() -> None:
    import pickle

    report = net.read(LOG + TABLE)
    assert report == net.read(LOG + TABLE)
    assert hash(report) == hash(net.read(LOG + TABLE))
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301  # our own bytes


def test_a_text_file_is_read_from_where_its_reader_stands(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\n" + LOG)
    with path.open() as stream:
        assert stream.readline() == "first\n"
        report = net.read(stream)
    assert facts(report) == facts(net.read(LOG))
    assert report.lines == len(LOG.splitlines())


def test_a_stream_whose_decoder_fails_is_told_and_not_raised() -> None:
    stream = io.TextIOWrapper(io.BufferedReader(Pipe(LOG.encode() + b"\xff\n")), encoding="utf-8")
    report = net.read(stream)
    assert "decoder failed" in report.notes[0]


def test_a_number_of_thousands_of_digits_harms_no_format() -> None:
    digits = "9" * 6_000
    lines = [
        f"#  Rank {digits} on h device {digits} [0x1] X",
        f"GPU0\tGPU{digits}\tNIC0",
        f"GPU0\t X \tNV{digits}\tPIX",
        f"[rank0]: last enqueued NCCL work: {digits}, last completed NCCL work: {digits}.",
        f"q:1:2 [0] NCCL INFO comm 0x1 rank {digits} nRanks {digits} nNodes {digits} localRanks 1 localRank 0",
        f"q:1:2 [0] NCCL INFO comm 0x1 rank {digits} nranks {digits} cudaDev 0 busId 1 - Init COMPLETE",
        f"q:1:2 [0] a.cc:1 NCCL WARN Call to ibv_modify_qp failed with {digits} Connection timed out",
        f"mlx5_0 port {digits} ==> eth0 (Up)",
        f"     port_xmit_wait: {digits}",
        f"{digits} {digits} float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0",
    ]
    json.dumps(net.read("\n".join(lines) + "\n").to_dict(), allow_nan=False)


class Pipe(io.RawIOBase):
    """Bytes that can be read once and not sought in."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray, /) -> int:
        return self._data.readinto(buffer)
