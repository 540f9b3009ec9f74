"""Expressions without columns are computed when a query is planned, with the values that the engine computes from columns."""

from typing import Any

import polars as pl
import pytest

from sbon.operators.compile import columns_of, compile_column
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.fold import fold
from sbon.query.functions import FUNCTIONS
from sbon.query.params.rowwise import MapParams
from sbon.query.rewrite import columns_of as columns_used
from sbon.query.rewrite import walk
from sbon.schema import ColumnType, Field, struct_type
from tests.query_worlds import plan_of

BOOL, INT, FLOAT, TEXT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT
TIME, INTERVAL = ColumnType.TIME, ColumnType.INTERVAL
NUMBERS = [Literal(-7, INT), Literal(3, INT), Literal(2.5, FLOAT), Literal(-0.5, FLOAT), Literal(0, INT)]
TEXTS = [Literal("aBa", TEXT), Literal("a", TEXT), Literal("b", TEXT)]
WHEN = Literal(86_400_000_001, TIME)
DOCUMENT = Literal('{"a":[1.50,"x"]}', TEXT)
ARGUMENTS: dict[str, list[tuple[Literal, ...]]] = {
    **{
        name: [(one, other) for one in NUMBERS for other in NUMBERS]
        for name in ("add", "sub", "mul", "div", "mod", "power", "eq", "ne", "lt", "le", "gt", "ge", "greatest", "least", "in")
    },
    **{name: [(one,) for one in NUMBERS] for name in ("neg", "abs", "sign", "round", "floor", "ceil", "sqrt", "ln", "log10", "exp")},
    **{name: [(one,) for one in NUMBERS] for name in ("cbrt", "sin", "cos", "tan", "asin", "acos", "atan", "degrees", "radians", "trunc")},
    **{name: [(one,) for one in TEXTS] for name in ("lower", "upper", "length", "trim", "ltrim", "rtrim")},
    **{name: [(one,) for one in TEXTS] for name in ("reverse", "initcap", "ascii", "md5", "sha256")},
    **{name: [(one, other) for one in TEXTS for other in TEXTS] for name in ("like", "ilike", "concat", "starts_with")},
    **{name: [(one, other) for one in TEXTS for other in TEXTS] for name in ("ends_with", "strpos", "regexp_like", "concat_ws")},
    "atan2": [(one, other) for one in NUMBERS for other in NUMBERS],
    "lpad": [(TEXTS[0], Literal(5, INT), Literal("xy", TEXT)), (TEXTS[0], Literal(2_000, INT))],
    "rpad": [(TEXTS[0], Literal(5, INT), Literal("xy", TEXT)), (TEXTS[0], Literal(2, INT))],
    "repeat": [(TEXTS[0], Literal(3, INT)), (TEXTS[0], Literal(2_000, INT))],
    "split_part": [(TEXTS[0], Literal("B", TEXT), Literal(number, INT)) for number in (-1, 0, 1, 2, 3)],
    "split_index": [(TEXTS[0], Literal("B", TEXT), Literal(number, INT)) for number in (-1, 0, 1, 2, 3)],
    "chr": [(Literal(65, INT),), (Literal(0, INT),)],
    "regexp_extract": [(TEXTS[0], Literal("B(a)", TEXT), Literal(1, INT)), (TEXTS[0], Literal("x", TEXT))],
    "regexp_replace": [(TEXTS[0], Literal("a", TEXT), Literal("$", TEXT), Literal("g", TEXT))],
    "to_char": [(WHEN, Literal("YYYY-MM-DD HH24:MI:SS.US", TEXT))],
    "to_timestamp": [(Literal("1970-01-02", TEXT), Literal("YYYY-MM-DD", TEXT)), (TEXTS[0], Literal("YYYY-MM-DD", TEXT))],
    "timestampdiff": [(Literal("hour", TEXT), Literal(0, TIME), WHEN)],
    **{name: [(WHEN,)] for name in FUNCTIONS if name.startswith("extract_")},
    "date_trunc": [(Literal("day", TEXT), WHEN)],
    "substr": [(TEXTS[0], Literal(2, INT)), (TEXTS[0], Literal(0, INT), Literal(2, INT))],
    "replace": [(TEXTS[0], TEXTS[1], TEXTS[2])],
    "and": [(Literal(True, BOOL), Literal(False, BOOL))],
    "or": [(Literal(True, BOOL), Literal(False, BOOL))],
    "not": [(Literal(True, BOOL),)],
    "is_null": [(Literal(2.5, FLOAT),)],
    "coalesce": [(Literal(None, FLOAT), Literal(2.5, FLOAT))],
    **{name: [(one,) for one in (DOCUMENT, *TEXTS)] for name in ("json", "json_length")},
    **{name: [(DOCUMENT, Literal("a", TEXT), Literal(n, INT)) for n in (-1, 0, 1, 2)] for name in ("json_get", "json_text")},
    "json_typeof": [(DOCUMENT,)],
    "struct_of": [(one, Literal(struct_type([Field("a", INT)]).value, TEXT)) for one in (DOCUMENT, *TEXTS)],
    **{name: [(Literal("[1, null]", TEXT),), (DOCUMENT,)] for name in FUNCTIONS if name.endswith("_array")},
    "to_json": [*((one,) for one in (*NUMBERS, *TEXTS)), (WHEN,), (Literal(True, BOOL),)],
}
MUST_BE_LITERAL = {
    "struct_of": 1,
    "round": 1, "like": 1, "ilike": 1, "replace": 1, "in": 1, "trunc": 1, "lpad": 2, "rpad": 2, "regexp_like": 1, "regexp_extract": 1,
    "regexp_replace": 1, "to_char": 1, "to_timestamp": 1,
}  # fmt: skip
"""Functions whose arguments must be literals from this position on."""
ALONE = {"date_trunc": 0, "timestampdiff": 0, "concat_ws": 0, "split_part": 1, "split_index": 1}
"""Functions of which only the argument at this position must be a literal."""


