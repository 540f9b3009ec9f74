"""Records of queries on one agent: its answers about them, and its actions if too few agree. The test answers its messages."""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import pytest

from sbon.errors import LinkError, SbonError
from sbon.execution.settings import EngineConfig
from sbon.membership.members import Member, MemberStatus
from sbon.query.ids import query_id
from sbon.query.plan import LinkSpec, Plan
from sbon.supervision.claiming import Outcome
from sbon.supervision.deployment import Deployed
from sbon.supervision.former import UNKNOWN_ROUNDS
from sbon.supervision.inheriting import Attempt
from sbon.supervision.kept_record import encode_content
from sbon.supervision.owners import Owner
from sbon.supervision.ownership import Ownership
from sbon.supervision.promises import Promise
from sbon.supervision.record import QueryRecord
from sbon.supervision.register import Register
from sbon.supervision.resumption import KeptQuery
from sbon.supervision.wanted_questions import Question
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Done, Message
from sbon.wire.ownership import Anew, Claims, ClaimsAsk, Forget, Holder, HolderSays, Keep, Own, PromiseAsk, Record
from sbon.wire.replication import Unwanted, WantedAsk
from sbon.wire.reports import OperatorsAsk
from tests.supervision.test_kept_record import SPECS

AMS, FRA, NYC, RIO = (Holder(name, number) for number, name in enumerate(("ams", "fra", "nyc", "rio"), 1))
TRIO = (AMS, FRA, NYC)
QUERY = query_id("ams", AMS.boot, 1)
LATER, LAST, RIO_S = query_id("ams", 77, 1), query_id("fra", 78, 1), query_id("rio", 4, 1)
"""The first two: ids under which agents have run the query again after restarts."""
SILENCE = LinkError("no answer")
NOTHING = Claims(owned=(), kept=())


class Timer:
    """A timer that never fires."""

    def cancel(self) -> None:
        """Does nothing."""


class Services:
    """A clock that stands still, and messages that wait for the test's answers."""

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.asked: list[tuple[NodeId, Message, Callable[[Message | SbonError], None]]] = []
        self.told: list[tuple[NodeId, Message]] = []

    def now(self) -> float:
        return 100.0

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return Timer()

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def request(self, node: NodeId, message: Message, done: Callable[[Message | SbonError], None], timeout_s: float = 0.0) -> None:
        self.asked.append((node, message, done))

    def tell(self, node: NodeId, message: Message) -> None:
        self.told.append((node, message))

    def answer(self, kind: type[Message], answers: dict[NodeId, Message | SbonError]) -> None:
        """Answers all messages of a kind; nodes without an entry in `answers` are silent."""
        waiting = [one for one in self.asked if isinstance(one[1], kind)]
        self.asked = [one for one in self.asked if one not in waiting]
        for node, _, done in waiting:
            done(answers.get(node, SILENCE))


class Successor:
    """Notes which queries are given up."""

    def __init__(self, register: Register) -> None:
        self.given_up: list[QueryId] = []
        self._register = register

    def inherited(self, query: QueryId, result: QueryRecord | ValueError) -> None:
        raise AssertionError("no test gets that far")

    def owned_elsewhere(self, query: QueryId) -> None:
        self.given_up.append(query)
        self._register.give_up(query)


class Agent:
    """The ownership of one agent, among members that the test names."""

    def __init__(
        self,
        me: Holder,
        *members: Holder,
        failed: tuple[NodeId, ...] = (),
        save: Callable[[Callable[[str], None]], None] = lambda done: done(""),
    ) -> None:
        self.services, self.register = Services(me.name), Register(me.name)
        self.successor = Successor(self.register)
        self.table = {
            holder.name: Member(
                name=holder.name,
                address=("127.0.0.1", 1),
                status=MemberStatus.FAILED if holder.name in failed else MemberStatus.ALIVE,
                incarnation=1,
                boot=holder.boot,
                labels={},
            )
            for holder in members
        }
        self.ownership = Ownership(
            self.services,
            lambda: 0.0,
            self.services,
            me,
            lambda: self.table,
            self.register,
            self.successor,
            EngineConfig(take_over=True),
            save,
            {}.get,
        )

    def begin(self) -> None:
        """Enters the query as running, with ams, this agent, as its home."""
        self.register.enter(QueryRecord(Plan(QUERY, "k", "", (), ()), Deployed((), (), {}), "ams", 0.0))

    def says(self, message: Keep | PromiseAsk) -> HolderSays:
        """Returns this agent's answer to a message."""
        said: list[Message] = []
        self.ownership.requests.answer(message, said.append)
        (answer,) = said
        assert isinstance(answer, HolderSays)
        return answer


def record() -> Record:
    return Record(QUERY, 0, 1, AMS, (TRIO,), b"content")


def keeper(claims: Claims | None = NOTHING) -> Agent:
    """Returns a keeper whose owner has failed, and which has asked the other keeper for its promise.

    Parameters
    ----------
    claims : what the other keeper says of the query; None: it has not been answered yet
    """
    one = Agent(FRA, *TRIO, failed=("ams",))
    assert one.ownership.inheriting.keep(record()).granted
    one.ownership.inheriting.hand_back(record(), 0, (), 0.0)  # makes it fra's turn
    one.ownership.look_at_all()
    if claims is not None:
        one.services.answer(ClaimsAsk, {"fra": NOTHING, "nyc": claims})
    return one


def test_a_former_owner_says_who_owns_a_query_by_now() -> None:
    one = Agent(AMS, *TRIO)
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))) == Unwanted(queries=(QUERY,))
    one.register.owners.heard(QUERY, Owner("fra", FRA.boot, 2))
    told = one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,)))
    assert told == Unwanted(queries=(), taken=(Own(query=QUERY, epoch=2, owner=FRA),))

    other = Agent(NYC, *TRIO)
    assert other.ownership.inheriting.keep(record()).granted
    assert other.ownership.wanted_questions.disowned("ams", Question(kept={QUERY}), told, ()) == []
    assert other.register.owner_of(QUERY) == "fra"
    assert other.ownership.inheriting.records == {}


