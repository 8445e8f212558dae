"""`python -m gpufabric offers|plan|env`: every cloud by the catalog, with no credentials."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpufabric._display import one_line, text_table
from gpufabric.errors import PlacementError, SpecError
from gpufabric.plan import EnvVar, LaunchPlan, LaunchPolicy, Offer, RankBy, Rejection, Resolution

if TYPE_CHECKING:
    from gpufabric.backends.assumed import AssumedBackend
    from gpufabric.catalog.index import CloudCatalog
    from gpufabric.task import Task

__all__ = ["env_main", "offers_main", "plan_main"]

_OK, _NONE = 0, 1
_HEADERS = (
    "cloud", "platform", "type", "network", "tier", "Gb/s a GPU", "Gb/s a node",
    "USD/h a node", "USD/h in all", "regions",
)  # fmt: skip


def offers_main(argv: Sequence[str]) -> int:
    """Prints every way to run a task, best first, and why the others are not."""
    args = _parser("offers", "where a task could run, on which network, at what price").parse_args(
        argv
    )
    task, backends = _task(args), _backends(args)
    resolution = _resolve(task, backends, args)
    if args.json:
        _print(json.dumps(resolution.to_dict(), indent=2))
    else:
        _print(_table(resolution))
    return _OK if resolution.offers else _NONE


def plan_main(argv: Sequence[str]) -> int:
    """Prints the plan of the best offer: every setting of its network with reason and source."""
    args = _parser("plan", "everything that the best offer needs, with reasons").parse_args(argv)
    plan = _plan(args)
    _print(json.dumps(plan.to_dict(), indent=2) if args.json else str(plan))
    return _OK


def env_main(argv: Sequence[str]) -> int:
    """Prints the environment of the best offer as shell lines, each with its reason."""
    args = _parser("env", "the environment of the best offer's network as shell").parse_args(argv)
    plan = _plan(args)
    if args.json:
        _print(json.dumps({var.name: var.value for var in plan.env}, indent=2))
        return _OK
    for warning in plan.warnings:
        _print(f"# warning: {one_line(warning, 400)}")
    script = next((item for item in plan.network if item.kind == "script"), None)
    for var in plan.env:
        _print(_export(var))
    if script is not None:
        _print(f". {shlex.quote(script.value)}  # {one_line(script.why, 400)}")
        for var in plan.env:
            if var.name in plan.task.envs:
                _print(_export(var))
    return _OK


def _export(var: EnvVar) -> str:
    # a value that refers to another variable must be expanded by the shell
    value = f'"{var.value}"' if "$" in var.value else shlex.quote(var.value)
    source = f" [{var.source}]" if var.source else ""
    return f"export {var.name}={value}  # {one_line(var.why, 400)}{source}"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser(verb: str, text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m gpufabric {verb}", description=text)
    add = parser.add_argument
    add("--accelerators", "-a", action="append", default=[], metavar="H100:8",
        help="accelerators of a node; again for an alternative")  # fmt: skip
    add("--nodes", "-n", type=int, default=1, help="size of the gang (1)")
    add("--tier", default="standard", help="standard, gpudirect or best (standard)")
    add("--min-gbps-per-gpu", type=float, help="least speed of the network between nodes")
    add("--instance-type", help="the provider's own name")
    add("--cloud", action="append", default=[], help="only this cloud; again for more")
    add("--place", action="append", default=[], help="cloud/region; again for more")
    add("--platform", action="append", default=[], help="vm, eks, gke, ...; again for more")
    add("--spot", action="store_true", help="capacity that may be taken back")
    add("--max-usd-hour", type=float, help="ceiling of the price of a node")
    add("--rank-by", default="price", help="price, bandwidth or price_per_gbps (price)")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="your own variable")
    add("--overlay", action="append", default=[], metavar="FILE", help="your own catalog file")
    add("--json", action="store_true", help="machine-readable")
    return parser


def _task(args: argparse.Namespace) -> Task:
    from gpufabric.task import Task

    envs: dict[str, str] = {}
    for item in args.env:
        name, equals, value = item.partition("=")
        if not equals:
            raise SpecError(f"--env {item}: write NAME=VALUE")
        envs[name] = value
    if not args.accelerators and not args.instance_type:
        raise SpecError("say what is wanted: --accelerators H100:8, or --instance-type NAME")
    body: dict[str, object] = {
        "run": "true",
        "num_nodes": args.nodes,
        "envs": envs,
        "resources": {
            "accelerators": args.accelerators,
            "network_tier": args.tier,
            "min_gbps_per_gpu": args.min_gbps_per_gpu,
            "instance_type": args.instance_type,
            "places": args.place,
            "use_spot": args.spot,
            "max_usd_hour": args.max_usd_hour,
        },
    }
    return Task.from_dict(body)


def _backends(args: argparse.Namespace) -> tuple[AssumedBackend, ...]:
    from gpufabric.backends.assumed import AssumedBackend
    from gpufabric.catalog import Catalog

    catalog = Catalog.shipped().with_overlays(*args.overlay)
    names = tuple(args.cloud) or catalog.clouds
    _check_platforms(args.platform, (catalog.cloud(name) for name in catalog.clouds))
    return tuple(AssumedBackend(name, catalog=catalog) for name in dict.fromkeys(names))


def _resolve(
    task: Task, backends: Iterable[AssumedBackend], args: argparse.Namespace
) -> Resolution:
    from gpufabric._convert import enum_of
    from gpufabric.net.resolve import rank

    policy = LaunchPolicy(rank_by=enum_of(RankBy, args.rank_by))
    answers = [backend.offers(task, backend.discover()) for backend in backends]
    offers = [
        offer
        for answer in answers
        for offer in answer.offers
        if not args.platform or offer.platform in args.platform
    ]
    rejections = tuple(rejection for answer in answers for rejection in answer.rejections)
    rejections += tuple(_elsewhere(answers, args.platform))
    return Resolution(offers=tuple(rank(offers, policy)), rejections=rejections)


def _check_platforms(asked: Iterable[str], clouds: Iterable[CloudCatalog]) -> None:
    from gpufabric._convert import near

    known = list(dict.fromkeys(name for cloud in clouds for name in cloud.platforms))
    for name in asked:
        if name not in known:
            hint = near(name, known) or f"; known: {', '.join(known)}"
            raise SpecError(f"--platform {name}: there is no such platform{hint}")


def _elsewhere(answers: Iterable[Resolution], asked: Sequence[str]) -> Iterator[Rejection]:
    """A rejection for each type that is offered, but on none of the platforms asked for."""
    for answer in answers:
        found: dict[tuple[str, str], list[str]] = {}
        for offer in answer.offers:
            found.setdefault((offer.backend, offer.instance_type), []).append(offer.platform)
        for (backend, name), platforms in found.items():
            if asked and not set(platforms) & set(asked):
                reason = f"it is offered on {', '.join(dict.fromkeys(platforms))} alone"
                yield Rejection(backend=backend, instance_type=name, reason=reason)


def _plan(args: argparse.Namespace) -> LaunchPlan:
    task = _task(args)
    backends = {backend.name: backend for backend in _backends(args)}
    resolution = _resolve(task, backends.values(), args)
    if resolution.best is None:
        why = "\n".join(f"  {rejection}" for rejection in resolution.rejections)
        raise PlacementError(
            f"no place keeps what was asked:\n{why}", rejections=resolution.rejections
        )
    backend = backends[resolution.best.backend]
    return backend.plan(task, resolution.best, backend.discover())


def _table(resolution: Resolution) -> str:
    """Offers that differ by their region alone in one line, then the rejections."""
    folded: dict[tuple[object, ...], list[str]] = {}
    for offer in resolution.offers:
        folded.setdefault(_line(offer), []).append(offer.place.region or "not known")
    rows = [(*line, _regions(regions)) for line, regions in folded.items()]
    parts = [text_table(_HEADERS, rows) if rows else "no offers"]
    if resolution.rejections:
        parts.append("not possible:\n" + "\n".join(f"  {r}" for r in resolution.rejections))
    return "\n\n".join(parts)


def _line(offer: Offer) -> tuple[object, ...]:
    def number(value: float | None, form: str) -> str:
        return "unknown" if value is None else format(value, form)

    return (
        offer.backend,
        offer.platform,
        offer.instance_type,
        offer.interconnect.kind.value,
        offer.tier.value,
        number(offer.gbps_per_gpu, "g"),
        number(offer.gbps_per_node, "g"),
        number(offer.usd_hour, ".2f"),
        number(offer.usd_hour_total, ".2f"),
    )


def _regions(regions: Sequence[str]) -> str:
    shown = ", ".join(regions[:3])
    return shown if len(regions) <= 3 else f"{shown} and {len(regions) - 3} more"
