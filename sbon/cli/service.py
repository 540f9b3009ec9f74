"""Commands that tell a running agent to change: leave, reload."""

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Json, Socket
from sbon.cli.output import print_json


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (leave, reload):
        app.command()(command)


def leave(socket: Socket = None, json: Json = False) -> None:
    """Let this agent leave the overlay and end.

    It says goodbye to the others first, as on SIGTERM.
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("leave")
    if json:
        print_json(result)
    else:
        print("left")


def reload(socket: Socket = None, json: Json = False) -> None:
    """Let this agent read its configuration again.

    As on SIGHUP; prints what took effect and what needs a restart.
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("reload")
    if json:
        print_json(result)
        return
    print(f"applied: {', '.join(result.get('applied', [])) or 'nothing has changed'}")
    if waiting := result.get("restart_needed"):
        print(f"only after a restart: {', '.join(waiting)}")
