"""Queries with the same meaning have the same signatures and answers; queries with different meanings have different signatures.

Each test draws a meaning, then writes it as SQL twice, with different names, orders and forms of the same conditions.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.query.plan import Plan
from tests.examples import examples
from tests.query_worlds import plan_of, run

LEFT = ("k", "v", "n", "ok", "ts")
RIGHT = ("k", "w", "ts")
COLUMNS = (*(("s", name) for name in LEFT), *(("u", name) for name in RIGHT))


@dataclass(frozen=True)
class Joined:
    """Pairs of s and u with equal keys, u from `before` seconds before s to `after` seconds after, with conditions and columns."""

    before: int
    after: int
    v_over: int
    w_range: tuple[int, int]
    crossing: bool
    """Only pairs with v > w."""
    columns: tuple[tuple[str, str], ...]


JOINED = st.builds(
    Joined,
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(-2, 3),
    st.tuples(st.integers(-3, 0), st.integers(1, 5)),
    st.booleans(),
    st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=5, unique=True).map(tuple),
)


def seconds(number: int) -> str:
    return f"INTERVAL '{number} seconds'" if number % 2 else f"INTERVAL '{number * 1000} ms'"


def shuffled(rng: random.Random, items: Sequence[str]) -> list[str]:
    return rng.sample(list(items), len(items))


def interval(meaning: Joined, s: str, u: str, rng: random.Random) -> list[str]:
    """Returns the condition that `u.ts` is in the interval around `s.ts`, written from either side."""
    low, high = f"{s}.ts - {seconds(meaning.before)}", f"{s}.ts + {seconds(meaning.after)}"
    return rng.choice(
        [
            [f"{u}.ts BETWEEN {low} AND {high}"],
            [f"{u}.ts >= {low}", f"{high} >= {u}.ts"],
            [f"{s}.ts BETWEEN {u}.ts - {seconds(meaning.after)} AND {u}.ts + {seconds(meaning.before)}"],
            [f"{u}.ts - {s}.ts <= {seconds(meaning.after)}", f"{s}.ts - {u}.ts <= {seconds(meaning.before)}"],
        ]
    )


def side(name: str, columns: Sequence[str], rng: random.Random) -> str:
    """Returns a source's name, or a subquery that lists its columns in some order."""
    return name if rng.randrange(2) else f"(SELECT {', '.join(shuffled(rng, columns))} FROM {name})"


def write_join(meaning: Joined, rng: random.Random) -> tuple[str, list[str]]:
    """Returns the query and its column names in the order of `meaning.columns`."""
    s, u = rng.sample(["a", "b", "s", "u", "zz"], 2)
    least, most = meaning.w_range
    conditions = [rng.choice([f"{s}.k = {u}.k", f"{u}.k = {s}.k"]), *interval(meaning, s, u, rng)]
    others = [rng.choice([f"{s}.v > {meaning.v_over}", f"{meaning.v_over} < {s}.v", f"NOT {s}.v <= {meaning.v_over}"])]
    others += rng.choice(
        [
            [f"{u}.w BETWEEN {least} AND {most}"],
            [f"{u}.w >= {least}", f"{u}.w <= {most}"],
            [f"NOT ({u}.w < {least} OR {most} < {u}.w)"],
        ]
    )
    if meaning.crossing:
        others.append(rng.choice([f"{s}.v > {u}.w", f"{u}.w < {s}.v"]))
    in_on = [condition for condition in others if rng.randrange(2)]
    where = [condition for condition in others if condition not in in_on]
    sides = [f"{side('s', LEFT, rng)} AS {s}", f"{side('u', RIGHT, rng)} AS {u}"]
    if rng.randrange(2):
        sides.reverse()
    names = [f"{rng.choice(['c', 'x', 'col'])}{number}" for number in range(len(meaning.columns))]
    items = [f"{s if of == 's' else u}.{column} AS {name}" for (of, column), name in zip(meaning.columns, names, strict=True)]
    sql = (
        f"SELECT {', '.join(shuffled(rng, items))} FROM {sides[0]} JOIN {sides[1]} ON {' AND '.join(shuffled(rng, [*conditions, *in_on]))}"
    )
    return sql + (f" WHERE {' AND '.join(shuffled(rng, where))}" if where else ""), names


def signatures(plan: Plan) -> list[str]:
    return sorted(operator.signature for operator in plan.operators[:-1])


def answers(plan: Plan, names: Sequence[str]) -> Counter[tuple[object, ...]]:
    return Counter(pl.DataFrame(run(plan)).select(names).rows())


@examples(35)
@given(JOINED, st.integers(0, 2**32))
def test_a_join_written_another_way_is_the_same_operators(meaning: Joined, seed: int) -> None:
    rng = random.Random(seed)
    (one, one_names), (other, other_names) = write_join(meaning, rng), write_join(meaning, rng)
    plans = plan_of(one), plan_of(other)
    assert signatures(plans[0]) == signatures(plans[1]), f"{one}\n{other}"
    assert answers(plans[0], one_names) == answers(plans[1], other_names)


