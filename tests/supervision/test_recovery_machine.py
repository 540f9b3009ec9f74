"""The recovery of a query's lost operators, stepped through without a network."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sbon.errors import LinkError, LocalProtocolError, PlacementError, UnsupportedError
from sbon.links.link_names import link_id
from sbon.membership.members import MemberStatus
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Begin as FirstAnswers
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.schema import ColumnType, Field
from sbon.supervision.account import Healing
from sbon.supervision.continuation import Continuation
from sbon.supervision.deployment import Deployed
from sbon.supervision.generations import GENERATION, first_epoch
from sbon.supervision.record import QueryRecord, is_apart
from sbon.supervision.recovering import picture_of, take_over
from sbon.supervision.recovery import TABLE, Action, Ask, Event, Lose, Phase, Place, Recovered, Recovery
from sbon.supervision.recovery_attempt import BEGIN_TRIES
from sbon.supervision.recovery_picture import Picture, Rules, makeable
from sbon.supervision.register import Register
from sbon.supervision.watching import Watching, lose_unheard, news_of, waits_for_word
from sbon.watermarks import WATERMARK_END
from sbon.wire.deployment import Begin, Instantiate, LeaveOut, Renew, Renewed, User
from sbon.wire.messages import Done
from sbon.wire.reports import OperatorReport, OperatorReports

QUERY = "ams.t.1"
SOURCE, MAP, SINK = (f"{QUERY}.{number}" for number in range(3))
SPECS = {
    SOURCE: OperatorSpec(SOURCE, SourceParams("s", "tcp", (), (), None), (), None, "fra", "", 0),
    MAP: OperatorSpec(MAP, MapParams(None, None), (), None, None, ""),
    SINK: OperatorSpec(SINK, SinkParams("k", "file", (("path", "k.csv"),)), (), None, "nyc", ""),
}
LINKS = tuple(LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ((SOURCE, MAP), (MAP, SINK)))
FROM_SOURCE, TO_SINK = (link.id for link in LINKS)
NODES = {SOURCE: "fra", MAP: "osl", SINK: "nyc"}
ALIVE = frozenset({"ams", "fra", "nyc", "osl", "rio"})


def picture(lost: set[str], alive: frozenset[str] = ALIVE, **changes: object) -> Picture:
    fields: dict[str, object] = {
        "specs": SPECS,
        "links": LINKS,
        "nodes": NODES,
        "epochs": {MAP: 3},
        "lost": frozenset(lost),
        "alive": alive,
        "schemas": dict.fromkeys((FROM_SOURCE, TO_SINK), ()),
    }
    return Picture(**{**fields, **changes})  # type: ignore[arg-type]


def machine() -> Recovery:
    return Recovery(QUERY, User(QUERY, "ams"))


def asked(actions: list[Action], kind: type) -> list[Ask]:
    actions = [action for action in actions if not isinstance(action, Lose)]
    assert all(isinstance(action, Ask) and isinstance(action.step.message, kind) for action in actions), actions
    return [action for action in actions if isinstance(action, Ask)]


def renewed(ask: Ask, after: int, rows: int, **more: object) -> Renewed:
    message = ask.step.message
    assert isinstance(message, Renew)
    return Renewed(message.end.link, after, rows, **{"watermark_us": 0, **more})  # type: ignore[arg-type]


def fenced(recovery: Recovery, lost: set[str], made: int | None, rows: int) -> list[Ask]:
    """Runs a recovery of the middle operator up to the requests to make it; returns these."""
    place = recovery.look(picture(lost, ALIVE - {"osl"}), 10.0)
    assert place == [Place(1, frozenset({MAP}), frozenset())]
    [consumer] = asked(recovery.placed(1, {MAP: "rio"}, 10.1), Renew)
    [feeder] = asked(recovery.answered(consumer.step, renewed(consumer, after=4, rows=rows, watermark_us=25), 10.2), Renew)
    return asked(recovery.answered(feeder.step, renewed(feeder, after=7, rows=70, made=made), 10.3), Instantiate)


def test_the_operator_goes_on_where_its_neighbours_are():
    recovery = machine()
    [make] = fenced(recovery, {MAP}, made=30, rows=35)
    message = make.step.message
    assert isinstance(message, Instantiate)

    assert make.step.node == "rio"
    assert message.taken_up is not None
    assert (message.taken_up.epoch, message.taken_up.rows_out) == (GENERATION, 30)
    [given], [taken] = message.outputs, message.inputs
    assert (given.link.id, given.after, given.rows, given.skip_rows) == (f"{TO_SINK}+1", 4, 35, 5)
    assert given.watermark_us == 25, "what the consumer has had of the former copy"
    assert (taken.link.id, taken.node, taken.after, taken.rows) == (f"{FROM_SOURCE}+1", "fra", 7, 70)
    [done] = recovery.answered(make.step, Done(), 11.0)
    assert isinstance(done, Recovered)
    assert (done.nodes, done.epoch, done.attempts, done.seconds) == ({MAP: "rio"}, GENERATION, 1, 1.0)
    assert [link.id for link in done.links] == [f"{FROM_SOURCE}+1", f"{TO_SINK}+1"]
    assert recovery.phase is Phase.WAITING
    assert recovery.reason == ""


def test_a_feeder_that_has_given_up_its_link_is_not_asked():
    recovery = machine()
    recovery.look(picture({MAP}, ALIVE - {"osl"}, given_up=frozenset({FROM_SOURCE})), 10.0)
    [turn] = asked(recovery.placed(1, {MAP: "rio"}, 10.0), Renew)
    [make] = asked(recovery.answered(turn.step, Renewed(LINKS[1], 4, 30, 0), 10.1), Instantiate)
    assert make.step.node == "rio"


def test_consumers_are_turned_before_feeders():
    recovery = machine()
    recovery.look(picture({MAP}, ALIVE - {"osl"}), 10.0)
    [first] = asked(recovery.placed(1, {MAP: "rio"}, 10.0), Renew)
    assert isinstance(first.step.message, Renew)
    assert (first.step.node, first.step.message.gives) == ("nyc", False)


def test_a_pinned_operator_waits_for_its_node():
    recovery = machine()
    assert recovery.look(picture({SINK}, ALIVE - {"nyc"}), 1.0) == []
    assert recovery.reason == f"{SINK} waits for nyc"
    [place] = recovery.look(picture({SINK}), 5.0)
    assert isinstance(place, Place)
    recovery.placed(place.attempt, {SINK: "nyc"}, 5.0)


def test_a_sink_begins_last_and_goes_on_with_its_file():
    recovery = machine()
    recovery.look(picture({SINK}), 1.0)
    [feeder] = asked(recovery.placed(1, {SINK: "nyc"}, 1.0), Renew)
    [make] = asked(recovery.answered(feeder.step, renewed(feeder, 3, 30, made=0), 1.1), Instantiate)
    assert isinstance(make.step.message, Instantiate)
    assert isinstance(make.step.message.spec.params, SinkParams)
    assert make.step.message.spec.params.options == (("mode", "resume"), ("path", "k.csv"))
    [begin] = asked(recovery.answered(make.step, Done(), 1.2), Begin)
    for _ in range(BEGIN_TRIES - 1):
        [begin] = asked(recovery.answered(begin.step, LinkError("no answer"), 1.3), Begin)
    assert recovery.answered(begin.step, LinkError("no answer"), 1.3) == []
    assert recovery.phase is Phase.PAUSED


def test_two_lost_neighbours_are_made_together_consumers_first():
    recovery = machine()
    recovery.look(picture({MAP, SINK}), 1.0)
    [feeder] = asked(recovery.placed(1, {MAP: "rio", SINK: "nyc"}, 1.0), Renew)
    [sink] = asked(recovery.answered(feeder.step, renewed(feeder, 3, 30, made=10), 1.1), Instantiate)
    assert sink.step.node == "nyc"
    [made] = asked(recovery.answered(sink.step, Done(), 1.2), Instantiate)
    assert made.step.node == "rio"
    assert isinstance(made.step.message, Instantiate)
    assert made.step.message.outputs[0].after == 0
    # Both ends of the link count on from the rows that MAP had made, so that the sink can tell which of them its file has.
    assert isinstance(sink.step.message, Instantiate)
    assert (made.step.message.outputs[0].rows, sink.step.message.inputs[0].rows) == (10, 10)


def test_what_one_host_makes_it_is_told_together_consumers_first():
    recovery = machine()
    recovery.look(picture({MAP, SINK}), 1.0)
    [feeder] = asked(recovery.placed(1, {MAP: "nyc", SINK: "nyc"}, 1.0), Renew)
    told = asked(recovery.answered(feeder.step, renewed(feeder, 3, 30, made=10), 1.1), Instantiate)
    assert [(ask.step.node, ask.step.message.spec.id) for ask in told if isinstance(ask.step.message, Instantiate)] == [
        ("nyc", SINK),
        ("nyc", MAP),
    ]
    assert recovery.answered(told[1].step, Done(), 1.2) == []
    [begin] = asked(recovery.answered(told[0].step, Done(), 1.2), Begin)
    assert begin.step.node == "nyc"


def test_rows_that_were_lost_before_are_behind_both_ends_of_a_link_between_two_operators_that_are_made_together():
    recovery = machine()
    recovery.look(picture({MAP, SINK}, missing={TO_SINK: 4}), 1.0)
    [feeder] = asked(recovery.placed(1, {MAP: "rio", SINK: "nyc"}, 1.0), Renew)
    [sink] = asked(recovery.answered(feeder.step, renewed(feeder, 3, 30, made=10), 1.1), Instantiate)
    [made] = asked(recovery.answered(sink.step, Done(), 1.2), Instantiate)
    assert isinstance(sink.step.message, Instantiate)
    assert isinstance(made.step.message, Instantiate)
    assert made.step.message.taken_up is not None
    assert made.step.message.taken_up.rows_out == 10
    assert (made.step.message.outputs[0].rows, sink.step.message.inputs[0].rows) == (6, 6), "the sink has never had the 4 lost rows"


def test_what_works_through_a_file_once_more_does_not_give_rows_that_were_lost_before_instead_of_others():
    recovery = machine()
    source = msgspec.structs.replace(SPECS[SOURCE], params=SourceParams("s", "file", (), (), None))
    recovery.look(picture({SOURCE, MAP, SINK}, specs={**SPECS, SOURCE: source}, taken={TO_SINK: 7}, missing={TO_SINK: 4}), 1.0)
    actions = recovery.placed(1, {SOURCE: "fra", MAP: "rio", SINK: "nyc"}, 1.0)
    ends: dict[str, Instantiate] = {}
    for _ in SPECS:
        [made] = asked(actions, Instantiate)
        assert isinstance(made.step.message, Instantiate)
        ends[made.step.message.spec.id] = made.step.message
        actions = recovery.answered(made.step, Done(), 1.1)
    [given], [taken] = ends[MAP].outputs, ends[SINK].inputs
    assert (given.rows, given.skip_rows, taken.rows) == (7, 11, 7)
    assert (ends[SOURCE].outputs[0].rows, ends[SOURCE].outputs[0].skip_rows, ends[MAP].inputs[0].rows) == (0, 0, 0)


def test_what_is_made_again_does_not_feed_an_operator_that_is_over():
    """Seed 7012: one of two consumers of a lost operator was lost, too, and its own consumer had all rows already."""
    other, its_sink = f"{QUERY}.7", f"{QUERY}.8"
    specs = {
        **SPECS,
        its_sink: msgspec.structs.replace(SPECS[SINK], id=its_sink),
        other: msgspec.structs.replace(SPECS[MAP], id=other),
        SOURCE: msgspec.structs.replace(SPECS[SOURCE], params=SourceParams("s", "file", (), (), None)),
    }
    specs = {name: specs[name] for name in (SOURCE, MAP, other, SINK, its_sink)}
    links = tuple(
        LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ((SOURCE, MAP), (MAP, SINK), (SOURCE, other), (other, its_sink))
    )
    recovery = machine()
    schemas = {link.id: () for link in links}
    seen = picture({SOURCE, MAP, other}, specs=specs, links=links, nodes={**NODES, other: "osl", its_sink: "nyc"}, schemas=schemas)
    recovery.look(seen, 1.0)
    actions = recovery.placed(1, {SOURCE: "fra", MAP: "rio", other: "rio"}, 1.0)
    for turn in asked(actions, Renew):
        assert isinstance(turn.step.message, Renew)
        is_over = turn.step.message.end.link.source == MAP
        actions = recovery.answered(turn.step, renewed(turn, 4, 30, watermark_us=WATERMARK_END if is_over else 0), 1.1)
    made: list[Instantiate] = []
    while actions and isinstance(actions[-1], Ask):
        for ask in asked(actions, Instantiate):
            assert isinstance(ask.step.message, Instantiate)
            made.append(ask.step.message)
            actions = recovery.answered(ask.step, Done(), 1.2)
    assert [one.spec.id for one in made] == [other, SOURCE]
    assert [end.link.target for end in made[-1].outputs] == [other]


def test_an_operator_waits_for_what_it_feeds():
    chosen, why = makeable(picture({MAP}, ALIVE - {"osl", "nyc"}), {MAP})
    assert chosen == frozenset()
    assert why == f"{MAP} waits for its consumers: {SINK}"


def test_what_is_fed_by_an_operator_that_nobody_makes_again_is_made_without_it():
    """The feeder was made for another query, which has finished: waiting for the feeder would never end."""
    first = LinkSpec(link_id("ams.t.0.4", SINK, 0), "ams.t.0.4", SINK, 0, 1.0, 1.0)
    fields = {"links": (first,), "nodes": {"ams.t.0.4": "osl", SINK: "nyc"}}
    assert not makeable(picture({SINK}, ALIVE - {"osl"}, **fields), {SINK})[0]
    assert makeable(picture({SINK}, ALIVE - {"osl"}, **fields, given_up=frozenset({first.id})), {SINK})[0] == {SINK}


def test_what_is_pinned_waits_until_its_host_says_that_it_has_it_not():
    recovery = machine()
    assert recovery.look(picture({SINK}, ALIVE - {"nyc"}, away=frozenset({SINK})), 1.0) == []
    assert recovery.look(picture({SINK}, away=frozenset({SINK})), 9.0) == []
    assert recovery.reason == f"{SINK} may still run: nyc has not reported it missing"
    [place] = recovery.look(picture({SINK}), 9.1)
    assert isinstance(place, Place)


def test_what_is_pinned_goes_on_as_it_was_when_its_host_has_it():
    recovery = machine()
    recovery.look(picture({SINK}, ALIVE - {"nyc"}, away=frozenset({SINK})), 1.0)
    assert recovery.look(picture(set()), 9.1) == []
    assert (recovery.phase, recovery.reason) == (Phase.WAITING, "")


def test_what_may_move_waits_as_long_as_was_set_and_no_longer():
    recovery = machine()
    away = picture({MAP}, ALIVE - {"osl"}, away=frozenset({MAP}), rules=Rules(7.0, 7.0))
    assert recovery.look(away, 10.0) == []
    assert recovery.next_wake() == 17.0
    assert recovery.look(away, 16.9) == []
    [place] = recovery.look(away, 17.0)
    assert isinstance(place, Place)


def test_what_others_use_is_given_more_time():
    recovery = machine()
    users = {MAP: (User("rio.t.1", "rio"),)}
    away = picture({MAP}, ALIVE - {"osl"}, away=frozenset({MAP}), users=users, rules=Rules(1.0, 7.0))
    recovery.look(away, 10.0)
    assert recovery.next_wake() == 17.0
    assert recovery.look(away, 16.9) == []
    assert len(recovery.look(away, 17.0)) == 1


def test_the_wait_begins_anew_with_each_absence():
    recovery = machine()
    away = picture({MAP}, ALIVE - {"osl"}, away=frozenset({MAP}), rules=Rules(7.0, 7.0))
    recovery.look(away, 10.0)
    recovery.look(picture(set()), 12.0)
    assert recovery.look(away, 16.0) == []
    assert recovery.next_wake() == 23.0


def test_what_may_move_is_not_made_elsewhere_while_its_host_is_about_to_answer():
    recovery = machine()
    assert recovery.look(picture({MAP}, away=frozenset({MAP})), 10.0) == []
    assert recovery.next_wake() is None
    [place] = recovery.look(picture({MAP}), 10.1)
    assert isinstance(place, Place)


def test_what_is_back_while_hosts_are_chosen_is_left_alone():
    recovery = machine()
    recovery.look(picture({MAP, SINK}, ALIVE - {"osl"}), 10.0)
    [place] = recovery.look(picture({SINK}), 10.1)
    assert isinstance(place, Place)
    assert place.operators == {SINK}


def test_an_attempt_goes_on_while_something_else_waits_for_its_node():
    recovery = machine()
    elsewhere = OperatorSpec(f"{QUERY}.3", MapParams(None, None), (), None, "fra", "")
    specs = SPECS | {elsewhere.id: elsewhere}
    nodes = {SOURCE: "fra", MAP: "osl", SINK: "nyc", elsewhere.id: "fra"}
    seen = picture({MAP, elsewhere.id}, ALIVE - {"osl"}, specs=specs, nodes=nodes, away=frozenset({elsewhere.id}))
    [place] = recovery.look(seen, 10.0)
    assert isinstance(place, Place)
    assert place.operators == {MAP}
    asked(recovery.placed(1, {MAP: "rio"}, 10.1), Renew)
    assert recovery.look(seen, 10.2) == []
    assert recovery.phase is Phase.FENCING


def test_an_operator_that_nothing_feeds_waits_for_its_feeders():
    assert makeable(picture({MAP, SOURCE}, ALIVE - {"osl", "fra"}), {MAP, SOURCE})[0] == frozenset()


def test_a_refusal_is_tried_again_elsewhere_under_a_higher_epoch_and_other_names():
    recovery = machine()
    [make] = fenced(recovery, {MAP}, made=30, rows=30)
    assert recovery.answered(make.step, PlacementError("full"), 11.0) == []
    assert recovery.phase is Phase.PAUSED
    assert recovery.next_wake() == 11.5
    assert recovery.wake(11.4) == []
    [place] = recovery.wake(11.5)
    assert isinstance(place, Place)
    assert place.excluded == {"rio"}
    [consumer] = asked(recovery.placed(place.attempt, {MAP: "ams"}, 11.5), Renew)
    assert isinstance(consumer.step.message, Renew)
    assert consumer.step.message.end.epoch == 2 * GENERATION
    assert consumer.step.message.end.link.id > f"{TO_SINK}+1"


def test_late_answers_to_an_attempt_that_is_over_change_nothing():
    recovery = machine()
    [make] = fenced(recovery, {MAP}, made=30, rows=30)
    recovery.answered(make.step, PlacementError("full"), 11.0)
    assert recovery.answered(make.step, Done(), 11.1) == []
    assert recovery.phase is Phase.PAUSED
    assert recovery.placed(1, {MAP: "ams"}, 11.1) == []


def test_an_operator_that_is_back_before_anything_was_turned_is_left_alone():
    recovery = machine()
    recovery.look(picture({MAP}, ALIVE - {"osl"}), 10.0)
    assert recovery.look(picture(set()), 10.1) == []
    assert (recovery.phase, recovery.reason) == (Phase.WAITING, "")
    assert recovery.placed(1, {MAP: "rio"}, 10.2) == []


def test_once_a_neighbour_may_have_turned_the_operator_is_made_again_though_it_is_back():
    recovery = machine()
    [make] = fenced(recovery, {MAP}, made=30, rows=30)
    assert recovery.look(picture(set()), 10.4) == []
    recovery.answered(make.step, PlacementError("full"), 11.0)
    recovery.hurry(11.1)
    [place] = recovery.look(picture(set()), 11.1)
    assert isinstance(place, Place)
    assert place.operators == {MAP}


def test_what_a_failed_attempt_has_made_is_made_once_more():
    """The host reports the copy, but its links are those of the failed attempt, and nobody has told it to begin."""
    recovery = machine()
    recovery.look(picture({SOURCE, MAP, SINK}), 10.0)
    [make] = asked(recovery.placed(1, {SOURCE: "fra", MAP: "rio", SINK: "nyc"}, 10.1), Instantiate)
    assert make.step.node == "nyc"
    [make] = asked(recovery.answered(make.step, Done(), 10.2), Instantiate)
    recovery.answered(make.step, PlacementError("full"), 10.3)
    recovery.hurry(10.4)
    [place] = recovery.look(picture({SOURCE, MAP}), 10.4)
    assert isinstance(place, Place)
    assert place.operators == {SOURCE, MAP, SINK}


def test_what_an_attempt_throws_away_is_written_down_before_it_makes_anything():
    recovery = machine()
    recovery.look(picture({MAP}, ALIVE - {"osl"}), 10.0)
    [consumer] = asked(recovery.placed(1, {MAP: "rio"}, 10.1), Renew)
    [feeder] = asked(recovery.answered(consumer.step, renewed(consumer, after=4, rows=25), 10.2), Renew)
    first, *others = recovery.answered(feeder.step, renewed(feeder, after=7, rows=70, made=30), 10.3)
    assert isinstance(first, Lose)
    assert (first.found.nodes, first.found.go_on[MAP].lost_rows) == ({MAP: "rio"}, {TO_SINK: 5})
    assert asked(others, Instantiate)
    assert recovery.denied(first.attempt - 1, LinkError("late"), 10.4) == []
    assert recovery.is_at(first.attempt)
    recovery.denied(first.attempt, LinkError("too few keepers answer"), 10.4)
    assert (recovery.phase, recovery.is_at(first.attempt)) == (Phase.PAUSED, False)


def test_what_is_lost_meanwhile_begins_another_attempt():
    recovery = machine()
    fenced(recovery, {MAP}, made=30, rows=30)
    [place] = recovery.look(picture({MAP, SINK}, ALIVE - {"osl"}), 10.5)
    assert isinstance(place, Place)
    assert place.operators == {MAP, SINK}


def test_a_new_host_that_fails_begins_another_attempt():
    recovery = machine()
    fenced(recovery, {MAP}, made=30, rows=30)
    [place] = recovery.look(picture({MAP}, ALIVE - {"osl", "rio"}), 10.5)
    assert isinstance(place, Place)


def test_without_a_host_the_next_attempt_follows_after_a_pause():
    recovery = machine()
    recovery.look(picture({MAP}, ALIVE - {"osl"}), 10.0)
    assert recovery.placed(1, PlacementError("no node has room"), 10.0) == []
    assert recovery.reason == "the recovery is tried again: no node has room"
    assert recovery.next_wake() == 10.5


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("event", list(Event))
def test_every_other_pair_of_phase_and_event_is_refused(phase: Phase, event: Event):
    recovery = machine()
    recovery.phase = phase
    if (phase, event) in TABLE:
        recovery._turn(event)
        assert recovery.phase is TABLE[phase, event]
    else:
        with pytest.raises(LocalProtocolError):
            recovery._turn(event)


def test_what_has_had_everything_is_not_fed_again():
    recovery = machine()
    recovery.look(picture({MAP}, ALIVE - {"osl"}), 10.0)
    [consumer] = asked(recovery.placed(1, {MAP: "rio"}, 10.0), Renew)
    [done] = recovery.answered(consumer.step, renewed(consumer, 4, 30, watermark_us=WATERMARK_END), 10.1)
    assert isinstance(done, Recovered)
    assert (done.nodes, done.over) == ({}, {MAP})


def test_an_operator_can_read_the_rows_of_a_shared_source_that_was_not_asked():
    """The source belongs to another query and replaces SOURCE of the plan. It has given the link up, so it is not asked."""
    columns, shared = (Field("v", ColumnType.INT),), "fra.t.1.0"
    planned = {
        **SPECS,
        SOURCE: msgspec.structs.replace(SPECS[SOURCE], schema=columns),
        MAP: msgspec.structs.replace(SPECS[MAP], pinned="osl"),
    }
    link = msgspec.structs.replace(LINKS[0], id=link_id(shared, MAP, 0), source=shared)
    deployed = Deployed((planned[MAP], planned[SINK]), (link, LINKS[1]), {shared: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(planned.values()), LINKS), deployed, "ams", 0.0)
    seen = msgspec.structs.replace(picture_of(record, ALIVE, 10.0), lost=frozenset({MAP}), given_up=frozenset({link.id}))
    recovery = machine()
    recovery.look(seen, 10.0)
    [consumer] = asked(recovery.placed(1, {MAP: "osl"}, 10.0), Renew)
    [make] = asked(recovery.answered(consumer.step, renewed(consumer, 0, 0), 10.1), Instantiate)
    assert isinstance(make.step.message, Instantiate)
    [end] = make.step.message.inputs
    assert (end.node, end.schema) == ("fra", columns)


def test_a_copy_of_an_earlier_generation_is_not_wanted():
    register = Register()
    register._anew[MAP] = ("rio", GENERATION)
    assert register.outlived([(MAP, 7), (SINK, 0)]) == ((MAP, 7),)
    assert register.outlived([(MAP, GENERATION + 3)]) == ()


def test_an_operator_that_has_moved_on_while_others_were_made_is_where_it_is():
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    record.epochs[SINK] = 3
    record.moved(MAP, "ams", GENERATION + 1)
    take_over(record, Recovered({MAP: "rio", SINK: "nyc"}, GENERATION, (), {}, 1, 0.1))
    assert (record.nodes[MAP], record.epochs[MAP]) == ("ams", GENERATION + 1)
    assert (record.nodes[SINK], record.epochs[SINK]) == ("nyc", GENERATION)


def test_links_of_operators_that_are_being_made_again_are_not_replaced():
    """The host may be back with such an operator, while its feeder has the link under the name of a recovery attempt."""
    deployed = Deployed(tuple(SPECS.values()), LINKS, NODES)
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    record.reported(OperatorReport(SOURCE, "running", "fra", links=((f"{FROM_SOURCE}+1", 0, 0, 0.0, 0.0),)))
    record.reported(OperatorReport(MAP, "running", "osl", links=((TO_SINK, 0, 0, 0.0, 0.0),)))
    record.reported(OperatorReport(SINK, "running", "nyc"))
    assert [link.id for link in record.unfed_links()] == [FROM_SOURCE]
    record.health.healing.turned = frozenset({MAP})
    assert record.unfed_links() == []


def test_a_copy_that_waits_for_the_word_to_run_is_no_news():
    """The operator had moved to rio and was about to move back to osl."""
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    waits, moved = OperatorReport(MAP, "prepared", "osl", epoch=2), OperatorReport(MAP, "moved", "rio", epoch=1)
    assert news_of(record, waits, "osl", 0) is None
    assert news_of(record, moved, "osl", 0) == moved
    record.moved(MAP, "osl", 2)
    assert news_of(record, waits, "osl", 2) == waits, "decided, and the message to run is under way"
    assert news_of(record, waits, "rio", 2) is None


def test_what_a_host_said_before_its_operator_left_and_came_back_is_no_news():
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    record.moved(MAP, "osl", 3)
    runs, missing = OperatorReport(MAP, "running", "osl", epoch=1), OperatorReport(MAP, "missing", "osl")
    assert news_of(record, runs, "osl", 1) is None
    assert news_of(record, missing, "osl", 1) is None
    assert news_of(record, missing, "osl", 3) == missing
    again = OperatorReport(MAP, "running", "osl", epoch=3)
    assert news_of(record, again, "osl", 1) == again


def test_an_operator_whose_move_is_decided_gets_the_word_from_the_owner():
    """The host that moved the operator may have crashed after it told the owner, and has forgotten the move after its restart."""
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    waits = OperatorReport(MAP, "prepared", "rio", epoch=1)
    assert not waits_for_word(record, waits, "rio"), "the move may still be abandoned"
    record.moved(MAP, "rio", 1)
    assert waits_for_word(record, waits, "rio")
    assert not waits_for_word(record, waits, "osl")
    assert not waits_for_word(record, OperatorReport(MAP, "running", "rio", epoch=1), "rio")
    assert not waits_for_word(record, OperatorReport(MAP, "prepared", "rio", epoch=2), "rio"), "epoch 2 is a later attempt"


def test_an_operator_that_has_not_arrived_where_it_was_to_move_is_missing():
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    record.moved(MAP, "osl", 2)
    moved = OperatorReport(MAP, "moved", "rio", epoch=1)
    assert news_of(record, moved, "osl", 2) == OperatorReport(MAP, "missing", "osl")
    assert news_of(record, moved, "osl", 0) == moved, "asked before the move to osl was known"
    assert news_of(record, moved, "rio", 2) == moved


def test_an_operator_that_is_heard_to_have_moved_to_a_failed_host_is_lost():
    """The news of that failure came before and does not come again."""
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    for operator, links in ((SOURCE, (FROM_SOURCE,)), (MAP, (TO_SINK,)), (SINK, ())):
        record.reported(OperatorReport(operator, "running", record.nodes[operator], links=tuple((link, 0, 0, 0.0, 0.0) for link in links)))
    gone = {"rio": MemberStatus.FAILED, "nyc": MemberStatus.FAILED}
    lose_unheard(record, gone.get)
    assert record.lost == set(), "nyc has reported, whatever others say"
    record.moved(MAP, "rio", 1)
    lose_unheard(record, gone.get)
    assert record.lost == {MAP}


def test_what_a_host_answers_that_has_departed_meanwhile_is_no_news():
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    answers: dict[str, Any] = {}
    gone: dict[str, MemberStatus] = {}
    messages: Any = SimpleNamespace(request=lambda node, message, done, timeout_s: answers.update({node: done}), tell=lambda *told: None)
    clock: Any = SimpleNamespace(now=lambda: 0.0)
    cost_store: Any = SimpleNamespace(hear=lambda *told: None)
    watching = Watching(clock, messages, {}, lambda record: None, cost_store, Any, lambda query: "ams", gone.get)
    report = OperatorReport(MAP, "running", "osl", links=((TO_SINK, 0, 0, 0.0, 0.0),))
    watching.ask(record, lambda record: None)
    gone["osl"] = MemberStatus.LEFT
    record.node_failed("osl", left=True)
    answers["osl"](OperatorReports(reports=(report,)))
    assert record.lost == {MAP}
    watching.ask(record, lambda record: None)
    answers["osl"](OperatorReports(reports=(report,)))
    assert record.lost == set(), "the host has answered a later question, so it is there"


def test_where_the_rows_of_a_sink_begin_is_learnt_from_its_first_copy_alone():
    deployed = Deployed(tuple(SPECS.values()), LINKS, {SOURCE: "fra", MAP: "osl", SINK: "nyc"})
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), deployed, "ams", 0.0)
    record.reported(OperatorReport(SINK, "running", "nyc", epoch=GENERATION, begun_at=500))
    assert record.health.healing.begun_at == {}
    record.reported(OperatorReport(SINK, "running", "nyc", begun_at=40))
    assert record.health.healing.begun_at == {SINK: 40}


def test_the_next_owner_uses_higher_epochs_than_the_former_ones_attempts():
    former = machine()
    former.look(picture({MAP}), 0.0)
    heir = Recovery(QUERY, User(QUERY, "fra"))
    heir.look(picture({MAP}, attempted=former.epoch), 0.0)
    assert heir.epoch == former.epoch + GENERATION


def test_no_two_owners_give_a_link_the_same_name_whatever_they_have_heard_of_each_other():
    names = set()
    for ownership in (0, 1, 2):
        recovery = machine()
        for tries in range(3):
            [place] = recovery.look(picture({MAP}, attempted=first_epoch(ownership)), 100.0 * tries)
            assert isinstance(place, Place)
            [consumer] = asked(recovery.placed(place.attempt, {MAP: "rio"}, 100.0 * tries), Renew)
            assert isinstance(consumer.step.message, Renew)
            names.add(consumer.step.message.end.link.id)
            recovery.answered(consumer.step, LinkError("silent"), 100.0 * tries)
    assert len(names) == 9


def test_an_end_that_has_a_link_under_another_name_is_turned():
    record = QueryRecord(Plan(QUERY, "k", "", tuple(SPECS.values()), LINKS), Deployed(tuple(SPECS.values()), LINKS, NODES), "ams", 0.0)
    for name, broken in ((FROM_SOURCE, []), (f"{FROM_SOURCE}+1", [FROM_SOURCE])):
        record.reported(OperatorReport(SOURCE, "running", "fra", links=((FROM_SOURCE, 0, 0, 0.0, 0.0),)))
        record.reported(OperatorReport(MAP, "running", "osl", links=((TO_SINK, 0, 0, 0.0, 0.0),), received=((name, 0),)))
        record.reported(OperatorReport(SINK, "running", "nyc", received=((TO_SINK, 0),)))
        assert is_apart(LINKS[0], record.reports[SOURCE], record.reports[MAP]) == bool(broken)
        assert [link.id for link in record.unfed_links()] == broken


def test_what_a_former_owner_was_about_to_make_is_made_again():
    heir = Recovery(QUERY, User(QUERY, "fra"), turned={MAP})
    [place] = heir.look(picture(set()), 0.0)
    assert isinstance(place, Place)
    assert (place.operators, heir.operators) == ({MAP}, {MAP})


def test_what_is_to_be_made_again_though_it_runs_counts_as_lost():
    recovery = machine()
    recovery.must_make({MAP})
    assert recovery.operators == {MAP}
    assert recovery.look(picture(set()), 1.0)
    assert recovery.is_active


def windows_in_a_row() -> Picture:
    """Returns the picture of a query with one window over another one; the host of the first is lost."""
    window = OperatorSpec(MAP, WindowParams("ts", 10, 10, (), ()), (), None, None, "")
    other = f"{QUERY}.3"
    specs = {SOURCE: SPECS[SOURCE], MAP: window, other: msgspec.structs.replace(window, id=other), SINK: SPECS[SINK]}
    links = tuple(LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ((SOURCE, MAP), (MAP, other), (other, SINK)))
    nodes = {**NODES, other: "nyc"}
    return picture({MAP}, ALIVE - {"osl"}, specs=specs, links=links, nodes=nodes, schemas=dict.fromkeys([link.id for link in links], ()))


def asked_to_make(recovery: Recovery, attempt: int, now: float) -> list[Action]:
    """Runs an attempt up to the requests that follow the answers of the neighbours; returns these."""
    [consumer] = asked(recovery.placed(attempt, {MAP: "rio"}, now), Renew)
    told = renewed(consumer, 4, 35, watermark_us=40, is_whole=True)
    [feeder] = asked(recovery.answered(consumer.step, told, now), Renew)
    return recovery.answered(feeder.step, renewed(feeder, 7, 70, watermark_us=55, sent_us=80), now)


def test_what_runs_on_behind_a_lost_window_is_told_what_to_leave_out_before_the_window_is_made():
    recovery = machine()
    recovery.look(windows_in_a_row(), 10.0)
    lose, *actions = asked_to_make(recovery, 1, 10.1)
    [leave_out] = asked(actions, LeaveOut)
    assert isinstance(lose, Lose)
    assert leave_out.step.node == "nyc"
    assert leave_out.step.message == LeaveOut(query=QUERY, operator=f"{QUERY}.3", column="window_start", us=70)
    [make] = asked(recovery.answered(leave_out.step, Done(), 10.2), Instantiate)
    assert isinstance(make.step.message, Instantiate)
    assert make.step.message.spec.begin == FirstAnswers("window_start", 60)


def asking_a_feeder_that_has_given_up() -> tuple[Recovery, Ask]:
    """Returns a recovery that asks the feeder of a lost window, and the question. The feeder has given its link to the window up."""
    recovery = machine()
    given_up = msgspec.structs.replace(windows_in_a_row(), given_up=frozenset({link_id(SOURCE, MAP, 0)}))
    recovery.look(given_up, 10.0)
    [consumer] = asked(recovery.placed(1, {MAP: "rio"}, 10.1), Renew)
    told = renewed(consumer, 4, 35, watermark_us=40, is_whole=True)
    [feeder] = asked(recovery.answered(consumer.step, told, 10.1), Renew)
    return recovery, feeder


def test_the_feeder_of_a_lost_state_that_has_given_the_link_up_begins_it_again_and_says_how_far_it_is():
    recovery, feeder = asking_a_feeder_that_has_given_up()
    assert isinstance(feeder.step.message, Renew)
    assert feeder.step.message.begins is True
    lose, *_ = recovery.answered(feeder.step, renewed(feeder, 1, 0, watermark_us=55, sent_us=55), 10.2)
    assert isinstance(lose, Lose)
    assert (lose.found.go_on[MAP].state_until_us, lose.found.go_on[MAP].is_exact) == (55, True)


def test_a_link_that_its_feeder_cannot_begin_again_is_replaced_later():
    recovery, feeder = asking_a_feeder_that_has_given_up()
    assert not recovery.answered(feeder.step, LocalProtocolError("it is about to move"), 10.2)
    [place] = recovery.wake(20.0)
    assert isinstance(place, Place)
    [consumer] = asked(recovery.placed(place.attempt, {MAP: "rio"}, 20.1), Renew)
    lose, *actions = recovery.answered(consumer.step, renewed(consumer, 4, 35, watermark_us=40, is_whole=True), 20.1)
    assert isinstance(lose, Lose)
    assert lose.found.go_on[MAP].state_until_us is None, "the new link counts what is lost"
    assert len(asked(actions, Instantiate)) == 1


def test_an_operator_whose_feeders_have_all_gone_meanwhile_waits_for_one():
    """Only a feeder can say how far the lost operator was."""
    recovery = machine()
    recovery.look(windows_in_a_row(), 10.0)
    [consumer] = asked(recovery.placed(1, {MAP: "rio"}, 10.1), Renew)
    gone = msgspec.structs.replace(windows_in_a_row(), alive=ALIVE - {"osl", NODES[SOURCE]})
    assert not recovery.look(gone, 10.2)
    assert not recovery.answered(consumer.step, renewed(consumer, 4, 35, watermark_us=40, is_whole=True), 10.2)
    assert not recovery.wake(20.0)
    assert "waits for its feeders" in recovery.reason


def test_an_agent_of_an_earlier_release_is_not_told_what_to_leave_out_and_the_query_says_so():
    recovery = machine()
    recovery.look(windows_in_a_row(), 10.0)
    lose, *actions = asked_to_make(recovery, 1, 10.1)
    [leave_out] = asked(actions, LeaveOut)
    assert isinstance(lose, Lose)
    assert lose.found.go_on[MAP].is_exact
    recovery.answered(leave_out.step, UnsupportedError("message 'leaveout' is not supported by this release"), 10.2)
    [place] = recovery.wake(20.0)
    assert isinstance(place, Place)
    lose, *actions = asked_to_make(recovery, place.attempt, 20.1)
    assert asked(actions, Instantiate)
    assert isinstance(lose, Lose)
    assert not lose.found.go_on[MAP].is_exact


def test_a_file_that_is_read_again_gives_a_lost_state_all_its_rows():
    """The other input of the state goes on; only its rows are missing."""
    file = OperatorSpec(SOURCE, SourceParams("s", "file", (), (), None), (), None, "osl", "", 0)
    window, other = OperatorSpec(MAP, WindowParams("ts", 10, 10, (), ()), (), None, None, ""), f"{QUERY}.3"
    specs = {SOURCE: file, other: msgspec.structs.replace(SPECS[SOURCE], id=other), MAP: window, SINK: SPECS[SINK]}
    links = tuple(LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, 1.0) for a, b in ((SOURCE, MAP), (other, MAP), (MAP, SINK)))
    nodes, names = {SOURCE: "osl", other: "fra", MAP: "osl", SINK: "nyc"}, [link.id for link in links]
    recovery = machine()
    recovery.look(
        picture({SOURCE, MAP}, specs=specs, links=links, nodes=nodes, schemas=dict.fromkeys(names, ()), taken={names[0]: 44}), 10.0
    )
    [consumer] = asked(recovery.placed(1, {SOURCE: "osl", MAP: "osl"}, 10.0), Renew)
    [feeder] = asked(recovery.answered(consumer.step, renewed(consumer, 4, 35, is_whole=True), 10.1), Renew)
    makes = asked(recovery.answered(feeder.step, renewed(feeder, 7, 70, sent_us=80), 10.2), Instantiate)
    for make in makes:
        assert isinstance(make.step.message, Instantiate)
        ends = [end for end in (*make.step.message.outputs, *make.step.message.inputs) if end.link.source == SOURCE]
        assert [(end.rows, end.skip_rows) for end in ends] == [(0, 0)]
    assert len(makes) == 2


def test_a_sink_that_takes_all_rows_begins_behind_those_in_its_file():
    healing, fresh = Healing(), Continuation(fresh=(TO_SINK,), is_fresh=True)
    healing.begun_at[SINK] = 7
    healing.begun(Recovered({SINK: "nyc"}, GENERATION, (), {SINK: fresh}, 1, 0.5))
    assert SINK not in healing.begun_at
    first, second = (
        OperatorReport(id=SINK, node="nyc", state="running", epoch=epoch, begun_at=90) for epoch in (2 * GENERATION, GENERATION)
    )
    healing.heard_begin(first)
    assert SINK not in healing.begun_at, "nobody knows what another copy counts"
    healing.heard_begin(second)
    assert healing.begun_at[SINK] == 90
