"""Latency of placed queries, predicted from known costs, rates and latencies."""

import math
from typing import Any

import msgspec
import pytest

from sbon.cost.explaining import table
from sbon.cost.figure import Source
from sbon.cost.latency_case import WAITING
from sbon.cost.placed_query import PlacedQuery, by_rule_of
from sbon.cost.prediction import Line, predict
from sbon.cost.resources import KERNEL_REFERENCE_NS
from sbon.cost.store import CostStore
from sbon.cost.waiting import UNKNOWN_WAIT_S, UNKNOWN_WAIT_S_MAX, Waits
from sbon.errors import ConfigError
from sbon.planning.admission import with_known_figures
from sbon.planning.capacity import at_rates, capacity
from sbon.planning.gathering import placed_query
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import OperatorSpec
from tests.operators.operators import OPERATORS
from tests.query_worlds import plan_of

PLAIN = "SELECT k, v FROM s WHERE v > 1"
WINDOWED = "SELECT window_start, k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, k"
ONE_WAY_MS = 20.0


def measured_cost_store(
    plan: Any, batch_ns: float = 1e6, row_ns: float = 0.0, selectivity: float = 1.0, window_ns: float = 0.0
) -> CostStore:
    """Returns a cost store in which all operators cost the same, except `window_ns` more per row at a window.

    Nodes have the reference speed.
    """
    cost_store = CostStore("b")
    cost_store.timed([KERNEL_REFERENCE_NS] * 9)
    for node in ("a", "b", "c"):
        other = CostStore(node)
        other.timed([KERNEL_REFERENCE_NS] * 9)
        for second in range(20):
            other.sample(float(second), 0.0, {})
        cost_store.hear(node, other.own(2, 1e9, now=20.0), (), now=20.0)
    for spec in plan.operators:
        more_ns = window_ns if isinstance(spec.params, WindowParams) else 0.0
        fit = cost_store.fit(spec.signature, spec.ports, now=0.0)
        for port in fit.ports:
            for rows in (1, 2, 4, 8, 16, 64, 100, 1000) * 40:
                port.took(rows, round(rows * selectivity), batch_ns + (row_ns + more_ns) * rows, at_s=20.0)
    return cost_store


def query_of(sql: str, cost_store: CostStore | None = None, **costs: float) -> PlacedQuery:
    plan = plan_of(sql)
    cost_store = measured_cost_store(plan, **costs) if cost_store is None else cost_store
    node_of = {spec.id: spec.pinned or "b" for spec in plan.operators}
    nodes = sorted(set(node_of.values()))
    links = [(a, b, ONE_WAY_MS, True) for a in nodes for b in nodes if a != b]
    return placed_query(cost_store, plan, node_of, links, network_usage_bytes=12.0, now=20.0)


def test_an_idle_query_takes_its_way_and_the_work_of_one_batch_at_each_operator() -> None:
    """Source and filter run on one node, the sink on another: 3 ms of work and 20 ms of network latency."""
    latency = predict(query_of(PLAIN)).latency

    assert latency.worst_s is not None
    assert latency.worst_s.value == pytest.approx(0.023, rel=0.1)
    assert latency.worst_s.low <= latency.worst_s.value <= latency.worst_s.high < 0.08
    assert latency.worst_s.source is Source.MEASURED
    assert latency.parts_s["network"] == pytest.approx(0.02)
    assert latency.mean_s is not None
    assert latency.p99_s is not None
    assert latency.mean_s <= latency.p99_s <= latency.worst_s.value + 1e-12


def test_more_load_than_capacity_never_ends() -> None:
    query = query_of(PLAIN, row_ns=1e9)

    latency = predict(query).latency

    assert latency.worst_s is None
    assert math.isinf(latency.upper_s)
    assert latency.overloaded
    assert latency.text().startswith("never ends: ")
    assert latency.figures()["worst_ms"] is None


