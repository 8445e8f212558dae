# ruff: noqa: E501, ARG001 - one shape, one line, to hold it against a log; handlers are called alike
"""What NCCL's INFO texts say, shape by shape, and what each is remembered as.

``HANDLERS`` maps the first three letters of a text (or "" for anywhere) to shapes: a word that must
be in the text, the pattern, and the function that remembers it. A handler answers whether the
same text from the same host would say nothing new.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from gpufabric.net._nccl_frame import Who
    from gpufabric.net._nccl_state import LogState

Handler: TypeAlias = "Callable[[LogState, re.Match[str], Who, int, str], bool]"

_TRANSPORT = re.compile(
    r"(?P<net>(?:NET|COLLNET)/(?P<name>[A-Za-z][\w .-]*?)/(?P<dev>\d+)(?:\(\d+\))?"
    r"(?P<gdr>/GDRDMA(?:\(\w+\))?)?(?:/[Ss]hared)?)"
    r"|(?P<node>P2P/(?:IPC|CUMEM|MNNVL|DMA_BUF|direct(?: pointer)?|indirect/\d+\[[0-9a-f]+\])(?:/\w+)?"
    r"|SHM(?:/\w+)*|direct (?:shared memory|pointer)|P2P)"
)
_AFTER: Final = re.compile(r"\s*(?:comm 0x[0-9a-f]+(?: nRanks \d+)?)?\s*$")


def transport_of(text: str) -> str | None:
    """The transport after "via" as printed, without what differs by rank; None where torn."""
    match = _TRANSPORT.match(text)
    if match is None or not _AFTER.match(text, match.end()):
        return None
    if match["net"]:
        start = match["net"].partition("/")[0]
        return f"{start}/{match['name']}/{match['dev']}{match['gdr'] or ''}"
    return match["node"]


# -- handlers ------------------------------------------------------------------------------


def _version(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    if len(state.versions) < 64:
        state.versions.setdefault(match["version"])
    host = state.host(who.host)
    host.version = host.version or match["version"]
    build = match.groupdict().get("build")
    state.cuda_build = state.cuda_build or build
    if raw.lstrip().startswith("RCCL") or "RCCL version" in raw:
        state.library = "rccl"
    return True


def _driver(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    state.cuda_driver = state.cuda_driver or int(match[1][:9])
    return True


def _bootstrap(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    host = state.host(who.host)
    host.bootstrap = host.bootstrap or (match["name"], match["address"])
    return True


_TELLING: Final = frozenset(
    {"NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA",
     "NCCL_CONF_FILE", "NCCL_MNNVL_ENABLE"}
)  # fmt: skip
"""Variables that a finding shows as its evidence, so their line is kept."""


def _env(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    value = match["value"].strip()
    if re.fullmatch(r"-?\d+\.", value):
        value = value[:-1]  # integer parameters are printed with a full stop
    state.env(who.host, match["name"], value)
    if match["name"] in _TELLING:
        state.mark("env", who.host, lineno, raw, "INFO",
                   {"name": match["name"], "value": value}, key=match["name"])  # fmt: skip
    return True


def _network(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    networks = state.host(who.host).networks
    if len(networks) < 16:
        networks.setdefault(match["network"].strip())
    state.mark("network", who.host, lineno, raw, "INFO", {"network": match["network"].strip()},
               key=match["network"].strip())  # fmt: skip
    return True


def _loaded(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    host = state.host(who.host)
    host.loaded = host.loaded or match["plugin"].strip()
    state.mark("plugin_loaded", who.host, lineno, raw, "INFO",
               {"plugin": match["plugin"].strip(), "api": match["api"] or ""},
               key=match["plugin"])  # fmt: skip
    return True


_NIC = re.compile(r"\[(?P<index>\d+)\](?:=?\{(?P<merged>[^}]*)\}|(?P<one>[^\s\[\];{}]+))")
_ONE = re.compile(
    r"(?P<name>[^\s:]+):(?P<port>\d+)(?::[^/\s]*)?/(?P<layer>[A-Za-z]+)(?P<sharp>/SHARP)?"
)
_ADDRESS = re.compile(r"(?P<name>[^\s:\[\]]+):(?P<address>\S+?)<\d*>")


def _nics(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    """The list after "NET/<network> : Using", of NICs (IB and its kin) or of interfaces."""
    host = state.host(who.host)
    listed, _, oob = match["list"].partition("; OOB ")
    address = _ADDRESS.match(oob)
    if address:
        host.oob = host.oob or (address["name"], address["address"])
    found = False
    for nic in _NIC.finditer(listed):
        index = int(nic["index"][:6])
        for one in _ONE.finditer(nic["merged"] or nic["one"] or ""):
            found = True
            if len(host.hcas) < 256:
                host.hcas.setdefault(
                    one["name"],
                    {
                        "index": index,
                        "port": int(one["port"][:4]),
                        "link_layer": one["layer"],
                        "sharp": one["sharp"] is not None,
                        "merged_into": index if nic["merged"] else None,
                    },
                )
    if found:
        ordering = "[RO]" in listed
        state.relaxed_ordering = ordering if state.relaxed_ordering is None else (
            state.relaxed_ordering and ordering
        )  # fmt: skip
    elif "Socket" in match["net"]:
        for interface in _ADDRESS.finditer(listed):
            if len(host.sockets) < 64:
                host.sockets.setdefault(interface["name"].split("]")[-1], interface["address"])
    return True


def _nic_detail(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    hcas = state.host(who.host).hcas
    known = hcas.get(match["name"])
    if known is None and len(hcas) < 256:
        known = hcas.setdefault(match["name"], {"index": int(match["index"][:6])})
    if known is not None:
        known.setdefault("link_layer", match["layer"])
        known["speed_mbps"] = int(match["speed"][:12])
        known["pci_path"] = match["path"]
    return True


def _gdr_hca(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    enabled = match["word"].lower() == "enabled"
    name = match["name"]
    socket = "Socket" in match["net"]
    state.mark("gdr_hca_socket" if socket else f"gdr_hca_{match['word'].lower()}", who.host, lineno,
               raw, "INFO", {"device": name, "how": match["how"] or ""}, key=name)  # fmt: skip
    gdr = state.host(who.host).gdr
    if not socket and len(gdr) < 256:
        gdr[name] = enabled and gdr.get(name, True)
    return True


def _gdr_pair(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    word = match["word"].lower()
    values = {k: v for k, v in match.groupdict().items() if v is not None and k != "word"}
    state.mark(f"gdr_pair_{word}", who.host, lineno, raw, "INFO", values,
               key=f"{values.get('distance')}{values.get('limit')}")  # fmt: skip
    return True


def _init(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    rank, n_ranks = int(match["rank"][:9]), int(match["nranks"][:9])
    comm = match["comm_id"] or None
    phase = match["phase"]
    if comm:
        state.comm(comm, n_ranks)
    entry = state.rank(comm, rank, n_ranks, lineno)
    if entry is None:
        return False
    entry.host = who.host or entry.host
    entry.dev = _int(match["dev"]) if match["dev"] else entry.dev
    entry.nvml = _int(match["nvml"]) if match["nvml"] else entry.nvml
    entry.bus_id = match["bus"] or entry.bus_id
    entry.comm = comm
    if phase == "START":
        entry.started = True
    else:
        entry.complete = True
    return False


def _ended(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    state.mark(f"comm_{match['what'].lower()}", who.host, lineno, raw, "INFO")
    return False


def _layout(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    mnnvl = match["mnnvl"]
    found = (
        int(match["nranks"][:9]),
        int(match["nnodes"][:9]),
        int(match["local"][:9]),
        None if mnnvl is None else mnnvl != "0",
    )
    old = state.layout
    if old is None or found[0] > old[0]:
        state.layout = found
    elif found[:2] == old[:2] and found[2] != old[2]:
        state.layout = (old[0], old[1], None, old[3])
    return False


def _channels(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    for name in ("coll", "collnet", "nvls", "p2p", "per_peer"):
        value = match[name]
        if value is not None:
            state.channels[name] = max(int(value[:6]), state.channels.get(name, 0))
    return True


def _ring_order(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    """The order of ranks in a ring; what stands behind the slash is the number of rings."""
    state.channels["ring"] = max(int(match["ring"][:6]), state.channels.get("ring", 0))
    return True


def _ring(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    pxn, gdr = match["pxn"] == "1", match["gdr"] == "1"
    old = state.ring
    state.ring = (pxn, gdr) if old is None else (old[0] or pxn, old[1] and gdr)
    return True


def _nvls(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    available = match["no"] is None
    state.nvls = available if state.nvls is None else state.nvls and available
    name = "nvls_available" if available else "nvls_unavailable"
    state.mark(name, who.host, lineno, raw, "INFO")
    return True


def _provider(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    state.provider = state.provider or match["provider"]
    if match["nics"]:
        nics = int(match["nics"][:6])
        # The node with the fewest decides what the job as a whole has.
        state.n_provider_nics = min(nics, state.n_provider_nics or nics)
    if match["fabric"]:
        state.facts.setdefault("fabric", match["fabric"])
    state.mark("provider", who.host, lineno, raw, "INFO",
               {k: v for k, v in match.groupdict().items() if v}, key=match[0])  # fmt: skip
    return True


def _fact(name: str) -> Handler:
    """Remembers one word under a name, and marks the line."""

    def remember(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
        state.facts.setdefault(name, match[1].strip())
        state.mark(name, who.host, lineno, raw, "INFO", {"text": match[1].strip()}, key=match[1])
        return True

    return remember


def _mark(name: str) -> Handler:
    """Counts the line under a name, with the named groups of its pattern."""

    def remember(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
        values = {k: v for k, v in match.groupdict().items() if v is not None}
        state.mark(name, who.host, lineno, raw, "WARN" if " NCCL WARN " in raw else "INFO", values,
                   key=" ".join(values.values()))  # fmt: skip
        return True

    return remember


def _not_found(state: LogState, match: re.Match[str], who: Who, lineno: int, raw: str) -> bool:
    state.mark("plugin_not_found", who.host, lineno, raw, "INFO")
    if match["internal"]:
        state.mark("plugin_internal", who.host, lineno, raw, "INFO")
    return True


def _int(text: str) -> int:
    return int(text[:9])


_Row: TypeAlias = "tuple[str, re.Pattern[str], Handler]"
_SHAPES: list[tuple[str, str, str, Handler]] = [
    ("NCC", "NCCL version", r"NCCL version (?P<version>\d+(?:\.\w+)+)(?:-\w+)?(?:\+cuda(?P<build>[\d.]+))?", _version),
    ("RCC", "RCCL version", r"RCCL version ?:? ?(?P<version>\d+(?:\.\w+)+)(?:\+hip(?P<hip>[\d.]+))?", _version),
    ("", "nccl==", r"nccl==(?P<version>\d+(?:\.\d+)+)", _version),
    ("NCC", " set ", r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*)$", _env),
    ("", "set by environment", r"^(?P<name>[A-Z][A-Z0-9_]+) set by environment to (?P<value>.*)$", _env),
    ("cud", "cudaDriverVersion", r"cudaDriverVersion (\d+)", _driver),
    ("Boo", "Using", r"Bootstrap ?: Using (?:\[0\])?(?P<name>[^\s:\[\]]+):(?P<address>\S+?)<\d*>", _bootstrap),
    ("Usi", "Using network", r"Using network (?P<network>\S.*?)\s*$", _network),
    ("Ass", "NET plugin", r"Assigned NET plugin (?P<network>\S.*?) to comm", _network),
    ("Ini", "NET plugin", r"Initialized NET plugin (?P<plugin>\S.*?)\s*$", _mark("plugin_initialized")),
    ("Fai", "NET plugin", r"Failed to initialize NET plugin (?P<plugin>\S.*?)\s*$", _mark("plugin_init_failed")),
    ("NET", "Loaded net plugin", r"NET/Plugin ?: Loaded net plugin (?P<plugin>.+?)(?: \((?P<api>v\d+)\))?\s*$", _loaded),
    ("NET", "plugin SHARP", r"NET/Plugin ?: Loaded coll(?:net)? plugin (?P<plugin>\S+)", _mark("collnet_plugin_loaded")),
    ("NET", "GLIBC", r"NET/Plugin ?: (?P<text>.*version `GLIBC\w*_[\d.]+' not found.*)$", _mark("plugin_needs_glibc")),
    ("NET", "Plugin", r"NET/Plugin ?: (?:Could not find|No plugin found|dlerror=.*No plugin found)(?P<internal>.*[Uu]sing internal)?", _not_found),
    ("NET", "Plugin load", r"NET/Plugin ?: Plugin load ?(?:\((?P<plugin>[^)]*)\))? returned \d+", _mark("plugin_not_found")),
    ("NET", "No such file", r"NET/Plugin ?: .*(?P<plugin>lib\S+\.so\S*): cannot open shared object file", _mark("plugin_not_found")),
    ("NET", "symbol", r"NET/Plugin ?: Failed to find .*symbol", _mark("plugin_symbol_missing")),
    ("Suc", "plugin", r"Successfully loaded external (?:network )?plugin (?P<plugin>\S+)", _mark("plugin_file_loaded")),
    ("NET", ": Using [", r"NET/(?P<net>[^\s:]+) ?: Using (?P<list>\[.*)$", _nics),
    ("NET", "No device found", r"NET/(?P<net>[^\s:]+) ?: No device found", _mark("no_ib_device")),
    ("NET", "provider=", r"NET/IB ?: \[(?P<index>\d+)\] (?P<name>[^\s:]+):[^\s:]+:\d+/(?P<layer>\w+) provider=\w+ speed=(?P<speed>\d+) .*?pciPath=(?P<path>\S+)", _nic_detail),
    ("NET", "Made virtual", r"NET/IB ?: Made virtual device \[\d+\] name=(?P<name>\S+) speed=(?P<speed>\d+) ndevs=(?P<n>\d+)", _mark("virtual_device")),
    ("NET", "GPU Direct RDMA", r"NET/(?P<net>[^\s:]+) ?: GPU Direct RDMA (?:\((?P<how>[\w-]+)\) )?(?P<word>[Ee]nabled|[Dd]isabled) for HCA \d+ '(?P<name>[^']+)'?", _gdr_hca),
    ("GPU", "GPU Direct RDMA", r"GPU Direct RDMA (?P<word>Enabled|Disabled) for GPU[ /](?P<gpu>\S+) (?:\(rank (?P<rank>\d+)\) - NET/|/ HCA )(?P<nic>\S+) \((?: ?using PXN via \S+ )?distance (?P<distance>\d+) [<>]=? (?P<limit>\d+)\)?", _gdr_pair),
    ("DMA", "DMA-BUF", r"DMA-BUF is available on GPU device \d+", _mark("dmabuf_available")),
    ("", "Init ", r"(?:comm (?P<comm>0x[0-9a-f]+) )rank (?P<rank>\d+) n[rR]anks (?P<nranks>\d+)(?: cudaDev (?P<dev>-?\d+))?(?: nvmlDev (?P<nvml>-?\d+))?(?: busId (?P<bus>[0-9a-fA-Fx:.]+))?(?: .*?commId (?P<comm_id>0x[0-9a-fA-F]+))?.* - Init (?P<phase>START|COMPLETE)", _init),
    ("", " - ", r"comm 0x[0-9a-f]+ .* - (?P<what>Destroy|Abort|Revoke) (?:COMPLETE|START)", _ended),
    ("com", "nNodes", r"comm 0x[0-9a-f]+ rank \d+ nRanks (?P<nranks>\d+) nNodes (?P<nnodes>\d+) localRanks (?P<local>\d+) localRank \d+(?: MNNVL (?P<mnnvl>\d+))?", _layout),
    ("", "coll channels", r"(?P<coll>\d+) coll channels, (?:(?P<collnet>\d+) collnet channels, )?(?:(?P<nvls>\d+) nvls channels, )?(?P<p2p>\d+) p2p channels(?:, (?P<per_peer>\d+) p2p channels per peer)?", _channels),
    ("Cha", " : ", r"Channel \d+/(?P<ring>\d+) :\s+\d+(?:\s|$)", _ring_order),
    ("Con", "ring PXN", r"Connected all rings, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d)", _ring),
    ("NVL", "multicast", r"NVLS multicast support is (?P<no>not )?available", _nvls),
    ("MNN", "fabric UUID", r"MNNVL busId (?P<bus>\S+) fabric UUID (?P<uuid>\S+) cliqueId (?P<clique>\S+) state (?P<state>\d+)(?: healthMask (?P<health>\S+))?", _mark("mnnvl_fabric")),
    ("MNN", "cliqueSize", r"MNNVL (?P<on>\d) cliqueId (?P<clique>\S+) cliqueSize (?P<size>\d+)", _mark("mnnvl_clique")),
    ("", "Proceeding without NVLS", r"Proceeding without NVLS", _mark("nvls_proceeding_without")),
    ("", "libibverbs", r"(?:Failed to open|Count not open) libibverbs\.so", _mark("libibverbs_missing")),
    ("", "libibverbs", r"libibverbs: couldn't open config directory", _mark("libibverbs_config_missing")),
    # aws-ofi-nccl
    ("NET", "Selected", r"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;.-]+)(?:, fabric is (?P<fabric>\S+))?(?: \(found (?P<nics>\d+) nics?\))?", _provider),
    ("NET", "transport protocol", r"NET/OFI Using transport protocol (\w+)", _fact("protocol")),
    ("NET", "platform", r"NET/OFI Running on (\S+) platform", _fact("platform")),
    ("NET", "platform", r"NET/OFI Plugin selected platform: (\S+)", _fact("platform_family")),
    ("NET", "Initializing", r"NET/OFI Initializing aws-ofi-nccl (\S+)", _fact("plugin_version")),
    ("NET", "Initializing", r"NET/gIB ?: Initializing gIB (\S+)", _fact("plugin_version")),
    ("NET", "Libfabric version", r"NET/OFI Using Libfabric version (\S+)", _fact("libfabric_version")),
    ("NET", "DMA-BUF", r"NET/OFI Support for DMA-BUF registrations: (\w+)", _fact("ofi_dmabuf")),
    ("NET", "simple", r"NET/OFI (?:Need to force simple protocol|Setting NCCL_PROTO)", _mark("ofi_simple_protocol")),
    # topology and tuning
    ("", "NCCL_TOPO_FILE", r"(?:Loading topology file|Setting NCCL_TOPO_FILE environment variable to|topology file) (?P<path>/\S+)", _mark("topo_file")),
    ("", "topology file", r"(?:Loading|Loaded|using) (?:[Tt]opology file|topology file) (?P<path>/\S+)", _mark("topo_file")),
    ("", "could not read", r"Topology detection ?: could not read (?P<path>\S+)", _mark("topo_unreadable")),
    ("", "PCI[0.", r"\+ PCI\[(?P<bw>0\.\d+)\]", _mark("pci_slow_link")),
    ("===", "System", r"=== System : max\w+ (?P<max>[\d.]+) (?:total\w+|max\w+) (?P<total>[\d.]+)", _mark("topology_tree")),
    ("", "Pattern ", r"Pattern (?P<pattern>\d+), crossNic (?P<cross>\d), nChannels (?P<channels>\d+), (?:bw|speed) (?P<bw>[\d./]+), type (?P<type>[\w/]+)", _mark("graph")),
    ("NET", "mtu ", r"NET/IB ?: .*?Dev (?P<dev>\d+) .*?Port (?P<port>\d+) qp(?:n|_num) \d+ mtu (?P<mtu>\d+)", _mark("queue_pair")),
    ("NET", "GPUDirectTCPX", r"NET/GPUDirectTCPX ver\. ([\w.]+?)\.?\s*$", _fact("plugin_version")),
    ("NET", "internal", r"NET/Plugin ?: (?:.*[Uu]sing internal (?:implementation|network plugin))", _mark("plugin_internal")),
    ("SHA", "SHARP group create", r"SHARP group create: (?P<text>.*)$", _mark("sharp_failed")),
    ("Sha", "Sharp rank", r"Sharp rank \d+/\d+ initialized on (?P<device>\S+)", _mark("sharp_initialized")),
    ("NET", "nitializ", r"NET/OFI (?P<text>Failed to initialize \w+ protocol|aws-ofi-nccl initialization failed|Initializing plugin failed)", _mark("plugin_init_failed")),
    ("NET", "Only EFA", r"NET/OFI (?P<text>Only EFA provider is supported)", _mark("plugin_init_failed")),
    ("NET", "Using aws-ofi-nccl", r"NET/OFI Using aws-ofi-nccl (\S+)", _fact("plugin_version")),
    ("NET", "Got CQE", r"NET/IB ?: .*Got CQE with error", _mark("cqe_error")),
    ("HIN", "HINT", r"HINT: (?P<text>.{0,200})", _mark("hint")),
    ("", "mismatch recommended", r"mismatch recommended:? (?P<variable>\w+)=", _mark("shim_recommended")),
    ("", "retrying ", r"retrying (?:\()?\d+/\d+", _mark("retry")),
    ("SHA", "SHARP", r"SHARP rank \d+/\d+ initialized on (?P<device>\S+)", _mark("sharp_initialized")),
    ("SHA", "fallback", r"SHARP: .*fallback to non-sharp", _mark("sharp_fallback")),
    ("", "Unable to use GIN", r"Unable to use GIN", _mark("gin_unavailable")),
    ("P2P", "P2P plugin", r"P2P plugin(?: v\d+)? (?P<plugin>\S.*?)\s*$", _mark("p2p_plugin")),
    ("", "iommu", r"Missing \"iommu=pt\"", _mark("iommu_not_passthrough")),
    ("", "Could not find real path", r"Could not find real path of (?P<path>\S+)", _mark("no_real_path")),
    # last: any other line of a plugin tells that it is there
    ("NET", "FasTrak", r"NET/(?P<plugin>FasTrak)\b", _mark("plugin_speaks")),
    ("NET", "GPUDirectTCPX", r"NET/(?P<plugin>GPUDirectTCPX)\b", _mark("plugin_speaks")),
    ("NET", "gIB", r"NET/(?P<plugin>gIB)\b", _mark("plugin_speaks")),
    ("NET", "OFI", r"NET/(?P<plugin>OFI)\b", _mark("plugin_speaks")),
]  # fmt: skip


def _grouped() -> dict[str, tuple[_Row, ...]]:
    groups: dict[str, list[_Row]] = {"": []}
    for start, hint, pattern, handler in _SHAPES:
        groups.setdefault(start, []).append((hint, re.compile(pattern), handler))
    return {start: tuple(rows) for start, rows in groups.items()}


HANDLERS: Final = _grouped()
