"""Numbers of instances that the planner chooses: for a rate, for a bound, and again while a query runs."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sbon.cost.figure import Edge
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.prediction import predict
from sbon.cost.resources import KERNEL_REFERENCE_NS
from sbon.cost.store import CostStore
from sbon.errors import LatencyBoundError, QueryError
from sbon.planning.admission import Admission, Refused, crowded
from sbon.planning.gathering import placed_query
from sbon.planning.resizing import OFF_S, Resizing
from sbon.planning.selecting import Sized, size
from sbon.planning.sizing import Chosen, chosen
from sbon.query.instances import auto_notes, sets_of
from sbon.query.params.joined import WindowJoinParams
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Build, Plan, Sizing
from sbon.query.planner import planning
from sbon.query.sql import CreateSink, parse
from sbon.wire.reports import OperatorReport
from sbon_testbed.mace.bounds import known_costs
from tests.query.test_instances import JOIN, MATCH, QUERIES, WINDOW, sink
from tests.query_worlds import NODES, make_catalog, run

KEYED = (WindowParams, WindowJoinParams, DeduplicateParams, MatchParams)
BATCH_NS = 1e4


def planned(select: str, rate: float = 100.0, bound: str = "", catalog: str = "") -> tuple[Plan, Build]:
    """Returns the plan of a sink with `instances = 'auto'` over a source on node b, and a function that plans it with other numbers."""
    text = catalog or (
        "CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) "
        f"WITH (connector = 'datagen', nodes = 'b', rows_per_second = {rate});"
        "CREATE SOURCE u (ts TIMESTAMP, k TEXT, w DOUBLE, WATERMARK FOR ts AS ts) "
        f"WITH (connector = 'datagen', nodes = 'b', rows_per_second = {rate});"
    )
    (statement,) = parse(sink(select, f"'auto'{bound and f', max_latency = {bound!r}'}"))
    assert isinstance(statement, CreateSink)
    return planning(statement, make_catalog(text), NODES, "b", "q")


def placed(plan: Plan, row_ns: float, cores: int = 4, hosts: int = 1) -> PlacedQuery:
    """Places a plan on node b, beside idle hosts. A row costs `row_ns` at an operator with keys, next to nothing at others."""
    cost_store = CostStore("b")
    cost_store.timed([KERNEL_REFERENCE_NS] * 9)
    names = ["b", "a", "c"][:hosts]
    for node in names:
        other = CostStore(node)
        other.timed([KERNEL_REFERENCE_NS] * 9)
        for second in range(20):
            other.sample(float(second), 0.0, {})
        cost_store.hear(node, other.own(cores, 1e9, now=20.0), (), now=20.0)
    costs = [known_costs(spec, BATCH_NS, row_ns if isinstance(spec.params, KEYED) else 10.0) for spec in plan.operators]
    cost_store.statistics.restore(costs, 20.0)
    ways = [(one, other, 1.0, True) for one in names for other in names if one != other]
    found = placed_query(cost_store, plan, {spec.id: "b" for spec in plan.operators}, ways, now=20.0)
    return msgspec.structs.replace(found, nodes={node: cost_store.nodes.of(node, 20.0) for node in names})


def number(row_ns: float, rate: float = 1000.0, bound: str = "", **given: Any) -> int:
    plan, _ = planned(WINDOW, rate, bound)
    return chosen(placed(plan, row_ns, **given)).numbers[0]


def test_as_many_instances_as_the_rate_needs_with_room_to_spare() -> None:
    """1,000 rows/s of 0.5, 0.9, 1.5 and 2.7 ms need 0.63, 1.1, 1.9 and 3.4 cores, with a quarter to spare."""
    assert [number(row_ns) for row_ns in (5e5, 9e5, 1.5e6, 2.7e6)] == [1, 2, 2, 4]


def test_never_more_instances_than_there_are_cores_for_and_more_hosts_give_more() -> None:
    plan, _ = planned(WINDOW, 1000.0)

    one, two = (chosen(placed(plan, 5e6, hosts=hosts)) for hosts in (1, 2))

    assert one.numbers == (4,)
    assert one.problem.startswith(
        "the window gets 1,000 rows/s, 5.0 cores; with up to 4 instances, for which there are cores, it carries 7"
    )
    assert one.problem.endswith("use fewer rows, or more or faster nodes")
    assert two.problem == ""
    assert two.numbers == (8,)
    assert two.sizings[0].most == 8


def test_a_tighter_bound_never_takes_fewer_instances_and_one_that_none_keeps_is_refused_with_what_is_missing() -> None:
    numbers = [number(8e5, bound=bound) for bound in ("10 s", "100 ms", "60 ms")]
    assert numbers == sorted(numbers)
    assert numbers[0] == 2

    plan, build = planned(WINDOW, 1000.0, "100 ms")
    answers: list[Any] = []
    size(plan, build, *_imagined(placed(plan, 2e7)), answers.append)
    (refused,) = answers
    assert isinstance(refused, LatencyBoundError)
    assert "within max_latency = 100 ms" in str(refused)
    assert str(refused).endswith("or allow a later answer")
    assert "\n" not in str(refused)


def test_costs_that_are_guesses_refuse_nothing() -> None:
    plan, build = planned(WINDOW, 1e8, "100 ms")
    query = placed(msgspec.structs.replace(plan, operators=()), 0.0)
    by_rule = placed_query(CostStore("b"), plan, {spec.id: "b" for spec in plan.operators}, [], now=20.0)
    answers: list[Any] = []

    size(plan, build, *_imagined(msgspec.structs.replace(by_rule, nodes=query.nodes)), answers.append)

    (found,) = answers
    assert isinstance(found, Sized)
    assert "of that within max_latency" in found.note


def _imagined(query: PlacedQuery) -> tuple[Any, Any]:
    """Returns a placement that places plans as the query is placed, and an executor."""

    class Placing:
        def place(self, plan: Plan, done: Any, **_: Any) -> None:
            assert plan.max_latency_ms is None
            done(None)

        def gather(self, plan: Plan, placed: Any) -> PlacedQuery:
            assert plan.max_latency_ms == query.plan.max_latency_ms
            return query

    def execute(work: Any, done: Any, *, rows: int) -> None:
        try:
            result = work()
        except Exception as problem:  # as threads do
            result = problem
        done(result)

    return Placing(), execute


def test_a_bound_has_the_most_instances_as_a_second_choice() -> None:
    plan, build = planned(WINDOW, 1000.0, "10 s")
    answers: list[Any] = []

    size(plan, build, *_imagined(placed(plan, 1.5e6)), answers.append)

    (found,) = answers
    assert [len(one.sizings[0].operators) for one in (found.plan, found.larger)] == [2, 4]
    assert auto_notes(found.plan) == ["2 of window: rate 1,000/s needs 1.5 cores; at most 4"]


def test_a_hot_key_that_needs_more_than_a_core_is_named_with_its_share() -> None:
    plan, _ = planned(WINDOW, 1000.0)

    found = chosen(placed(plan, 2e6), [(0.6,)])

    assert found.problem.startswith("one key of the window has 60% of its 1,000 rows/s, 1.2 cores")
    assert chosen(placed(plan, 2e6), [(0.2,)]).problem == ""


@pytest.mark.parametrize("query", QUERIES)
def test_answers_with_any_number_are_those_of_one_instance_in_its_order(query: str) -> None:
    plan, build = planned(QUERIES[query])
    one = run(plan)

    assert one.height > 2
    assert len(plan.sizings) == 1
    for count in (2, 3, 8):
        dealt = build((count,))
        assert len(dealt.sizings[0].operators) == count
        assert run(dealt).equals(one)


def test_each_operator_has_a_number_of_its_own_and_what_follows_keeps_its_signature() -> None:
    select = f"SELECT DISTINCT ON (window_start, k) * FROM TUMBLE(({WINDOW}), window_end, INTERVAL '20 s')"
    plan, build = planned(select)

    dealt = build((1, 3))

    assert [len(one.operators) for one in dealt.sizings] == [1, 3]
    assert run(dealt).equals(run(plan))
    assert build((2, 1)).operators[-2].signature == plan.operators[-2].signature, "costs and sharing of later operators are the same"
    assert build((2, 1)).sizings[0].alone == next(one.signature for one in plan.operators if one.id == plan.sizings[0].operators[0])


def test_instances_cost_what_the_operator_alone_costs_until_they_are_measured() -> None:
    plan, build = planned(WINDOW)
    alone = placed(plan, 5e5)
    dealt = build((2,))
    cost_store = CostStore("b")
    cost_store.statistics.restore(list(alone.statistics.values()), 20.0)

    found = placed_query(cost_store, dealt, {spec.id: "b" for spec in dealt.operators}, [], now=20.0)

    for instance in dealt.sizings[0].operators:
        law = found.statistics[instance].ports[0].law
        assert law == alone.statistics[plan.sizings[0].operators[0]].ports[0].law


def test_what_is_shown_of_one_instance_and_of_several() -> None:
    plan, build = planned(JOIN)
    (one,), (two,) = (sets_of(each) for each in (plan, Chosen((2,), (Sizing((), 400.0, 1.41, 4),)).of(build((2,)))))

    assert one.text(["a"]) == "window_join: 1 by k (a; auto: no rate is known)"
    assert two.text(["a", "b"]) == "window_join: 2 by k (a, b; auto: rate 400/s needs 1.4 cores; at most 4)"
    assert two.told(dict(zip(two.operators, "ab", strict=True)))["auto"] == {"rate_rows_per_s": 400.0, "cores": 1.41, "most": 4}


def test_auto_without_keys_is_refused_and_a_view_hands_it_on() -> None:
    with pytest.raises(QueryError, match="instances = 'auto', but no operator of the query has keys"):
        planned("SELECT k FROM s")
    source = "CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'b');"
    catalog = f"{source}CREATE VIEW w WITH (instances = 'auto') AS {MATCH};"
    (statement,) = parse("CREATE SINK o AS SELECT * FROM w WITH (connector = 'discard')")
    assert isinstance(statement, CreateSink)
    plan, _ = planning(statement, make_catalog(catalog), NODES, "b", "q")
    assert [one.kind for one in sets_of(plan)] == ["match"]


def test_rows_that_a_pattern_holds_count_against_the_memory_of_its_node() -> None:
    """1,000 rows/s of 83 bytes for a day are 7.2 GB, more than the 1 GB of the node; for 5 s they are 0.4 MB."""
    long, _ = planned(MATCH.replace("'5 seconds'", "'1 day'"), 1000.0)
    short, _ = planned(MATCH, 1000.0)

    assert crowded(placed(short, 1e3)) == {}
    crowd = crowded(placed(long, 1e3))
    ((needs, has),) = crowd.values()
    assert needs > has == 1e9
    admission = Admission(long)
    admission.begin()
    where: Any = SimpleNamespace(nodes={}, decision=SimpleNamespace(delay_ms=1.0))
    refused = admission.placed(where, predict(placed(long, 1e3), ()), crowd=crowd)
    assert isinstance(refused, Refused)
    assert "rows that the query holds on b (rate x the time of WITHIN" in str(refused.problem)
    assert "954 MiB for states" in str(refused.problem)


# ------------------------------------------------------------------------------------------------------- planned anew


def running(rate: float, row_ns: float) -> tuple[Plan, Any]:
    """Returns a plan with two instances for 1,500 rows/s, and a round of reports at another rate."""
    _, build = planned(WINDOW, rate)
    plan = msgspec.structs.replace(
        build((2,)), sizings=(msgspec.structs.replace(build((2,)).sizings[0], rate_rows_per_s=1500.0, cores=1.5),)
    )
    reports = {
        one: OperatorReport(one, "running", "b", rows_per_s_in=rate / 2, cpu_ns_per_row=int(row_ns)) for one in plan.sizings[0].operators
    }
    return plan, reports


def minutes(resizing: Resizing, rate: float, seconds: int, begin_s: float = 0.0, row_ns: float = 1e6) -> None:
    """Gives a round of reports every second, at a rate; makes a plan whenever one is asked for."""
    plan, reports = running(rate, row_ns)
    for second in range(seconds):
        if resizing.look(reports, begin_s + second):
            resizing.planned(*resizing.plan_anew(placed(plan, row_ns)))


def test_a_rate_that_doubles_for_a_minute_asks_for_more_instances_and_then_stays() -> None:
    plan, _ = running(1500.0, 1e6)
    resizing = Resizing(plan)
    minutes(resizing, 1500.0, 120)
    assert (resizing.wanted, resizing.reason) == ([2], "")

    minutes(resizing, 3000.0, int(OFF_S), 200.0)
    assert resizing.wanted == [2], "not before a minute has passed"
    minutes(resizing, 3000.0, int(OFF_S) + 1, 300.0)

    assert resizing.wanted == [4]
    assert resizing.reason == ("2 of window were planned for 1,500 rows/s, 3,000 rows/s come and need 4; `sbon replan` gives them to it")
    minutes(resizing, 2400.0, 300, 400.0)
    assert resizing.wanted == [4], "a fifth less than planned changes nothing"
    minutes(resizing, 1400.0, 300, 800.0)
    assert (resizing.wanted, resizing.reason) == ([2], ""), "the running instances suffice again"
    minutes(resizing, 650.0, 300, 1200.0)
    assert resizing.wanted == [2], "one instance would do, but without the room that a smaller number must have"
    minutes(resizing, 300.0, 300, 1600.0)
    assert (resizing.wanted, resizing.reason) == ([1], ""), "too many instances are not reported"


def test_a_rate_that_goes_up_and_down_within_a_minute_changes_nothing() -> None:
    plan, _ = running(1500.0, 1e6)
    resizing = Resizing(plan)

    for turn in range(10):
        minutes(resizing, 3000.0, 50, 100.0 * turn)
        minutes(resizing, 1500.0, 50, 100.0 * turn + 50)

    assert resizing.wanted == [2]


def test_rows_that_cost_more_than_was_planned_count_like_more_rows() -> None:
    plan, _ = running(1500.0, 1e6)
    resizing = Resizing(plan)

    minutes(resizing, 1500.0, 62, row_ns=1.8e6)

    assert resizing.wanted == [4]


def test_an_instance_with_most_of_the_rows_tells_of_a_hot_key() -> None:
    plan, reports = running(1500.0, 1e6)
    first, second = plan.sizings[0].operators
    reports[first] = msgspec.structs.replace(reports[first], rows_per_s_in=2000.0)
    reports[second] = msgspec.structs.replace(reports[second], rows_per_s_in=100.0)
    resizing = Resizing(plan)
    assert not resizing.look(reports, 0.0)
    assert resizing.look(reports, OFF_S)

    resizing.planned(*resizing.plan_anew(placed(running(2100.0, 1e6)[0], 1e6)))

    assert "one key of the window has 90% of its 2,100 rows/s, 1.9 cores" in resizing.reason


def test_nothing_is_planned_before_all_instances_have_told() -> None:
    plan, reports = running(9000.0, 1e6)
    reports.popitem()
    resizing = Resizing(plan)

    assert not any(resizing.look(reports, 10.0 * turn) for turn in range(30))


def test_predictions_divide_the_rows_of_a_dealt_operator_among_its_instances() -> None:
    """Four instances on four cores carry four times the rows of one, which has one core; each link from the exchange has a quarter."""
    _, build = planned(WINDOW, 1000.0)
    one, four = (placed(build((count,)), 2e6) for count in (1, 4))

    assert [round(predict(query).explained()["highest_rate"]["multiple"], 2) for query in (one, four)] == [0.5, 2.0]
    for query, count in ((one, 1), (four, 4)):
        windows = [spec.id for spec in query.plan.operators if isinstance(spec.params, WindowParams)]
        assert len(windows) == count
        for edge, share in ((Edge.EXPECTED, 1 / count), (Edge.HIGH, 1.0 if count == 1 else 2 / count)):
            graph = query.flow(edge)
            rows = graph.series(query.series(20, 1.0)).rows_in
            assert [rows[graph.index[name]].sum() for name in windows] == pytest.approx([1000.0 * 20 * share] * count, rel=0.03)
    assert predict(four).latency.worst_s is not None
    assert predict(one).latency.worst_s is None, "one instance never catches up"
    assert predict(one).latency.overloaded == ("b",)
    (alone,) = [spec.id for spec in one.plan.operators if isinstance(spec.params, WindowParams)]
    assert predict(one).latency.text() == f"never ends: b has more load than capacity (one core is too little for {alone})"
