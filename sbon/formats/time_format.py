"""The format of times in rows from outside: the options `time_format` and `time_unit` of a source."""

from __future__ import annotations

import difflib

import msgspec
import polars as pl

from sbon.operators.times import parse_time
from sbon.options import Options

ISO = "iso"
UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_EXPECTED = "iso (the default), or a format of strftime such as '%d/%m/%Y %H:%M:%S%.f'"


class TimeFormat(msgspec.Struct, frozen=True):
    """Format of times in texts, and unit of numbers that are times.

    Option `time_format`: `iso`, the default, is ISO 8601 with `T` or a blank between date and time, with or without a time of day, a
    fraction and a zone (none: UTC). Or a format of strftime, in the spelling of the Rust library chrono (`%.f` is the fraction with its
    point). It must give the year; other missing parts have their first value, such as January. Option `time_unit`: unit of numbers, which
    count from 1970: `s` (default), `ms` or `us`.
    """

    text: str | None = None
    """Format of strftime; None for ISO 8601."""
    unit_us: int = UNITS_US["s"]

    @classmethod
    def read(cls, options: Options) -> TimeFormat:
        """Reads the format from the WITH clause.

        Raises
        ------
        ConnectorError
            `time_format` cannot read any time, or `time_unit` is not a unit.
        """
        given = options.optional("time_format")
        unit_us = UNITS_US[options.choice("time_unit", tuple(UNITS_US), "s")]
        if given is None or given.lower() == ISO:
            return cls(None, unit_us)
        problem = _problem(given)
        if problem:
            raise options.refuse("time_format", given, f"{_EXPECTED}; {problem}")
        return cls(given, unit_us)

    @property
    def shown(self) -> str:
        """Returns the format as messages show it."""
        return ISO if self.text is None else f"'{self.text}'"


def _problem(text: str) -> str:
    """Returns why a format cannot read times; empty if it can."""
    if "%" not in text:
        if text.lower() in UNITS_US or text.lower() in ("epoch", "unix", "timestamp"):
            return "for numbers write time_unit = 's', 'ms' or 'us'"
        near = text.lower().startswith(ISO) or difflib.get_close_matches(text.lower(), [ISO], n=1)
        return "did you mean iso?" if near else "this one has no part that begins with %"
    if "%f" in text:
        return "%f reads digits as nanoseconds: write %.f for a fraction with its point"
    year = 2026
    moment = pl.select(pl.datetime(year, 10, 31, 12, 34, 56, 250_000, time_zone="UTC"))
    try:
        written = moment.select_seq(pl.first().dt.strftime(text)).item()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return "this one has a part that is unknown"
    try:
        read = pl.select(parse_time(pl.lit(written), text)).item()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        read = None
    if read is None:
        return "this one does not read what it writes"
    return "" if read.year == year else "this one lacks the year"
