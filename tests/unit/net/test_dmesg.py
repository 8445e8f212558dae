"""Kernel lines: stamps, repeats, links that come back."""

from gpufabric.net.diagnosis import diagnose
from gpufabric.net.reading import read


def test_an_event_told_a_thousand_times_is_one_error_with_a_count():
    line = "[10.000001] NVRM: Xid (PCI:0000:09:00): 74, pid=1, NVLink: fatal error\n"
    (error,) = read(line * 1000).errors
    assert (error.kind, error.status, error.count) == ("kernel_xid", 74, 1000)


def test_a_link_that_came_back_says_so():
    text = (
        "[1.000001] mlx5_core 0000:5d:00.0 ibp93s0: Link down\n"
        "[2.000001] mlx5_core 0000:5d:00.0 ibp93s0: Link up\n"
    )
    (error,) = read(text).errors
    assert error.values["up_again"] == "yes"


def test_a_link_that_only_came_up_is_no_error():
    text = "[2.000001] mlx5_core 0000:5d:00.0 ibp93s0: Link up\n"
    assert read(text).errors == ()


def test_journalctl_names_the_host():
    text = "Feb 14 05:03:41 gpu-1 kernel: NVRM: Xid (PCI:0000:09:00): 79, pid=1, lost\n"
    (error,) = read(text).errors
    assert error.host == "gpu-1"


def test_an_xid_of_the_program_itself_is_no_fault_of_the_gpu():
    text = "[10.000001] NVRM: Xid (PCI:0000:09:00): 31, pid=1, MMU Fault\n"
    assert "gpu_fault" not in diagnose(read(text)).codes
