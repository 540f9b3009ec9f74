"""Properties of any SQL text, and of any way to write one condition."""

import random
from collections.abc import Callable

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import QueryError
from sbon.operators.compile import columns_of, compile_expression
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.fold import fold, like_matches
from sbon.query.params.source import SinkParams
from sbon.query.planner import plan
from sbon.query.rewrite import canonical, substitute
from sbon.query.sql import CreateSink, CreateView, SelectQuery, parse
from sbon.query.text import expression_text
from sbon.schema import ColumnType
from tests.examples import examples
from tests.query_worlds import CATALOG, NODES, plan_of

WORDS = (
    "SELECT FROM WHERE GROUP BY HAVING AND OR NOT IN IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END CAST AS JOIN ON USING LEFT UNION ALL "
    "TUMBLE HOP INTERVAL CREATE DROP SOURCE SINK VIEW MATERIALIZED QUERY IF EXISTS WITH WATERMARK FOR DISTINCT ORDER LIMIT OVER count sum "
    "( ) ( ) , , . ; * + - / % = <> < > || :: ' \" '10 s' 'x' 1 2.5 1e999 9223372036854775808 s u k v n ok ts window_start window_end "
    "_node _region sys.probes sys per_key fast plain TIMESTAMP DOUBLE connector 'datagen' $1 ? @ # -- /* */ \\ { } [ ] NULL TRUE é \0"
)
VOCABULARY = WORDS.split(" ")


def refusal(text: str) -> QueryError | None:
    """Parses a text and plans queries; returns the QueryError, if any. No other error may occur."""
    try:
        for statement in parse(text):
            if isinstance(statement, SelectQuery | CreateSink):
                plan(statement, CATALOG, NODES, "b", "q")
            elif isinstance(statement, CreateView):
                plan(statement.query, CATALOG, NODES, "b", "check")
    except QueryError as error:
        return error
    return None


def is_understood_or_refused_with_its_place(text: str) -> bool:
    refused = refusal(text)
    if refused is None:
        return True
    return bool(refused.message) and 1 <= refused.line <= text.count("\n") + 1 and 1 <= refused.column <= len(text) + 1


@examples(200)
@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    assert is_understood_or_refused_with_its_place(text)


@examples(250)
@given(st.lists(st.sampled_from(VOCABULARY), max_size=25).map(" ".join))
def test_any_words_of_the_dialect_are_understood_or_refused(text: str) -> None:
    assert is_understood_or_refused_with_its_place(text)


MUTATED = [
    "SELECT window_end, k, sum(n) AS t FROM TUMBLE(s, ts, INTERVAL '5 s') GROUP BY window_end, k ORDER BY t DESC, k LIMIT 3",
    "SELECT DISTINCT window_end, k FROM TUMBLE(s, ts, INTERVAL '5 s') WHERE v > 1",
    "SELECT s.k, u.w FROM s LEFT JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '5 s' AND s.ts WHERE u.w IS NULL",
    "SELECT window_end, approx_percentile(v, 0.9) AS p FROM SESSION(s, ts, INTERVAL '5' SECOND) GROUP BY window_end, k",
    "SELECT k, v * 2 AS d FROM s WHERE v > 1 AND k IN ('a', 'b') OR NOT ok",
    "SELECT window_start, k, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, k HAVING count(*) > 1",
    "SELECT s.k, u.w FROM s JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '5 s' AND s.ts WHERE s.v > u.w",
    "CREATE SOURCE x (ts TIMESTAMP, k TEXT, WATERMARK FOR ts AS ts - INTERVAL '1 s') WITH (connector = 'datagen', nodes = 'a,b')",
    "CREATE SINK x AS SELECT k FROM s UNION ALL SELECT k FROM u WITH (connector = 'file', path = 'x')",
]


@examples(250)
@given(st.sampled_from(MUTATED), st.integers(0, 2**32), st.integers(1, 4))
def test_a_statement_with_words_exchanged_is_understood_or_refused(text: str, seed: int, changes: int) -> None:
    rng = random.Random(seed)
    words = text.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    for _ in range(changes):
        at = rng.randrange(len(words))
        action = rng.randrange(3)
        if action == 0:
            words[at] = rng.choice(VOCABULARY)
        elif action == 1 and len(words) > 1:
            del words[at]
        else:
            words.insert(at, rng.choice(words))
    assert is_understood_or_refused_with_its_place(" ".join(words))