@pytest.mark.parametrize(("by", "owner"), [("fra", "ams"), ("nyc", "fra")])
def test_an_owner_whose_versions_never_counted_passes_its_query_on_to_the_owner_that_it_has_given_way_to(by: NodeId, owner: NodeId) -> None:
    """Otherwise hosts and keepers would believe the former owner for good, because its epoch is higher."""
    one = Agent(NYC, *TRIO)
    assert one.says(Keep(record=Record(QUERY, 2, 1, AMS, (TRIO,), b""))).granted
    one.ownership.inheriting.promise(Attempt(QUERY, 4, FRA, NYC), is_owner_there=False)
    assert one.ownership.inheriting.keep(Record(QUERY, 4, 2, FRA, (TRIO,), b"")).granted
    one.register.owners.heard(QUERY, Owner("fra", FRA.boot, 4))
    told = Unwanted(queries=(), taken=(Own(query=QUERY, epoch=2, owner=AMS),))
    assert one.ownership.wanted_questions.disowned(by, Question(served={QUERY}, kept={QUERY}), told, ()) == []
    assert one.register.owners.of(QUERY).name == owner
    assert one.register.owners.of(QUERY).epoch == 4
    assert (QUERY in one.ownership.inheriting.records) is (owner == "fra")


def test_an_owner_of_a_lower_epoch_is_believed_once_the_one_of_the_higher_epoch_has_given_way_to_it() -> None:
    one, found = Agent(NYC, *TRIO), list[object]()
    one.register.owners.heard(QUERY, Owner("fra", FRA.boot, 4))
    one.ownership.requests.heard(Own(query=QUERY, epoch=2, owner=AMS), found.append)
    one.services.answer(WantedAsk, {"fra": Unwanted(queries=(), taken=(Own(query=QUERY, epoch=2, owner=AMS),))})
    assert found == [None]
    assert one.register.owners.of(QUERY) == Owner("ams", AMS.boot, 4)


def test_a_keeper_that_follows_a_later_owner_does_not_say_that_the_query_has_ended() -> None:
    """After the refusal, the former owner, which drops the query, leaves a tombstone."""
    one, said = Agent(NYC, *TRIO), list[Message]()
    assert one.ownership.inheriting.keep(Record(QUERY, 2, 1, FRA, (TRIO,), b"")).granted
    one.ownership.requests.answer(Forget(query=QUERY, epoch=1, is_over=True), said.append)
    assert said == [HolderSays(granted=False, epoch=0)]
    assert QUERY in one.ownership.inheriting.records


@pytest.mark.parametrize(("said", "forgotten"), [(Done(), True), (HolderSays(granted=False, epoch=2), False)])
def test_a_query_has_ended_for_good_once_a_keeper_says_so(said: Message, forgotten: bool) -> None:
    one, found = Agent(AMS, *TRIO), list[bool]()
    one.begin()
    one.ownership.look(one.register.running[QUERY])
    one.ownership.ended(QUERY, found.append)
    one.services.answer(Forget, {"fra": said, "nyc": said})
    assert found == [forgotten]


def test_a_keeper_that_is_taken_for_the_owner_keeps_the_record_until_it_is() -> None:
    """It had written a version that never came to count, and asked for the query again. A holder with that version named it the owner: it
    forgot the record, called the query unwanted, and nobody had the query."""
    one = keeper()
    asked, said = Question(served={QUERY}), Unwanted(queries=(), taken=(Own(query=QUERY, epoch=1, owner=FRA),))
    assert one.ownership.wanted_questions.disowned("ams", asked, said, ()) == []
    assert one.ownership.inheriting.records == {QUERY: record()}
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))) == Unwanted(queries=())
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    assert QUERY in one.ownership.owned


def test_a_disowned_record_ends_no_operator_that_runs_here_for_another_owner() -> None:
    one = Agent(NYC, *TRIO)
    assert one.ownership.inheriting.keep(record()).granted
    for _ in range(2):
        assert one.ownership.wanted_questions.disowned("ams", Question(kept={QUERY}), Unwanted(queries=(QUERY,)), ()) == []
    assert one.ownership.inheriting.records == {}
    assert one.ownership.wanted_questions.disowned("ams", Question(served={QUERY}), Unwanted(queries=(QUERY, "other")), ()) == [QUERY]


def test_a_keeper_calls_no_query_unwanted_whose_record_it_has() -> None:
    one = Agent(AMS, *TRIO)
    assert one.ownership.inheriting.keep(Record(QUERY, 1, 1, FRA, (TRIO,), b"")).granted
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).queries == ()


def test_all_that_will_hear_of_a_new_owner_are_dialled_while_holders_are_asked_for_their_promise() -> None:
    one = Agent(FRA, *TRIO, RIO, failed=("ams",))
    assert one.ownership.inheriting.keep(record()).granted
    one.ownership.inheriting.hand_back(record(), 0, (), 0.0)
    one.ownership.look_at_all()
    assert [node for node, message, _ in one.services.asked if isinstance(message, PromiseAsk)] == ["nyc"]
    assert one.services.told == [(node, OperatorsAsk(operators=())) for node in ("nyc", "rio")]


@pytest.mark.parametrize(
    ("claims", "records", "owns"),
    [
        (NOTHING, (), True),
        (Claims(owned=(), kept=(), over=(QUERY,)), (), False),
        (Claims(owned=(), kept=(), anew=(Anew(QUERY, LATER, is_decided=True),)), (), False),
        (Claims(owned=(), kept=(), over=(QUERY,), anew=(Anew(QUERY, LATER, is_decided=False),)), (QUERY,), False),
        (Claims(owned=(), kept=(), anew=(Anew(QUERY, LATER, is_decided=False),)), (), True),
        (Claims(owned=(QUERY,), kept=(), over=(QUERY,)), (), True),
        (Claims(owned=(), kept=(), anew=(Anew(QUERY, QUERY, is_decided=True), Anew(LAST, LATER, is_decided=True))), (), True),
    ],
    ids=["unknown", "over", "runs again", "about to run again", "may run again", "owned", "another query"],
)
def test_a_keeper_takes_no_query_over_that_has_ended_or_runs_under_a_new_id(
    claims: Claims, records: tuple[QueryId, ...], owns: bool
) -> None:
    """A home had started its query again under a new id, with the promise of one keeper, and crashed. The other keeper had the record."""
    one = keeper(claims)
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    assert (tuple(one.ownership.inheriting.records), tuple(one.ownership.owned)) == (records, (QUERY,) if owns else ())
    assert one.ownership.inheriting.promises.is_over(QUERY) == (not records and not owns)


