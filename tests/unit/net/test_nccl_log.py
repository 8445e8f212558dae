# ruff: noqa: E501, S108, FBT001 - a line of a log is as long as it is; its paths and flags are data
from __future__ import annotations

import pytest

from gpufabric import net
from gpufabric.net.records import Gdr, NcclLog, NetError

HEAD = "kr-7:3100:3188 [2] NCCL INFO "


def log_of(*bodies: str, head: str = HEAD) -> NcclLog:
    found = net.read("".join(f"{head}{body}\n" for body in bodies)).nccl_log
    assert found is not None
    return found


def warn(body: str, *, place: str = "transport/net_ib.cc:900", stamp: str = "") -> NetError:
    report = net.read(f"\n{stamp}kr-7:3100:3188 [2] {place} NCCL WARN {body}\n")
    (error,) = report.errors
    return error


@pytest.mark.parametrize(
    ("lines", "version", "cuda"),
    [
        (["NCCL version 2.7.8+cuda10.2"], "2.7.8", "10.2"),
        (["NCCL version 2.19.stable.20231115+cuda12.2"], "2.19.stable.20231115", "12.2"),
        ([HEAD + "NCCL version 2.27.5+cuda12.9"], "2.27.5", "12.9"),
        (["INFO worker.py:120] vLLM is using nccl==2.20.5"], "2.20.5", None),
        (["HIP version  : 6.4.1", "RCCL version : 2.22.3-develop:abc"], None, None),
    ],
)
def test_the_version_is_read_in_every_place_it_is_printed(
    lines: list[str], version: str | None, cuda: str | None
) -> None:
    header = net.read("\n".join(lines) + "\n").header
    assert (header.nccl_version, header.cuda_build) == (version, cuda)


@pytest.mark.parametrize(
    ("body", "transport", "direction"),
    [
        ("Ring 00 : 7 -> 8 [send] via NET/IB/3", "NET/IB/3", "send"),
        ("Ring 01 : 15[41000] -> 0[1b000] [receive] via NET/IB/0/GDRDMA", "NET/IB/0/GDRDMA", "receive"),
        ("Channel 00 : 0[cb000] -> 8[d0000] [send] via NET/Socket/1", "NET/Socket/1", "send"),
        ("Channel 03/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/4/GDRDMA", "NET/AWS Libfabric/4/GDRDMA", "send"),
        ("Channel 03/0 : 1[1] -> 8[0] [send] via NET/IB/1(0)/GDRDMA", "NET/IB/1/GDRDMA", "send"),
        ("Channel 03/0 : 1[1] -> 8[0] [send] via NET/IB/1/GDRDMA(PCI)", "NET/IB/1/GDRDMA(PCI)", "send"),
        ("Channel 03/1 : 1[1] -> 8[0] [receive] via NET/IB/1/GDRDMA/Shared", "NET/IB/1/GDRDMA", "receive"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read", None),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer", None),
        ("Channel 00 : 0[0] -> 1[1] via direct shared memory", "direct shared memory", None),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct", None),
        ("Channel 02/0 : 1[c6000] -> 4[c1000] [receive] via NET/Socket/1 comm 0x95cdeb0 nRanks 08", "NET/Socket/1", "receive"),
        ("Channel 00/0 : 7[e] -> 5[6] via P2P/IPC comm 0xfb16e30 nRanks 08", "P2P/IPC", None),
        ("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP/0/GDRDMA", "send"),
        ("Coll 00 : 0 [receive] via COLLNET/SHARP/0", "COLLNET/SHARP/0", "receive"),
        ("Channel 00/0 : 1[1] -> 0[1] [receive] via NET/gIB/3/GDRDMA [repeated 6x across cluster]", "NET/gIB/3/GDRDMA", "receive"),
    ],
)  # fmt: skip
def test_connections_of_every_generation(body: str, transport: str, direction: str | None) -> None:
    (connection,) = log_of(body).connections
    assert (connection.transport, connection.direction) == (transport, direction)


@pytest.mark.parametrize(
    "body",
    [
        "Channel 00/16 :    0   7   6   5",
        "Ring 00 : 9 -> 0 -> 7",
        "Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->8",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext/6/GD",
    ],
)
def test_ring_orders_and_torn_lines_are_no_connections(body: str) -> None:
    assert log_of(body).connections == ()


