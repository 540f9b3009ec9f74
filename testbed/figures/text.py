"""Writes `figures.md`: tables of the experiments' results beside those of the paper."""

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]


def as_text(result: Figures) -> str:
    """Returns the page for a result of `sbon_testbed.figures.experiments.run_figures`."""
    extent, networks = result["extent"], result["networks"]
    sizes = ", ".join(f"{name} with {one['nodes']} nodes and {one['slices']} slices" for name, one in networks.items())
    lines = [
        "# The experiments of SBON, section 4.2",
        "",
        f"Seed {result['seed']}; {sizes}. Real agents in virtual time.",
        "Network usage: measured rates x true latencies, in bytes in transit.",
        "Settings that differ from an agent's own, and everything below, are in `figures.json`.",
    ]
    for name, write in (("figure10", _one_query), ("figure12", _pairs), ("figure13", _groups), ("zipf", _zipf)):
        if name in result:
            lines += ["", *write(result[name], extent)]
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in result["cpu_seconds"].items())
    return "\n".join([*lines, "", f"Processor time: {seconds}.", ""])


def _one_query(figures: Figures, extent: Figures) -> list[str]:
    lines = [
        "## Figures 10 and 11: one query",
        "",
        f"Two near producers, a join and selection of selectivity 1/4, a far consumer, {extent['hours_one']:g} virtual hours.",
        "",
        "| network | usage, migrating / still | saved | all-knowing | delay | migrations |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in figures.items():
        moving, still = (sum(one[f"usage_{key}_bytes"]) / len(one["hours"]) for key in ("migrating", "still"))
        moves = len(one["migrations_at_hours"])
        saved = f"{one['saving']:z.1%} | {one['saving_all_knowing']:z.1%} | {one['delay_change']:+z.1%}"
        lines.append(f"| {name} | {moving:.0f} / {still:.0f} | {saved} | {moves} |")
    return [*lines, "", "The paper: 30 % less usage from the third migration on, five migrations, a little less delay."]


def _pairs(figures: Figures, extent: Figures) -> list[str]:
    lines = [
        "## Figure 12: migration",
        "",
        f"{extent['pairs']} queries, {extent['hours_pairs']:g} virtual hours. *All-knowing*: on the best node of each slice.",
        "",
        "| network, first placement | saved | all-knowing | share of it | better | worst | delay | all-knowing | moves a query | load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in figures.items():
        share = "-" if one["share_of_all_knowing"] is None else f"{one['share_of_all_knowing']:.0%}"
        saved = f"{one['saving']:z.1%} | {one['saving_all_knowing']:z.1%} | {share}"
        saved += f" | {one['better_share']:.0%} | {one['worst_change']:+z.1%}"
        delay = f"{one['delay_change']:+z.1%} | {one['delay_change_all_knowing']:+z.1%}"
        load = f"{one['load_at_operators']:.2f} / {one['load_at_operators_still']:.2f}"
        lines.append(f"| {name} | {saved} | {delay} | {one['migrations_a_query']:.1f} | {load} |")
    return [
        *lines,
        "",
        "*Load*: mean CPU load of the operators' machines, with and without migration. The paper: 16.9 % saved, 75 % of the queries",
        "better, 10.5 % less delay, 3.5 migrations a query, with RELAXATION and load.",
    ]


def _groups(figures: Figures, extent: Figures) -> list[str]:
    lines = [
        "## Figure 13: sharing",
        "",
        "Four queries near each other over the same two far producers; usage in bytes.",
        "",
        "| group | alone | shared | with multicasts | saved | bytes/s between nodes saved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    named = [(str(number + 1), group) for number, group in enumerate(figures["groups"])]
    for name, group in [*named, ("all", figures)]:
        usage = " | ".join(f"{group[key]['usage_bytes']:.0f}" for key in ("alone", "reuse", "multicast"))
        lines.append(f"| {name} | {usage} | {group['saving_multicast']:z.0%} | {group['saving_multicast_wan']:z.0%} |")
    return [*lines, "", f"{figures['multicasts']} multicast operators. The paper: 152 bytes alone, 120 shared, 21 % saved."]


def _zipf(figures: Figures, extent: Figures) -> list[str]:
    share = figures["share_of_shared_once"]
    lines = [
        "## Many queries over popular sources",
        "",
        f"{figures['queries']} queries over two of {figures['sources']} sources each, by Zipf's law with exponent {figures['exponent']:g}: "
        f"{len(figures['queries_by_streams'])} different ones.",
        "",
        "| | usage, bytes | bytes/s between nodes | usage saved | share of what sharing every equal operator once would save |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = (("alone", "each on its own"), ("shared_once", "each equal operator once, best placed (computed)"), ("reuse", "shared"))
    for key, title in (*rows, ("multicast", "shared, with multicasts")):
        one = figures[key]
        saved = 1 - one["usage_bytes"] / figures["alone"]["usage_bytes"]
        of_once = f"{share[key]['usage_bytes']:.0%} (bytes/s: {share[key]['wan_bytes_per_s']:.0%})" if key in share else "-"
        lines.append(f"| {title} | {one['usage_bytes']:,.0f} | {one['wan_bytes_per_s']:,.0f} | {saved:z.1%} | {of_once} |")
    return [*lines, "", f"{figures['multicasts']} multicast operators; {figures['reused']} operators were found running."]
