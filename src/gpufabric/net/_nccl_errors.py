# ruff: noqa: E501 - patterns are kept whole, to hold them against a log
"""What NCCL and its network plugins print when something fails: shape of the line → fault.

Shapes are those of NCCL 2.4 to 2.30 and of the plugins; sources are NVIDIA/nccl (src), aws-ofi-nccl
(src) and Mellanox/nccl-rdma-sharp-plugins (src). A shape is tried only when its hint is in the
line.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

_PEER = r"(?P<peer>[^\s<>]+)<(?P<peer_port>\d+)>"
_ERRNO_OF: Final = {
    os.strerror(number): number
    for number in (2, 5, 11, 12, 13, 14, 16, 19, 22, 24, 28, 32, 38, 61, 71, 95, 98, 99, 100, 101,
                   103, 104, 105, 107, 108, 110, 111, 112, 113, 115)
}  # fmt: skip
_WC_NAMES: Final = {
    "IBV_WC_SUCCESS": 0, "IBV_WC_LOC_LEN_ERR": 1, "IBV_WC_LOC_QP_OP_ERR": 2,
    "IBV_WC_LOC_PROT_ERR": 4, "IBV_WC_WR_FLUSH_ERR": 5, "IBV_WC_LOC_ACCESS_ERR": 8,
    "IBV_WC_REM_INV_REQ_ERR": 9, "IBV_WC_REM_ACCESS_ERR": 10, "IBV_WC_REM_OP_ERR": 11,
    "IBV_WC_RETRY_EXC_ERR": 12, "IBV_WC_RNR_RETRY_EXC_ERR": 13,
}  # fmt: skip

FOLLOW_UPS: Final = frozenset(
    {
        "peer_closed",
        "proxy_connect_failed",
        "proxy_failed",
        "proxy_call_failed",
        "proxy_recv_failed",
        "service_thread_error",
        "socket_recv_failed",
        "remote_process_exited",
    }
)
"""Faults that by their nature follow another one: they name a rank, not a cause."""

SYMPTOMS: Final = frozenset({"watchdog_timeout", "watchdog_stuck", "nccl_call_failed"})
"""What a framework above NCCL sees: follow-ups where the text holds a cause too."""

_CONNECT_KINDS: Final = {
    101: "network_unreachable",
    104: "connection_reset",
    110: "connection_timed_out",
    111: "connection_refused",
    113: "no_route_to_host",
}
_VERBS_KINDS: Final = {
    "ibv_modify_qp": "qp_connect_failed",
    "ibv_reg_mr": "memory_registration_failed",
    "ibv_reg_mr_iova2": "memory_registration_failed",
    "ibv_reg_dmabuf_mr": "memory_registration_failed",
    "ibv_create_cq": "verbs_resource_failed",
    "ibv_create_qp": "verbs_resource_failed",
    "ibv_alloc_pd": "verbs_resource_failed",
    "ibv_open_device": "device_open_failed",
}


class Shape(NamedTuple):
    """One shape of fault line: ``hint`` must be in it, ``pattern`` must be found in it."""

    kind: str
    hint: str
    pattern: re.Pattern[str]


def _shape(kind: str, hint: str, pattern: str) -> Shape:
    return Shape(kind, hint, re.compile(pattern))


SHAPES: Final = (
    _shape(
        "verbs",
        "failed",
        r"Call to (?P<call>ibv_\w+) failed(?: with(?: error)?)?(?: (?P<errno0>\d+))?"
        r"(?: (?P<text>[A-Z][^,]*?))?(?: errno (?P<errno>\d+))?"
        r"(?:,? on dev (?P<device>[^\s:,]+):(?P<port>\d+)"
        r"(?:, curr state (?P<state>\w+), next state (?P<next_state>\w+))?"
        r"(?:, local GID index (?P<gid_index>\d+))?"
        r"(?:, local GID +(?P<local_gid>[^\s,]+))?(?:, *remote GID +(?P<remote_gid>[^\s,]+))?.*)?$",
    ),
    _shape(
        "completion_error",
        "Got completion",
        r"Got completion (?:from peer (?:(?P<peer>[^\s<>]+)<(?P<peer_port>\d+)> )?)?with "
        r"(?:status=|error )(?P<name>IBV_WC_\w+)?\(?(?P<status>\d+)\)?,? ?"
        r"(?:opcode[= ](?:\w+\()?-?\d+\)?,? ?)?(?:reqSize=\d+ )?(?:len[= ]-?\d+,? ?)?"
        r"(?:vendor[ _]err[= ](?P<vendor_err>\d+))?"
        r"(?: \((?P<side>\w+)\)| req_type=(?P<side2>\w+))?"
        r"(?:.*?local ?Gid ?(?P<local_gid>[0-9a-fA-F:.]+))?"
        r"(?:.*?remote ?Gids? ?(?P<remote_gid>[0-9a-fA-F:.]+))?"
        r"(?:.*?hca (?P<device>[\w.-]+))?",
    ),
    _shape(
        "hca_fatal",
        "async fatal event",
        r"(?:(?P<device>[^\s:]+):(?P<port>\d+) )?async fatal event(?: on (?P<object>\w+)"
        r"(?: \((?P<handle>0x[0-9a-f]+)\))?[^:]*)?: (?P<text>.+?)\s*$",
    ),
    _shape(
        "gid_changed",
        "GID table change",
        r"(?:(?P<device>[^\s:]+):(?P<port>\d+) )?(?:Got (?:non-fatal )?async (?:error )?event ?: )?"
        r"(?P<text>GID table changed?)",
    ),
    _shape(
        "async_event",
        "async ",
        r"(?:(?P<device>[^\s:]+):(?P<port>\d+) )?Got (?:non-fatal )?async (?:error )?event ?: "
        r"(?P<text>[^()]+?)\s*(?:\((?P<event>\d+)\))?\s*$",
    ),
    _shape(
        "connect",
        "onnect",
        r"(?:Connect to|connect to|Call to connect(?: to)?|connect)"
        r"(?: (?P<peer>[^\s<>]+)(?:<(?P<peer_port>\d+)>)?)?"
        r"(?: failed ?: (?:\w+\()?(?P<text>[A-Z][^(),]*?)\)?(?: \((?P<errno2>\d+)\))?"
        r"| returned (?:(?P<errno>\d+)\()?(?P<text2>[A-Z][^(),]*?)\)?)"
        r"(?P<rest>(?: errno \d+.*|, .*)?)\s*$",
    ),
    _shape(
        "peer_closed", "losed by", r"[Cc]onnection closed by (?:remote )?peer(?: " + _PEER + ")?"
    ),
    _shape(
        "socket_call",
        "Call to ",
        r"Call to (?P<call>recv|send|recvmsg|sendmsg|accept|bind|listen|poll|getsockopt|getsockname)"
        r"(?: (?:from|to|on socket)(?: " + _PEER + r")?)? ?(?:failed|returned)"
        r"(?: with)?(?: error)? ?:? ?(?:(?P<errno>\d+)\()?(?P<text>[A-Z][^()]*?)\)?(?: \(\d+\))?\s*$",
    ),
    _shape(
        "foreign_connection",
        "magic",
        r"(?:from "
        + _PEER
        + r": )?(?:wrong magic (?P<got>\w+) != (?P<wanted>\w+)|socket magic mismatch)",
    ),
    _shape(
        "verbs_call_failed",
        "ibv_poll_cq",
        r"Call to (?P<call>ibv_poll_cq) returned error (?P<errno>\d+)(?: : (?P<text>[A-Z].*?))?\s*$",
    ),
    _shape(
        "memory_registration_failed",
        "egister memory",
        r"(?:Unable to|Could not) register memory.*?(?:device (?P<nic>\d+).*?)?"
        r"(?:RC: (?P<result>-?\d+))?(?:, Error: (?P<text>[A-Z].*?))?\s*$",
    ),
    _shape(
        "network_type_mismatch", "incompatible", r"Remote \w+ device is incompatible with the local"
    ),
    _shape("name_not_resolved", "address info", r"getting address info ?: (?P<text>.+?)\s*$"),
    _shape("invalid_comm_id", "NCCL_COMM_ID", r"Invalid NCCL_COMM_ID \[?(?P<peer>[^\s\],]+)"),
    _shape("network_type_mismatch", "wrong type", r"wrong type (?P<got>\d+) != (?P<wanted>\d+)"),
    _shape("no_socket_interface", "no socket interface", r"no socket interface found"),
    _shape(
        "bad_address",
        "AF_INET",
        r"connecting to address (?P<peer>\S*) with family (?P<family>\d+) is neither AF_INET",
    ),
    _shape(
        "proxy",
        "Failed to execute operation",
        r"\[Proxy Service (?P<service>\d+)\] Failed to execute operation (?P<operation>\w+)"
        r" from rank (?P<rank>\d+), retcode (?P<retcode>\d+)",
    ),
    _shape(
        "service_thread_error",
        "Service thread",
        r"\[(?:Proxy )?Service thread\] Error encountered progressing operation=(?P<operation>\w+)"
        r"(?:, res=(?P<retcode>\d+))?",
    ),
    _shape(
        "socket_recv_failed",
        "Socket recv failed",
        r"Socket recv failed while polling for opId=(?P<op_id>0x[0-9a-f]+)",
    ),
    _shape(
        "proxy_call_failed",
        "Proxy Call",
        r"Proxy Call to rank (?P<rank>\d+) failed(?: \((?P<operation>\w+)\))?",
    ),
    _shape(
        "proxy_recv_failed",
        "localRank",
        r"Could not (?:receive|send) (?P<what>\w+).* localRank (?P<local_rank>\d+)",
    ),
    _shape(
        "shm_extend_failed",
        "failed to extend",
        r"failed to extend (?P<path>\S+) to (?P<bytes>\d+) bytes"
        r"(?:, error: (?P<text>[A-Z][^()]*?)(?: \((?P<errno>\d+)\))?)?\s*$",
    ),
    _shape(
        "shm",
        "shared memory segment",
        r"Error while (?P<what>creating|attaching to) shared memory segment (?P<path>\S+)"
        r"(?: \(size (?P<bytes>\d+)\))?"
        r"(?:, error: (?P<text>[A-Z][^()]*?)(?: \((?P<errno>\d+)\))?)?\s*$",
    ),
    _shape(
        "shm_extend_failed",
        "posix_fallocate",
        r"Call to posix_fallocate failed ?: (?P<text>[A-Z].*?)\s*$",
    ),
    _shape(
        "duplicate_gpu",
        "Duplicate GPU",
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<rank2>\d+) both on "
        r"(?:CUDA|HIP|cuda) device (?P<bus_id>[0-9a-f:.]+)",
    ),
    _shape("duplicate_gpu", "using the same GPU", r"Multiple Ranks are using the same GPU"),
    _shape(
        "version_mismatch",
        "ismatch",
        r"Mismatched NCCL version detected ?: rank (?P<rank>\d+) version (?P<version>\S+) "
        r"rank (?P<rank2>\d+) version (?P<version2>\S+)",
    ),
    _shape(
        "version_mismatch",
        "version mismatch",
        r"NCCL version mismatch with remote peer (?P<peer>\S+) "
        r"\(local: (?P<version>[^,]+), remote (?P<version2>[^)]+)\)",
    ),
    _shape(
        "message_truncated",
        "runcated",
        r"[Mm]essage truncated ?: received (?P<bytes>\d+) bytes instead of (?P<wanted>\d+)",
    ),
    _shape(
        "collective_mismatch",
        "collective mismatch",
        r"(?:peer " + _PEER + r" )?collective mismatch error,? local size (?P<local_size>\d+) "
        r"remote (?:size )?(?P<remote_size>\d+)",
    ),
    _shape(
        "collective_mismatch",
        "Mismatched collective",
        r"Mismatched collective detected, .* rank (?P<rank>\d+)",
    ),
    _shape(
        "nic_count_mismatch",
        "Net device counts",
        r"mixed local Net device counts across ranks \(min (?P<min>\d+), max (?P<max>\d+)\)",
    ),
    _shape("device_open_failed", "Unable to open", r"Unable to open device (?P<device>\S+)"),
    _shape(
        "nvls_bind_failed",
        "Multicast memory",
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size (?P<bytes>\d+)"
        r"(?: ?: CUDA error (?P<code>\d+) '(?P<text>[^']*)')?",
    ),
    _shape(
        "imex_unavailable",
        "MNNVL",
        r"MNNVL \(cliqueSize (?P<clique_size>\d+)\) is available but not "
        r"(?P<what>working|supported)",
    ),
    _shape(
        "cuda_failure",
        "failure",
        r"(?:Cuda|CUDA|HIP|hip)\s?failure (?:(?P<code>\d+) )?'(?P<text>[^']*)'?",
    ),
    _shape("network_not_found", "not found", r"[Nn]etwork (?P<network>.+?) not found\.?"),
    _shape("network_not_found", "any NET plugin", r"Failed to initialize any NET plugin"),
    _shape(
        "provider_missing",
        "fi_getinfo",
        r"fi_getinfo\(\)? ?(?:call )?failed ?:? ?(?P<text>[A-Z][\w ]*)?",
    ),
    _shape(
        "provider_missing",
        "provider",
        r"(?:No eligible providers were found|find any optimal provider)",
    ),
    _shape(
        "remote_address_failed",
        "address vector",
        r"Unable to insert remote address into address vector",
    ),
    _shape(
        "ofi_completion_error",
        "completed with error",
        r"completed with error\.?(?: RC: (?P<status>\d+))?(?:\. Error: (?P<text>.+?))?\s*$",
    ),
    _shape(
        "tcpxo_error",
        "NET/FasTrak",
        r"NET/FasTrak.*?(?P<text>INVALID_ARGUMENT|FAILED_PRECONDITION|UNAVAILABLE|INTERNAL"
        r"|DEADLINE_EXCEEDED|PERMISSION_DENIED|NOT_FOUND)",
    ),
    _shape(
        "shim_mismatch",
        "mismatch enforced",
        r"mismatch enforced:? (?P<variable>\w+)=(?P<value>\S*)(?: \(expected (?P<expected>[^)]*)\))?",
    ),
    _shape("shared_memory_limit", "maxSharedMem", r"ncclMaxSharedMem \d+ exceeds"),
    _shape("topology_mismatch", "Could not find", r"Could not find (?P<what>NET|GPU|NIC) with id"),
    _shape("remote_process_exited", "remote process exited", r"remote process exited"),
)


class Fault(NamedTuple):
    """A fault line taken apart: its kind, the typed fields and what else it carries."""

    kind: str
    fields: dict[str, str]
    note: bool
    """It is worth a note only: a port that came up again, a connect that is tried again."""


def fault_of(body: str) -> Fault | None:
    """The fault a WARN (or INFO) text tells, or None where no known shape fits."""
    for kind, hint, pattern in SHAPES:
        if hint in body:
            match = pattern.search(body)
            if match:
                fields = {k: v for k, v in match.groupdict().items() if v is not None}
                return _named(kind, fields)
    return None


def _named(kind: str, fields: dict[str, str]) -> Fault:
    for name in ("text2", "errno0", "errno2", "side2"):
        if name in fields:
            fields.setdefault(name[:-1], fields.pop(name))
    text = fields.get("text", "").strip()
    if "errno" not in fields and text in _ERRNO_OF:
        fields["errno"] = str(_ERRNO_OF[text])
    note = False
    if kind == "verbs":
        kind = _VERBS_KINDS.get(fields["call"], "verbs_call_failed")
    elif kind == "connect":
        rest = fields.pop("rest", "")
        note = "retrying" in rest
        kind = _CONNECT_KINDS.get(int(fields.get("errno", "0")), "connect_failed")
    elif kind == "socket_call":
        kind = _CONNECT_KINDS.get(int(fields.get("errno", "0")), "socket_call_failed")
    elif kind == "shm":
        kind = "shm_create_failed" if fields.pop("what") == "creating" else "shm_attach_failed"
    elif kind == "proxy":
        connects = fields.get("operation") in {"Connect", "Setup"}
        kind = "proxy_connect_failed" if connects else "proxy_failed"
    elif kind == "async_event":
        kind, note = _event_kind(text)
    elif kind == "completion_error" and "name" in fields:
        fields.setdefault("status", str(_WC_NAMES.get(fields["name"], "")))
    return Fault(kind, fields, note)


def _event_kind(text: str) -> tuple[str, bool]:
    if "port error" in text or "port err" in text:
        return "port_event", False
    if "fatal" in text or "catastrophic" in text or "access violation" in text:
        return "hca_fatal", False
    return "device_event", True
