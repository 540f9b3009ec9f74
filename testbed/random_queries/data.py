"""Random rows: two streams full of odd values, and the files that an agent reads them from.

A row is on time if it is at most `DELAY_US` behind the greatest event time before it. Late rows, if any, are further behind: an agent drops
them, or counts them if it reads them in one batch with the rows before them. Both answers are right.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

BOOL, INT, FLOAT, TEXT, TIME, INTERVAL = "BOOLEAN", "BIGINT", "DOUBLE", "TEXT", "TIMESTAMP", "INTERVAL"
COLUMNS = {
    "ts": TIME,
    "k": TEXT,
    "g": INT,
    "i": INT,
    "x": FLOAT,
    "y": FLOAT,
    "z": FLOAT,
    "t": TEXT,
    "b": BOOL,
    "m": TIME,
    "d": INTERVAL,
}
"""`ts` is the event time; `k` and `g` have few values; `i`, `z` and `t` have odd values. Sums over `x` and `y` are exact in any order."""

DELAY_US = 3_000_000
ROWS = {"p": 60, "q": 45}
FORMATS = ("csv", "csv", "ndjson", "parquet")
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1)
STARTS = ("2026-03-01T00:00:00", "1969-12-31T23:59:40", "1903-06-30T11:59:58.999999", "1970-01-01T00:00:00", "2016-02-28T23:59:30")

_KEYS = ("a", "b", "é", "", "B", None)
_FLOATS = (0.0, -0.0, 1.5, -2.5, 0.5, 2.0, 1024.25, -7.125, float("nan"), float("inf"), float("-inf"), None)
_ODD_FLOATS = (5e-324, 1.7e308, -1.7e308, 0.1, -0.1, 1e-300, 2.675, 1e16, 9.3e18, -9.223372036854775808e18, 0.49999999999999994, 1e22)
_ODD_INTS = (2**63 - 1, -(2**63), 2**62, -1, 0, 1, 10, -10, 7, 1_000_003, 2**31, -(2**31), 2**53 + 1, None)
_TEXTS = (
    "", " ", "abc", "ABC", "Abc", "ab", "a%b", "a_b", "a\\b", "straße", "ÄÖ", "äö", "日本語", "🎉x", "é", "e\u0301", "  pad ", "12",
    "-5", "+5", "+-5", "1.5", "1e3", "nan", "inf", "true", "F", "yes", "2026-01-01", "2026-01-01T10:11:12.5Z", "1969-12-31 23:59:59",
    "90 s", "1 hour",
    'quo"te', "com,ma", "x\ty", "\u00a0n", "Σας", "İ", "K", "null",
    "9223372036854775808", "-9223372036854775808", "007", "1_0", "0x1F", None,
)  # fmt: skip
_TIMES = (
    "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", "1900-01-01T00:00:00", "2024-02-29T12:34:56.789012", "2020-12-31T23:59:59",
    "2021-01-01T00:00:00", "2019-12-30T00:00:00", "1968-02-29T06:00:00.000001", "0099-03-04T05:06:07", "9999-12-31T23:59:59", None,
)  # fmt: skip
_SPANS = (0, 1, -1, SECOND, -SECOND, 1_500_000, 90 * 60 * SECOND, -7 * 86_400 * SECOND, 30 * 86_400 * SECOND, 999_999, None)
_STEPS = (0, 0, 250_000, 500_000, 1_000_000, 1_000_000, 1_500_000, 2_000_000)

Row: TypeAlias = tuple[Any, ...]
"""A row's values; times and intervals are microseconds."""


class Table(NamedTuple):
    """One stream."""

    name: str
    rows: list[Row]
    late: tuple[int, ...] = ()
    """Indices of the rows that are late."""


class DataSet(NamedTuple):
    """The streams of one seed, and the format in which they are read."""

    seed: int
    format: str
    tables: dict[str, Table]

    @property
    def sink(self) -> str:
        """Returns the format in which answers are written."""
        return ("csv", "ndjson", "csv", "parquet")[self.seed % 4]

    @property
    def late_rows(self) -> int:
        """Returns the number of late rows of all streams, which an agent may drop."""
        return sum(len(table.late) for table in self.tables.values())


