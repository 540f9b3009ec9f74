"""Measures how a lying minority affects the honest nodes' coordinates: `sbon testbed adversaries`.

Liars (`sbon_testbed.coordinates.liars`) run the same code and answer probes, but publish false coordinates, and may answer late. Inflation,
deflation and oscillation are the attacks of Zage and Nita-Rotaru (CCS 2007); creeping is the frog-boiling of Chan-Tin et al. (ACM TISSEC
14(3), 2011).
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sbon.cli.output import print_note, print_table
from sbon.cli.tables import Column
from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import Coordinate
from sbon.errors import UsageError
from sbon.types import FloatArray
from sbon_testbed.coordinates.evaluation import evaluate
from sbon_testbed.coordinates.liars import ATTACKS, Liar
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.matrix import load_matrix, slice_of


class Honest:
    """No attack. The score leaves out the same nodes as under an attack, so that the figures can be compared."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns the true coordinate."""
        return honest

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Returns the true RTT."""
        return rtt_ms


def attacked(
    matrix: FloatArray,
    attacks: list[str],
    *,
    fraction: float = 0.1,
    rounds: int = 500,
    neighbours: int | None = 32,
    seed: int = 0,
    config: CoordinateConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Returns the coordinates' errors over the honest pairs, without lies and under each attack.

    Parameters
    ----------
    matrix : [n, n] or [t, n, n] ms, NaN where not measured
    attacks : names in `sbon_testbed.coordinates.liars.ATTACKS`
    fraction : share of the nodes that lie, from the first round on
    rounds, neighbours, seed, config : see `sbon_testbed.coordinates.evaluation.evaluate`

    Returns
    -------
    dict
        Plain values for JSON. `ratio`: median relative error of the honest pairs over that of the same pairs in a run without lies.

    Raises
    ------
    UsageError
        An attack is unknown, or the fraction leaves no honest majority.
    """
    unknown = [name for name in attacks if name not in ATTACKS]
    if unknown:
        raise UsageError(f"--attack {unknown[0]!r} is unknown, expected one of {', '.join(ATTACKS)}, all")
    if not 0 < fraction < 0.5:
        raise UsageError(f"fraction = {fraction}, expected more than 0, less than 0.5")

    def errors(liar: Liar) -> dict[str, float]:
        result = evaluate(matrix, rounds, neighbours, seed, config=config, liar=liar, liars_share=fraction)
        return {name: result[name] for name in ("median_relative_error", "p90_relative_error", "drift_ms_per_round")}

    honest = errors(Honest())
    progress(f"honest: median {honest['median_relative_error']:.1%}")
    found: dict[str, dict[str, float]] = {}
    for name in attacks:
        figures = errors(ATTACKS[name]())
        found[name] = {**figures, "ratio": figures["median_relative_error"] / honest["median_relative_error"]}
        progress(f"{name}: median {figures['median_relative_error']:.1%}")
    return {
        "nodes": matrix.shape[-1],
        "liars": round(matrix.shape[-1] * fraction),
        "rounds": rounds,
        "neighbours": "all" if neighbours is None else neighbours,
        "seed": seed,
        "honest": honest,
        "attacks": found,
        "worst_ratio": max((figures["ratio"] for figures in found.values()), default=1.0),
    }


def adversaries_command(
    matrix: Annotated[Path, typer.Option(help="RTTs in ms: .npz (key rtt, [n,n] or [t,n,n], NaN for missing) or a text matrix.")],
    attack: Annotated[str, typer.Option(metavar="NAME|all", help=f"{', '.join(ATTACKS)}, or all.")] = "all",
    fraction: Annotated[float, typer.Option(help="Share of the nodes that lie.")] = 0.1,
    rounds: Annotated[int, typer.Option(help="Number of rounds; each node probes one peer a round.")] = 500,
    neighbours: Annotated[str, typer.Option(metavar="K|all", help="Probe only K fixed random peers, or all peers.")] = "32",
    taken: Annotated[str | None, typer.Option("--slice", metavar="first|median|N", help="Only this slice of a matrix over time.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    json: JsonFile = None,
) -> None:
    """Let some nodes lie about their coordinates, and show how that affects the other nodes' coordinates."""

    loaded = load_matrix(matrix)
    if taken is not None:
        loaded = slice_of(loaded, taken)
    if neighbours != "all" and not neighbours.isdecimal():
        raise UsageError(f"--neighbours {neighbours}, expected a number or all")
    result = attacked(
        loaded,
        list(ATTACKS) if attack == "all" else [attack],
        fraction=fraction,
        rounds=rounds,
        neighbours=None if neighbours == "all" else int(neighbours),
        seed=seed,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if json is not None:
        write_json(json, result)
    if json != "-":
        print_note(f"{result['nodes']} nodes, {result['liars']} of them lying, {rounds} rounds, neighbours {neighbours}, seed {seed}")
        show(result)


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    rows = [
        [name, f"{figures['median_relative_error']:.1%}", f"{figures['p90_relative_error']:.1%}", f"{ratio:.2f}"]
        for name, figures, ratio in (
            ("without lies", result["honest"], 1.0),
            *((name, figures, figures["ratio"]) for name, figures in result["attacks"].items()),
        )
    ]
    print_table((Column("honest pairs"), *(Column(title, right=True) for title in ("median", "p90", "ratio"))), rows)
