"""Draws the distributions of placement penalties over queries."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sbon.errors import ConfigError
from sbon.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#222222", "#1f77b4", "#9467bd", "#2ca02c", "#8c564b", "#7f7f7f", "#d62728", "#ff7f0e")
"""Colours of the curves, in their order; the dashes below distinguish them for colour-blind readers."""
DASHES = ((), (5, 1.5), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1.5), (1, 2.5), (), (6, 1.5))
TAIL = 97.5
"""Percentile of the widest curve at which the figure ends; single outliers would squeeze all other queries into a corner."""


class Curve(NamedTuple):
    """One algorithm."""

    title: str
    penalty: FloatArray
    """(queries,), sorted; fractions."""
    ours: bool
    """True: the line is drawn thicker."""


def require_matplotlib() -> None:
    """Checks that matplotlib is installed, so that a command fails before its work.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError(
            "figures need matplotlib, which is not installed: pip install 'sbon[analysis]', or pip install matplotlib"
        ) from None


def draw_distribution(path: Path, title: str, quantity: str, curves: Sequence[Curve]) -> None:
    """Draws cumulative distributions: the share of queries with at most a given penalty.

    Raises
    ------
    ConfigError
        matplotlib is missing, or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for number, curve in _merged(curves):
        _draw_curve(axes, curve, COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)])
    low = min(float(np.percentile(curve.penalty, 100 - TAIL)) for curve in curves)
    high = max(float(np.percentile(curve.penalty, TAIL)) for curve in curves)
    margin = 0.02 * (high - low) or 0.01
    axes.set_xlim(100 * (low - margin), 100 * (high + margin))
    axes.set_ylim(0, 102)
    axes.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"{quantity}, %")
    axes.set_ylabel("share of the queries with at most this penalty, %")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", fontsize=9)
    try:
        figure.savefig(path, dpi=150)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror or problem}") from problem


def _draw_curve(axes: "Axes", curve: Curve, colour: str, dashes: tuple[float, ...]) -> None:
    count = len(curve.penalty)
    x = 100 * np.concatenate([curve.penalty[:1], curve.penalty])
    y = 100 * np.arange(count + 1) / count
    mean = f"{100 * float(curve.penalty.mean()):.1f} %"
    (line,) = axes.step(
        x,
        y,
        where="post",
        color=colour,
        linewidth=2.6 if curve.ours else 1.5,
        zorder=2 if curve.ours else 3,
        label=f"{curve.title}: {mean} on average",
    )
    if dashes:
        line.set_dashes(dashes)


def _merged(curves: Sequence[Curve]) -> list[tuple[int, Curve]]:
    """Returns curves with their numbers; equal curves become one with both names, because one would hide the other."""
    result: dict[int, Curve] = {}
    for number, curve in enumerate(curves):
        same = next((other for other in result if np.array_equal(result[other].penalty, curve.penalty)), None)
        if same is None:
            result[number] = curve
        else:
            result[same] = result[same]._replace(title=f"{result[same].title}, {curve.title}", ours=result[same].ours or curve.ours)
    return list(result.items())
