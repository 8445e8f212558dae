"""What each tool's text must give, and that no text breaks a reader."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufabric.net._formats import other_readers
from gpufabric.net._lines import Line
from gpufabric.net.reading import read

_DATA = Path(__file__).parents[2] / "data"
CASES = sorted(
    path
    for folder in ("topology", "devices", "ras", "dmesg")
    for path in (_DATA / folder).iterdir()
    if path.suffix in {".txt", ".xml"}
)


def _names(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", CASES, ids=_names)
def test_a_text_gives_the_values_beside_it(path: Path):
    expected = json.loads(path.with_suffix(".json").read_text())
    found = json.loads(json.dumps(read(path).to_dict()))
    assert _part(found, expected) == expected


def _part(found: object, expected: object) -> object:
    """The parts of what was found that are asked for."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: _part(found.get(key), value) for key, value in expected.items()}
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        return [_part(one, other) for one, other in zip(found, expected, strict=True)]
    return found


@pytest.mark.parametrize("path", CASES, ids=_names)
def test_a_text_cut_at_a_line_gives_no_other_devices_than_the_whole(path: Path):
    lines = path.read_text().splitlines(keepends=True)
    whole = set((read(path).to_dict().get("hcas") or {}) or ())
    for number in range(0, len(lines), 1 + len(lines) // 40):
        cut = read("".join(lines[:number])).to_dict().get("hcas") or {}
        assert set(cut) <= whole


@pytest.mark.parametrize("path", CASES, ids=_names)
def test_a_text_cut_at_a_byte_breaks_nothing(path: Path):
    content = path.read_bytes()
    chance = random.Random(path.stem)  # noqa: S311 - the same cuts on each run
    for _ in range(8):
        read(content[: chance.randrange(len(content) + 1)]).to_dict()
        read(content[chance.randrange(len(content) + 1) :]).to_dict()


@given(st.lists(st.text(max_size=80), max_size=30))
def test_no_reader_raises_on_any_lines(lines: list[str]):
    for reader in other_readers():
        for number, text in enumerate(lines, 1):
            reader.feed(Line(number, text))
        reader.close()
        reader.result()


_PIECES = st.sampled_from(
    [
        "CA 'mlx5_0'", "\tPort 1:", "\t\tState: Active", "\t\tRate: x", "hca_id:\tmlx5_0",
        "\t\tport:\t1", "\t\t\tactive_width:\t4X (2)", "\t\t\tactive_speed:\t50.0 Gbps (64)",
        "\t\t\tGID[  0]:\tfe80::1, RoCE v2", "DEV PORT INDEX GID IPv4 VER DEV",
        "mlx5_0  1  3  ::ffff:10.0.0.1  10.0.0.1  v2  eth0", "link mlx5_0/1 state ACTIVE",
        "link mlx5_0/1 a 1 b", "  c 2 d 3", "provider: efa", "    domain: rdmap1-rdm",
        "NIC statistics:", "     rx_packets: 5", "\tGPU0\tGPU1\tNIC0\tCPU Affinity",
        "GPU0\t X \tNV18\tPIX\t0-3", "GPU1\tNV18", " X \tPIX", "  NIC0: mlx5_0",
        '<system version="1">', '<cpu numaid="0">', '<pci busid="1" class="0x0302">', "</pci>",
        '<gpu dev="0"/>', "</cpu>", "</system>", '<graphs version="1">', '<graph id="0"/>',
        "</graphs>", "Job summary", "===", "Communicators... (0.00s)", "Errors", "Warnings",
        "    0  1  2  8  16  16  RUNNING  MISMATCH", "#0-0 (ab12) MISMATCH",
        "  Communicator ranks have different AllReduce operation counts",
        "  3 ranks have launched up to operation 7",
        "  Rank 1 -- GPU 0 managed by process 5 on node a",
        "DEAD", "  1 job process is considered dead", "NVRM: Xid (PCI:0000:09:00): 79, x",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", "|  NvLink Link Status  |",
        "    gpuId 0:", "        U D U", "| Diagnostic | Result |", "| PCIe | Fail - All |",
        "==> /sys/class/infiniband/m/ports/1/state <==", "1: DOWN",
        "/sys/class/infiniband/m/ports/1/counters/link_downed:255",
        "max locked memory (kbytes, -l) 64",
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]", " 8 5 1.0 2.0 3.0",
        "mlx5_0 port 1 ==> ib0 (Down)", "fi_getinfo: -61 (No data available)", "",
    ]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=25))
def test_lines_of_all_formats_in_any_order_break_nothing(lines: list[str]):
    report = read("\n".join(lines))
    report.to_dict()
    assert report.lines <= len(lines)


@pytest.mark.parametrize(
    "piece", ["\t", " ", ":", "/", "1 ", "a", "0000:00:00.0/", "<", "| ", "U "]
)
def test_a_very_long_line_is_no_trap_for_a_pattern(piece: str):
    starts = ("", "GPU0 ", "/sys/", "NVRM: Xid (PCI:", "link mlx5_0/1 ", "mlx5_core ", "Process ")
    for reader in other_readers():
        for number, start in enumerate(starts, 1):
            reader.feed(Line(number, start + piece * (65_536 // len(piece))))
        reader.close()
        reader.result()


@pytest.mark.parametrize("number", ["9" * 5000, "²", "--5", "٣", "1e999", "nan", "-1", "0x"])
def test_strange_numbers_in_any_place_break_nothing(number: str):
    shapes = [
        "CA 'mlx5_0'\n\tPort {}:\n\t\tRate: {}\n\t\tBase lid: {}",
        "hca_id:\tm\n\t\tport:\t{}\n\t\t\tactive_width:\t{}X (2)\n\t\t\tactive_speed:\t{} Gbps (1)",
        "hca_id:\tm\n\t\tport:\t1\n\t\t\tactive_mtu:\t{} (5)\n\t\t\tGID[ {}]:\tfe80::1, RoCE v2",
        "DEV PORT INDEX GID\nmlx5_0 {} {} fe80::1 v2",
        "link mlx5_0/{} state ACTIVE physical_state LINK_UP\nlink mlx5_0/1 a {} b {}",
        "NIC statistics:\n     rx_packets: {}",
        "fi_getinfo: -{} (No data available)",
        "\tGPU0\tGPU{}\tNIC{}\tCPU Affinity\nGPU0\t X \tNV{}\tPIX\t{}\t{}\n",
        '<system version="{}">\n<cpu numaid="{}" affinity="{}">\n<pci busid="1" class="0x0302">',
        '<system version="1">\n<pci busid="1" link_width="{}">\n<gpu dev="{}" sm="{}"/></pci>',
        '<graphs version="1">\n<graph id="{}" speedintra="{}"/>\n</graphs>',
        "Job summary\n  {}  {}  {}\nCommunicators\n  {}  1  1  8  {}  8  RUNNING  OK",
        "Job summary\nErrors\n  Missing communicator data from {} ranks",
        "/sys/class/infiniband/m/ports/{}/rate:{}\n/sys/class/infiniband/m/ports/1/gids/{}:fe80::1",
        "max locked memory (kbytes, -l) {}\nshm {}M 0 64M 0% /dev/shm\nnvidia_peermem {} {}",
        "NVRM: Xid (PCI:0000:09:00): {}, x\n| NvLink Link Status |\n gpuId {}:\n U D",
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]\n {} {} {} {}",
        "NCCL_IB_GID_INDEX={}",
    ]
    for shape in shapes:
        read(shape.replace("{}", number)).to_dict()
