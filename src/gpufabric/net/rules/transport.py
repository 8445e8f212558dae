"""Rules: which network carries the traffic, and why it is not the wanted one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpufabric.net.diagnosis import Severity
from gpufabric.net.records import Evidence, NetError
from gpufabric.net.rules.case import (
    SOCKETS,
    Case,
    evidence_of,
    flat_speed,
    row_evidence,
)
from gpufabric.net.rules.rule import Match, Rule, fires

_CLOUD_PLUGINS: Final = {"FasTrak": "NCCL_FASTRAK_", "GPUDirectTCPX": "NCCL_GPUDIRECTTCPX_"}


def _socket_fallback(case: Case) -> Iterable[Match]:
    if case.tcp_is_meant:
        return ()
    if case.uses_socket and case.crosses_nodes:
        sockets = [c for c in case.log.connections if c.transport.startswith("NET/")]
        about = f"{sum(c.count for c in sockets)} connections go by sockets" if sockets else ""
        return fires(*evidence_of([*case.marks("network")[:1], *sockets[:2]]), about=about)
    if case.networks:
        return ()
    return _flat_tables(case)


def _flat_tables(case: Case) -> Iterable[Match]:
    """A benchmark that is flat at TCP's speed, on GPUs that are sold with RDMA."""
    if not case.is_datacenter_gpu or not case.crosses_nodes:
        return ()
    if case.report.header.ranks_per_node is not None and case.report.header.ranks_per_node < 4:
        return ()
    for table in case.tables:
        speed = flat_speed(table)
        if speed is not None:
            return fires(
                *map(row_evidence, table.rows[-2:]),
                about=f"busbw stays at {speed:.1f} GB/s from 32 MiB up",
            )
    return ()


def _single_node(case: Case) -> Iterable[Match]:
    if case.uses_socket and case.crosses_nodes is False:
        return fires(*evidence_of(case.marks("network")[:1]))
    return ()


def _no_rdma_device(case: Case) -> Iterable[Match]:
    wanted = [e for e in case.errors("network_not_found") if _wanted(case, e) == "IB"]
    if wanted:
        return fires(*evidence_of(wanted), about="NCCL_NET=IB is set")
    marks = [m for m in case.marks("no_ib_device") if m.values.get("net", "IB") == "IB"]
    if not marks or case.carried:
        return ()
    about = _hosts(marks[0].hosts)
    return fires(*evidence_of(marks), about=about, severity=_if_one_node(case))


def _wanted(case: Case, error: NetError) -> str | None:
    """The network that NCCL_NET names and that is not there."""
    return error.values.get("network") or case.env.get("NCCL_NET")


def _no_library(case: Case) -> Iterable[Match]:
    marks = case.marks("libibverbs_missing")
    if not marks or case.carried:
        return ()
    return fires(*evidence_of(marks), severity=_if_one_node(case))


def _if_one_node(case: Case) -> Severity | None:
    """A note where the job may well be on one machine and nothing has failed."""
    unknown = case.crosses_nodes is None and (case.n_ranks or 16) <= 8
    return Severity.NOTE if unknown and not case.root_errors else None


def _disabled(case: Case) -> Iterable[Match]:
    if case.env.get("NCCL_IB_DISABLE") != "1" or case.carried:
        return ()
    return fires(case.env_evidence("NCCL_IB_DISABLE"), severity=_if_one_node(case))


def _wrong_plugin(case: Case) -> Iterable[Match]:
    absent = [e for e in case.errors("network_not_found") if _wanted(case, e) != "IB"]
    if absent:
        name = _wanted(case, absent[0]) or "the one that NCCL_NET names"
        return fires(*evidence_of(absent), about=f"no plugin brings the network {name}")
    if case.crosses_nodes is False or case.tcp_is_meant:
        return ()
    missing = case.marks("libibverbs_config_missing")
    if missing and case.uses_socket and "gib" in missing[0].first.text.lower():
        return fires(*evidence_of(missing), about="the folder of gIB is not mounted")
    about = _misfit(case)
    lines = evidence_of(case.marks("network", "plugin_loaded")[:2])
    return fires(*lines, about=about) if about else ()


