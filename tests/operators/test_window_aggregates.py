"""Aggregates that keep more than a sum equal plain twins over all rows, for rows split, shuffled, merged and restored."""

import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.session import Session
from sbon.operators.window import Window
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import rows_of

Row = tuple[Any, ...]
Twin = Callable[[list[Row]], Any]

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "f": pl.Float64(), "g": pl.Float64(), "i": pl.Int64(), "b": pl.Boolean(), "s": pl.String()}
PLACES = {name: place for place, name in enumerate(COLUMNS)}


def there(rows: list[Row], *names: str) -> list[Any]:
    """Returns the non-NULL values of a column, or tuples of several columns without a NULL."""
    found = [tuple(row[PLACES[name]] for name in names) for row in rows]
    found = [values for values in found if None not in values]
    return found if len(names) > 1 else [value for (value,) in found]


def _all(rows: list[Row]) -> Any:
    values = there(rows, "b")
    return all(values) if values else None


def _any(rows: list[Row]) -> Any:
    values = there(rows, "b")
    return any(values) if values else None


def _bits(operation: Callable[[int, int], int]) -> Twin:
    def twin(rows: list[Row]) -> Any:
        values = there(rows, "i")
        return reduce(operation, values) if values else None

    return twin


def _arg_min(rows: list[Row]) -> Any:
    pairs = there(rows, "g", "i")
    return min((f, i) for i, f in [(i, g + 0.0) for g, i in pairs])[1] if pairs else None


def _arg_max(rows: list[Row]) -> Any:
    pairs = there(rows, "s", "i")
    return max((i, s) for s, i in pairs)[1] if pairs else None


def _rounded(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _moment(of: Callable[[list[Fraction], list[Fraction]], Fraction | None], root: bool = False) -> Twin:
    """Makes the twin of an aggregate of pairs: `of` in fractions, rounded once, then maybe its square root."""

    def twin(rows: list[Row]) -> Any:
        pairs = there(rows, "f", "g")
        found = of([Fraction(f) for f, _ in pairs], [Fraction(g) for _, g in pairs]) if pairs else None
        if found is None:
            return None
        size = _rounded(abs(found))
        return math.copysign(math.sqrt(size) if root else size, -1.0 if found < 0 else 1.0)

    return twin


def _value(of: Callable[[list[Fraction], list[Fraction]], Fraction | None], root: bool = False) -> Twin:
    """Makes the twin of an aggregate of single values: `_moment` with each value paired with itself."""
    twin = _moment(of, root)
    return lambda rows: twin([(*row[:3], row[2], *row[4:]) for row in rows])


def _spread(f: list[Fraction], g: list[Fraction]) -> Fraction:
    f_mean, g_mean = sum(f) / len(f), sum(g) / len(g)
    return sum(((x - f_mean) * (y - g_mean) for x, y in zip(f, g, strict=True)), Fraction(0))


def _population(f: list[Fraction], g: list[Fraction]) -> Fraction | None:
    return _spread(f, g) / len(f)


def _sample(f: list[Fraction], g: list[Fraction]) -> Fraction | None:
    return _spread(f, g) / (len(f) - 1) if len(f) > 1 else None


def _signed_square(f: list[Fraction], g: list[Fraction]) -> Fraction | None:
    """Returns the square of the correlation, with the sign of the correlation; None if it is undefined."""
    apart, together = _spread(f, f) * _spread(g, g), _spread(f, g)
    return together * abs(together) / apart if apart else None


def _slope(f: list[Fraction], g: list[Fraction]) -> Fraction | None:
    apart = _spread(g, g)
    return _spread(f, g) / apart if apart else None


def _intercept(f: list[Fraction], g: list[Fraction]) -> Fraction | None:
    slope = _slope(f, g)
    return None if slope is None else sum(f) / len(f) - slope * sum(g) / len(g)


def _median(rows: list[Row]) -> Any:
    values = sorted(there(rows, "f"))
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle] + 0.0
    return values[middle - 1] + (values[middle] - values[middle - 1]) * 0.5 + 0.0 if values else None


def _joined(*order: str) -> Twin:
    def twin(rows: list[Row]) -> Any:
        kept = [row for row in rows if row[PLACES["s"]] is not None]
        kept.sort(key=lambda row: [(row[PLACES[name]] is None, row[PLACES[name]] or ("" if name == "s" else 0)) for name in order])
        return "--".join(row[PLACES["s"]] for row in kept) if kept else None

    return twin


def _once(rows: list[Row]) -> Any:
    values = there(rows, "s")
    return "".join(sorted(set(values), reverse=True)) if values else None


