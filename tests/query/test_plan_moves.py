"""Every operator order reached by swaps gives the same answer for any batches, and shares its result with the original plan."""

import random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.frames import arranged, empty
from sbon.operators.registry import build
from sbon.query.moves import moved, moves, refusals
from sbon.query.params.joined import JoinParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import UNCHANGED
from sbon.query.planner import planning
from sbon.query.sql import parse
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.examples import examples
from tests.query_worlds import NODES, make_catalog, run

SOURCE = """
CREATE SOURCE {0} (ts TIMESTAMP, k BIGINT, m BIGINT, v DOUBLE, t TEXT, WATERMARK FOR ts AS ts)
WITH (connector = 'tcp', nodes = '{1}', port = 1);
"""
CATALOG = make_catalog("\n".join(SOURCE.format(name, node) for name, node in (("a", "a"), ("b", "b"), ("c", "c"), ("d", "a"))))
ORDERS_MAX = 8
SECOND = 1_000_000


def planned(sql, query="q", changed=UNCHANGED):
    (statement,) = parse(sql)
    return planning(statement, CATALOG, NODES, "b", query, changed=changed)[0]


def all_orders(first):
    """Returns all plans, distinct in links and parameters, that moves can reach, each with its moves."""
    found, seen = [(first, ())], {form(first)}
    for one, way in found:
        for move in moves(one):
            after = moved(one, move)
            if form(after) not in seen and len(found) < ORDERS_MAX:
                seen.add(form(after))
                found.append((after, (*way, move)))
    return found


def form(one):
    return frozenset((spec.id, repr(spec.params)) for spec in one.operators), frozenset(link.id for link in one.links)


def rows_of(frame):
    return sorted(map(repr, frame.rows()))


def in_steps(plan_, inputs, cuts):
    """Returns the rows that reach the sink when source rows arrive in parts, each part followed by a watermark."""
    machines = {spec.id: build(spec.params) for spec in plan_.operators if not isinstance(spec.params, SourceParams | SinkParams)}
    sink = plan_.operators[-1]
    got = [empty(next(spec.schema for spec in plan_.operators if spec.id == plan_.links[-1].source))][:0]
    watermarks = {spec.id: WATERMARK_MIN for spec in plan_.operators}
    for low, high in zip((WATERMARK_MIN, *cuts), (*cuts, WATERMARK_END), strict=True):
        fresh = {}
        for spec in plan_.operators:
            incoming = [link for link in plan_.links if link.target == spec.id]
            frames = [(link.port, frame) for link in incoming for frame in fresh[link.source] if not frame.is_empty()]
            if isinstance(spec.params, SourceParams):
                us = pl.col("ts").dt.epoch("us")
                fresh[spec.id] = [inputs[spec.params.name].filter((us >= low) & (us < high))]
                watermarks[spec.id] = high
                continue
            if spec is sink:
                got += [arranged(frame, sink.params.columns) for _, frame in frames]
                continue
            machine = machines[spec.id]
            fresh[spec.id] = [out for port, frame in frames for out in machine.process(port, frame)]
            here = min(watermarks[link.source] for link in incoming)
            fresh[spec.id] += machine.advance(here)
            watermarks[spec.id] = machine.output_watermark(here)
            assert getattr(machine, "late_rows", 0) == 0
    return pl.concat(got) if got else pl.DataFrame()


def data(rng, rows_max=25):
    frames = {}
    for name in "abcd":
        count = rng.randrange(0, rows_max)
        times = sorted(rng.randrange(0, 30) * SECOND for _ in range(count))
        frames[name] = pl.DataFrame(
            {
                "ts": pl.Series(times, dtype=pl.Int64).cast(pl.Datetime("us")),
                "k": pl.Series([rng.choice([None, 0, 1, 2]) for _ in times], dtype=pl.Int64),
                "m": pl.Series([rng.randrange(3) for _ in times], dtype=pl.Int64),
                "v": pl.Series([rng.choice([None, 0.5, 1.5, -2.0]) for _ in times], dtype=pl.Float64),
                "t": pl.Series([rng.choice(["x", "y"]) for _ in times], dtype=pl.String),
            }
        )
    return frames