def _misfit(case: Case) -> str:
    """Why the plugin in use is not the one that belongs here; empty where it may be."""
    plugin = case.log.net_plugin
    wanted = case.promise.plugins if case.promise else ()
    # Plain sockets are a fall-back, not a choice of plugin: socket_fallback tells of it.
    fell_back = set(case.networks) == {"Socket"}
    if wanted and plugin is not None and plugin not in wanted and not fell_back:
        return f"{plugin} is in use, {' or '.join(wanted)} belongs here"
    for name, prefix in _CLOUD_PLUGINS.items():
        meant = any(variable.startswith(prefix) for variable in case.env)
        if meant and case.networks and not any(n.startswith(name) for n in case.networks):
            return f"variables of {name} are set, and {case.networks[0]} is in use"
    if case.is_datacenter_gpu and "FastSocket" in case.networks and case.crosses_nodes:
        return "FastSocket is TCP, on GPUs sold with RDMA"
    return ""


def _plugin_glibc(case: Case) -> Iterable[Match]:
    marks = case.marks("plugin_needs_glibc")
    if marks:
        return fires(*evidence_of(marks))
    wanted = case.promise.plugins if case.promise else ()
    missing = case.marks("plugin_not_found")
    needs_own = bool(wanted) and "internal" not in wanted
    if needs_own and missing and case.log.net_plugin not in wanted and case.crosses_nodes:
        return fires(*evidence_of(missing), about=f"{' or '.join(wanted)} was not found at all")
    return ()


def _mixed(case: Case) -> Iterable[Match]:
    errors = case.any_errors("network_type_mismatch")
    if errors:
        return fires(*evidence_of(errors))
    by_host = {host.host: host.networks for host in case.log.hosts if host.networks}
    socket = [host for host, names in by_host.items() if all(n in SOCKETS for n in names)]
    fast = [host for host, names in by_host.items() if any(n not in SOCKETS for n in names)]
    if not socket or not fast:
        return ()
    lines = [h.lineno for h in case.log.hosts if h.host in socket]
    slow = Evidence(lines[0] or 0, f"{', '.join(socket[:4])}: {by_host[socket[0]][0]}")
    marks = evidence_of(case.marks("network"))
    return fires(*(marks or (slow,)), about=f"{_hosts(tuple(socket))} by sockets")


def _not_all_nics(case: Case) -> Iterable[Match]:
    promise = case.promise or case.platform
    if promise is None or promise.n_nics is None or promise.n_nics < 2:
        return ()
    if case.marks("virtual_device") or any(h.merged_into is not None for h in case.log.hcas or ()):
        return ()
    whole = promise.node_gpus
    used_gpus = case.report.header.ranks_per_node or case.log.ranks_per_node
    if whole is not None and used_gpus is not None and used_gpus < whole:
        return ()
    seen = _nics_seen(case)
    if seen is None or seen >= promise.n_nics or seen == 0:
        return ()
    about = f"{seen} of the {promise.n_nics} NICs of {promise.instance_type} are in use"
    marks = case.marks("provider") or case.marks("network")
    hcas = " ".join(h.name for h in case.log.hcas or ())[:200]
    told = evidence_of(marks[:1]) or (Evidence(0, hcas or f"{seen} NICs"),)
    return fires(*told, about=about)


def _nics_seen(case: Case) -> int | None:
    if case.log.n_provider_nics is not None:
        return case.log.n_provider_nics
    if case.log.hcas and not any(h.merged_into is not None for h in case.log.hcas):
        return len(case.log.hcas)
    return None


def _no_nic(case: Case) -> Iterable[Match]:
    if case.fact("n_gids_found") == 0 and not case.devices.hcas:
        return fires(case.fact_evidence("n_gids_found", "n_gids_found=0"))
    return ()


def _loopback(case: Case) -> Iterable[Match]:
    if case.crosses_nodes is False:
        return ()
    named = case.log.oob_interface == "lo" or (case.log.oob_address or "").startswith("127.")
    only_lo = case.log.socket_interfaces is not None and case.log.socket_interfaces == ("lo",)
    if not named and not only_lo:
        return ()
    if case.crosses_nodes is None and not case.root_errors:
        return ()
    marks = case.marks("bootstrap")
    at = next((h.lineno for h in case.log.hosts if h.oob_interface == "lo"), None)
    line = Evidence(at or 0, f"bootstrap over lo:{case.log.oob_address or '127.0.0.1'}")
    return fires(*(evidence_of(marks) or (line,)))