def computed(expression: Expression, columns: dict[str, Any] | None = None) -> list[Any]:
    """Returns what the engine computes for two rows."""
    frame = pl.DataFrame({"row": [0, 1], **(columns or {})})
    value, _, _ = compile_column(expression, columns_of(frame))
    return frame.select("row", value.alias("value"))["value"].to_physical().to_list()


def over_columns(name: str, arguments: tuple[Literal, ...]) -> list[Any]:
    """Computes a call with columns of one value in place of all literals that may be columns."""
    columns: dict[str, Any] = {}
    parts: list[Expression] = []
    for place, argument in enumerate(arguments):
        literal = place == ALONE.get(name, -1) or place >= MUST_BE_LITERAL.get(name, len(arguments))
        if literal:
            parts.append(argument)
            continue
        columns[f"c{place}"] = pl.Series([argument.value] * 2, dtype={TIME: pl.Datetime("us"), FLOAT: pl.Float64()}.get(argument.type))
        parts.append(Column(f"c{place}"))
    return computed(Call(name, tuple(parts)), columns)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_of_constants_is_folded_to_what_the_engine_computes(name: str):
    for arguments in ARGUMENTS[name]:
        folded = fold(Call(name, arguments))
        assert isinstance(folded, Literal), arguments
        assert [folded.value] * 2 == over_columns(name, arguments), arguments


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Cast(Literal("12", TEXT), INT), Literal(12, INT)),
        (Cast(Literal("1970-01-02", TEXT), TIME), Literal(86_400_000_000, TIME)),
        (Cast(Literal("nonsense", TEXT), FLOAT), Literal(None, FLOAT)),
        (Call("mul", (Literal(3, INTERVAL), Literal(2.5, FLOAT))), Literal(7, INTERVAL)),
        (
            Case(((Call("gt", (Call("ln", (Literal(2.0, FLOAT),)), Literal(0.0, FLOAT))), Literal(1, INT)),), Literal(2, INT)),
            Literal(1, INT),
        ),
        (Call("gt", (Call("exp", (Literal(1000, INT),)), Literal(5.0, FLOAT))), Literal(True, BOOL)),
    ],
)
def test_what_has_no_column_is_folded(expression: Expression, expected: Literal):
    assert fold(expression) == expected


@pytest.mark.parametrize("expression", [Call("exp", (Literal(1000, INT),)), Cast(Literal("nan", TEXT), FLOAT)])
def test_what_no_literal_can_say_stays_as_it_is_written(expression: Expression):
    """As literals, NaN and the infinities would all have the canonical form of NULL."""
    assert fold(expression) == expression


def test_every_constant_within_a_query_is_a_literal_in_its_plan():
    sql = "SELECT k, v * SQRT(4) AS w, NULLIF(n, ABS(-3)) AS m FROM s WHERE (CASE WHEN ok THEN n END) = ABS(-3) AND LN(v) > POWER(2, 3) / 2"
    maps = [operator.params for operator in plan_of(sql).operators if isinstance(operator.params, MapParams)]
    parts = [one.predicate for one in maps if one.predicate is not None]
    parts += [value for one in maps for _, value in one.columns or ()]
    assert any(isinstance(node, Case) for part in parts for node in walk(part))
    assert [node for part in parts for node in walk(part) if not isinstance(node, Literal) and not columns_used([node])] == []


def test_branches_before_one_that_always_holds_stay():
    over = Call("gt", (Column("x"), Literal(2, INT)))
    always = Call("gt", (Literal(2, INT), Literal(1, INT)))
    case = Case(((over, Literal(1, INT)), (always, Literal(2, INT)), (over, Literal(3, INT))), Literal(4, INT))

    assert fold(case) == Case(((over, Literal(1, INT)),), Literal(2, INT))
    assert fold(Case(((always, Literal(2, INT)), (over, Literal(1, INT))), Literal(4, INT))) == Literal(2, INT)


def test_a_long_text_is_not_carried_in_a_plan():
    long = Call("repeat", (Literal("ab", TEXT), Literal(101, INT)))

    assert fold(long) == long
    assert fold(Call("repeat", (Literal("ab", TEXT), Literal(100, INT)))) == Literal("ab" * 100, TEXT)
    assert fold(Call("length", (long,))) == Literal(202, INT)
