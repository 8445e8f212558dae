"""Devices of several machines and cards, and which ports count as the GPU network."""

from pathlib import Path

import pytest

from gpufabric.net.devices import fabric_ports, failed_ports
from gpufabric.net.reading import read
from gpufabric.net.records import Devices

_DATA = Path(__file__).parents[2] / "data" / "devices"


def _devices(text: str) -> Devices:
    devices = read(text).devices
    assert devices is not None
    return devices


def _ca(name: str, *, state: str = "Active", kind: str = "MT4129", image: str = "0xa") -> str:
    return (
        f"CA '{name}'\n\tCA type: {kind}\n\tSystem image GUID: {image}\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {'LinkUp' if state == 'Active' else 'Disabled'}\n"
        "\t\tRate: 200\n\t\tLink layer: InfiniBand\n"
    )


def test_a_second_machine_in_one_text_does_not_hide_the_first():
    devices = _devices(_ca("mlx5_0", state="Down") + _ca("mlx5_0"))
    assert [hca.name for hca in devices.hcas or ()] == ["mlx5_0", "mlx5_0#2"]
    assert [port.name for port in failed_ports(devices)] == ["mlx5_0"]


def test_machines_told_apart_by_a_prefix_keep_their_devices():
    lines = [f"n{n}: {line}" for n in (1, 2) for line in _ca("mlx5_0").splitlines()]
    hosts = {hca.values.get("host") for hca in _devices("\n".join(lines)).hcas or ()}
    assert hosts == {"n1", "n2"}


def test_second_ports_of_two_port_cards_are_not_missing():
    text = "".join(
        _ca(f"mlx5_{2 * n}", image=f"0x{n}")
        + _ca(f"mlx5_{2 * n + 1}", state="Down", image=f"0x{n}")
        for n in range(4)
    )
    assert failed_ports(_devices(text)) == ()


def test_a_spare_management_card_is_not_the_gpu_network():
    devices = _devices((_DATA / "ibstat_hgx_healthy.txt").read_text())
    assert len(fabric_ports(devices)) == 8
    assert failed_ports(devices) == ()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_ACTIVE (4)\n", "Active"),
        ("hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_INIT (2)\n", "Initializing"),
        ("/sys/class/infiniband/mlx5_0/ports/1/state:3: ARMED\n", "Armed"),
        ("link mlx5_0/1 state DOWN physical_state POLLING netdev eth0\n", "Down"),
    ],
)
def test_all_tools_speak_of_states_in_one_word(text: str, state: str):
    (hca,) = _devices(text).hcas or ()
    assert hca.state == state


def test_several_tools_describe_one_device():
    text = (
        "mlx5_0 port 1 ==> ens1 (Up)\n"
        + _ca("mlx5_0")
        + "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:4\n"
    )
    devices = _devices(text)
    assert devices.n_hcas == 1
    (hca,) = devices.hcas or ()
    assert hca.values["netdev"] == "ens1"
    assert devices.counters == {"mlx5_0": {"link_downed": 4}}


def test_ibstat_that_gives_up_is_counted_as_unread():
    report = read(_DATA / "ibstat_panic.txt")
    assert report.unread_count == 1
    assert "ibpanic" in report.unread[0].text


def test_only_network_variables_of_an_environment_are_kept():
    text = "NCCL_IB_HCA=mlx5_0\nAWS_SECRET_ACCESS_KEY=abc123\nWANDB_API_KEY=def456\n"
    report = read(text)
    assert "abc123" not in str(report.to_dict())
    assert "def456" not in str(report)
    assert report.devices is not None
    assert "NCCL_IB_HCA" in str(report.devices.values["environment"])