def microseconds(text: str) -> int:
    """Returns the microseconds since 1970 of an ISO 8601 time."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def time_text(us: int) -> str:
    """Returns a time in ISO 8601 to the microsecond, with a space between date and time."""
    return (EPOCH + timedelta(microseconds=us)).isoformat(" ", "microseconds")


def make_data(seed: int) -> DataSet:
    """Returns the streams of a seed; every fifth seed has late rows."""
    rng = np.random.default_rng([seed, 0])
    kind = FORMATS[int(rng.integers(len(FORMATS)))]
    start = microseconds(STARTS[int(rng.integers(len(STARTS)))])
    late = seed % 5 == 4
    return DataSet(seed, kind, {name: _table(rng, name, start, rows, kind, late) for name, rows in ROWS.items()})


def _table(rng: np.random.Generator, name: str, start: int, count: int, kind: str, late: bool) -> Table:
    clock = newest = start
    rows: list[Row] = []
    late_at = {int(place) for place in rng.integers(count // 2, count, 2)} if late and name == "p" else set()
    for place in range(count):
        clock += _pick(rng, _STEPS)
        time: int | None = clock + (int(rng.integers(-1, 2)) if rng.random() < 0.1 else 0)
        if rng.random() < 0.3:
            time = max(clock - int(rng.integers(0, DELAY_US + 1)) // 250_000 * 250_000, newest - DELAY_US)
        if place in late_at:
            time = newest - 20 * SECOND
        elif rng.random() < 0.03:
            time = None
        newest = newest if time is None else max(newest, time)
        rows.append((time, *_values(rng, kind)))
    return Table(name, rows, tuple(sorted(late_at)))


def _values(rng: np.random.Generator, kind: str) -> Row:
    def plain(value: float | None) -> float | None:
        """Returns NULL for NaN and the infinities, which NDJSON cannot write."""
        return None if kind == "ndjson" and value is not None and not np.isfinite(value) else value

    number = int(rng.integers(-40, 40)) / 8
    return (
        _pick(rng, _KEYS),
        _pick(rng, (-2, -1, 0, 0, 1, 2, 3, None)),
        _pick(rng, _ODD_INTS) if rng.random() < 0.5 else int(rng.integers(-20, 20)),
        plain(_pick(rng, _FLOATS)),
        number if rng.random() < 0.9 else None,
        plain(_pick(rng, _ODD_FLOATS) if rng.random() < 0.5 else _pick(rng, _FLOATS)),
        _pick(rng, _TEXTS),
        _pick(rng, (True, False, None)),
        None if (at := _pick(rng, _TIMES)) is None else microseconds(at),
        _pick(rng, _SPANS),
    )


def _pick(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


# Files


def write(table: Table, kind: str, path: Path) -> None:
    """Writes the rows to a file."""
    if kind == "parquet":
        frame(table).write_parquet(path)
    elif kind == "ndjson":
        path.write_text("".join(json.dumps(members(row), ensure_ascii=False) + "\n" for row in table.rows), encoding="utf-8")
    else:
        path.write_text("".join(",".join(line) + "\n" for line in [list(COLUMNS), *map(_fields, table.rows)]), encoding="utf-8", newline="")


def frame(table: Table) -> pl.DataFrame:
    """Returns the rows as a frame."""
    types = {
        BOOL: pl.Boolean(),
        INT: pl.Int64(),
        FLOAT: pl.Float64(),
        TEXT: pl.String(),
        TIME: pl.Datetime("us"),
        INTERVAL: pl.Duration("us"),
    }
    columns = {
        name: pl.Series([row[place] for row in table.rows], dtype=pl.Int64 if kind in (TIME, INTERVAL) else types[kind])
        for place, (name, kind) in enumerate(COLUMNS.items())
    }
    return pl.DataFrame({name: column.cast(types[COLUMNS[name]]) for name, column in columns.items()})


def members(row: Row) -> dict[str, Any]:
    """Returns a row as the members of a JSON object, with times and intervals as text."""
    values = dict(zip(COLUMNS, row, strict=True))
    for name, value in values.items():
        if value is not None and COLUMNS[name] == TIME:
            values[name] = time_text(value).replace(" ", "T") + "Z"
        elif value is not None and COLUMNS[name] == INTERVAL:
            values[name] = f"{value / SECOND:.6f}"
    return values


def _fields(row: Row) -> list[str]:
    fields = []
    for value, kind in zip(row, COLUMNS.values(), strict=True):
        if value is None:
            fields.append("")
        elif kind == TEXT:
            fields.append('"{}"'.format(value.replace('"', '""')))
        elif kind == BOOL:
            fields.append("true" if value else "false")
        elif kind == TIME:
            fields.append(time_text(value))
        elif kind == INTERVAL:
            fields.append(f"{value / SECOND:.6f}")
        else:
            fields.append(repr(value))
    return fields
