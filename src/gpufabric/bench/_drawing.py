"""Pictures of benchmarks; the only file of this package that imports matplotlib."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpufabric.bench.report import BenchReport
from gpufabric.errors import MissingExtraError, SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_pairs", "draw_report"]


def draw_report(report: BenchReport, ax: "Axes | None", lines: Mapping[str, float]) -> "Figure":
    """Draws bus bandwidth (left axis) and time (right axis) over size."""
    axes, figure = _axes(ax, "BenchReport.plot")
    rows = [row for row in report.rows if row.size_bytes > 0]
    sizes = [row.size_bytes for row in rows]
    ways = {
        "out of place": [row.busbw_gbytes_s for row in rows],
        "in place": [row.in_place_busbw_gbytes_s for row in rows],
    }
    for label, speeds in ways.items():
        if any(speed is not None for speed in speeds):
            axes.plot(sizes, [_or_nan(speed) for speed in speeds], marker="o", label=label)
    for label, speed in lines.items():
        axes.axhline(speed, color="tab:red", linestyle="--" if label == "reference" else "-.")
        axes.annotate(f"{label} {speed:g}", (0, speed), xycoords=("axes fraction", "data"))
    axes.set_xscale("log", base=2)
    axes.set_xlabel("size, bytes")
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.set_ylim(bottom=0)
    axes.set_title(report.title())
    times = axes.twinx()
    times.plot(sizes, [_or_nan(row.best_time_us) for row in rows], color="gray", linestyle=":")
    times.set_ylabel("time, us (dotted)")
    if rows:
        times.set_yscale("log")
        axes.legend(loc="center left")
    return figure


def draw_pairs(report: BenchReport, ax: "Axes | None") -> "Figure":
    """Draws the matrix of a pairwise run: rows send, columns receive."""
    if not report.pairs:
        raise SpecError("no pairs were measured: ask for pairwise=True")
    axes, figure = _axes(ax, "BenchReport.plot_pairs")
    n = 1 + max(max(pair.source_rank, pair.target_rank) for pair in report.pairs)
    matrix = [[float("nan")] * n for _ in range(n)]
    for pair in report.pairs:
        matrix[pair.source_rank][pair.target_rank] = pair.gbytes_s
    image = axes.imshow(matrix, vmin=0)
    canvas: Any = figure
    canvas.colorbar(image, label="GB/s")
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    axes.set_title(report.title())
    if n <= 16:
        for pair in report.pairs:
            place = (pair.target_rank, pair.source_rank)
            axes.annotate(f"{pair.gbytes_s:.3g}", place, ha="center", va="center", color="white")
    return figure


def _axes(ax: "Axes | None", needed_by: str) -> "tuple[Any, Figure]":
    """The axes to draw on; Any, since matplotlib leaves its keyword arguments without types."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise MissingExtraError(needed_by, extra="plot") from exc
    if ax is None:
        ax = Figure(figsize=(8, 4.5), layout="constrained").subplots()
    figure = ax.get_figure(root=True)
    if figure is None:
        raise SpecError("the axes belong to no figure")
    return ax, figure


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
