"""BenchReport: one benchmark's table, typed, comparable between runs and easy to look at."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpufabric._frozen import field, frozen

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpufabric.bench.verdict import Verdict
    from gpufabric.net.promise import HasNetwork, Reference

__all__ = ["BenchPair", "BenchReport", "BenchRow", "bus_factor"]

_PER_RANK = frozenset(
    {"all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"}
)


def bus_factor(collective: str, n_ranks: int) -> float:
    """The ratio busbw / algbw of a collective on `n_ranks` ranks.

    The factors are those of nccl-tests:
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    if collective == "all_reduce":
        return 2 * (n_ranks - 1) / n_ranks
    return (n_ranks - 1) / n_ranks if collective in _PER_RANK else 1.0


@frozen(kw_only=True)
class BenchRow:
    """One size. The plain fields are out of place; None where it was not measured or checked.

    Fields:
        size_bytes: of the larger buffer over the whole collective, as nccl-tests counts it.
        count: elements of the call's count parameter; of one rank's part where data is split.
        root: the root rank; None where the collective has none.
        wrong, in_place_wrong: elements with a wrong value over all ranks.
    """

    size_bytes: int
    count: int | None = None
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    time_us: float | None = None
    algbw_gbytes_s: float | None = None
    busbw_gbytes_s: float | None = None
    wrong: int | None = None
    in_place_time_us: float | None = None
    in_place_algbw_gbytes_s: float | None = None
    in_place_busbw_gbytes_s: float | None = None
    in_place_wrong: int | None = None

    @property
    def best_busbw_gbytes_s(self) -> float | None:
        """The faster of the two ways; a workload may measure one of them only."""
        ways = (self.busbw_gbytes_s, self.in_place_busbw_gbytes_s)
        return max((way for way in ways if way is not None), default=None)

    @property
    def best_time_us(self) -> float | None:
        """The shorter of the two times."""
        ways = (self.time_us, self.in_place_time_us)
        return min((way for way in ways if way is not None), default=None)


@frozen(kw_only=True)
class BenchPair:
    """What one rank sent to another while that one sent back, in a pairwise run."""

    source_rank: int
    source_host: str
    target_rank: int
    target_host: str
    gbytes_s: float


