"""Commands that list what SQL may name: names, functions."""

from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Json, Socket, Wide
from sbon.cli.output import print_json, print_note, print_table
from sbon.cli.tables import Column, Shorten
from sbon.query.catalog import KINDS

NAME_COLUMNS = (Column("name"), Column("kind"), Column("created at"), Column("query"))
FUNCTION_COLUMNS = (Column("call"), Column("version"), Column("gives", shorten=Shorten.END))


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for command in (names, functions):
        app.command()(command)


def names(
    socket: Socket = None,
    json: Json = False,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only this kind: source, view, sink or stream.", show_default=False)
    ] = None,
    wide: Wide = False,
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
        print_table(NAME_COLUMNS, name_rows(result), empty="no such names; CREATE SOURCE, VIEW or SINK makes one", wide=wide)


def functions(socket: Socket = None, json: Json = False, wide: Wide = False) -> None:
    """List the functions that packages on the agent's machine provide, as FROM may call them."""
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("functions")
    if json:
        print_json(result)
        return
    empty = "no functions are installed: a package provides them in the entry point group sbon.functions"
    print_table(FUNCTION_COLUMNS, function_rows(result), empty=empty, wide=wide)
    for one in result:
        if one["problem"]:
            print_note(f"{one['call']} cannot be used: {one['problem']}")


def name_rows(result: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of the table of `names`."""
    return [[entry["name"], entry["kind"], entry["owner"] or "-", entry["query"] or "-"] for entry in result]


def function_rows(result: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of the table of `functions`."""
    return [[one["call"], one["version"] or "-", one["gives"] or "-"] for one in result]
