"""The table of who may send which message: every message type has an entry, and the entries are right."""

import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.links.dead_ends import Obstruction
from sbon.links.frames import Data
from sbon.links.places import Standing, Whereabouts
from sbon.query.multicast_ids import multicast_id
from sbon.query.params.rowwise import MapParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.types import NodeId, OperatorId
from sbon.wire.authority import TABLE, Way, judge, ways
from sbon.wire.candidates import CandidateAsk, Reserve
from sbon.wire.deployment import End, InputLost, Instantiate, Refeed, Release, Replaced, Use, User
from sbon.wire.links import Acknowledge, DeadEnd, Handed, Moved, NoSuchLink
from sbon.wire.messages import Message
from sbon.wire.migration import Abandon, Activate, Lock, Prepare, StateChunk, Unlock
from sbon.wire.ownership import Forget, Holder, Keep, Own, PromiseAsk, Record
from sbon.wire.reports import DelaySlack, UpstreamDelay

QUERY = "home.0000001.01"
SOURCE, TARGET = f"{QUERY}.0", f"{QUERY}.1"
LINK = LinkSpec(f"{SOURCE}>{TARGET}:0", SOURCE, TARGET, 0, 1.0, 1.0)
GONE = Obstruction("c on fra, which failed 130 s ago", True)
SPEAKS, LATE, STRANGER = Standing.SPEAKS, Standing.LATE, Standing.STRANGER


class Known:
    """The knowledge of one agent. By default, the other end of `LINK` is on `there` and was on `before`."""

    def __init__(self, **known: Any) -> None:
        self.end = Whereabouts("before", 1)
        self.end.moved("there", 2)
        self.sends = self.receives = True
        self.moving: tuple[NodeId, int] | None = None
        self.lock: NodeId | None = None
        self.owner, self.epoch = "home", 0
        self.__dict__.update(known)

    def sending_end(self, link: str) -> Whereabouts | None:
        return self.end if self.receives and link == LINK.id else None

    def receiving_end(self, link: str) -> Whereabouts | None:
        return self.end if self.sends and link == LINK.id else None

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        return [self.end] if operator in (SOURCE, TARGET) else []

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        return self.moving

    def holder(self, operator: OperatorId) -> NodeId | None:
        return self.lock

    def owner_of(self, query: str) -> NodeId:
        return self.owner if query == QUERY else query.partition(".")[0]

    def ownership_of(self, query: str) -> int:
        return self.epoch if query == QUERY else 0


def standing(message: Any, speaker: NodeId, **known: Any) -> Standing:
    return judge(message, speaker, Known(**known)).standing


def spec(name: str) -> OperatorSpec:
    return OperatorSpec(name, MapParams(None, None), (), None, None, "s")


def data(link: str = LINK.id) -> Data:
    return Data(link, 1, 0.0, 0, 0, b"")


def test_every_message_type_has_an_entry_and_no_other_has():
    assert set(TABLE) == {*typing.get_args(Message), Data}
    for kind, rule in TABLE.items():
        assert rule.who, kind
        assert rule.way, kind


def test_a_message_without_an_entry_is_nobodys_to_say():
    assert standing(SimpleNamespace(), "home") is STRANGER
    assert not ways(SimpleNamespace)


def test_the_documentation_has_the_table():
    text = (Path(__file__).parents[2] / "docs" / "authority.md").read_text()
    for kind, rule in TABLE.items():
        assert f"| `{kind.__name__}` | {' or '.join(way.name.lower() for way in rule.way)} | {rule.who} |" in text, kind


def test_the_mover_and_the_owner_of_its_query_give_an_operator_the_word_to_run():
    word = Activate(TARGET, 3)
    assert standing(word, "there", moving=("there", 3)) is SPEAKS
    assert standing(word, "home", moving=("there", 3)) is SPEAKS, "the mover may have crashed after it announced the move"
    assert standing(word, "stranger", moving=("there", 3)) is STRANGER
    assert standing(Abandon(TARGET, 3), "home", moving=("there", 3)) is STRANGER


@pytest.mark.parametrize("message", [data(), UpstreamDelay(LINK.id, 1.0), Handed(LINK, "there"), Handed(LINK, "before")], ids=repr)
def test_only_the_sending_ends_host_speaks_on_a_link(message: Any):
    about = message.node if isinstance(message, Handed) else "there"
    assert standing(message, about) is (SPEAKS if about == "there" else LATE)
    assert standing(message, "stranger") is STRANGER
    assert standing(message, "") is STRANGER