@pytest.mark.parametrize(("others", "runs"), [((30, 35), (30, 35)), ((30, 35), (45, 50)), ((2, 3), (60, 60))])
def test_bursts_of_others_and_of_running_queries_that_coincide_make_answers_late_and_those_apart_do_not(
    others: tuple[int, int], runs: tuple[int, int]
) -> None:
    """Other programs and other queries each use 0.9 of two cores for some seconds. The query needs 0.8 cores; when both run it gets 0.4."""
    plan = plan_of(PLAIN)
    cost_store = measured_cost_store(plan, batch_ns=4e6)
    node = next(spec.pinned for spec in plan.operators if spec.pinned is not None)
    other, spent_ns = CostStore(node), 0.0
    other.timed([KERNEL_REFERENCE_NS] * 9)
    for second in range(61):
        of_queries = 0.9 * (runs[0] <= second < runs[1])
        spent_ns += of_queries * 1e9
        other.sample(float(second), 0.9 * (others[0] <= second < others[1]) + of_queries, {"x": round(spent_ns)})
    cost_store.hear(node, other.own(2, 1e9, now=61.0), (), now=61.0)

    latency = predict(query_of(PLAIN, cost_store)).latency

    assert latency.worst_s is not None
    assert latency.mean_s is not None
    if others == runs:
        assert latency.worst_s.value == pytest.approx(2.2, rel=0.1), "0.4 core seconds too many in each of 5 s; operators run as a chain"
        assert latency.mean_s < 0.5
        assert latency.parts_s.keys() >= {node, "network"}
    else:
        assert latency.worst_s.value < 0.05
        assert latency.worst_s.high < 0.2


def test_a_query_that_never_ran_rests_on_rules_and_says_so() -> None:
    found = predict(query_of(PLAIN, CostStore("b")))

    assert found.rests_on_rules
    (title, *_) = table(found.explained())
    assert title == f"prediction ({len(plan_of(PLAIN).operators)} of {len(plan_of(PLAIN).operators)} operators by rule):"


def test_models_add_their_lines() -> None:
    def line(query: PlacedQuery) -> Line | None:
        return Line("highest rate", "3.2 times the profile", {"factor": 3.2})

    explained = predict(query_of(PLAIN), (line, lambda query: None)).explained()

    assert explained["highest_rate"] == {"factor": 3.2}
    assert table(explained)[-1] == "  highest rate   3.2 times the profile"


def test_the_close_of_a_window_is_work_that_comes_at_once() -> None:
    """If rows out of the window are expensive, its close is the worst case: more than the work of one batch."""
    calm, bursts = predict(query_of(WINDOWED)).latency, predict(query_of(WINDOWED, row_ns=2e6)).latency

    assert calm.worst_s is not None
    assert bursts.worst_s is not None
    assert bursts.worst_s.value > calm.worst_s.value + 0.005


def test_faster_sources_bring_more_work() -> None:
    query = query_of(PLAIN, row_ns=1e5)
    rates = query.rows_per_s()

    faster = at_rates(query, 3.0)

    assert faster.rows_per_s()[query.plan.operators[0].id] == pytest.approx(3 * rates[query.plan.operators[0].id])
    told = capacity(query, {"rates": 1e4})
    assert told["now"]["latency"]["worst_ms"] is not None
    assert told["then"]["latency"]["worst_ms"] is None


def test_more_nodes_take_operators_of_the_busiest_one() -> None:
    """Only the window may move, and its node is overloaded."""
    query = query_of(WINDOWED, window_ns=4e7)
    window = next(spec.id for spec in query.plan.operators if spec.pinned is None)

    told = capacity(query, {"nodes": 2})

    assert told["now"]["latency"]["overloaded"] == ["b"]
    assert told["beside"] == "b"
    assert told["moved"] == {window: "new-1"}
    for options in ({"nodes": -1}, {"nodes": 1.5e9}, {"rates": 0}, {"rates": "2"}):
        with pytest.raises(ConfigError, match="expected a number from"):
            capacity(query, options)


def test_a_sink_that_never_ran_does_not_make_a_late_query_rest_on_rules() -> None:
    query = query_of(PLAIN)
    sink = query.plan.operators[-1]
    new = msgspec.structs.replace(query, statistics={**query.statistics, sink.id: by_rule_of(sink, 1.0)})
    prediction = predict(new, ())
    assert prediction.rests_on_rules

    assert not with_known_figures(prediction, new, 15.0).rests_on_rules
    assert with_known_figures(prediction, new, 1000.0) is prediction


