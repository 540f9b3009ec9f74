"""Shapes of random queries with one input: rows, windows, sessions, first rows, aggregates over rows."""

from sbon_testbed.random_queries.data import BOOL, COLUMNS, FLOAT, INT, TEXT, TIME
from sbon_testbed.random_queries.draws import Draws
from sbon_testbed.random_queries.forms import FORMS, Expr
from sbon_testbed.random_queries.parts import FORMS_EVERY, GAPS, SIZES, Query, columns_of, in_sessions, select, ties, windowed

OVER = (
    ("COUNT(*)", "count(*) OVER", INT),
    ("COUNT(t)", "count(t) OVER", INT),
    ("SUM(g)", "TRY_CAST(sum(g) OVER AS BIGINT)", INT),
    ("SUM(y)", "sum(y) OVER", FLOAT),
    ("AVG(x)", "avg(x) OVER", FLOAT),
    ("AVG(g)", "avg(g) OVER", FLOAT),
    ("MIN(t)", "min(t) OVER", TEXT),
    ("MAX(ts)", "max(ts) OVER", TIME),
    ("MAX(i)", "max(i) OVER", INT),
    ("MIN(x)", "min(one_zero(x)) OVER", FLOAT),
)
"""Aggregates over rows, in both dialects."""


def scalars(draws: Draws) -> Query:
    """Computes expressions of rows; every `FORMS_EVERY` queries the next forms in turn, so that all forms occur."""
    source = draws.input()
    columns = columns_of(source.columns)
    values = draws.values(columns, 4)
    if draws.number % FORMS_EVERY == 0:
        first = draws.place // FORMS_EVERY * len(values)
        values = [draws.scalars(columns).write(FORMS[(first + place) % len(FORMS)], 1) for place in range(len(values))]
    where = draws.maybe_where(columns, 0.6)
    return select(values, f" FROM {source.ours}{where[0]}", f" FROM {source.duck}{where[1]}")


def filters(draws: Draws) -> Query:
    """Selects whole rows by a condition."""
    source = draws.input()
    columns = columns_of(source.columns)
    where = draws.maybe_where(columns, 1.0)
    return select(columns, f" FROM {source.ours}{where[0]}", f" FROM {source.duck}{where[1]}")


def taken_apart(draws: Draws) -> Query:
    """Computes expressions of rows and of the elements of an array."""
    source = draws.input()
    array, element = draws.one((("BIGINT[]", "e"), ("JSON", "CAST(e AS BIGINT)")))
    columns = [*columns_of(source.columns), Expr(element, "e", INT)]
    values = [columns[-1], *draws.values(columns)]
    where = draws.maybe_where(columns, 0.6)
    array = f"CAST('[' || CAST(i AS TEXT) || ',null,-7]' AS {array})"
    numbered = draws.rng.random() < 0.5
    made = " WITH ORDINALITY AS u(e, o)" if numbered else " AS u(e)"
    values += [Expr("o", "o", INT)] * numbered
    ours = f" FROM {source.ours} CROSS JOIN UNNEST({array}){made}{where[0]}"
    return select(values, ours, f" FROM {source.duck}, UNNEST(CASE WHEN i IS NOT NULL THEN [i, NULL, -7] END){made}{where[1]}")


def windows(draws: Draws) -> Query:
    """Aggregates rows by tumbling or hopping window, with HAVING and expressions over them."""
    aggregates, ours, duck, keys = draws.grouped(draws.input())
    plain = [value for value in aggregates if not value.near]
    having = draws.scalars([*keys, *plain]).draw(BOOL, 1, near=False) if draws.rng.random() < 0.3 else None
    if having is not None:
        ours, duck = f"{ours} HAVING {having.ours}", f"{duck} HAVING {having.duck}"
    values = [*keys, *aggregates]
    if draws.rng.random() < 0.5:
        values.append(draws.scalars([*keys, *plain]).draw(draws.one((INT, FLOAT, TEXT)), 1, near=False))
    return select(values, ours, duck)


def sessions(draws: Draws) -> Query:
    """Aggregates rows by session."""
    source = draws.input()
    columns = columns_of(source.columns)
    text, gap = draws.one(GAPS)
    where = draws.maybe_where(columns, 0.3)
    keys = draws.keys(columns)
    bounds = [Expr("window_start", "min(ts)", TIME), Expr("window_end", f"moved(max(ts), {gap})", TIME)]
    listed = ", ".join(key.ours for key in [*bounds, *keys])
    ours = f" FROM SESSION({source.ours}, ts, INTERVAL '{text}'){where[0]} GROUP BY {listed}"
    rows = f"(SELECT * FROM {source.duck}{where[1]})"
    duck = f" FROM {in_sessions(rows, gap, keys)} GROUP BY session_number{''.join(f', {key.duck}' for key in keys)}"
    return select([*bounds, *keys, *draws.aggregates(columns, 4)], ours, duck)