@pytest.mark.parametrize(
    "message", [Acknowledge(LINK.id, 1, 1, False), NoSuchLink(LINK.id), DeadEnd(LINK.id, GONE), Replaced(LINK.id)], ids=repr
)
def test_only_the_receiving_ends_host_acknowledges(message: Any):
    assert standing(message, "there") is SPEAKS
    assert standing(message, "before") is LATE
    assert standing(message, "stranger") is STRANGER
    assert standing(message, "stranger", sends=False) is SPEAKS, "without such a link here the message changes nothing"


def test_a_next_host_speaks_once_the_present_one_has_named_it_and_until_the_move_is_off():
    known = Known()
    known.end.name("next", 3)
    assert judge(data(), "next", known).standing is SPEAKS
    known.end.name("older", 2)
    assert judge(data(), "older", known).standing is STRANGER
    known.end.unname("there")
    assert judge(data(), "next", known).standing is STRANGER


def test_a_next_host_that_calls_off_a_move_of_its_own_is_still_a_next_host():
    """The former host may have considered the next host failed. Then it never announces that the operator has moved (story 204)."""
    known = Known()
    known.end.name("next", 3)
    known.end.name("third", 4)
    known.end.unname("next")
    assert judge(data(), "next", known).standing is SPEAKS
    assert judge(data(), "third", known).standing is STRANGER
    known.end.unname("there")
    assert judge(data(), "next", known).standing is STRANGER


def test_a_new_place_is_told_by_the_operators_host_or_by_anybody_to_whom_it_is_no_news():
    assert standing(Moved(TARGET, "next", 3), "there") is SPEAKS
    assert standing(Moved(TARGET, "stranger", 3), "stranger") is STRANGER
    assert standing(Moved(TARGET, "stranger", 3), "before") is LATE
    assert standing(Moved(TARGET, "stranger", 2), "stranger") is SPEAKS, "the epoch is not later, so the message changes nothing"
    assert standing(Moved("of.others.0.1", "stranger", 9), "stranger") is SPEAKS, "no operator here is concerned"


def test_of_several_places_the_latest_says_whose_word_counts():
    known = Known()
    behind = Whereabouts("before", 1)
    known.places = lambda operator: [behind, known.end]  # type: ignore[method-assign]
    assert judge(Moved(TARGET, "stranger", 9), "before", known).standing is LATE
    assert judge(Moved(TARGET, "there", 2), "before", known).standing is SPEAKS, "the old host repeats a place that is known already"


def test_only_the_home_speaks_for_its_query():
    for message in (
        Release(QUERY),
        DelaySlack(QUERY, 1.0),
        Reserve(QUERY, 1),
        CandidateAsk((), (), QUERY, 3),
        Refeed(QUERY, LINK.id, End(LINK, "x", ()), gives=False),
        Instantiate(spec(TARGET), (End(LINK, "x", ()),), (), User(QUERY, "home")),
        Use(SOURCE, User(QUERY, "home"), (End(LINK, "x", ()),)),
    ):
        assert standing(message, "home") is SPEAKS, message
        assert standing(message, "there") is STRANGER, message
        assert standing(message, "") is STRANGER, message


def test_whoever_has_taken_a_query_over_speaks_for_it_and_nobody_else():
    over: dict[str, Any] = {"owner": "heir", "epoch": 2}
    for message in (Release(QUERY), DelaySlack(QUERY, 1.0), Instantiate(spec(TARGET), (), (), User(QUERY, "heir")), Forget(QUERY, 2)):
        assert standing(message, "heir", **over) is SPEAKS, message
        assert standing(message, "home", **over) is STRANGER, message
    assert standing(Instantiate(spec(TARGET), (), (), User(QUERY, "home")), "heir", **over) is STRANGER


def test_a_new_owner_says_so_of_itself_under_a_higher_epoch():
    over: dict[str, Any] = {"owner": "heir", "epoch": 2}
    heir, other = Holder("heir", 1), Holder("there", 2)
    assert standing(Own(QUERY, 2, heir), "heir", **over) is SPEAKS
    assert standing(Own(QUERY, 2, other), "there", **over) is STRANGER
    assert standing(Own(QUERY, 1, other), "there", **over) is LATE
    assert standing(Own(QUERY, 3, other), "there", **over) is SPEAKS
    assert standing(Own(QUERY, 3, other), "heir", **over) is STRANGER
    assert standing(PromiseAsk(QUERY, 3, other), "there") is SPEAKS
    assert standing(PromiseAsk(QUERY, 3, other), "heir") is STRANGER
    assert standing(Forget(QUERY, 3), "there", **over) is STRANGER
    kept = Record(QUERY, 1, 7, Holder("home", 1), ((Holder("home", 1),),), b"")
    assert standing(Keep(kept), "home", **over) is SPEAKS, "the former owner learns from the answer that another agent owns the query"
    assert standing(Keep(kept), "there", **over) is STRANGER
    same = Record(QUERY, 2, 8, Holder("home", 1), ((Holder("home", 1),),), b"")
    assert standing(Keep(same), "home", **over) is SPEAKS, "the owner has raised its epoch to one that another agent holds by now"
    assert standing(Keep(same), "there", **over) is STRANGER


