"""The live view: `sbon top`."""

import contextlib
import sys
import time
from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Socket
from sbon.cli.output import Column, amount, count, number, pairs, print_table, rich_table, say, span
from sbon.cli.overview import QUERY_COLUMNS, operator_rows, query_rows
from sbon.printable import printable

BUSY_COLUMNS = (
    Column("operator"),
    Column("what it does"),
    Column("state"),
    Column("rows/s in", right=True),
    Column("rows/s out", right=True),
    Column("out", right=True),
    Column("queued", right=True),
)
_BUSY = (0, 2, 3, 4, 5, 6, 7)
"""Which cells of `operator_rows` those are."""

NEAR_COLUMNS = (Column("nearest"), Column("status"), Column("labels"), Column("rtt ms", right=True), Column("estimated ms", right=True))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(top)


def top(
    socket: Socket = None,
    interval: Annotated[float, typer.Option(min=0.2, max=3600.0, metavar="SECONDS", help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
) -> None:
    """Watch this agent live.

    Its queries, its busiest operators, its nearest members. Ctrl-C ends it.
    """
    with ControlClient(find_socket(socket)) as agent:
        if once or not sys.stdout.isatty():
            _print_once(look(agent))
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(look(agent), console.height), refresh=True)
                time.sleep(interval)


def look(agent: ControlClient) -> dict[str, Any]:
    """Everything that the view shows, asked for at one go."""
    return {command: agent.ask(command) for command in ("status", "members", "operators", "queries")}


def headline(seen: dict[str, Any]) -> str:
    """The agent in one line."""
    status = seen["status"]
    members = status.get("members", {})
    states = ", ".join(f"{members[state]} {state}" for state in ("alive", "suspect", "failed", "left") if members.get(state))
    error = status.get("median_relative_error")
    out = sum(operator.get("bytes_per_s_out") or 0.0 for operator in seen["operators"])
    return "   ".join(
        (
            f"{status['name']} {status['address']}",
            f"up {span(status.get('uptime_s'))}",
            f"members: {states}",
            f"median error {'-' if error is None else f'{100 * error:z.1f} %'}",
            f"load {number((status.get('coordinate') or {}).get('load_ms'))} ms",
            f"operators {count(len(seen['operators']))}, sending {amount(out, 'B/s')}",
        )
    )


def busiest(seen: dict[str, Any], most: int) -> list[list[str]]:
    """Rows of the operators that take in most."""
    ranked = sorted(seen["operators"], key=lambda o: (-(o.get("rows_per_s_in") or o.get("rows_per_s_out") or 0.0), o["id"]))
    return [[row[i] for i in _BUSY] for operator in ranked[:most] for row in operator_rows([operator])]


def nearest(seen: dict[str, Any], most: int) -> list[list[str]]:
    """Rows of the members with the shortest round trips."""

    def rtt(member: dict[str, Any]) -> float:
        for key in ("measured_rtt_ms", "estimated_rtt_ms"):
            if member.get(key) is not None:
                return float(member[key])
        return float("inf")

    others = [member for member in seen["members"] if member["name"] != seen["status"]["name"]]
    ranked = sorted(others, key=lambda member: (rtt(member), member["name"]))
    return [
        [m["name"], m["status"], pairs(m.get("labels", {})), number(m.get("measured_rtt_ms")), number(m.get("estimated_rtt_ms"))]
        for m in ranked[:most]
    ]


def _print_once(seen: dict[str, Any]) -> None:
    say(headline(seen))
    print_table(QUERY_COLUMNS, query_rows(seen["queries"]), title="\nqueries")
    print_table(BUSY_COLUMNS, busiest(seen, 10), title="\noperators")
    print_table(NEAR_COLUMNS, nearest(seen, 10), title="\nnearest members")


def _screen(seen: dict[str, Any], height: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    most = max(3, (height - 10) // 3)
    return Group(
        Text(printable(headline(seen)), style="bold"),
        Text(),
        rich_table(QUERY_COLUMNS, query_rows(seen["queries"])[:most], empty="no queries"),
        Text(),
        rich_table(BUSY_COLUMNS, busiest(seen, most), empty="no operators on this agent"),
        Text(),
        rich_table(NEAR_COLUMNS, nearest(seen, most), empty="no other members"),
    )
