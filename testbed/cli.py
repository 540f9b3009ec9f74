"""`sbon testbed`: overlays for experiments, in virtual time, as processes of this machine, or in network namespaces."""

import difflib
import importlib
import importlib.util
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from sbon.cli.output import pairs, print_note, print_record, print_table, say
from sbon.cli.tables import Column, Shorten
from sbon.errors import ConfigError, UsageError
from sbon_testbed.json_files import JsonFile, write_json

if TYPE_CHECKING:
    from sbon_testbed.topology import Topology

EXIT_FAILED = 1
EXIT_USAGE = 2

_EVALUATIONS = {
    "adversaries": "sbon_testbed.coordinates.adversaries",
    "cep": "sbon_testbed.cep.command",
    "coordinates": "sbon_testbed.coordinates.command",
    "deadlines": "sbon_testbed.deadlines.command",
    "exactly-once": "sbon_testbed.exactly_once.command",
    "figures": "sbon_testbed.figures.command",
    "mace": "sbon_testbed.mace.command",
    "membership": "sbon_testbed.membership.command",
    "placement": "sbon_testbed.placement.command",
    "simulate": "sbon_testbed.simulator.command",
    "table1": "sbon_testbed.placement.table1",
    "telemetry": "sbon_testbed.telemetry.generator",
    "throughput": "sbon_testbed.throughput.command",
}
_KINDS = (
    ("cities", "real cities by latitude and longitude, fibre distances, access links; cables: atlantic, pacific, suez"),
    ("transit-stub", "generated backbones and stub domains with policy routes, as in section 4.1 of the SBON paper"),
    ("matrix", 'any RTT matrix file; only in scenarios: [topology] kind = "matrix", file = "rtt.npz"'),
)


class _Group(TyperGroup):
    """The command group `sbon testbed`, whose evaluations load their modules only when they are run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of all commands."""
        return [*super().list_commands(ctx), *(name for name, module in _EVALUATIONS.items() if importlib.util.find_spec(module))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns one command."""
        if cmd_name not in self.list_commands(ctx) or cmd_name not in _EVALUATIONS:
            return super().get_command(ctx, cmd_name)
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(cmd_name)(getattr(importlib.import_module(_EVALUATIONS[cmd_name]), f"{cmd_name.replace('-', '_')}_command"))
        return typer.main.get_command(one)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolves a command as typer does, but suggests commands that are not loaded, too."""
        names = self.list_commands(ctx)
        near = difflib.get_close_matches(args[0], names) if args and args[0] not in names else []
        if near:
            ctx.fail(f"No such command '{args[0]}'. Did you mean {', '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Adds `sbon testbed` to the program; called through the entry point group `sbon.commands`."""
    testbed = typer.Typer(
        cls=_Group,
        no_args_is_help=True,
        help="Try overlays: in virtual time, as processes, in network namespaces.",
        rich_markup_mode=None,
    )
    testbed.command(
        "run",
        epilog=_examples(
            "testbed run testbed/scenarios/smoke.toml --backend sim --seed 7 --json a.json",
            "testbed run testbed/scenarios/wan.toml --backend netns --out wan-out",
        ),
    )(run)
    testbed.command("demo", epilog=_examples("testbed demo --out demo-out"))(demo)
    testbed.command("clean", epilog=_examples("testbed clean"))(clean)
    testbed.command("topologies", epilog=_examples("testbed topologies", "testbed topologies cities --nodes 16"))(topologies)
    app.add_typer(testbed, name="testbed")


def run(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="What to run; see testbed/scenarios.")],
    backend: Annotated[
        Literal["sim", "local", "netns"],
        typer.Option(
            help="sim: virtual time, from a seed. local: processes of this machine. netns: each in its own network namespace, as root."
        ),
    ] = "sim",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run; replaces the scenario's.")] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="S", help="Length of the run in seconds; replaces the scenario's. Later events are skipped.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Run only the first N nodes; events of other nodes are skipped.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the agents' state, telemetry and logs here.")] = None,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run a scenario and show its result. Exit code 1 if an expectation of the scenario is not met."""
    from sbon_testbed.run import run_scenario
    from sbon_testbed.scenario import read_scenario

    def progress(now_s: float, what: str) -> None:
        if not quiet:
            print(f"{now_s:8.1f} s  {what}", file=sys.stderr, flush=True)

    _end_on_sigterm()
    try:
        made = read_scenario(scenario)
        result = run_scenario(
            made,
            backend,
            seed=seed,
            duration_s=duration,
            nodes=nodes,
            folder=scenario.parent,
            out=out,
            text=scenario.read_text(encoding="utf-8"),
            origin=str(scenario),
            progress=progress,
        )
    except KeyboardInterrupt:
        _interrupted()
    if json is not None:
        write_json(json, result)
    if json != "-":
        _show(result)
    for problem in result["problems"]:
        print(f"sbon testbed run: {problem}", file=sys.stderr)
    if result["problems"]:
        raise typer.Exit(EXIT_FAILED)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Telemetry and summary.json go here; made if missing.")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of topology and data; the agents are real processes, so runs differ.")] = 7,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines even on a terminal.")] = False,
) -> None:
    """Watch 16 agents find each other, answer queries, and move an operator when an ocean cable slows down."""
    from sbon_testbed.demo.run import run_demo

    _end_on_sigterm()
    try:
        missing = run_demo(out, seed, plain)
    except KeyboardInterrupt:
        _interrupted()
    if missing:
        raise typer.Exit(EXIT_FAILED)


