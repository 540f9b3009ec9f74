"""The parts of random queries as texts: inputs, windows, sessions, lists of columns."""

from collections.abc import Sequence
from typing import NamedTuple

from sbon_testbed.random_queries.forms import Expr

QUERIES = 70
"""Number of queries of one seed."""
FORMS_EVERY = 7
"""Every so many queries, a query consists of the next forms in turn, so that all forms occur."""
SIZES = (("1 second", 1_000_000), ("2 seconds", 2_000_000), ("5 seconds", 5_000_000), ("10 s", 10_000_000), ("1500 ms", 1_500_000))
HOPS = (
    ("1 second", 1_000_000, "3 seconds", 3_000_000),
    ("2 s", 2_000_000, "5 s", 5_000_000),
    ("500 ms", 500_000, "2 s", 2_000_000),
    ("5 s", 5_000_000, "10 s", 10_000_000),
)
GAPS = (("1 second", 1_000_000), ("2 s", 2_000_000), ("1250 ms", 1_250_000))


class Query(NamedTuple):
    """One query in both dialects."""

    ours: str
    """The SELECT."""
    duck: str
    kinds: tuple[str, ...]
    """Types of the columns, which are named c0, c1, ..."""
    tolerances: tuple[float, ...]
    shape: str
    before: tuple[tuple[str, str], ...] = ()
    """Views that it needs: pairs of the statement and its SELECT for DuckDB."""
    ordered: bool = False
    """The order of rows matters."""
    late: bool = False
    """Late rows may be left out, independently of each other."""
    used: frozenset[str] = frozenset()
    """Functions in it."""


class Input(NamedTuple):
    """An item of a FROM clause."""

    ours: str
    duck: str
    """A table or a SELECT in brackets."""
    columns: dict[str, str]

    @property
    def is_source(self) -> bool:
        """Tells whether it is a source itself."""
        return self.duck in ("p", "q")


def ties(names: Sequence[str]) -> str:
    """Returns the order of rows that ORDER BY leaves tied: by the other columns, in the order of their names."""
    return ", ".join(f"{name} ASC NULLS LAST" for name in sorted(names))


def tolerance(expr: Expr) -> float:
    """Returns the relative error that a value may have."""
    return 1e-8 if expr.near else 1e-9


def windowed(rows: str, slide: int, size: int) -> str:
    """Returns rows with the bounds of their windows; rows without an event time are in no window."""
    first, last = f"i_floor(epoch_us(ts) - {size}, {slide}) + {slide}", f"i_floor(epoch_us(ts), {slide})"
    starts = f"SELECT *, unnest(generate_series({first}, {last}, {slide})) AS start_us FROM {rows} WHERE ts IS NOT NULL"
    bounds = f"make_timestamp(start_us) AS window_start, make_timestamp(start_us + {size}) AS window_end"
    return f"(SELECT * EXCLUDE (start_us), {bounds} FROM ({starts}))"


def in_sessions(rows: str, gap: int, keys: Sequence[Expr]) -> str:
    """Returns rows with the number of their session within their key; rows without an event time are in no session."""
    partition = f"PARTITION BY {', '.join(key.duck for key in keys)} " if keys else ""
    begins = f"epoch_us(ts) - lag(epoch_us(ts)) OVER ({partition}ORDER BY ts) < {gap}"
    marked = f"SELECT *, CASE WHEN {begins} THEN 0 ELSE 1 END AS begins FROM {rows} WHERE ts IS NOT NULL"
    number = f"sum(begins) OVER ({partition}ORDER BY ts RANGE UNBOUNDED PRECEDING) AS session_number"
    return f"(SELECT * EXCLUDE (begins), {number} FROM ({marked}))"


def columns_of(columns: dict[str, str], prefix: str = "") -> list[Expr]:
    """Returns columns as expressions, from their types by name."""
    return [Expr(prefix + name, prefix + name, kind) for name, kind in columns.items()]


def select(values: Sequence[Expr], ours: str, duck: str) -> Query:
    """Returns the query that selects these values as c0, c1, ... from `ours`, and in DuckDB's dialect from `duck`."""
    listed = [
        ", ".join(f"{text} AS c{place}" for place, text in enumerate(texts))
        for texts in zip(*((v.ours, v.duck) for v in values), strict=True)
    ]
    kinds, tolerances = tuple(value.type for value in values), tuple(map(tolerance, values))
    return Query(f"SELECT {listed[0]}{ours}", f"SELECT {listed[1]}{duck}", kinds, tolerances, "")
