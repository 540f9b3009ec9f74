"""The streams of the stories, the queries over them, and the required order of their rows.

Event times in both streams are up to DISORDER_MS earlier than their nominal ones, within the watermark, so that hardly any two rows arrive
in the order of their times.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from sbon_testbed.simulator.harness import World

ROWS = 3_000
"""Rows of each stream."""
ROWS_PER_S = 500
DISORDER_MS = 50
BEGIN = datetime(2026, 1, 1)
"""Nominal event time of the streams' first rows."""
EARLIEST = datetime(2025, 1, 1)
"""A time before all rows."""
SETTLED_S = 1.0
"""Seconds of event time after which a query's answers no longer depend on rows from before its start: longer than its windows, sessions and
intervals."""

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = tuple[Row, ...]

_STREAM = f"""
CREATE SOURCE {{name}} (ts TIMESTAMP, i BIGINT, key BIGINT, value DOUBLE,
    WATERMARK FOR ts AS ts - INTERVAL '{DISORDER_MS} milliseconds') WITH (connector = 'datagen', nodes = '{{node}}',
    rows_per_second = {ROWS_PER_S}, rows = {ROWS}, seed = {{seed}}, 'start' = '{BEGIN.isoformat()}',
    disorder = '{DISORDER_MS} milliseconds', fields.i.kind = 'sequence', fields.key.min = 0, fields.key.max = 20);
"""
_VIEW = """
CREATE VIEW w AS SELECT window_end, key, count(*) AS n, sum(value) AS total, max(value) AS top
    FROM TUMBLE(l, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key;
"""


class Query(NamedTuple):
    """One query. The first column of its rows is an event time."""

    select: str
    same: tuple[int, ...] | None = None
    """Columns that define groups of rows that must be in the order of the run on one node; (): all rows; None: the order is not defined."""
    rises: int | None = None
    """A column that never decreases from row to row."""


QUERIES = {
    "windows and a stream": Query(
        "SELECT w.window_end, w.key, w.n, w.top, r.value, r.ts FROM w JOIN r"
        " ON w.key = r.key AND r.ts BETWEEN w.window_end - INTERVAL '100 milliseconds' AND w.window_end"
    ),
    "windows": Query("SELECT window_end, key, n, total FROM w WHERE n > 5", same=(), rises=0),
    "union": Query(
        "SELECT ts, 'l' AS side, i, key, value FROM l WHERE key < 8 UNION ALL SELECT ts, 'r' AS side, i, key, value FROM r WHERE key < 8",
        same=(1,),
    ),
    "left join": Query(
        "SELECT l.ts, l.i, l.key, l.value, r.value AS other FROM l LEFT JOIN r"
        " ON l.key = r.key AND r.ts BETWEEN l.ts - INTERVAL '20 milliseconds' AND l.ts + INTERVAL '20 milliseconds'"
    ),
    "first of each window": Query(
        "SELECT ts, key, i, value FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, key ORDER BY ts) AS n"
        " FROM TUMBLE(l, ts, INTERVAL '200 milliseconds')) WHERE n = 1",
        same=(),
        rises=0,
    ),
    "first after a pause": Query(
        "SELECT DISTINCT ON (window_start, key) ts, key, i, value FROM SESSION(r, ts, INTERVAL '40 milliseconds')", same=(), rises=0
    ),
    "patterns": Query(
        "SELECT at, key, n, first_i, top FROM l MATCH_RECOGNIZE (PARTITION BY key ORDER BY ts, i MEASURES MATCH_ROWTIME() AS at,"
        " COUNT(*) AS n, FIRST(i) AS first_i, MAX(value) AS top AFTER MATCH SKIP TO NEXT ROW PATTERN (a up+ down)"
        " WITHIN INTERVAL '400 milliseconds' DEFINE up AS value > PREV(value), down AS value < PREV(value)) AS m",
        same=(1,),
    ),
    "greatest windows": Query(
        "SELECT window_end, key, n, total FROM (SELECT window_end, key, n, total,"
        " ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY total DESC) AS place FROM w) WHERE place <= 3",
        same=(),
        rises=0,
    ),
    "greatest rows": Query(
        "SELECT window_start, ts, key, i, value, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, key ORDER BY value DESC)"
        " AS n FROM TUMBLE(r, ts, INTERVAL '500 milliseconds')) WHERE n <= 2",
        same=(),
        rises=0,
    ),
    "sessions": Query(
        "SELECT window_start, window_end, key, count(*) AS n, sum(value) AS total, first(i) AS one, last(i) AS other"
        " FROM SESSION(l, ts, INTERVAL '30 milliseconds') GROUP BY window_start, window_end, key",
        same=(),
        rises=1,
    ),
    "join in windows": Query(
        "SELECT x.window_start, x.key, x.i AS a, y.i AS b FROM TUMBLE(l, ts, INTERVAL '50 milliseconds') AS x"
        " JOIN TUMBLE(r, ts, INTERVAL '50 milliseconds') AS y ON x.window_start = y.window_start AND x.key = y.key",
        rises=0,
    ),
    "left join in windows": Query(
        "SELECT x.window_start, x.key, x.i AS a, y.i AS b FROM TUMBLE(l, ts, INTERVAL '50 milliseconds') AS x"
        " LEFT JOIN TUMBLE(r, ts, INTERVAL '50 milliseconds') AS y ON x.window_start = y.window_start AND x.key = y.key",
        rises=0,
    ),
    "filter": Query("SELECT ts, i, key, value * 2 AS twice FROM r WHERE key <> 3", same=()),
}
WITHOUT_KEYS = ("union", "left join", "greatest rows", "filter")
"""Queries none of whose operators can have several instances."""
PAIRS = tuple((tuple(QUERIES)[one], tuple(QUERIES)[one + by]) for by in range(1, len(QUERIES)) for one in range(len(QUERIES) - by))
"""The two queries of each seed; consecutive seeds cover all pairs."""


def sources(left: str, right: str) -> str:
    """Returns the statements that declare both streams, one on each of two nodes, and a view."""
    return _STREAM.format(name="l", node=left, seed=1) + _STREAM.format(name="r", node=right, seed=2) + _VIEW


@cache
def rows_on_one_node(name: str) -> Rows:
    """Returns the rows of a query on a single node, in order."""
    world = World(1, seed=1, settings={"engine": {"batch_interval_s": 0.1}})
    world.start_all()
    world.settle()
    world.submit(sources(world.nodes[0], world.nodes[0]))
    tail = world.tail(world.submit(QUERIES[name].select))
    world.run_until(lambda: tail.finished)
    return normal(tail.rows)


def normal(rows: Sequence[Row]) -> Rows:
    """Returns the rows with cells in one form for all writers: NULL, a number, a naive time, or a text."""
    return tuple(tuple(map(_cell, row)) for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value).replace(tzinfo=None) if len(value) > len("2026-01-01") else value
    except ValueError:
        return value
