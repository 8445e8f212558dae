"""What `print(site)` and a notebook show of the places that were read: pools, networks, queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, cast

from gpufabric._display import html_table, one_line, text_table

if TYPE_CHECKING:
    from gpufabric.backends.base import Pool, Site

__all__ = ["site_lines", "sites_html"]

_HEADERS = (
    "pool", "platform", "type", "accelerator", "nodes free", "GPUs free", "NICs of a node",
    "network", "tier",
)  # fmt: skip
_MOST_POOLS = 200
Facts = Mapping[str, object]


def site_lines(site: Site) -> Iterator[str]:
    """The lines of `print(site)`."""
    yield _title(site)
    rows = [_row(pool, _facts(site, pool)) for pool in site.pools[:_MOST_POOLS]]
    if rows:
        yield from ("  " + line for line in text_table(_HEADERS, rows).splitlines())
    if len(site.pools) > _MOST_POOLS:
        yield f"  and {len(site.pools) - _MOST_POOLS} pools more"
    for title, words in _notes(site):
        yield f"  {title}: {one_line(words, 500)}"


def sites_html(sites: Iterable[tuple[str, Site | str | None]]) -> str:
    """A table of every pool of every place, and what is not known of them.

    A text in the place of a site is why it could not be read; None, that nobody has yet.
    """
    rows: list[tuple[object, ...]] = []
    lines: list[str] = []
    for name, site in sites:
        if site is None:
            lines.append(f"{name}: not read yet: sites() and offers(task) read it")
        elif isinstance(site, str):
            lines.append(f"{name}: could not be read: {site}")
        else:
            rows += [(name, *_row(pool, _facts(site, pool))) for pool in site.pools[:_MOST_POOLS]]
            lines.append(_title(site) if name in site.backend else f"{name}: {_title(site)}")
            lines += [f"{name}: {title}: {words}" for title, words in _notes(site)]
    table = html_table(("place", *_HEADERS), rows) if rows else ""
    listed = "".join(f"<li>{escape(one_line(line, 500))}</li>" for line in lines)
    return f"{table}<ul>{listed}</ul>" if listed else table


def _title(site: Site) -> str:
    parts = [f"as of {site.as_of:%Y-%m-%d %H:%M:%S} UTC"] if site.as_of else []
    parts += ["assumed, nothing was read"] if site.assumed else []
    space = site.facts.get("namespace")
    parts += [f"namespace {space}"] if space else []
    pools = f"{len(site.pools)} pool{'' if len(site.pools) == 1 else 's'}"
    return f"{site.backend}: {', '.join([pools, *parts])}"


def _facts(site: Site, pool: Pool) -> Facts:
    pools = cast("Mapping[str, Facts]", site.facts.get("pools") or {})
    return pools.get(pool.name, {})


def _row(pool: Pool, fact: Facts) -> tuple[str, ...]:
    name = f"{pool.name} (spot)" if pool.spot else pool.name
    accelerator = str(pool.accelerator) if pool.accelerator else "none"
    return (
        name,
        pool.platform,
        pool.instance_type or "not known",
        accelerator,
        _nodes(pool, fact),
        _gpus(pool),
        _nics(pool, fact),
        _network(pool, fact),
        str(fact.get("tier") or ""),
    )


def _nodes(pool: Pool, fact: Facts) -> str:
    if fact.get("autoscaler"):
        most = "any number" if pool.nodes_total is None else f"up to {pool.nodes_total}"
        return f"{fact.get('nodes_there') or 0}, {most} made when asked"
    if pool.nodes_total is None:
        return "not known" if pool.nodes_free is None else str(pool.nodes_free)
    unusable = len(cast("Sequence[str]", fact.get("unusable") or ()))
    told = f", {unusable} unusable" if unusable else ""
    free = "?" if pool.nodes_free is None else pool.nodes_free
    return f"{free} of {pool.nodes_total}{told}"


def _gpus(pool: Pool) -> str:
    if pool.accelerator is None or not pool.nodes_total:
        return ""
    total = pool.nodes_total * pool.accelerator.count
    return f"{sum(pool.gpus_free)} of {total}" if pool.gpus_free else f"? of {total}"


def _nics(pool: Pool, fact: Facts) -> str:
    found = list(_grouped(fact))
    found += [f"{n} by {name}" for name, n in _counts(fact, "devices")]
    found += [f"{n} {name} (assumed)" for name, n in _counts(fact, "nics_assumed")]
    return ", ".join(found) or (str(len(pool.nics.fabric)) if pool.nics.nics else "")


def _grouped(fact: Facts) -> Iterator[str]:
    """Resources of one domain together: GKE has one for each network."""
    domains: dict[str, list[tuple[str, object]]] = {}
    for name, count in _counts(fact, "nics"):
        domains.setdefault(name.partition("/")[0], []).append((name, count))
    for domain, members in domains.items():
        if len(members) == 1:
            yield f"{members[0][1]} {members[0][0]}"
        else:
            yield f"{sum(cast('int', count) for _, count in members)} {domain}/*"


def _counts(fact: Facts, name: str) -> Iterable[tuple[str, object]]:
    return cast("Mapping[str, object]", fact.get(name) or {}).items()


def _network(pool: Pool, fact: Facts) -> str:
    kind = str(fact.get("network") or (pool.interconnect.kind if pool.interconnect else ""))
    name = pool.interconnect.name if pool.interconnect else None
    return f"{kind} {name}" if kind and name else kind


def _notes(site: Site) -> Iterator[tuple[str, str]]:
    """What else decides where a gang can go, and what is not known."""
    for pool in site.pools:
        why = str(_facts(site, pool).get("no_fabric") or "")
        if why:
            yield f"no fabric for pods of {pool.name}", why
    queues = cast("Mapping[str, Facts]", site.facts.get("queue_quota") or {})
    for name, record in queues.items():
        yield f"queue {name}", "; ".join(_queue(record))
    for text in site.unseen:
        yield "not seen", text


def _queue(record: Facts) -> Iterator[str]:
    yield f"ClusterQueue {record.get('cluster_queue')}"
    if record.get("stopped"):
        yield f"on hold ({record['stopped']})"
    for flavor in cast("Sequence[Mapping[str, object]]", record.get("flavors") or ()):
        resources = cast("Mapping[str, Mapping[str, float | None]]", flavor["resources"])
        told = [
            f"{quota['used']:g} of {quota['nominal']:g} {name} used"
            for name, quota in resources.items()
            if "/" in name
        ]
        if told:
            yield f"flavor {flavor['name']}: {', '.join(told)}"
