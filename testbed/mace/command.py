"""`sbon testbed mace`: the evaluation of worst-case latency prediction and of placement by it, asked for and shown."""

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from sbon.cli.output import print_note, print_table
from sbon.cli.tables import Column
from sbon_testbed.progress import Progress


class Part(StrEnum):
    """What there is to run."""

    PLACEMENT = "placement"


def mace_command(
    part: Annotated[list[Part] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 1,
    scale: Annotated[
        list[int] | None,
        typer.Option(metavar="S", min=1, help="placement: 20 S nodes, 200 S operators; may be repeated. [1 5]"),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", min=1, help="placement: random placements of Baseline.")] = 200,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="placement: most time for load correlation; the others get what it took.")
    ] = 10.0,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for standard output.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Predict worst-case latency and compare with virtual time; place operators by it and compare with other searches.

    \b
    Examples:
      sbon testbed mace
      sbon testbed mace --part placement --scale 1 --scale 5 --scale 20 --draws 10000 --seconds 600 --json mace.json
    """
    from sbon_testbed.cli import write_json

    progress = Progress(wanted=not quiet)
    wanted = part or list(Part)
    result: dict[str, Any] = {"seeds": [seed], "cores": os.cpu_count(), "interval_s": 1.0}
    shows: list[Callable[[], None]] = []
    if Part.PLACEMENT in wanted:
        from sbon_testbed.mace.placement import evaluate_placement

        result["placement"] = evaluate_placement(scale or (1, 5), seed, draws=draws, seconds_max=seconds, report=progress)
        shows.append(lambda: show_placement(result["placement"]))
    if json is not None:
        write_json(json, result)
    if json != "-":
        for show in shows:
            show()


def show_placement(results: dict[str, Any]) -> None:
    """The part `placement` as a table for people."""
    print_note("placement: worst-case latency predicted, of the best placement within the time that load correlation took")
    rows = [
        [
            f"{found['nodes']} / {found['operators']}",
            *(f"{found[name]['worst_s']:.2f}" for name in ("mace_hc", "ours", "corr", "random", "baseline")),
            f"{found['spread_evenly_s']:.2f}",
            f"{found['corr']['seconds']:.1f}",
            f"{found['corr']['correlation']:.2f}",
            f"{found['move_cpu_us']:.1f}",
        ]
        for found in results.values()
    ]
    titles = ("Mace-HC s", "ours s", "Corr s", "Random s", "Baseline s", "even s", "time s", "correlation", "move us")
    print_table((Column("nodes / operators"), *(Column(title, right=True) for title in titles)), rows)