@pytest.mark.parametrize("text", MUTATED)
def test_the_statements_that_words_are_exchanged_in_are_understood(text: str) -> None:
    assert refusal(text) is None


# Conditions over s, as text; `shuffled` writes the same condition another way.

Condition = tuple[str, ...]
ATOMS: list[tuple[str, ...]] = [
    ("v > 1", "1 < v", "NOT v <= 1"),
    ("n = 3", "3 = n", "n IN (3)"),
    ("k LIKE 'a%'",),
    ("n IN (1, 2, 5)", "n IN (5, 2, 1, 2)", "n = 5 OR n IN (2, 1)", "1 = n OR 5 = n OR n = 2"),
    ("v + n > 2", "2 < n + v"),
    ("v BETWEEN 0 AND 5", "v >= 0 AND v <= 5", "5 >= v AND 0 <= v"),
    ("ok", "NOT NOT ok"),
    ("v * 2 <> n", "n <> 2 * v", "NOT (v * 2 = n)"),
    ("NOT (v > 3 OR n = 2)", "v <= 3 AND n <> 2", "NOT n = 2 AND 3 >= v"),
    ("NOT (ok AND k = 'k1')", "k <> 'k1' OR NOT ok"),
]


def write(tree: object, choose: Callable[[int], int]) -> str:
    if isinstance(tree, int):
        ways = ATOMS[tree]
        return f"({ways[choose(len(ways))]})"
    assert isinstance(tree, tuple)
    word, *parts = tree
    written = [write(part, choose) for part in parts]
    if choose(2):
        written.reverse()
    return "(" + f" {word} ".join(written) + ")"


TREES = st.recursive(
    st.integers(0, len(ATOMS) - 1), lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), inner, inner), max_leaves=6
)  # fmt: skip


@examples(100)
@given(TREES, st.integers(0, 2**32))
def test_the_way_a_condition_is_written_does_not_change_signatures(tree: object, seed: int) -> None:
    rng = random.Random(seed)
    one = plan_of(f"SELECT k, v FROM s WHERE {write(tree, lambda count: 0)}")
    other = plan_of(f"SELECT x.k, x.v FROM (SELECT v, k, n AS m, n, ok FROM s AS t) AS x WHERE {write(tree, rng.randrange)}")
    assert [operator.signature for operator in one.operators] == [operator.signature for operator in other.operators]


@examples(60)
@given(st.permutations(["count(*)", "avg(v)", "max(n)", "min(v)"]), st.permutations(["k", "ok"]), st.sampled_from(["a", "zz", "v"]))
def test_the_order_and_names_of_aggregates_do_not_change_the_window(aggregates: list[str], keys: list[str], alias: str) -> None:
    columns = ", ".join(f"{aggregate} AS {alias}{index}" for index, aggregate in enumerate(aggregates))
    sql = f"SELECT {columns} FROM TUMBLE(s, ts, INTERVAL '10 s') AS {alias} GROUP BY window_start, {', '.join(keys)}"
    plain = "SELECT count(*), avg(v), max(n), min(v) FROM TUMBLE(s, ts, INTERVAL '10000 ms') GROUP BY k, ok, window_end"
    signatures = [
        [o.signature for o in plan_of(text).operators if o.ports and not isinstance(o.params, SinkParams)] for text in (sql, plain)
    ]
    assert len(signatures[0]) == len(signatures[1]) > 1
    assert signatures[0] == signatures[1]


# Expressions over columns of a frame, to compare folding and canonical forms with the engine.