def test_an_agent_that_takes_a_query_over_alone_tells_nobody_before_the_query_is_on_its_disk() -> None:
    """It ended at this moment, and the former owner had forgotten the query."""
    saves = list[Callable[[str], None]]()
    one = Agent(FRA, *TRIO, failed=("ams",), save=saves.append)
    one.table["nyc"] = msgspec.structs.replace(one.table["nyc"], status=MemberStatus.LEFT)
    one.table["ams"] = msgspec.structs.replace(one.table["ams"], status=MemberStatus.ALIVE, boot=77)
    assert one.ownership.inheriting.keep(record()).granted
    one.ownership.inheriting.hand_back(record(), 0, (), 0.0)
    one.ownership.look_at_all()
    saves.pop(0)("")  # the promise
    one.services.answer(ClaimsAsk, {"fra": NOTHING, "ams": NOTHING})
    one.services.answer(PromiseAsk, {"ams": HolderSays(granted=True, epoch=1)})
    assert QUERY in one.ownership.owned
    one.ownership.look_at_all()
    assert [message for _, message, _ in one.services.asked if isinstance(message, Own)] == []
    said = list[Message]()
    one.ownership.requests.answer(PromiseAsk(query=QUERY, epoch=9, holder=Holder("ams", 77), of=AMS, is_anew=True), said.append)
    assert said == []
    saves.pop(0)("")
    assert {node for node, message, _ in one.services.asked if isinstance(message, Own)} == {"ams", "fra"}
    saves.pop(0)("")
    assert said == [HolderSays(granted=False, epoch=1, owner=FRA)]
    assert saves == []


def test_a_keeper_waits_for_what_all_agents_know_of_a_query_before_it_takes_it_over() -> None:
    one = keeper(None)
    assert {(node, message) for node, message, _ in one.services.asked if isinstance(message, ClaimsAsk)} == {
        ("fra", ClaimsAsk((QUERY,))),
        ("nyc", ClaimsAsk((QUERY,))),
    }
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    assert one.ownership.owned == {}
    one.services.answer(ClaimsAsk, {"fra": NOTHING})
    assert QUERY in one.ownership.owned


def test_a_query_that_is_being_taken_over_is_named_by_its_first_id() -> None:
    """The home, which had the query on its disk under another id, ran it again while another agent was taking it over."""
    running = QueryRecord(Plan(LATER, "k", "", SPECS, ()), Deployed(SPECS, (), {}), "ams", 0.0)
    running.history.first = QUERY
    one, said = Agent(FRA, *TRIO, failed=("ams",)), list[Message]()
    assert one.ownership.inheriting.keep(Record(LATER, 0, 1, AMS, (TRIO,), encode_content(running))).granted
    one.ownership.inheriting.hand_back(one.ownership.inheriting.records[LATER], 0, (), 0.0)
    one.ownership.look_at_all()
    one.services.answer(ClaimsAsk, {})
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said == [Claims((), (), anew=(Anew(QUERY, LATER, is_decided=True),))]


def test_a_drop_waits_until_a_query_has_been_taken_over_or_handed_back() -> None:
    """It was refused by the very agent that was taking the query over."""
    one, decided = keeper(), list[str]()
    assert not one.ownership.when_decided(QUERY, lambda: decided.append("too early"))
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=9)})
    assert one.ownership.when_decided(QUERY, lambda: decided.append("handed back"))
    assert decided == []
    refusal = HolderSays(granted=False, epoch=99)
    one.services.answer(Keep, {"nyc": refusal, "ams": refusal})
    assert decided == ["handed back"]
    one.begin()
    assert not one.ownership.when_decided(QUERY, lambda: decided.append("runs"))


def test_a_record_is_handed_back_if_too_few_take_the_first_version() -> None:
    one = keeper()
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=9)})
    assert QUERY in one.ownership.owned
    refusal = HolderSays(granted=False, epoch=99)
    one.services.answer(Keep, {"nyc": refusal, "ams": refusal})
    assert one.ownership.owned == {}
    assert one.ownership.inheriting.records == {QUERY: record()}


def test_an_owner_that_is_cut_off_and_promises_its_query_keeps_the_record() -> None:
    """The keeper with the promise may get no majority. Without the record, nobody would own the query, and it would count as ended."""
    one = Agent(AMS, *TRIO)
    one.begin()
    one.ownership.look(one.register.running[QUERY])
    one.services.answer(Keep, {"fra": HolderSays(granted=True, epoch=0)})
    kept = one.ownership.owned[QUERY].machine.confirmed
    one.ownership.permit(one.register.running[QUERY], lambda problem: None)
    one.services.answer(Keep, {})
    assert one.says(PromiseAsk(query=QUERY, epoch=0, holder=FRA)) == HolderSays(granted=False, epoch=0)
    assert one.ownership.owned
    assert one.says(PromiseAsk(query=QUERY, epoch=4, holder=FRA)) == HolderSays(granted=True, epoch=4, record=kept)
    assert (one.ownership.owned, one.successor.given_up) == ({}, [QUERY])
    assert one.ownership.inheriting.records == {QUERY: kept}
    assert one.says(PromiseAsk(query=QUERY, epoch=4, holder=NYC)) == HolderSays(granted=False, epoch=4, record=kept)
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).queries == ()


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_holder_that_knows_another_owner_asks_it_before_it_takes_a_new_owners_version(has_ended: bool) -> None:
    one, said = Agent(NYC, *TRIO), list[Message]()
    one.ownership.requests.answer(Keep(record=Record(QUERY, 1, 2, FRA, (TRIO,), b"")), said.append)
    assert said == []
    taken = Unwanted(queries=(), taken=(Own(query=QUERY, epoch=1, owner=FRA),))
    one.services.answer(WantedAsk, {"ams": Unwanted(queries=(QUERY,)) if has_ended else taken})
    assert [answer.granted for answer in said if isinstance(answer, HolderSays)] == [not has_ended]


def test_a_holder_whose_owner_does_not_answer_takes_no_other_owners_version() -> None:
    one, said = Agent(NYC, *TRIO), list[Message]()
    one.ownership.requests.answer(Keep(record=Record(QUERY, 1, 2, FRA, (TRIO,), b"")), said.append)
    one.services.answer(WantedAsk, {})
    assert said == [HolderSays(granted=False, epoch=0)]


