"""Random queries of the whole dialect, each with the text that asks DuckDB the same."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.differential.data import BOOL, COLUMNS, FLOAT, INT, INTERVAL, TEXT, TIME
from tests.differential.expressions import FORMS, Expr, Scalars

QUERIES = 70
"""Of one seed."""
FORMS_EVERY = 7
"""Every so many queries are about the forms whose turn it is."""
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
    """Views that it needs; of each the statement, and its SELECT for DuckDB."""
    ordered: bool = False
    """The order of rows matters."""
    late: bool = False
    """Late rows may be left out, each for itself."""
    used: frozenset[str] = frozenset()
    """Functions in it."""


class Input(NamedTuple):
    """What stands in a FROM."""

    ours: str
    duck: str
    """A table or a SELECT in brackets."""
    columns: dict[str, str]

    @property
    def is_source(self) -> bool:
        """It is a source itself, whose columns have their own names."""
        return self.duck in ("p", "q")


def ties(names: Sequence[str]) -> str:
    """How rows go that the order does not tell apart: by the other columns, in the order of their names."""
    return ", ".join(f"{name} ASC NULLS LAST" for name in sorted(names))


def tolerance(expr: Expr) -> float:
    """How far a value may be off."""
    return 1e-8 if expr.near else 1e-9


class Maker:
    """Draws queries. Names of sources: those of the tables, with `batches` behind them."""

    def __init__(self, seed: int, number: int, late: bool = False) -> None:
        self.rng = np.random.default_rng([seed, 1, number])
        self._late, self._number = late, number
        self._place = seed * QUERIES + number
        self._name = f"v{number}"
        self._before: list[tuple[str, str]] = []
        self._with: list[str] = []
        self._used: set[str] = set()
        self._batches = ("", "2")[int(self.rng.integers(2))]

    def query(self) -> Query:
        """Any query."""
        shapes = [shape for shape in SHAPES if not self._late or shape in LATE_SHAPES]
        shape = "scalars" if self._number % FORMS_EVERY == 0 else shapes[int(self.rng.integers(len(shapes)))]
        made = SHAPES[shape](self)
        ours = f"WITH {', '.join(self._with)} {made.ours}" if self._with else made.ours
        return made._replace(ours=ours, shape=shape, before=tuple(self._before), used=frozenset(self._used), late=self._late)

    # Inputs

    def base(self, table: str = "") -> Input:
        """A source."""
        name = table or ("p" if self._late or self.rng.random() < 0.6 else "q")
        return Input(name + self._batches, name, dict(COLUMNS))

    def input(self, table: str = "") -> Input:
        """A source, or a filter and projection of one, as a subquery, a view or in WITH, or a union."""
        draw = self.rng.random()
        base = self.base(table)
        if draw < 0.5:
            return base
        if draw < 0.65 and not table and not self._late:
            return self._named(self._union())
        scalars = self._scalars(_columns(base.columns))
        where = scalars.condition()
        y, i = scalars.draw(INT, 1), scalars.draw(FLOAT, 1, near=False)
        kept = [name for name in base.columns if name not in ("i", "z")]
        listed = ", ".join(kept)
        ours = f"SELECT {listed}, {y.ours} AS i, {i.ours} AS z FROM {base.ours} WHERE {where.ours}"
        duck = f"SELECT {listed}, {y.duck} AS i, {i.duck} AS z FROM {base.duck} WHERE {where.duck}"
        return self._named(Input(ours, f"({duck})", {**{name: base.columns[name] for name in kept}, "i": INT, "z": FLOAT}))

    def _union(self) -> Input:
        one, other = self.base("p"), self.base("q")
        names = [name for name in COLUMNS if name not in ("i", "z")]
        listed = ", ".join(names)
        parts = [
            f"SELECT {listed}, {{0}} AS i, z FROM {{1}}",
            f"SELECT {listed}, {{0}} AS i, {{2}} AS z FROM {{1}} WHERE NOT (b)",
        ]
        ours = " UNION ALL ".join([parts[0].format("i", one.ours), parts[1].format("g", other.ours, "g")])
        duck = " UNION ALL ".join([parts[0].format("i", one.duck), parts[1].format("g", other.duck, "g::DOUBLE")])
        return Input(ours, f"({duck})", {**{name: COLUMNS[name] for name in names}, "i": INT, "z": FLOAT})

    def _named(self, select: Input) -> Input:
        """A SELECT as something that a FROM and a window can take."""
        draw = self.rng.random()
        if draw < 0.4:
            return select._replace(ours=f"({select.ours})")
        name = f"{self._name}_{len(self._before) + len(self._with)}"
        if draw < 0.7:
            self._before.append((f"CREATE VIEW {name} AS {select.ours}", select.duck))
        else:
            self._with.append(f"{name} AS ({select.ours})")
        return select._replace(ours=name)

    # Parts

    def _scalars(self, columns: Sequence[Expr]) -> Scalars:
        scalars = Scalars(self.rng, columns)
        scalars.used = self._used
        return scalars

    def _one(self, values: Sequence):
        return values[int(self.rng.integers(len(values)))]

    def _maybe_where(self, columns: Sequence[Expr], share: float = 0.4) -> tuple[str, str]:
        if self.rng.random() > share:
            return "", ""
        condition = self._scalars(columns).condition()
        return f" WHERE {condition.ours}", f" WHERE {condition.duck}"

    def _values(self, columns: Sequence[Expr], count: int = 3) -> list[Expr]:
        scalars = self._scalars(columns)
        return [scalars.draw(self._one((BOOL, INT, FLOAT, TEXT, TIME, INTERVAL)), 2) for _ in range(count)]

    def _window(self, source: Input) -> tuple[str, str]:
        """A TUMBLE or HOP over an input, and its rows with bounds in DuckDB."""
        if self.rng.random() < 0.6 or self._late:
            text, size = self._one(SIZES)
            call = f"TUMBLE({source.ours}, ts, INTERVAL '{text}')"
            if self.rng.random() < 0.2:
                call = f"TABLE(TUMBLE(TABLE {source.ours}, DESCRIPTOR(ts), INTERVAL '{text}'))" if source.ours.isidentifier() else call
            return call, windowed(source.duck, size, size)
        slide_text, slide, size_text, size = self._one(HOPS)
        return f"HOP({source.ours}, ts, INTERVAL '{slide_text}', INTERVAL '{size_text}')", windowed(source.duck, slide, size)

    def _keys(self, columns: Sequence[Expr]) -> list[Expr]:
        """What rows are grouped by."""
        found = [Expr(name, name, COLUMNS[name]) for name in ("k", "g", "b") if self.rng.random() < 0.35]
        if self.rng.random() < 0.4:
            found.append(self._scalars(columns).draw(self._one((INT, FLOAT, TEXT, BOOL, TIME, INTERVAL)), 1, near=False))
        unique = {key.ours: key for key in found if any(column.ours in key.ours for column in columns)}
        return [key._replace(duck=f"one_zero({key.duck})") if key.type == FLOAT else key for key in unique.values()]

    def _aggregates(self, columns: Sequence[Expr], count: int) -> list[Expr]:
        return [self._aggregate(columns) for _ in range(count)]

    def _aggregate(self, columns: Sequence[Expr]) -> Expr:
        scalars = self._scalars(columns)
        name = self._one(AGGREGATES)
        self._used.add(name)
        kinds = {"sum": (INT, FLOAT), "avg": (INT, FLOAT), "stddev": (INT, FLOAT), "percentile": (INT, FLOAT)}
        kinds |= dict.fromkeys(("stddev_pop", "var_samp", "var_pop"), (INT, FLOAT)) | dict.fromkeys(
            ("bit_and", "bit_or", "bit_xor"), (INT,)
        )
        kinds |= dict.fromkeys(("median", "percentile_cont"), (INT, FLOAT))
        kinds |= dict.fromkeys(("string_agg", "string_agg_distinct"), (TEXT,))
        kinds |= dict.fromkeys(PAIRED, (FLOAT,)) | {"array_agg": (INT,)}
        kinds |= dict.fromkeys(("count_if", "bool_and", "bool_or"), (BOOL,))
        kind = self._one(kinds.get(name, (INT, FLOAT, TEXT, TIME, INTERVAL)))
        by = self._one((Expr("g", "g", INT), Expr("x", "x", FLOAT), Expr("y", "y", FLOAT), Expr("k", "k", TEXT)))
        operand = self._summed(kind) if kind in (INT, FLOAT) and name in kinds else scalars.draw(kind, 1, near=False)
        if operand.ours == "NULL":
            operand = Expr("i", "i", INT)
        ours, duck, tail = operand.ours, f"({operand.duck})", ""
        if self.rng.random() < 0.25:
            condition = scalars.draw(BOOL, 1, near=False)
            tail, duck = f" FILTER (WHERE {condition.ours})", f"(CASE WHEN {condition.duck} THEN {duck} END)"
            if name == "rows":
                return Expr(f"COUNT(*){tail}", f"count(CASE WHEN {condition.duck} THEN 1 END)", INT)
        if name in PAIRED or name in ("arg_min", "arg_max"):
            return _paired(name, kind, (ours, duck), by if name not in PAIRED or by.type != TEXT else Expr("y", "y", FLOAT), tail)
        return _aggregated(name, kind, ours, duck, tail)

    def _summed(self, kind: str) -> Expr:
        """A number whose sums are exact in any order."""
        if kind == INT:
            return self._one((Expr("g", "g", INT), Expr("i", "i", INT), Expr("(i - g)", "i_sub(i, g)", INT)))
        return self._one(
            (Expr("x", "x", FLOAT), Expr("y", "y", FLOAT), Expr("(x + y)", "(x + y)", FLOAT), Expr("(y * y)", "(y * y)", FLOAT))
        )

    def _grouped(self, source: Input, *, where: bool = True) -> tuple[list[Expr], str, str, list[Expr]]:
        """Columns, then FROM to GROUP BY, of aggregates by window and key; and the keys, bounds first."""
        columns = _columns(source.columns)
        ours, duck = self._window(source)
        condition = self._maybe_where(columns) if where else ("", "")
        keys = [Expr("window_start", "window_start", TIME), *self._keys(columns)]
        if self.rng.random() < 0.5:
            keys.insert(1, Expr("window_end", "window_end", TIME))
        ours = f" FROM {ours}{condition[0]} GROUP BY {', '.join(key.ours for key in keys)}"
        duck = f" FROM {duck}{condition[1]} GROUP BY window_start, window_end, {', '.join(key.duck for key in keys)}"
        return self._aggregates(columns, int(self.rng.integers(2, 7))), ours, duck, keys

    # Shapes

    def scalars(self) -> Query:
        """Expressions of rows; now and then those whose turn it is, so that all forms are there."""
        source = self.input()
        columns = _columns(source.columns)
        values = self._values(columns, 4)
        if self._number % FORMS_EVERY == 0:
            first = self._place // FORMS_EVERY * len(values)
            values = [self._scalars(columns).write(FORMS[(first + place) % len(FORMS)], 1) for place in range(len(values))]
        where = self._maybe_where(columns, 0.6)
        return _select(values, f" FROM {source.ours}{where[0]}", f" FROM {source.duck}{where[1]}")

    def filters(self) -> Query:
        """Whole rows for which a condition holds."""
        source = self.input()
        columns = _columns(source.columns)
        where = self._maybe_where(columns, 1.0)
        return _select(columns, f" FROM {source.ours}{where[0]}", f" FROM {source.duck}{where[1]}")

    def taken_apart(self) -> Query:
        """Expressions of rows and the elements of an array of theirs."""
        source = self.input()
        array, element = self._one((("BIGINT[]", "e"), ("JSON", "CAST(e AS BIGINT)")))
        columns = [*_columns(source.columns), Expr(element, "e", INT)]
        values = [columns[-1], *self._values(columns)]
        where = self._maybe_where(columns, 0.6)
        array = f"CAST('[' || CAST(i AS TEXT) || ',null,-7]' AS {array})"
        ours = f" FROM {source.ours} CROSS JOIN UNNEST({array}) AS u(e){where[0]}"
        return _select(values, ours, f" FROM {source.duck}, UNNEST(CASE WHEN i IS NOT NULL THEN [i, NULL, -7] END) AS u(e){where[1]}")

    def windows(self) -> Query:
        """Aggregates by tumbling or hopping window, with HAVING and expressions over them."""
        aggregates, ours, duck, keys = self._grouped(self.input())
        plain = [value for value in aggregates if not value.near]
        having = self._scalars([*keys, *plain]).draw(BOOL, 1, near=False) if self.rng.random() < 0.3 else None
        if having is not None:
            ours, duck = f"{ours} HAVING {having.ours}", f"{duck} HAVING {having.duck}"
        values = [*keys, *aggregates]
        if self.rng.random() < 0.5:
            values.append(self._scalars([*keys, *plain]).draw(self._one((INT, FLOAT, TEXT)), 1, near=False))
        return _select(values, ours, duck)

    def sessions(self) -> Query:
        """Aggregates by session."""
        source = self.input()
        columns = _columns(source.columns)
        text, gap = self._one(GAPS)
        where = self._maybe_where(columns, 0.3)
        keys = self._keys(columns)
        bounds = [Expr("window_start", "min(ts)", TIME), Expr("window_end", f"moved(max(ts), {gap})", TIME)]
        listed = ", ".join(key.ours for key in [*bounds, *keys])
        ours = f" FROM SESSION({source.ours}, ts, INTERVAL '{text}'){where[0]} GROUP BY {listed}"
        rows = f"(SELECT * FROM {source.duck}{where[1]})"
        duck = f" FROM {in_sessions(rows, gap, keys)} GROUP BY session_number{''.join(f', {key.duck}' for key in keys)}"
        return _select([*bounds, *keys, *self._aggregates(columns, 4)], ours, duck)

    def twice(self) -> Query:
        """Aggregates of the aggregates of windows."""
        source = self.input()
        text, size = self._one(SIZES)
        inner = "SELECT window_end AS e, k, g, SUM(y) AS y, COUNT(*) AS i FROM {} GROUP BY window_end, k, g"
        inner_ours = inner.format(f"TUMBLE({source.ours}, ts, INTERVAL '{text}')")
        inner_duck = inner.format(windowed(source.duck, size, size))
        if self.rng.random() < 0.5:
            outer = "SELECT e, {0} FROM ({1}){2} GROUP BY e"
            values = "MAX(y) AS c1, SUM(i) AS c2, COUNT(DISTINCT k) AS c3"
            ours = outer.format(values, inner_ours, "").replace("SELECT e,", "SELECT e AS c0,")
            duck = outer.format("one_zero(max(y)), sum(i)::BIGINT, count(DISTINCT k)", inner_duck, " AS inner_rows")
            return Query(ours, duck, (TIME, FLOAT, INT, INT), (1e-9,) * 4, "")
        # Windowed again by the end of each window, its last millisecond or its start, which are behind the watermark.
        time, duck_time = self._one((("e", "e"), ("window_time", "moved(e, -1000)"), ("window_start", f"moved(e, -{size})")))
        inner_ours = inner_ours.replace("SELECT ", "SELECT window_time, window_start, ", 1)
        again_text, again_us = self._one((("20 s", 20_000_000), ("3 seconds", 3_000_000)))
        ours = (
            f"SELECT window_start AS c0, g AS c1, AVG(y) AS c2, SUM(i) AS c3 FROM TUMBLE(({inner_ours}), {time}, INTERVAL '{again_text}')"
        )
        ours = f"{ours} GROUP BY window_start, g"
        again = f"(SELECT *, {duck_time} AS ts FROM ({inner_duck}))"
        duck = f"SELECT window_start, g, avg(y), sum(i)::BIGINT FROM {windowed(again, again_us, again_us)} GROUP BY window_start, g"
        return Query(ours, duck, (TIME, INT, FLOAT, INT), (1e-9,) * 4, "")

    def rows_of_windows(self) -> Query:
        """Rows with the bounds of their windows."""
        source = self.input()
        columns = [Expr("window_start", "window_start", TIME), Expr("window_end", "window_end", TIME), *_columns(source.columns)]
        ours, duck = self._window(source)
        # A row without an event time is in no window, and has no bounds.
        duck = f"(SELECT * FROM {duck} UNION ALL SELECT *, NULL, NULL FROM {source.duck} WHERE ts IS NULL)"
        where = self._maybe_where(columns)
        return _select([*columns[:4], *self._values(columns, 2)], f" FROM {ours}{where[0]}", f" FROM {duck}{where[1]}")

    def distinct(self) -> Query:
        """Each row once in its window."""
        source = self.input()
        columns = _columns(source.columns)
        ours, duck = self._window(source)
        where = self._maybe_where(columns)
        keys = [Expr("window_start", "window_start", TIME), *(self._keys(columns) or [Expr("k", "k", TEXT)])]
        made = _select(keys, f" FROM {ours}{where[0]}", f" FROM {duck}{where[1]}")
        return made._replace(
            ours=made.ours.replace("SELECT ", "SELECT DISTINCT ", 1), duck=made.duck.replace("SELECT ", "SELECT DISTINCT ", 1)
        )

    def top(self) -> Query:
        """The first rows of each window, in order."""
        limit = int(self.rng.integers(1, 5))
        source = self.input()
        if self.rng.random() < 0.5:
            aggregates, ours, duck, keys = self._grouped(source)
            values = [*keys, *(value for value in aggregates if not value.near)]
            last = [f"c{place}" for place in range(len(keys))]  # a group is alone with its keys
        else:
            plain = ("ts", "k", "y", "x", "g", "t", *(("z",) if source.is_source else ()))
            ours, duck = (f" FROM {rows}" for rows in self._window(source))
            values = [Expr("window_start", "window_start", TIME), *(value for value in _columns(source.columns) if value.ours in plain)]
            last = []
        values = [value._replace(duck=f"one_zero({value.duck})") if value.type == FLOAT else value for value in values]
        order = [self._order(len(values)) for _ in range(int(self.rng.integers(1, 3)))]
        made = _select(values, ours, duck)
        by = ", ".join([f"c{place} {direction}" for place, direction, _ in order] + last)
        names = {value.ours: f"c{place}" for place, value in enumerate(values)}
        full = ", ".join([f"c{place} {spelt}" for place, _, spelt in order] + [f"{names[name]} ASC NULLS LAST" for name in sorted(names)])
        if last:
            full = ", ".join([f"c{place} {spelt}" for place, _, spelt in order] + [f"{name} ASC NULLS LAST" for name in last])
        ranked = f"SELECT *, row_number() OVER (PARTITION BY c0 ORDER BY {full}) AS place FROM ({made.duck})"
        listed = ", ".join(f"c{place}" for place in range(len(values)))
        duck = f"SELECT {listed} FROM ({ranked}) WHERE place <= {limit} ORDER BY c0, place"
        return made._replace(ours=f"{made.ours} ORDER BY {by} LIMIT {limit}", duck=duck, ordered=True)

    def _order(self, columns: int) -> tuple[int, str, str]:
        place = int(self.rng.integers(columns))
        return (
            place,
            *self._one((("", "ASC NULLS LAST"), ("DESC", "DESC NULLS FIRST"), ("DESC NULLS LAST",) * 2, ("ASC NULLS FIRST",) * 2)),
        )

    def numbered(self) -> Query:
        """The first rows of each key in each window, numbered."""
        source = self.input()
        ours, duck = self._window(source)
        limit = int(self.rng.integers(1, 4))
        key = self._one(("k", "g", "b", "x"))
        names = [name for name in ("ts", "k", "g", "b", "x", "y", "z", "t") if name != "z" or source.is_source]
        by, direction, spelt = self._one([name for name in names if name not in ("k", "g", "b")]), *self._order(1)[1:]
        listed = ", ".join(["window_start", *names])
        number = f"ROW_NUMBER() OVER (PARTITION BY window_start, {key} ORDER BY {by} {direction})"
        ours = f"SELECT {listed}, n FROM (SELECT {listed}, {number} AS n FROM {ours}) WHERE n <= {limit}"
        shown = ", ".join(f"one_zero({name}) AS {name}" if COLUMNS[name] == FLOAT else name for name in names)
        number = f"row_number() OVER (PARTITION BY window_start, {key} ORDER BY {by} {spelt}, {ties(names)})"
        duck = f"SELECT {listed}, n FROM (SELECT *, {number} AS n FROM (SELECT window_start, {shown} FROM {duck})) WHERE n <= {limit}"
        kinds = (TIME, *(COLUMNS[name] for name in names), INT)
        return Query(ours, duck, kinds, (1e-9,) * len(kinds), "")

    def deduplicated(self) -> Query:
        """The first row of each key in its window, or behind a pause."""
        source = self.input()
        names = [name for name in ("ts", "k", "g", "b", "y", "t", "m") if name in source.columns]
        keys = self._one((("k",), ("g", "b"), ("k", "g")))
        listed = ", ".join(["window_start", *names])
        if self.rng.random() < 0.5 or self._late:
            text, size = self._one(SIZES)
            call = f"TUMBLE({source.ours}, ts, INTERVAL '{text}')"
            duck = windowed(source.duck, size, size)
        else:
            text, gap = self._one(GAPS)
            call = f"SESSION({source.ours}, ts, INTERVAL '{text}')"
            exprs = [Expr(key, key, COLUMNS[key]) for key in keys]
            duck = f"(SELECT *, session_number AS window_start FROM {in_sessions(source.duck, gap, exprs)})"
            listed = ", ".join(names)
        partition = ", ".join(["window_start", *keys])
        if self.rng.random() < 0.5 or "SESSION" in call:
            inner = f"SELECT {listed}, ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY ts) AS n FROM {call}"
            ours = f"SELECT {listed} FROM ({inner}) WHERE n = 1"
        else:
            ours = f"SELECT DISTINCT ON ({partition}) {listed} FROM {call}"
        number = f"row_number() OVER (PARTITION BY {partition} ORDER BY ts, {ties(names)})"
        duck = f"SELECT {listed} FROM (SELECT *, {number} AS n FROM {duck}) WHERE n = 1"
        kinds = tuple(TIME if name == "window_start" else COLUMNS[name] for name in listed.split(", "))
        return Query(ours, duck, kinds, (1e-9,) * len(kinds), "")

    def interval_join(self) -> Query:
        """Pairs, or left rows with NULLs, within an interval."""
        left, right = self.input("p"), self.input("q")
        if self.rng.random() < 0.2:
            right = self.input("p")
        columns = [*_columns(left.columns, "l."), *_columns(right.columns, "r.")]
        on = self._equality(left, right)
        low, high = self._one(((0, 1_000_000), (-1_000_000, 1_000_000), (-500_000, 0), (-2_000_000, -250_000), (0, 0)))
        span = f"r.ts BETWEEN l.ts - INTERVAL '{-low} us' AND l.ts + INTERVAL '{high} us'"
        if low < high and self.rng.random() < 0.4:
            span = f"r.ts >= l.ts + INTERVAL '{low} us' AND r.ts < l.ts + INTERVAL '{high} us'"
            between = f"epoch_us(r.ts) - epoch_us(l.ts) >= {low} AND epoch_us(r.ts) - epoch_us(l.ts) < {high}"
        else:
            between = f"epoch_us(r.ts) - epoch_us(l.ts) BETWEEN {low} AND {high}"
        return self._joined(columns, left, right, on, span, between, left.ours, f"{left.duck}", right.ours, f"{right.duck}")

    def window_join(self) -> Query:
        """Pairs, or rows of either side with NULLs, within a window."""
        left, right = self.input("p"), self.input("q")
        columns = [*_columns(left.columns, "l."), *_columns(right.columns, "r.")]
        on = self._equality(left, right)
        state = self.rng.bit_generator.state
        ours_left, duck_left = self._window(left)
        self.rng.bit_generator.state = state  # the same window once more
        ours_right, duck_right = self._window(right)
        return self._joined(
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

    def over(self) -> Query:
        """Rows with aggregates of those before them."""
        source = self.base()
        columns = _columns(source.columns)
        where = self._maybe_where(columns)
        partition = self._one(((), ("k",), ("g", "b"), ("x",)))
        by = f"PARTITION BY {', '.join(partition)} " if partition else ""
        others = ties([name for name in source.columns if name != "ts"])
        values = [column._replace(duck=f"one_zero({column.duck})") if column.type == FLOAT else column for column in columns]
        for ours, duck, kind in (self._one(OVER), self._one(OVER)):
            rows = int(self.rng.integers(0, 6))
            frame = f"ROWS BETWEEN {rows} PRECEDING AND CURRENT ROW"
            over = f"OVER ({by}ORDER BY ts, {others} {frame})"
            values.append(Expr(f"{ours} OVER ({by}ORDER BY ts {frame})", duck.replace("OVER", over), kind))
        rest = f"{where[1]}{' AND' if where[1] else ' WHERE'} ts IS NOT NULL"
        return _select(values, f" FROM {source.ours}{where[0]}", f" FROM {source.duck}{rest}")

    def _equality(self, left: Input, right: Input) -> tuple[str, str]:
        pairs = [("k", "k"), ("g", "g"), ("b", "b"), ("x", "x"), ("g", "x")]
        one, other = self._one([pair for pair in pairs if pair[0] in left.columns and pair[1] in right.columns])
        cast = "::DOUBLE" if (one, other) == ("g", "x") else ""
        return f"l.{one} = r.{other}", f"l.{one}{cast} = r.{other}"

    def _joined(
        self,
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
        kind = self._one(JOINS)
        columns = [column._replace(duck=_bound_behind(kind, column.duck)) for column in columns]
        residual = self._scalars([c for c in columns if "." in c.ours]).condition() if self.rng.random() < 0.3 else None
        where = self._maybe_where(columns, 0.3)
        # A row without an event time, of either side, is in no interval.
        more = ("", "") if residual is None else (f" AND {residual.ours}", f" AND ({residual.duck})")
        ours = f" FROM {ours_left} AS l {kind} {ours_right} AS r ON {on[0]} AND {span}{more[0]}{where[0]}"
        timed = [f"(SELECT * FROM {rows} WHERE ts IS NOT NULL)" for rows in (duck_left, duck_right)]
        duck = f" FROM {timed[0]} AS l {kind} {timed[1]} AS r ON {on[1]} AND {between}{more[1]}{where[1]}"
        first = [column for column in columns if column.ours in ("window_start", "l.ts", "l.k", "r.ts", "r.y", "l.i", "r.t")]
        if columns[0].ours != "window_start" or self.rng.random() < 0.5:
            return _select([*first, *self._values(columns, 2)], ours, duck)
        keys = [columns[0], Expr("l.k", "l.k", TEXT)]
        operands = [("rows", INT, "1"), ("sum", FLOAT, "l.y"), ("max", TIME, "r.ts"), ("count_distinct", INT, "r.g"), ("min", TEXT, "r.t")]
        values = [_aggregated(name, kind, text, text, "") for name, kind, text in operands]
        return _select([*keys, *values], f"{ours} GROUP BY window_start, l.k", f"{duck} GROUP BY {columns[0].duck}, l.k")

    def join_of_aggregates(self) -> Query:
        """What windows give, joined on the window's end and a key."""
        text, size = self._one(SIZES)
        parts = []
        for table, value in (("p", "SUM(y)"), ("q", "COUNT(*)")):
            source = self.input(table)
            call = f"SELECT window_end, k, {value} AS total FROM {{}} GROUP BY window_end, k"
            ours = call.format(f"TUMBLE({source.ours}, ts, INTERVAL '{text}')")
            parts.append((f"({ours})", f"({call.format(windowed(source.duck, size, size))})"))
        kind = self._one(JOINS)
        form = "SELECT l.window_end AS c0, l.k AS c1, l.total AS c2, r.total AS c3 FROM {} AS l {} {} AS r"
        form = f"{form} ON l.window_end = r.window_end AND l.k = r.k"
        ours, duck = (form.format(parts[0][side], kind, parts[1][side]) for side in (0, 1))
        return Query(ours, duck, (TIME, TEXT, FLOAT, INT), (1e-9,) * 4, "")

    def union_all(self) -> Query:
        """Rows of two queries, whole numbers widened beside floats."""
        one, other = self.base("p"), self.base("q")
        columns = _columns(one.columns)
        kinds = [self._one((BOOL, INT, FLOAT, TEXT, TIME, INTERVAL)) for _ in range(3)]
        mine = [self._scalars(columns).draw(kind, 2) for kind in kinds]
        yours = [self._scalars(columns).draw(INT if kind == FLOAT else kind, 1) for kind in kinds]
        where = self._maybe_where(columns, 0.6)
        first, second = (
            _select(mine, f" FROM {one.ours}", f" FROM {one.duck}"),
            _select(yours, f" FROM {other.ours}{where[0]}", f" FROM {other.duck}{where[1]}"),
        )
        near = tuple(map(max, first.tolerances, second.tolerances))
        return Query(f"{first.ours} UNION ALL {second.ours}", f"{first.duck} UNION ALL {second.duck}", first.kinds, near, "")


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