def random_sql(rng):
    """Returns joins of two to four sources, each with an earlier one, with random filters and sometimes a window by key."""
    names = list("abcd")[: rng.randrange(2, 5)]
    rng.shuffle(names)
    text, timed = names[0], [names[0]]
    for name in names[1:]:
        other = rng.choice(timed)  # the next join may use only the times of the last pair
        timed = [other, name]
        key, theirs = rng.choice(["k", "m"]), rng.choice(["k", "m"])
        before, after = rng.randrange(0, 6), rng.randrange(0, 6)
        text += f" JOIN {name} ON {other}.{theirs} = {name}.{key}"
        text += f" AND {name}.ts BETWEEN {other}.ts - INTERVAL '{before} s' AND {other}.ts + INTERVAL '{after} s'"
        if rng.random() < 0.3:
            text += f" AND {name}.v >= {other}.v"
    conditions = [
        rng.choice(["{0}.v > 0", "{0}.k <> 1", "{0}.t = 'x'", "{0}.v IS NULL", "{0}.m + 1 < 3"]).format(name)
        for name in names
        if rng.random() < 0.6
    ]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = [f"{name}.{rng.choice(['k', 'm', 'v', 't'])} AS {name}{number}" for number, name in enumerate(names)]
    if rng.random() < 0.5:
        columns.append(f"{rng.choice(names)}.ts AS at")
    if rng.random() < 0.3:
        columns.append(f"{names[0]}.v * 2 AS twice")
    if rng.random() < 0.3:
        inner = f"SELECT {rng.choice(timed)}.ts AS at, {names[0]}.k AS key, {names[-1]}.v AS value FROM {text}{where}"
        windows = f"TUMBLE(({inner}), at, INTERVAL '5 s')"
        return f"SELECT window_end, key, count(*) AS n, max(value) AS most FROM {windows} GROUP BY window_end, key"
    return f"SELECT {', '.join(columns)} FROM {text}{where}"


@given(st.integers(0, 2**32))
@examples(20)
def test_every_order_gives_the_same_answer_and_the_signature_of_the_stream_it_replaces(seed):
    rng = random.Random(seed)
    first = planned(sql := random_sql(rng))
    inputs = data(rng)
    cuts = sorted({rng.randrange(0, 31) * SECOND for _ in range(rng.randrange(0, 5))})
    expected = rows_of(run(first, inputs))
    assert rows_of(in_steps(first, inputs, cuts)) == expected
    for one, way in all_orders(first)[1:]:
        assert rows_of(run(one, inputs)) == expected, way
        assert rows_of(in_steps(one, inputs, cuts)) == expected, way
        assert {spec.id for spec in one.operators} == {spec.id for spec in first.operators}
        ends = [next(spec.signature for spec in each.operators if spec.id == each.links[-1].source) for each in (one, first)]
        assert ends[0] == ends[1], "the signature of the result changed: other queries would not find it"
        anew = planned(sql, "another", one.changed)
        assert sorted(spec.signature for spec in anew.operators) == sorted(spec.signature for spec in one.operators), way
        assert anew.changed == one.changed
        made = way[-1]
        before = moved_before(first, way)
        top = next(spec for spec in before.operators if spec.id == made.top)
        bottom = next(spec for spec in one.operators if spec.id == made.bottom)
        assert (bottom.signature, bottom.schema) == (top.signature, top.schema)
        assert next(spec for spec in one.operators if spec.id == made.top).signature not in {spec.signature for spec in before.operators}


def moved_before(first, way):
    for move in way[:-1]:
        first = moved(first, move)
    return first


BETWEEN = "BETWEEN {0}.ts - INTERVAL '5 s' AND {0}.ts + INTERVAL '5 s'"
WINDOWS = "TUMBLE((SELECT ts, k FROM a WHERE {0}), ts, INTERVAL '5 s')"
CHAIN = f"FROM a JOIN b ON a.k = b.k AND b.ts {BETWEEN.format('a')} JOIN c ON b.m = c.m AND c.ts {BETWEEN.format('b')}"


