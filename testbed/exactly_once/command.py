"""`sbon testbed exactly-once`: runs many seeds of `sbon_testbed.exactly_once.story`, on all cores."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Annotated, Any

import typer

from sbon.errors import UsageError
from sbon_testbed.exactly_once.story import Outcome, tell
from sbon_testbed.progress import Progress

PROBLEMS_SHOWN = 20


def exactly_once_command(
    seeds: Annotated[int, typer.Option(metavar="N", help="How many seeds.")] = 200,
    first: Annotated[int, typer.Option(metavar="SEED", help="The first of them.")] = 0,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes; 0: one for each core.")] = 0,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - for standard output.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Lose, double and delay messages, cut nodes off, slow machines down, move operators and kill homes of queries, seed after seed, in
    virtual time: every sink must have the rows of a run on one node, in their order. Exit code 1 where one has not.

    Example: sbon testbed exactly-once --seeds 2000
    """
    from sbon_testbed.cli import write_json

    if seeds < 1 or first < 0 or jobs < 0:
        raise UsageError(f"--seeds {seeds} --first {first} --jobs {jobs}, expected at least 1, 0 and 0")
    progress = Progress(not quiet)
    outcomes: list[Outcome] = []
    began_s = time.monotonic()
    for outcome in told(range(first, first + seeds), jobs or os.cpu_count() or 1):
        outcomes.append(outcome)
        progress("seeds", len(outcomes), seeds)
    result = summary(outcomes, first, time.monotonic() - began_s)
    if json is not None:
        write_json(json, result)
    if json != "-":
        _show(result)
    if result["wrong"]:
        raise typer.Exit(1)


def told(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Yields the outcomes as they arrive."""
    if jobs == 1:
        yield from map(tell, seeds)
        return
    # Only this process handles Ctrl-C and ends the others, which start with it blocked. (Starting the tracker meanwhile would unblock it.)
    resource_tracker.ensure_running()
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Fresh processes: polars and its threads do not survive a fork.
        pool = multiprocessing.get_context("spawn").Pool(jobs)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    with pool:
        yield from pool.imap_unordered(tell, seeds, chunksize=4)


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
        "spilled_mib": round(sum(outcome.spilled_bytes for outcome in outcomes) / 2**20, 1),
        "seconds": round(seconds, 1),
    }


def _show(result: dict[str, Any]) -> None:
    right = result["seeds"] - result["wrong"]
    print(f"{right:,} of {result['seeds']:,} seeds: every sink has the rows of a run on one node ({result['rows']:,} rows)")
    print(
        f"  {result['migrations_committed']:,} migrations done and {result['migrations_abandoned']:,} abandoned,"
        f" {result['batches_resent']:,} batches sent again, {result['homes_restarted']:,} homes killed and started again,"
        f" {result['spilled_mib']:,} MiB through disks; took {result['seconds']:,.0f} s"
    )
    for problem in result["problems"]:
        print(f"  {problem}")
