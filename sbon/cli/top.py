"""The live view: `sbon top`."""

import contextlib
import sys
import time
from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Socket, Wide
from sbon.cli.output import amount, count, line_width, number, print_table, rich_lines, say, span
from sbon.cli.overview import MEMBER_COLUMNS, OPERATOR_COLUMNS, QUERY_COLUMNS, member_rows, operator_rows, query_rows
from sbon.cli.tables import Column, Line, Span, display_width, table_lines
from sbon.printable import printable


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command()(top)


def top(
    socket: Socket = None,
    interval: Annotated[float, typer.Option(min=0.2, max=3600.0, metavar="SECONDS", help="Pause between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    wide: Wide = False,
) -> None:
    """Watch this agent live.

    Its queries, its busiest operators, its nearest members. Ctrl-C ends it.
    """
    with ControlClient(find_socket(socket)) as agent:
        if once or not sys.stdout.isatty():
            _print_once(look(agent), wide=wide)
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(rich_lines(screen(look(agent), console.width, console.height, wide=wide)), refresh=True)
                time.sleep(interval)


def look(agent: ControlClient) -> dict[str, Any]:
    """Requests everything that the view shows."""
    return {command: agent.ask(command) for command in ("status", "members", "operators", "queries")}


def headline(seen: dict[str, Any], width: int | None) -> list[str]:
    """Returns the agent's headline in one line, or in as many as its parts need."""
    status = seen["status"]
    members = status.get("members", {})
    states = ", ".join(f"{members[state]} {state}" for state in ("alive", "suspect", "failed", "left") if members.get(state))
    error = status.get("median_relative_error")
    out = sum(operator.get("bytes_per_s_out") or 0.0 for operator in seen["operators"])
    lines: list[str] = []
    for part in (
        f"{status['name']} {status['address']}",
        f"up {span(status.get('uptime_s'))}",
        f"members: {states}",
        f"median error {'-' if error is None else f'{100 * error:z.1f} %'}",
        f"load {number((status.get('coordinate') or {}).get('load_ms'))} ms",
        f"operators {count(len(seen['operators']))}, sending {amount(out, 'B/s')}",
    ):
        longer = f"{lines[-1]}   {printable(part)}" if lines else printable(part)
        if lines and (width is None or display_width(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(printable(part))
    return lines


def busiest(seen: dict[str, Any], most: int) -> list[list[str]]:
    """Returns the rows of the operators with the highest input."""
    ranked = sorted(seen["operators"], key=lambda o: (-(o.get("rows_per_s_in") or o.get("rows_per_s_out") or 0.0), o["id"]))
    return [row for operator in ranked[:most] for row in operator_rows([operator])]


def nearest(seen: dict[str, Any], most: int) -> list[list[str]]:
    """Returns the rows of the members with the shortest round trips."""

    def rtt(member: dict[str, Any]) -> float:
        for key in ("measured_rtt_ms", "estimated_rtt_ms"):
            if member.get(key) is not None:
                return float(member[key])
        return float("inf")

    others = [member for member in seen["members"] if member["name"] != seen["status"]["name"]]
    ranked = sorted(others, key=lambda member: (rtt(member), member["name"]))
    return member_rows(ranked[:most])


def _print_once(seen: dict[str, Any], *, wide: bool) -> None:
    for line in headline(seen, line_width()):
        say(line)
    print_table(QUERY_COLUMNS, query_rows(seen["queries"]), title="\nqueries", wide=wide)
    print_table(OPERATOR_COLUMNS, busiest(seen, 10), title="\noperators", wide=wide)
    print_table(MEMBER_COLUMNS, nearest(seen, 10), title="\nnearest members", wide=wide)


def screen(seen: dict[str, Any], width: int, height: int, *, wide: bool = False) -> list[Line]:
    """Returns the lines of a terminal of that size: the three tables share its height."""
    head = [[Span(line, "bold")] for line in headline(seen, width)]
    most = max(3, (height - len(head) - 6) // 3)
    lines: list[Line] = head
    tables: tuple[tuple[tuple[Column, ...], list[list[str]], str], ...] = (
        (QUERY_COLUMNS, query_rows(seen["queries"])[:most], "no queries"),
        (OPERATOR_COLUMNS, busiest(seen, most), "no operators on this agent"),
        (MEMBER_COLUMNS, nearest(seen, most), "no other members"),
    )
    for columns, rows, empty in tables:
        lines += [[], *(table_lines(columns, rows, width, wide=wide)[: most + 1] if rows else [[Span(empty, "dim")]])]
    return lines[:height]