def clean() -> None:
    """Remove folders that killed runs and benchmarks left behind; every run does so too. Processes and namespaces end with their run."""
    from sbon_testbed.leftovers import remove_leftovers

    removed = remove_leftovers()
    for directory in removed:
        print(f"removed {directory}")
    if not removed:
        print("nothing to remove")


def topologies(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="cities or transit-stub; without it, list the kinds.")] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many nodes.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the topology.")] = 1,
    json: JsonFile = None,
) -> None:
    """List the kinds of topology, or show one: its nodes, labels and RTTs."""
    from sbon_testbed import topology as known

    kinds: dict[str, known.TopologyConfig] = {"cities": known.CitiesConfig(), "transit-stub": known.TransitStubConfig()}
    if kind is None:
        print_record(_KINDS)
        return
    if kind not in kinds:
        print(f"sbon testbed topologies: {kind}, expected one of {', '.join(kinds)}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE)
    try:
        made = known.build(kinds[kind], nodes, seed)
    except ConfigError as problem:  # only --nodes can be wrong here
        raise UsageError(str(problem)) from problem
    if json is not None:
        write_json(json, {"kind": kind, "nodes": made.nodes, "labels": made.labels, "rtt_ms": made.rtt_ms.round(3).tolist()})
        return
    print_table(*topology_table(made))


def topology_table(made: "Topology") -> tuple[list[Column], list[list[str]]]:
    """Returns the table of a topology: each node's RTT from the first one, and its median RTT."""
    columns = [
        Column("node"),
        Column("RTT ms", right=True),
        Column("median RTT ms", right=True),
        Column("labels", shorten=Shorten.LIST),
    ]
    rows = [
        [name, f"{row[0]:.1f}", f"{sorted(row)[len(row) // 2]:.1f}", pairs(labels)]
        for name, labels, row in zip(made.nodes, made.labels, made.rtt_ms, strict=True)
    ]
    return columns, rows


def _show(result: dict[str, Any]) -> None:
    from sbon_testbed.report import network_lines

    coordinates, members = result["coordinates"], result["members"]
    print_note(f"{result['scenario']}: {result['nodes']} nodes, {result['duration_s']:g} s, {result['backend']}, seed {result['seed']}")
    print_note(f"  alive {len(members['alive'])}, all agents agree: {'yes' if members['agree'] else 'no'}")
    if coordinates["median_relative_error"] is not None:
        median, p90 = coordinates["median_relative_error"], coordinates["p90_relative_error"]
        print_note(f"  coordinates off by {median:.1%} (median), {p90:.1%} (90th percentile)")
    for statement in result["statements"]:
        rows = "" if statement["rows"] is None else f"{statement['rows']} rows {statement['rows_sha256'][:12]}"
        print_note(f"  {statement['name']}: {statement['error'] or statement['state'] or 'done'} {rows}")
    print_note(f"  migrations {result['migrations']['total']}, network usage {result['network_usage_bytes']:.0f} bytes in transit")
    for line in network_lines(result["counters"]["world"]):
        print_note(f"  {line}")
    for line in result["skipped"]:
        print_note(f"  skipped: {line}")
    if not result["expectations_checked"]:
        say("  not checked: the scenario's expectations, which need its whole length")


def _examples(*lines: str) -> str:
    return "Examples: " + "; ".join(f"sbon {line}" for line in lines)


def _end_on_sigterm() -> None:
    """Handles SIGTERM like Ctrl-C: ends everything that the testbed has started first."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _interrupted() -> NoReturn:
    print("sbon testbed: interrupted; everything that was started has ended", file=sys.stderr)
    raise typer.Exit(130)