def test_waits_for_processors_are_part_of_the_latency() -> None:
    """Each of two nodes adds a wait of 6 ms, and sometimes 20 ms more. Earlier waits were longer; only the upper bound counts them."""
    query = query_of(PLAIN)
    waits = Waits((0.006,) * 60, (0.008,) * 59 + (0.026,), (0.01,), (0.04,), (0.006, 0.008, 0.02, 0.02, 0.026))
    nodes = {name: msgspec.structs.replace(node, waits=waits) for name, node in query.nodes.items()}

    calm, late = predict(query).latency, predict(msgspec.structs.replace(query, nodes=nodes)).latency

    assert calm.mean_s is not None
    assert late.mean_s is not None
    assert late.mean_s == pytest.approx(calm.mean_s + 0.012, rel=0.02)
    assert calm.worst_s is not None
    assert late.worst_s is not None
    assert late.worst_s.value == pytest.approx(calm.worst_s.value + 0.032, rel=0.02)
    assert calm.p99_s is not None
    assert late.p99_s is not None
    assert late.p99_s == pytest.approx(calm.p99_s + 0.026, rel=0.02)
    assert late.parts_s[WAITING] == pytest.approx(0.032)
    assert sum(late.parts_s.values()) == pytest.approx(late.worst_s.value, rel=0.02)
    assert f"{WAITING} {0.032 / late.worst_s.value:.0%}" in late.text()
    assert late.worst_s.high > calm.worst_s.high + 2 * 2 * 0.04
    assert late.worst_s.low == pytest.approx(calm.worst_s.low)


def test_a_node_that_has_told_no_waits_widens_the_bounds() -> None:
    query = query_of(PLAIN)
    nodes = {name: msgspec.structs.replace(node, waits=None) for name, node in query.nodes.items()}

    told, untold = predict(query).latency, predict(msgspec.structs.replace(query, nodes=nodes)).latency

    assert told.worst_s is not None
    assert untold.worst_s is not None
    assert untold.worst_s.value == pytest.approx(told.worst_s.value + 2 * UNKNOWN_WAIT_S)
    assert untold.worst_s.high >= told.worst_s.high + 2 * UNKNOWN_WAIT_S_MAX
    assert untold.worst_s.low == pytest.approx(told.worst_s.low)


def test_shared_operators_bring_no_work_but_the_way_to_them() -> None:
    query = query_of(PLAIN)
    first = query.plan.operators[1].id
    kept = tuple(spec for spec in query.plan.operators[1:])
    plan = msgspec.structs.replace(query.plan, operators=kept, links=tuple(link for link in query.plan.links if link.target != first))
    shared = msgspec.structs.replace(query, plan=plan, shared=frozenset({first}), begun_s={first: 0.3})

    latency = predict(shared).latency

    assert latency.worst_s is not None
    assert latency.worst_s.value == pytest.approx(0.3 + 0.02 + 0.001, rel=0.05)


def test_the_worst_of_few_answers_is_not_below_the_99th_percentile() -> None:
    query = query_of("SELECT window_end, k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 hour') GROUP BY window_end, k")
    waits = Waits((0.001,) * 60, (0.02,) * 60, (), (), (0.001, 0.002, 0.02, 0.02, 0.02))
    nodes = {name: msgspec.structs.replace(node, waits=waits) for name, node in query.nodes.items()}

    found = predict(msgspec.structs.replace(query, nodes=nodes)).latency

    assert found.worst_s is not None
    assert found.p99_s is not None
    assert found.worst_s.value >= found.p99_s


@pytest.mark.parametrize(
    ("kind", "high"),
    [("projection", 1.0), ("exchange", 1.0), ("merge", 1.0), ("union", 1.0), ("first of windows", 1.0), ("window", 4.0), ("unnest", 4.0)],
)
def test_no_rule_of_thumb_says_that_a_filter_or_an_exchange_makes_rows(kind: str, high: float) -> None:
    """With four times the rows, an instance that needs most of a core would count as overloaded."""
    spec = OperatorSpec(id="o", params=OPERATORS[kind], schema=(), time_column=None, pinned=None, signature="s")
    (port, *_) = by_rule_of(spec, 1.0).ports

    assert (port.selectivity.low, port.selectivity.value, port.selectivity.high) == (0.25, 1.0, high)
