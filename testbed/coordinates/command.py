"""`sbon testbed coordinates`: measures the accuracy of coordinates on a matrix of RTTs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sbon.cli.output import number, print_note, print_table
from sbon.cli.tables import Column
from sbon.cost_space.config import CoordinateConfig
from sbon.errors import SbonError, UsageError
from sbon.membership.config import MembershipConfig
from sbon_testbed.coordinates.evaluation import evaluate
from sbon_testbed.coordinates.jitter import JITTER_HELP, JITTER_SHARE
from sbon_testbed.coordinates.liars import ATTACKS
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.matrix import load_matrix, slice_of

TOLD = MembershipConfig().vitals_per_datagram
"""Number of coordinates that an agent gets with the reply to its probe. It gets as many with each probe from another agent, which is not
simulated here."""
SLICE_HELP = "Use only this slice of a matrix over time, or each pair's median; without it, the slices follow each other."


def coordinates_command(
    matrix: Annotated[Path, typer.Option(help="RTTs in ms: .npz (key rtt, [n,n] or [t,n,n], NaN for missing) or a text matrix.")],
    rounds: Annotated[int, typer.Option(help="Number of rounds; each node probes one peer a round.")] = 500,
    neighbours: Annotated[str, typer.Option(metavar="K|all", help="Probe only K fixed random peers, or all peers.")] = "32",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    algorithm: Annotated[str, typer.Option(help="Algorithm of coordinates: refit or vivaldi.")] = "refit",
    gossip: Annotated[str, typer.Option(metavar="N|latest", help="Coordinates of other nodes that a node gets each round.")] = str(TOLD),
    jitter: Annotated[float, typer.Option(metavar="SHARE", help=JITTER_HELP)] = JITTER_SHARE,
    taken: Annotated[str | None, typer.Option("--slice", metavar="first|median|N", help=SLICE_HELP)] = None,
    attack: Annotated[str, typer.Option(metavar="NAME", help=f"Let a tenth of the nodes lie: {', '.join(ATTACKS)}.")] = "none",
    json: JsonFile = None,
) -> None:
    """Find coordinates for a matrix of RTTs, and show how well they predict it."""
    try:
        if algorithm not in ("refit", "vivaldi"):
            raise UsageError(f"--algorithm {algorithm}, expected refit or vivaldi")
        if attack not in (*ATTACKS, "none"):
            raise UsageError(f"--attack {attack}, expected one of {', '.join(ATTACKS)}, none")
        loaded = load_matrix(matrix)
        result = evaluate(
            loaded if taken is None else slice_of(loaded, taken),
            rounds,
            _number("--neighbours", neighbours, "all"),
            seed,
            config=CoordinateConfig(algorithm="vivaldi" if algorithm == "vivaldi" else "refit"),
            gossip=_number("--gossip", gossip, "latest"),
            jitter=jitter,
            liar=ATTACKS[attack]() if attack in ATTACKS else None,
            progress=_progress(rounds) if sys.stderr.isatty() else None,
        )
        if json is not None:
            write_json(json, result)
        if json != "-":
            show(result)
    except SbonError as error:
        print(f"sbon: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error


def _number(option: str, text: str, nothing: str) -> int | None:
    if text == nothing:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}, expected a number or {nothing}") from error


def _progress(rounds: int) -> Callable[[int], None]:
    def show(number: int) -> None:
        if number % 10 == 0 or number == rounds:
            print(f"\rround {number} of {rounds}", end="\n" if number == rounds else "", file=sys.stderr, flush=True)

    return show


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    print_note(
        f"{result['nodes']} nodes, {result['rounds']} rounds, neighbours {result['neighbours']}, gossip {result['gossip']}, "
        f"jitter {result['jitter']:.1%}, seed {result['seed']}"
    )
    rows = [(f"after {name} rounds", values) for name, values in result["warmup"].items()] + [("at the end", result)]
    rows += [(f"{name} pairs", result[name]) for name in ("probed", "unprobed") if result[name] is not None]
    if "against_median" in result:
        rows.append(("against the median over time", result["against_median"]))
    columns = (Column("how far off"), *(Column(title, right=True) for title in ("median", "p90", "median ms")))
    errors = [
        [name, f"{one['median_relative_error']:.1%}", f"{one['p90_relative_error']:.1%}", number(one["median_absolute_error_ms"])]
        for name, one in rows
    ]
    print_table(columns, errors)
    print_note(
        f"drift {result['drift_ms_per_round']:.3f} ms a round; {result['updates_per_second']:,.0f} updates/s; {result['seconds']:.1f} s"
    )
