"""Draws figures 10 to 13 of the SBON paper and the figure of Zipf-distributed queries, from the values in `figures.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sbon.errors import ConfigError
from sbon_testbed.figures.topology import draw_topology
from sbon_testbed.placement.plots import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOVING, STILL, BEST, GREY = "#1f77b4", "#d62728", "#2ca02c", "#888888"
LINKS = {
    "left": ("producer 1 to operator", "#1f77b4"),
    "right": ("producer 2 to operator", "#9ecae1"),
    "out": ("operator to consumer", "#ff7f0e"),
}
BARS_MAX = 15
"""Most placements drawn in figure 11; `figures.json` has all of them."""


def draw_figure10(path: Path, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws the network usage of one query over time, with migration (left) and without (right), a row for each network."""
    figure = _figure(11, 3.1 * len(figures))
    rows = figure.subplots(len(figures), 2, sharex="row", sharey="row", squeeze=False)
    for (name, one), (left, right) in zip(figures.items(), rows, strict=True):
        highest = float(np.percentile([*one["usage_migrating_bytes"], *one["usage_still_bytes"]], 99.5))
        for axes, key, colour, title in ((left, "migrating", MOVING, "with migration"), (right, "still", STILL, "without migration")):
            axes.plot(one["hours"], one[f"usage_{key}_bytes"], ".", markersize=2.5, color=colour)
            axes.set_title(f"{name}: {title}, {np.mean(one[f'usage_{key}_bytes']):.0f} bytes on average", fontsize=10)
            axes.set_xlabel("hours")
            axes.grid(alpha=0.25)
        moves = one["migrations_at_hours"]
        for hour in moves:
            left.axvline(hour, color="#444444", linewidth=0.7, alpha=0.8 if len(moves) < 30 else 0.25, zorder=0)
        if len(moves) <= BARS_MAX:
            for placement, hour in zip(one["placements"], [0.0, *moves], strict=False):
                left.annotate(placement["label"], (hour, highest * 1.02), fontsize=9, xytext=(3, 0), textcoords="offset points")
        left.set_ylim(0, highest * 1.12)
        left.set_ylabel("network usage, bytes in transit")
        left.text(0.99, 0.03, f"{len(moves)} migrations (bars)", transform=left.transAxes, ha="right", fontsize=9, color="#444444")
    _save(figure, path)


