"""`sbon plan`: questions about a query before it runs, answered by an agent from what it knows of operators, nodes and links.

Each question is one command here and one function in `sbon.planning.questions`.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from sbon.cli.options import Json, Socket, SqlFile, SqlText, read_sql
from sbon.cli.output import number, print_json, print_note, print_table, say
from sbon.cli.statements import ask_about_sql
from sbon.cli.tables import Column
from sbon.cost.explaining import amount, table
from sbon.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    plan = typer.Typer(no_args_is_help=True, help="Ask what a query needs: nodes, rates, what would have to change.", rich_markup_mode=None)
    for command in (capacity, latency, throughput, resources):
        plan.command()(command)
    app.add_typer(plan, name="plan")


def capacity(
    file: SqlFile = None,
    command: SqlText = None,
    rates: Annotated[float, typer.Option(metavar="FACTOR", min=1e-6, help="Multiply the rates of all sources by this.")] = 1.0,
    nodes: Annotated[str, typer.Option(metavar="+N", help="Add this many nodes, beside the busiest one and like it.")] = "+0",
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show how late answers would be with more nodes, and at other rates.

    The query is placed as `sbon explain` places it, and operators of the busiest node move to new ones where that makes answers
    sooner; nothing is started.

    \b
    Examples:
      sbon plan capacity query.sql --nodes +2 --rates 1.5
      sbon plan capacity -c "SELECT * FROM sys.probes WHERE rtt_ms > 200" --rates 10 --json
    """
    if not nodes.removeprefix("+").isdecimal():
        raise typer.BadParameter(f"--nodes is {nodes!r}, expected a number such as +2")
    result = ask_plan("capacity", file, command, socket, rates=rates, nodes=int(nodes))
    if json:
        print_json(result)
        return
    asked = [f"at {rates:g} times the rates"] if rates != 1 else []
    if result["nodes"]:
        moved = ", ".join(f"{operator} on {node}" for operator, node in result["moved"].items()) or "no operator gains by them"
        asked.append(f"with {result['nodes']} more nodes beside {result['beside']} ({moved})")
    for title, explained in (("now", result["now"]), (" and ".join(asked) or "the same", result["then"])):
        say(f"{title}: {table(explained)[0]}")
        for line in table(explained)[1:]:
            say(line)
    print_notes(result)


def latency(
    file: SqlFile = None,
    command: SqlText = None,
    arrivals: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows of the source in each quarter of a second, one a line.")
    ] = None,
    width: Annotated[float, typer.Option(metavar="S", min=0.25, help="Seconds of an interval of the result: a multiple of 0.25.")] = 1.0,
    speed: Annotated[float, typer.Option(metavar="FACTOR", min=0.01, help="Assume nodes so many times as fast as measured.")] = 1.0,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show how late the answers of a query with one source would be over time, if its source gave these rows.

    The query is placed as `sbon explain` places it, with the costs that agents have measured; nothing is started.

    \b
    Examples:
      sbon plan latency query.sql --arrivals monday.txt
      sbon plan latency query.sql --arrivals monday.txt --width 5 --json
    """
    result = ask_plan("latency", file, command, socket, arrivals=_rows_of_quarters(arrivals), width=width, speed=speed)
    if json:
        print_json(result)
        return
    say(result["text"])
    over = result["intervals"]
    columns = (Column("second", right=True), *(Column(title, right=True) for title in ("latest ms", "Mace ms", "bound ms")))
    shown = zip(over["latest_ms"], over["mace_ms"], over["upper_ms"], strict=True)
    print_table(
        columns,
        [[f"{place * over['width_s']:g}", *("-" if one is None else number(one, 1) for one in row)] for place, row in enumerate(shown)],
    )
    print_notes(result)


def _rows_of_quarters(path: Path | None) -> list[int]:
    """Reads the rows of each quarter of a second."""
    form = "write --arrivals FILE, with the rows of each quarter of a second, one a line"
    if path is None:
        raise UsageError(f"no arrivals: {form}")
    try:
        lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}; {form}") from problem
    except UnicodeDecodeError as problem:
        raise UsageError(f"cannot read {path}: not UTF-8 text; {form}") from problem
    for place, line in enumerate(lines, 1):
        if not line.strip().isdecimal():
            raise UsageError(f"{path}:{place}: {line.strip()[:40]!r}, expected a whole number of rows; {form}")
    return [int(line) for line in lines]


def throughput(
    file: SqlFile = None,
    command: SqlText = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE=RATES", help="Rates of a source, as '1000/s' or 'day: 1000/s, launch: 8000/s'; may be repeated."),
    ] = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show how many times its rates a query carries, and the order and placement that carry them with the least network usage.

    Rates are those of the option, else of `profile` in CREATE SOURCE, else the expected ones. Nothing is started. The exit code is 1 if no
    placement carries them.

    \b
    Examples:
      sbon plan throughput query.sql
      sbon plan throughput query.sql --profile trades=5000/s --profile "quotes=day: 1000/s, launch: 8000/s" --json
    """
    given = {}
    for one in profile or []:
        source, equals, rates = one.partition("=")
        if not (source and equals and rates):
            raise UsageError(f"--profile {one!r} is no source and its rates; write --profile source=1000/s")
        if source in given:
            raise UsageError(f"--profile names source {source} twice; leave one of them out")
        given[source] = rates
    result = ask_plan("throughput", file, command, socket, profile=given)
    if json:
        print_json(result)
    else:
        for title in ("now", "best"):
            found = result[title]
            say(f"{title}: {found['text']}; {amount(found['network_usage_bytes'])} B in transit")
        for operator, node in result["moved"].items():
            say(f"  {operator} on {node}")
        for operator, text in result["reordered"].items():
            say(f"  {operator} reordered: {text}")
        print_notes(result)
    if not result["best"]["carries"]:
        print_note(f"no placement carries the profile: at best {result['best']['text']}")
        raise typer.Exit(1)