@frozen(kw_only=True)
class BenchReport:
    """One benchmark: what was run, and a row for each size.

    Fields:
        collective: None where the text does not tell.
        workload: `tcp`, `torch` or `nccl_tests`.
        backend: what moved the data where the workload can choose (`gloo`, `nccl`).
        n_ranks, num_nodes: None where the text does not tell.
        pairs: speeds between single pairs of ranks, where they were measured.
        out_of_bounds: sizes and places with wrong data; None where nothing was checked.
        avg_bus_bandwidth_gbytes_s: as printed: the mean over all sizes. Shown, never judged, since
            small sizes pull it down.
        complete: False where the text stops before the footer.
        is_cpu_time: times are those of queueing the work (nccl-tests -C 1), not of doing it.
    """

    collective: str | None
    workload: str = "nccl_tests"
    backend: str | None = None
    n_ranks: int | None = None
    num_nodes: int | None = None
    iters: int | None = None
    rows: tuple[BenchRow, ...] = field(default=())
    pairs: tuple[BenchPair, ...] = field(default=())
    out_of_bounds: int | None = None
    avg_bus_bandwidth_gbytes_s: float | None = None
    complete: bool = True
    is_cpu_time: bool = False

    @classmethod
    def from_text(cls, lines: str | Iterable[str]) -> "BenchReport":
        """Reads the last table of a log, from text or its lines.

        Raises `ParseError` where there is none.
        """
        return cls.all_from_text(lines)[-1]

    @classmethod
    def all_from_text(cls, lines: str | Iterable[str]) -> tuple["BenchReport", ...]:
        """Reads every table of a log, in order. Raises `ParseError` where there is none."""
        from gpufabric.bench._reading import read_reports

        return read_reports(lines)

    @property
    def dtype(self) -> str | None:
        """The element type, None where rows differ in it."""
        return _common(row.dtype for row in self.rows)

    @property
    def redop(self) -> str | None:
        """The reduction, None where there is none or rows differ in it."""
        return _common(row.redop for row in self.rows)

    @property
    def largest(self) -> BenchRow | None:
        """The row of the largest size, the one by which a network is judged."""
        return max(self.rows, key=lambda row: row.size_bytes, default=None)

    @property
    def is_correct(self) -> bool | None:
        """Whether all data that was checked was right; None where none was checked."""
        counts = [n for row in self.rows for n in (row.wrong, row.in_place_wrong) if n is not None]
        if any(counts) or self.out_of_bounds:
            return False
        return True if counts else None

    def verdict(
        self,
        offer: "HasNetwork | None" = None,
        *,
        reference: "Reference | None" = None,
        limit_gbytes_s: float | None = None,
    ) -> "Verdict":
        """Judges the network that was measured. Without anything to compare with, speed stays open.

        Args:
            offer: what was promised; published results for its instance type and the rate of its
                NICs come from there.
            reference: a result to compare with, in place of the catalog's.
            limit_gbytes_s: what a node's NICs carry one way, in place of the offer's.
        """
        from gpufabric.bench.verdict import judge

        return judge(self, offer, reference=reference, limit_gbytes_s=limit_gbytes_s)

    def to_dict(self) -> dict[str, object]:
        """JSON-safe data with `schema`."""
        from gpufabric._convert import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "BenchReport":
        """Builds it from plain data. Raises `SpecError` with every fault and its path."""
        from gpufabric._convert import from_dict

        return from_dict(cls, data)

    def to_dicts(self) -> list[dict[str, object]]:
        """One flat dictionary a row, every column present."""
        import attrs

        return [attrs.asdict(row) for row in self.rows]

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a pandas DataFrame. Raises `MissingExtraError` without pandas."""
        from gpufabric.errors import MissingExtraError

        try:
            import pandas as pd
        except ImportError as exc:
            raise MissingExtraError("BenchReport.to_pandas", extra="pandas") from exc
        return pd.DataFrame(self.to_dicts(), columns=_columns())

    def to_polars(self) -> "pl.DataFrame":
        """The rows as a polars DataFrame. Raises `MissingExtraError` without polars."""
        from gpufabric.errors import MissingExtraError

        try:
            import polars as pl
        except ImportError as exc:
            raise MissingExtraError("BenchReport.to_polars", extra="polars") from exc
        kinds = {
            name: pl.String if name in {"dtype", "redop"} else pl.Int64 for name in _columns()
        } | {name: pl.Float64 for name in _columns() if name.endswith(("_us", "_gbytes_s"))}
        return pl.DataFrame(self.to_dicts(), schema=kinds)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        reference_gbytes_s: float | None = None,
        limit_gbytes_s: float | None = None,
    ) -> "Figure":
        """Draws bus bandwidth and time over size, with a reference and a limit as lines.

        Nothing global is touched: without `ax` a figure of its own is made, which a notebook
        shows and `figure.savefig(path)` stores. Raises `MissingExtraError` without matplotlib.
        """
        from gpufabric.bench._drawing import draw_report

        lines = {"reference": reference_gbytes_s, "limit of the NICs": limit_gbytes_s}
        return draw_report(self, ax, {k: v for k, v in lines.items() if v is not None})

    def plot_pairs(self, ax: "Axes | None" = None) -> "Figure":
        """Draws what every rank sent to every other as a matrix, from a pairwise run."""
        from gpufabric.bench._drawing import draw_pairs

        return draw_pairs(self, ax)

    def title(self) -> str:
        """What was run, on one line."""
        from gpufabric._display import one_line

        by = f"{self.workload}/{self.backend}" if self.backend else self.workload
        ranks = "an unknown number of" if self.n_ranks is None else f"{self.n_ranks}"
        on = "" if self.num_nodes is None else f" on {self.num_nodes} nodes"
        text = f"{self.collective or 'a collective'} ({by}), {ranks} ranks{on}"
        return one_line(text if self.complete else f"{text}, incomplete")

    def __str__(self) -> str:
        from gpufabric._display import text_table

        parts = [self.title(), text_table(*_cells(self)), *_notes(self)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        from html import escape

        from gpufabric._display import html_table

        headers, rows = _cells(self)
        notes = "".join(f"<p>{escape(note)}</p>" for note in _notes(self))
        return html_table(headers, rows, caption=self.title()) + notes


def _columns() -> list[str]:
    import attrs

    return [attribute.name for attribute in attrs.fields(BenchRow)]


def _common(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _cells(report: BenchReport) -> tuple[list[str], list[list[object]]]:
    half = ["time us", "algbw GB/s", "busbw GB/s", "wrong"]
    headers = ["size B", "count", "type", "redop", "root", *half, *(f"in-place {h}" for h in half)]
    rows: list[list[object]] = [
        [
            row.size_bytes,
            *(_shown(v) for v in (row.count, row.dtype, row.redop, row.root)),
            *(_shown(v) for v in (row.time_us, row.algbw_gbytes_s, row.busbw_gbytes_s, row.wrong)),
            _shown(row.in_place_time_us),
            _shown(row.in_place_algbw_gbytes_s),
            _shown(row.in_place_busbw_gbytes_s),
            _shown(row.in_place_wrong),
        ]
        for row in report.rows
    ]
    return headers, rows


def _shown(value: object) -> object:
    return "-" if value is None else value


def _notes(report: BenchReport) -> list[str]:
    notes: list[str] = []
    correct = {None: "not checked", True: "right", False: "WRONG"}[report.is_correct]
    notes.append(f"data: {correct}")
    if report.avg_bus_bandwidth_gbytes_s is not None:
        average = f"{report.avg_bus_bandwidth_gbytes_s:g} GB/s"
        notes.append(f"average bus bandwidth over all sizes: {average} (not a measure of speed)")
    if report.pairs:
        slowest = min(report.pairs, key=lambda pair: pair.gbytes_s)
        notes.append(
            f"{len(report.pairs)} pairs measured, slowest {slowest.source_host} to"
            f" {slowest.target_host}: {slowest.gbytes_s:g} GB/s"
        )
    return notes
