"""Prints Markdown pages: on a terminal with tables in the style of all commands, elsewhere unchanged."""

import re

from sbon.cli.output import line_width, print_note, print_table
from sbon.cli.tables import Column

RULE = re.compile(r"\| *:?-+:? *(\| *:?-+:? *)*\|")
"""Matches the line below a table's titles."""


def print_document(text: str, *, wide: bool = False) -> None:
    """Prints a page.

    Parameters
    ----------
    wide : show all columns of its tables, even if the terminal is too narrow for them
    """
    if line_width() is None:
        print(text, end="")
        return
    lines = text.splitlines()
    while lines:
        table = _table(lines)
        if table:
            titles, rule, *rows = (cells(line) for line in table)
            columns = [Column(title, right=mark.endswith(":")) for title, mark in zip(titles, rule, strict=True)]
            print_table(columns, rows, wide=wide)
        else:
            print_note(lines[0])
        lines = lines[max(len(table), 1) :]


def cells(line: str) -> list[str]:
    """Returns the cells of a table's line.

    Examples
    --------
    >>> cells("| RANDOM | 86.7 % |  |")
    ['RANDOM', '86.7 %', '']
    """
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _table(lines: list[str]) -> list[str]:
    """Returns the lines of the table with which a text begins; none if it begins otherwise."""
    if len(lines) < 2 or not lines[0].startswith("|") or not RULE.fullmatch(lines[1].strip()):
        return []
    end = next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:end]
