"""From what an NCCL log said to what that means: one answer where hosts and lines agree."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from gpufabric._frozen import FrozenDict
from gpufabric.net.records import (
    Connection,
    Gdr,
    Hca,
    Header,
    HostView,
    Mark,
    NcclLog,
    RankInit,
)

if TYPE_CHECKING:
    from gpufabric.net._nccl_state import HostState, LogState

_SOCKETS: Final = frozenset({"Socket", "FastSocket"})
_INTERNAL: Final = frozenset({"IB", "Socket"})
_PLUGINS: Final = (
    (re.compile(r"(?:AWS )?Libfabric\b|OFI\b"), "aws-ofi-nccl"),
    (re.compile(r"IBext|UCX|NCCL RDMA Plugin|SHARP"), "NCCL RDMA Plugin"),
    (re.compile(r"FastSocket"), "FastSocket"),
    (re.compile(r"FasTrak"), "FasTrak"),
    (re.compile(r"GPUDirectTCPX"), "GPUDirectTCPX"),
    (re.compile(r"gIB"), "gIB"),
)
# Each rank or host has its own value by design.
_OWN_VALUE: Final = frozenset(
    {"NCCL_DEBUG_FILE", "NCCL_HOSTID", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE",
     "NCCL_COMM_ID"}
)  # fmt: skip


def header_of(state: LogState) -> Header:
    """What a log tells that a benchmark's header tells too."""
    n_ranks = _world(state)
    n_nodes, per_node = _nodes(state, n_ranks)
    return Header(
        nccl_version=next(iter(state.versions), None) if state.library != "rccl" else None,
        cuda_driver=state.cuda_driver,
        cuda_build=state.cuda_build,
        n_ranks=n_ranks,
        n_ranks_basis=None if n_ranks is None else "nranks in the NCCL log",
        n_nodes=n_nodes,
        ranks_per_node=per_node,
        library=state.library,
    )


def log_of(state: LogState) -> NcclLog:
    """The whole log in one value."""
    hosts = state.every_host()
    networks = _ordered(name for host in hosts for name in host.networks)
    connections = _connections(state)
    hcas = _hcas(hosts)
    gdr_by_hca = _gdr_by_hca(hosts)
    network = _network(networks, connections)
    oob = next((h.bootstrap or h.oob for h in hosts if h.bootstrap or h.oob), None)
    sockets = {name: address for host in hosts for name, address in host.sockets.items()}
    env = _common_env(hosts)
    n_ranks = _world(state)
    n_nodes, per_node = _nodes(state, n_ranks)
    layers = {hca.link_layer for hca in hcas if hca.link_layer}
    return NcclLog(
        network=network,
        networks=networks,
        net_plugin=_plugin(network or _carrier(connections), state),
        provider=state.provider,
        n_provider_nics=state.n_provider_nics,
        fabric=state.facts.get("fabric"),
        protocol=state.facts.get("protocol"),
        platform=state.facts.get("platform"),
        plugin_version=state.facts.get("plugin_version"),
        libfabric_version=state.facts.get("libfabric_version"),
        hcas=hcas or None,
        link_layer=None if not layers else (layers.pop() if len(layers) == 1 else "mixed"),
        relaxed_ordering=state.relaxed_ordering,
        gdr=_gdr(state, connections, gdr_by_hca, n_nodes),
        gdr_by_hca=FrozenDict(gdr_by_hca) if gdr_by_hca else None,
        ring_gdr=state.ring[1] if state.ring else None,
        ring_pxn=state.ring[0] if state.ring else None,
        inter_node_transport=_inter_node(connections),
        intra_node_transport=_intra_node(connections),
        oob_interface=oob[0] if oob else None,
        oob_address=oob[1] if oob else None,
        socket_interfaces=tuple(sockets) or None,
        socket_addresses=FrozenDict(sockets),
        env=FrozenDict(env) if env else None,
        env_by_host_differs=_differing_env(hosts),
        channels=state.channels.get("coll", state.channels.get("ring")),
        nvls_channels=state.channels.get("nvls"),
        collnet_channels=state.channels.get("collnet"),
        p2p_channels=state.channels.get("p2p"),
        n_ranks=n_ranks,
        n_nodes=n_nodes,
        ranks_per_node=per_node,
        mnnvl=state.layout[3] if state.layout else None,
        nvls=state.nvls,
        n_hosts_seen=(len(state.hosts) + len(state.more_hosts)) or None,
        hosts=tuple(_view(host) for host in state.hosts.values()),
        hosts_left_out=len(state.more_hosts),
        comm_id=_world_comm(state),
        n_comms=len(state.comms) + state.n_comms_left_out,
        ranks=_ranks(state),
        ranks_left_out=state.ranks_left_out,
        connections=connections,
        marks=_marks(state),
        versions=tuple(state.versions),
        library=state.library,
        return_codes=tuple(state.return_codes),
        info_lines=state.info_lines,
        warn_lines=state.warn_lines,
        trace_lines=state.trace_lines,
        torn_lines=state.torn_lines,
        last_time=state.last_time,
    )