def test_the_same_connection_of_many_ranks_is_counted_once_each() -> None:
    bodies = [
        f"Channel {c:02d}/0 : {r}[{r}] -> {r + 8}[{r}] [send] via NET/IB/{r}/GDRDMA"
        for r in range(8)
        for c in range(4)
    ]
    log = log_of(*bodies)
    assert sum(c.count for c in log.connections) == 32
    assert log.inter_node_transport == "NET/IB/*/GDRDMA"
    assert log.gdr is Gdr.ENABLED


def test_a_single_device_keeps_its_number() -> None:
    log = log_of("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    assert log.inter_node_transport == "NET/Socket/0"
    assert log.gdr is Gdr.DISABLED
    assert log.network is None  # only "Using network" names it


def test_gpudirect_on_some_connections_only_is_mixed() -> None:
    log = log_of(
        "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
    )
    assert log.gdr is Gdr.MIXED


@pytest.mark.parametrize(
    ("body", "gdr", "by_hca"),
    [
        ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", Gdr.ENABLED, {"mlx5_0": True}),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 1 'bnxt_re1'", Gdr.DISABLED, {"bnxt_re1": False}),
        ("NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_2", Gdr.ENABLED, {"mlx5_2": True}),
        ("NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'", None, None),
    ],
)  # fmt: skip
def test_gpudirect_per_nic(body: str, gdr: Gdr | None, by_hca: dict[str, bool] | None) -> None:
    log = log_of(body)
    assert (log.gdr, log.gdr_by_hca) == (gdr, by_hca)


@pytest.mark.parametrize(
    ("listed", "names", "layer", "ordering"),
    [
        ("[0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ens3:10.7.0.2<0>", ["mlx5_0", "mlx5_3"], "IB", True),
        ("[0]mlx5_bond_0:1/RoCE ; OOB bond0:10.7.0.2<0>", ["mlx5_bond_0"], "RoCE", False),
        ("[0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ib0:fe80::1:2%ib0<0>", ["mlx5_0", "mlx5_1"], "IB", True),
        ("[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE} [RO]; OOB a:1.2.3.4<0>", ["mlx5_2", "mlx5_3", "mlx5_0"], "RoCE", True),
        ("[0]mlx5_0:1:3:0/IB [1]rocep1s0:1/RoCE [RO]; OOB a:1.2.3.4<0>", ["mlx5_0", "rocep1s0"], "mixed", True),
    ],
)  # fmt: skip
def test_the_list_of_nics(listed: str, names: list[str], layer: str, ordering: bool) -> None:
    log = log_of(f"NET/IB : Using {listed}")
    assert log.hcas is not None
    assert [hca.name for hca in log.hcas] == names
    assert (log.link_layer, log.relaxed_ordering) == (layer, ordering)
    assert log.oob_interface == listed.partition("OOB ")[2].partition(":")[0]


@pytest.mark.parametrize(
    ("bodies", "network", "plugin"),
    [
        (["Using network IB"], "IB", "internal"),
        (["NET/Plugin: Loaded net plugin AWS Libfabric (v8)", "Using network AWS Libfabric"], "AWS Libfabric", "aws-ofi-nccl"),
        (["NET/Plugin: Loaded net plugin Libfabric (v10)", "Assigned NET plugin Libfabric to comm"], "Libfabric", "aws-ofi-nccl"),
        (["NET/Plugin: Loaded net plugin NCCL RDMA Plugin v8 (v8)", "Using network IBext_v8"], "IBext_v8", "NCCL RDMA Plugin"),
        (["Using network NCCL RDMA Plugin v10"], "NCCL RDMA Plugin v10", "NCCL RDMA Plugin"),
        (["Using network GPUDirectTCPX_v7"], "GPUDirectTCPX_v7", "GPUDirectTCPX"),
        (["Using network FasTrak"], "FasTrak", "FasTrak"),
        (["NET/FasTrak plugin initialized", "Using network uninitialized_shim_v7"], "uninitialized_shim_v7", "FasTrak"),
        (["Using network FastSocket"], "FastSocket", "FastSocket"),
        (["NET/gIB : Initializing gIB v1.0.6", "Using network gIB"], "gIB", "gIB"),
        (["NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"], None, "internal"),
        (["NET/Plugin: Loaded net plugin AWS Libfabric (v8)", "Using network Socket"], "Socket", "internal"),
        (["Using network Mesh"], "Mesh", "Mesh"),
    ],
)  # fmt: skip
def test_networks_and_their_plugins(bodies: list[str], network: str | None, plugin: str) -> None:
    log = log_of(*bodies)
    assert (log.network, log.net_plugin) == (network, plugin)


