"""Commands that list what SQL may name: names, functions."""

from typing import Annotated

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Json, Socket
from sbon.cli.output import Column, print_json, print_table
from sbon.query.catalog import KINDS

NAME_COLUMNS = (Column("name"), Column("kind"), Column("created at"), Column("query"))


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (names, functions):
        app.command()(command)


def names(
    socket: Socket = None,
    json: Json = False,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only each source, view, sink or stream.", show_default=False)] = None,
) -> None:
    """List the names that SQL knows.

    Sources, views and sinks, wherever they were created, and the system streams that every agent has.

    \b
    Examples:
      sbon names
      sbon names --kind view --json
    """
    wanted = {"stream": "system stream"}.get(kind or "", kind)
    if wanted not in (None, *KINDS, "system stream"):
        raise typer.BadParameter(f"there is no kind {kind}, expected one of {', '.join(KINDS)}, stream")
    with ControlClient(find_socket(socket)) as agent:
        result = [entry for entry in agent.ask("names") if wanted in (None, entry["kind"])]
    if json:
        print_json(result)
    else:
        rows = [[entry["name"], entry["kind"], entry["owner"] or "-", entry["query"] or "-"] for entry in result]
        print_table(NAME_COLUMNS, rows, empty="no such names; CREATE SOURCE, VIEW or SINK makes one")


def functions(socket: Socket = None, json: Json = False) -> None:
    """List the functions that packages on the agent's machine bring, as FROM may call them."""
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("functions")
    if json:
        print_json(result)
        return
    rows = [[one["call"], one["version"] or "-", one["gives"] or "-", one["problem"]] for one in result]
    columns = (Column("call"), Column("version"), Column("gives"), Column("problem"))
    print_table(columns, rows, empty="no functions are installed: a package brings them in the entry point group sbon.functions")