def test_joins_and_filters_of_a_chain_can_be_exchanged():
    kinds = {
        tuple(type(spec.params).__name__ for spec in one.operators if isinstance(spec.params, JoinParams | MapParams))
        for one, _ in all_orders(planned(f"SELECT a.v, b.t, c.v AS w {CHAIN} WHERE a.v > 0 AND c.v > 0"))
    }
    assert len(kinds) > 3
    assert any(kind[-1] == "MapParams" for kind in kinds), "a filter above the last join"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (f"SELECT a.v, c.ts AS at {CHAIN}", "the event time of the pairs"),
        (f"SELECT a.v, b.v AS w FROM a LEFT JOIN b ON a.k = b.k AND b.ts {BETWEEN.format('a')} AND b.v > 0", "give NULLs"),
        (f"SELECT window_end, k, count(*) AS n FROM {WINDOWS.format('v > 0')} GROUP BY window_end, k", "no keys"),
        (f"SELECT a.v, b.v AS w, c.v AS x {CHAIN.replace('b.m = c.m', 'b.m = c.m AND a.k = c.k')}", "not of this input"),
    ],
)
def test_what_is_not_exchanged_has_a_reason(sql, reason):
    assert any(reason in one for one in refusals(planned(sql)).values()), refusals(planned(sql))


def test_a_filter_on_keys_goes_above_the_window():
    first = planned(f"SELECT window_end, k, count(*) AS n FROM {WINDOWS.format('k > 0')} GROUP BY window_end, k")
    ((one, _),) = all_orders(first)[1:]
    frames = data(random.Random(5))

    assert [type(spec.params).__name__ for spec in one.operators][:3] == ["SourceParams", "WindowParams", "MapParams"]
    assert rows_of(run(one, frames)) == rows_of(run(first, frames)) != []


def test_a_move_that_the_plan_does_not_have_is_refused():
    first = planned(f"SELECT a.v, b.t, c.v AS w {CHAIN}")
    (move, *_) = moves(first)
    with pytest.raises(KeyError):
        moved(moved(first, move), move)


def test_a_condition_of_the_lower_join_holds_for_the_pairs_of_the_upper_one_after_they_change_places():
    first = planned(
        "SELECT a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '5 s' AND a.ts + INTERVAL '5 s' "
        "AND b.v >= a.v JOIN c ON b.m = c.m AND c.ts BETWEEN b.ts - INTERVAL '5 s' AND b.ts + INTERVAL '5 s'"
    )
    inputs = data(random.Random(5), rows_max=120)
    expected = rows_of(run(first, inputs))
    swapped = [one for one, way in all_orders(first) if any("sets of tuples" in move.reason for move in way)]
    assert len(expected) > 20
    assert swapped
    assert [rows_of(run(one, inputs)) == expected for one in swapped] == [True] * len(swapped)


def test_exchanges_that_lead_back_are_not_remembered():
    rng, first = random.Random(1), planned(f"SELECT a.v, b.t, c.v AS w {CHAIN} WHERE a.v > 0 AND c.v > 0")
    one, streams = first, set()
    for _ in range(60):
        one = moved(one, rng.choice(moves(one)))
        streams.add(frozenset(spec.signature for spec in one.operators))
        assert len(one.changed.exchanges) <= len(streams)
    assert len(streams) < 20


def test_of_two_filters_that_look_alike_the_same_one_is_taken_above_the_join_again():
    sql = f"SELECT a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND b.ts {BETWEEN.format('a')} WHERE a.v > 0 AND b.v > 0"
    first = planned(sql)
    assert len(moves(first)) == 2
    for move in moves(first):
        one = moved(first, move)
        assert form(planned(sql, changed=one.changed)) == form(one)


def test_exchanges_that_a_plan_does_not_have_are_left_out():
    first = planned(f"SELECT a.v, b.t, c.v AS w {CHAIN} WHERE a.v > 0")
    one = moved(first, moves(first)[0])
    assert planned(f"SELECT a.v, b.t {CHAIN}", changed=one.changed).changed == UNCHANGED