@pytest.mark.parametrize(("says", "believed", "owner"), [(None, False, "ams"), (FRA, True, "fra"), (RIO, False, "rio")])
def test_a_new_owner_is_believed_once_the_one_known_so_far_names_it(says: Holder | None, believed: bool, owner: NodeId) -> None:
    """It is not enough that the known owner says that the query has ended there."""
    one, found = Agent(NYC, *TRIO), list[object]()
    one.ownership.requests.heard(Own(query=QUERY, epoch=2, owner=FRA), found.append)
    assert found == []
    taken = () if says is None else (Own(query=QUERY, epoch=1, owner=says),)
    one.services.answer(WantedAsk, {"ams": Unwanted(queries=(QUERY,), taken=taken)})
    assert [problem is None for problem in found] == [believed]
    assert one.register.owner_of(QUERY) == owner


def test_a_new_owner_believes_itself() -> None:
    one, found = keeper(), list[object]()
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=9)})
    assert QUERY in one.ownership.owned
    one.ownership.requests.heard(Own(query=QUERY, epoch=1, owner=FRA), found.append)
    assert found == [None]


def test_a_former_owner_on_which_a_query_has_ended_meanwhile_names_the_one_that_has_taken_it_over() -> None:
    one, found = Agent(AMS, *TRIO), list[object]()
    one.ownership.inheriting.ended(QUERY)
    one.ownership.requests.heard(Own(query=QUERY, epoch=2, owner=FRA), found.append)
    assert found == [None]
    assert [word.owner for word in one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).taken] == [FRA]


def test_a_keeper_says_that_it_has_heard_of_a_querys_end_once_that_is_on_disk() -> None:
    one, said = Agent(NYC, *TRIO), list[Message]()
    written: list[Callable[[str], None]] = []
    one.ownership.requests._save = written.append
    assert one.ownership.inheriting.keep(record()).granted
    one.ownership.requests.answer(Forget(query=QUERY, epoch=0, is_over=True), said.append)
    assert said == []
    written[0]("")
    assert said == [Done()]
    assert one.ownership.inheriting.promises.all == (Promise(QUERY, 0, NYC, is_over=True),)


def test_an_epoch_that_does_not_count_is_told_to_nobody() -> None:
    one = Agent(AMS, *TRIO)
    one.begin()
    one.ownership.look(one.register.running[QUERY])
    no = HolderSays(granted=False, epoch=3)
    one.services.answer(Keep, {"fra": no, "nyc": no})
    one.ownership.look_at_all()
    assert not [message for _, message, _ in one.services.asked if isinstance(message, Own)]


@pytest.mark.parametrize(
    ("taken", "stays"),
    [
        ((Own(query=QUERY, epoch=0, owner=AMS),), True),
        ((Own(query=QUERY, epoch=0, owner=FRA),), True),
        ((Own(query=QUERY, epoch=1, owner=FRA),), False),
        ((), False),
    ],
)
def test_an_owner_gives_way_to_another_one_that_a_keeper_names_unless_that_one_has_given_way_itself(
    taken: tuple[Own, ...], stays: bool
) -> None:
    """Two owners that give way to each other would leave the query without one. The other owner says which of its epochs counts."""
    one = Agent(AMS, *TRIO)
    one.begin()
    query = one.register.running[QUERY]
    one.ownership.look(query)
    one.services.answer(Keep, {"nyc": HolderSays(granted=False, epoch=2, owner=FRA)})
    one.services.answer(WantedAsk, {"fra": Unwanted(queries=(), taken=taken)})
    assert (QUERY in one.ownership.owned) is stays
    assert (one.successor.given_up == []) is stays
    if stays:
        one.ownership.look(query)
        one.ownership.permit(query, lambda problem: None)
        assert {message.record.epoch for _, message, _ in one.services.asked if isinstance(message, Keep)} == {3}


def test_an_owner_goes_on_above_an_epoch_of_its_own_under_which_a_keeper_has_a_version_of_one_that_has_given_way() -> None:
    one = Agent(AMS, *TRIO)
    one.begin()
    query = one.register.running[QUERY]
    one.ownership.look(query)
    for said, written in ((HolderSays(granted=False, epoch=1), 2), (HolderSays(granted=False, epoch=2, owner=FRA), 3)):
        one.services.answer(Keep, {"nyc": said})
        one.services.answer(WantedAsk, {"fra": Unwanted(queries=(), taken=(Own(query=QUERY, epoch=0, owner=FRA),))})
        one.ownership.permit(query, lambda problem: None)
        assert {message.record.epoch for _, message, _ in one.services.asked if isinstance(message, Keep)} == {written}


def test_a_holder_takes_no_version_under_the_epoch_of_another_owner() -> None:
    """The holder has not promised and has no record: it has only heard who owns the query."""
    one = Agent(NYC, *TRIO, RIO)
    one.register.owners.heard(QUERY, Owner("rio", RIO.boot, 2))
    assert one.says(Keep(record=Record(QUERY, 2, 9, AMS, (TRIO,), b""))) == HolderSays(granted=False, epoch=2, owner=RIO)


def test_a_home_whose_query_nobody_keeps_yet_takes_no_version_of_it() -> None:
    one = Agent(AMS, *TRIO)
    one.begin()
    assert not one.says(Keep(record=Record(QUERY, 9, 1, FRA, (TRIO,), b""))).granted
    assert QUERY in one.register.running


@pytest.mark.parametrize("is_there", [True, False])
def test_an_owner_that_a_keeper_names_and_that_cannot_be_asked_is_not_believed_to_own_the_query(is_there: bool) -> None:
    """The keeper may have a version of that owner that never counted."""
    one = Agent(AMS, *TRIO, RIO, failed=() if is_there else ("rio",))
    one.begin()
    one.ownership.look(one.register.running[QUERY])
    no = HolderSays(granted=False, epoch=2, owner=RIO)
    one.services.answer(Keep, {"fra": no, "nyc": no})
    assert any(isinstance(message, WantedAsk) for _, message, _ in one.services.asked) is is_there
    one.services.answer(WantedAsk, {})
    assert QUERY in one.ownership.owned
    assert one.successor.given_up == []
    assert "too few of its keepers" in one.register.running[QUERY].health.healing.ownership


