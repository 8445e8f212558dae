"""Pictures of benchmarks; the only file of this package that imports matplotlib."""

from typing import TYPE_CHECKING

from gpufabric.bench.report import BenchReport
from gpufabric.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_report"]


def draw_report(report: BenchReport, ax: "Axes | None" = None) -> "Figure":
    """Draws bus bandwidth (left axis) and time (right axis) over size."""
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise MissingExtraError("BenchReport.plot", extra="plot") from exc
    if ax is None:
        ax = Figure(figsize=(8, 4.5), layout="constrained").subplots()
    figure = ax.get_figure(root=True)
    rows = [row for row in report.rows if row.size_bytes > 0]
    sizes = [row.size_bytes for row in rows]
    ax.plot(sizes, [_or_nan(row.busbw_gbytes_s) for row in rows], marker="o", label="out of place")
    ax.plot(
        sizes, [_or_nan(row.in_place_busbw_gbytes_s) for row in rows], marker=".", label="in place"
    )
    ax.set_xscale("log", base=2)
    ax.set_xlabel("size, bytes")
    ax.set_ylabel("bus bandwidth, GB/s")
    ax.set_ylim(bottom=0)
    ax.set_title(report.title())
    times = ax.twinx()
    times.plot(sizes, [_or_nan(row.time_us) for row in rows], color="tab:gray", linestyle=":")
    times.set_ylabel("time, us (dotted)")
    if rows:
        times.set_yscale("log")
    ax.legend(loc="upper left")
    if figure is None:
        raise ValueError("the axes belong to no figure")
    return figure


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