def plugin_of(network: str | None) -> str | None:
    """The plugin that a network's or a loaded plugin's name belongs to."""
    if network is None:
        return None
    if network in _INTERNAL:
        return "internal"
    return next((name for pattern, name in _PLUGINS if pattern.match(network)), network)


def _plugin(network: str | None, state: LogState) -> str | None:
    """The plugin behind the network in use, else the one loaded, else the built-in one if told."""
    speaks = [m.values["plugin"] for (name, _), m in state.marks.items() if name == "plugin_speaks"]
    if network is not None and not network.startswith("uninitialized_shim"):
        return plugin_of(network)
    if speaks:
        return plugin_of(speaks[0])  # behind Google's shim, or the only one to speak
    if network is not None:
        return network
    loaded = next((host.loaded for host in state.every_host() if host.loaded), None)
    if loaded is None and ("plugin_internal", "") in state.marks:
        return "internal"
    return plugin_of(loaded)


def _network(networks: tuple[str, ...], connections: tuple[Connection, ...]) -> str | None:
    """The network in use. Where hosts name several, the one that carries the connections."""
    carrying = _carrier(connections)
    if len(networks) > 1 and carrying in networks:
        return carrying
    return networks[0] if networks else None


def _carrier(connections: tuple[Connection, ...]) -> str | None:
    """The network that most connections between nodes name."""
    used = Counter[str]()
    for connection in connections:
        if connection.transport.startswith("NET/"):
            used[connection.transport.split("/")[1]] += connection.count
    return used.most_common(1)[0][0] if used else None


def _connections(state: LogState) -> tuple[Connection, ...]:
    return tuple(
        Connection(
            transport=transport,
            direction=direction,
            network=transport.startswith(("NET/", "COLLNET/")),
            count=counter[0],
            first=state.first_connection[transport, direction],
        )
        for (transport, direction), counter in state.connections.items()
    )


def _inter_node(connections: tuple[Connection, ...]) -> str | None:
    """The form most network connections have; * stands for a device number that differs."""
    totals: dict[str, int] = {}
    devices: dict[str, set[str]] = {}
    for connection in connections:
        if not connection.transport.startswith("NET/"):
            continue
        kind, name, device, *rest = connection.transport.split("/")
        form = "/".join([kind, name, "*", *rest])
        totals[form] = totals.get(form, 0) + connection.count
        devices.setdefault(form, set()).add(device)
    if not totals:
        mnnvl = any(c.transport.startswith("P2P/MNNVL") for c in connections)
        return "P2P/MNNVL" if mnnvl else None
    form = max(totals, key=lambda key: totals[key])
    numbers = devices[form]
    return form.replace("*", numbers.pop()) if len(numbers) == 1 else form


def _intra_node(connections: tuple[Connection, ...]) -> str | None:
    totals = Counter[str]()
    for connection in connections:
        if not connection.network and not connection.transport.startswith("P2P/MNNVL"):
            totals[re.sub(r"\d+\[[0-9a-f]+\]", "*", connection.transport)] += connection.count
    return totals.most_common(1)[0][0] if totals else None