FRAME = pl.DataFrame(
    {
        "i": [1, 2, None, -3, 0],
        "j": [0, 5, 2, None, 7],
        "f": [0.5, None, -0.0, 2.0, float("nan")],
        "t": ["a", "b%", None, "", "ab"],
        "b": [True, None, False, True, False],
    }
)
SMALL = st.integers(-3, 5).map(lambda n: Literal(n, ColumnType.INT))
INTS = st.sampled_from([Column("i"), Column("j"), *(Literal(n, ColumnType.INT) for n in (0, 1, -2))])
FLOATS = st.sampled_from([Column("f"), Literal(0.0, ColumnType.FLOAT), Literal(1.5, ColumnType.FLOAT)])
TEXTS = st.sampled_from([Column("t"), *(Literal(text, ColumnType.TEXT) for text in ("", "a", "ab", "B"))])
# A pattern that ends in a lone backslash is refused.
PATTERNS = st.text("ab%_\\", max_size=6).map(lambda text: text.rstrip("\\"))
COMPARISONS = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])


def call(name: str, *arguments: Expression) -> Expression:
    return Call(name, arguments)


def numbers(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(call, st.sampled_from(["add", "sub", "mul"]), inner, inner),
        st.builds(call, st.sampled_from(["neg", "abs"]), inner),
    )


WHOLE = st.recursive(INTS, numbers, max_leaves=4)
BOOLEANS = st.recursive(
    st.one_of(
        st.just(Column("b")),
        st.sampled_from([Literal(True, ColumnType.BOOL), Literal(False, ColumnType.BOOL), Literal(None, ColumnType.BOOL)]),
        st.builds(call, COMPARISONS, WHOLE, WHOLE),
        st.builds(call, COMPARISONS, FLOATS, WHOLE),
        st.builds(call, COMPARISONS, TEXTS, TEXTS),
        st.builds(call, st.just("starts_with"), TEXTS, TEXTS),
        st.builds(lambda value, pattern: call("like", value, Literal(pattern, ColumnType.TEXT)), TEXTS, PATTERNS),
        st.builds(lambda value, others: call("in", value, *others), WHOLE, st.lists(SMALL, min_size=1, max_size=3)),
        st.builds(call, st.just("is_null"), st.one_of(WHOLE, TEXTS)),
    ),
    lambda inner: st.one_of(
        st.builds(call, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(call, st.just("not"), inner),
        st.builds(lambda c, a, b: Case(((c, a),), b), inner, inner, inner),
        st.builds(lambda a: Cast(a, ColumnType.BOOL), inner),
    ),
    max_leaves=6,
)  # fmt: skip


def filled(expression: Expression, row: dict[str, object]) -> Expression:
    """Returns the expression with one row's values in place of its columns."""
    types = {"i": ColumnType.INT, "j": ColumnType.INT, "f": ColumnType.FLOAT, "t": ColumnType.TEXT, "b": ColumnType.BOOL}
    return substitute(expression, {name: Literal(value, types[name]) for name, value in row.items()})  # type: ignore[arg-type]


def values(expression: Expression) -> list[object]:
    compiled = compile_expression(expression, columns_of(FRAME))
    return FRAME.select(pl.int_range(pl.len()).alias("row"), compiled.value.alias("value"))["value"].to_list()


@examples(200)
@given(st.one_of(BOOLEANS, WHOLE))
def test_what_folds_to_a_constant_is_what_the_engine_computes(expression: Expression) -> None:
    planned = canonical(fold(expression))
    assert canonical(planned) == planned
    computed = values(planned)
    for index, row in enumerate(FRAME.to_dicts()):
        constant = fold(filled(expression, row))
        if isinstance(constant, Literal):
            assert computed[index] == constant.value


@examples(100)
@given(st.one_of(BOOLEANS, WHOLE), st.one_of(BOOLEANS, WHOLE))
def test_unequal_expressions_have_unequal_texts(one: Expression, other: Expression) -> None:
    # NULLs of all types have one text; the columns around them make expressions differ.
    if one != other and "null" not in expression_text(one):
        assert expression_text(one) != expression_text(other)


@examples(200)
@given(PATTERNS, st.text("ab%_\\", max_size=6))
def test_like_of_the_planner_is_like_of_the_engine(pattern: str, text: str) -> None:
    compiled = compile_expression(call("like", Column("t"), Literal(pattern, ColumnType.TEXT)), {"t": ColumnType.TEXT})
    assert pl.DataFrame({"t": [text]}).select(compiled.value).item() == like_matches(pattern, text)