def test_the_home_makes_operators_and_links_of_its_own_query_alone():
    mine = User("evil.0000001.01", "evil")
    own = "evil.0000001.01.1"
    theirs = LINK
    into = LinkSpec(f"{SOURCE}>{own}:0", SOURCE, own, 0, 1.0, 1.0)
    assert standing(Instantiate(spec(own), (End(into, "x", ()),), (), mine), "evil") is SPEAKS
    carried = LinkSpec(f"{into.id}+65537", multicast_id(SOURCE, "x"), own, 0, 1.0, 1.0)
    assert standing(Instantiate(spec(own), (End(carried, "x", ()),), (), mine), "evil") is SPEAKS, "the link begins at a multicast"
    assert standing(Instantiate(spec(TARGET), (), (), mine), "evil") is STRANGER
    assert standing(Instantiate(spec(own), (End(theirs, "x", ()),), (), mine), "evil") is STRANGER
    stolen = LinkSpec(LINK.id, SOURCE, own, 0, 1.0, 1.0)
    assert standing(Instantiate(spec(own), (End(stolen, "x", ()),), (), mine), "evil") is STRANGER
    assert standing(Instantiate(spec(own), (), (End(stolen, "x", ()),), mine), "evil") is STRANGER
    assert standing(Use(SOURCE, mine, (End(theirs, "x", ()),)), "evil") is STRANGER
    assert standing(Use(SOURCE, mine, (End(into, "x", ()),)), "evil") is SPEAKS, "any query may use any operator"
    assert standing(Use(SOURCE, User(QUERY, "evil")), "evil") is STRANGER
    multicast = multicast_id(SOURCE, "x")
    beside = LinkSpec(f"{multicast}>{own}:0", multicast, own, 0, 1.0, 1.0)
    assert standing(Use(multicast, mine, (End(beside, "x", ()),)), "evil") is SPEAKS, "or a multicast of it"
    assert standing(Instantiate(spec(own), (End(beside, "x", ()),), (), mine), "evil") is SPEAKS
    assert standing(Refeed("evil.0000001.01", LINK.id, End(theirs, "x", ()), gives=False), "evil") is STRANGER


def test_a_use_is_passed_on_by_the_host_that_the_link_leads_to():
    passed_on = Use(SOURCE, User(QUERY, "home"), through=LINK.id)
    assert standing(passed_on, "there") is SPEAKS
    assert standing(passed_on, "stranger") is STRANGER
    assert standing(Use(SOURCE, User(QUERY, "there"), through=LINK.id), "there") is STRANGER
    assert standing(Use(SOURCE, User(QUERY, "home"), (End(LINK, "x", ()),), LINK.id), "there") is STRANGER


def test_a_lost_input_is_told_by_the_operators_home_or_by_what_feeds_it():
    lost = InputLost(TARGET, LINK.id)
    assert [standing(lost, who) for who in ("home", "there", "before", "stranger")] == [SPEAKS, SPEAKS, LATE, STRANGER]


def test_the_operators_host_asks_for_locks_and_their_holder_ends_them():
    lock = Lock(TARGET, (SOURCE,), "there", 1.0)
    assert standing(lock, "there") is SPEAKS
    assert standing(lock, "stranger") is STRANGER
    assert standing(Lock(TARGET, (SOURCE,), "stranger", 1.0), "stranger") is STRANGER
    unlock = Unlock(TARGET)
    assert [standing(unlock, who, lock="next") for who in ("next", "there", "before", "stranger")] == [SPEAKS, LATE, LATE, STRANGER]


def test_an_operator_is_moved_here_by_one_host_at_a_time():
    prepare = Prepare(spec(TARGET), 3, "there")
    assert standing(prepare, "there") is SPEAKS
    assert standing(prepare, "stranger") is STRANGER
    assert standing(Prepare(spec(TARGET), 9, "stranger"), "stranger", moving=("there", 3)) is STRANGER
    for kind in (Activate, Abandon):
        assert standing(kind(TARGET, 3), "there", moving=("there", 3)) is SPEAKS
        assert standing(kind(TARGET, 3), "stranger", moving=("there", 3)) is STRANGER
        assert standing(kind(TARGET, 2), "before", moving=("there", 3)) is LATE
    assert standing(StateChunk(TARGET, 3, 0, True, b""), "stranger", moving=("there", 3)) is STRANGER


def test_answers_are_never_said_unasked():
    answers = [rule for rule in TABLE.values() if rule.way is Way.ANSWER]
    assert len(answers) == 16
    assert {rule.standing(None, "home", Known()) for rule in answers} == {STRANGER}
