"""`sbon plan throughput` over plans: orders of joins and filters, placements, and what they carry."""

import numpy as np
import pytest

from sbon.cost.books import Books
from sbon.cost.highest_rate import Rates
from sbon.planning.gathering import placed_query
from sbon.planning.orders import PlanOrder
from sbon.planning.throughput import throughput
from sbon.query.moves import moved, moves
from sbon.query.planner import plan
from sbon.query.sql import parse
from sbon.search.limit_loads import SWAP
from sbon.search.rates import RatesPlacement
from tests.query_worlds import NODES, make_catalog

SOURCE = """
CREATE SOURCE {0} (ts TIMESTAMP, k BIGINT, m BIGINT, v DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'tcp', nodes = '{1}', port = 1, estimated_rows_per_second = {2});
"""
BETWEEN = "BETWEEN {0}.ts - INTERVAL '5 s' AND {0}.ts + INTERVAL '5 s'"
CHAIN = f"FROM x JOIN y ON x.k = y.k AND y.ts {BETWEEN.format('x')} JOIN z ON y.m = z.m AND z.ts {BETWEEN.format('y')}"


def query_of(sql, rates=(1000, 10, 10)):
    catalog = make_catalog("".join(SOURCE.format(name, node, rate) for name, node, rate in zip("xyz", "abc", rates, strict=True)))
    (statement,) = parse(sql)
    made = plan(statement, catalog, NODES, "b", "q")
    pairs = [(one, other, 20.0, True) for one in "abc" for other in "abc" if one != other]
    return placed_query(Books(), made, {spec.id: spec.pinned or "b" for spec in made.operators}, pairs, now=0.0)


def test_joins_are_exchanged_where_the_plan_carries_more_so():
    selective = CHAIN.replace("y.m = z.m", "y.m = z.m AND y.v = z.v AND y.m + y.v = z.m + z.v")
    query = query_of(f"SELECT x.v, y.v AS w, z.v AS u {selective}")
    profile = {"x": "200000/s", "y": "10/s", "z": "10/s"}

    found = throughput(query, {"profile": profile})

    assert found["reordered"]
    assert found["best"]["multiple"] > 1.2 * found["now"]["multiple"]
    assert found["best"]["carries"]
    assert not found["now"]["carries"]
    assert found == throughput(query, {"profile": profile})


def test_an_order_reached_by_moves_asks_what_it_asks_anew_and_is_valued_so():
    query = query_of(f"SELECT x.v, y.v AS w, z.v AS u {CHAIN} WHERE x.v > 0 AND z.v > 0")
    rates = Rates(query, {"": {spec.id: 50.0 for spec in query.sources}})
    order = PlanOrder(rates, query.plan)
    one = RatesPlacement(order, [(0, 1, 2)] * len(query.plan.operators), rates.supply, np.random.default_rng(1), rates.node_of, target=1.0)
    assert len(order.moves()) >= 2
    swaps = np.array([(SWAP, number, 0) for number in range(len(order.moves()))])
    values, keys, taken = one.values_after(swaps), one.keys_after(swaps), one.snapshot()
    for swap, value, key, move in zip(swaps, values.tolist(), keys.tolist(), moves(query.plan), strict=True):
        one.apply(swap)
        assert one.key == key
        assert one.value() == pytest.approx(value, rel=1e-6)
        anew = Rates.of_order(rates, moved(query.plan, move))
        assert one.quality == pytest.approx(min(limit.quality for limit in anew.limits()))
        one.restore(taken)


def test_rows_of_the_last_stream_are_the_same_in_every_order():
    query = query_of(f"SELECT x.v, y.v AS w, z.v AS u {CHAIN} WHERE x.v > 0 AND z.v > 0")
    rates = Rates(query, {"": {spec.id: 50.0 for spec in query.sources}})
    sink = query.plan.operators[-1].id
    first = PlanOrder(rates, query.plan)

    def into_sink(order):
        ends, sent = order.streams()
        return next(bytes_ for (_, target), bytes_ in zip(ends, sent, strict=True) if order.demand().operators[target] == sink)

    for pair in first.moves():
        after = first.swapped(first.swap(pair))
        assert into_sink(after) == pytest.approx(into_sink(first))