def resources(
    file: SqlFile = None,
    command: SqlText = None,
    max_latency: Annotated[
        str, typer.Option("--max-latency", metavar="SPAN", help="How late an answer may be, such as 500ms or 2s.")
    ] = "1s",
    quantile: Annotated[
        float | None,
        typer.Option(metavar="SHARE", min=0.0, max=0.999999, help="Share of answers that must be in time; without it the mean counts."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="ROWS", min=1e-6, help="Rows/s of all sources together. [default: as declared or measured]")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Most nodes.")] = 100,
    hottest: Annotated[float, typer.Option(metavar="SHARE", min=0.0, max=1.0, help="Share of rows of the hottest key.")] = 0.0,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show how many nodes, instances and which intervals keep a bound of the latency.

    Nodes are assumed to be like the weakest of those that the query would be placed on. Nothing is started; the result is advice.

    \b
    Examples:
      sbon plan resources query.sql --max-latency 1s
      sbon plan resources query.sql --max-latency 200ms --quantile 0.99 --rate 2000000 --json
    """
    given = {"max_latency": max_latency, "nodes": nodes, "hottest": hottest, "quantile": quantile, "rate": rate}
    result = ask_plan("resources", file, command, socket, **{name: value for name, value in given.items() if value is not None})
    if json:
        print_json(result)
        return
    share = "mean" if result["quantile"] is None else f"{result['quantile']:.4g} of answers"
    within = f"{1000 * result['max_latency_s']:,.4g} ms"
    hosts = "1 node" if result["nodes"] == 1 else f"{result['nodes']} nodes"
    say(f"{result['rate']:,.0f} rows/s within {within} ({share}): {hosts} of {result['cluster']['cores']} cores")
    say(f"  on each node: {result['maps']} before the keys, {result['updates']} of {result['operator']} ({result['kind']})")
    say(f"  sources send every {1000 * result['pace_s']:.3g} ms, rows are exchanged every {1000 * result['exchange_s']:.3g} ms")
    say(f"  predicted: {1000 * result['latency_s']:,.3g} ms; at most {result['rate_max']:,.0f} rows/s, by {result['limit']}")
    if result["rests_on_rules"]:
        say("  costs of some operators are rules of thumb: let the query run for a while, then plan again")
    print_notes(result)


def print_notes(result: dict[str, Any]) -> None:
    """Prints the agent's notes on a query, such as why it would be refused."""
    for note in result["notes"]:
        print_note(f"note: {note}")


def ask_plan(question: str, file: str | None, command: str | None, socket: str | None, **options: Any) -> Any:
    """Asks an agent a question about the last query of some SQL, and returns the answer."""
    text, origin = read_sql(file, command)
    return ask_about_sql("plan", text, origin, socket, question=question, options=options)