AGGREGATES = (
    "rows",
    "count",
    "count",
    "sum",
    "sum",
    "min",
    "max",
    "avg",
    "stddev",
    "count_distinct",
    "first",
    "last",
    "approx_distinct",
    "percentile",
    "count_if",
    "bool_and",
    "bool_or",
    "any_value",
    "stddev_pop",
    "var_samp",
    "var_pop",
    "bit_and",
    "bit_or",
    "bit_xor",
    "arg_min",
    "arg_max",
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_slope",
    "regr_intercept",
    "median",
    "percentile_cont",
    "percentile_disc",
    "string_agg",
    "string_agg_distinct",
    "array_agg",
)

PAIRED = ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept")
"""Aggregates of pairs of numbers."""

SHAPES: dict[str, Callable[[Maker], Query]] = {
    "scalars": Maker.scalars,
    "filters": Maker.filters,
    "taken_apart": Maker.taken_apart,
    "windows": Maker.windows,
    "sessions": Maker.sessions,
    "twice": Maker.twice,
    "rows_of_windows": Maker.rows_of_windows,
    "distinct": Maker.distinct,
    "top": Maker.top,
    "numbered": Maker.numbered,
    "deduplicated": Maker.deduplicated,
    "interval_join": Maker.interval_join,
    "window_join": Maker.window_join,
    "over": Maker.over,
    "join_of_aggregates": Maker.join_of_aggregates,
    "union_all": Maker.union_all,
}
LATE_SHAPES = ("scalars", "filters", "windows", "distinct", "numbered", "deduplicated")


JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


def _bound_behind(kind: str, duck: str) -> str:
    """A bound of the windows of a join, as DuckDB has it: that of the side that keeps all rows."""
    if not duck.startswith("l.window_") or kind in ("JOIN", "LEFT JOIN"):
        return duck
    right = duck.replace("l.", "r.", 1)
    return right if kind == "RIGHT JOIN" else f"coalesce({duck}, {right})"


def windowed(rows: str, slide: int, size: int) -> str:
    """Rows with the bounds of the windows that they lie in; those without an event time lie in none."""
    first, last = f"i_floor(epoch_us(ts) - {size}, {slide}) + {slide}", f"i_floor(epoch_us(ts), {slide})"
    starts = f"SELECT *, unnest(generate_series({first}, {last}, {slide})) AS start_us FROM {rows} WHERE ts IS NOT NULL"
    bounds = f"make_timestamp(start_us) AS window_start, make_timestamp(start_us + {size}) AS window_end"
    return f"(SELECT * EXCLUDE (start_us), {bounds} FROM ({starts}))"


def in_sessions(rows: str, gap: int, keys: Sequence[Expr]) -> str:
    """Rows with the number of their session within their key; those without an event time are in none."""
    partition = f"PARTITION BY {', '.join(key.duck for key in keys)} " if keys else ""
    begins = f"epoch_us(ts) - lag(epoch_us(ts)) OVER ({partition}ORDER BY ts) < {gap}"
    marked = f"SELECT *, CASE WHEN {begins} THEN 0 ELSE 1 END AS begins FROM {rows} WHERE ts IS NOT NULL"
    number = f"sum(begins) OVER ({partition}ORDER BY ts RANGE UNBOUNDED PRECEDING) AS session_number"
    return f"(SELECT * EXCLUDE (begins), {number} FROM ({marked}))"


