"""`sbon testbed exactly-once`: runs many seeds of `sbon_testbed.exactly_once.story` on all cores."""

import time
from functools import partial
from typing import Annotated, Any

import typer

from sbon_testbed.exactly_once.story import KINDS, Outcome, run_seed
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.simulator.faults.kinds import kinds_of
from sbon_testbed.simulator.report import failures, replay, shown


def exactly_once_command(
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds.")] = 200,
    first: Annotated[int, typer.Option(metavar="SEED", help="First seed.")] = 0,
    faults: Annotated[str, typer.Option(metavar="LIST", help=f"Kinds of faults, with commas; default: all, {','.join(KINDS)}.")] = "",
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes; 0: one for each core.")] = 0,
    take_over: Annotated[bool, typer.Option("--take-over/--no-take-over", help="Let keepers take queries over.")] = True,
    json: JsonFile = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop at the first seed that fails.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Lose, double and delay messages, cut nodes off, slow machines down, move operators and kill homes and hosts of queries, seed after
    seed, in virtual time. Every sink must have the rows of a run on one node, in their order; only rows that a query counts as lost with a
    dead host may be missing. Each failed seed is shown at once, with the command that runs it again. Exit code 1 if a seed has failed.

    Example: sbon testbed exactly-once --seeds 2000
    """

    kinds = kinds_of(faults, KINDS)
    began_s = time.monotonic()
    outcomes = list(
        shown(
            partial(run_seed, kinds=kinds, take_over=take_over),
            seeds,
            first,
            jobs,
            partial(again, kinds=kinds, take_over=take_over),
            json=json,
            stop=stop,
            quiet=quiet,
        )
    )
    result = summary(outcomes, first, time.monotonic() - began_s, kinds, take_over=take_over)
    if json is not None:
        write_json(json, result)
    if json != "-":
        _show(result)
    if result["failed"]:
        raise typer.Exit(1)


def again(seed: int, kinds: tuple[str, ...], *, take_over: bool) -> str:
    """Returns the command that runs a seed again."""
    return replay("exactly-once", seed, kinds, KINDS) + ("" if take_over else " --no-take-over")


def summary(
    outcomes: list[Outcome], first: int, seconds: float, kinds: tuple[str, ...] = KINDS, *, take_over: bool = True
) -> dict[str, Any]:
    """Returns the figures of a run; `failures` lists the seeds that failed."""
    failed = failures(outcomes, partial(again, kinds=kinds, take_over=take_over))
    return {
        "seeds": len(outcomes),
        "first": first,
        "faults": kinds,
        "failed": len(failed),
        "failures": failed,
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
    right = result["seeds"] - result["failed"]
    print(f"{right:,} of {result['seeds']:,} seeds: every sink has the rows of a run on one node ({result['rows']:,} rows),")
    print(f"  except rows that its query counts as lost with a host: {result['hosts_died']:,} died, {result['recoveries']:,} recoveries")
    print(
        f"  {result['migrations_committed']:,} migrations done and {result['migrations_abandoned']:,} abandoned,"
        f" {result['batches_resent']:,} batches sent again, {result['homes_restarted']:,} homes killed and started again,"
        f" {result['spilled_mib']:,} MiB through disks; took {result['seconds']:,.0f} s"
    )
