"""`sbon bench`: measurements of this implementation on this machine, as BENCHMARKS.md reports them."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add `sbon bench` to the program; called through the entry point group `sbon.commands`."""
    bench = typer.Typer(no_args_is_help=True, help="Measure sbon on this machine.", rich_markup_mode=None)
    bench.callback()(_bench)  # keeps `probe` a subcommand while it is the only one
    bench.command("probe", epilog="Examples: sbon bench probe --seconds 60 --json")(probe)
    app.add_typer(bench, name="bench")


def _bench() -> None:
    """Measure sbon on this machine."""


def probe(
    seconds: Annotated[float, typer.Option(metavar="S", help="How long to measure, half of it idle and half saturated.")] = 30.0,
    plain: Annotated[bool, typer.Option("--plain", help="Without a cluster key: datagrams are not sealed.")] = False,
    json: Json = False,
) -> None:
    """Show the round trips that two agents on loopback measure, idle and with all operator threads busy."""
    from sbon.cli.output import print_json
    from testbed.bench_probe import measure, show

    result = measure(seconds, sealed=not plain)
    if json:
        print_json(result)
    else:
        show(result)
