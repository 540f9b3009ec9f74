"""`sbon testbed simulate`: runs many seeds of `sbon_testbed.simulator.simulation` on all cores."""

import time
from functools import partial
from typing import Annotated, Any

import typer

from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.simulator.faults.kinds import KINDS, kinds_of
from sbon_testbed.simulator.report import failures, replay, shown
from sbon_testbed.simulator.simulation import Outcome, simulate
from sbon_testbed.simulator.tcp_traffic import CONNECTORS, FILES


def simulate_command(
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds.")] = 100,
    first: Annotated[int, typer.Option(metavar="SEED", help="First seed.")] = 0,
    faults: Annotated[str, typer.Option(metavar="LIST", help=f"Kinds of faults, with commas; default: all, {','.join(KINDS)}.")] = "",
    connectors: Annotated[
        str, typer.Option(metavar="LIST", help=f"Connectors of the queries, with commas: {','.join(CONNECTORS)}.")
    ] = FILES[0],
    dealt: Annotated[bool, typer.Option("--dealt", help="Add a query whose windows a dealer deals to instances.")] = False,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes; 0: one for each core.")] = 0,
    json: JsonFile = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop at the first seed that fails.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run random queries on random overlays in virtual time, seed after seed: first with faults, which must cause no error, then without,
    so that everything must converge. Each failed seed is shown at once, with the command that runs it again. Exit code 1 if a seed has
    failed.

    Example: sbon testbed simulate --seeds 200 --faults moves,partitions
    """

    kinds, chosen = kinds_of(faults), kinds_of(connectors, CONNECTORS, "--connectors")
    one = partial(simulate, kinds=kinds, connectors=chosen, dealt=dealt)
    repeat = partial(again, kinds=kinds, connectors=chosen, dealt=dealt)
    began_s = time.monotonic()
    outcomes = list(shown(one, seeds, first, jobs, repeat, json=json, stop=stop, quiet=quiet))
    result = summary(outcomes, first, kinds, time.monotonic() - began_s, chosen, dealt=dealt)
    if json is not None:
        write_json(json, result)
    if json != "-":
        _show(result)
    if result["failed"]:
        raise typer.Exit(1)


def again(seed: int, kinds: tuple[str, ...], connectors: tuple[str, ...] = FILES, *, dealt: bool = False) -> str:
    """Returns the command that runs a seed again."""
    more = ("" if connectors == FILES else f" --connectors {','.join(connectors)}") + (" --dealt" if dealt else "")
    return replay("simulate", seed, kinds, KINDS) + more


def summary(
    outcomes: list[Outcome],
    first: int,
    kinds: tuple[str, ...],
    seconds: float,
    connectors: tuple[str, ...] = FILES,
    *,
    dealt: bool = False,
) -> dict[str, Any]:
    """Returns the figures of a run; `failures` lists the seeds that failed."""
    failed = failures(outcomes, partial(again, kinds=kinds, connectors=connectors, dealt=dealt))
    return {
        "seeds": len(outcomes),
        "first": first,
        "faults": kinds,
        "connectors": connectors,
        "dealt": dealt,
        "failed": len(failed),
        "failures": failed,
        "rows": sum(outcome.rows for outcome in outcomes),
        "migrations_committed": sum(outcome.committed for outcome in outcomes),
        "migrations_abandoned": sum(outcome.abandoned for outcome in outcomes),
        "queries_harmed": sum(outcome.harmed for outcome in outcomes),
        "queries_inexact": [{"seed": outcome.seed, "query": query} for outcome in sorted(outcomes) for query in outcome.inexact],
        "virtual_s": round(sum(outcome.virtual_s for outcome in outcomes), 1),
        "seconds": round(seconds, 1),
    }


def _show(result: dict[str, Any]) -> None:
    print(f"{result['seeds'] - result['failed']:,} of {result['seeds']:,} seeds are right ({result['rows']:,} rows)")
    print(
        f"  {result['migrations_committed']:,} migrations done and {result['migrations_abandoned']:,} abandoned,"
        f" {result['queries_harmed']:,} queries lost something with an agent that ended,"
        f" {len(result['queries_inexact']):,} of them without an exact count of rows;"
        f" {result['virtual_s']:,.0f} virtual s took {result['seconds']:,.0f} s"
    )
    for failure in result["failures"]:
        print(f"  failed: {failure['again']}")
