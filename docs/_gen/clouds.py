"""Writes docs/reference/clouds/*.md from the catalog: `python docs/_gen/clouds.py`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpufabric.catalog import Catalog, CloudCatalog
from gpufabric.catalog.rows import Confidence, EnvRow, GpuDirect, InstanceTypeRow, NetworkCards, Var
from gpufabric.net.resolve import assumed_offers
from gpufabric.plan import Offer
from gpufabric.resources import Resources
from gpufabric.task import Task

PAGES = Path(__file__).parents[1] / "reference" / "clouds"
NOTE = "<!-- written by docs/_gen/clouds.py from the catalog: do not edit -->\n"


def cell(text: object) -> str:
    """Text that stays within its cell and is no markup."""
    flat = " ".join(str(text).split())
    for sign in "|<>{}*_`$[]":
        flat = flat.replace(sign, f"\\{sign}")
    return flat


def table(headers: tuple[str, ...], rows: list[tuple[object, ...]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows:
        yield f"| {' | '.join(map(cell, row))} |"
    yield ""


def number(value: float | None) -> str:
    """A number, or that it is not known."""
    return "not known" if value is None else f"{value:g}"


def speed(nics: NetworkCards) -> str:
    """How many NICs of what speed, or what of that is known."""
    if nics.count is None and nics.gbps_each is None:
        total = nics.total_gbps
        return "speed not known" if total is None else f"{total:g} Gb/s in all"
    each = "speed not known" if nics.gbps_each is None else f"{nics.gbps_each:g} Gb/s"
    return f"{'a number not known of' if nics.count is None else nics.count} x {each}"


def reached(catalog: Catalog, cloud: CloudCatalog, row: InstanceTypeRow) -> dict[str, str]:
    """Platform -> the tier that two whole nodes of this type reach there."""
    task = Task(run="x", num_nodes=2, resources=Resources(instance_type=row.name))
    offers: tuple[Offer, ...] = assumed_offers(task, cloud, catalog).offers
    found: dict[str, str] = {}
    for offer in offers:
        found.setdefault(offer.platform, offer.tier.value)
    return found


def page(catalog: Catalog, cloud: CloudCatalog) -> Iterator[str]:
    """The page of one cloud."""
    yield f"# {cloud.row.title}\n"
    yield NOTE
    yield f"What the catalog knows of `{cloud.name}`, as of {cloud.row.as_of}.\n"
    yield "## Instance types\n"
    rows: list[tuple[object, ...]] = []
    for row in cloud.types():
        nics = row.nics
        direct = "" if nics.gpudirect is GpuDirect.NONE else f", GPUDirect {nics.gpudirect.value}"
        sure = "" if row.confidence is Confidence.DOCUMENTED else f" ({row.confidence.value})"
        if row.inferred:
            sure += f" (inferred: {', '.join(row.inferred)})"
        prices = [p for p in cloud.prices(row.name) if p.market == "on_demand"]
        price = prices[0] if prices else None
        tiers = reached(catalog, cloud, row)
        rows.append(
            (
                row.name,
                f"{row.gpu.count} x {row.gpu.model}",
                f"{row.interconnect}: {speed(nics)}{direct}{sure}",
                ", ".join(f"{platform}: {tier}" for platform, tier in tiers.items()) or "none",
                "not known" if price is None else f"{price.usd_hour:.2f}",
                ", ".join(cloud.regions_of(row)) or "not known",
            )
        )
    headers = ("type", "accelerators", "network", "tier of two nodes", "USD/h on demand", "regions")
    yield from table(headers, rows)
    yield from networks(cloud)
    yield from ways(cloud)
    yield from settings(cloud)
    yield from pitfalls(cloud)
    yield "## Sources\n"
    for source in cloud.sources.values():
        yield f"- {cell(source.title)}" + (f" <{source.url}>" if source.url else "")
    yield ""


def networks(cloud: CloudCatalog) -> Iterator[str]:
    """Interconnects, and the layout of NICs."""
    yield "## Networks\n"
    rows = [
        (r.name, r.kind, r.scope, number(r.max_nodes), "; ".join(r.needs))
        for r in cloud.rows("interconnect")
    ]
    yield from table(("name", "kind", "all nodes in", "most nodes", "needs"), rows)
    for layout in cloud.rows("nic_layout"):
        if layout.rules:
            yield f"**NICs of {cell(', '.join(layout.applies_to))}.** {cell(layout.rules)}\n"


def ways(cloud: CloudCatalog) -> Iterator[str]:
    """How pods get their NICs."""
    rows = [
        (
            r.platform,
            r.when or "ordinary",
            ", ".join(r.applies_to),
            ", ".join(f"{k}: {v}" for k, v in r.requests.items()),
            "privileged" if r.privileged else ", ".join(r.capabilities) or "none",
            r.confidence.value,
        )
        for r in cloud.rows("kubernetes")
    ]
    if rows:
        yield "## Kubernetes\n"
        yield from table(("platform", "when", "types", "requests", "privilege", "confidence"), rows)


def types(env: EnvRow) -> str:
    """The types that a row is for."""
    if "*" in env.applies_to:
        return "all"
    few = env.applies_to[:3]
    more = len(env.applies_to) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")


def only(env: EnvRow, var: Var) -> str:
    """When a variable is set, empty where always."""
    inferred = (var.confidence or env.confidence) is Confidence.INFERRED
    ways = f"pods get their NICs the way {' or '.join(env.ways)}" if env.ways else ""
    return "; ".join(filter(None, (env.when, ways))) or (
        "shown, not set" if inferred or not var.default else ""
    )


def settings(cloud: CloudCatalog) -> Iterator[str]:
    """Variables: what each is for, and what to avoid."""
    rows: list[tuple[object, ...]] = []
    avoid: list[tuple[object, ...]] = []
    for env in cloud.rows("env"):
        where = types(env)
        rows += [
            (v.name, v.value, v.why, where, ", ".join(env.platforms), only(env, v))
            for v in env.vars
        ]
        avoid += [(a.name, a.value or "any", a.why, where) for a in env.avoid]
    if rows:
        yield "## Settings\n"
        yield from table(
            ("variable", "value", "what it is for", "types", "platforms", "only"), rows
        )
    if avoid:
        yield "## To avoid\n"
        yield from table(("variable", "value", "why", "types"), avoid)


def pitfalls(cloud: CloudCatalog) -> Iterator[str]:
    """Symptoms with cause and fix."""
    rows = [(r.symptom, r.cause, r.fix) for r in cloud.rows("pitfall")]
    if rows:
        yield "## Pitfalls\n"
        yield from table(("symptom", "cause", "fix"), rows)


def main() -> int:
    """Writes every page; with --check says which are stale instead."""
    catalog = Catalog.shipped()
    texts = {cloud.name: "\n".join(page(catalog, cloud)) for cloud in catalog}
    return write_or_check(texts, PAGES, "docs/_gen/clouds.py")


def write_or_check(texts: Mapping[str, str], folder: Path, program: str) -> int:
    """Writes pages by their names; with --check says which are stale instead, and gives 1."""
    folder.mkdir(parents=True, exist_ok=True)
    stale = 0
    for name, text in texts.items():
        path = folder / f"{name}.md"
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path.name} is stale: python {program}\n")
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