def _ninth(rows: list[Row]) -> Any:
    """Returns the least value with nine tenths of the values at or below it."""
    values = sorted(there(rows, "s"))
    return values[-(-len(values) * 9 // 10) - 1] if values else None


F, G, I, S = Column("f"), Column("g"), Column("i"), Column("s")  # noqa: E741
TWINS: dict[Aggregate, Twin] = {
    Aggregate("texts", "string_agg", S, separator="--"): _joined("t", "s"),
    Aggregate("ordered", "string_agg", S, by=I, separator="--"): _joined("i", "t", "s"),
    Aggregate("once", "string_agg_distinct", S, descending=True): _once,
    Aggregate("median", "percentile_cont", F): _median,
    Aggregate("ninth", "percentile_disc", S, 0.9): _ninth,
    Aggregate("and", "bit_and", I): _bits(operator.and_),
    Aggregate("or", "bit_or", I): _bits(operator.or_),
    Aggregate("xor", "bit_xor", I): _bits(operator.xor),
    Aggregate("arg_min", "arg_min", I, by=G): _arg_min,
    Aggregate("arg_max", "arg_max", S, by=I): _arg_max,
    Aggregate("stddev", "stddev", F): _value(_sample, root=True),
    Aggregate("stddev_pop", "stddev_pop", F): _value(_population, root=True),
    Aggregate("var_samp", "var_samp", F): _value(_sample),
    Aggregate("var_pop", "var_pop", F): _value(_population),
    Aggregate("covar_samp", "covar_samp", F, by=G): _moment(_sample),
    Aggregate("covar_pop", "covar_pop", F, by=G): _moment(_population),
    Aggregate("corr", "corr", F, by=G): _moment(_signed_square, root=True),
    Aggregate("slope", "regr_slope", F, by=G): _moment(_slope),
    Aggregate("intercept", "regr_intercept", F, by=G): _moment(_intercept),
    Aggregate("all", "bool_and", Column("b")): _all,
    Aggregate("any", "bool_or", Column("b")): _any,
}

NUMBERS = st.one_of(st.none(), st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.sampled_from([1e15, -1e15, 0.1, 1e-300, -0.0]))
ROWS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from(["a", None]),
        NUMBERS,
        NUMBERS,
        st.one_of(st.none(), st.integers(-4, 4), st.integers(-(2**63), 2**63 - 1)),
        st.sampled_from([True, False, None]),
        st.sampled_from(["x", "yy", "", "é", None]),
    ),
    max_size=16,
)


def frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=COLUMNS, orient="row").with_columns(pl.col("t").cast(pl.Datetime("us")))


def answers(make: Callable[[], Window | Session], rows: list[Row], cuts: list[int]) -> list[Row]:
    """Returns an operator's answers to batches between the cuts. It moves to another host after each batch."""
    window = make()
    for first, end in pairwise(sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})):
        window.process(0, frame(rows[first:end]))
        moved = make()
        moved.restore(window.snapshot())
        window = moved
    return rows_of(window.advance(WATERMARK_END))


def expected(groups: dict[Any, list[Row]]) -> list[Row]:
    """Returns bounds and key, then the twins' answers."""
    return sorted(((*group, *(twin(rows) for twin in TWINS.values())) for group, rows in groups.items()), key=repr)


@examples(25)
@given(ROWS, st.sampled_from([(10, 10), (20, 5), (12, 8)]), st.lists(st.integers(0, 60), max_size=4), st.integers(0, 2**32))
def test_windows_are_those_of_the_twins(rows: list[Row], shape: tuple[int, int], cuts: list[int], seed: int) -> None:
    size, slide = shape
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        for start in range((row[0] - size) // slide * slide + slide, row[0] + 1, slide):
            groups.setdefault((start, start + size, row[1]), []).append(row)
    params = WindowParams("t", size, slide, (("k", Column("k")),), tuple(TWINS))
    whole = answers(lambda: Window(params), rows, [])
    pieces = answers(lambda: Window(params), random.Random(seed).sample(rows, len(rows)), cuts)

    assert sorted(whole, key=repr) == expected(groups)
    assert repr(pieces) == repr(whole)


@examples(15)
@given(ROWS, st.lists(st.integers(0, 60), max_size=4), st.integers(0, 2**32))
def test_sessions_are_those_of_the_twins(rows: list[Row], cuts: list[int], seed: int) -> None:
    gap = 4
    groups: dict[Any, list[Row]] = {}
    for key in ("a", None):
        session: list[Row] = []
        for row in [*sorted((row for row in rows if row[1] == key), key=lambda row: row[0]), None]:
            if session and (row is None or row[0] - session[-1][0] >= gap):
                groups[session[0][0], session[-1][0] + gap, key] = session
                session = []
            if row is not None:
                session.append(row)
    params = SessionParams("t", gap, (("k", Column("k")),), tuple(TWINS))
    whole = answers(lambda: Session(params), rows, [])
    pieces = answers(lambda: Session(params), random.Random(seed).sample(rows, len(rows)), cuts)

    assert sorted(whole, key=repr) == expected(groups)
    assert repr(pieces) == repr(whole)