def test_an_owner_gives_way_to_one_that_a_keeper_names_and_whose_process_has_ended() -> None:
    """The keeper takes the query over once this agent promises."""
    one = Agent(AMS, *TRIO, RIO)
    one.table["rio"] = msgspec.structs.replace(one.table["rio"], status=MemberStatus.LEFT)
    one.begin()
    one.ownership.look(one.register.running[QUERY])
    one.services.answer(Keep, {"fra": HolderSays(granted=False, epoch=2, owner=RIO)})
    assert one.successor.given_up == [QUERY]


def test_an_owner_that_its_keepers_no_longer_follow_promises_the_query_to_one_of_them() -> None:
    """The keepers have promised the query to each other. Without the owner's promise, both sides would wait for ever."""
    one = Agent(AMS, *TRIO)
    one.begin()
    one.ownership.look(one.register.running[QUERY])
    assert not one.says(PromiseAsk(query=QUERY, epoch=9, holder=NYC, of=AMS)).granted, "the owner's first version is under way"
    no = HolderSays(granted=False, epoch=4)
    one.services.answer(Keep, {"fra": no, "nyc": no})
    assert one.says(PromiseAsk(query=QUERY, epoch=5, holder=NYC, of=AMS)) == HolderSays(granted=False, epoch=5), "5 is the owner's next one"
    assert one.successor.given_up == []
    assert one.says(PromiseAsk(query=QUERY, epoch=6, holder=NYC, of=AMS)).granted
    assert one.successor.given_up == [QUERY]
    assert QUERY not in one.ownership.owned
    assert not one.says(PromiseAsk(query=QUERY, epoch=6, holder=FRA, of=AMS)).granted, "already promised to nyc"


def test_an_owner_says_under_which_epoch_it_owns_a_query_that_it_has_taken_over() -> None:
    one = keeper()
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=9)})
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).taken == (Own(query=QUERY, epoch=0, owner=FRA),)
    one.services.answer(Keep, {"nyc": HolderSays(granted=True, epoch=1)})
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).taken == (Own(query=QUERY, epoch=1, owner=FRA),)


def test_an_owner_that_another_one_has_followed_promises_while_that_one_is_not_there() -> None:
    one = Agent(AMS, *TRIO)
    one.begin()
    query = one.register.running[QUERY]
    one.ownership.look(query)
    one.services.answer(Keep, {"fra": HolderSays(granted=True, epoch=0), "nyc": HolderSays(granted=True, epoch=0)})
    query.links = (LinkSpec("a>b:0", "a", "b", 0, 1.0, 1.0),)
    one.ownership.look(query)
    one.services.answer(Keep, {"nyc": HolderSays(granted=False, epoch=1, owner=FRA)})
    one.services.answer(WantedAsk, {"fra": Unwanted(queries=())})
    assert one.ownership.owned == {}
    ask = PromiseAsk(query=QUERY, epoch=2, holder=NYC, of=AMS)
    assert not one.says(ask).granted, "fra owns the query and is alive"
    one.table["fra"] = msgspec.structs.replace(one.table["fra"], status=MemberStatus.LEFT)
    said = one.says(ask)
    assert said.granted
    assert said.record is not None
    assert said.record.version == 1


def test_answers_wait_for_promises_that_are_being_written() -> None:
    one, said = Agent(NYC, *TRIO, failed=("ams",)), list[Message]()
    written: list[Callable[[str], None]] = []
    one.ownership.requests._save = written.append
    assert one.ownership.inheriting.keep(record()).granted
    for place in (NYC, Holder("nyc", 77)):
        one.ownership.requests.answer(PromiseAsk(query=QUERY, epoch=1, holder=FRA, of=place), said.append)
    assert said == []
    for done in written:
        done("")
    assert len(said) == 2


def test_an_owner_says_that_its_query_has_ended_under_the_epoch_that_keepers_know() -> None:
    """No version has been sent yet under the higher epoch that one keeper named: the other keeper would not know the sender."""
    one = Agent(AMS, *TRIO)
    one.register.enter(QueryRecord(Plan(QUERY, "k", "", (), ()), Deployed((), (), {}), "ams", 0.0))
    one.ownership.look(one.register.running[QUERY])
    answers = {"fra": HolderSays(granted=False, epoch=3), "nyc": HolderSays(granted=True, epoch=0)}
    one.services.answer(Keep, dict[NodeId, Message | SbonError](answers))
    assert one.ownership.owned[QUERY].machine.epoch == 4
    one.ownership.ended(QUERY)
    told = {node: message.epoch for node, message, _ in one.services.asked if isinstance(message, Forget)}
    assert told == {"fra": 0, "nyc": 0}


def test_a_keeper_says_who_owns_a_query_by_now() -> None:
    one = Agent(AMS, *TRIO)
    assert one.says(Keep(record=Record(QUERY, 1, 1, NYC, (TRIO,), b""))).granted
    told = one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,)))
    assert told == Unwanted(queries=(), taken=(Own(query=QUERY, epoch=1, owner=NYC),))


def test_an_owner_promises_its_queries_to_nobody() -> None:
    one = keeper()
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=9)})
    said = one.says(PromiseAsk(query=QUERY, epoch=99, holder=NYC, of=FRA))
    assert (said.granted, said.owner) == (False, FRA)


@pytest.mark.parametrize(
    ("claimed", "nyc", "outcome"),
    [
        (True, SILENCE, Outcome.KEPT),
        (False, HolderSays(granted=True, epoch=1), Outcome.FREE),
        (False, SILENCE, Outcome.UNHEARD),
        (False, HolderSays(granted=False, epoch=3, owner=NYC), Outcome.ELSEWHERE),
    ],
)
def test_a_home_that_has_restarted_asks_all_and_then_those_that_may_have_the_record(
    claimed: bool, nyc: Message | SbonError, outcome: Outcome
) -> None:
    again = Holder("ams", 77)
    one, found = Agent(again, again, FRA, NYC), []
    one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found.append)
    kept = Claims(owned=(), kept=(QUERY,) if claimed else ())
    one.services.answer(ClaimsAsk, {"fra": kept, "nyc": Claims(owned=(), kept=())})
    one.services.answer(PromiseAsk, {"nyc": nyc})
    assert found == [{QUERY: outcome}]
    if outcome is Outcome.FREE:
        said = one.says(PromiseAsk(query=QUERY, epoch=9, holder=FRA, of=AMS))
        assert (said.granted, said.owner) == (False, again), "ams runs the query again"


