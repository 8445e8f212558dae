"""Writes the golden plans anew: `python tests/data/plans/write.py [cloud ...]`. Review the diff."""

import sys
import tomllib
from pathlib import Path

from gpufabric.backends.assumed import AssumedBackend
from gpufabric.resources import Resources
from gpufabric.task import Task

HERE = Path(__file__).parent


def cases() -> list[tuple[str, str, dict[str, object]]]:
    """Every case: its cloud, name, and what is asked."""
    found: list[tuple[str, str, dict[str, object]]] = []
    for path in sorted(HERE.glob("*/cases.toml")):
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [(path.parent.name, name, asked) for name, asked in listed.items()]
    return found


def planned(cloud: str, asked: dict[str, object]) -> str:
    """The plan of a case as a person reads it, or the rejections."""
    body = dict(asked)
    platform, nodes = body.pop("platform", None), body.pop("nodes", 2)
    envs = body.pop("envs", {})
    task = Task(run="true", name="golden", num_nodes=nodes, envs=envs, resources=Resources(**body))
    backend = AssumedBackend(cloud)
    site = backend.discover()
    resolution = backend.offers(task, site)
    offers = [o for o in resolution.offers if platform in (None, o.platform)]
    if not offers:
        return "\n".join(["no offer", *map(str, resolution.rejections)]) + "\n"
    return f"{backend.plan(task, offers[0], site)}\n"


def main(names: list[str]) -> None:
    """Writes the files of these clouds, or of all."""
    for cloud, name, asked in cases():
        if not names or cloud in names:
            (HERE / cloud / f"{name}.txt").write_text(planned(cloud, asked), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
