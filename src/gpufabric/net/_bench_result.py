"""From the rows and lines of an nccl-tests run to tables: what they are, and of how many ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpufabric.net._bench_math import infer_collective, mean, rank_range
from gpufabric.net._bench_rows import ratio_of
from gpufabric.net.records import BenchTable, Device

if TYPE_CHECKING:
    from gpufabric.net._bench_state import TableState


def has_content(table: TableState) -> bool:
    return bool(table.rows or table.layout or table.average is not None or table.out_of_bounds)


def finished(table: TableState) -> BenchTable:
    layout = table.layout
    rows = tuple(table.rows)
    inferred = infer_collective(
        rows,
        has_redop=None if layout is None else layout.redop is not None,
        has_root=None if layout is None else layout.root is not None,
        many_ranks=len(table.devices) > 1,
    )
    named = table.named or (next(iter(table.commands)) if len(table.commands) == 1 else None)
    if table.named is None and named and inferred and not _agree(named, inferred):
        named = None  # the text speaks of another test than the one whose rows these are
    collective = named or inferred
    ratio = ratio_of(_bandwidths(table))
    allowed = rank_range(collective, *ratio) if ratio else None
    n_ranks, basis = _table_ranks(table, allowed)
    values = [busbw for row in rows for busbw in row.busbws()]
    bounds = table.out_of_bounds or (None, None)
    return BenchTable(
        rows=rows,
        collective=collective,
        collective_basis=None if collective is None else ("named" if named else "inferred"),
        n_ranks=n_ranks,
        n_ranks_basis=basis,
        n_ranks_range=allowed,
        avg_bus_bandwidth=table.average,
        out_of_bounds_count=bounds[0],
        out_of_bounds_word=bounds[1],
        mean_of_printed_rows=mean(values) if not table.left_out else None,
        printed_rows_are_complete=table.complete,
        wrong_is_count=layout.wrong_is_count if layout else True,
        time_is_cpu=layout.time_is_cpu if layout else False,
        per_iteration=layout.per_iteration if layout else False,
        lineno=table.lineno,
        rows_left_out=table.left_out,
        errors=tuple(table.errors),
    )


def _bandwidths(table: TableState) -> Iterator[tuple[str, str]]:
    """Algbw and busbw as printed, of both halves of the last rows."""
    if table.layout is None:
        return
    places = [(at[1], at[2]) for at in table.layout.halves]
    for words in table.printed:
        if len(words) == table.layout.n_words:
            for algbw, busbw in places:
                if algbw is not None and busbw is not None:
                    yield words[algbw], words[busbw]


def _agree(named: str, inferred: str) -> bool:
    """Whether rows inferred to be one collective may be of the named one."""
    return named == inferred or (named == "alltoallv" and inferred == "alltoall")


def _table_ranks(
    table: TableState, allowed: tuple[int, int] | None
) -> tuple[int | None, str | None]:
    """Ranks of the group that ran a table: device lines, checked against busbw/algbw."""
    groups = Counter(device.group for device in table.devices)
    whole = _whole(table.devices)
    if whole and len(set(groups.values())) == 1:
        n_ranks = next(iter(groups.values()))
        if allowed is None or allowed[0] <= n_ranks <= allowed[1]:
            return n_ranks, "device lines"
    if allowed and allowed[0] == allowed[1]:
        return allowed[0], "busbw/algbw at the largest sizes"
    return None, None


def _whole(devices: tuple[Device, ...]) -> bool:
    """Whether the device lines are all there: ranks 0..n-1, each once."""
    return bool(devices) and sorted(d.rank for d in devices) == list(range(len(devices)))


def rank_count(
    devices: tuple[Device, ...], tables: tuple[BenchTable, ...]
) -> tuple[int | None, str | None]:
    grouped = len({device.group for device in devices}) > 1
    counts = {(t.n_ranks, t.n_ranks_basis) for t in tables if t.n_ranks}
    if len({count for count, _ in counts}) == 1 and not grouped:
        return counts.pop()
    if _whole(devices) and (grouped or not tables or not any(t.n_ranks_range for t in tables)):
        return len(devices), "device lines"
    return None, None


def node_count(devices: tuple[Device, ...]) -> tuple[int | None, int | None]:
    """Nodes, and ranks on each where all have the same number.

    Containers may all have one host name: where one device of a "host" shows up n times, these
    are n machines, since NCCL refuses two ranks on one GPU.
    """
    if not devices or any(device.host is None for device in devices):
        return None, None
    seats = Counter((d.host, d.local_dev, d.bus_id) for d in devices)
    doubled = Counter(seats.values())
    if len(doubled) != 1:
        return None, None
    hosts = Counter(d.host for d in devices)
    copies = next(iter(doubled))
    n_nodes = len(hosts) * copies
    sizes = {count // copies for count in hosts.values()}
    return n_nodes, (sizes.pop() if len(sizes) == 1 else None)