def _columns(columns: dict[str, str], prefix: str = "") -> list[Expr]:
    return [Expr(prefix + name, prefix + name, kind) for name, kind in columns.items()]


def _select(values: Sequence[Expr], ours: str, duck: str) -> Query:
    listed = [
        ", ".join(f"{text} AS c{place}" for place, text in enumerate(texts))
        for texts in zip(*((v.ours, v.duck) for v in values), strict=True)
    ]
    kinds, tolerances = tuple(value.type for value in values), tuple(map(tolerance, values))
    return Query(f"SELECT {listed[0]}{ours}", f"SELECT {listed[1]}{duck}", kinds, tolerances, "")


def _paired(name: str, kind: str, operand: tuple[str, str], by: Expr, tail: str) -> Expr:
    """An aggregate of two operands, of pairs that are both there."""
    ours, duck = operand
    text = f"{name.upper()}({ours}, {by.ours}){tail}"
    if name in PAIRED:
        x, y = f"({duck})::DOUBLE", f"({by.duck})::DOUBLE"
        odd = f"NOT isfinite({x}) OR NOT isfinite({y})"
        there, least = f"{x} IS NOT NULL AND {y} IS NOT NULL", 1 if name == "covar_pop" else 2
        fine = f"{there} AND isfinite({x}) AND isfinite({y})"
        value = f"{name}({x}, {y}) FILTER (WHERE {fine})"
        if name not in ("covar_pop", "covar_samp"):  # there is no line through one point, nor through points above each other
            same = f"max({y}) FILTER (WHERE {fine}) = min({y}) FILTER (WHERE {fine})"
            same += f" OR max({x}) FILTER (WHERE {fine}) = min({x}) FILTER (WHERE {fine})" if name == "corr" else ""
            value = f"CASE WHEN NOT ({same}) THEN {value} END"
        many = f"count(*) FILTER (WHERE {there}) >= {least}"
        return Expr(text, f"CASE WHEN {many} THEN CASE WHEN bool_or({odd}) FILTER (WHERE {there}) THEN 'nan'::DOUBLE ELSE {value} END END",
                    FLOAT, near=True)  # fmt: skip
    zero = f"one_zero({duck})" if kind == FLOAT else duck
    key = f"one_zero({by.duck})" if by.type == FLOAT else by.duck
    nan = f"isnan({by.duck})" if by.type == FLOAT else "false"
    way = "" if name == "arg_min" else " DESC"
    there = f"FILTER (WHERE {duck} IS NOT NULL AND {by.duck} IS NOT NULL)"
    return Expr(text, f"(list({zero} ORDER BY {nan}, {key}{way}, {zero}{way}) {there})[1]", kind)


