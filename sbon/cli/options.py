"""Options and arguments that several commands share."""

import sys
from pathlib import Path
from typing import Annotated

import typer

Socket = Annotated[
    str | None,
    typer.Option(
        "--socket",
        "--data-dir",
        metavar="PATH",
        help="Control socket or data directory of the agent. [env: SBON_SOCKET]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Wide = Annotated[bool, typer.Option("--wide", "-w", help="Show all columns; a block for each row where they do not fit on a line.")]
SqlFile = Annotated[str | None, typer.Argument(metavar="FILE|-", help="Statements; - reads standard input.", show_default=False)]
SqlText = Annotated[str | None, typer.Option("-c", "--command", metavar="SQL", help="Statements given here.", show_default=False)]


def read_sql(file: str | None, text: str | None) -> tuple[str, str]:
    """Returns the SQL text and a name for it in messages.

    Raises
    ------
    typer.BadParameter
        Neither or both were given, the file cannot be read, or it is empty.
    """
    found, origin = _read_sql(file, text)
    if not found.strip():
        raise typer.BadParameter(f"there is no statement in {'-c' if text is not None else origin}; write a SELECT or a CREATE")
    return found, origin


def _read_sql(file: str | None, text: str | None) -> tuple[str, str]:
    if (file is None) == (text is None):
        raise typer.BadParameter("give a FILE, - for standard input, or -c 'SQL'")
    if text is not None:
        return text, "command line"
    assert file is not None
    try:
        if file == "-":
            return sys.stdin.read(), "standard input"
        return Path(file).read_text(encoding="utf-8"), file
    except OSError as problem:
        hint = "; give SQL itself with -c" if isinstance(problem, FileNotFoundError) else ""
        raise typer.BadParameter(f"cannot read {file}: {problem.strerror}{hint}") from problem
    except UnicodeDecodeError as problem:
        raise typer.BadParameter(f"cannot read {file}: not UTF-8 text") from problem