def _efa_missing(case: Case) -> Iterable[Match]:
    errors = case.errors("provider_missing")
    if errors:
        return fires(*evidence_of(errors))
    empty = case.marks("efa_list_empty")
    if empty and case.uses_socket:
        # Plugins ask several times, with more and with less; it counts where none was answered.
        return fires(*evidence_of(empty))
    if case.fact("fi_getinfo_error") is not None and not case.fact("providers"):
        text = f"fi_getinfo: {case.fact('fi_getinfo_error')} ({case.fact('fi_getinfo_text')})"
        return fires(case.fact_evidence("fi_getinfo_error", text))
    return ()


def _hosts(hosts: Iterable[str]) -> str:
    names = list(hosts)
    return f"on {', '.join(names[:4])}{' and more' if len(names) > 4 else ''}" if names else ""


RULES: Final = (
    Rule(
        id="no_rdma_device_visible",
        title="no RDMA device visible",
        severity=Severity.CRITICAL,
        cause="NCCL looked for RDMA devices and found none: they are not passed into the container"
        " or the machine, or their driver is not loaded.",
        remedy="Run `ls /sys/class/infiniband /dev/infiniband` where the job runs. In a pod, ask"
        " for the platform's RDMA resource and add the IPC_LOCK capability; with docker, add"
        " `--device=/dev/infiniband --cap-add=IPC_LOCK`; on the host, load ib_uverbs and the NIC's"
        " driver.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/952",
            "https://github.com/NVIDIA/nccl/issues/226",
        ),
        when=_no_rdma_device,
    ),
    Rule(
        id="rdma_library_missing",
        title="libibverbs is not installed",
        severity=Severity.ERROR,
        cause="The image has no libibverbs, so NCCL cannot use InfiniBand or RoCE whatever the"
        " machine has.",
        remedy="Add the verbs libraries to the image: `apt-get install -y libibverbs1"
        " ibverbs-providers` (or rdma-core), then look for `NET/IB : Using` in the log.",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/82",
            "https://github.com/NVIDIA/nccl-tests/issues/287",
        ),
        when=_no_library,
    ),
    Rule(
        id="ib_disabled_by_env",
        title="InfiniBand/RoCE is switched off by a variable",
        severity=Severity.CRITICAL,
        cause="NCCL_IB_DISABLE=1 is in the environment, often left from a recipe for machines"
        " without RDMA.",
        remedy="Run `unset NCCL_IB_DISABLE` on every node and in the launcher's list of variables;"
        " also look into /etc/nccl.conf and ~/.nccl.conf.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1053",
            "https://github.com/NVIDIA/nccl-tests/issues/82",
        ),
        when=_disabled,
    ),
    Rule(
        id="wrong_network_plugin",
        title="the plugin of another network is loaded",
        severity=Severity.CRITICAL,
        cause="NCCL took another network plugin than the one made for this network: the image or"
        " LD_LIBRARY_PATH carries a different libnccl-net.",
        remedy="Put the platform's plugin first in LD_LIBRARY_PATH (and remove the other one), set"
        " NCCL_NET_PLUGIN to its name, and NCCL_NET to its network so that a fall-back fails"
        " at once.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/1519",
            "Google Cloud documentation, NCCL/gIB troubleshooting",
        ),
        when=_wrong_plugin,
        explained_by=frozenset(
            {"efa_provider_missing", "plugin_needs_newer_glibc", "mixed_network_types"}
        ),
    ),
    Rule(
        id="plugin_needs_newer_glibc",
        title="the network plugin cannot be loaded",
        severity=Severity.CRITICAL,
        cause="The network plugin is there or should be, and the loader refuses it: it was built"
        " for a newer system than the image. NCCL goes on without it.",
        remedy="Use the build of the plugin that fits the image, or a newer base image; `ldd"
        " --version` inside the container shows its glibc, `ldd libnccl-net.so` what is missing.",
        sources=(
            "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html",
            "Google Cloud documentation, NCCL/gIB troubleshooting",
        ),
        when=_plugin_glibc,
    ),
    Rule(
        id="mixed_network_types",
        title="the nodes use different networks",
        severity=Severity.CRITICAL,
        cause="Some processes chose RDMA and others sockets, so their connections do not fit"
        " together: one node lacks its devices or has another environment.",
        remedy="Compare the `Using network` lines by host, repair the node that says Socket, and"
        " set NCCL_NET to the wanted network on all nodes.",
        sources=(
            "https://github.com/NVIDIA/nccl-tests/issues/188",
            "https://github.com/hiyouga/LLaMA-Factory/issues/3641",
        ),
        when=_mixed,
    ),
    Rule(
        id="efa_provider_missing",
        title="libfabric finds no EFA",
        severity=Severity.CRITICAL,
        cause="libfabric has no efa provider to offer: the EFA device is not in the container, the"
        " instance has none, or libfabric is too old or told to use another provider.",
        remedy="Run `fi_info -p efa` where the job runs. On EKS ask for vpc.amazonaws.com/efa; with"
        " docker pass /dev/infiniband; install the current EFA installer; unset FI_PROVIDER.",
        sources=(
            "https://github.com/aws/aws-ofi-nccl/issues/1020",
            "https://github.com/aws/aws-ofi-nccl/issues/889",
            "https://github.com/aws/aws-ofi-nccl/issues/803",
        ),
        when=_efa_missing,
    ),
    Rule(
        id="nic_not_in_container",
        title="no RDMA interface in the pod",
        severity=Severity.CRITICAL,
        cause="The container has no RDMA interface: its network attachment or claim is missing.",
        remedy="Attach the RDMA networks to the pod (annotation or ResourceClaim of the platform),"
        " then `show_gids` and `ls /sys/class/infiniband` must list one device a NIC.",
        sources=(
            "https://github.com/google/dranet/blob/main/site/content/docs/user/nvidia-dranet.md",
            "https://github.com/aws/aws-ofi-nccl/issues/1020",
        ),
        when=_no_nic,
    ),
    Rule(
        id="loopback_interface",
        title="the loopback interface is used between nodes",
        severity=Severity.CRITICAL,
        cause="Processes give each other 127.0.0.1: NCCL_SOCKET_IFNAME names lo, or no other"
        " interface is up.",
        remedy="Set NCCL_SOCKET_IFNAME to the interface with the route to the other nodes (`ip"
        " route get <address of another node>` names it).",
        sources=("https://github.com/NVIDIA/nccl/issues/1053",),
        when=_loopback,
    ),
    Rule(
        id="fewer_nics_than_instance_has",
        title="not all NICs of the node are used",
        severity=Severity.ERROR,
        cause="Fewer NICs carry traffic than the machine is sold with, so bandwidth is lost in"
        " proportion.",
        remedy="Ask for all of them in the pod or launch template, remove a filter in NCCL_IB_HCA,"
        " and look for ports that are down (`ibstat`, `fi_info -p efa`).",
        sources=(
            "https://github.com/aws/aws-ofi-nccl",
            "https://github.com/NVIDIA/dgx-spark-playbooks/issues/102",
        ),
        when=_not_all_nics,
        confidence="inferred",
    ),
    Rule(
        id="socket_fallback",
        title="TCP instead of RDMA between nodes",
        severity=Severity.CRITICAL,
        cause="The traffic between nodes goes over TCP sockets, a hundredth of what the RDMA"
        " network of such machines gives.",
        remedy="Find out why RDMA was passed over: run once with NCCL_DEBUG=INFO"
        " NCCL_DEBUG_SUBSYS=INIT,ENV,NET and look for `No device found`, a plugin that was not"
        " loaded, and NCCL_IB_DISABLE. Then set NCCL_NET to the wanted network, so that a"
        " fall-back becomes an error.",
        sources=(
            "https://github.com/NVIDIA/nccl/issues/952",
            "https://github.com/Azure/aks-rdma-infiniband/blob/main/tests/expected-output.md",
        ),
        when=_socket_fallback,
    ),
    Rule(
        id="socket_fallback_single_node",
        title="sockets chosen on one node",
        severity=Severity.NOTE,
        cause="All ranks are on one machine, where NVLink or shared memory carries the traffic; no"
        " NIC is needed.",
        remedy="Nothing to do.",
        sources=(
            "https://github.com/vllm-project/vllm/issues/9193",
            "https://github.com/vllm-project/vllm/issues/2734",
        ),
        when=_single_node,
    ),
)
