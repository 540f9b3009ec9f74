"""Shows the results of commands that run seeds: each failed seed at once, with the command that runs it again and the latest trace."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from sbon_testbed.progress import Progress
from sbon_testbed.seeds import outcomes_of


class SeedResult(Protocol):
    """The result of one seed."""

    @property
    def seed(self) -> int:
        """Returns the seed."""

    @property
    def problem(self) -> str:
        """Describes the first error; empty if there is none."""

    @property
    def trace(self) -> tuple[str, ...]:
        """Returns the latest lines of the trace; empty if there is no error."""


T = TypeVar("T", bound=SeedResult)


def replay(command: str, seed: int, kinds: Sequence[str], known: Sequence[str]) -> str:
    """Returns the command that runs a seed again; its kinds of faults are left out if they are all known ones."""
    chosen = "" if tuple(kinds) == tuple(known) else f" --faults {shlex.quote(','.join(kinds))}"
    return f"sbon testbed {command} --first {seed} --seeds 1{chosen}"


def report(outcome: SeedResult, again: str) -> str:
    """Returns the text about a failed seed: the problem, the command that runs the seed again, and the trace."""
    lines = [f"seed {outcome.seed} failed: {outcome.problem}", f"  again: {again}"]
    if outcome.trace:
        lines += ["  trace, latest last:", *(f"  {line}" for line in outcome.trace)]
    return "\n".join(lines)


def failures(outcomes: Iterable[SeedResult], again: Callable[[int], str]) -> list[dict[str, Any]]:
    """Returns the seeds that failed, in order, for the JSON of a command."""
    failed = sorted((outcome for outcome in outcomes if outcome.problem), key=lambda outcome: outcome.seed)
    return [{"seed": one.seed, "problem": one.problem, "again": again(one.seed), "trace": one.trace} for one in failed]


def shown(
    one: Callable[[int], T],
    seeds: int,
    first: int,
    jobs: int,
    again: Callable[[int], str],
    *,
    json: str | None = None,
    stop: bool = False,
    quiet: bool = False,
) -> Iterator[T]:
    """Yields the result of each seed as it arrives, and shows those that failed.

    Parameters
    ----------
    one, seeds, first, jobs : as of `outcomes_of`
    again : returns the command that runs a seed again
    json : where the command writes its JSON; failed seeds are shown on stderr if that is stdout, "-"
    stop : whether the first failed seed is the last
    """
    progress = Progress(not quiet)
    for number, outcome in enumerate(outcomes_of(one, seeds, first, jobs), 1):
        if outcome.problem:
            print(report(outcome, again(outcome.seed)), file=sys.stderr if json == "-" else sys.stdout, flush=True)
        progress("seeds", number, seeds)
        yield outcome
        if outcome.problem and stop:
            return
