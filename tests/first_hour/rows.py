"""Statements that users try in their first hour, listed in the TOML files here, and two small streams to run them on.

Each file holds `[[row]]` tables of one area:

    sql         what a user types: one or more statements, with ; between them
    works       true: the planner accepts the statements
    rows        rows of a SELECT that works, over the streams below, in any order; "NULL" for NULL, times as TOML writes them,
                intervals as text such as "90 s"
    refused     words of the expected error message: what was typed, what is wrong with it, what to write
    hint_works  the proposal of the error message, written out as statements; the planner must accept them
"""

import tomllib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import polars as pl

from sbon.query.catalog import Catalog
from sbon.query.plan import Plan
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, CreateSource, CreateView, DropStatement, SelectQuery, parse
from sbon.query.text import duration_text
from tests.query_worlds import run

FOLDER = Path(__file__).parent
NODES = {"a": {"region": "eu"}, "b": {"region": "us"}}
STREAMS = """
CREATE SOURCE trades (ts TIMESTAMP, symbol TEXT, price DOUBLE, volume BIGINT, note TEXT, ok BOOLEAN,
    WATERMARK FOR ts AS ts - INTERVAL '2 seconds') WITH (connector = 'datagen', nodes = 'a');
CREATE SOURCE quotes (ts TIMESTAMP, symbol TEXT, bid DOUBLE, ask DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'b');
"""
TRADES = (
    # ts, symbol, price, volume, note, ok
    ("2026-01-31 10:00:00", "abc", 10.5, 100, "buy-low-now", True),
    ("2026-01-31 10:00:01.25", "xyz", 20.0, -3, "Äpfel & co", False),
    ("2026-01-31 10:00:12", "abc", 11.0, None, "", None),
    ("2026-02-01 00:00:00", "Q1", None, 7, None, True),
)
QUOTES = (
    # ts, symbol, bid, ask
    ("2026-01-31 10:00:00", "abc", 10.0, 11.0),
    ("2026-01-31 10:00:11", "abc", 10.5, 11.5),
    ("2026-01-31 10:00:13", "xyz", 19.0, 21.0),
)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry: statements and their expected outcome."""

    sql: str
    works: bool = False
    rows: list[list[Any]] | None = None
    refused: list[str] = msgspec.field(default_factory=list)
    hint_works: str = ""

    def __post_init__(self) -> None:
        if self.works == bool(self.refused):
            raise ValueError(f"{self.sql!r}: give either works = true or refused = [words]")
        if (self.rows is not None and not self.works) or (self.hint_works and self.works):
            raise ValueError(f"{self.sql!r}: rows need works = true, hint_works needs refused")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: list[Row]


Answer: TypeAlias = list[list[Any]]


def listed() -> list[tuple[str, Row]]:
    """Returns all entries of all files, each with the name of its area."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        rows = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).row
        found += [(path.stem, row) for row in rows]
    return found


def understood(sql: str) -> Plan | None:
    """Parses and plans all statements in order; returns the plan of the last query."""
    catalog, made = Catalog(), None
    for number, statement in enumerate([*parse(STREAMS), *parse(sql)]):
        match statement:
            case CreateSource():
                source = msgspec.structs.replace(statement.definition, home="a")
                catalog.put("source", statement.name, sql=statement.sql, owner="a", stamp=number, source=source)
            case CreateView():
                plan(statement.query, catalog, NODES, "a", "check")
                catalog.put("view", statement.name, sql=statement.sql, owner="a", stamp=number)
            case SelectQuery() | CreateSink():
                made = plan(statement, catalog, NODES, "a", f"q{number}")
            case DropStatement():
                pass
    return made


def answer(made: Plan) -> Answer:
    """Returns a plan's rows over the streams above, as TOML would write them, sorted."""
    frame = run(made, {"trades": _stream(TRADES, _TRADES_TYPES), "quotes": _stream(QUOTES, _QUOTES_TYPES)})
    return sorted(([_plain(value) for value in row] for row in frame.rows()), key=repr)


_TRADES_TYPES = {"ts": pl.String, "symbol": pl.String, "price": pl.Float64, "volume": pl.Int64, "note": pl.String, "ok": pl.Boolean}
_QUOTES_TYPES = {"ts": pl.String, "symbol": pl.String, "bid": pl.Float64, "ask": pl.Float64}


def _stream(rows: tuple[tuple[Any, ...], ...], types: dict[str, Any]) -> pl.DataFrame:
    hidden = {"_node": "a", "_region": "eu"}
    frame = pl.DataFrame(rows, schema=types, orient="row").with_columns(pl.col("ts").str.to_datetime(time_unit="us"))
    return frame.with_columns(pl.lit(value).alias(name) for name, value in hidden.items())


def _plain(value: Any) -> Any:
    if value is None:
        return "NULL"
    if isinstance(value, timedelta):
        return duration_text(value // timedelta(microseconds=1))
    assert isinstance(value, bool | int | float | str | datetime), value
    return value