def another(meaning: Joined, rng: random.Random) -> Joined:
    """Returns a different meaning, by one change."""
    least, most = meaning.w_range
    missing = [column for column in COLUMNS if column not in meaning.columns and column != ("u", "k") and column != ("s", "k")]
    changes: list[dict[str, object]] = [
        {"before": meaning.before + 1},
        {"after": meaning.after + 1},
        {"v_over": meaning.v_over + 1},
        {"w_range": (least - 1, most)},
        {"w_range": (least, most + 1)},
        {"crossing": not meaning.crossing},
        *([{"columns": (*meaning.columns, rng.choice(missing))}] if missing else []),
    ]
    if meaning.before != meaning.after:
        changes.append({"before": meaning.after, "after": meaning.before})
    return replace(meaning, **rng.choice(changes))  # type: ignore[arg-type]


@examples(90)
@given(JOINED, st.integers(0, 2**32))
def test_a_join_that_means_something_else_has_another_signature(meaning: Joined, seed: int) -> None:
    rng = random.Random(seed)
    one, other = write_join(meaning, rng)[0], write_join(another(meaning, rng), rng)[0]
    plans = plan_of(one), plan_of(other)
    assert plans[0].operators[-2].signature != plans[1].operators[-2].signature, f"{one}\n{other}"


AGGREGATES = (
    "count(*)",
    "sum(v)",
    "max(n)",
    "min(v)",
    "avg(v)",
    "count(DISTINCT n)",
    "approx_percentile(v, 0.5)",
    "approx_percentile(v, 0.9)",
)


@dataclass(frozen=True)
class Counted:
    """Windows over the union of two parts of s."""

    size: int
    hops: int
    keys: tuple[str, ...]
    aggregates: tuple[str, ...]
    over: int
    having: int


COUNTED = st.builds(
    Counted,
    st.integers(1, 6),
    st.integers(1, 2),
    st.sampled_from([("k",), ("k", "ok"), ("ok",)]),
    st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(-2, 3),
    st.integers(0, 3),
)


def write_window(meaning: Counted, rng: random.Random) -> tuple[str, list[str]]:
    """Returns the query and its column names. The condition on windows is in HAVING or in an outer SELECT."""
    t = rng.choice(["ts", "t", "moment"])
    conditions = [f"v > {meaning.over}", f"n <= {meaning.over}"]
    columns = [f"ts AS {t}", "k", "ok", "v", "n"]
    parts = []
    for condition in conditions:
        inner = shuffled(rng, ["k", "ok", "v", "n", f"ts AS {t}"]) if rng.randrange(2) else columns
        parts.append(f"SELECT {', '.join(c.rpartition(' ')[2] for c in columns)} FROM (SELECT {', '.join(inner)} FROM s WHERE {condition})")
    if rng.randrange(2):
        parts.reverse()
    size, slide = meaning.size * meaning.hops, meaning.size
    if meaning.hops == 1 and rng.randrange(2):
        window = f"TUMBLE(({' UNION ALL '.join(parts)}), {t}, {seconds(size)})"
    else:
        window = f"HOP(({' UNION ALL '.join(parts)}), {t}, {seconds(slide)}, {seconds(size)})"
    names = [f"{rng.choice('xyz')}{number}" for number in range(len(meaning.keys) + len(meaning.aggregates))]
    items = [f"{value} AS {name}" for value, name in zip((*meaning.keys, *meaning.aggregates), names, strict=True)]
    groups = ", ".join(shuffled(rng, [rng.choice(["window_start", "window_end"]), *meaning.keys]))
    having = rng.choice([f"count(*) > {meaning.having}", f"{meaning.having} < count(*)"])
    if rng.randrange(2):
        return f"SELECT {', '.join(shuffled(rng, items))} FROM {window} GROUP BY {groups} HAVING {having}", names
    inner = f"SELECT {', '.join(shuffled(rng, [*items, 'count(*) AS many']))} FROM {window} GROUP BY {groups}"
    return f"SELECT {', '.join(shuffled(rng, names))} FROM ({inner}) WHERE many > {meaning.having}", names


@examples(35)
@given(COUNTED, st.integers(0, 2**32))
def test_a_window_written_another_way_is_the_same_operators(meaning: Counted, seed: int) -> None:
    rng = random.Random(seed)
    (one, one_names), (other, other_names) = write_window(meaning, rng), write_window(meaning, rng)
    plans = plan_of(one), plan_of(other)
    assert signatures(plans[0]) == signatures(plans[1]), f"{one}\n{other}"
    assert answers(plans[0], one_names) == answers(plans[1], other_names)