def test_libfabric_says_provider_nics_protocol_and_platform() -> None:
    log = log_of(
        "NET/OFI Initializing aws-ofi-nccl 1.16.2",
        "NET/OFI Using Libfabric version 2.1",
        "NET/OFI Running on p5en.48xlarge platform, topology file /opt/ofi/topo.xml",
        "NET/OFI Using transport protocol RDMA (platform set)",
        "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)",
        "Using network Libfabric",
    )
    assert (log.provider, log.n_provider_nics, log.fabric) == ("efa", 16, "efa-direct")
    assert (log.protocol, log.platform, log.plugin_version) == ("RDMA", "p5en.48xlarge", "1.16.2")


def test_environment_is_what_nccl_says_it_read() -> None:
    log = log_of(
        "NCCL_IB_HCA set to mlx5_0,mlx5_1",
        "NCCL_MIN_NCHANNELS set by environment to 16.",
        "NCCL_SOCKET_IFNAME set by environment to eth0.100",
        "NCCL_DEBUG_FILE set by environment to /tmp/l.%h.",
    )
    assert log.env == {
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "NCCL_MIN_NCHANNELS": "16",
        "NCCL_SOCKET_IFNAME": "eth0.100",
        "NCCL_DEBUG_FILE": "/tmp/l.%h.",  # the text of a log, not a file of ours
    }


@pytest.mark.parametrize(
    "form",
    [
        "comm 0x55cc rank {r} nranks 4 cudaDev {r} nvmlDev {r} busId 1c000 commId 0x65e0 - Init COMPLETE",
        "comm 0x55cc rank {r} nranks 4 cudaDev {r} busId 1c000 commId 0x65e0 - Init COMPLETE",
        "ncclCommInitRank comm 0x55cc rank {r} nranks 4 cudaDev {r} nvmlDev {r} busId 1c000 commId 0x65e0 - Init COMPLETE",
        "[Rank {r}] ncclCommInitRankConfig comm 0x55cc rank {r} nranks 4 cudaDev {r} nvmlDev {r} busId 1c000 commId 0x65e0 - Init START",
        "ncclCommSplit comm 0x55cc rank {r} nranks 4 cudaDev {r} nvmlDev {r} busId 1c000 parent 0x5 splitCount 1 color 0 key {r} commId 0x65e0 - Init COMPLETE",
    ],
)  # fmt: skip
def test_communicators_of_every_generation(form: str) -> None:
    text = "".join(
        f"om-{r // 2}:{40 + r}:50 [{r % 2}] NCCL INFO {form.format(r=r)}\n" for r in range(4)
    )
    report = net.read(text)
    assert report.nccl_log is not None
    assert report.nccl_log.comm_id == "0x65e0"
    assert (report.header.n_ranks, report.header.n_nodes, report.header.ranks_per_node) == (4, 2, 2)
    assert {rank.complete for rank in report.nccl_log.ranks} == {"COMPLETE" in form}


def test_nodes_are_unknown_while_ranks_are_missing() -> None:
    report = net.read(HEAD + "comm 0x1 rank 0 nranks 16 cudaDev 0 busId 1c000 - Init COMPLETE\n")
    assert (report.header.n_ranks, report.header.n_nodes) == (16, None)


def test_nodes_come_from_the_layout_line_too() -> None:
    report = net.read(
        HEAD + "comm 0x1 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0\n"
    )
    assert (report.header.n_ranks, report.header.n_nodes, report.header.ranks_per_node) == (
        16,
        2,
        8,
    )
    assert report.nccl_log is not None
    assert report.nccl_log.mnnvl is False


