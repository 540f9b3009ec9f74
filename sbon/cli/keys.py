"""`sbon keys`: the cluster's keys, listed and changed on every agent from one of them."""

import sys
from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Json, Socket, Wide
from sbon.cli.output import print_error, print_json, print_note, print_table
from sbon.cli.tables import Column
from sbon.errors import ConfigError

NODE_COLUMNS = (Column("node"), Column("status"), Column("seals with"), Column("also opens", keep=True))
REACHED = ("alive", "suspect")
KEY_FILE_BYTES_MAX = 1 << 16

Except = Annotated[
    list[str] | None,
    typer.Option(
        "--except", metavar="NODE", help="Leave this member out: it is not asked, and not waited for. May be given several times."
    ),
]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of a key, as `sbon keys list` shows it.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    keys = typer.Typer(no_args_is_help=True, help="List and change the cluster's keys, on all agents at once.", rich_markup_mode=None)
    keys.command("list")(list_keys)
    keys.command()(install)
    keys.command()(use)
    keys.command()(remove)
    app.add_typer(keys, name="keys")


def list_keys(socket: Socket = None, json: Json = False, wide: Wide = False) -> None:
    """Show which agents hold which keys, by the keys' ids."""
    _change(socket, json, "list", wide=wide)


def install(
    key: Annotated[str, typer.Argument(metavar="KEYFILE|KEY", help="A key as `sbon keygen` makes it; - reads standard input.")],
    left_out: Except = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Let all agents open messages with another key, too.

    The first of three steps to a new key. Give the key as a file: other users can read command lines.

    Every member gets the new key, including a thief that has joined, unless --except leaves it out of all three steps. That is
    enough against a lost machine. But a thief can also answer in another member's name: against that, carry the new key to each
    machine by hand, add it to the key file there, run `sbon reload`, and go on with `sbon keys use` and `remove`.

    \b
    Examples:
      sbon keygen --out new.key
      sbon keys install new.key
      sbon keys list                # shows the ids
      sbon keys use 1f2e3d4c        # all seal with the new key
      sbon keys remove 5a6b7c8d     # none opens with the old one
      sbon keys install new.key --except lost7
    """
    _change(socket, json, "install", key=read_key(key), left_out=left_out)


def use(id: KeyId, left_out: Except = None, socket: Socket = None, json: Json = False) -> None:
    """Let all agents seal messages with this key from now on.

    Refused while some living agent does not hold it.
    """
    _change(socket, json, "use", id=id, left_out=left_out)


def remove(id: KeyId, left_out: Except = None, socket: Socket = None, json: Json = False) -> None:
    """Let all agents forget this key.

    Refused while some living agent seals with it. Agents that are down now must be given the new key file before they come back.
    """
    _change(socket, json, "remove", id=id, left_out=left_out)


def read_key(given: str) -> bytes:
    """Reads the 32 bytes of the key in a file, on standard input, or given as text.

    Raises
    ------
    ConfigError
        It is not one key; the message does not repeat it.
    """
    from sbon.sealing import KeyRing

    try:
        if given == "-":
            text = sys.stdin.read(KEY_FILE_BYTES_MAX)
        else:
            with open(given, encoding="ascii") as file:
                text = file.read(KEY_FILE_BYTES_MAX)
        where = "standard input" if given == "-" else given
    except UnicodeDecodeError:
        raise ConfigError(f"{given} holds no keys as `sbon keygen` makes them") from None
    except OSError as problem:
        if isinstance(problem, PermissionError | IsADirectoryError):
            raise ConfigError(f"cannot read {given}: {problem.strerror}") from problem
        # Text that names no file may be a mistyped key, which must not be repeated.
        text, where = given, "the argument (no such file)"
    try:
        keys = [key for _, key in KeyRing.parse(text).named_keys]
    except ConfigError as problem:
        raise ConfigError(f"{where} holds no key: {problem}") from None
    if len(keys) != 1:
        raise ConfigError(f"{where} holds {len(keys)} keys, expected one: the new one")
    return keys[0]


def _change(socket: str | None, json: bool, action: str, left_out: list[str] | None = None, wide: bool = False, **arguments: Any) -> None:
    if left_out:
        arguments["except"] = left_out
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("keys", action=action, **arguments)
    failed = [node["node"] for node in result["nodes"] if node["error"] and not node["left_out"] and node["status"] in REACHED]
    if json:
        print_json(result)
    else:
        print_table(NODE_COLUMNS, node_rows(result), wide=wide)
        for node in result["nodes"]:
            if node["error"]:
                print_note(f"{node['node']}: {node['error']}")
    if result["problem"]:
        print_error(result["problem"])
    if failed:
        advice = "" if action == "list" else "; correct that, then run the same command again"
        print_error(f"{'not known' if action == 'list' else 'not done'} on {', '.join(failed)}, for the reason above{advice}")
        raise typer.Exit(1)


def node_rows(result: dict[str, Any]) -> list[list[str]]:
    """Returns the rows of the table of all four commands."""
    return [[node["node"], node["status"], node["primary"] or "-", " ".join(node["ids"][1:]) or "-"] for node in result["nodes"]]
