"""Messages to hosts about the slack of a query's delay bound."""

import msgspec
import pytest

from sbon.query.expression import Column
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.supervision.delay_bounds import REPEAT_REPORTS, SETTLE_REPORTS, DelayBounds, slack_ms
from sbon.supervision.deployment import Deployed
from sbon.supervision.record import QueryRecord, QueryState
from sbon.wire.reports import DelaySlack, OperatorReport


def operator(name, params, pinned):
    return OperatorSpec(name, params, (), None, pinned, name)


OPERATORS = (
    operator("source", SourceParams("s", "datagen", (), (), None), "a"),
    operator("map", MapParams(Column("ok"), None), None),
    operator("sink", SinkParams("q", "tail", ()), "c"),
)


def make(bound_ms=100.0, predicted_ms=60.0):
    nodes = {"source": "a", "map": "b", "sink": "c"}
    plan = Plan("q", "q", "SELECT", OPERATORS, (), bound_ms)
    record = QueryRecord(plan, Deployed(OPERATORS, (), nodes), "c", 0.0, predicted_ms)
    return record, DelayBounds()


def report(record, delay_ms):
    record.reported(OperatorReport(id="sink", state="running", node="c", upstream_delay_ms=delay_ms))


def everywhere(slack):
    return [(node, DelaySlack(query="q", slack_ms=pytest.approx(slack))) for node in "abc"]


def test_a_query_without_a_bound_has_nothing_to_tell():
    record, bounds = make(bound_ms=None)
    assert bounds.reported(record) == bounds.moved(record) == []


def test_the_slack_is_told_when_it_changes_and_again_now_and_then():
    record, bounds = make()
    assert bounds.reported(record) == everywhere(40.0), "the predicted delay counts first"
    report(record, 62.0)
    assert bounds.reported(record) == [], "the change is less than a twentieth of the bound"
    report(record, 75.0)
    assert bounds.reported(record) == everywhere(25.0)
    for _ in range(REPEAT_REPORTS - 1):
        assert bounds.reported(record) == []
    assert bounds.reported(record) == everywhere(25.0), "some host may have missed it"


def test_after_a_migration_no_way_may_grow_until_the_delay_is_known_again():
    record, bounds = make()
    bounds.reported(record)
    assert bounds.moved(record) == everywhere(0.0)
    report(record, 90.0)
    for _ in range(SETTLE_REPORTS - 1):
        assert bounds.reported(record) == []
    assert bounds.reported(record) == everywhere(10.0)


def test_a_bound_that_is_exceeded_degrades_the_query_and_leaves_only_shorter_ways():
    record, bounds = make()
    report(record, 130.0)
    assert bounds.reported(record) == everywhere(-30.0)
    record.settle()
    assert record.state is QueryState.DEGRADED
    assert record.reason == "its answers are on the way for 130 ms, expected at most 100 ms"

    report(record, 102.0)
    bounds.reported(record)
    record.settle()
    assert record.state is QueryState.RUNNING, "a small excess is ordinary variation of the network"


def test_operators_that_may_move_at_once_share_the_slack():
    for movable in range(1, 9):
        part = slack_ms(100.0, 40.0, movable)
        assert part is not None
        at_once = (movable + 1) // 2  # no two neighbours move at the same time
        assert part * at_once == pytest.approx(60.0)


def test_what_a_host_is_told_travels():
    message = DelaySlack(query="q", slack_ms=-1.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=DelaySlack) == message
