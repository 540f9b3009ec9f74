"""Reads the WITH clause of a source or sink: a connector reads each option with its range; options that it does not read are refused."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

from sbon.errors import ConnectorError

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_LONG = {
    "microsecond": "us",
    "millisecond": "ms",
    "sec": "s",
    "second": "s",
    "min": "m",
    "minute": "m",
    "hour": "h",
    "day": "d",
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


COMMON = {
    "source": ("connector", "nodes", "labels", "idle_after", "estimated_rows_per_second", "profile"),
    "sink": ("connector", "node", "delay_bound", "max_latency", "instances", "after_crash", "on_miss", "shed_fairness"),
}
"""Options of every source and sink, for suggestions after a misspelt option; `sbon/query/options.py` describes them."""


class Options:
    """Options of one source or sink.

    Parameters
    ----------
    what : the connector's name in messages, such as `source rates`
    connector : type of the connector, for messages
    options : names and values, as in the statement
    """

    def __init__(self, what: str, connector: str, options: Iterable[tuple[str, str]]) -> None:
        self.what = what
        self.connector = connector
        self._given = dict(options)
        self._asked: dict[str, None] = {}

    def refuse(self, key: str, value: object, expected: str) -> ConnectorError:
        """Returns an error, in one line, about the value of an option."""
        return ConnectorError(f"{self.what}: option {key} = {value!r}, expected {expected}", option=key)

    def given(self, key: str) -> bool:
        """Tells whether the statement has this option."""
        return key in self._given

    def _take(self, key: str) -> str | None:
        self._asked[key] = None
        return self._given.get(key)

    def text(self, key: str, default: str) -> str:
        """Reads any text."""
        value = self._take(key)
        return default if value is None else value

    def optional(self, key: str) -> str | None:
        """Reads any text; returns None if the option is not given."""
        return self._take(key)

    def required(self, key: str, example: str) -> str:
        """Reads a text that must be given and not empty."""
        value = self._take(key)
        if not value:
            raise ConnectorError(f"{self.what}: connector '{self.connector}' needs option {key}: write {key} = '{example}'", option=key)
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """Reads one of the allowed words."""
        value = self._take(key)
        if value is None:
            return default
        if value.lower() not in allowed:
            raise self.refuse(key, value, f"one of {', '.join(allowed)}")
        return value.lower()

    def flag(self, key: str, default: bool) -> bool:
        """Reads `true` or `false`."""
        return self.choice(key, ("true", "false"), "true" if default else "false") == "true"

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """Reads a whole number within a range."""
        value = self._take(key)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise self.refuse(key, value, f"a whole number from {least} to {most}") from None
        if not least <= number <= most:
            raise self.refuse(key, value, f"a whole number from {least} to {most}")
        return number

    def number(self, key: str, default: float, least: float, most: float) -> float:
        """Reads a number within a range."""
        value = self._take(key)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise self.refuse(key, value, f"a number from {least:g} to {most:g}")
        return number

    def duration_us(self, key: str, default_us: int) -> int:
        """Reads a duration such as `10 s`, `250 ms`, `2 hours`, in microseconds; a bare number is seconds."""
        value = self._take(key)
        if value is None:
            return default_us
        match = _DURATION.fullmatch(value.strip().lower())
        unit = match.group(2) if match else ""
        if unit not in _UNITS_US:
            unit = _LONG.get(unit.removesuffix("s"), "s" if unit == "" else "")
        if match is None or not unit:
            raise self.refuse(key, value, "a span such as '10 s', '250 ms' or '2 hours'")
        return round(float(match.group(1)) * _UNITS_US[unit])

    def words(self, key: str) -> list[str]:
        """Reads a list separated by commas; empty if the option is not given."""
        value = self._take(key)
        if value is None:
            return []
        return [word.strip() for word in value.split(",")]

    def _common(self) -> tuple[str, ...]:
        return COMMON.get(self.what.partition(" ")[0], ())

    def finish(self) -> None:
        """Refuses options that have not been read.

        Raises
        ------
        ConnectorError
            The connector, with its other options, does not have this option.
        """
        for key in sorted(self._given):
            if key not in self._asked:
                near = difflib.get_close_matches(key, (*self._asked, *self._common()), n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(self._asked)}"
                raise ConnectorError(f"{self.what}: option {key} is unknown to connector '{self.connector}'{hint}", option=key)
