"""Deliberate differences of our dialect from DuckDB's. `test_differential` runs each entry on both engines."""

from typing import NamedTuple

from sbon_testbed.random_queries.data import BOOL, FLOAT, INT, TEXT, Row, Table

REFUSED = ((),)
"""Stands for the rows of a query that sbon refuses or that fails in DuckDB."""
NAN = float("nan")
_WINDOW = "TUMBLE(e, ts, INTERVAL '1 hour') GROUP BY window_start"


class Choice(NamedTuple):
    """One difference between the dialects."""

    query: str
    """Our query, over source `e` with the rows of `rows()`."""
    kind: str
    """Type of the query's only column."""
    gives: tuple[Row, ...]
    """Rows that our query gives."""
    duckdb: str
    """DuckDB's query."""
    other: tuple[Row, ...]
    """Rows that DuckDB's query gives."""
    reason: str
    stated: str
    """Words of `docs/sql.md` that state the difference."""


def rows() -> Table:
    """Returns source `e`: three unordered rows within one hour, and one row without an event time."""
    found = []
    for time, k, i, x in (
        (3_000_000, "a", 2**63 - 1, NAN),
        (1_000_000, "b", 1, 1.5),
        (2_000_000, "c", None, -0.0),
        (None, "d", None, None),
    ):
        found.append((time, k, None, i, x, None, None, None, None, None, None))
    return Table("e", found)


def _value(ours: str, kind: str, gives: object, duckdb: str, other: object, reason: str, stated: str) -> Choice:
    """Makes the choice for an expression, evaluated on the row with k = 'a'."""
    there = REFUSED if other is REFUSED else ((other,),)
    return Choice(
        f"SELECT {ours} AS c0 FROM e WHERE k = 'a'", kind, ((gives,),), f"SELECT {duckdb} FROM e WHERE k = 'a'", there, reason, stated
    )


def _aggregate(ours: str, kind: str, gives: object, duckdb: str, other: object, reason: str, stated: str) -> Choice:
    """Makes the choice for an aggregate over all rows with an event time."""
    there = REFUSED if other is REFUSED else ((other,),)
    return Choice(
        f"SELECT {ours} AS c0 FROM {_WINDOW}", kind, ((gives,),), f"SELECT {duckdb} FROM e WHERE ts IS NOT NULL", there, reason, stated
    )


_STREAM = "one odd row must not stop a stream"

