"""Benchmarks as tasks: each maker gives a `Task` that measures one collective on a gang."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NotRequired, TypedDict, Unpack

from gpufabric._convert import enum_of
from gpufabric._frozen import evolve
from gpufabric.errors import Problem, SpecError
from gpufabric.net.tier import NetworkTier
from gpufabric.resources import Resources
from gpufabric.task import Task

__all__ = [
    "BenchOptions",
    "Workload",
    "all_gather",
    "all_reduce",
    "alltoall",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "sendrecv",
]

FILE_NAME = "gpufabric_bench.py"


class Workload(StrEnum):
    """What moves the data."""

    TCP = "tcp"  # plain sockets between the nodes: needs python3 there and nothing else
    NCCL_TESTS = "nccl_tests"  # the programs of nccl-tests, which must be on the nodes
    TORCH = "torch"  # torch.distributed: nccl with GPUs, gloo without; needs PyTorch there


class BenchOptions(TypedDict):
    """The arguments that every maker takes besides the accelerators; all may be left out.

    Fields:
        num_nodes: the size of the gang, 2 unless told.
        workload: `torch` where accelerators are asked for, else `tcp`, unless told.
        network_tier: what the network must keep.
        resources: all that one node needs, in place of accelerators and network_tier.
        min_bytes, max_bytes, factor: the sizes: 8 to 8 GiB in steps of 2 for GPUs, 1 KiB to 16 MiB
            in steps of 4 without, unless told.
        iters, warmup: timed and untimed operations for each size.
        check: whether the data is checked.
        nproc_per_node: ranks on each node; one for each GPU, or one, unless told.
        pairwise: measure every pair of ranks too, which shows a slow one.
        dtype: `int32`, `float` or `double` (nccl-tests knows more); float with GPUs, else int32,
            unless told.
        interface: the name or address of the interface that sockets use.
        flags: further flags of nccl-tests, as they are (`["-z", "1"]`); for that workload alone.
        binary: the program of nccl-tests, where it is not found by itself.
        name, timeout_s: of the task.
    """

    num_nodes: NotRequired[int]
    workload: NotRequired[Workload | str | None]
    network_tier: NotRequired[NetworkTier | str | None]
    resources: NotRequired[Resources | None]
    min_bytes: NotRequired[int | None]
    max_bytes: NotRequired[int | None]
    factor: NotRequired[int | None]
    iters: NotRequired[int | None]
    warmup: NotRequired[int | None]
    check: NotRequired[bool]
    nproc_per_node: NotRequired[int | None]
    pairwise: NotRequired[bool]
    interface: NotRequired[str | None]
    dtype: NotRequired[str | None]
    flags: NotRequired[Sequence[str]]
    binary: NotRequired[str | None]
    name: NotRequired[str | None]
    timeout_s: NotRequired[float | None]


Accelerators = object  # what `Resources(accelerators=...)` takes; its converter judges it


def all_reduce(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures all-reduce: every rank gets the sum of all."""
    return _make("all_reduce", accelerators, **options)


