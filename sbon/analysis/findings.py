"""The results that a job passes to the report, and the formatting of numbers for people."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import polars as pl

from sbon.analysis.page import Section


class Findings(NamedTuple):
    """One job's part of the report."""

    numbers: dict[str, Any]
    """Plain values for report.json; None where the log does not give a value."""
    section: Section


def percent(value: float | None, digits: int = 1) -> str:
    """Formats a share in per cent."""
    return "unknown" if value is None else f"{value:z,.{digits if abs(value) < 1 else 0}%}"


def figure(value: float | None, unit: str = "") -> str:
    """Formats three significant digits, with thousands separators and unit.

    Examples
    --------
    >>> figure(1234.5, "ms"), figure(0.01234), figure(None)
    ('1,234 ms', '0.0123', '-')
    """
    if value is None:
        return "-"
    text = f"{value:z,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:z.3g}"
    return f"{text} {unit}".rstrip()


def size(value: float | None, unit: str = "B") -> str:
    """Formats bytes with a decimal prefix.

    Examples
    --------
    >>> size(18285), size(4.2e7, "B/s")
    ('18.3 kB', '42 MB/s')
    """
    if value is None:
        return "-"
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:z.3g} {prefix}{unit}"
    return f"{value:z.3g} {unit}"


def count(number: int, one: str, many: str | None = None) -> str:
    """Formats a number with its noun.

    Examples
    --------
    >>> count(1, "crash", "crashes"), count(1200, "row")
    ('1 crash', '1,200 rows')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def clock(moment: datetime) -> str:
    """Formats a time in UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment.second else f"{moment:%Y-%m-%d %H:%M}"


def number(frame: pl.DataFrame, expression: pl.Expr) -> float | None:
    """Returns one figure of a table; None if there are no rows, or no finite value."""
    value = frame.select(expression.alias("value")).item() if frame.height else None
    return None if value is None or value != value else float(value)


def some(names: Sequence[str], most: int = 5) -> str:
    """Lists the first few of some names.

    Examples
    --------
    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
