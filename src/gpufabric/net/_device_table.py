"""The table that every device reader writes into: several tools' texts, one answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final

from gpufabric._frozen import FrozenDict
from gpufabric.net.records import Devices, HcaState, Unread

if TYPE_CHECKING:
    from gpufabric.net._lines import Line

MAX_DEVICES: Final = 4096
MAX_COUNTERS: Final = 20_000
MAX_GIDS: Final = 1024
MAX_UNREAD: Final = 64
EFA_VENDOR: Final = "0x1d0f"
MELLANOX_VENDORS: Final = frozenset({"0x02c9", "0x15b3"})

_STATES: Final = {
    "1": "Down",
    "2": "Initializing",
    "3": "Armed",
    "4": "Active",
    "down": "Down",
    "portdown": "Down",
    "init": "Initializing",
    "portinit": "Initializing",
    "initializing": "Initializing",
    "armed": "Armed",
    "portarmed": "Armed",
    "active": "Active",
    "portactive": "Active",
    "activedefer": "ActiveDefer",
    "portactivedefer": "ActiveDefer",
}
_PHYSICAL: Final = {
    "1": "Sleep",
    "2": "Polling",
    "3": "Disabled",
    "4": "PortConfigurationTraining",
    "5": "LinkUp",
    "6": "LinkErrorRecovery",
    "7": "Phy Test",
    "sleep": "Sleep",
    "polling": "Polling",
    "disabled": "Disabled",
    "portconfigurationtraining": "PortConfigurationTraining",
    "linkup": "LinkUp",
    "linkerrorrecovery": "LinkErrorRecovery",
    "phytest": "Phy Test",
}


class _Listing:
    """What one tool listed of the machine at hand."""

    __slots__ = ("machine", "names")

    def __init__(self, machine: int) -> None:
        self.machine = machine
        self.names: set[str] = set()


class DeviceTable:
    """RDMA devices, their counters and network interfaces, as texts tell them one by one.

    Two machines in one text have devices of the same name: the second is kept as `mlx5_0#2`.
    """

    def __init__(self) -> None:
        self._hcas: dict[str, dict[str, object]] = {}
        self._listings: dict[tuple[str, str | None], _Listing] = {}
        self._hosts: dict[str, int] = {}
        self._counters: dict[str, dict[str, int]] = {}
        self._n_counters = 0
        self._gids: dict[str, dict[int, dict[str, object]]] = {}
        self._details: dict[str, dict[str, dict[str, object]]] = {}
        self._netdev_down: dict[str, None] = {}
        self._values: dict[str, object] = {}
        self._values_at: dict[str, int] = {}
        self._listed: bool = False
        self.lineno = 0
        """The line of the text at which the next facts stand; set by each reader's `feed`."""
        self.left_out = 0

    def device(
        self, tool: str, name: str, *, host: str | None = None, port: int | None = None
    ) -> str:
        """The key of a device that `tool` lists now; listing it again means another machine."""
        self._listed = True
        plain = name if port in {None, 1} else f"{name}:{port}"
        listing = self._listings.setdefault((tool, host), _Listing(self._machine(host)))
        if plain in listing.names:
            listing.names.clear()
            listing.machine += host is None
        listing.names.add(plain)
        key = plain if listing.machine == 1 else f"{plain}#{listing.machine}"
        if key not in self._hcas and len(self._hcas) >= MAX_DEVICES:
            self.left_out += 1
            return ""
        facts = self._hcas.setdefault(key, {})
        facts.setdefault("lineno", self.lineno)
        if host:
            facts.setdefault("host", host)
        return key

    def _machine(self, host: str | None) -> int:
        if host is None or len(self._hosts) >= MAX_DEVICES:
            return 1
        return self._hosts.setdefault(host, len(self._hosts) + 1)

    def set(self, key: str, **facts: object) -> None:
        """Writes what a tool tells of a device; None tells nothing."""
        if key in self._hcas:
            told = {name: fact for name, fact in facts.items() if fact is not None}
            if "state" in told and self._hcas[key].get("state") is None:
                told["lineno"] = self.lineno
            self._hcas[key].update(told)

    def gid(self, key: str, index: int, **facts: object) -> None:
        """Writes into one entry of a GID table."""
        gids = self._gids.setdefault(key, {})
        if len(gids) < MAX_GIDS or index in gids:
            told = {name: fact for name, fact in facts.items() if fact is not None}
            gids.setdefault(index, {}).update(told)

    def detail(self, group: str, name: str, fact: str, value: object) -> None:
        """Keeps a fact of something else than an HCA: an interface, a PCI device, a module."""
        found = self._details.setdefault(group, {})
        if name in found or len(found) < MAX_DEVICES:
            found.setdefault(name, {"lineno": self.lineno})[fact] = value

    def counter(self, owner: str, name: str, value: int) -> None:
        """Keeps one counter of a device (by HCA or interface name)."""
        if self._n_counters < MAX_COUNTERS:
            if owner not in self._counters:
                self.detail("counters_at", owner, "lineno", self.lineno)
            counters = self._counters.setdefault(owner, {})
            self._n_counters += name not in counters
            before = counters.get(name)
            if before is not None and value > before:  # a second dump of the same device
                self.detail("counters_rise", owner, name, value - before)
            counters[name] = value
        else:
            self.left_out += 1

    def netdev_is_down(self, name: str) -> None:
        """Keeps an IP interface that is down, which says nothing of the RDMA port."""
        if len(self._netdev_down) < MAX_DEVICES:
            self._netdev_down[name] = None

    def value(self, name: str, value: object) -> None:
        """Keeps a fact of the machine: a module, a limit, a setting."""
        self._values[name] = value
        self._values_at[name] = self.lineno

    def values(self, name: str) -> object:
        """A fact kept before, or None."""
        return self._values.get(name)

    def devices(self) -> Devices:
        """All of it as the report's value."""
        hcas = tuple(self._hca(key, facts) for key, facts in self._hcas.items())
        return Devices(
            hcas=hcas if self._listed else None,
            down=_down(hcas) if any(hca.state for hca in hcas) else None,
            counters=FrozenDict(
                {owner: FrozenDict(counters) for owner, counters in self._counters.items()}
            )
            if self._counters
            else None,
            netdev_down=tuple(self._netdev_down) if self._netdev_down else None,
            n_hcas=len(hcas_of(hcas)) if self._listed else None,
            values=FrozenDict(self._values | self._frozen_details()),
        )

    def _frozen_details(self) -> dict[str, object]:
        at: dict[str, object] = {}
        if self._values_at:
            at["values_at"] = FrozenDict(self._values_at)
        return at | {
            group: FrozenDict({name: FrozenDict(facts) for name, facts in found.items()})
            for group, found in self._details.items()
        }

    def _hca(self, key: str, facts: dict[str, object]) -> HcaState:
        known = {"link_layer", "state", "phys", "hca_type", "rate_gbps"}
        extra = {name: fact for name, fact in facts.items() if name not in known}
        if key in self._gids:
            gids = self._gids[key].items()
            extra["gids"] = tuple(FrozenDict({"index": at, **facts}) for at, facts in gids)
        rate = facts.get("rate_gbps")
        return HcaState(
            name=key,
            link_layer=_text(facts.get("link_layer")),
            rate_gbps=float(rate) if isinstance(rate, int | float) else None,
            state=_text(facts.get("state")),
            phys=_text(facts.get("phys")),
            hca_type=_text(facts.get("hca_type")),
            values=FrozenDict(extra),
        )