def twice(draws: Draws) -> Query:
    """Aggregates the aggregates of windows."""
    source = draws.input()
    text, size = draws.one(SIZES)
    inner = "SELECT window_end AS e, k, g, SUM(y) AS y, COUNT(*) AS i FROM {} GROUP BY window_end, k, g"
    inner_ours = inner.format(f"TUMBLE({source.ours}, ts, INTERVAL '{text}')")
    inner_duck = inner.format(windowed(source.duck, size, size))
    if draws.rng.random() < 0.5:
        outer = "SELECT e, {0} FROM ({1}){2} GROUP BY e"
        values = "MAX(y) AS c1, SUM(i) AS c2, COUNT(DISTINCT k) AS c3"
        ours = outer.format(values, inner_ours, "").replace("SELECT e,", "SELECT e AS c0,")
        duck = outer.format("one_zero(max(y)), sum(i)::BIGINT, count(DISTINCT k)", inner_duck, " AS inner_rows")
        return Query(ours, duck, (TIME, FLOAT, INT, INT), (1e-9,) * 4, "")
    # Windowed again by the end, the last millisecond or the start of each window.
    time, duck_time = draws.one((("e", "e"), ("window_time", "moved(e, -1000)"), ("window_start", f"moved(e, -{size})")))
    inner_ours = inner_ours.replace("SELECT ", "SELECT window_time, window_start, ", 1)
    again_text, again_us = draws.one((("20 s", 20_000_000), ("3 seconds", 3_000_000)))
    ours = f"SELECT window_start AS c0, g AS c1, AVG(y) AS c2, SUM(i) AS c3 FROM TUMBLE(({inner_ours}), {time}, INTERVAL '{again_text}')"
    ours = f"{ours} GROUP BY window_start, g"
    again = f"(SELECT *, {duck_time} AS ts FROM ({inner_duck}))"
    duck = f"SELECT window_start, g, avg(y), sum(i)::BIGINT FROM {windowed(again, again_us, again_us)} GROUP BY window_start, g"
    return Query(ours, duck, (TIME, INT, FLOAT, INT), (1e-9,) * 4, "")


def rows_of_windows(draws: Draws) -> Query:
    """Selects rows with the bounds of their windows."""
    source = draws.input()
    columns = [Expr("window_start", "window_start", TIME), Expr("window_end", "window_end", TIME), *columns_of(source.columns)]
    ours, duck = draws.window(source)
    # A row without an event time is in no window, and has no bounds.
    duck = f"(SELECT * FROM {duck} UNION ALL SELECT *, NULL, NULL FROM {source.duck} WHERE ts IS NULL)"
    where = draws.maybe_where(columns)
    return select([*columns[:4], *draws.values(columns, 2)], f" FROM {ours}{where[0]}", f" FROM {duck}{where[1]}")


def distinct(draws: Draws) -> Query:
    """Selects each row once in its window."""
    source = draws.input()
    columns = columns_of(source.columns)
    ours, duck = draws.window(source)
    where = draws.maybe_where(columns)
    keys = [Expr("window_start", "window_start", TIME), *(draws.keys(columns) or [Expr("k", "k", TEXT)])]
    made = select(keys, f" FROM {ours}{where[0]}", f" FROM {duck}{where[1]}")
    return made._replace(ours=made.ours.replace("SELECT ", "SELECT DISTINCT ", 1), duck=made.duck.replace("SELECT ", "SELECT DISTINCT ", 1))


def top(draws: Draws) -> Query:
    """Selects the first rows of each window, in order."""
    limit = int(draws.rng.integers(1, 5))
    source = draws.input()
    if draws.rng.random() < 0.5:
        aggregates, ours, duck, keys = draws.grouped(source)
        values = [*keys, *(value for value in aggregates if not value.near)]
        last = [f"c{place}" for place in range(len(keys))]  # keys are unique, so they break all ties
    else:
        plain = ("ts", "k", "y", "x", "g", "t", *(("z",) if source.is_source else ()))
        ours, duck = (f" FROM {rows}" for rows in draws.window(source))
        values = [Expr("window_start", "window_start", TIME), *(value for value in columns_of(source.columns) if value.ours in plain)]
        last = []
    values = [value._replace(duck=f"one_zero({value.duck})") if value.type == FLOAT else value for value in values]
    order = [_order(draws, len(values)) for _ in range(int(draws.rng.integers(1, 3)))]
    made = select(values, ours, duck)
    by = ", ".join([f"c{place} {direction}" for place, direction, _ in order] + last)
    names = {value.ours: f"c{place}" for place, value in enumerate(values)}
    full = ", ".join([f"c{place} {spelt}" for place, _, spelt in order] + [f"{names[name]} ASC NULLS LAST" for name in sorted(names)])
    if last:
        full = ", ".join([f"c{place} {spelt}" for place, _, spelt in order] + [f"{name} ASC NULLS LAST" for name in last])
    ranked = f"SELECT *, row_number() OVER (PARTITION BY c0 ORDER BY {full}) AS place FROM ({made.duck})"
    listed = ", ".join(f"c{place}" for place in range(len(values)))
    duck = f"SELECT {listed} FROM ({ranked}) WHERE place <= {limit} ORDER BY c0, place"
    return made._replace(ours=f"{made.ours} ORDER BY {by} LIMIT {limit}", duck=duck, ordered=True)