def _gdr(
    state: LogState,
    connections: tuple[Connection, ...],
    by_hca: dict[str, bool],
    n_nodes: int | None,
) -> Gdr | None:
    """Connections prove it; without them, what NCCL says of each HCA, then of the ring."""
    seen: set[bool] = set()
    for connection in connections:
        if connection.transport.startswith("NET/"):
            seen.add("/GDRDMA" in connection.transport)
    if not seen:
        seen = set(by_hca.values())
    if not seen and state.ring and n_nodes is not None and n_nodes > 1:
        seen = {state.ring[1]}
    if not seen:
        return None
    if len(seen) > 1:
        return Gdr.MIXED
    return Gdr.ENABLED if seen.pop() else Gdr.DISABLED


def _gdr_by_hca(hosts: list[HostState]) -> dict[str, bool]:
    out: dict[str, bool] = {}
    for host in hosts:
        for name, enabled in host.gdr.items():
            out[name] = enabled and out.get(name, True)
    return out


def _hcas(hosts: list[HostState]) -> tuple[Hca, ...]:
    found: dict[str, dict[str, object]] = {}
    for host in hosts:
        for name, fields in host.hcas.items():
            found.setdefault(name, fields)
    return tuple(_hca(name, fields) for name, fields in found.items())


def _hca(name: str, fields: dict[str, object]) -> Hca:
    return Hca(name=name, **fields)  # type: ignore[arg-type]  # the fields of Hca, by the reader


def _view(host: HostState) -> HostView:
    oob = host.bootstrap or host.oob
    networks = tuple(host.networks)
    return HostView(
        host=host.name,
        networks=networks,
        net_plugin=plugin_of(networks[0] if networks else host.loaded),
        nccl_version=host.version,
        hcas=tuple(_hca(name, fields) for name, fields in host.hcas.items()),
        env=FrozenDict(host.env),
        gdr_by_hca=FrozenDict(host.gdr),
        oob_interface=oob[0] if oob else None,
        oob_address=oob[1] if oob else None,
        socket_interfaces=tuple(host.sockets),
        lineno=host.lineno,
    )


def _common_env(hosts: list[HostState]) -> dict[str, str]:
    """What NCCL read, the first value of each name."""
    out: dict[str, str] = {}
    for host in hosts:
        for name, value in host.env.items():
            out.setdefault(name, value)
    return out


def _differing_env(hosts: list[HostState]) -> tuple[str, ...]:
    values: dict[str, set[str]] = {}
    for host in hosts:
        for name, value in host.env.items():
            values.setdefault(name, set()).add(value)
    return tuple(n for n, seen in values.items() if len(seen) > 1 and n not in _OWN_VALUE)


def _world(state: LogState) -> int | None:
    """Ranks of the largest communicator: the job's own, not one of its parts."""
    sizes = [entry.n_ranks for entry in state.ranks.values()]
    sizes += state.comms.values()
    if state.layout:
        sizes.append(state.layout[0])
    return max(sizes) if sizes else None


def _world_comm(state: LogState) -> str | None:
    n_ranks = _world(state)
    return next((name for name, size in state.comms.items() if size == n_ranks), None)


def _nodes(state: LogState, n_ranks: int | None) -> tuple[int | None, int | None]:
    if state.layout:
        return state.layout[1], state.layout[2]
    comm = _world_comm(state)
    seats = Counter(
        entry.host
        for entry in state.ranks.values()
        if entry.comm == comm and entry.n_ranks == n_ranks
    )
    if n_ranks is None or None in seats or sum(seats.values()) != n_ranks:
        return None, None  # not every rank has spoken: the rest may be anywhere
    sizes = set(seats.values())
    return len(seats), (sizes.pop() if len(sizes) == 1 else None)


def _ranks(state: LogState) -> tuple[RankInit, ...]:
    return tuple(
        RankInit(
            rank=entry.rank,
            n_ranks=entry.n_ranks,
            host=entry.host,
            comm_id=entry.comm,
            local_dev=entry.dev,
            nvml_dev=entry.nvml,
            bus_id=entry.bus_id,
            started=entry.started,
            complete=entry.complete,
            lineno=entry.lineno,
        )
        for entry in state.ranks.values()
    )


def _marks(state: LogState) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            name=name,
            count=mark.count,
            first=mark.first,
            level=mark.level,
            hosts=tuple(mark.hosts),
            values=FrozenDict(mark.values),
        )
        for (name, _), mark in state.marks.items()
    )


def _ordered(names: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))  # type: ignore[call-overload]  # an iterable of names
