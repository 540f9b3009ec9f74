"""Checks patterns against the regular expression engine of polars, whose time is proportional to the length of a text for any pattern."""

import polars as pl

from sbon.errors import QueryError

_HINT = "the syntax is that of Rust's regex, RE2's: no look-around, no back-references"


def check_engine(pattern: str) -> None:
    """Refuses a pattern that the engine cannot read, or whose compiled form is too large.

    Raises
    ------
    QueryError
        The engine refuses the pattern; the message has its reason.
    """
    try:
        pl.select(pl.lit("").str.contains(pattern))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise QueryError(f"pattern '{pattern[:60]}' cannot be read: {_reason(str(error))}", hint=_HINT) from error


def _reason(message: str) -> str:
    lines = [line.strip() for line in message.splitlines()]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0].removeprefix("regex error: "))


def group_count(pattern: str) -> int:
    """Counts the groups of a pattern.

    Raises
    ------
    QueryError
        As from `check_engine`.
    """
    check_engine(pattern)
    found = pl.select(pl.lit("").str.extract_groups(pattern)).to_series().dtype
    return len(found.fields) if isinstance(found, pl.Struct) else 0