CHOICES: tuple[Choice, ...] = (
    _value("i + 1", INT, -(2**63), "i + 1", REFUSED, _STREAM, "**Whole numbers** wrap at 64 bits"),
    _value("7 / 2", INT, 3, "7 / 2", 3.5, "as in PostgreSQL", "a quotient of whole numbers is cut toward zero"),
    _value("1.5 / 0.0", FLOAT, None, "1.5::DOUBLE / 0.0::DOUBLE", float("inf"), _STREAM, "a division by zero"),
    _value("1 % 0", INT, None, "1 % 0", REFUSED, _STREAM, "a division by zero"),
    _value("SQRT(-1.5)", FLOAT, None, "sqrt(-1.5)", NAN, _STREAM, "the root of a negative number"),
    _value("LN(0.0)", FLOAT, None, "ln(0.0)", float("-inf"), _STREAM, "the logarithm of a number that is not positive"),
    _value("POWER(-8.0, 0.5)", FLOAT, None, "pow(-8.0, 0.5)", NAN, _STREAM, "a power that is not finite"),
    _value("SIGN(x)", FLOAT, NAN, "sign(x)", 0, "the type stays", "`SIGN` of a float is a float"),
    _value("CAST(x + 2.5 AS BIGINT)", INT, None, "CAST(x + 2.5 AS BIGINT)", REFUSED, _STREAM,
           "a `CAST` that fails give NULL"),
    _value("CAST(k AS BIGINT)", INT, None, "CAST(k AS BIGINT)", REFUSED, _STREAM, "a `CAST` that fails give NULL"),
    _value("CAST(LOWER('1.5') AS BIGINT)", INT, None, "CAST('1.5' AS BIGINT)", 2, "as in PostgreSQL",
           "A `CAST` of a text to a whole number takes digits only"),
    _value("CAST(0.5 + 2 AS BIGINT)", INT, 3, "CAST(2.5::DOUBLE AS BIGINT)", 2, "as `ROUND` does", "halves away from zero"),
    _value("SUBSTR('hello', -1, 4)", TEXT, "he", "substr('hello', -1, 4)", "o", "as in PostgreSQL",
           "positions before the first character count toward the length"),
    _value("UPPER('straße')", TEXT, "STRASSE", "upper('straße')", "STRAẞE", "Unicode's full mapping", "case by Unicode's full mapping"),
    _value("LOWER('İ')", TEXT, "i̇", "lower('İ')", "i", "Unicode's full mapping", "case by Unicode's full mapping"),
    _value("'a%b' LIKE 'a\\%b'", BOOL, True, "'a%b' LIKE 'a\\%b'", False, "as in PostgreSQL", "a backslash escapes in `LIKE`"),
    _value("EXTRACT(second FROM TIMESTAMP '2026-01-01 00:00:01.5')", FLOAT, 1.5,
           "extract('second' FROM TIMESTAMP '2026-01-01 00:00:01.5')", 1,
           "as in PostgreSQL", "`EXTRACT(second ...)` has a fraction"),
    _value("EXTRACT(year FROM TIMESTAMP '9999-12-31' + INTERVAL '2 days')", INT, None,
           "extract('year' FROM TIMESTAMP '9999-12-31' + INTERVAL '2 days')", 10_000,
           "calendars of other programs end there", "outside the years 1 to 9999"),
    _aggregate("SUM(i)", INT, None, "sum(i)", 2**63, "a column has 64 bits", "that does not fit into a `BIGINT` is NULL"),
    _aggregate("MAX(x)", FLOAT, 1.5, "max(x)", NAN, "one NaN must not hide all else",
               "`MIN` and `MAX` also leave out NaN unless all values are NaN"),
    _aggregate("FIRST(k)", TEXT, "b", "first(k)", "a", "the order of arrival is an accident",
               "`FIRST(x)` and `LAST(x)` by event time"),
    _aggregate("APPROX_PERCENTILE(x, 1.0)", FLOAT, 1.5, "quantile_disc(x, 1.0)", NAN, "as `MAX`", "and `PERCENTILE_DISC` leave NaN out"),
    _aggregate("MEDIAN(x)", FLOAT, 0.75, "median(x)", 1.5, "as `MAX`", "`MEDIAN`, `PERCENTILE_CONT` and `PERCENTILE_DISC` leave NaN out"),
    _aggregate("MIN(x)", FLOAT, 0.0, "min(x)", -0.0, "which zero came first is an accident", "zero has no sign"),
    Choice("SELECT window_start IS NULL AS c0 FROM TUMBLE(e, ts, INTERVAL '1 hour')", BOOL, ((False,), (False,), (False,), (True,)),
           "SELECT false FROM e WHERE ts IS NOT NULL", ((False,),) * 3, "no row is dropped in silence",
           "such a row belongs to no window"),
    Choice("SELECT l.k AS c0 FROM e AS l LEFT JOIN e AS r ON l.k = r.k AND r.ts BETWEEN l.ts AND l.ts", TEXT, (("a",), ("b",), ("c",)),
           "SELECT l.k FROM e AS l LEFT JOIN e AS r ON l.k = r.k AND r.ts BETWEEN l.ts AND l.ts", (("a",), ("b",), ("c",), ("d",)),
           "its place in the stream is unknown", "aggregates, joins and first rows leave it out"),
    Choice("SELECT k AS c0 FROM e WHERE 1 = 2", TEXT, REFUSED, "SELECT k FROM e WHERE 1 = 2", (), "it would run for ever for nothing",
           "a query whose conditions are never true"),
    Choice("SELECT CAST('x' AS TIMESTAMP) AS c0 FROM e", TEXT, REFUSED, "SELECT TRY_CAST('x' AS TIMESTAMP) FROM e", ((None,),) * 4,
           "it is a slip", "a literal that is not a time or interval"),
    Choice("SELECT k AS c0 FROM (SELECT k, x, ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY i > 5 DESC) AS n"
           " FROM TUMBLE(e, ts, INTERVAL '1 hour')) WHERE n = 1", TEXT, (("c",),),
           "SELECT k FROM (SELECT k, row_number() OVER (ORDER BY i > 5 DESC) AS n FROM e WHERE ts IS NOT NULL) WHERE n = 1", (("a",),),
           "as in PostgreSQL", "NULLs sort as in PostgreSQL"),
)  # fmt: skip