def _aggregated(name: str, kind: str, ours: str, duck: str, tail: str) -> Expr:
    """An aggregate; `duck` is the operand with its FILTER worked in."""
    zero = f"one_zero({duck})" if kind == FLOAT else duck
    there = f"FILTER (WHERE {duck} IS NOT NULL)"
    match name:
        case "rows":
            return Expr(f"COUNT(*){tail}", "count(*)", INT)
        case "count":
            return Expr(f"COUNT({ours}){tail}", f"count({duck})", INT)
        case "count_distinct":
            return Expr(f"COUNT(DISTINCT {ours}){tail}", f"count(DISTINCT {zero})", INT)
        case "approx_distinct":
            return Expr(f"APPROX_COUNT_DISTINCT({ours}){tail}", f"count(DISTINCT {zero})", INT)
        case "sum" if kind == INT:
            return Expr(f"SUM({ours}){tail}", f"TRY_CAST(sum({duck}) AS BIGINT)", INT)
        case "sum":
            return Expr(f"SUM({ours}){tail}", f"sum({duck})", FLOAT)
        case "avg":
            return Expr(f"AVG({ours}){tail}", f"avg({duck})", FLOAT)
        case "stddev" | "stddev_pop" | "var_samp" | "var_pop":
            real = f"({duck})::DOUBLE"
            least = 1 if name.endswith("pop") else 2
            odd = f"CASE WHEN count({duck}) >= {least} AND bool_or(NOT isfinite({real})) THEN 'nan'::DOUBLE"
            there = "stddev_samp" if name == "stddev" else name
            return Expr(
                f"{name.upper()}({ours}){tail}", f"{odd} ELSE {there}(CASE WHEN isfinite({real}) THEN {real} END) END", FLOAT, near=True
            )
        case "median" | "percentile_cont":
            finite = f"CASE WHEN isfinite(({duck})::DOUBLE) THEN ({duck})::DOUBLE END"
            kept = f"CASE WHEN abs({ours}) < 1e300 THEN {ours} END"
            if name == "median":
                return Expr(f"MEDIAN({kept}){tail}", f"median({finite})", FLOAT, near=True)
            text = f"PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY {kept}){tail}"
            return Expr(text, f"quantile_cont({finite}, 0.9)", FLOAT, near=True)
        case "percentile_disc":
            plain = f"CASE WHEN NOT isnan({zero}) THEN {zero} END" if kind == FLOAT else zero
            return Expr(f"QUANTILE_DISC({ours}, 0.3){tail}", f"quantile_disc({plain}, 0.3)", kind)
        case "string_agg":
            text = f"STRING_AGG({ours}, '; '){tail}"
            return Expr(text, f"string_agg({duck}, '; ' ORDER BY ts, {duck})", TEXT)
        case "array_agg":
            if tail:
                tail = f"{tail.replace('(WHERE ', '(WHERE (', 1)[:-1]}) AND ({ours}) IS NOT NULL)"
            elements = f"list({duck} ORDER BY ts, coalesce({duck}::TEXT, 'null')) {there if tail else ''}"
            return Expr(f"CAST(ARRAY_AGG({ours}){tail} AS TEXT)", f"to_json({elements})::TEXT", TEXT)
        case "string_agg_distinct":
            text = f"LISTAGG(DISTINCT {ours}, ','){tail}"
            return Expr(text, f"array_to_string(list_sort(list(DISTINCT {duck}) FILTER (WHERE {duck} IS NOT NULL)), ',')", TEXT)
        case "bit_and" | "bit_or" | "bit_xor":
            return Expr(f"{name.upper()}({ours}){tail}", f"{name}({duck})", INT)
        case "percentile":
            return Expr(
                f"APPROX_PERCENTILE({ours}, 0.5){tail}",
                f"quantile_disc(CASE WHEN NOT isnan(({duck})::DOUBLE) THEN ({duck})::DOUBLE END, 0.5)",
                FLOAT,
                near=True,
            )
        case "min" | "max" if kind == FLOAT:
            plain = f"CASE WHEN NOT isnan({zero}) THEN {zero} END"
            return Expr(f"{name.upper()}({ours}){tail}", f"coalesce({name}({plain}), {name}({zero}))", FLOAT)
        case "min" | "max":
            return Expr(f"{name.upper()}({ours}){tail}", f"{name}({duck})", kind)
        case "count_if":
            return Expr(f"COUNT_IF({ours}){tail}", f"count(*) FILTER (WHERE {duck})", INT)
        case "bool_and" | "bool_or":
            return Expr(f"{name.upper()}({ours}){tail}", f"{name}({duck})", BOOL)
        case "any_value":
            return _aggregated("min", kind, ours, duck, tail)._replace(ours=f"ANY_VALUE({ours}){tail}")
        case "first":
            return Expr(f"FIRST({ours}){tail}", f"(list({zero} ORDER BY ts, {zero}) {there})[1]", kind)
        case _:
            return Expr(f"LAST({ours}){tail}", f"(list({zero} ORDER BY ts DESC, {zero} DESC) {there})[1]", kind)
