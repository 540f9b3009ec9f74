"""`sbon testbed mace`: runs and prints the evaluation of worst-case latency prediction, and of placement by it."""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from sbon.cli.output import print_note, print_table
from sbon.cli.tables import Column
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.progress import Progress


class Part(StrEnum):
    """Parts of the evaluation."""

    PLACEMENT = "placement"
    TRAINING = "training"
    SERIES = "series"
    OPERATORS = "operators"
    WIDE = "wide"
    PLANS = "plans"
    AGENTS = "agents"
    CHUNKS = "chunks"
    BOUNDS = "bounds"
    BURSTS = "bursts"


def mace_command(
    part: Annotated[list[Part] | None, typer.Option(help="Only this part; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 1,
    scale: Annotated[
        list[int] | None,
        typer.Option(metavar="S", min=1, help="placement: 20 S nodes, 200 S operators; may be repeated. [1 5]"),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", min=1, help="placement: random placements of Baseline.")] = 200,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="placement: longest time for load correlation; other searches get as long.")
    ] = 10.0,
    events: Annotated[
        int, typer.Option(metavar="N", min=200, help="All parts with events of a source, except agents: their number.")
    ] = 6000,
    agents: Annotated[int, typer.Option(metavar="N", min=2, help="agents: number of agents, in cities of the world.")] = 13,
    queries: Annotated[int, typer.Option(metavar="N", min=1, help="agents: number of queries of five operators.")] = 8,
    rate: Annotated[int, typer.Option(metavar="ROWS", min=1, help="agents: rows per second of each source.")] = 1000,
    real: Annotated[
        bool, typer.Option("--real", help="agents, training, series: run processes on loopback instead of virtual time.")
    ] = False,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="wide: number of random placements; bursts: minutes of each kind.")] = 3,
    matrix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="bounds: RTTs in ms, .npz with key rtt, or a text matrix. [60 cities]")
    ] = None,
    bounded: Annotated[int, typer.Option(metavar="N", min=1, help="bounds: number of queries.")] = 20,
    share: Annotated[float, typer.Option(min=0.01, max=1.0, help="bounds: bound as a share of the latency without a bound.")] = 0.8,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Predict worst-case latency and compare it with virtual time; place operators by it and compare with other searches.

    \b
    Examples:
      sbon testbed mace
      sbon testbed mace --part training --part series --events 75000
      sbon testbed mace --part bounds --bounded 200 --matrix planetlab490.npz
      sbon testbed mace --part agents --real --agents 4 --queries 3
      sbon testbed mace --part training --part series --real --events 5000
      sbon testbed mace --part placement --scale 1 --scale 5 --scale 20 --draws 10000 --seconds 600 --json mace.json
    """
    progress = Progress(wanted=not quiet)
    wanted = part or list(Part)
    evaluations: list[tuple[set[Part], Callable[[], Evaluated]]] = [
        ({Part.PLACEMENT}, lambda: _placement(scale or (1, 5), draws, seconds, seed, progress)),
        ({Part.TRAINING, Part.SERIES}, lambda: _training(wanted, events, seed, real, progress)),
        ({Part.OPERATORS}, lambda: _operators(events, seed, progress)),
        ({Part.WIDE}, lambda: _wide(runs, events, seed, progress)),
        ({Part.PLANS}, lambda: _plans(events, seed, progress)),
        ({Part.AGENTS}, lambda: _agents(agents, queries, rate, seed, real, progress)),
        ({Part.CHUNKS}, lambda: _chunks(events, seed, progress)),
        ({Part.BOUNDS}, lambda: _bounds(matrix, bounded, share, seed, progress)),
        ({Part.BURSTS}, lambda: _bursts(runs, seed, progress)),
    ]
    result: dict[str, Any] = {"seeds": [seed], "cores": os.cpu_count(), "interval_s": 1.0}
    shows: list[Callable[[], None]] = []
    for parts, evaluate in evaluations:
        if not parts.isdisjoint(wanted):
            figures, show = evaluate()
            result |= figures
            shows.append(show)
    if json is not None:
        write_json(json, result)
    if json != "-":
        for show in shows:
            show()


Evaluated: TypeAlias = tuple[dict[str, Any], Callable[[], None]]
"""Figures by the name of their part, and a function that prints them."""


def _placement(scales: Sequence[int], draws: int, seconds: float, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.placement import evaluate_placement

    found = evaluate_placement(scales, seed, draws=draws, seconds_max=seconds, report=progress)
    return {"placement": found}, lambda: show_placement(found)


def _training(wanted: Sequence[Part], events: int, seed: int, real: bool, progress: Progress) -> Evaluated:
    if real:
        from sbon_testbed.mace.real import evaluate_real as evaluate
    else:
        from sbon_testbed.mace.virtual import evaluate_training as evaluate

    training, series = evaluate(events, seed, progress)
    figures = {part.value: found for part, found in ((Part.TRAINING, training), (Part.SERIES, series)) if part in wanted}

    def show() -> None:
        if Part.TRAINING in wanted:
            show_worst("training: one query of 14 operators, by events that statistics are from", "events", training)
        if Part.SERIES in wanted:
            show_series(series)
        if real:
            show_core(series)
            show_then(training)

    return figures, show


def _operators(events: int, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.virtual import evaluate_operators

    found = evaluate_operators(events, seed, progress)
    return {"operators": found}, lambda: show_worst("operators: queries of 14 operators on one node", "operators", found)


def _wide(runs: int, events: int, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.virtual import evaluate_wide

    wide = evaluate_wide(events, seed, runs, progress)

    def show() -> None:
        by_run = {str(number): one for number, one in enumerate(wide["runs"], 1)}
        show_worst("wide: three queries over six cities of two cores, by run", "run", by_run)
        print_note(f"  outside the bounds: {wide['outside_bounds']} of {wide['intervals']} intervals")

    return {"wide": wide}, show


def _plans(events: int, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.plans import evaluate_plans

    plans = evaluate_plans(events, seed, progress)
    return {"plans": plans["samples"] | {"measured_s": plans["measured_s"], "best": plans["best"]}}, lambda: show_plans(plans)


def _agents(agents: int, queries: int, rate: int, seed: int, real: bool, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.agents import evaluate_agents

    found = evaluate_agents(agents, queries, rate, seed, real=real, report=progress)
    return {"agents": {str(agents): found}}, lambda: show_agents(agents, found)


def _chunks(events: int, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.virtual import evaluate_chunks

    found = evaluate_chunks(events, seed, progress)
    return {"chunks": found}, lambda: show_worst("chunks: statistics from the first of three parts of the events", "chunk", found)


def _bounds(matrix: Path | None, queries: int, share: float, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.bounds import evaluate_bounds, network_of

    found = evaluate_bounds(network_of(matrix, seed), queries, share, seed, progress)
    return {"bounds": found}, lambda: show_bounds(found)


def _bursts(runs: int, seed: int, progress: Progress) -> Evaluated:
    from sbon_testbed.mace.bursts import evaluate_bursts

    found = evaluate_bursts(runs, seed, progress)

    def show() -> None:
        for kind, one in found.items():
            by_run = {str(number): run for number, run in enumerate(one["runs"], 1)}
            show_worst(f"bursts: a query whose source is known by quarters of a second, {kind}", "run", by_run)

    return {"bursts": found}, show


def show_placement(results: dict[str, Any]) -> None:
    """Prints the part `placement` as a table."""
    print_note("placement: worst-case latency predicted in seconds, of the best placement within the time that load correlation took")
    rows = [
        [
            str(found["operators"]),
            *(f"{found[name]['worst_s']:.2f}" for name in ("mace_hc", "ours", "corr", "random", "baseline")),
            f"{found['spread_evenly_s']:.2f}",
            f"{found['move_cpu_us']:.1f}",
        ]
        for found in results.values()
    ]
    titles = ("Mace-HC", "ours", "Corr", "Random", "Baseline", "even", "move us")
    print_table((Column("operators"), *(Column(title, right=True) for title in titles)), rows)
    for found in results.values():
        print_note(f"  {found['operators']} operators on {found['nodes']} nodes: load correlation took {found['corr']['seconds']:.1f} s")


def show_worst(title: str, by: str, results: dict[str, dict[str, float]]) -> None:
    """Prints predicted and measured worst cases as a table."""
    print_note(title)
    rows = [
        [name, *(f"{found[key]:.3f}" for key in ("measured_s", "predicted_s", "mace_s", "upper_s")), f"{found['error']:.1%}"]
        for name, found in results.items()
    ]
    titles = ("measured s", "predicted s", "Mace s", "bound s", "error")
    print_table((Column(by), *(Column(title, right=True) for title in titles)), rows)


def show_plans(found: dict[str, Any]) -> None:
    """Prints the part `plans` as a table."""
    print_note(f"plans: three orders of one query, by events that statistics are from; measured best: {found['best']}")
    names = list(found["measured_s"])
    rows = [["measured", *(f"{found['measured_s'][name]:.2f}" for name in names), found["best"]]]
    rows += [[size, *(f"{one['predicted_s'][name]:.2f}" for name in names), one["chosen"]] for size, one in found["samples"].items()]
    print_table((Column("events"), *(Column(f"{name} s", right=True) for name in names), Column("chosen")), rows)


def show_agents(agents: int, found: dict[str, Any]) -> None:
    """Prints the part `agents` as a table."""
    print_note(f"agents: {found['compared']} queries, {found['operators']} operators on {agents} agents ({found['backend']})")
    rows = [
        [
            str(number),
            f"{one['measured_s'] * 1e3:.1f}",
            f"{one['predicted_s'] * 1e3:.1f}",
            "-" if one["upper_s"] is None else f"{one['upper_s'] * 1e3:.1f}",
            f"{one['error']:.1%}",
            f"{one['p99_error']:.1%}",
            f"{one['mean_error']:.1%}",
        ]
        for number, one in enumerate(found["each"], 1)
    ]
    titles = ("measured ms", "predicted ms", "bound ms", "error", "of 99 %", "of mean")
    print_table((Column("query"), *(Column(title, right=True) for title in titles)), rows)
    if found["compared"]:
        print_note(
            f"  median error of the worst case {found['error']:.1%}, of 99 % {found['p99_error']:.1%}, of the mean "
            f"{found['mean_error']:.1%}; above the bound: {found['outside_bounds']} of {found['compared']}"
        )


def show_bounds(found: dict[str, Any]) -> None:
    """Prints the part `bounds` in a few lines."""
    print_note(
        f"bounds: {found['queries']} queries over {found['nodes']} nodes; bounds {1 - found['share']:.0%} below the latency without a bound"
    )
    if found["admitted"]:
        p50, p90 = found["paid_p50"], found["paid_p90"]
        print_note(f"  {found['admitted']} admitted, for {p50:.1%} more network usage (median; 90th percentile {p90:.1%})")
    print_note(
        f"  {found['refused']} refused, {found['refused_wrongly']} of {found['refused_checked']} checked refusals could have been placed; "
        f"{found['without_end']} have no bounded latency without a bound"
    )


def show_core(found: dict[str, Any]) -> None:
    """Prints what a real agent had of its core, in one line."""
    core = found["core"]
    print_note(
        f"  {found['duration_s']:.0f} s on one core{', in a real-time class' if found['first'] else ''}: used {core['used']:.1%}, "
        f"available {core['available']:.1%}, taken by the machine below {core['stolen']:.1%}; rows were sent up to "
        f"{found['sender_late_s'] * 1e3:.1f} ms late"
    )


def show_then(training: dict[str, Any]) -> None:
    """Prints what would have been predicted with the speed that the machine had in the test."""
    for size, one in training.items():
        then = one["then"]
        print_note(f"  from {size} events, at {then['speed']:.2f} times the speed: {then['predicted_s']:.3f} s, {then['error']:.1%} off")


def show_series(found: dict[str, float]) -> None:
    """Prints the part `series` in two lines."""
    print_note(f"series: the latest answer of each of {found['intervals']} intervals; {found['outside_bounds']} outside the bounds")
    print_note(
        f"  error {found['error_p50']:.1%} (median), {found['error_p90']:.1%} (90th percentile); "
        f"of the mean {found['mean_error']:.1%}, of the 99th percentile {found['p99_error']:.1%}"
    )