def all_gather(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures all-gather: every rank gets the parts of all."""
    return _make("all_gather", accelerators, **options)


def reduce_scatter(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures reduce-scatter: every rank gets its part of the sum."""
    return _make("reduce_scatter", accelerators, **options)


def alltoall(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures all-to-all: every rank sends a part to each other."""
    return _make("alltoall", accelerators, **options)


def broadcast(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures broadcast: every rank gets rank 0's data."""
    return _make("broadcast", accelerators, **options)


def reduce(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures reduce: rank 0 gets the sum of all."""
    return _make("reduce", accelerators, **options)


def sendrecv(accelerators: Accelerators = None, **options: Unpack[BenchOptions]) -> Task:
    """A task that measures send and receive: every rank sends to the next."""
    return _make("sendrecv", accelerators, **options)


def _make(  # noqa: PLR0913  # BenchOptions, spelled out so that a wrong name is a TypeError
    collective: str,
    accelerators: Accelerators,
    *,
    num_nodes: int = 2,
    workload: Workload | str | None = None,
    network_tier: NetworkTier | str | None = None,
    resources: Resources | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    factor: int | None = None,
    iters: int | None = None,
    warmup: int | None = None,
    check: bool = True,
    nproc_per_node: int | None = None,
    pairwise: bool = False,
    interface: str | None = None,
    dtype: str | None = None,
    flags: Sequence[str] = (),
    binary: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
) -> Task:
    node = _node(accelerators, network_tier, resources)
    gpus = node.accelerator.count if node.accelerator else 0
    kind = enum_of(Workload, workload or (Workload.TORCH if gpus else Workload.TCP))
    large = bool(gpus) and kind is not Workload.TCP
    nproc = nproc_per_node or (gpus if large else 1)
    numbers = {
        "-b": _or(min_bytes, 8 if large else 1 << 10),
        "-e": _or(max_bytes, 8 << 30 if large else 16 << 20),
        "-f": _or(factor, 2 if large else 4),
        "-n": _or(iters, 20),
        "-w": _or(warmup, 5),
        "-c": int(check),
    }
    element = dtype or ("float" if large or kind is Workload.NCCL_TESTS else "int32")
    _refuse(numbers, num_nodes, nproc)
    _refuse_for(kind, element, {"pairwise": pairwise, "flags": bool(flags), "binary": bool(binary)})
    ours = ["--collective", collective, "--nproc", str(nproc)]
    ours += ["--bind", interface] if interface else []
    ours += ["--binary", binary] if binary else []
    ours += ["--pairwise"] if pairwise else []
    ours += ["--"] if kind is Workload.NCCL_TESTS else []  # the rest is the program's own
    sizes = [word for flag, number in numbers.items() for word in (flag, str(number))]
    return Task(
        name=name or f"bench-{collective.replace('_', '-')}",
        run=("python3", FILE_NAME, *ours, *sizes, "-d", element, *flags),
        files=_files(kind),
        num_nodes=num_nodes,
        resources=node,
        timeout_s=timeout_s,
    )


def _or(wish: int | None, default: int) -> int:
    return default if wish is None else wish


def _node(
    accelerators: Accelerators,
    network_tier: NetworkTier | str | None,
    resources: Resources | None,
) -> Resources:
    if resources is None:
        node = Resources(accelerators=accelerators)
        return evolve(node, network_tier=network_tier) if network_tier else node
    both = [
        name
        for name, value in (("accelerators", accelerators), ("network_tier", network_tier))
        if value is not None
    ]
    if both:
        raise SpecError(
            [Problem(path=name, message="is part of resources: give one of them") for name in both]
        )
    return resources


def _refuse(numbers: dict[str, int], num_nodes: int, nproc: int) -> None:
    faults = [
        ("min_bytes", numbers["-b"] < 1, "must be 1 or more"),
        ("max_bytes", numbers["-e"] < numbers["-b"], "must not be less than min_bytes"),
        ("factor", numbers["-f"] < 2, "must be 2 or more"),
        ("iters", numbers["-n"] < 1, "must be 1 or more"),
        ("warmup", numbers["-w"] < 0, "must be 0 or more"),
        ("nproc_per_node", nproc < 1, "must be 1 or more"),
        ("num_nodes", num_nodes * nproc < 2, "one rank has nobody to talk to: ask for 2 or more"),
    ]
    wrong = [Problem(path=path, message=message) for path, found, message in faults if found]
    if wrong:
        raise SpecError(wrong)


def _refuse_for(kind: Workload, element: str, extra: dict[str, bool]) -> None:
    only = {"pairwise": Workload.TCP, "flags": Workload.NCCL_TESTS, "binary": Workload.NCCL_TESTS}
    wrong = [
        Problem(path=name, message=f"is for the {only[name].value} workload alone")
        for name, given in extra.items()
        if given and kind is not only[name]
    ]
    if kind is not Workload.NCCL_TESTS and element not in {"int32", "float", "double"}:
        wrong.append(Problem(path="dtype", message=f"{element!r} is not int32, float or double"))
    if wrong:
        raise SpecError(wrong)


def _files(kind: Workload) -> dict[str, str]:
    tcp = _text_of("_tcp_workload.py")
    if kind is Workload.TCP:
        return {FILE_NAME: tcp}
    return {FILE_NAME: _text_of(f"_{kind.value}_workload.py"), "gpufabric_bench_tcp.py": tcp}


def _text_of(name: str) -> str:
    from importlib.resources import files

    return files("gpufabric.bench").joinpath(name).read_text("utf-8")
