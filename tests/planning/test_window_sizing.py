"""Patterns with `instances = 'auto'` whose windows are dealt: number of instances, turns, texts, and answers of any choice."""

from typing import Any

import msgspec
import pytest

from sbon.errors import LatencyBoundError, QueryError
from sbon.planning.selecting import Sized, size
from sbon.planning.sizing import Chosen, chosen
from sbon.query.instances import even_turn_us, resting_on, sets_of
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import ExchangeParams, MergeParams
from sbon.query.plan import Build, Plan, Sizing
from sbon.query.planner import planning
from sbon.query.sql import CreateSink, parse
from tests.dealing.test_dealt_windows import MATCH, QUERIES, WINDOW, sink
from tests.planning.test_sizing import _imagined, placed
from tests.query_worlds import NODES, make_catalog, run

SOURCE = (
    "CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'datagen', nodes = 'b', rows_per_second = {rate});"
)


def planned(select: str = MATCH, rate: float = 1000.0, more: str = "", catalog: str = SOURCE) -> tuple[Plan, Build]:
    (statement,) = parse(sink(select, "'auto'", more))
    assert isinstance(statement, CreateSink)
    return planning(statement, make_catalog(catalog.format(rate=rate)), NODES, "b", "q")


def choice(row_ns: float, more: str = "", rate: float = 1000.0, **given: Any) -> Chosen:
    plan, _ = planned(rate=rate, more=more)
    return chosen(placed(plan, row_ns, **given))


def test_as_many_instances_as_the_windows_need_each_with_the_same_share_of_them() -> None:
    """1,000 rows/s of 0.3, 0.8 and 1.6 ms need 0.3, 0.8 and 1.6 cores, times 1.25 twice: more rows, each in more windows."""
    found = [choice(row_ns) for row_ns in (3e5, 8e5, 1.6e6)]

    assert [one.numbers for one in found] == [(1,), (2,), (3,)]
    assert [one.turns_us for one in found] == [(0,), (750_000,), (500_000,)]
    assert [one.sizings[0].rate_rows_per_s for one in found] == pytest.approx([1000, 2000, 3000], rel=1e-3)
    assert not any(one.problem for one in found)


def test_a_bound_that_outlasts_windows_takes_longer_turns_and_fewer_copies() -> None:
    short, long = (choice(1.6e6, f", max_latency = '{bound}'", cores=8) for bound in ("1 s", "60 s"))

    assert short.turns_us[0] < 6_000_000 <= long.turns_us[0]
    copies = [one.sizings[0].rate_rows_per_s / 1000 for one in (short, long)]
    assert copies[0] == short.numbers[0]
    assert copies[1] == pytest.approx(1 + 6e6 / long.turns_us[0])
    assert copies[1] < copies[0]


def test_a_given_turn_stays() -> None:
    found = choice(8e5, ", turn = '12 s', max_latency = '60 s'")

    assert found.numbers[0] > 1
    assert found.turns_us == (12_000_000,)


def test_what_the_instances_of_a_running_query_cost_leads_to_the_same_number() -> None:
    plan, build = planned()
    alone = placed(plan, 1.6e6)
    first = chosen(alone)
    dealt = first.of(build(first.numbers, first.turns_us))
    copies = first.numbers[0]
    running = placed(dealt, 100.0 + (1.6e6 - 100.0) / copies)

    again = chosen(running, [()], [first.sizings[0].cores])

    assert again.numbers == first.numbers
    assert again.turns_us == first.turns_us
    assert dealt.sizings[0].turn_us == first.turns_us[0]
    assert again.sizings[0].cores == pytest.approx(first.sizings[0].cores, rel=0.01)
    assert again.sizings[0].rate_rows_per_s == pytest.approx(first.sizings[0].rate_rows_per_s, rel=0.01)


def test_a_rate_that_no_number_carries_is_told_and_refused_under_a_bound() -> None:
    plan, build = planned(more=", max_latency = '2 s'")
    query = placed(plan, 2e7)
    answers: list[Any] = []

    size(plan, build, *_imagined(query), answers.append)

    (refused,) = answers
    assert isinstance(refused, LatencyBoundError)
    text = str(refused)
    assert text.startswith("the match gets 1,000 rows/s, 20.0 cores with 4.00 copies of a row; with up to 4 instances")
    assert "% of that within max_latency = 2000 ms: use fewer rows, a shorter WITHIN" in text
    assert choice(2e7).numbers == (4,)


def test_explain_tells_the_number_the_turn_and_the_reason() -> None:
    plan, build = planned()
    answers: list[Any] = []
    size(plan, build, *_imagined(placed(plan, 1.6e6)), answers.append)

    (found,) = answers
    assert isinstance(found, Sized)
    (one,) = sets_of(found.plan)
    assert one.text(["a", "b", "c"]) == (
        "match: 3 by windows of 6 s in turns of 500 ms, 3.00 copies of a row (a, b, c; auto: rate 3,000/s needs 1.6 cores; at most 4)"
    )
    (alone,) = sets_of(chosen(placed(plan, 1e5)).of(build((1,))))
    assert alone.text(["a"]) == "match: 1 by windows of 6 s (a; auto: rate 1,000/s needs 0.1 cores; at most 4)"


def test_after_a_restart_numbers_and_turns_are_those_of_the_kept_plan() -> None:
    plan, build = planned()
    first = build((3,), (7_000_000,))
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(first.sizings), type=tuple[Sizing, ...])

    again = resting_on(build([len(one.operators) for one in kept], [one.turn_us for one in kept]), kept)

    assert again == first
    turns = {one.params.turns.turn_us for one in first.operators if isinstance(one.params, ExchangeParams) and one.params.turns}
    assert turns == {7_000_000}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([["q.1"], 1.0, 2.0, 3, "x"]), type=Sizing).turn_us == 0
    assert plan.sizings[0].turn_us == 0


@pytest.mark.parametrize("name", QUERIES)
def test_answers_of_any_number_and_turn_are_those_of_one_instance(name: str) -> None:
    plan, build = planned(QUERIES[name], catalog=SOURCE.replace("'b'", "'a, c'"))
    alone = run(plan)

    assert alone.height > 2
    for number, turn_us in ((2, 0), (3, 500_000), (4, 0), (2, 6_000_000), (3, 36_000_000)):
        dealt = build((number,), (turn_us,))
        kinds = [type(spec.params) for spec in dealt.operators]
        assert kinds.count(MatchParams) == number
        assert kinds.count(MergeParams) == 1
        assert run(dealt).equals(alone)


def test_short_turns_are_whole_seconds_or_milliseconds_where_they_can_be() -> None:
    plan, _ = planned()
    params = next(spec.params for spec in plan.operators if isinstance(spec.params, MatchParams))

    found = [even_turn_us(msgspec.structs.replace(params, within_us=within), 3) for within in (100_000_000, 1_000_000, 1_000, 5)]

    assert found == [8_000_000, 83_000, 83, 1]


@pytest.mark.parametrize(
    ("select", "why"),
    [
        (WINDOW, "dealing = 'window', but the query has no pattern whose windows could be dealt"),
        (MATCH.replace("ORDER", "PARTITION BY k ORDER"), "dealing = 'window' does not support a pattern with PARTITION BY"),
    ],
)
def test_what_has_no_windows_to_deal_is_refused_before_a_number_is_chosen(select: str, why: str) -> None:
    with pytest.raises(QueryError) as refused:
        planned(select)

    assert refused.value.message == why
