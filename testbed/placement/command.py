"""`sbon testbed placement`: runs and prints the evaluation of `sbon_testbed.placement.evaluation`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sbon.cli.output import number, print_note, print_table
from sbon.cli.tables import Column
from sbon.cost_space.config import CoordinateConfig
from sbon.errors import ConfigError
from sbon_testbed.coordinates.jitter import JITTER_HELP, JITTER_SHARE
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.placement.evaluation import STRATEGIES, evaluate, strategies_for
from sbon_testbed.placement.network import ROUNDS, read_network, transit_stub
from sbon_testbed.progress import Progress


def placement_command(
    matrix: Annotated[Path | None, typer.Option(metavar="FILE", help="RTTs in ms: .npz with key rtt, or a text matrix.")] = None,
    taken: Annotated[
        str, typer.Option("--slice", metavar="first|median|N", help="For a matrix over time: one slice, or each pair's median.")
    ] = "first",
    topology: Annotated[
        Literal["transit-stub"] | None, typer.Option(help="A generated network of 1,550 routers, instead of --matrix.")
    ] = None,
    queries: Annotated[int, typer.Option(metavar="N", min=1, help="Number of queries to place.")] = 1000,
    shape: Annotated[Literal["aggregate", "join-tree", "mixed"], typer.Option(help="Shape of the queries.")] = "aggregate",
    seed: Annotated[int, typer.Option(min=0, help="Seed of network, coordinates, queries and strategies.")] = 1,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="RTTs that each node measures for its coordinate first.")] = ROUNDS,
    jitter: Annotated[float, typer.Option(metavar="SHARE", help=JITTER_HELP)] = JITTER_SHARE,
    algorithm: Annotated[Literal["refit", "vivaldi"], typer.Option(help="Algorithm of coordinates.")] = "refit",
    strategy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"Only this strategy; may be repeated. One of {', '.join(STRATEGIES)}.")
    ] = None,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Place queries by every strategy, and compare their network usage and delay with those of the optimum.

    \b
    Examples:
      sbon testbed placement --matrix rtt.npz --queries 200
      sbon testbed placement --topology transit-stub --strategy relaxation --strategy ip-multicast --json -
    """

    if (matrix is None) == (topology is None):
        raise typer.BadParameter("give either --matrix FILE or --topology transit-stub")
    network = read_network(matrix, taken) if matrix is not None else transit_stub(seed)
    try:
        names = strategies_for(network, strategy or ())
    except ConfigError as problem:
        raise typer.BadParameter(f"--strategy: {problem}") from problem
    progress = Progress(wanted=not quiet)
    coordinates = CoordinateConfig(algorithm=algorithm)
    evaluation = evaluate(
        network,
        queries=queries,
        shape=shape,
        seed=seed,
        rounds=rounds,
        strategies=names,
        coordinates=coordinates,
        jitter=jitter,
        report=progress,
    )
    result = {**evaluation.result(), "algorithm": algorithm, "jitter": jitter}
    if json is not None:
        write_json(json, result)
    if json != "-":
        show(result)


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    off = f"coordinates off by {result['coordinate_median_error']:.1%} (median)"
    print_note(f"{result['nodes']} nodes, {result['queries']} queries ({result['shape']}), jitter {result['jitter']:.1%}, {off}")
    titles = ("usage +", "80th pct", "together", "delay +", "probes", "ms")
    shares = ("usage_penalty_mean", "usage_penalty_p80", "usage_penalty_total", "delay_penalty_mean")
    rows = [
        [
            name,
            *(f"{figures[key]:.1%}" for key in shares),
            number(figures["probes_per_query"]),
            number(figures["milliseconds_per_query"], 2),
        ]
        for name, figures in result["strategies"].items()
    ]
    print_table((Column("strategy"), *(Column(title, right=True) for title in titles)), rows)
