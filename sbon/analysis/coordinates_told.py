"""Writes the section on coordinates: plots, tables, and notes on unusual values."""

from typing import Any

import polars as pl

from sbon.analysis import plots
from sbon.analysis.findings import Findings, clock, count, figure, percent
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.quantiles import BIN, COUNT, RELATIVE_ERROR, quantiles_by
from sbon.analysis.workbench import MOMENT

WORST = 12
SHOWN = 2.0
"""Largest relative error that is drawn."""
UNUSUAL = 2.0
"""Factor from which a deviation is mentioned."""


def tell(
    numbers: dict[str, Any],
    errors: pl.DataFrame,
    joins: pl.DataFrame,
    positions: pl.DataFrame,
    stability: pl.DataFrame,
    pairs: pl.DataFrame,
) -> Findings:
    """Builds all parts from the tables of `coordinates.examine`."""
    text = (
        f"{count(numbers['probes'], 'probe')} compared with what the coordinates of the two agents predicted just before: half of the "
        f"predictions were off by less than {percent(numbers['median_relative_error'])}, nine tenths by less than "
        f"{percent(numbers['p90_relative_error'])}. Measured round trips are unfiltered, with noise that no prediction can contain."
    )
    parts: list[Plot | Table] = [_cdf(numbers, errors), _over_time(errors)]
    if not joins.is_empty():
        parts.append(_joining(numbers, joins))
    if not positions.is_empty():
        parts += [_movement(numbers, positions), _nodes(stability)]
    parts.append(_pairs(numbers, pairs))
    return Findings(numbers, Section("Coordinates", text, parts))


def _cdf(numbers: dict[str, Any], errors: pl.DataFrame) -> Plot:
    overall = errors.group_by(BIN).agg(pl.col(COUNT).sum()).sort(BIN)
    shares = (overall[COUNT].cum_sum() / overall[COUNT].sum()).to_list()
    xs = ((overall[BIN] + 1) * RELATIVE_ERROR.width).to_list()
    shown = [(x, y) for x, y in zip(xs, shares, strict=True) if x <= 2.0]
    wild = 1 - (shown[-1][1] if shown else 0.0)
    tail = (numbers["p90_relative_error"] or 0.0) / max(numbers["median_relative_error"] or 0.0, 1e-9)
    text = f"The share of predictions with at most this error. {percent(wild, 2)} were off by more than twice the truth, beyond "
    text += "the plot. "
    text += (
        f"The tail is long: the ninetieth percentile is {figure(tail)} times the median, so that some pairs or moments are much worse "
        "than most."
        if tail > 4
        else f"The ninetieth percentile is {figure(tail)} times the median, as is usual."
    )
    line = plots.Series("probes", [x for x, _ in shown], [y for _, y in shown])
    return Plot(
        "Relative error of predicted round trips", plots.lines([line], "relative error", "share of predictions", percent=True), text
    )