@examples(60)
@given(COUNTED, COUNTED, st.integers(0, 2**32))
def test_windows_of_one_signature_give_one_answer(meaning: Counted, another: Counted, seed: int) -> None:
    """Equal signatures must give equal answers even for independently drawn meanings."""
    rng = random.Random(seed)
    another = replace(another, keys=meaning.keys, aggregates=meaning.aggregates) if rng.randrange(2) else another
    plans = [plan_of(write_window(one, rng)[0]) for one in (meaning, another)]
    tops = [plan.operators[-2] for plan in plans]
    same_rows = (meaning.size, meaning.hops, meaning.over, meaning.having, meaning.keys) == (
        another.size,
        another.hops,
        another.over,
        another.having,
        another.keys,
    )
    same = same_rows and set(meaning.aggregates) == set(another.aggregates)
    assert (tops[0].signature == tops[1].signature) == same


def test_sessions_are_the_same_operators_whoever_writes_them_and_no_windows() -> None:
    def top(text: str) -> str:
        return plan_of(text).operators[-2].signature

    session = top("SELECT k, count(*) AS c FROM SESSION(s, ts, INTERVAL '5 s') GROUP BY window_start, k")
    assert session == top(
        "SELECT count(*) AS n, key FROM SESSION((SELECT ts AS t, k AS key FROM s), t, INTERVAL '5000 ms') GROUP BY 2, window_end"
    )
    others = [
        "SELECT k, count(*) AS c FROM SESSION(s, ts, INTERVAL '6 s') GROUP BY window_start, k",
        "SELECT k, count(*) AS c FROM SESSION(s, ts, INTERVAL '5 s', lateness => INTERVAL '1 s') GROUP BY window_start, k",
        "SELECT k, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '5 s') GROUP BY window_start, k",
    ]
    assert len({session, *map(top, others)}) == 4


SELF_JOINS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans())


@examples(25)
@given(SELF_JOINS, st.integers(0, 2**32))
def test_a_stream_joined_with_itself_has_no_first_side(meaning: tuple[int, int, bool], seed: int) -> None:
    rng = random.Random(seed)
    before, after, filtered = meaning

    def write() -> tuple[str, list[str]]:
        first, second = rng.sample(["a", "b", "x"], 2)
        sides = [f"s AS {first}", f"s AS {second}"]
        if rng.randrange(2):
            sides.reverse()
        bounds = interval(Joined(before, after, 0, (0, 0), False, ()), first, second, rng)
        conditions = shuffled(rng, [f"{first}.k = {second}.k", *bounds])
        where = f" WHERE {first}.v > 2" if filtered else ""
        items = [f"{first}.v AS one", f"{second}.v AS two", f"{second}.n AS three"]
        return f"SELECT {', '.join(shuffled(rng, items))} FROM {sides[0]} JOIN {sides[1]} ON {' AND '.join(conditions)}{where}", [
            "one",
            "two",
            "three",
        ]

    (one, names), (other, _) = write(), write()
    plans = plan_of(one), plan_of(other)
    assert signatures(plans[0]) == signatures(plans[1]), f"{one}\n{other}"
    assert answers(plans[0], names) == answers(plans[1], names)


def test_the_order_of_the_parts_of_a_union_does_not_matter() -> None:
    parts = ["SELECT k AS key, v AS value FROM s WHERE n > 1", "SELECT k AS key, w AS value FROM u"]
    plans = [plan_of(f"SELECT key, value FROM ({' UNION ALL '.join(order)}) WHERE value > 1") for order in (parts, parts[::-1])]
    assert signatures(plans[0]) == signatures(plans[1])
    assert answers(plans[0], ["key", "value"]) == answers(plans[1], ["key", "value"])
    assert sum(answers(plans[0], ["key"]).values()) > 5


def test_a_condition_between_the_sides_of_a_join_is_in_its_signature() -> None:
    base = "SELECT v, w FROM s JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts AND s.ts + INTERVAL '3 s'"
    tops = [plan_of(base + where).operators[-2] for where in ("", " WHERE v > w", " WHERE w > v", " WHERE v >= w")]
    assert len({top.signature for top in tops}) == 4


def test_the_sides_of_a_join_are_the_same_whoever_names_them_first() -> None:
    right = "(SELECT ts AS t, k, w FROM u) AS r"
    one = plan_of(f"SELECT * FROM s JOIN {right} USING (k) WHERE t BETWEEN ts - INTERVAL '2 s' AND ts + INTERVAL '1 s'")
    other = plan_of(f"SELECT * FROM {right} JOIN s USING (k) WHERE ts BETWEEN t - INTERVAL '1 s' AND t + INTERVAL '2 s'")
    assert signatures(one) == signatures(other)
    assert [column.name for column in one.operators[-1].schema] != [column.name for column in other.operators[-1].schema]
    assert run(one).height == run(other).height > 10
