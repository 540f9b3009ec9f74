"""Output of the commands: tables for people, JSON for scripts, one line on standard error for errors.

All printing goes through this module (`tests/house/test_house.py` checks that). Much of the text comes from other agents and is made
printable, so that no name, label, reason or row changes what a terminal shows.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sbon.cli.client import RefusedError
from sbon.cli.tables import GAP, Column, Line, Span, plain, record_lines, table_lines, wrapped
from sbon.printable import printable, printable_json

NEW_LINE = "\n"


def say(line: str = "", *, error: bool = False) -> None:
    """Prints one line on standard output, or on standard error."""
    print(printable(line), file=sys.stderr if error else sys.stdout, flush=error)


def print_json(value: Any) -> None:
    """Prints one JSON document: indented for people on a terminal, else on one line."""
    print(json_text(value, indent=2 if sys.stdout.isatty() else None))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Returns a JSON document."""
    return printable_json(json.dumps(value, ensure_ascii=False, indent=indent))


def print_now(lines: Iterable[str]) -> None:
    """Prints lines whose text is printable already, and flushes."""
    sys.stdout.write("".join([f"{line}\n" for line in lines]))
    sys.stdout.flush()


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str = "", empty: str = "none", wide: bool = False
) -> None:
    """Prints a table fitted to the width of a terminal; otherwise its main columns (all with `wide`) in full, for awk and grep."""
    if title:
        print(f"{printable(title, keep=NEW_LINE)}:")
    if rows:
        _print_lines(table_lines(columns, rows, line_width(), wide=wide))
    else:
        _print_lines([[Span(printable(empty), "dim")]])


def print_record(pairs: Sequence[tuple[str, str]]) -> None:
    """Prints names and values, one pair per line."""
    _print_lines(record_lines(pairs, line_width()))


def print_note(text: str) -> None:
    """Prints a sentence below a table, wrapped between words."""
    width = line_width()
    first, *rest = wrapped(printable(text), width)
    say(first)
    for line in wrapped(" ".join(rest), None if width is None else max(width - len(GAP), 1)) if rest else ():
        say(f"{GAP}{line}")


def line_width() -> int | None:
    """Returns the characters of a line of the terminal; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def rich_lines(lines: Sequence[Line]) -> Any:
    """Returns the lines as an object that rich can print."""
    from rich.text import Text

    text = Text("\n", no_wrap=True, overflow="ignore").join(Text.assemble(*line) for line in lines)
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _print_lines(lines: Sequence[Line]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(rich_lines(lines))
    else:
        print("\n".join(plain(lines)))


def print_error(message: str) -> None:
    """Prints one line on standard error."""
    say(f"sbon: {' '.join(message.split())}", error=True)


def print_sql_error(text: str, problem: RefusedError, origin: str) -> None:
    """Prints the error of a statement on standard error."""
    print(sql_error(text, problem, origin), file=sys.stderr)


def sql_error(text: str, problem: RefusedError, origin: str) -> str:
    """Returns the error, and under it the line of SQL with a caret below the place.

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
    """Formats a number with that many decimals, never -0.0; a dash for None."""
    return "-" if value is None else f"{value:z,.{digits}f}"


def count(value: float | None) -> str:
    """Formats a whole number; a dash for None."""
    return "-" if value is None else f"{value:z,.0f}"


def share(value: float | None) -> str:
    """Formats a fraction in per cent."""
    return "-" if value is None else f"{100 * value:z.1f} %"


def amount(value: float | None, unit: str) -> str:
    """Formats a rate or size with a decimal prefix.

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
    """Formats a duration in its two largest units.

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


def pairs(values: Mapping[str, Any]) -> str:
    """Formats labels on one line."""
    return " ".join(f"{key}={value}" for key, value in sorted(values.items())) or "-"
