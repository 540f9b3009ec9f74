"""The change of a query's plan, transition by transition, and which plans can be exchanged."""

from typing import Any

import pytest

from sbon.errors import LinkError, LocalProtocolError, PlacementError, QueryError
from sbon.links.link_names import first_name
from sbon.query.catalog import Catalog
from sbon.query.plan import Changed, Plan
from sbon.query.plan_exchange import reach_us, time_column
from sbon.query.planner import plan as planned
from sbon.query.planner import planning
from sbon.query.sql import CreateSource, parse
from sbon.supervision.replanning import (
    PAUSE_S,
    TABLE,
    TRIES,
    Ask,
    Check,
    Event,
    Leave,
    Note,
    Over,
    Phase,
    Replanning,
    Step,
    Take,
    other_plan,
    renamed,
)
from sbon.watermarks import WATERMARK_END
from sbon.wire.deployment import Instantiate, Use, Used, User
from sbon.wire.messages import Done
from sbon.wire.replanning import Cross, Crossing, Cut, Retire, Retired, Uncut

SOURCE = (
    "CREATE SOURCE s (ts TIMESTAMP, k BIGINT, v BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1 second') "
    "WITH (connector = 'datagen', nodes = 'b')"
)
WINDOW = "SELECT window_end, k, SUM(v) AS t FROM TUMBLE(s, ts, INTERVAL '10 seconds') GROUP BY window_end, k"
NODES = {"a": {}, "b": {}, "c": {}}


def catalog() -> Catalog:
    known = Catalog()
    [statement] = parse(SOURCE)
    assert isinstance(statement, CreateSource)
    known.put("source", "s", sql=SOURCE, owner="a", stamp=1, source=statement.definition)
    return known


def plan_of(sql: str, instances: int | None = None) -> Plan:
    [statement] = parse(sql)
    return planning(statement, catalog(), NODES, "a", "a.0000001.01", changed=Changed(instances or 0))[0]  # type: ignore[arg-type]


class Change:
    """A change from one instance to two; the test answers all messages."""

    def __init__(self) -> None:
        present = plan_of(WINDOW)
        self.nodes = {spec.id: spec.pinned or "c" for spec in present.operators}
        plan = renamed(plan_of(WINDOW, 2), {spec.id: spec for spec in present.operators}, len(present.operators))
        made = {spec.id: spec.pinned or "c" for spec in plan.operators if spec.id not in self.nodes}
        self.other = other_plan(plan, 40, self.nodes, made)
        self.machine = Replanning(User(plan.query, "a"), self.other, self.nodes)

    def answer(self, actions: list[Any], *, before_us: int = 7_000_000) -> list[Any]:
        """Answers all questions with success; returns the actions that follow."""
        found: list[Any] = []
        for action in actions:
            assert isinstance(action, Ask)
            used = Used(operators=(), before_rows=5, before_us=before_us)
            found += self.machine.answered(action.step, used if isinstance(action.step.message, Use) else Done(), 1.0)
        return found

    def until_crossing(self) -> Step:
        """Runs the change until the sink is asked where it crosses; returns that step."""
        assert self.machine.begin() == [Note()]
        actions = self.machine.noted(None, 1.0)
        while actions != [Note()]:
            actions = self.answer(actions)
        [ask] = self.machine.noted(None, 1.0)
        assert isinstance(ask, Ask)
        return ask.step


def kinds(actions: list[Any]) -> list[type]:
    return [type(action.step.message) for action in actions]


def test_the_sink_is_opened_then_operators_are_made_consumers_first_and_sources_feed_them_last():
    change = Change()
    change.machine.begin()
    opened = change.machine.noted(None, 1.0)
    assert kinds(opened) == [Cross]
    made: list[type] = []
    actions = change.answer(opened)
    order: list[str] = []
    while kinds(actions)[:1] == [Instantiate]:
        made += kinds(actions)
        order += [str(action.step.message.spec.params.__struct_config__.tag) for action in actions]
        actions = change.answer(actions)
    assert len(made) == len(change.other.nodes)
    assert order.index("merge") < order.index("window") < order.index("exchange")
    assert kinds(actions) == [Use]
    assert change.answer(actions) == [Note()]
    assert list(change.other.before.values()) == [5]