def test_the_largest_communicator_is_the_job() -> None:
    log = log_of(
        "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0xa - Init COMPLETE",
        "ncclCommInitRank comm 0x2 rank 0 nranks 64 cudaDev 0 nvmlDev 0 busId 1 commId 0xb - Init COMPLETE",
    )
    assert (log.n_ranks, log.comm_id, log.n_comms) == (64, "0xb", 2)


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("Channel 00/08 :    0   1   2   3", (8, None, None)),
        ("2 coll channels, 2 p2p channels, 1 p2p channels per peer", (2, None, None)),
        ("16 coll channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer", (16, 16, None)),
        ("24 coll channels, 8 collnet channels, 16 nvls channels, 32 p2p channels, 4 p2p channels per peer", (24, 16, 8)),
    ],
)  # fmt: skip
def test_channel_counts(body: str, counts: tuple[int | None, ...]) -> None:
    log = log_of(body)
    assert (log.channels, log.nvls_channels, log.collnet_channels) == counts


@pytest.mark.parametrize(
    ("body", "kind", "fields"),
    [
        ("Call to ibv_modify_qp failed with error Connection timed out errno 110", "qp_connect_failed", {"errno": 110, "text": "Connection timed out"}),
        ("Call to ibv_modify_qp failed with error Network is unreachable", "qp_connect_failed", {"errno": 101}),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.2, remote GID ::ffff:10.1.0.9", "qp_connect_failed", {"errno": 110, "device": "mlx5_3", "port": 1}),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12", "memory_registration_failed", {"errno": 12}),
        ("Call to ibv_create_qp failed", "verbs_resource_failed", {}),
        ("NET/IB : Got completion with error 4, opcode 1, len 0, vendor err 81", "completion_error", {"status": 4, "vendor_err": 81}),
        ("NET/IB : Got completion from peer 10.1.0.9<40112> with error 12, opcode 0, len 32600, vendor err 129 (Recv)", "completion_error", {"status": 12, "vendor_err": 129, "peer": "10.1.0.9", "peer_port": 40112}),
        ("NET/IB : Got completion from peer 10.1.0.9<40112> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:10.1.0.2 remoteGids::ffff:10.1.0.9", "completion_error", {"status": 12, "vendor_err": 129}),
        ("NET/IB: Got completion from peer 10.1.0.9<40112> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_4", "completion_error", {"device": "mlx5_4", "status": 12}),
        ("NET/IB: Got completion from peer 10.1.0.9<40112> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=8 vendor_err=129 req_type=Send localGid fe80::1 remoteGids fe80::2 hca mlx5_4", "completion_error", {"device": "mlx5_4", "status": 12, "vendor_err": 129}),
        ("NET/IB : Got async event : port error", "port_event", {"text": "port error"}),
        ("NET/IB : mlx5_6:1 Got async error event: port error", "port_event", {"device": "mlx5_6", "port": 1}),
        ("NET/IB : mlx5_6:1 async fatal event: local catastrophic error", "hca_fatal", {"device": "mlx5_6", "text": "local catastrophic error"}),
        ("NET/IB : mlx5_6:1 async fatal event on QP (0x7f): local access violation work queue error", "hca_fatal", {"device": "mlx5_6"}),
        ("NET/IB : mlx5_6:1 GID table changed", "gid_changed", {"device": "mlx5_6"}),
        ("NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument", "memory_registration_failed", {"errno": 22}),
        ("NET/IB : Remote IB device is incompatible with the local [0]mlx5_0:1/RoCE", "network_type_mismatch", {}),
        ("Net : error encountered when getting address info : Name or service not known", "name_not_resolved", {}),
        ("Net : Connect to 10.1.0.9<52061> failed : No route to host", "no_route_to_host", {"peer": "10.1.0.9", "peer_port": 52061, "errno": 113}),
        ("socketPollConnect: Connect to 10.1.0.9<52061> returned 111(Connection refused) errno 115(Operation now in progress)", "connection_refused", {"errno": 111}),
        ("socketPollConnect: connect to fe80::1%eth0<52061> returned Connection timed out, exceeded error retry count after 35 attempts", "connection_timed_out", {"errno": 110, "peer": "fe80::1%eth0"}),
        ("Call to connect returned Connection refused", "connection_refused", {"errno": 111}),
        ("Net : Call to recv from 10.1.0.9<52061> failed : Connection reset by peer", "connection_reset", {"errno": 104, "peer": "10.1.0.9"}),
        ("socketProgress: Connection closed by remote peer kr-9<41109>", "peer_closed", {"peer": "kr-9", "peer_port": 41109}),
        ("socketFinalizeAccept: wrong type 4 != 3", "network_type_mismatch", {}),
        ("socketFinalizeAccept: wrong magic 74656d2f != 7970663b", "foreign_connection", {}),
        ("Bootstrap : no socket interface found", "no_socket_interface", {}),
        ("Error: failed to extend /dev/shm/nccl-Ab12Cd to 9637892 bytes, error: No space left on device (28)", "shm_extend_failed", {"path": "/dev/shm/nccl-Ab12Cd", "bytes": 9637892, "errno": 28}),
        ("Error while attaching to shared memory segment /dev/shm/nccl-Ab12Cd (size 9637888)", "shm_attach_failed", {"bytes": 9637888}),
        ("Duplicate GPU detected : rank 6 and rank 4 both on CUDA device 31000", "duplicate_gpu", {"ranks": (6, 4)}),
        ("Mismatched NCCL version detected : rank 0 version 22606 rank 8 version 22703", "version_mismatch", {"ranks": (0, 8)}),
        ("Message truncated : received 1024 bytes instead of 256", "message_truncated", {"bytes": 1024}),
        ("NET/IB : req 0/1 tag 0 peer 10.1.0.9<40112> collective mismatch error, local size 496640 remote size 65536", "collective_mismatch", {"peer": "10.1.0.9"}),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.", "nvls_bind_failed", {"bytes": 2097152}),
        ("MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel", "imex_unavailable", {}),
        ("Cuda failure 800 'operation not permitted'", "cuda_failure", {"text": "operation not permitted"}),
        ("Cuda failure 'out of memory'", "cuda_failure", {"text": "out of memory"}),
        ("Error: network AWS Libfabric not found.", "network_not_found", {}),
        ("NET/OFI OFI fi_getinfo() call failed: No data available", "provider_missing", {"text": "No data available"}),
        ("NET/OFI Couldn't find any optimal provider", "provider_missing", {}),
        ("NET/OFI Unable to insert remote address into address vector", "remote_address_failed", {}),
        ("NET/OFI Request 0x7f completed with error. RC: 20. Error: unknown error", "ofi_completion_error", {"status": 20}),
        ("NET/FasTrak 2026-01-02: INVALID_ARGUMENT: Buffer registration", "tcpxo_error", {"text": "INVALID_ARGUMENT"}),
        ("NCCL/NET (shim) mismatch enforced: NCCL_MIN_NCHANNELS=8 (expected 4)", "shim_mismatch", {}),
    ],
)  # fmt: skip
def test_faults_of_every_generation(body: str, kind: str, fields: dict[str, object]) -> None:
    error = warn(body)
    assert error.kind == kind
    assert {name: getattr(error, name) for name in fields} == fields
    assert (error.host, error.local_dev) == ("kr-7", 2)


