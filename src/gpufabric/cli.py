"""The commands of `python -m gpufabric`: thin, over the calls that a program makes."""

import argparse
import logging
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpufabric.errors import CatalogError, ConfigError, GpuFabricError, JobError, SpecError

if TYPE_CHECKING:
    from gpufabric.handle import JobHandle
    from gpufabric.task import Task

__all__ = ["main"]

_OK, _FAILED, _USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command: 0, 1 where the answer is no or the job failed, 2 for a wrong call."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _OWN_PARSERS:
        run: Callable[[Sequence[str]], int] = _OWN_PARSERS[arguments[0]]
        return _guarded(lambda: run(arguments[1:]))
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.call
    return _guarded(lambda: command(parsed))


def _guarded(call: Callable[[], int]) -> int:
    try:
        return call()
    except (SpecError, ConfigError, CatalogError) as exc:
        print(f"gpufabric: {exc}", file=sys.stderr)
        return _USAGE
    except JobError as exc:
        print(f"gpufabric: {exc}", file=sys.stderr)
        for line in getattr(exc, "tail", ()):
            print(f"  {line}", file=sys.stderr)
        return _FAILED
    except GpuFabricError as exc:
        print(f"gpufabric: {exc}", file=sys.stderr)
        return _FAILED
    except BrokenPipeError:
        # the reader of a pipe (`| head`) has left; there is nobody to tell
        sys.stderr.close()
        return _OK
    except KeyboardInterrupt:
        return 130


def _parse_text(argv: Sequence[str]) -> int:
    from gpufabric.net.cli import parse_main

    return parse_main(argv)


def _offers(argv: Sequence[str]) -> int:
    from gpufabric._cli_offers import offers_main

    return offers_main(argv)


def _plan(argv: Sequence[str]) -> int:
    from gpufabric._cli_offers import plan_main

    return plan_main(argv)


def _env(argv: Sequence[str]) -> int:
    from gpufabric._cli_offers import env_main

    return env_main(argv)


def _kubernetes_role(argv: Sequence[str]) -> int:
    from gpufabric.backends.kubernetes._role import role_main

    return role_main(argv)


_OWN_PARSERS: dict[str, Callable[[Sequence[str]], int]] = {
    "parse": _parse_text,
    "offers": _offers,
    "plan": _plan,
    "env": _env,
    "kubernetes-role": _kubernetes_role,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpufabric", description=__doc__)
    sub = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, call: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        made = sub.add_parser(name, help=text, description=text)
        made.set_defaults(call=call)
        return made

    from gpufabric._demo import demo

    run = command("demo", demo, "run a four-node gang on this machine, measure it, tear it down")
    run.add_argument("--nodes", type=int, default=4, help="size of the gang (4)")
    command("doctor", _doctor, "print every setting with its origin, and what each backend says")
    launch = command("launch", _launch, "launch the task of a YAML file and print its ref")
    launch.add_argument("file", help="the task, or - for standard input")
    launch.add_argument("--backend", action="append", default=[], help="only this backend")
    launch.add_argument("--secret", action="append", default=[], metavar="NAME=FILE",
                        help="the value of a secret, from a file")  # fmt: skip
    launch.add_argument("--follow", action="store_true", help="follow the logs until it ends")
    launch.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    launch.add_argument("--run", default=None, help="idempotency key: the same is the same job")
    logs = command("logs", _logs, "print a job's log lines")
    logs.add_argument("ref")
    logs.add_argument("--follow", "-f", action="store_true")
    logs.add_argument("--node-rank", type=int, default=None)
    for name, call, text in (
        ("status", _status, "print a job's state"),
        ("cancel", _cancel, "stop a job's processes; logs and state stay"),
        ("teardown", _teardown, "remove everything that a launch made"),
    ):
        command(name, call, text).add_argument("ref")
    inside = command("exec", _exec, "run a command in a node that runs, with this standard input")
    inside.add_argument("--node-rank", type=int, default=0)
    inside.add_argument("ref")
    inside.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    cp = command("cp", _cp, "copy a file or folder to a node or from one (RANK:PATH, *:PATH)")
    cp.add_argument("ref")
    cp.add_argument("source")
    cp.add_argument("target")
    forward = command("port-forward", _port_forward, "make a port of a node one of this machine")
    forward.add_argument("--node-rank", type=int, default=0)
    forward.add_argument("--local-port", type=int, default=0)
    forward.add_argument("ref")
    forward.add_argument("port", type=int)
    connect = command("connect", _connect, "join standard input and output with an sshd on a node"
                      " (what ssh_config() makes ssh run)")  # fmt: skip
    connect.add_argument("ref")
    connect.add_argument("node_rank", type=int)
    connect.add_argument("--key", required=True, help="the public key that may log in")
    command("jobs", _jobs, "list the jobs that every place has on record")
    for name, text in (
        ("offers", "where a task could run, on which network, at what price (offline)"),
        ("plan", "everything that a launch would make, with reasons (offline)"),
        ("env", "the export lines of the network's environment"),
        ("kubernetes-role", "print the smallest Kubernetes Role that launching needs"),
        ("parse", "read NCCL logs, nccl-tests tables and device dumps, and judge them"),
    ):
        sub.add_parser(name, help=text, add_help=False)
    return parser


def _doctor(_: argparse.Namespace) -> int:
    from gpufabric._display import text_table
    from gpufabric.fabric import Fabric

    with Fabric.discover() as fabric:
        origins = fabric.settings.origins
        rows = [(name, getattr(fabric.settings, name), origins[name]) for name in origins]
        print(text_table(("setting", "value", "from"), rows))
        reports = fabric.check()
        for report in reports:
            print(report)
        for rejection in fabric.unusable:
            print(rejection)
    return _OK if reports and all(report.ok for report in reports) else _FAILED


def _launch(args: argparse.Namespace) -> int:
    from gpufabric.backends import backend_class
    from gpufabric.config import Settings
    from gpufabric.fabric import Fabric

    task = _task(args.file, args.secret)
    if args.backend:
        settings = Settings.load()
        backends = [b for name in args.backend for b in backend_class(name).found(settings)]
        fabric = Fabric(*backends, settings=settings)
    else:
        fabric = Fabric.discover()
    with fabric:
        if args.dry_run:
            print(fabric.plan(task, run=args.run or ""))
            return _OK
        job = fabric.launch(task, run=args.run)
        print(job.ref, flush=True)
        if not args.follow:
            return _OK
        for line in job.logs(follow=True):
            print(line, flush=True)
        job.wait().raise_for_state()
    return _OK


def _task(file: str, secrets: Sequence[str]) -> "Task":
    from gpufabric._frozen import evolve
    from gpufabric.task import Task

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"{file}: {_why(exc)}") from exc
    task = Task.from_yaml(text)
    values: dict[str, object] = dict(task.secrets)
    for item in secrets:
        name, _, path = item.partition("=")
        if not path:
            raise SpecError(f"--secret {name}: write NAME=FILE")
        try:
            values[name] = Path(path).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise SpecError(f"--secret {name}: {path}: {_why(exc)}") from exc
    return evolve(task, secrets=values) if secrets else task