def test_it_crosses_behind_what_the_sources_had_given_by_as_much_as_answers_look_back():
    step = Change().until_crossing()
    assert isinstance(step.message, Cut)
    assert step.message.after_us == 7_000_000 + 10_000_000


def test_the_sink_is_asked_until_it_has_crossed_and_then_the_former_operators_end():
    change = Change()
    machine, step = change.machine, change.until_crossing()
    assert machine.answered(step, Crossing(at_us=17_000_001, has_crossed=False), 1.0) == []
    assert machine.at_us == 17_000_001
    assert machine.next_wake() == 1.0 + PAUSE_S
    assert machine.wake(1.0 + PAUSE_S, frozenset("abc")) == [Ask(step)]
    assert machine.answered(step, LinkError("lost"), 2.0) == []
    assert machine.answered(step, Crossing(at_us=17_000_001, has_crossed=True), 3.0) == [], "the sink must be asked again first"
    assert machine.wake(9.0, frozenset("abc")) == [Ask(step)]
    assert machine.answered(step, Crossing(at_us=17_000_001, has_crossed=False, is_ready=True), 9.0) == [Check()]
    assert machine.checked("c does not answer", 9.0) == []
    [again] = machine.wake(19.0, frozenset("abc"))
    assert isinstance(again, Ask)
    assert machine.answered(again.step, Crossing(at_us=17_000_001, has_crossed=False, is_ready=True), 19.0) == [Check()]
    [go] = machine.checked("", 19.0)
    assert isinstance(go, Ask)
    assert isinstance(go.step.message, Cut)
    assert go.step.message.go
    assert machine.answered(go.step, Crossing(at_us=17_000_001, has_crossed=True), 19.0) == [Take()]
    asked = machine.retire({"a.0000001.01.1": "c"}, ["a", "b"])
    assert sorted(action.step.node for action in asked) == ["a", "b", "c"]
    assert {type(action.step.message) for action in asked} == {Retire}
    assert [machine.answered(action.step, Retired(), 9.0) for action in asked] == [[], [], [Over()]]


@pytest.mark.parametrize("has_crossed", [False, True])
def test_trouble_asks_the_sink_which_plan_it_takes(has_crossed: bool):
    change = Change()
    change.until_crossing()
    [ask] = change.machine.trouble("c is gone")
    assert isinstance(ask.step.message, Uncut)
    said = change.machine.answered(ask.step, Crossing(at_us=17, has_crossed=has_crossed, is_called_off=not has_crossed), 1.0)
    assert said == ([Take()] if has_crossed else [Leave("c is gone")])
    assert change.machine.trouble("later") == []


def test_without_an_answer_of_the_sink_nothing_is_decided():
    change = Change()
    change.until_crossing()
    [ask] = change.machine.trouble("c is gone")
    now = 1.0
    for _ in range(3 * TRIES):
        assert change.machine.answered(ask.step, LinkError("no answer"), now) == []
        now += 5.0
        assert change.machine.wake(now, frozenset()) == [ask]
    assert change.machine.phase is Phase.UNDOING


def test_operators_that_are_not_found_call_it_off():
    change = Change()
    step, found = change.until_crossing(), list[Any]()
    for number in range(TRIES):
        assert change.machine.answered(step, Crossing(at_us=17, has_crossed=False, is_ready=True), 9.0 * number) == [Check()]
        found = change.machine.checked("c does not answer", 9.0 * number)
        for again in change.machine.wake(9.0 * number + 8.0, frozenset()):
            assert isinstance(again, Ask)
            step = again.step
    assert kinds(found) == [Uncut]


def test_a_sink_that_has_lost_all_that_it_knew_goes_on_with_the_present_plan():
    change = Change()
    change.until_crossing()
    assert change.machine.sink_is_gone() == [Leave("its sink was lost")]


def test_the_next_owner_calls_off_what_it_finds_begun():
    [ask] = Change().machine.resume()
    assert isinstance(ask.step.message, Uncut)


