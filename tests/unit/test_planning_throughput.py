"""`sbon plan throughput` over plans: orders of joins and filters, placements, and what they carry."""

import numpy as np
import pytest

from sbon.cost.books import Books
from sbon.cost.highest_rate import Rates
from sbon.execution.port_costs import PortCosts
from sbon.planning.gathering import placed_query
from sbon.planning.orders import PlanOrder
from sbon.planning.throughput import throughput
from sbon.query.moves import moved, moves
from sbon.query.plan import JoinParams, MapParams
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


def query_of(sql, rates=(1000, 10, 10), books=None):
    catalog = make_catalog("".join(SOURCE.format(name, node, rate) for name, node, rate in zip("xyz", "abc", rates, strict=True)))
    (statement,) = parse(sql)
    made = plan(statement, catalog, NODES, "b", "q")
    pairs = [(one, other, 20.0, True) for one in "abc" for other in "abc" if one != other]
    return placed_query(books or Books(), made, {spec.id: spec.pinned or "b" for spec in made.operators}, pairs, now=0.0)


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


def test_a_join_that_was_measured_at_other_rates_gives_as_many_pairs_and_costs_as_much_as_the_rates_make_of_it():
    sql = f"SELECT x.v, y.v AS w FROM x JOIN y ON x.k = y.k AND y.ts {BETWEEN.format('x')} WHERE x.v > 0"
    books = Books()
    for spec in query_of(sql, (20_000, 10_000, 10)).plan.operators:
        kind = str(spec.params.__struct_config__.tag)
        passes = 0.75 if isinstance(spec.params, MapParams) and spec.params.predicate is not None else 1.0
        costs = PortCosts(books.fit(spec.signature, spec.ports, 0.0), pairs=kind == "join")
        for second in range(60):
            for _ in range(10):
                # x gives 20,000 rows a second, of which the filter passes 15,000, not the third of the rule; y gives 10,000.
                for port, rows in enumerate((1_500, 1_000) if kind == "join" else (2_000,)):
                    out = (2_000, 1_000)[port] * (1 + second % 2) if kind == "join" else round(passes * rows)
                    costs.took(port, rows, out, 100_000 + 100 * rows + (60 * out if kind == "join" else 0))
            costs.sample(float(second))

    query = query_of(sql, (20_000, 10_000, 10), books)
    join = next(spec.id for spec in query.plan.operators if isinstance(spec.params, JoinParams))
    point = Rates(query, {"": {spec.id: 10 * rate for spec, rate in zip(query.sources, (20_000.0, 10_000.0), strict=True)}})
    row = point.demand.operators.index(join)
    _, per_row_ns, per_pair_ns = point.demand.work[0, row][:3].tolist()

    # 45,000 pairs a second at the rates of the measurement, and 100 times as many at ten times these.
    assert per_pair_ns == pytest.approx(100 * 45_000 * 60, rel=0.1)
    assert per_row_ns == pytest.approx(10 * 25_000 * 100, rel=0.3)  # batches of one size: some of it counts as theirs
