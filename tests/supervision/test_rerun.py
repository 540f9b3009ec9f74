"""Reruns: all operators of a query are made again, and its sink leaves out the rows that its file has."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from sbon.execution.settings import EngineConfig
from sbon.links.link_names import link_id
from sbon.query.expression import Column
from sbon.query.params.joined import JoinParams
from sbon.query.params.rowwise import FunctionParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.supervision.account import Account, Healing
from sbon.supervision.continuation import Continuation
from sbon.supervision.deployment import Deployed
from sbon.supervision.generations import GENERATION
from sbon.supervision.kept_record import decode_content, encode_content, record_from
from sbon.supervision.record import QueryRecord
from sbon.supervision.recovering import picture_of, take_over
from sbon.supervision.recovery import Action, Ask, Phase, Place, Recovered, Recovery
from sbon.supervision.recovery_picture import Picture, Rules
from sbon.supervision.rerun import may_rerun, rows_given
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import Begin, Instantiate, Renew, Renewed, User
from sbon.wire.messages import Done
from sbon.wire.reports import OperatorReport, OperatorReports

QUERY = "ams.t.1"
LEFT, RIGHT, JOIN, SINK = (f"{QUERY}.{number}" for number in range(4))
INTERVALS = JoinParams("ts", "ts", (Column("k"),), (Column("k"),), 0, 0, (("ts", 0, "ts"),))
FILE = SourceParams("s", "file", (), (), None)
SPECS = {
    LEFT: OperatorSpec(LEFT, FILE, (), None, "fra", "", 0),
    RIGHT: OperatorSpec(RIGHT, FILE, (), None, "lon", "", 0),
    JOIN: OperatorSpec(JOIN, INTERVALS, (), None, None, ""),
    SINK: OperatorSpec(SINK, SinkParams("k", "file", (("path", "k.csv"),)), (), None, "nyc", ""),
}
LINKS = tuple(LinkSpec(link_id(a, b, port), a, b, port, 1.0, 1.0) for a, b, port in ((LEFT, JOIN, 0), (RIGHT, JOIN, 1), (JOIN, SINK, 0)))
NODES = {LEFT: "fra", RIGHT: "lon", JOIN: "osl", SINK: "nyc"}
ALIVE = frozenset({"ams", "fra", "lon", "nyc", "rio"})


def picture(lost: Collection[str] = (), **changes: Any) -> Picture:
    fields: dict[str, Any] = {
        "specs": SPECS,
        "links": LINKS,
        "nodes": NODES,
        "epochs": {},
        "lost": frozenset(lost),
        "alive": ALIVE,
        "schemas": {link.id: () for link in LINKS},
        "begun_at": {SINK: 21},
        "first_begun_at": {SINK: 7},
        "rules": Rules(rerun_rows_max=100, rerun_wait_s=60.0),
    }
    return Picture(**{**fields, **changes})


def changed(operator: str, params: object) -> dict[str, OperatorSpec]:
    return {**SPECS, operator: msgspec.structs.replace(SPECS[operator], params=params)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"specs": changed(LEFT, SourceParams("s", "tcp", (), (), None))}, "the rows of a socket do not come again"),
        ({"specs": changed(JOIN, FunctionParams("f", "1", (), (), (), None))}, "a function may answer otherwise in another order"),
        ({"late": frozenset({JOIN})}, "other rows may be late"),
        ({"users": {LEFT: (User("rio.t.1", "rio"),)}}, "another query gets the rows, too"),
        ({"first_begun_at": {}}, "the sink does not know where its rows begin"),
        ({"is_replanned": True}, "the file has rows of another plan"),
        ({"rerun_in_vain": True}, "the sink cannot compare rows"),
        ({"specs": changed(JOIN, msgspec.structs.replace(INTERVALS, omits_begun=False))}, "the query wants to go on at once"),
        ({"rules": Rules(rerun_rows_max=99), "taken": {LINKS[0].id: 60, LINKS[1].id: 40}}, "there are too many rows"),
        ({"links": (*LINKS, LinkSpec(link_id("rio.t.1.0", SINK, 1), "rio.t.1.0", SINK, 1, 1.0, 1.0))}, "another query's operator feeds it"),
    ],
)
def test_no_rerun_where_it_would_not_give_each_row_once(changes: dict[str, Any], why: str) -> None:
    assert may_rerun(picture())
    assert not may_rerun(picture(**changes)), why


def test_other_queries_do_not_matter_where_nothing_lives_that_they_use() -> None:
    users = {LEFT: (User("rio.t.1", "rio"),)}
    assert may_rerun(picture({LEFT}, users=users))


def test_rows_count_once_for_each_link_of_a_source() -> None:
    assert rows_given(picture(taken={LINKS[0].id: 60, LINKS[1].id: 40, LINKS[2].id: 1000})) == 100


def asked(actions: list[Action], kind: type) -> list[Ask]:
    found = [action for action in actions if isinstance(action, Ask)]
    assert found
    assert all(isinstance(one.step.message, kind) for one in found), actions
    return found


def lose_all_but_the_sink(recovery: Recovery, seen: Picture, now: float) -> list[Action]:
    """Runs an attempt that skips as many rows of a join as its sink has taken, up to the decision how it is made."""
    [place] = recovery.look(seen, now)
    assert isinstance(place, Place)
    assert SINK not in place.operators
    [consumer] = asked(recovery.placed(place.attempt, {**NODES, JOIN: "rio"}, now), Renew)
    message = consumer.step.message
    assert isinstance(message, Renew)
    return recovery.answered(consumer.step, Renewed(message.end.link, 4, 35, 0), now)


def test_what_would_be_about_begins_again_as_a_whole() -> None:
    recovery = Recovery(QUERY, User(QUERY, "ams"))
    seen = picture({LEFT, RIGHT, JOIN}, taken={LINKS[2].id: 35}, missing={SINK: 4})
    assert lose_all_but_the_sink(recovery, seen, 10.0) == []
    assert recovery.phase is Phase.PAUSED
    [place] = recovery.look(seen, 10.0)
    assert isinstance(place, Place)
    assert place.operators == SPECS.keys(), "the sink runs, and is made again nevertheless"
    makes = asked(recovery.placed(place.attempt, {**NODES, JOIN: "rio"}, 10.1), Instantiate)
    done: list[Action] = []
    told: dict[str, Instantiate] = {}
    while makes:
        for make in makes:
            message = make.step.message
            assert isinstance(message, Instantiate)
            told[message.spec.id] = message
            done = recovery.answered(make.step, Done(), 10.2)
        makes = [one for one in done if isinstance(one, Ask) and isinstance(one.step.message, Instantiate)]
    assert told.keys() == SPECS.keys()
    sink = told[SINK].taken_up
    assert sink is not None
    assert (sink.matches, sink.begun_at, sink.lost_rows) == (True, 7, msgspec.UNSET), "it compares all rows since the query began"
    for message in told.values():
        assert message.taken_up is not None
        assert message.taken_up.watermark_us == WATERMARK_MIN
        ends = (*message.inputs, *message.outputs)
        assert all((end.after, end.rows, end.skip_rows) == (0, 0, 0) for end in ends), "all rows come again"
    [begin] = asked(done, Begin)
    [recovered] = recovery.answered(begin.step, OperatorReports(()), 10.3)
    assert isinstance(recovered, Recovered)
    assert recovered.is_rerun
    assert recovery.look(picture(), 11.0) == []


def test_what_would_be_about_waits_for_a_host_without_which_there_is_no_rerun_but_not_for_ever() -> None:
    recovery = Recovery(QUERY, User(QUERY, "ams"))
    seen = picture({LEFT, RIGHT, JOIN}, alive=ALIVE - {"lon"})
    assert lose_all_but_the_sink(recovery, seen, 10.0) == []
    assert (recovery.phase, recovery.reason) == (
        Phase.PAUSED,
        f"the recovery is tried again: all operators are to be made again, but {RIGHT} waits for lon",
    )
    assert lose_all_but_the_sink(recovery, seen, 69.0) == []
    asked(lose_all_but_the_sink(recovery, seen, 100.0), Instantiate)


@pytest.mark.parametrize("matching", [False, True])
def test_what_is_known_exactly_goes_on_unless_a_sink_still_compares(matching: bool) -> None:
    recovery = Recovery(QUERY, User(QUERY, "ams"))
    alone = {one: spec for one, spec in SPECS.items() if one not in (RIGHT, JOIN)}
    links = (LinkSpec(link_id(LEFT, SINK, 0), LEFT, SINK, 0, 1.0, 1.0),)
    sinks = frozenset({SINK} if matching else ())
    seen = picture({LEFT}, specs=alone, links=links, nodes={LEFT: "fra", SINK: "nyc"}, schemas={links[0].id: ()}, matching=sinks)
    [place] = recovery.look(seen, 10.0)
    assert isinstance(place, Place)
    [consumer] = asked(recovery.placed(place.attempt, {LEFT: "fra"}, 10.0), Renew)
    message = consumer.step.message
    assert isinstance(message, Renew)
    recovery.answered(consumer.step, Renewed(message.end.link, 4, 35, 0), 10.1)
    assert (recovery.phase is Phase.PAUSED) == matching


def record() -> QueryRecord:
    specs = tuple(SPECS.values())
    made = QueryRecord(Plan(QUERY, "k", "", specs, LINKS), Deployed(specs, LINKS, dict(NODES)), "ams", 0.0)
    made.health.healing.is_on = True
    return made


def attempt(number: int, *, is_rerun: bool = False, **go_on: Continuation) -> Recovered:
    found = {f"{QUERY}.{one[1:]}": what for one, what in go_on.items()}
    return Recovered(dict.fromkeys(found, "ams"), number * GENERATION, (), found, 1, 0.5, is_rerun=is_rerun)


COMPARES = Continuation(by_word=True, matches=True)
ABOUT = Continuation(lost_rows={LINKS[2].id: 5}, is_exact=False, state_until_us=30)


def test_a_rerun_makes_good_what_earlier_crashes_have_cost() -> None:
    account = Account()
    account.add(attempt(1, _2=ABOUT))
    assert (account.rows, account.is_exact, account.lacking) == (5, False, {JOIN: 30})
    account.add(attempt(2, is_rerun=True, _2=Continuation(), _3=COMPARES))
    assert (account.rows, account.is_exact, account.lacking) == (0, True, {})
    [said] = account.sentences(str)
    assert "leaves out the rows that its file has" in said
    account.has_matched(SINK, 2 * GENERATION)
    assert account.sentences(str) == []
    assert [done["rerun"] for done in account.told(str)] == [False, True]


def test_a_rerun_in_vain_is_not_repeated() -> None:
    made = record()
    account = made.health.healing.account
    account.add(attempt(1, is_rerun=True, _2=Continuation(), _3=COMPARES))
    assert not picture_of(made, ALIVE, 0.0).rerun_in_vain
    account.not_found(SINK, GENERATION)
    assert (account.is_exact, picture_of(made, ALIVE, 0.0).rerun_in_vain) == (False, True)


def test_another_rerun_follows_if_a_later_crash_is_about() -> None:
    account = Account()
    account.add(attempt(1, is_rerun=True, _2=Continuation(), _3=COMPARES))
    account.has_matched(SINK, GENERATION)
    account.add(attempt(2, _3=Continuation(by_word=True)))
    account.not_found(SINK, 2 * GENERATION)
    assert (account.is_exact, account.rerun_in_vain) == (False, False)


def test_rows_that_do_not_come_again_are_counted() -> None:
    made = record()
    made.health.healing.begun(attempt(1, is_rerun=True, _2=Continuation(), _3=COMPARES))
    made.reported(OperatorReport(SINK, "finished", "nyc", epoch=GENERATION, unmatched_rows=3))
    account = made.health.healing.account
    assert (account.surplus_rows, account.is_exact, account.rows, account.matching) == (3, True, 0, frozenset())
    assert "3 rows of its file have not come again" in made.reason
    assert [done["surplus_rows"] for done in account.told(str)] == [3]
    after = record_from(decode_content(encode_content(made)), "ams", (), "fra", 0.0, 0.0)
    assert after.health.healing.account.surplus_rows == 3


def test_a_rerun_compares_from_the_first_row_on_although_a_sink_had_begun_anew() -> None:
    healing = Healing()
    healing.heard_begin(OperatorReport(SINK, "running", "nyc", begun_at=7))
    healing.begun(attempt(1, _3=Continuation(fresh=(LINKS[2].id,), is_fresh=True)))
    healing.heard_begin(OperatorReport(SINK, "running", "nyc", epoch=GENERATION, begun_at=21))
    assert (healing.begun_at, healing.account.first_begun_at) == ({SINK: 21}, {SINK: 7})
    healing.begun(attempt(2, is_rerun=True, _3=COMPARES))
    assert healing.begun_at == {SINK: 7}


def test_the_next_owner_knows_where_the_first_row_is() -> None:
    made = record()
    made.health.healing.heard_begin(OperatorReport(SINK, "running", "nyc", begun_at=7))
    after = record_from(decode_content(encode_content(made)), "ams", (), "fra", 0.0, 0.0)
    assert after.health.healing.account.first_begun_at == {SINK: 7}


def test_the_history_says_that_all_has_begun_again() -> None:
    made = record()
    told = [made.history.recovered(attempt(1, is_rerun=is_rerun, _2=Continuation()), made.nodes, 0.0).reason for is_rerun in (False, True)]
    assert told == ["", "all operators have begun again, from the first rows of the files"]


def test_links_replaced_before_a_rerun_have_cost_nothing() -> None:
    made = record()
    made.losses.refed(LINKS[0], LINKS[0])
    assert made.losses.any
    take_over(made, attempt(1, is_rerun=True, _2=Continuation(), _3=COMPARES))
    assert not made.losses.any


def test_rows_that_come_again_behind_a_watermark_are_not_late() -> None:
    made = record()
    made.reported(OperatorReport(JOIN, "running", "osl", late_rows=2))
    assert picture_of(made, ALIVE, 0.0).late == {JOIN}
    made.health.healing.account.add(attempt(1, _2=Continuation(watermark_us=30)))
    assert picture_of(made, ALIVE, 0.0).late == frozenset()


def test_the_settings_of_an_agent_reach_the_recovery() -> None:
    rules = Rules.of(EngineConfig(heal_after_s=3.0, lost_consumer_s=1.0, rerun_rows_max=12, lost_input_s=9.0))
    assert rules == Rules(after_s=3.0, shared_after_s=3.0, rerun_rows_max=12, rerun_wait_s=9.0)
    with pytest.raises(ValueError, match=r"rerun_rows_max = -1, expected 0 or more"):
        EngineConfig(rerun_rows_max=-1)
