"""Benchmarks over real links: hosts in network namespaces, each link shaped (root, iproute2)."""

import os
import shutil
import subprocess
import sys

import pytest

from gpufabric.bench import BenchReport
from gpufabric.net.diagnosis import Health

from .conftest import FOLDER

HOSTS = 4
GIGABIT = 0.125  # GB/s
NAME = f"gfb{os.getpid()}"
RUN = ("-b", "1M", "-e", "4M", "-n", "3", "-w", "1", "--pairwise", "--timeout", "20")

pytestmark = pytest.mark.root


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def rate(host, rail, speed):
    """Shapes a link in both directions."""
    shape = ["root", "tbf", "rate", speed, "burst", "256kb", "latency", "20ms"]
    for space, device in ((f"{NAME}-h{host}", f"eth{rail}"), (f"{NAME}-sw", f"p{host}-{rail}")):
        subprocess.run(
            ["tc", "-n", space, "qdisc", "replace", "dev", device, *shape],
            check=True,
            capture_output=True,
        )


@pytest.fixture(scope="module")
def links():
    """Four hosts with two rails of 1 Gbit/s each, on two bridges."""
    if os.geteuid() != 0 or not shutil.which("tc"):
        pytest.skip("needs root and iproute2")
    spaces = [f"{NAME}-sw", *(f"{NAME}-h{i}" for i in range(HOSTS))]
    try:
        ip("netns", "add", spaces[0])
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no network namespaces here: {exc.stderr!r}")
    try:
        for rail in (0, 1):
            ip("-n", spaces[0], "link", "add", f"br{rail}", "type", "bridge")
            ip("-n", spaces[0], "link", "set", f"br{rail}", "up")
        for i, space in enumerate(spaces[1:]):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            for rail in (0, 1):
                peer = ["peer", "name", f"p{i}-{rail}", "netns", spaces[0]]
                ip("link", "add", f"eth{rail}", "netns", space, "type", "veth", *peer)
                ip("-n", space, "addr", "add", f"10.9{rail}.0.{i + 1}/24", "dev", f"eth{rail}")
                ip("-n", space, "link", "set", f"eth{rail}", "up")
                ip("-n", spaces[0], "link", "set", f"p{i}-{rail}", "master", f"br{rail}", "up")
                rate(i, rail, "1gbit")
        yield spaces[1:]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@pytest.fixture
def bed(links):
    """Starts a gang over the links; whatever is left of it ends with the test."""
    started = []

    def start(*args, rail=0):
        ips = "\n".join(f"10.90.0.{i + 1}" for i in range(HOSTS))
        for i, space in enumerate(links):
            shell = f'hostname h{i} && exec "$@"'
            command = ["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", shell, "sh"]
            program = [
                sys.executable,
                "-E",
                f"{FOLDER}/_tcp_workload.py",
                *args,
                "--bind",
                f"eth{rail}",
            ]
            environ = {
                "PATH": os.environ["PATH"],
                "GPUFABRIC_NODE_RANK": str(i),
                "GPUFABRIC_NUM_NODES": str(HOSTS),
                "GPUFABRIC_NODE_IPS": ips,
                "MASTER_ADDR": "10.90.0.1",
                "MASTER_PORT": "29500",
            }
            started.append(
                subprocess.Popen(
                    [*command, *program],
                    env=environ,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return started

    yield start
    for node in started:
        node.kill()
        node.communicate()


def report_of(nodes):
    texts = [node.communicate(timeout=100) for node in nodes]
    assert [(node.returncode, err) for node, (_, err) in zip(nodes, texts, strict=True)] == [
        (0, "")
    ] * HOSTS
    return BenchReport.from_text(texts[0][0])


def received(space, device):
    path = f"/sys/class/net/{device}/statistics/rx_bytes"
    said = subprocess.run(
        ["ip", "netns", "exec", space, "cat", path], check=True, capture_output=True, text=True
    )
    return int(said.stdout)


@pytest.mark.parametrize("collective", ["all_reduce", "alltoall", "broadcast"])
def test_even_links_give_right_data_below_the_wires_rate_and_no_slow_rank(bed, collective):
    report = report_of(bed("--collective", collective, *RUN))
    verdict = report.verdict(limit_gbytes_s=GIGABIT)
    assert report.is_correct is True
    assert verdict.health is not Health.SICK
    assert 0 < report.largest.best_busbw_gbytes_s < 1.1 * GIGABIT


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_rail_is_found_and_its_host_named(bed, links, slow):
    rate(slow, 0, "100mbit")
    try:
        report = report_of(bed(*RUN))
    finally:
        rate(slow, 0, "1gbit")
    verdict = report.verdict(limit_gbytes_s=GIGABIT)
    assert verdict.health is Health.SICK
    assert [f.title for f in verdict.findings if f.code == "slow_rank"] == [
        f"rank {slow} on h{slow} is slow with every other"
    ]


def test_the_interface_that_was_asked_for_carries_the_data(bed, links):
    before = [received(links[1], device) for device in ("eth0", "eth1")]
    report = report_of(bed(*RUN, rail=1))
    after = [received(links[1], device) for device in ("eth0", "eth1")]
    moved = [b - a for a, b in zip(before, after, strict=True)]
    assert report.is_correct is True
    assert moved[1] > 20e6
    assert moved[0] < 1e6


def test_a_host_whose_link_goes_dark_is_named_after_the_time_limit(bed, links):
    nodes = bed("-b", "1M", "-e", "1M", "-n", "1000000", "-w", "0", "--timeout", "3")
    for line in nodes[0].stdout:
        if "(elements)" in line:
            break
    ip("-n", links[3], "link", "set", "eth0", "down")
    try:
        texts = [node.communicate(timeout=60) for node in nodes[:3]]
    finally:
        ip("-n", links[3], "link", "set", "eth0", "up")
    assert [node.returncode for node in nodes[:3]] == [3, 3, 3]
    assert all("rank 3 (h3, 10.90.0.4)" in err for _, err in texts)