def test_lost_messages_are_repeated_and_an_operator_that_is_there_counts_as_made():
    change = Change()
    change.machine.begin()
    [ask] = change.machine.noted(None, 1.0)
    made = change.answer([ask])
    step = made[0].step
    assert isinstance(step.message, Instantiate)
    assert change.machine.answered(step, LinkError("lost"), 1.0) == []
    assert change.machine.wake(2.0, frozenset()) == [Ask(step)]
    assert change.machine.answered(step, LocalProtocolError("it is here already"), 2.0) != []


def test_a_host_that_has_no_room_or_never_answers_calls_it_off():
    change = Change()
    change.machine.begin()
    [ask] = change.machine.noted(None, 1.0)
    [undo] = change.machine.answered(ask.step, PlacementError("no room"), 1.0)
    assert isinstance(undo.step.message, Uncut)
    change = Change()
    change.machine.begin()
    [ask] = change.machine.noted(None, 1.0)
    found: list[Any] = []
    for number in range(TRIES + 1):
        found = change.machine.answered(ask.step, LinkError("lost"), 5.0 * number)
        change.machine.wake(5.0 * number + 4.0, frozenset())
    assert kinds(found) == [Uncut]


def test_sources_that_have_ended_call_it_off():
    change = Change()
    change.machine.begin()
    actions = change.machine.noted(None, 1.0)
    while kinds(actions) != [Use]:
        actions = change.answer(actions)
    assert kinds(change.answer(actions, before_us=WATERMARK_END)) == [Uncut]


def test_if_too_few_keepers_know_nothing_is_made():
    change = Change()
    change.machine.begin()
    assert kinds(change.machine.noted(PlacementError("cut off"), 1.0)) == [Uncut]


def test_a_host_that_has_no_room_for_one_of_the_other_operators_calls_it_off():
    change = Change()
    change.machine.begin()
    [made, *_] = change.answer(change.machine.noted(None, 1.0))
    assert change.machine.phase is Phase.MAKING
    assert kinds(change.machine.answered(made.step, PlacementError("no room"), 1.0)) == [Uncut]


def test_if_too_few_keepers_know_what_was_made_it_is_called_off():
    change = Change()
    change.machine.begin()
    actions = change.machine.noted(None, 1.0)
    while actions != [Note()]:
        actions = change.answer(actions)
    assert kinds(change.machine.noted(PlacementError("cut off"), 1.0)) == [Uncut]


def test_a_sink_in_which_too_many_rows_wait_calls_it_off_itself():
    change = Change()
    step = change.until_crossing()
    left = change.machine.answered(step, Crossing(at_us=17, has_crossed=False, is_called_off=True), 1.0)
    assert left == [Leave("too many rows waited in its sink")]
    assert change.machine.phase is Phase.RETIRING


def test_operators_that_have_moved_are_ended_where_they_are_and_hosts_that_are_gone_are_not_waited_for():
    change = Change()
    asked = change.machine.retire({"q.1": "c"}, ["b"])
    there, former = (next(action.step for action in asked if action.step.node == node) for node in "bc")
    [again] = change.machine.answered(former, Retired(moved=(("q.1", "d", 3),)), 1.0)
    assert again.step.node == "d"
    assert change.machine.answered(again.step, LinkError("gone"), 1.0) == []
    assert change.machine.answered(there, LinkError("gone"), 1.0) == []
    assert change.machine.wake(9.0, frozenset("b")) == [Ask(there)], "operators of b stay, so b must drop its links"
    assert change.machine.answered(there, Retired(), 9.0) == [Over()]


def test_a_sink_that_is_at_work_most_of_each_second_is_found_at_leisure():
    change = Change()
    step, now = change.until_crossing(), 1.0
    for _ in range(60):
        if 0.3 < now % 1 < 0.5:
            break
        change.machine.answered(step, LocalProtocolError("at work"), now)
        now = change.machine.next_wake() or 0.0
        assert change.machine.wake(now, frozenset("abc")) == [Ask(step)]
    assert 0.3 < now % 1 < 0.5


