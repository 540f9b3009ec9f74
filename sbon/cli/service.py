"""Commands that change a running agent: leave, reload."""

from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Json, Socket
from sbon.cli.output import print_json, say


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for command in (leave, reload):
        app.command()(command)


def leave(
    within: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            metavar="SECONDS",
            help="Longest time for handing over; 0: leave at once.",
            show_default="leaving_s of its configuration",
        ),
    ] = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Let this agent leave the overlay and end.

    As on SIGTERM: it hands its operators over to other agents, tells them that it leaves, and ends. A second `sbon leave` ends it at once.

    \b
    Examples:
      sbon leave               # hands over for as long as leaving_s says
      sbon leave --within 60   # for longer: large states take their time
      sbon leave --within 0    # leaves at once; its operators end with it
    """
    with ControlClient(find_socket(socket)) as agent:
        result: dict[str, Any] = next(agent.stream("leave", within_s=within), {})  # no time-out: it may take as long as it was allowed to
    if json:
        print_json(result)
        return
    say("left" + (f"; {_operators(result['moved'])} handed over" if result.get("moved") else ""))
    for stayed in result.get("stayed", []):
        say(f"{stayed['operator']} ended with it: {stayed['reason']}")


def _operators(count: int) -> str:
    return "1 operator was" if count == 1 else f"{count} operators were"


def reload(socket: Socket = None, json: Json = False) -> None:
    """Let this agent read its configuration again.

    As on SIGHUP; prints what took effect and what needs a restart.
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("reload")
    if json:
        print_json(result)
        return
    say(f"applied: {', '.join(result.get('applied', [])) or 'nothing has changed'}")
    if waiting := result.get("restart_needed"):
        say(f"only after a restart: {', '.join(waiting)}")