def asks_thrice(answers: Mapping[str, Claims], *members: Holder, back: Holder | None = None) -> list[Mapping[str, Outcome]]:
    """Returns the outcome that a restarted home finds for its query in each round of questions; nyc says that fra owned it once.

    Parameters
    ----------
    back : a process that returns before the last round but one, of an agent that had left
    """
    again, found = Holder("ams", 77), list[Mapping[str, Outcome]]()
    one = Agent(again, again, *members)
    for asked in range(UNKNOWN_ROUNDS + 1):
        if back is not None:
            left = asked < UNKNOWN_ROUNDS - 1
            status = MemberStatus.LEFT if left else MemberStatus.ALIVE
            one.table[back.name] = msgspec.structs.replace(one.table[back.name], status=status, boot=back.boot - left)
        one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found.append)
        one.services.answer(ClaimsAsk, {"ams": NOTHING, **answers})
        one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=False, epoch=1, owner=FRA)})
    return found


def test_a_query_whose_owner_crashed_with_all_who_had_its_record_is_nobody_s_once_all_agents_have_said_so() -> None:
    """Seed 6469: the holder that had promised the query to that owner said so for ever, and the home forgot the query."""
    found = asks_thrice({"fra": NOTHING, "nyc": NOTHING}, Holder("fra", 78), NYC)
    assert [of[QUERY] for of in found] == [Outcome.KEPT] * (UNKNOWN_ROUNDS - 1) + [Outcome.FREE] * 2


def test_an_agent_that_returns_is_asked_as_often_as_the_others() -> None:
    """It may be about to run the query itself, as it alone held the record when it left: then both ran it once."""
    answers = {"fra": NOTHING, "nyc": NOTHING}
    found = asks_thrice(answers, Holder("fra", 78), NYC, back=Holder("fra", 78))
    assert [of[QUERY] for of in found] == [Outcome.KEPT] * (UNKNOWN_ROUNDS + 1)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ({"fra": NOTHING}, Outcome.KEPT),
        ({"fra": NOTHING, "nyc": Claims(owned=(), kept=(QUERY,))}, Outcome.KEPT),
        ({"fra": NOTHING, "nyc": Claims(owned=(), kept=(), over=(QUERY,))}, Outcome.OVER),
        ({"fra": Claims(owned=(), kept=(QUERY,)), "nyc": Claims(owned=(), kept=(), over=(QUERY,))}, Outcome.OVER),
    ],
)
def test_a_query_is_not_nobody_s_before_every_agent_has_said_so(answers: Mapping[str, Claims], outcome: Outcome) -> None:
    assert {of[QUERY] for of in asks_thrice(answers, Holder("fra", 78), NYC)} == {outcome}


def test_a_query_that_a_living_process_owned_once_is_elsewhere() -> None:
    assert {of[QUERY] for of in asks_thrice({"fra": NOTHING, "nyc": NOTHING}, FRA, NYC)} == {Outcome.ELSEWHERE}


def test_a_restarted_agent_that_had_taken_a_query_over_says_so_until_it_knows_whose_it_is() -> None:
    again, said = Holder("fra", 78), list[Message]()
    one, found = Agent(again, again, AMS, NYC), list[Mapping[str, Outcome]]()
    one.register.undecided = {QUERY: QUERY}
    one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found.append)
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said == [Claims(owned=(), kept=(QUERY,), undecided=(QUERY,))]
    one.register.undecided = {}  # another agent has told that it owns the query
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said.pop() == NOTHING
    one.register.undecided = {QUERY: QUERY}
    one.services.answer(ClaimsAsk, {"fra": Claims(owned=(), kept=(QUERY,)), "ams": NOTHING, "nyc": NOTHING})
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1), "ams": HolderSays(granted=True, epoch=1)})
    assert found == [{QUERY: Outcome.FREE}]
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said[-1] == NOTHING


def test_of_two_restarted_agents_that_had_taken_a_query_over_one_waits_for_the_other() -> None:
    """Each waited for ever, as the other one said that it might have the query."""
    again, said = Holder("fra", 78), list[Message]()
    one = Agent(again, again, AMS, NYC)
    one.register.undecided = {QUERY: QUERY}
    one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, lambda found: None)
    one.ownership.inheriting.promises.note(Promise(QUERY, 1, again))
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said.pop() == Claims(owned=(), kept=(QUERY,), undecided=(QUERY,))
    one.ownership.inheriting.promises.note(Promise(QUERY, 3, NYC))
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said.pop() == NOTHING


@pytest.mark.parametrize("first", ["fra", "nyc"])
def test_of_two_restarted_agents_that_had_taken_a_query_over_the_later_owner_starts_it_again(first: NodeId) -> None:
    """The later one had never reached the earlier one, so neither had promised the query away: each waited for the other for ever."""
    home, earlier, later = Holder("ams", 79), Holder("fra", 78), Holder("nyc", 80)
    agents = {holder.name: Agent(holder, home, earlier, later) for holder in (home, earlier, later)}
    for name, epoch, owner in (("ams", 2, NYC), ("fra", 1, FRA), ("nyc", 2, NYC)):
        agents[name].register.owners.heard(QUERY, Owner(owner.name, owner.boot, epoch))
        agents[name].ownership.inheriting.promises.note(Promise(QUERY, epoch, owner, owns=True))
    found = {name: list[Mapping[QueryId, Outcome]]() for name in ("fra", "nyc")}
    for name in found:
        agents[name].register.undecided = {QUERY: QUERY}
        agents[name].ownership.former.inherited = frozenset({QUERY})

    def answers(name: NodeId, kind: type[Message]) -> None:
        said: dict[NodeId, Message | SbonError] = {}
        for node, message, _ in agents[name].services.asked:
            assert isinstance(message, ClaimsAsk | PromiseAsk)
            agents[node].ownership.requests.answer(message, partial(said.__setitem__, node))
        agents[name].services.answer(kind, said)

    for name in (first, *(found.keys() - {first})):
        agents[name].ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found[name].append)
        answers(name, ClaimsAsk)
        answers(name, PromiseAsk)
    assert found == {"fra": [{QUERY: Outcome.KEPT}], "nyc": [{QUERY: Outcome.FREE}]}


