"""Draws the parts of one random query from its seed: inputs, conditions, windows, keys, aggregates."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sbon_testbed.random_queries.aggregates import AGGREGATES, PAIRED, aggregated, paired
from sbon_testbed.random_queries.data import BOOL, COLUMNS, FLOAT, INT, INTERVAL, TEXT, TIME
from sbon_testbed.random_queries.forms import Expr
from sbon_testbed.random_queries.parts import HOPS, QUERIES, SIZES, Input, Query, columns_of, windowed
from sbon_testbed.random_queries.scalars import Scalars

T = TypeVar("T")

KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "avg", "stddev", "stddev_pop", "var_samp", "var_pop", "percentile", "median", "percentile_cont"), (INT, FLOAT)),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor", "array_agg"), (INT,)),
    **dict.fromkeys(("string_agg", "string_agg_distinct"), (TEXT,)),
    **dict.fromkeys(PAIRED, (FLOAT,)),
    **dict.fromkeys(("count_if", "bool_and", "bool_or"), (BOOL,)),
}
"""Types that an aggregate takes; any type if it is not listed."""


class Draws:
    """Draws the parts of one query. Sources have the tables' names, followed by `2` if they are read in batches of two rows."""

    def __init__(self, seed: int, number: int, late: bool = False) -> None:
        self.rng = np.random.default_rng([seed, 1, number])
        self.late, self.number = late, number
        self.place = seed * QUERIES + number
        self._name = f"v{number}"
        self._before: list[tuple[str, str]] = []
        self._with: list[str] = []
        self._used: set[str] = set()
        self._batches = ("", "2")[int(self.rng.integers(2))]

    def finished(self, made: Query, shape: str) -> Query:
        """Returns the query with the views, WITH clauses and functions that were drawn for it."""
        ours = f"WITH {', '.join(self._with)} {made.ours}" if self._with else made.ours
        return made._replace(ours=ours, shape=shape, before=tuple(self._before), used=frozenset(self._used), late=self.late)

    # Inputs

    def base(self, table: str = "") -> Input:
        """Draws a source."""
        name = table or ("p" if self.late or self.rng.random() < 0.6 else "q")
        return Input(name + self._batches, name, dict(COLUMNS))

    def input(self, table: str = "") -> Input:
        """Draws a source, a filter and projection of a source, or a union; the last two as a subquery, a view or in WITH."""
        draw = self.rng.random()
        base = self.base(table)
        if draw < 0.5:
            return base
        if draw < 0.65 and not table and not self.late:
            return self._named(self._union())
        scalars = self.scalars(columns_of(base.columns))
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
        """Returns a SELECT as a subquery, a view or a WITH clause, which FROM and windows accept."""
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

    def scalars(self, columns: Sequence[Expr]) -> Scalars:
        scalars = Scalars(self.rng, columns)
        scalars.used = self._used
        return scalars

    def one(self, values: Sequence[T]) -> T:
        return values[int(self.rng.integers(len(values)))]

    def maybe_where(self, columns: Sequence[Expr], share: float = 0.4) -> tuple[str, str]:
        if self.rng.random() > share:
            return "", ""
        condition = self.scalars(columns).condition()
        return f" WHERE {condition.ours}", f" WHERE {condition.duck}"

    def values(self, columns: Sequence[Expr], count: int = 3) -> list[Expr]:
        scalars = self.scalars(columns)
        return [scalars.draw(self.one((BOOL, INT, FLOAT, TEXT, TIME, INTERVAL)), 2) for _ in range(count)]

    def window(self, source: Input) -> tuple[str, str]:
        """Draws a TUMBLE or HOP over an input; returns its text, and the DuckDB text of the rows with their windows' bounds."""
        if self.rng.random() < 0.6 or self.late:
            text, size = self.one(SIZES)
            call = f"TUMBLE({source.ours}, ts, INTERVAL '{text}')"
            if self.rng.random() < 0.2:
                call = f"TABLE(TUMBLE(TABLE {source.ours}, DESCRIPTOR(ts), INTERVAL '{text}'))" if source.ours.isidentifier() else call
            return call, windowed(source.duck, size, size)
        slide_text, slide, size_text, size = self.one(HOPS)
        return f"HOP({source.ours}, ts, INTERVAL '{slide_text}', INTERVAL '{size_text}')", windowed(source.duck, slide, size)

    def keys(self, columns: Sequence[Expr]) -> list[Expr]:
        """Draws the expressions that rows are grouped by."""
        found = [Expr(name, name, COLUMNS[name]) for name in ("k", "g", "b") if self.rng.random() < 0.35]
        if self.rng.random() < 0.4:
            found.append(self.scalars(columns).draw(self.one((INT, FLOAT, TEXT, BOOL, TIME, INTERVAL)), 1, near=False))
        unique = {key.ours: key for key in found if any(column.ours in key.ours for column in columns)}
        # DuckDB's GROUP BY takes a number alone as the position of a column.
        forms = {FLOAT: "one_zero({})", INT: "({})::BIGINT"}
        return [key._replace(duck=forms.get(key.type, "{}").format(key.duck)) for key in unique.values()]

    def aggregates(self, columns: Sequence[Expr], count: int) -> list[Expr]:
        return [self._aggregate(columns) for _ in range(count)]

    def _aggregate(self, columns: Sequence[Expr]) -> Expr:
        scalars = self.scalars(columns)
        name = self.one(AGGREGATES)
        self._used.add(name)
        kind = self.one(KINDS.get(name, (INT, FLOAT, TEXT, TIME, INTERVAL)))
        by = self.one((Expr("g", "g", INT), Expr("x", "x", FLOAT), Expr("y", "y", FLOAT), Expr("k", "k", TEXT)))
        operand = self._summed(kind) if kind in (INT, FLOAT) and name in KINDS else scalars.draw(kind, 1, near=False)
        if operand.ours == "NULL":
            operand = Expr("i", "i", INT)
        ours, duck, tail = operand.ours, f"({operand.duck})", ""
        if self.rng.random() < 0.25:
            condition = scalars.draw(BOOL, 1, near=False)
            tail, duck = f" FILTER (WHERE {condition.ours})", f"(CASE WHEN {condition.duck} THEN {duck} END)"
            if name == "rows":
                return Expr(f"COUNT(*){tail}", f"count(CASE WHEN {condition.duck} THEN 1 END)", INT)
        if name in PAIRED or name in ("arg_min", "arg_max"):
            return paired(name, kind, (ours, duck), by if name not in PAIRED or by.type != TEXT else Expr("y", "y", FLOAT), tail)
        return aggregated(name, kind, ours, duck, tail)

    def _summed(self, kind: str) -> Expr:
        """Draws a number whose sums are exact in any order."""
        if kind == INT:
            return self.one((Expr("g", "g", INT), Expr("i", "i", INT), Expr("(i - g)", "i_sub(i, g)", INT)))
        return self.one(
            (Expr("x", "x", FLOAT), Expr("y", "y", FLOAT), Expr("(x + y)", "(x + y)", FLOAT), Expr("(y * y)", "(y * y)", FLOAT))
        )

    def grouped(self, source: Input, *, where: bool = True) -> tuple[list[Expr], str, str, list[Expr]]:
        """Draws aggregates by window and key: returns them, the text from FROM to GROUP BY in both dialects, and the keys, bounds first."""
        columns = columns_of(source.columns)
        ours, duck = self.window(source)
        condition = self.maybe_where(columns) if where else ("", "")
        keys = [Expr("window_start", "window_start", TIME), *self.keys(columns)]
        if self.rng.random() < 0.5:
            keys.insert(1, Expr("window_end", "window_end", TIME))
        ours = f" FROM {ours}{condition[0]} GROUP BY {', '.join(key.ours for key in keys)}"
        duck = f" FROM {duck}{condition[1]} GROUP BY window_start, window_end, {', '.join(key.duck for key in keys)}"
        return self.aggregates(columns, int(self.rng.integers(2, 7))), ours, duck, keys