def _over_time(errors: pl.DataFrame) -> Plot:
    by_moment = quantiles_by(errors, MOMENT, {"p50": 0.5, "p90": 0.9}, RELATIVE_ERROR)
    moments, medians = by_moment[MOMENT].to_list(), by_moment["p50"].to_list()
    worst = max(range(len(medians)), key=lambda index: medians[index])
    usual = sorted(medians)[len(medians) // 2]
    text = f"Median and ninetieth percentile in each moment. The median was {percent(min(medians))} at best and "
    text += f"{percent(medians[worst])} at worst, "
    text += f"at {clock(moments[worst])}; "
    unusual = [moment for moment, median in zip(moments, medians, strict=True) if median > UNUSUAL * usual]
    if unusual:
        text += f"in {count(len(unusual), 'moment')} it was more than twice the usual {percent(usual)}, the first at {clock(unusual[0])}."
    else:
        text += f"it never was more than twice the usual {percent(usual)}."
    series = [plots.Series("median", moments, medians), plots.Series("90 %", moments, by_moment["p90"].to_list(), True)]
    return Plot("Errors over time", plots.lines(series, "UTC", "relative error", percent=True, top=SHOWN), text)


def _joining(numbers: dict[str, Any], joins: pl.DataFrame) -> Plot:
    steps = quantiles_by(joins, "until_s", {"p50": 0.5, "p90": 0.9}, RELATIVE_ERROR)
    first = steps["p50"][0]
    text = f"Errors of agents by the time since their start. In the first {steps['until_s'][0]} s the median was {percent(first)}; "
    if numbers["converged_s"] is None:
        text += "within half an hour it did not come near that of the whole log and stay there."
    else:
        text += f"after {numbers['converged_s']} s it stayed within a fifth of that of the whole log. "
        text += "The paper's overlay took about half an hour (SBON, figure 5)."
    series = [
        plots.Series(label, steps["until_s"].to_list(), steps[name].to_list(), name == "p90")
        for name, label in (("p50", "median"), ("p90", "90 %"))
    ]
    return Plot("Convergence after a start", plots.lines(series, "s since the start", "relative error", log_x=True, percent=True), text)


def _movement(numbers: dict[str, Any], positions: pl.DataFrame) -> Plot:
    by_moment = (
        positions.group_by(MOMENT)
        .agg((pl.col("moved_ms").sum() / pl.col("seconds").sum()).alias("speed"))
        .sort(MOMENT)
        .filter(pl.col("speed").is_finite())
    )
    speeds, moments = by_moment["speed"].to_list(), by_moment[MOMENT].to_list()
    text = f"How fast coordinates move: {figure(numbers['drift_ms_per_s'], 'ms')} in a second, mean over agents and time. "
    if speeds:
        top = max(range(len(speeds)), key=lambda index: speeds[index])
        usual = sorted(speeds)[len(speeds) // 2]
        times = speeds[top] / usual if usual > 0 else 0.0
        text += f"The most was {figure(speeds[top], 'ms')} in a second at {clock(moments[top])}, {figure(times)} times the usual: "
        text += "agents were starting, or the network changed." if times > UNUSUAL * 2 else "not enough to say that the network changed."
    return Plot(
        "Rate of coordinate updates", plots.lines([plots.Series("all agents", moments, speeds)], "UTC", "ms moved in a second"), text
    )


def _nodes(stability: pl.DataFrame) -> Table:
    shown = stability.head(WORST)
    rows = [
        [
            row["agent"],
            figure(row["moved_ms"] / row["seconds"] if row["seconds"] else None),
            figure(row["moved_ms"]),
            figure(row["net_ms"]),
            percent(row["error"]),
        ]
        for row in shown.iter_rows(named=True)
    ]
    text = "Coordinates that moved most. A long path and a short distance mean that a coordinate oscillates, both long that it drifts."
    return Table(
        "Least steady coordinates", ("agent", "ms in a second", "path, ms", "from first to last, ms", "error estimate"), rows, text
    )


def _pairs(numbers: dict[str, Any], pairs: pl.DataFrame) -> Table:
    rows = [
        [f"{row['a']} - {row['b']}", figure(row["rtt_ms"]), percent(row["error"]), f"{row[COUNT]:,}"]
        for row in pairs.head(WORST).iter_rows(named=True)
    ]
    text = "Pairs whose round trips were predicted worst, mean over their probes. "
    if numbers["triangle_violations"] is not None:
        text += (
            f"Of {count(numbers['triangle_pairs'], 'pair')} {percent(numbers['triangle_violations'])} have a shorter path over a third node"
        )
        text += f", which saves {percent(numbers['detour_saving'])} (median)" if numbers["detour_saving"] else ""
        text += ": no coordinates can represent these."
    return Table("Worst predicted pairs", ("pair", "least RTT, ms", "mean error", "probes"), rows, text)
