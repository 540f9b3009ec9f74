"""Shapes of random queries with two inputs: joins and unions."""

from collections.abc import Sequence

from sbon_testbed.random_queries.aggregates import aggregated
from sbon_testbed.random_queries.data import BOOL, FLOAT, INT, INTERVAL, TEXT, TIME
from sbon_testbed.random_queries.draws import Draws
from sbon_testbed.random_queries.forms import Expr
from sbon_testbed.random_queries.parts import SIZES, Input, Query, columns_of, select, windowed

JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


def bound_behind(kind: str, duck: str) -> str:
    """Returns the DuckDB text of a window's bound in a join: taken from the side that keeps all rows."""
    if not duck.startswith("l.window_") or kind in ("JOIN", "LEFT JOIN"):
        return duck
    right = duck.replace("l.", "r.", 1)
    return right if kind == "RIGHT JOIN" else f"coalesce({duck}, {right})"


def interval_join(draws: Draws) -> Query:
    """Joins rows within an interval."""
    left, right = draws.input("p"), draws.input("q")
    if draws.rng.random() < 0.2:
        right = draws.input("p")
    columns = [*columns_of(left.columns, "l."), *columns_of(right.columns, "r.")]
    on = _equality(draws, left, right)
    low, high = draws.one(((0, 1_000_000), (-1_000_000, 1_000_000), (-500_000, 0), (-2_000_000, -250_000), (0, 0)))
    span = f"r.ts BETWEEN l.ts - INTERVAL '{-low} us' AND l.ts + INTERVAL '{high} us'"
    if low < high and draws.rng.random() < 0.4:
        span = f"r.ts >= l.ts + INTERVAL '{low} us' AND r.ts < l.ts + INTERVAL '{high} us'"
        between = f"epoch_us(r.ts) - epoch_us(l.ts) >= {low} AND epoch_us(r.ts) - epoch_us(l.ts) < {high}"
    else:
        between = f"epoch_us(r.ts) - epoch_us(l.ts) BETWEEN {low} AND {high}"
    return _joined(draws, columns, left, right, on, span, between, left.ours, f"{left.duck}", right.ours, f"{right.duck}")


def window_join(draws: Draws) -> Query:
    """Joins rows within a window."""
    left, right = draws.input("p"), draws.input("q")
    columns = [*columns_of(left.columns, "l."), *columns_of(right.columns, "r.")]
    on = _equality(draws, left, right)
    state = draws.rng.bit_generator.state
    ours_left, duck_left = draws.window(left)
    draws.rng.bit_generator.state = state  # draws the same window for the other side
    ours_right, duck_right = draws.window(right)
    return _joined(
        draws,
        [Expr("window_start", "l.window_start", TIME), Expr("window_end", "l.window_end", TIME), *columns],
        left,
        right,
        on,
        "l.window_start = r.window_start",
        "l.window_start = r.window_start",
        ours_left,
        duck_left,
        ours_right,
        duck_right,
    )


def join_of_aggregates(draws: Draws) -> Query:
    """Joins the aggregates of two windows on the window's end and a key."""
    text, size = draws.one(SIZES)
    parts = []
    for table, value in (("p", "SUM(y)"), ("q", "COUNT(*)")):
        source = draws.input(table)
        call = f"SELECT window_end, k, {value} AS total FROM {{}} GROUP BY window_end, k"
        ours = call.format(f"TUMBLE({source.ours}, ts, INTERVAL '{text}')")
        parts.append((f"({ours})", f"({call.format(windowed(source.duck, size, size))})"))
    kind = draws.one(JOINS)
    form = "SELECT l.window_end AS c0, l.k AS c1, l.total AS c2, r.total AS c3 FROM {} AS l {} {} AS r"
    form = f"{form} ON l.window_end = r.window_end AND l.k = r.k"
    ours, duck = (form.format(parts[0][side], kind, parts[1][side]) for side in (0, 1))
    return Query(ours, duck, (TIME, TEXT, FLOAT, INT), (1e-9,) * 4, "")


def union_all(draws: Draws) -> Query:
    """Unites the rows of two queries; whole numbers become floats beside floats."""
    one, other = draws.base("p"), draws.base("q")
    columns = columns_of(one.columns)
    kinds = [draws.one((BOOL, INT, FLOAT, TEXT, TIME, INTERVAL)) for _ in range(3)]
    mine = [draws.scalars(columns).draw(kind, 2) for kind in kinds]
    yours = [draws.scalars(columns).draw(INT if kind == FLOAT else kind, 1) for kind in kinds]
    where = draws.maybe_where(columns, 0.6)
    first, second = (
        select(mine, f" FROM {one.ours}", f" FROM {one.duck}"),
        select(yours, f" FROM {other.ours}{where[0]}", f" FROM {other.duck}{where[1]}"),
    )
    near = tuple(map(max, first.tolerances, second.tolerances))
    return Query(f"{first.ours} UNION ALL {second.ours}", f"{first.duck} UNION ALL {second.duck}", first.kinds, near, "")


def _equality(draws: Draws, left: Input, right: Input) -> tuple[str, str]:
    pairs = [("k", "k"), ("g", "g"), ("b", "b"), ("x", "x"), ("g", "x")]
    one, other = draws.one([pair for pair in pairs if pair[0] in left.columns and pair[1] in right.columns])
    cast = "::DOUBLE" if (one, other) == ("g", "x") else ""
    return f"l.{one} = r.{other}", f"l.{one}{cast} = r.{other}"


def _joined(
    draws: Draws,
    columns: Sequence[Expr],
    left: Input,
    right: Input,
    on: tuple[str, str],
    span: str,
    between: str,
    ours_left: str,
    duck_left: str,
    ours_right: str,
    duck_right: str,
) -> Query:
    kind = draws.one(JOINS)
    columns = [column._replace(duck=bound_behind(kind, column.duck)) for column in columns]
    residual = draws.scalars([c for c in columns if "." in c.ours]).condition() if draws.rng.random() < 0.3 else None
    where = draws.maybe_where(columns, 0.3)
    # A row without an event time, on either side, has no partner.
    more = ("", "") if residual is None else (f" AND {residual.ours}", f" AND ({residual.duck})")
    ours = f" FROM {ours_left} AS l {kind} {ours_right} AS r ON {on[0]} AND {span}{more[0]}{where[0]}"
    timed = [f"(SELECT * FROM {rows} WHERE ts IS NOT NULL)" for rows in (duck_left, duck_right)]
    duck = f" FROM {timed[0]} AS l {kind} {timed[1]} AS r ON {on[1]} AND {between}{more[1]}{where[1]}"
    first = [column for column in columns if column.ours in ("window_start", "l.ts", "l.k", "r.ts", "r.y", "l.i", "r.t")]
    if columns[0].ours != "window_start" or draws.rng.random() < 0.5:
        return select([*first, *draws.values(columns, 2)], ours, duck)
    keys = [columns[0], Expr("l.k", "l.k", TEXT)]
    operands = [("rows", INT, "1"), ("sum", FLOAT, "l.y"), ("max", TIME, "r.ts"), ("count_distinct", INT, "r.g"), ("min", TEXT, "r.t")]
    values = [aggregated(name, kind, text, text, "") for name, kind, text in operands]
    return select([*keys, *values], f"{ours} GROUP BY window_start, l.k", f"{duck} GROUP BY {columns[0].duck}, l.k")