def _why(exc: OSError | UnicodeDecodeError) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else "it is not UTF-8 text"


@contextmanager
def _attached(text: str) -> "Generator[JobHandle]":
    from gpufabric.fabric import Fabric

    with Fabric() as fabric:
        yield fabric.attach(text)


def _logs(args: argparse.Namespace) -> int:
    with _attached(args.ref) as job:
        for line in job.logs(node_rank=args.node_rank, follow=args.follow):
            print(line, flush=args.follow)
    return _OK


def _status(args: argparse.Namespace) -> int:
    from gpufabric.job import JobState

    with _attached(args.ref) as job:
        status = job.status()
    print(f"{status.ref} {status.state}" + (f": {status.reason}" if status.reason else ""))
    for node in status.nodes:
        code = "" if node.exit_code is None else f" exit code {node.exit_code}"
        print(f"  node {node.node_rank} {node.state}{code}" + (node.reason and f": {node.reason}"))
    bad = status.state.ended and status.state is not JobState.SUCCEEDED
    return _FAILED if bad else _OK


def _cancel(args: argparse.Namespace) -> int:
    with _attached(args.ref) as job:
        job.cancel()
    return _OK


def _teardown(args: argparse.Namespace) -> int:
    with _attached(args.ref) as job:
        job.teardown()
    return _OK


def _exec(args: argparse.Namespace) -> int:
    from gpufabric._live import live_of, words_of
    from gpufabric._ssh import carry

    words = words_of(args.command[1:] if args.command[:1] == ["--"] else args.command)
    with _attached(args.ref) as job:
        live = live_of(job.backend, "exec")
        return carry(live.exec(job.ref, words, node_rank=args.node_rank, stdin=True))


def _cp(args: argparse.Namespace) -> int:
    with _attached(args.ref) as job:
        job.cp(args.source, args.target)
    return _OK


@contextmanager
def _warnings_told() -> Generator[None]:
    """What the library warns of while it goes on, on standard error: a program decides that."""
    log, handler = logging.getLogger("gpufabric"), logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("gpufabric: %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _port_forward(args: argparse.Namespace) -> int:
    with (
        _warnings_told(),
        _attached(args.ref) as job,
        job.port_forward(
            args.port, node_rank=args.node_rank, local_port=args.local_port
        ) as forward,
    ):
        print(f"127.0.0.1:{forward.port}", flush=True)
        job.wait()
    return _OK


def _connect(args: argparse.Namespace) -> int:
    from gpufabric._live import live_of
    from gpufabric._ssh import carry_ssh, read_key

    key, _ = read_key(args.key)
    with _attached(args.ref) as job:
        live = live_of(job.backend, "ssh")
        return carry_ssh(live, job.ref, node_rank=args.node_rank, key=key)


def _jobs(_: argparse.Namespace) -> int:
    from gpufabric.fabric import Fabric

    with Fabric.discover(on_event=lambda e: print(e.message, file=sys.stderr)) as fabric:
        for ref in fabric.jobs():
            print(ref)
    return _OK
