"""Draws the plots of the report as SVG text, in a few uniform kinds."""

import io
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

WIDTH, HEIGHT = 8.0, 3.4
"""Inches; the page scales them to its own width."""
WIDE = 4.0
DRAWN_MAX = 1e100
"""Largest value that is drawn; larger ones, and the inverses of smaller ones, make the margins of the axes overflow."""
COLOURS = ("#1f5fa8", "#d1495b", "#2e8b57", "#e09f3e", "#6b4c9a", "#7f7f7f", "#17a2b8", "#a0522d")
SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "sbon",
}


class Series(NamedTuple):
    """One line."""

    label: str
    xs: Sequence[Any]
    ys: Sequence[float | None]
    dashed: bool = False


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    top: float | None = None,
) -> str:
    """Draws lines over numbers or times (datetime); values above `top` are cut off.

    Values that are unknown or not finite are gaps. A logarithmic axis shows no values of 0 or less, and stays linear where it would show
    nothing or where all values are close together.
    """
    figure, axes = _figure()
    for index, one in enumerate(series):
        style = "--" if one.dashed else "-"
        ys = _drawable(one.ys)
        options: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": style, "linewidth": 1.4, "label": one.label}
        if len(ys) < 3:
            options["marker"] = "o"
        axes.plot(one.xs if one.xs and isinstance(one.xs[0], datetime) else _drawable(one.xs), ys, **options)
    _finish(axes, x_label, y_label, log_x and _wide(axes, "x"), log_y and _wide(axes, "y"), percent)
    if top is not None and axes.get_ylim()[1] > top:
        axes.set_ylim(top=top)
    if any(one.xs and isinstance(one.xs[0], datetime) for one in series):
        _moments(axes)
    if len(series) > 1:
        axes.legend(
            fontsize=8,
            ncols=len(series) if len(series) <= 4 else 3,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            frameon=False,
            borderaxespad=0.2,
        )
    return _svg(figure)


def points(
    xs: Sequence[float | None], ys: Sequence[float | None], x_label: str, y_label: str, *, diagonal: bool = False, log: bool = False
) -> str:
    """Draws points, optionally with a diagonal, below which y is less than x. Points without finite values, or without positive ones on
    logarithmic axes, are left out; without any point the axes are linear."""
    figure, axes = _figure()
    known = [(x, y) for x, y in zip(_drawable(xs), _drawable(ys), strict=True) if not math.isnan(x + y) and (not log or (x > 0 and y > 0))]
    axes.scatter([x for x, _ in known], [y for _, y in known], s=14, alpha=0.5, color=COLOURS[0], linewidths=0)
    log = log and bool(known)
    if diagonal and known:
        ends = [min(map(min, known)), max(map(max, known))]
        axes.plot(ends, ends, color=COLOURS[5], linestyle="--", linewidth=1)
    _finish(axes, x_label, y_label, log, log, False)
    return _svg(figure)


def _figure(height: float = HEIGHT) -> tuple[Figure, Axes]:
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        return figure, figure.add_subplot()


def _finish(axes: Axes, x_label: str, y_label: str, log_x: bool, log_y: bool, percent: bool) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.xaxis.set_minor_formatter(FuncFormatter(_within(axes.get_xlim())))
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_minor_formatter(FuncFormatter(_within(axes.get_ylim())))
    elif percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(bottom=0)
    elif y_label:
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        low, high = axes.get_ylim()
        axes.set_ylim(bottom=0.0 if low <= 0 < high and axes.dataLim.y0 >= 0 else min(0.0, low), top=1.0 if axes.dataLim.y1 == 0 else high)


def _plain(value: float, _position: int) -> str:
    return f"{value:z,.6g}"


def _short(value: float, position: int) -> str:
    """Formats large numbers in thousands."""
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:g} {prefix}"
    return _plain(value, position)


def _drawable(values: Sequence[float | None]) -> list[float]:
    """Returns the values, with NaN for those that are unknown or cannot be drawn."""
    return [math.nan if value is None or not abs(value) <= DRAWN_MAX else value if abs(value) >= 1 / DRAWN_MAX else 0.0 for value in values]


def _wide(axes: Axes, axis: str) -> bool:
    """Tells whether a logarithmic axis would have values to show, and more than one label."""
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    drawn = [(x, y) for line in axes.get_lines() for x, y in np.asarray(line.get_xydata(), dtype=float).tolist()]
    return any(not math.isnan(x + y) and (x if axis == "x" else y) > 0 for x, y in drawn) and (low <= 0 or high > WIDE * low)


def _within(ends: tuple[float, float]) -> Callable[[float, int], str]:
    """Returns a formatter for labels between powers of ten, for axes with fewer than two powers."""
    narrow = ends[0] > 0 and ends[1] / ends[0] < 100
    return lambda value, position: _plain(value, position) if narrow and f"{value:e}"[0] in "235" else ""


def _moments(axes: Axes) -> None:
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with mpl.rc_context(SETTINGS):
        # Without the date the same numbers give the same file.
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