@pytest.mark.parametrize("keeps", [False, True])
def test_an_agent_that_had_taken_a_query_over_waits_for_a_kept_record_and_counts_no_undecided_agent_as_without_it(keeps: bool) -> None:
    again = Holder("fra", 78)
    one, found = Agent(again, again, AMS, NYC, RIO), list[Mapping[QueryId, Outcome]]()
    undecided = Claims(owned=(), kept=(QUERY,), undecided=(QUERY,))
    for _ in range(UNKNOWN_ROUNDS + 1):
        one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found.append)
        one.services.answer(
            ClaimsAsk, {"fra": NOTHING, "ams": undecided, "nyc": NOTHING, "rio": Claims((), (QUERY,)) if keeps else NOTHING}
        )
        assert any(isinstance(message, PromiseAsk) for _, message, _ in one.services.asked) is not keeps
        one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=False, epoch=1), "ams": HolderSays(granted=False, epoch=1)})
    assert {of[QUERY] for of in found} == {Outcome.KEPT}


def test_a_home_promises_to_a_keeper_as_long_as_it_is_not_sure_itself() -> None:
    again = Holder("ams", 77)
    one, found = Agent(again, again, FRA, NYC), []
    one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found.append)
    one.services.answer(ClaimsAsk, {})
    assert one.says(PromiseAsk(query=QUERY, epoch=9, holder=FRA, of=AMS)).granted
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    assert found == [{QUERY: Outcome.KEPT}]


def test_a_keeper_remembers_the_end_of_a_query_for_hosts_that_have_not_heard_of_it() -> None:
    one, ended = Agent(NYC, *TRIO), f"{QUERY}9"
    said: list[Message] = []
    one.ownership.requests.answer(Forget(query=ended, epoch=3, is_over=True), said.append)
    one.ownership.requests.answer(ClaimsAsk((QUERY, ended)), said.append)
    assert said[-1] == Claims(owned=(), kept=(), over=(ended,))
    found: list[Claims] = []
    one.ownership.former.ask([QUERY, ended], found.append)
    one.services.answer(ClaimsAsk, {"fra": Claims(owned=(QUERY,), kept=(), over=(QUERY, ended))})
    assert found == [Claims(owned=(QUERY,), kept=(), over=(QUERY, ended))]


def test_only_the_owner_known_here_may_begin_a_query_anew() -> None:
    one, again = Agent(NYC, *TRIO), Holder("ams", 77)
    assert not one.says(PromiseAsk(query=QUERY, epoch=5, holder=FRA, of=NYC, is_anew=True)).granted
    one.register.owners.heard(QUERY, Owner("fra", FRA.boot, 2))
    said = one.says(PromiseAsk(query=QUERY, epoch=5, holder=again, of=NYC, is_anew=True))
    assert (said.granted, said.owner) == (False, FRA)
    assert one.says(PromiseAsk(query=QUERY, epoch=5, holder=Holder("fra", 77), of=NYC, is_anew=True)).granted


def test_a_later_owner_may_begin_a_query_anew_once_the_process_that_its_id_names_has_ended() -> None:
    one = Agent(NYC, Holder("ams", 77), FRA, NYC)
    assert one.says(PromiseAsk(query=QUERY, epoch=5, holder=Holder("fra", 77), of=NYC, is_anew=True)).granted


def test_a_home_that_has_given_its_query_up_lets_a_later_owner_begin_it_anew() -> None:
    home = Agent(AMS, *TRIO)
    assert home.says(PromiseAsk(query=QUERY, epoch=5, holder=Holder("fra", 77), of=AMS, is_anew=True)).granted


def test_a_query_of_another_first_owner_that_is_begun_anew_ends_its_former_operators() -> None:
    """The operators ask the owner that they were told of. Its former process did not save that it had become the owner."""
    again = Holder("fra", 77)
    one = Agent(again, again, AMS, NYC)
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).queries == ()
    one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, lambda found: None)
    one.services.answer(ClaimsAsk, {})
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    assert one.ownership.wanted_questions.answer(WantedAsk(queries=(QUERY,))).queries == (QUERY,)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (NOTHING, Outcome.FREE),
        (Claims(owned=(), kept=(QUERY,)), Outcome.FREE),
        (Claims(owned=(), kept=(), over=(QUERY,)), Outcome.OVER),
    ],
)
def test_a_query_that_only_this_agent_held_is_free_unless_it_has_ended(said: Claims, outcome: Outcome) -> None:
    """Two agents that had taken a query over, one after the other, and restarted together, once waited for each other for ever."""
    again = Holder("ams", 77)
    one, found = Agent(again, again, FRA), []
    one.ownership.former.claims({QUERY: ()}, {QUERY: QUERY}, found.append)
    one.register.owners.heard(QUERY, Owner("ams", 7, 4))
    one.services.answer(ClaimsAsk, {"ams": NOTHING, "fra": said})
    assert found == [{QUERY: outcome}]
    # Hosts believe only an owner of a higher epoch than its former process had.
    assert one.ownership.former.anew == ({QUERY: 5} if outcome is Outcome.FREE else {})


@pytest.mark.parametrize("lives_on", [True, False])
def test_an_agent_that_runs_a_query_under_a_new_id_says_that_the_former_one_is_over(lives_on: bool) -> None:
    """Another agent that had owned the query, and came back later, once ran it a second time."""
    one, said = Agent(AMS, *TRIO), list[Message]()
    one.ownership.former.runs_anew(KeptQuery(LATER, "", former=QUERY, first=QUERY), lives_on=lives_on)
    if lives_on:  # without its sink
        one.register.enter(QueryRecord(Plan(QUERY, "k", "", SPECS, ()), Deployed((), (), {}), "ams", 0.0))
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said == [Claims((QUERY,) if lives_on else (), (), (QUERY,), (Anew(QUERY, LATER, is_decided=True),))]
    again = Agent(Holder("ams", 78), Holder("ams", 78), FRA, NYC)  # its next process
    again.ownership.inheriting.promises.restore(one.ownership.inheriting.promises.all)
    again.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said[-1] == Claims(owned=(), kept=(), over=() if lives_on else (QUERY,))


