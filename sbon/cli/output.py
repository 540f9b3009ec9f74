"""What the commands print: tables for people, JSON for scripts, one line on standard error for what went wrong.

Whatever is printed goes through here (`tests/unit/test_house.py` looks for other ways): much of it comes from other agents, and is made
printable, so that no name, label, reason or row changes what a terminal shows.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sbon.cli.client import RefusedError
from sbon.printable import printable, printable_json

NEW_LINE = "\n"


class Column(NamedTuple):
    """A table's column."""

    title: str
    right: bool = False
    """Numbers line up on the right."""


def say(line: str = "", *, error: bool = False) -> None:
    """One line on standard output, or on standard error."""
    print(printable(line), file=sys.stderr if error else sys.stdout, flush=error)


def print_json(value: Any) -> None:
    """One JSON document: indented for people on a terminal, else on one line."""
    print(json_text(value, indent=2 if sys.stdout.isatty() else None))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A JSON document."""
    return printable_json(json.dumps(value, ensure_ascii=False, indent=indent))


def print_now(lines: Iterable[str]) -> None:
    """Lines whose text is printable already, at once."""
    sys.stdout.write("".join([f"{line}\n" for line in lines]))
    sys.stdout.flush()


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str = "", empty: str = "none") -> None:
    """A table: drawn by rich on a terminal, else plain text in aligned columns that awk and grep can take apart."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(rich_table(columns, rows, title=title, empty=empty))
        return
    if title:
        print(f"{printable(title, keep=NEW_LINE)}:")
    if rows:
        print("\n".join(plain_lines(columns, rows)))
    else:
        say(empty)


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str = "", empty: str = "none") -> Any:
    """The same as something that rich can draw."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=STYLES.get(cell, "")) for cell in row))
    if not rows:
        return Text(f"{title}: {empty}" if title else empty, style="dim")
    return table


STYLES = {
    "alive": "green",
    "running": "green",
    "suspect": "yellow",
    "degraded": "yellow",
    "blocked": "yellow",
    "paused": "yellow",
    "stalled": "yellow",
    "failed": "red",
    "left": "dim",
    "finished": "dim",
}
"""Colours of the states, wherever one stands alone in a cell."""


def plain_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text, columns two blanks apart.

    Examples
    --------
    >>> plain_lines([Column("node"), Column("rtt", right=True)], [["ams1", "9.5"], ["b", "120.0"]])
    ['node    rtt', 'ams1    9.5', 'b     120.0']
    """
    cells = [[column.title for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = []
    for row in cells:
        parts = [cell.rjust(w) if column.right else cell.ljust(w) for cell, w, column in zip(row, widths, columns, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return lines


def print_error(message: str) -> None:
    """One line on standard error."""
    say(f"sbon: {' '.join(message.split())}", error=True)


def print_sql_error(text: str, problem: RefusedError, origin: str) -> None:
    """What is wrong with a statement, on standard error."""
    print(sql_error(text, problem, origin), file=sys.stderr)


def sql_error(text: str, problem: RefusedError, origin: str) -> str:
    """The error, and under it the line of SQL with a caret below the place.

    Examples
    --------
    >>> print(sql_error("SELECT regoin FROM s", RefusedError("no column regoin", (1, 8)), "q.sql"))
    q.sql:1:8: no column regoin
      SELECT regoin FROM s
             ^
    """
    if problem.place is None:
        return printable(f"{origin}: {problem.message}")
    line, column = problem.place
    lines = text.splitlines()
    said = printable(f"{origin}:{line}:{column}: {problem.message}")
    if not 1 <= line <= len(lines):
        return said
    shown = lines[line - 1].replace("\t", " ").rstrip()
    return f"{said}\n  {printable(shown)}\n  {' ' * len(printable(shown[: column - 1]))}^"


def number(value: float | None, digits: int = 1) -> str:
    """A number of that many decimals, never -0.0; a dash for none."""
    return "-" if value is None else f"{value:z,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number; a dash for none."""
    return "-" if value is None else f"{value:z,.0f}"


def share(value: float | None) -> str:
    """A fraction in per cent."""
    return "-" if value is None else f"{100 * value:z.1f} %"


def amount(value: float | None, unit: str) -> str:
    """A rate or size with the decimal prefix that keeps it short.

    Examples
    --------
    >>> amount(1_250_000, "B/s"), amount(None, "B")
    ('1.25 MB/s', '-')
    """
    if value is None:
        return "-"
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:z.3g} {prefix}{unit}"
    return f"{value:z.3g} {unit}"


def span(seconds: float | None) -> str:
    """A duration in its two largest units.

    Examples
    --------
    >>> span(7384.0), span(3.2)
    ('2 h 3 min', '3 s')
    """
    if seconds is None:
        return "-"
    whole = int(seconds)
    for size, unit, below_size, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below_size} {below}"
    return f"{whole} s"


def step_order(operator: dict[str, Any]) -> tuple[str, int, str]:
    """Sorts operators by query, then by their step's number: `q.10` comes after `q.9`."""
    query, _, step = str(operator["id"]).rpartition(".")
    return (query, int(step) if step.isdigit() else 0, step)


def pairs(values: dict[str, Any]) -> str:
    """Labels on one line."""
    return " ".join(f"{key}={value}" for key, value in sorted(values.items())) or "-"
