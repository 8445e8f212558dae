"""sysfs: a captured tree, and facts of the host as text."""

import os
from pathlib import Path

from gpufabric.net.devices import failed_ports
from gpufabric.net.reading import read
from gpufabric.net.sysfs import read_sysfs


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


_PORT = "sys/class/infiniband/mlx5_0/ports/1"


def test_a_captured_tree_gives_the_devices(tmp_path: Path):
    root = _tree(
        tmp_path,
        {
            f"{_PORT}/state": "4: ACTIVE",
            f"{_PORT}/phys_state": "5: LinkUp",
            f"{_PORT}/rate": "400 Gb/sec (4X NDR)",
            f"{_PORT}/link_layer": "InfiniBand",
            f"{_PORT}/counters/link_downed": "2",
            "sys/class/infiniband/mlx5_0/hca_type": "MT4129",
            "sys/class/net/ib0/mtu": "4092",
            "sys/class/net/ib0/operstate": "down",
        },
    )
    devices = read_sysfs(root)
    assert devices.hcas is not None
    (hca,) = devices.hcas
    assert (hca.name, hca.state, hca.phys, hca.rate_gbps) == ("mlx5_0", "Active", "LinkUp", 400.0)
    assert hca.hca_type == "MT4129"
    assert devices.counters == {"mlx5_0": {"link_downed": 2}}
    assert devices.netdev_down == ("ib0",)
    assert devices.down == ()


def test_a_gid_table_keeps_index_address_and_version(tmp_path: Path):
    root = _tree(
        tmp_path,
        {
            f"{_PORT}/gids/0": "fe80:0000:0000:0000:0e42:a1ff:fe50:1db8",
            f"{_PORT}/gids/3": "0000:0000:0000:0000:0000:ffff:0a0a:0105",
            f"{_PORT}/gids/4": "0000:0000:0000:0000:0000:0000:0000:0000",
            f"{_PORT}/gid_attrs/types/0": "IB/RoCE v1",
            f"{_PORT}/gid_attrs/types/3": "RoCE v2",
            f"{_PORT}/gid_attrs/ndevs/3": "eth2",
        },
    )
    devices = read_sysfs(root)
    assert devices.hcas is not None
    gids = devices.hcas[0].values["gids"]
    assert isinstance(gids, tuple)
    assert [(g["index"], g["version"]) for g in gids] == [(0, "v1"), (3, "v2")]


def test_a_machine_without_rdma_gives_no_devices(tmp_path: Path):
    devices = read_sysfs(tmp_path)
    assert devices.hcas is None
    assert devices.n_hcas is None


def test_files_that_cannot_be_read_stay_unknown(tmp_path: Path):
    root = _tree(tmp_path, {f"{_PORT}/state": "1: DOWN"})
    (root / _PORT / "rate").mkdir()
    os.mkfifo(root / _PORT / "unused")
    devices = read_sysfs(root)
    assert devices.hcas is not None
    assert devices.hcas[0].rate_gbps is None
    assert [port.name for port in failed_ports(devices)] == ["mlx5_0"]


def test_a_counter_that_is_no_number_is_no_fault():
    report = read("/sys/class/infiniband/i40iw0/ports/1/counters/link_downed:N/A (no PMA)\n")
    assert report.unread_count == 0
    assert report.devices is not None
    assert report.devices.counters is None


def test_reading_this_machine_raises_nothing():
    read_sysfs()
