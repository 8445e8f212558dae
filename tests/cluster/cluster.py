#!/usr/bin/env python3
"""A real Kubernetes cluster on this machine, for tests. See docs/how-to/test-cluster.md."""

import argparse
import json
import os
import sys
from collections.abc import Callable

from gfcluster import addons, build, dress, faults, layout, lifecycle, machine, users
from gfcluster.api import Api, ApiError
from gfcluster.shell import ClusterError, answer

Arguments = argparse.Namespace
Command = Callable[[Arguments], int | None]


def _api() -> Api:
    lifecycle.running_nodes()  # says so if there is none
    return Api(layout.kubeconfig())


def _node(name: str) -> layout.Node:
    for node in lifecycle.running_nodes():
        if node.name == name:
            return node
    raise ClusterError(f"no node {name!r} in this cluster")


def _build(args: Arguments) -> int:
    if not args.ask:
        build.build()
        return 0
    why = build.cannot()
    answer(why or "this machine can have the cluster")
    return 1 if why else 0


def _up(args: Arguments) -> None:
    lifecycle.up(args.nodes, tuple(args.addons))


def _status(args: Arguments) -> int:
    row = lifecycle.status()
    answer(json.dumps(row, indent=1))
    return 0 if row["state"] == args.expect else 1


def _env(_: Arguments) -> None:
    lifecycle.running_nodes()
    answer(f"export GPUFABRIC_TEST_KUBECONFIG={layout.kubeconfig()}")
    answer(f"export KUBECONFIG={layout.kubeconfig()}")
    answer(f"export NO_PROXY={layout.CONTROL_ADDRESS}${{NO_PROXY:+,$NO_PROXY}}")
    answer(f"export PATH={build.program('kubectl').parent}:$PATH")


def _kubectl(args: Arguments) -> None:
    lifecycle.running_nodes()
    program = build.program("kubectl")
    env = {**os.environ, "KUBECONFIG": str(layout.kubeconfig()), "NO_PROXY": "*"}
    os.execve(program, [str(program), *args.words], env)  # noqa: S606 - no shell is wanted


def _exec(args: Arguments) -> None:
    words = machine.inside(_node(args.node), *args.words)
    os.execvp(words[0], words)  # noqa: S606 - no shell is wanted


def _user(args: Arguments) -> None:
    lifecycle.running_nodes()
    answer(str(users.mint(args.name, groups=args.group, namespace=args.namespace)))


def _dress(args: Arguments) -> None:
    lifecycle.require_root()
    with layout.alone():
        words = dict(word.split("=", 1) for word in args.set)
        dress.dress(_api(), _node(args.node), args.profile, words)


def _undress(args: Arguments) -> None:
    lifecycle.require_root()
    with layout.alone():
        if args.node == "all":
            dress.undress_all(_api(), lifecycle.running_nodes())
        else:
            dress.undress(_api(), _node(args.node))


def _addon(args: Arguments) -> None:
    lifecycle.require_root()
    with layout.alone():
        api = _api()
        if args.action == "remove":
            addons.remove(api, args.name)
        else:
            addons.install(api, args.name)
            addons.wait_admitting(api, args.name)


def _fault(args: Arguments) -> None:
    lifecycle.require_root()
    with layout.alone():
        faults.inflict(args.fault, args.target, lifecycle.running_nodes())


def _heal(_: Arguments) -> None:
    lifecycle.require_root()
    with layout.alone():
        faults.heal(lifecycle.running_nodes())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster.py", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, action: Command, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=action)
        return command

    make = add("build", _build, "make programs, manifests and the image, if missing")
    make.add_argument("--ask", action="store_true", help="make nothing: say whether it can be")
    up = add("up", _up, "build what is missing and start the cluster")
    up.add_argument("--nodes", type=int, default=2)
    up.add_argument("--addons", nargs="*", default=layout.ADDONS, choices=layout.ADDONS)
    add("down", lambda _: lifecycle.down(), "end the cluster and remove all that it made")
    status = add("status", _status, "what there is, as JSON; exit status 0 if all is well")
    status.add_argument("--expect", choices=("up", "down"), default="up")
    add("env", _env, "shell lines that point tests and kubectl to the cluster")
    add("kubeconfig", lambda _: answer(str(layout.kubeconfig())), "path of the kubeconfig")
    kubectl = add("kubectl", _kubectl, "kubectl, as administrator of the cluster")
    kubectl.add_argument("words", nargs=argparse.REMAINDER)
    execute = add("exec", _exec, "run a program on a node, outside of any pod")
    execute.add_argument("node")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    user = add("user", _user, "path of a kubeconfig of a user without any right")
    user.add_argument("name")
    user.add_argument("--group", action="append", default=[])
    user.add_argument("--namespace", default="default")
    wear = add("dress", _dress, "make a node look like a cloud's")
    wear.add_argument("node")
    wear.add_argument("profile", choices=sorted(dress.profiles()), metavar="profile")
    wear.add_argument("--set", action="append", default=[], metavar="WORD=TEXT")
    take_off = add("undress", _undress, "make a node look as it did; `all` for every node")
    take_off.add_argument("node")
    add("profiles", lambda _: answer("\n".join(sorted(dress.profiles()))), "names of the profiles")
    addon = add("addon", _addon, "add or remove JobSet, Kueue or LeaderWorkerSet")
    addon.add_argument("action", choices=("add", "remove"))
    addon.add_argument("name", choices=layout.ADDONS)
    fault = add("fault", _fault, "end, pause or cut off a program or a node")
    fault.add_argument("fault", choices=(*faults.FAULTS, *faults.NODE_FAULTS))
    fault.add_argument("target")
    add("heal", _heal, "undo every fault")
    return parser


def main() -> int:
    """Run one command."""
    args = _parser().parse_args()
    try:
        return args.run(args) or 0
    except (ClusterError, ApiError, PermissionError) as exc:
        hint = "; the cluster is root's" if isinstance(exc, PermissionError) else ""
        sys.stderr.write(f"cluster: {exc}{hint}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