def _order(draws: Draws, columns: int) -> tuple[int, str, str]:
    place = int(draws.rng.integers(columns))
    return (
        place,
        *draws.one((("", "ASC NULLS LAST"), ("DESC", "DESC NULLS FIRST"), ("DESC NULLS LAST",) * 2, ("ASC NULLS FIRST",) * 2)),
    )


def numbered(draws: Draws) -> Query:
    """Numbers the first rows of each key in each window."""
    source = draws.input()
    ours, duck = draws.window(source)
    limit = int(draws.rng.integers(1, 4))
    key = draws.one(("k", "g", "b", "x"))
    names = [name for name in ("ts", "k", "g", "b", "x", "y", "z", "t") if name != "z" or source.is_source]
    by, direction, spelt = draws.one([name for name in names if name not in ("k", "g", "b")]), *_order(draws, 1)[1:]
    listed = ", ".join(["window_start", *names])
    number = f"ROW_NUMBER() OVER (PARTITION BY window_start, {key} ORDER BY {by} {direction})"
    ours = f"SELECT {listed}, n FROM (SELECT {listed}, {number} AS n FROM {ours}) WHERE n <= {limit}"
    shown = ", ".join(f"one_zero({name}) AS {name}" if COLUMNS[name] == FLOAT else name for name in names)
    number = f"row_number() OVER (PARTITION BY window_start, {key} ORDER BY {by} {spelt}, {ties(names)})"
    duck = f"SELECT {listed}, n FROM (SELECT *, {number} AS n FROM (SELECT window_start, {shown} FROM {duck})) WHERE n <= {limit}"
    kinds = (TIME, *(COLUMNS[name] for name in names), INT)
    return Query(ours, duck, kinds, (1e-9,) * len(kinds), "")


def deduplicated(draws: Draws) -> Query:
    """Selects the first row of each key in its window, or after a pause."""
    source = draws.input()
    names = [name for name in ("ts", "k", "g", "b", "y", "t", "m") if name in source.columns]
    keys = draws.one((("k",), ("g", "b"), ("k", "g")))
    listed = ", ".join(["window_start", *names])
    if draws.rng.random() < 0.5 or draws.late:
        text, size = draws.one(SIZES)
        call = f"TUMBLE({source.ours}, ts, INTERVAL '{text}')"
        duck = windowed(source.duck, size, size)
    else:
        text, gap = draws.one(GAPS)
        call = f"SESSION({source.ours}, ts, INTERVAL '{text}')"
        exprs = [Expr(key, key, COLUMNS[key]) for key in keys]
        duck = f"(SELECT *, session_number AS window_start FROM {in_sessions(source.duck, gap, exprs)})"
        listed = ", ".join(names)
    partition = ", ".join(["window_start", *keys])
    if draws.rng.random() < 0.5 or "SESSION" in call:
        inner = f"SELECT {listed}, ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY ts) AS n FROM {call}"
        ours = f"SELECT {listed} FROM ({inner}) WHERE n = 1"
    else:
        ours = f"SELECT DISTINCT ON ({partition}) {listed} FROM {call}"
    number = f"row_number() OVER (PARTITION BY {partition} ORDER BY ts, {ties(names)})"
    duck = f"SELECT {listed} FROM (SELECT *, {number} AS n FROM {duck}) WHERE n = 1"
    kinds = tuple(TIME if name == "window_start" else COLUMNS[name] for name in listed.split(", "))
    return Query(ours, duck, kinds, (1e-9,) * len(kinds), "")


def over(draws: Draws) -> Query:
    """Selects rows with aggregates of the rows before them."""
    source = draws.base()
    columns = columns_of(source.columns)
    where = draws.maybe_where(columns)
    partition = draws.one(((), ("k",), ("g", "b"), ("x",)))
    by = f"PARTITION BY {', '.join(partition)} " if partition else ""
    others = ties([name for name in source.columns if name != "ts"])
    values = [column._replace(duck=f"one_zero({column.duck})") if column.type == FLOAT else column for column in columns]
    for ours, duck, kind in (draws.one(OVER), draws.one(OVER)):
        rows = int(draws.rng.integers(0, 6))
        frame = f"ROWS BETWEEN {rows} PRECEDING AND CURRENT ROW"
        over = f"OVER ({by}ORDER BY ts, {others} {frame})"
        values.append(Expr(f"{ours} OVER ({by}ORDER BY ts {frame})", duck.replace("OVER", over), kind))
    rest = f"{where[1]}{' AND' if where[1] else ' WHERE'} ts IS NOT NULL"
    return select(values, f" FROM {source.ours}{where[0]}", f" FROM {source.duck}{rest}")
