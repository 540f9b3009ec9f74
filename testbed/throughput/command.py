"""`sbon testbed throughput`: runs and prints the evaluation of searches for the highest rates."""

import math
import os
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from sbon.cli.output import print_note, print_table
from sbon.cli.tables import Column
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.progress import Progress


class Part(StrEnum):
    """Parts of the evaluation."""

    SMALL = "small"
    LARGE = "large"
    MIXED = "mixed"
    SUSTAINED = "sustained"
    ENGINE = "engine"


class Method(StrEnum):
    """Searches to compare."""

    GREEDY = "greedy"
    TABU = "tabu"
    REACTIVE_TABU = "reactive_tabu"
    ANNEALING = "annealing"
    TWO_PHASE = "two_phase"
    DEFAULT = "default"


def throughput_command(
    part: Annotated[list[Part] | None, typer.Option(help="Only this part; may be repeated.")] = None,
    search: Annotated[list[Method] | None, typer.Option(help="small, large: only this search; may be repeated.")] = None,
    small: Annotated[int, typer.Option(metavar="N", min=1, help="small: number of random queries, solved exhaustively.")] = 100,
    queries: Annotated[int, typer.Option(metavar="N", min=1, help="large: number of random queries of 40 operators; 3 s each.")] = 1000,
    link_bytes_per_s: Annotated[
        float | None, typer.Option(metavar="B", min=1.0, help="small, large: highest rate of each link. [none]", show_default=False)
    ] = None,
    choices: Annotated[int, typer.Option(metavar="N", min=1, max=10, help="large: number of nodes allowed for each operator.")] = 4,
    mixed: Annotated[
        int, typer.Option(metavar="N", min=1, help="mixed: number of random queries with all kinds of limits; 2 s each.")
    ] = 20,
    plans: Annotated[
        int, typer.Option(metavar="N", min=1, help="sustained: number of random plans that agents run in virtual time; 20 to 60 s each.")
    ] = 10,
    first: Annotated[int, typer.Option(metavar="N", min=0, help="sustained: number of the first plan, to go on after a run.")] = 0,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=5, help="engine: seconds for which each query runs below and above its predicted rate.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 1,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Compare searches for the order and placement with the highest rates, and check whether agents sustain predicted rates.

    \b
    Examples:
      sbon testbed throughput
      sbon testbed throughput --part small --small 20
      sbon testbed throughput --part small --part large --queries 50 --json throughput.json
      sbon testbed throughput --part large --search default
      sbon testbed throughput --part small --part large --link-bytes-per-s 125e6 --choices 3
      sbon testbed throughput --part sustained --plans 200
      sbon testbed throughput --part engine
      sbon testbed throughput --part engine --seconds 10 --json engine.json
    """

    progress = Progress(wanted=not quiet)
    wanted = part or list(Part)
    result: dict[str, Any] = {"seeds": [seed], "cores": os.cpu_count(), "link_bytes_per_s": link_bytes_per_s, "choices": choices}
    shows: list[Callable[[], None]] = []
    from sbon_testbed.throughput.search import evaluate_large, evaluate_small

    links = math.inf if link_bytes_per_s is None else link_bytes_per_s

    def keep(one: Part, found: dict[str, Any]) -> None:
        if json is not None and json != "-":
            write_json(json, {**result, one.value: found})

    if Part.SMALL in wanted:
        result["small"] = evaluate_small(small, seed, progress, search or (), links)
        shows.append(lambda: show_small(result["small"], small))
    if Part.LARGE in wanted:
        result["large"], result["times"] = evaluate_large(queries, seed, progress, search or (), links, choices)
        shows.append(lambda: show_large(result["large"], result["times"], queries))
    if Part.MIXED in wanted:
        from sbon_testbed.throughput.mixed import evaluate_mixed

        result["mixed"] = evaluate_mixed(mixed, seed, progress)
        shows.append(lambda: show_mixed(result["mixed"]))
    if Part.SUSTAINED in wanted:
        from sbon_testbed.throughput.sustained import evaluate_sustained

        result["sustained"] = evaluate_sustained(plans, seed, progress, first, partial(keep, Part.SUSTAINED))
        shows.append(lambda: show_sustained(result["sustained"]))
    if Part.ENGINE in wanted:
        from sbon_testbed.throughput.engine import evaluate_engine

        result["engine"] = evaluate_engine(progress, seconds, partial(keep, Part.ENGINE))
        shows.append(lambda: show_engine(result["engine"]))
    if json is not None:
        write_json(json, result)
    if json != "-":
        for show in shows:
            show()


def show_small(results: dict[str, dict[str, float]], queries: int) -> None:
    """Prints the part `small` as a table."""
    print_note(f"small: {queries} queries of at most two sources and five other operators, against the best of all configurations")
    rows = [
        [name, f"{found['optimal_share']:.0%}", f"{found['ratio_p10']:.3f}", f"{found['worst']:.3f}"]
        for name, found in sorted(results.items(), key=lambda one: -one[1]["optimal_share"])
    ]
    print_table((Column("search"), *(Column(title, right=True) for title in ("optimal", "10th percentile", "worst"))), rows)


def show_large(results: dict[str, dict[str, float]], times: dict[str, dict[str, float]], queries: int) -> None:
    """Prints the parts `large` and `times` as one table."""
    print_note(f"large: {queries} queries of 40 operators, rates relative to those of reactive tabu")
    rows = []
    for name, took in times.items():
        found = results.get(name)
        shares = [f"{found[key]:.1%}" for key in ("better", "same", "worse")] if found else ["-"] * 3
        middle = f"{found['ratio_p50']:.3f}" if found else "-"
        rows.append([name, *shares, middle, f"{took['mean_ms']:.1f}", f"{took['p99_ms']:.1f}", f"{took['evaluations_per_s']:,.0f}"])
    titles = ("better", "same", "worse", "median", "mean ms", "p99 ms", "tried/s")
    print_table((Column("search"), *(Column(title, right=True) for title in titles)), rows)


def show_mixed(results: dict[str, Any]) -> None:
    """Prints the part `mixed` as a table."""
    print_note(
        f"mixed: {results['queries']} queries that overload the placement of least usage; excess usage over the least that sustains them"
    )
    rows = [
        [
            name,
            f"{found['carried']:.0%}",
            *("-" if found[key] is None else f"{found[key]:.1%}" for key in ("usage_above_p50", "usage_above_worst")),
        ]
        for name, found in results.items()
        if isinstance(found, dict)
    ]
    print_table((Column("search"), *(Column(title, right=True) for title in ("carried", "median", "worst"))), rows)


def show_sustained(result: dict[str, Any]) -> None:
    """Prints the part `sustained` as a table."""
    from sbon_testbed.throughput.sustained import ABOVE, BELOW

    print_note(f"sustained: {result['plans']} random plans on agents in virtual time, below and above the predicted highest rate")
    rows = [
        [f"nothing is held up at {BELOW} of it", str(result["flat"])],
        [f"something is held up at {ABOVE} of it", str(result["blocked"])],
        ["the named bottleneck is full then", str(result["binding_full"])],
        ["predicted partly from rules", str(result["rests_on_rules"])],
    ]
    print_table((Column("what should hold"), Column("plans", right=True)), rows)


def show_engine(result: dict[str, Any]) -> None:
    """Prints the part `engine` as a table."""
    from sbon_testbed.throughput.sustained import ABOVE, BELOW

    print_note(f"engine: two joins and two filters on two agents with a core each; {result['ratio']:.1f} times the rate after optimisation")
    parts = {name: found for name, found in result.items() if isinstance(found, dict)}
    rows = [
        [
            name,
            f"{found['rows_per_s_per_stream']:,}",
            f"{found['predicted']:,}",
            f"{found['error']:+.1%}",
            f"{found['error_then']:+.1%}",
            *("yes" if found["sustained"][key] else "no" for key in ("flat", "blocked", "binding_full")),
        ]
        for name, found in parts.items()
    ]
    titles = ("rows/s/stream", "predicted", "error", "error then", "flat", "held up", "full")
    print_table((Column("configuration"), *(Column(title, right=True) for title in titles)), rows)
    print_note(
        f"flat: queues and latency at {BELOW} of the predicted rate; held up: a source at {ABOVE}; full: the predicted bottleneck, then"
    )
    assumed = ", ".join(name for name, found in parts.items() if found["sustained"]["had_its_cores"]) or "no configuration"
    print_note(f"error then: with the processor time that the agents could have; as much as assumed in both trials: {assumed}")
    for name, found in parts.items():
        print_note(f"predicted bottleneck, {name}: {found['binding']}")