@pytest.mark.parametrize(
    ("stamp", "place"),
    [
        ("", "misc/socket.cc:533"),
        ("[2026-02-03 04:05:06] ", "misc/socket.cc:533"),
        ("[2026-02-03 04:05:06] ", "misc/socket.cc:533 (ncclSocketPoll)"),
        ("2026-02-03T12:05:06.123456789Z [2026-02-03 04:05:06] ", "misc/socket.cc:533"),
    ],
)
def test_warnings_keep_nccls_own_time_in_every_frame(stamp: str, place: str) -> None:
    error = warn("Net : Connect to 10.1.0.9<5> failed : No route to host", place=place, stamp=stamp)
    assert error.time == ("2026-02-03 04:05:06" if stamp else None)


@pytest.mark.parametrize(
    "place",
    [
        "int nccl_net_ofi_create_plugin(nccl_net_ofi_plugin_t**):208",
        "transport/net_ib/[p2p.cc:648](https://p2p.cc:648/)",
        "/a/long/path/of/a/build/src/include/socket.h:415",
        "ofi_process_cq:196",
    ],
)
def test_the_host_is_found_whatever_names_the_place(place: str) -> None:
    error = warn("NET/OFI Request completed with error. RC: 107. Error: unknown", place=place)
    assert (error.kind, error.host, error.status) == ("ofi_completion_error", "kr-7", 107)


