"""`sbon testbed exactly-once`: runs many seeds of `sbon_testbed.exactly_once.story` on all cores."""

import sys
import time
from functools import partial
from typing import Annotated, Any

import typer

from sbon_testbed.exactly_once.story import Outcome, tell
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.progress import Progress
from sbon_testbed.seeds import outcomes_of

PROBLEMS_SHOWN = 20


def exactly_once_command(
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds.")] = 200,
    first: Annotated[int, typer.Option(metavar="SEED", help="First seed.")] = 0,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes; 0: one for each core.")] = 0,
    take_over: Annotated[bool, typer.Option("--take-over/--no-take-over", help="Let keepers take queries over.")] = True,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Lose, double and delay messages, cut nodes off, slow machines down, move operators and kill homes and hosts of queries, seed after
    seed, in virtual time. Every sink must have the rows of a run on one node, in their order; only rows that a query counts as lost with a
    dead host may be missing. Exit code 1 if a sink differs.

    Example: sbon testbed exactly-once --seeds 2000
    """

    progress = Progress(not quiet)
    outcomes: list[Outcome] = []
    began_s = time.monotonic()
    for outcome in outcomes_of(partial(tell, take_over=take_over), seeds, first, jobs):
        outcomes.append(outcome)
        if outcome.problem:
            print(outcome.problem, file=sys.stderr if json == "-" else sys.stdout, flush=True)
        progress("seeds", len(outcomes), seeds)
    result = summary(outcomes, first, time.monotonic() - began_s)
    if json is not None:
        write_json(json, result)
    if json != "-":
        _show(result)
    if result["wrong"]:
        raise typer.Exit(1)


def summary(outcomes: list[Outcome], first: int, seconds: float) -> dict[str, Any]:
    """Returns the figures of a run; `wrong` lists the seeds whose sinks differ."""
    wrong = sorted(outcome for outcome in outcomes if outcome.problem)
    return {
        "seeds": len(outcomes),
        "first": first,
        "wrong": len(wrong),
        "problems": [outcome.problem for outcome in wrong[:PROBLEMS_SHOWN]],
        "rows": sum(outcome.rows for outcome in outcomes),
        "migrations_committed": sum(outcome.committed for outcome in outcomes),
        "migrations_abandoned": sum(outcome.abandoned for outcome in outcomes),
        "batches_resent": sum(outcome.resent for outcome in outcomes),
        "homes_restarted": sum(outcome.homes for outcome in outcomes),
        "hosts_died": sum(outcome.deaths for outcome in outcomes),
        "recoveries": sum(outcome.recovered for outcome in outcomes),
        "spilled_mib": round(sum(outcome.spilled_bytes for outcome in outcomes) / 2**20, 1),
        "seconds": round(seconds, 1),
    }


def _show(result: dict[str, Any]) -> None:
    right = result["seeds"] - result["wrong"]
    print(f"{right:,} of {result['seeds']:,} seeds: every sink has the rows of a run on one node ({result['rows']:,} rows),")
    print(f"  except rows that its query counts as lost with a host: {result['hosts_died']:,} died, {result['recoveries']:,} recoveries")
    print(
        f"  {result['migrations_committed']:,} migrations done and {result['migrations_abandoned']:,} abandoned,"
        f" {result['batches_resent']:,} batches sent again, {result['homes_restarted']:,} homes killed and started again,"
        f" {result['spilled_mib']:,} MiB through disks; took {result['seconds']:,.0f} s"
    )