def draw_figure11(path: Path, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws the usage of each placement's links relative to the query that stays at A in the same time, and the delay of answers."""
    figure = _figure(14, 3.6 * len(figures))
    rows = figure.subplots(len(figures), 2, squeeze=False)
    for (name, one), (bars, delays) in zip(figures.items(), rows, strict=True):
        shown: Sequence[Mapping[str, Any]] = one["placements"][:BARS_MAX]
        at = np.arange(len(shown))
        bottom = np.zeros(len(shown))
        for link, (title, colour) in LINKS.items():
            share = np.array(
                [p["normalised"] * p["usage_by_link_bytes"][link] / (sum(p["usage_by_link_bytes"].values()) or 1.0) for p in shown]
            )
            bars.bar(at, share, 0.65, bottom=bottom, color=colour, label=title)
            bottom += share
        for x, placement in zip(at, shown, strict=True):
            bars.annotate(f"{placement['normalised']:.2f}", (x, placement["normalised"]), ha="center", va="bottom", fontsize=9)
        rest = len(one["placements"]) - len(shown)
        bars.set_title(f"{name}: usage, A's at the same time = 1" + (f" ({rest} more not shown)" if rest else ""), fontsize=10)
        bars.set_ylim(0, max(1.0, float(bottom.max())) * 1.35)
        bars.legend(fontsize=8, ncols=3, loc="upper center")
        delays.bar(at - 0.2, [p["delay_ms"] for p in shown], 0.4, color=MOVING, label="this placement")
        delays.bar(at + 0.2, [p["delay_still_ms"] for p in shown], 0.4, color=STILL, label="the first placement at the same time")
        delays.set_title(f"{name}: latency from the farther producer, ms", fontsize=10)
        delays.set_ylim(0, delays.get_ylim()[1] * 1.2)
        delays.legend(fontsize=8, ncols=2, loc="upper center")
        for axes in (bars, delays):
            axes.set_xticks(at, [f"{p['label']}\n{p['node']}\n{p['hours']:.1f} h" for p in shown], fontsize=8)
            axes.grid(alpha=0.25, axis="y")
    _save(figure, path)


def draw_figure12(path: Path, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws for each variant the change of network usage by migration, query by query from best to worst, and the possible change."""
    columns = 2
    count = -(-len(figures) // columns)
    figure = _figure(11, 3.2 * count)
    grid = figure.subplots(count, columns, squeeze=False)
    for axes in grid.flat[len(figures) :]:
        axes.set_visible(False)
    for (name, one), axes in zip(figures.items(), grid.flat, strict=False):
        pairs = sorted(one["pairs"], key=lambda pair: pair["change"])
        change = 100 * np.array([pair["change"] for pair in pairs])
        best = [
            100 * (pair["usage_all_knowing_bytes"] / pair["usage_still_bytes"] - 1) if pair["usage_still_bytes"] else 0.0 for pair in pairs
        ]
        at = np.arange(len(pairs))
        axes.bar(at, change, 0.75, color=[MOVING if value <= 0 else STILL for value in change], label="with migration")
        axes.plot(at, best, "_", color="#222222", markersize=9, markeredgewidth=1.6, label="all-knowing at every slice")
        axes.axhline(0, color="#222222", linewidth=0.8)
        share = one["share_of_all_knowing"]
        reached = "" if share is None else f", {share:.0%} of what was possible"
        axes.set_title(f"{name}\n{one['saving']:z.1%} saved in all{reached}", fontsize=10)
        axes.set_xticks(at, [str(index + 1) for index in at], fontsize=7)
        axes.set_xlabel("query")
        axes.set_ylabel("change of usage, %")
        axes.grid(alpha=0.25, axis="y")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncols=2)
    _save(figure, path)


def draw_figure13(path: Path, figures: Mapping[str, Any]) -> None:
    """Draws the streams between operators of the first group, without and with sharing, and below them the usage of every group."""
    figure = _figure(12, 8)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.25, 1))
    groups = figures["groups"]
    for column, (key, title) in enumerate((("alone", "each query on its own"), ("multicast", "shared, with multicast operators"))):
        draw_topology(figure.add_subplot(grid[0, column]), groups[0]["topology"][key])
        figure.axes[-1].set_title(f"Group 1, {title}: {groups[0][key]['usage_bytes']:.0f} bytes in transit", fontsize=10)
    axes = figure.add_subplot(grid[1, :])
    at = np.arange(len(groups) + 1)
    regimes = (
        ("alone", "each query on its own", STILL),
        ("reuse", "operators shared", "#9ecae1"),
        ("multicast", "shared, with multicast operators", MOVING),
    )
    for index, (key, title, colour) in enumerate(regimes):
        values = [group[key]["usage_bytes"] for group in groups]
        values.append(float(np.mean(values)))
        axes.bar(at + 0.27 * (index - 1), values, 0.27, color=colour, label=title)
        if key == "multicast":
            for x, value, group in zip(at, values, [*groups, figures], strict=True):
                axes.annotate(f"{-group['saving_multicast']:+z.0%}", (x + 0.27, value), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(at, [*(f"group {index + 1}" for index in range(len(groups))), "mean"])
    axes.set_ylabel("network usage, bytes in transit")
    axes.set_title("Four queries near each other over the same two far producers", fontsize=10)
    axes.grid(alpha=0.25, axis="y")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.2)
    axes.legend(fontsize=9, loc="upper center", ncols=3)
    _save(figure, path)


def draw_zipf(path: Path, figures: Mapping[str, Any]) -> None:
    """Draws how often each pair of streams is queried, and the cost of all queries together."""
    figure = _figure(11, 3.8)
    left, right = figure.subplots(1, 2)
    counts = sorted(figures["queries_by_streams"], reverse=True)
    left.bar(np.arange(1, len(counts) + 1), counts, 0.9, color=GREY)
    left.set_xlabel("pair of streams, by number of queries")
    left.set_ylabel("queries")
    left.set_title(
        f"{figures['queries']} queries over {figures['sources']} sources, exponent {figures['exponent']:g}: {len(counts)} different",
        fontsize=10,
    )
    regimes = (
        ("alone", "each on its own", STILL),
        ("shared_once", "each equal operator\nonce, best placed\n(computed)", BEST),
        ("reuse", "shared", "#9ecae1"),
        ("multicast", "shared, with\nmulticasts", MOVING),
    )
    values = [figures[key]["usage_bytes"] for key, _, _ in regimes]
    right.bar(np.arange(len(regimes)), values, 0.6, color=[colour for _, _, colour in regimes])
    for x, value in enumerate(values):
        change = "" if x == 0 else f" ({value / values[0] - 1:+z.0%})"
        right.annotate(f"{value:,.0f}{change}", (x, value), ha="center", va="bottom", fontsize=9)
    right.set_xticks(np.arange(len(regimes)), [title for _, title, _ in regimes], fontsize=9)
    right.set_ylim(0, max(values) * 1.12)
    right.set_ylabel("network usage, bytes in transit")
    right.set_title("All queries together", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.25, axis="y")
    _save(figure, path)


def _figure(width: float, height: float) -> "Figure":
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, dpi=130, metadata={"Software": None})
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror or problem}") from problem