@pytest.mark.parametrize(
    ("anew", "outcome"),
    [
        (Anew(QUERY, LAST, is_decided=True), Outcome.OVER),
        (Anew(QUERY, QUERY, is_decided=False), Outcome.KEPT),
        (Anew(QUERY, LAST, is_decided=False), Outcome.FREE),
        (Anew(QUERY, LATER, is_decided=True), Outcome.FREE),
        (Anew(LATER, LAST, is_decided=True), Outcome.FREE),
    ],
    ids=["runs elsewhere", "will run elsewhere", "will run here", "is this query", "is another query"],
)
def test_a_query_that_two_agents_ran_again_under_different_ids_runs_once(anew: Anew, outcome: Outcome) -> None:
    """Two agents had a query on their disks, and each came back while the other one was away: both ran it."""
    assert QUERY < LATER < LAST
    again = Holder("ams", 79)
    one, found = Agent(again, again, FRA), []
    one.register.undecided = {LATER: QUERY}
    one.ownership.former.claims({LATER: ()}, {LATER: QUERY}, found.append)
    assert {message for _, message, _ in one.services.asked} == {ClaimsAsk((QUERY, LATER))}
    said: list[Message] = []
    one.ownership.requests.answer(ClaimsAsk((QUERY, LATER)), said.append)
    one.services.answer(ClaimsAsk, {"ams": said[0], "fra": Claims((), (), anew=(anew,))})
    assert found == [{LATER: outcome}]


def test_two_agents_do_not_leave_a_query_to_each_other() -> None:
    """An agent had run a query again under a new id and crashed. It left the query to the agent with the former id, whom it told that this
    id was over: both forgot the query."""
    again = Holder("ams", 79)
    one, found = Agent(again, again, FRA), list[Mapping[QueryId, Outcome]]()
    one.ownership.inheriting.ended(QUERY)
    for anew in ((Anew(QUERY, QUERY, is_decided=False),), ()):
        one.ownership.former.claims({LATER: ()}, {LATER: QUERY}, found.append)
        one.services.answer(ClaimsAsk, {"ams": NOTHING, "fra": Claims((), (), anew=anew)})
    assert found == [{LATER: Outcome.KEPT}, {LATER: Outcome.FREE}]
    assert one.ownership.inheriting.promises.is_over(QUERY)


@pytest.mark.parametrize("is_late", [False, True], ids=["while agents are asked", "while holders are asked"])
def test_a_home_does_not_claim_a_query_that_it_has_given_up_in_the_meantime(is_late: bool) -> None:
    """Its claim deposed the new owner, and nobody had the query."""
    again, undecided, found = Holder("ams", 77), {QUERY}, list[Mapping[QueryId, Outcome]]()
    one = Agent(again, again, FRA, NYC)
    one.ownership.former.claims({QUERY: (TRIO,)}, {QUERY: QUERY}, found.append, undecided.__contains__)
    if not is_late:
        undecided.clear()
    one.services.answer(ClaimsAsk, {"ams": NOTHING, "fra": NOTHING, "nyc": NOTHING})
    undecided.clear()
    one.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    assert found == ([{QUERY: Outcome.KEPT}] if is_late else [{}])
    assert one.ownership.former.anew == {}
    assert one.register.owners.of(QUERY).epoch == 0


def test_the_id_under_which_another_agent_runs_a_query_is_not_over_any_more() -> None:
    """An agent had run a query again under a new id. It forgot the query, as another agent had taken it over under the former id."""
    again = Holder("ams", 79)
    one = Agent(again, again, FRA)
    one.ownership.inheriting.ended(QUERY)
    one.ownership.inheriting.ended(RIO_S)
    one.ownership.former.claims({LATER: ()}, {LATER: QUERY}, lambda found: None)
    one.services.answer(ClaimsAsk, {"ams": NOTHING, "fra": Claims((), (), anew=(Anew(QUERY, QUERY, is_decided=True),))})
    assert not one.ownership.inheriting.promises.is_over(QUERY)
    assert one.ownership.inheriting.promises.is_over(RIO_S)


def test_that_a_query_runs_under_a_new_id_is_told_once_it_is_on_disk() -> None:
    """Otherwise others forgot the query, and the next process of this agent believed them."""
    saves, said = list[Callable[[str], None]](), list[Message]()
    one = Agent(AMS, *TRIO, save=saves.append)
    one.ownership.former.runs_anew(KeptQuery(LATER, "", former=QUERY, first=QUERY), lives_on=False)
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said == []
    saves.pop()("")
    assert said == [Claims((), (), (QUERY,), (Anew(QUERY, LATER, is_decided=True),))]


def test_a_query_that_was_taken_over_had_another_owner() -> None:
    one, taker = Agent(AMS, *TRIO), keeper()
    one.begin()
    one.ownership.look_at_all()
    assert not one.ownership.had_other_owners(QUERY)
    assert not taker.ownership.had_other_owners(QUERY)
    taker.services.answer(PromiseAsk, {"nyc": HolderSays(granted=True, epoch=1)})
    taker.services.answer(Keep, {"nyc": HolderSays(granted=True, epoch=1)})
    assert taker.ownership.had_other_owners(QUERY)


def test_an_agent_names_the_queries_that_have_started_again_by_their_first_ids() -> None:
    one, said = Agent(AMS, *TRIO), list[Message]()
    running = QueryRecord(Plan(LATER, "k", "", SPECS, ()), Deployed(SPECS, (), {}), "ams", 0.0)
    running.history.first = QUERY
    one.register.enter(running)
    one.register.undecided = {LAST: RIO_S, RIO_S: RIO_S, "dropped": ""}
    one.ownership.requests.answer(ClaimsAsk((QUERY, LATER, RIO_S, "dropped")), said.append)
    assert said == [Claims((LATER,), (), (), (Anew(QUERY, LATER, is_decided=True), Anew(RIO_S, LAST, is_decided=False)))]


def test_an_agent_names_the_queries_that_run_under_their_first_ids() -> None:
    """Another agent that had run the query again under a new id, and restarted, ran it a second time."""
    one, said = Agent(AMS, *TRIO), list[Message]()
    one.register.enter(QueryRecord(Plan(QUERY, "k", "", SPECS, ()), Deployed(SPECS, (), {}), "ams", 0.0))
    one.ownership.requests.answer(ClaimsAsk((QUERY,)), said.append)
    assert said == [Claims((QUERY,), (), (), (Anew(QUERY, QUERY, is_decided=True),))]
