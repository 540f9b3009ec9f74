"""The plots of the report, as SVG text: a few kinds, drawn alike."""

import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

WIDTH, HEIGHT = 8.0, 3.4
"""Inches; the page scales them to its own width."""
WIDE = 4.0
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
    """Lines over numbers or moments (datetime); what is above `top` is cut off."""
    figure, axes = _figure()
    for index, one in enumerate(series):
        style = "--" if one.dashed else "-"
        ys = [float("nan") if y is None else y for y in one.ys]
        options: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": style, "linewidth": 1.4, "label": one.label}
        if len(ys) < 3:
            options["marker"] = "o"
        axes.plot(one.xs, ys, **options)
    _finish(axes, x_label, y_label, log_x and _wide(axes.get_xlim()), log_y and _wide(axes.get_ylim()), percent)
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


def bars(labels: Sequence[str], values: Sequence[float], x_label: str, *, log_x: bool = False) -> str:
    """Horizontal bars with their values, the first on top."""
    figure, axes = _figure(max(1.6, 0.26 * len(labels) + 0.8))
    places = range(len(labels))
    drawn = axes.barh(places, values, color=COLOURS[0], height=0.7)
    axes.bar_label(drawn, labels=[f"{value:,.4g}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    _finish(axes, x_label, "", log_x, False, False)
    axes.grid(axis="y", visible=False)
    return _svg(figure)


def points(xs: Sequence[float], ys: Sequence[float], x_label: str, y_label: str, *, diagonal: bool = False, log: bool = False) -> str:
    """A cloud; with a diagonal, below which y is less than x."""
    figure, axes = _figure()
    axes.scatter(xs, ys, s=14, alpha=0.5, color=COLOURS[0], linewidths=0)
    if diagonal and xs:
        ends = [min(*xs, *ys), max(*xs, *ys)]
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
    return f"{value:,.6g}"


def _short(value: float, position: int) -> str:
    """Large numbers by thousands."""
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:g} {prefix}"
    return _plain(value, position)


def _wide(ends: tuple[float, float]) -> bool:
    """Whether a logarithmic axis would have more than one label."""
    return ends[0] <= 0 or ends[1] > WIDE * ends[0]


def _within(ends: tuple[float, float]) -> Callable[[float, int], str]:
    """Labels between powers of ten, where an axis has less than two of them."""
    narrow = ends[0] > 0 and ends[1] / ends[0] < 100
    return lambda value, position: _plain(value, position) if narrow and f"{value:e}"[0] in "235" else ""


def _moments(axes: Axes) -> None:
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with mpl.rc_context(SETTINGS):
        # Without the date the same numbers draw the same file.
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