def test_the_first_fault_is_the_cause_and_the_proxy_names_its_rank() -> None:
    text = (
        "zx-3:22:25 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument\n"
        "zx-3:22:25 [0] NCCL INFO transport/net_ib.cc:579 -> 2\n"
        "zx-3:22:25 [0] proxy.cc:1519 NCCL WARN [Proxy Service 5] Failed to execute operation Connect from rank 5, retcode 2\n"
        "zx-3:22:29 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer zx-3<41>\n"
        "zx-3:22:29 [0] NCCL INFO init.cc:1079 -> 3 [Async thread]\n"
    )  # fmt: skip
    report = net.read(text)
    assert [(e.kind, e.rank, e.root_cause) for e in report.errors] == [
        ("qp_connect_failed", 5, True),
        ("proxy_connect_failed", 5, False),
        ("peer_closed", None, False),
    ]
    assert report.errors[0].phase == "transport"
    assert report.return_codes == (2, 3)


def test_a_flush_is_no_cause() -> None:
    head = "zx-3:22:25 [0] transport/net_ib.cc:900 NCCL WARN NET/IB: Got completion from peer 10.0.0.1<1> with "
    report = net.read(f"{head}status=5 opcode=0 len=0 vendor err 249 (Recv)\n")
    assert report.errors[0].root_cause is False


def test_the_same_fault_again_is_one_with_a_count() -> None:
    line = "zx-3:22:25 [0] misc/socket.cc:49 NCCL WARN Net : Connect to 10.1.0.9<5> failed : No route to host\n"
    (error,) = net.read(line * 30).errors
    assert (error.count, error.evidence.lineno) == (30, 1)


def test_an_info_retry_is_a_mark_and_no_error() -> None:
    report = net.read(
        HEAD + "socketPollConnect: connect to 10.1.0.9<5> returned No route to host, retrying (3/34) after sleep for 300 msec\n"
    )  # fmt: skip
    assert report.errors == ()
    assert report.nccl_log is not None
    assert any("retry" in mark.name for mark in report.nccl_log.marks)


def test_a_port_that_came_up_is_a_mark_and_no_error() -> None:
    report = net.read(
        "kr-7:3:4 [2] t.cc:9 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)\n"
    )
    assert report.errors == ()


def test_an_unknown_warning_is_kept_as_a_mark() -> None:
    report = net.read("kr-7:3:4 [2] t.cc:9 NCCL WARN something never seen before\n")
    assert report.errors == ()
    assert report.nccl_log is not None
    assert [m.name for m in report.nccl_log.marks] == ["unknown_warning"]


def test_hosts_keep_what_they_said_apart() -> None:
    text = (
        "aa-1:1:2 [0] NCCL INFO Using network IB\n"
        "aa-2:1:2 [0] NCCL INFO Using network Socket\n"
        "aa-1:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
        "aa-2:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"
    )
    log = net.read(text).nccl_log
    assert log is not None
    assert [(h.host, h.networks) for h in log.hosts] == [("aa-1", ("IB",)), ("aa-2", ("Socket",))]
    assert log.env_by_host_differs == ("NCCL_ALGO",)
    assert log.n_hosts_seen == 2


def test_frames_glued_without_line_feed_are_both_read() -> None:
    text = (
        "aa-1:1:2 [0] NCCL INFO Using network IB\n"
        "aa-2:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"
        "aa-1:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA\n"
    )
    log = net.read(text).nccl_log
    assert log is not None
    assert [c.transport for c in log.connections] == ["NET/IB/1/GDRDMA", "NET/IB/0/GDRDMA"]


def test_a_frame_that_lost_its_host_is_named_by_the_collector() -> None:
    text = "2026-08-12 09:37:02.216313 worker-9 >> :168:1228 [2] NCCL INFO Using network IB\n"
    log = net.read(text).nccl_log
    assert log is not None
    assert [h.host for h in log.hosts] == ["worker-9"]


def test_an_excerpt_without_frames_still_tells() -> None:
    log = net.read(
        " [0] NCCL INFO Using network IB\nNCCL INFO NCCL_IB_GID_INDEX set to 3\n"
    ).nccl_log
    assert log is not None
    assert (log.network, log.n_hosts_seen) == ("IB", None)