def test_hosts_that_say_that_an_operator_is_with_each_other_are_not_asked_for_ever():
    change = Change()
    asked = [action.step for action in change.machine.retire({"q.1": "c"}, ["d"])]
    for _ in range(9):
        if not asked:
            break
        step = asked.pop(0)
        told = ("q.1", "d", 2) if step.node == "c" else ("q.1", "c", 1)
        actions = change.machine.answered(step, Retired(moved=(told,)), 1.0)
        asked += [action.step for action in actions if isinstance(action, Ask)]
    assert actions == [Over()]


def test_every_phase_but_the_last_leads_on():
    assert {before for before, _ in TABLE} == set(Phase) - {Phase.OVER}
    assert all((phase, Event.TROUBLE) in TABLE for phase in Phase if phase not in (Phase.UNDOING, Phase.RETIRING, Phase.OVER))


def test_a_plan_keeps_sources_and_sink_and_gets_ids_that_none_has_had():
    present = {spec.id: spec for spec in plan_of(WINDOW).operators}
    plan = renamed(plan_of(WINDOW, 3), present, 40)
    kept = [spec.id for spec in plan.operators if spec.id in present]
    assert [str(present[one].params.__struct_config__.tag) for one in kept] == ["source", "sink"]
    assert all(int(spec.id.rpartition(".")[2]) >= 40 for spec in plan.operators if spec.id not in present)
    assert {link.source for link in plan.links} | {link.target for link in plan.links} == {spec.id for spec in plan.operators}
    links = other_plan(plan, 40, dict.fromkeys(kept, "b"), {spec.id: "c" for spec in plan.operators if spec.id not in kept}).links
    assert len({first_name(link.id) for link in links}) == len(links)
    with pytest.raises(ValueError, match="is not what it was"):
        renamed(plan_of(WINDOW), {key: spec for key, spec in present.items() if key != kept[0]}, 40)


@pytest.mark.parametrize(
    ("sql", "reach_s"),
    [
        (WINDOW, 10),
        (WINDOW.replace("TUMBLE(s, ts,", "HOP(s, ts, INTERVAL '2 seconds',"), 10),
        (f"WITH w AS ({WINDOW}) SELECT window_end, SUM(t) AS u FROM TUMBLE(w, window_end, INTERVAL '20 seconds') GROUP BY window_end", 30),
        (
            "WITH j AS (SELECT x.ts AS ts, x.k AS k FROM s AS x JOIN s AS y ON x.k = y.k AND "
            "y.ts BETWEEN x.ts - INTERVAL '3 seconds' AND x.ts + INTERVAL '1 second') "
            "SELECT window_end, k, COUNT(*) AS n FROM TUMBLE(j, ts, INTERVAL '10 seconds') GROUP BY window_end, k",
            14,
        ),
    ],
)
def test_a_plan_reaches_back_as_far_as_its_windows_and_joins_together(sql: str, reach_s: float):
    plan = plan_of(sql)
    assert reach_us(plan) == reach_s * 1_000_000
    assert time_column(plan) in {column.name for spec in plan.operators for column in spec.schema}


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT window_end, k FROM SESSION(s, ts, INTERVAL '1 second') GROUP BY window_end, k", "sessions"),
        ("SELECT ts, k FROM s WHERE v > 1", "without passing a window"),
        ("SELECT k, SUM(v) AS t FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end, k", "no event time"),
        (
            "SELECT DISTINCT ON (window_start, k) window_end, k FROM TUMBLE(s, ts, INTERVAL '1 second') ORDER BY window_start, k, ts",
            "first",
        ),
        ("SELECT ts, k, SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS t FROM s", "long ago"),
    ],
)
def test_plans_that_depend_on_all_rows_or_give_no_event_time_are_refused_in_one_line(sql: str, why: str):
    with pytest.raises(QueryError, match=why) as refused:
        reach_us(plan_of(sql))
    assert "\n" not in str(refused.value)


def test_a_query_keeps_what_it_says_where_no_other_number_is_asked_for():
    [statement] = parse(WINDOW)
    assert planned(statement, catalog(), NODES, "a", "a.0000001.01") == plan_of(WINDOW)  # type: ignore[arg-type]
