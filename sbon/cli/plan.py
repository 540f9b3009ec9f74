"""`sbon plan`: questions about a query before it runs, answered by an agent from what it knows of operators, nodes and links.

Each question is one command here and one function in `sbon.planning.questions`.
"""

from typing import Annotated, Any

import typer

from sbon.cli.options import Json, Socket, SqlFile, SqlText, read_sql
from sbon.cli.output import print_json, say
from sbon.cli.statements import ask_about_sql
from sbon.cost.explaining import table


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    plan = typer.Typer(no_args_is_help=True, help="Ask what a query needs: nodes, rates, what would have to change.", rich_markup_mode=None)
    for command in (capacity,):
        plan.command()(command)
    app.add_typer(plan, name="plan")


def capacity(
    file: SqlFile = None,
    command: SqlText = None,
    rates: Annotated[float, typer.Option(metavar="FACTOR", min=1e-6, help="All sources so many times as fast.")] = 1.0,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show how late answers would be at other rates.

    The query is placed as `sbon explain` places it; nothing is started.

    \b
    Examples:
      sbon plan capacity query.sql --rates 1.5
      sbon plan capacity -c "SELECT * FROM sys.probes WHERE rtt_ms > 200" --rates 10 --json
    """
    result = ask_plan("capacity", file, command, socket, rates=rates)
    if json:
        print_json(result)
        return
    for title, explained in (("now", result["now"]), (f"at {rates:g} times the rates", result["then"])):
        say(f"{title}: {table(explained)[0]}")
        for line in table(explained)[1:]:
            say(line)


def ask_plan(question: str, file: str | None, command: str | None, socket: str | None, **options: Any) -> Any:
    """Asks an agent a question about the last query of some SQL, and returns the answer."""
    text, origin = read_sql(file, command)
    return ask_about_sql("plan", text, origin, socket, question=question, options=options)