class DeviceReader:
    """What the device readers share: the table, and the lines they could not read."""

    name: ClassVar[str] = "devices"
    kind: ClassVar[str] = "devices"

    def __init__(self, table: DeviceTable | None = None) -> None:
        self.table = table if table is not None else DeviceTable()
        self.consumed = 0
        self.unread: list[Unread] = []
        self.unread_count = 0

    def feed(self, line: Line, /) -> bool:
        """Takes the line if it is of this format."""
        self.table.lineno = line.lineno
        if self.take(line):
            self.consumed += 1
            return True
        return False

    def take(self, line: Line, /) -> bool:
        """The format's own part of `feed`."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held back."""

    def refuse(self, line: Line) -> bool:
        """Counts a line of this format that could not be read."""
        self.unread_count += 1
        if len(self.unread) < MAX_UNREAD:
            self.unread.append(Unread(line.lineno, line.text[:200]))
        return True

    def result(self) -> dict[str, object]:
        """The whole table, where this reader wrote into it."""
        devices = {"devices": self.table.devices()} if self.consumed else {}
        return {**devices, "unread": tuple(self.unread), "unread_count": self.unread_count}


def state_word(text: str) -> str | None:
    """Ibstat's word for a port state, from "4: ACTIVE", "PORT_ACTIVE (4)", "ACTIVE" or "Active"."""
    return _word(text, _STATES)


def physical_word(text: str) -> str | None:
    """Ibstat's word for a physical state, from "5: LinkUp", "LINK_UP (5)" or "LinkUp"."""
    return _word(text, _PHYSICAL)


def _word(text: str, words: dict[str, str]) -> str | None:
    text = text.strip()
    if not text:
        return None
    number, colon, _ = text.partition(":")
    if colon and number.strip() in words:
        return words[number.strip()]
    bare = text.partition("(")[0].strip()
    return words.get("".join(c for c in bare.lower() if c.isalpha()), bare or None)


def hcas_of(hcas: Iterable[HcaState]) -> set[str]:
    """Device names without ports: a card with two ports is one."""
    return {hca.name.partition(":")[0] for hca in hcas}


def _down(hcas: Iterable[HcaState]) -> tuple[FrozenDict[str, object], ...]:
    found: list[FrozenDict[str, object]] = []
    for hca in hcas:
        if hca.state is not None and not hca.state.startswith("Active"):
            told: dict[str, object] = {
                "name": hca.name,
                "phys": hca.phys,
                "rate": hca.rate_gbps,
                "state": hca.state,
            }
            found.append(FrozenDict(told))
    return tuple(found)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
