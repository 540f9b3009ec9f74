"""Keepers take versions, promise each epoch once, and take over queries whose owners are gone. Tested without a virtual world."""

import msgspec
import pytest

from sbon.errors import LinkError, LocalProtocolError
from sbon.supervision import former_versions, inheriting, promises
from sbon.supervision.inheriting import (
    BYTES_MAX,
    RECORDS_MAX,
    TABLE,
    TURN_S,
    Action,
    Ask,
    Attempt,
    Event,
    Inherit,
    Inheriting,
    Phase,
)
from sbon.supervision.keepers import in_order
from sbon.supervision.owners import Owner, Owners
from sbon.supervision.promises import PROMISES_MAX, Promise
from sbon.wire.ownership import Holder, HolderSays, Record

QUERY = "ams.0000001.01"
AMS, FRA, NYC, OSL, RIO = (Holder(name, number) for number, name in enumerate(("ams", "fra", "nyc", "osl", "rio")))
FIRST, SECOND = in_order(QUERY, [FRA, NYC])
TRIO = tuple(sorted((AMS, FRA, NYC)))
SILENCE = LinkError("no answer")
NOBODY: frozenset[Holder] = frozenset()


def record(version: int = 1, epoch: int = 0, owner: Holder = AMS, sets: tuple[tuple[Holder, ...], ...] = (TRIO,)) -> Record:
    return Record(QUERY, epoch, version, owner, sets, b"content")


def keeper(me: Holder = FIRST, **heard: int) -> Inheriting:
    one = Inheriting(me, lambda query: heard.get("heard", 0))
    assert one.keep(record()).granted
    return one


def look(one: Inheriting, now: float, gone: tuple[Holder, ...] = (AMS,), ended: frozenset[Holder] = NOBODY) -> list[Action]:
    return one.look(lambda holder: holder not in gone, ended, now)


def test_a_keeper_takes_newer_versions_and_refuses_lower_epochs():
    one = keeper()
    assert one.keep(record(2)) == HolderSays(granted=True, epoch=0)
    assert one.keep(record(1)) == HolderSays(granted=True, epoch=0), "the keeper has this version and a newer one"
    assert one.records[QUERY].version == 2
    assert one.promise(Attempt(QUERY, 3, SECOND, FIRST), is_owner_there=False).granted
    assert one.keep(record(1, 3, SECOND)).granted
    assert one.keep(record(9)) == HolderSays(granted=False, epoch=3, owner=SECOND)
    assert one.records[QUERY].owner == SECOND


def test_records_for_another_process_are_refused():
    one = Inheriting(Holder(FIRST.name, 99), lambda query: 0)
    assert not one.keep(record()).granted
    assert one.records == {}


def test_an_owner_older_than_what_was_heard_is_refused():
    one = Inheriting(FIRST, lambda query: 2)
    assert one.keep(record()) == HolderSays(granted=False, epoch=2)
    assert one.keep(record(1, 2, SECOND)).granted


def test_an_epoch_is_promised_once_and_lower_ones_are_refused_from_then_on():
    one = keeper()
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False) == HolderSays(granted=True, epoch=1, record=record())
    assert one.promise(Attempt(QUERY, 1, AMS, FIRST), is_owner_there=False) == HolderSays(granted=False, epoch=1, record=record())
    assert one.keep(record(2)) == HolderSays(granted=False, epoch=1)
    assert one.has_promised(record(2, 1, SECOND))
    assert not one.has_promised(record(2, 1, AMS))
    assert one.keep(record(2, 1, SECOND)).granted


def test_who_stands_for_a_former_process_too_is_asked_twice_and_promises_twice():
    former = Holder(FIRST.name, 77)
    with_record, without = keeper(), Inheriting(FIRST, lambda query: 0)
    for one, places in ((with_record, (FIRST, former)), (without, (former, Holder(FIRST.name, 78)))):
        for place in places:
            assert one.promise(Attempt(QUERY, 1, SECOND, place), is_owner_there=False).granted
            assert not one.promise(Attempt(QUERY, 1, AMS, place), is_owner_there=False).granted


def test_who_does_not_know_what_a_former_process_has_promised_does_not_speak_for_it_even_with_a_record():
    one = keeper()
    one.remembers = False
    lost = HolderSays(granted=False, epoch=0, is_lost=True)
    assert one.promise(Attempt(QUERY, 1, SECOND, Holder(FIRST.name, 77)), is_owner_there=False) == lost
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted


def test_nothing_is_promised_while_the_owner_is_there_or_to_strangers():
    one = keeper()
    assert not one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=True).granted
    assert not one.promise(Attempt(QUERY, 1, OSL, FIRST), is_owner_there=False).granted
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted


def test_a_promise_to_another_holder_does_not_let_the_owners_versions_of_that_epoch_pass():
    one = keeper()
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted
    assert one.keep(record(2, 1, AMS)) == HolderSays(granted=False, epoch=1, promised_to=SECOND)


def test_an_owner_that_is_there_gets_the_promise_itself():
    one = keeper()
    assert one.promise(Attempt(QUERY, 1, AMS, FIRST), is_owner_there=True).granted


def test_the_first_keeper_asks_at_once_and_owns_with_the_promise():
    one = keeper()
    assert look(one, 0.0, gone=()) == []
    (asked,) = look(one, 1.0)
    assert asked == Ask(QUERY, 1, SECOND)
    assert one.answered(asked, HolderSays(granted=True, epoch=1, record=record(5)), 1.1) == [Inherit(record(5), 1)]
    assert one.records == {}
    assert one.answered(asked, HolderSays(granted=True, epoch=1), 1.2) == []


def test_it_promises_to_itself_before_it_asks():
    one = keeper()
    look(one, 1.0)
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False) == HolderSays(granted=False, epoch=1, record=record())


def test_a_holder_that_is_refused_learns_a_newer_version_and_whom_that_names():
    """Seed 6355: only the newest version named the candidate. The other holders had not got that version, so they refused for ever."""
    newer = record(9, 4, OSL, (TRIO, tuple(sorted((OSL, FRA, NYC)))))
    one = keeper()
    assert not one.promise(Attempt(QUERY, 1, OSL, FIRST), is_owner_there=False).granted
    (asked,) = look(one, 1.0)
    assert one.answered(asked, HolderSays(granted=False, epoch=4, record=newer), 1.1) == []
    assert one.records[QUERY] == newer
    assert look(one, 1.2) == []
    assert one.promise(Attempt(QUERY, 5, OSL, FIRST), is_owner_there=True).granted


def test_a_refusal_tells_strangers_nothing():
    one = keeper()
    assert one.promise(Attempt(QUERY, 1, OSL, FIRST), is_owner_there=True) == HolderSays(granted=False, epoch=0)
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=True) == HolderSays(granted=False, epoch=0, record=record())


def test_the_second_keeper_comes_when_the_first_is_gone_or_has_had_its_turn():
    one = keeper(SECOND)
    assert look(one, 1.0) == []
    assert one.next_wake() == 1.0 + TURN_S
    assert look(one, 2.0, gone=(AMS, FIRST)) == [Ask(QUERY, 1, FIRST)]
    one = keeper(SECOND)
    look(one, 1.0)
    assert look(one, 1.0 + TURN_S) == [Ask(QUERY, 1, FIRST)]


def test_without_a_promise_nobody_owns_and_it_is_asked_again_under_a_higher_epoch():
    one = keeper()
    (asked,) = look(one, 1.0)
    assert isinstance(asked, Ask)
    assert one.answered(asked, SILENCE, 3.0) == []
    assert one.records[QUERY].owner == AMS
    due_s = one.next_wake()
    assert due_s is not None
    assert look(one, due_s - 0.01) == []
    (again,) = look(one, due_s)
    assert isinstance(again, Ask)
    assert again.epoch == 2
    assert one.answered(again, HolderSays(granted=False, epoch=7), due_s) == []
    due_s = one.next_wake()
    assert due_s is not None
    assert look(one, due_s) == [Ask(QUERY, 8, SECOND)]


def test_an_owner_that_is_back_is_left_alone():
    one = keeper()
    (asked,) = look(one, 1.0)
    assert isinstance(asked, Ask)
    assert look(one, 1.1, gone=()) == []
    assert one.answered(asked, HolderSays(granted=True, epoch=1), 1.2) == []


def test_a_newer_record_of_another_holder_decides_who_must_agree():
    one = keeper()
    (asked,) = look(one, 1.0)
    assert isinstance(asked, Ask)
    newer = record(5, sets=((AMS, OSL, RIO),))
    assert one.answered(asked, HolderSays(granted=True, epoch=1, record=newer), 1.1) == [], "the agent is no holder of the newer record"
    assert one.records == {}


def test_a_majority_of_both_sets_is_needed_while_the_holders_change():
    one = Inheriting(FIRST, lambda query: 0)
    one.keep(record(sets=(TRIO, tuple(sorted((AMS, OSL, FIRST))))))
    asked = {action.holder: action for action in look(one, 1.0, gone=(AMS, SECOND)) if isinstance(action, Ask)}
    if not asked:
        asked = {action.holder: action for action in look(one, 1.0 + 2 * TURN_S, gone=(AMS, SECOND)) if isinstance(action, Ask)}
    assert set(asked) == {SECOND, OSL}
    assert one.answered(asked[OSL], HolderSays(granted=True, epoch=1), 1.1) == []
    assert len(one.answered(asked[SECOND], HolderSays(granted=True, epoch=1), 1.2)) == 1


def test_the_next_processes_of_holders_that_have_ended_are_asked_and_promise_for_them():
    one = keeper()
    asked = {action.holder: action for action in look(one, 1.0, ended=frozenset({AMS, SECOND})) if isinstance(action, Ask)}
    assert set(asked) == {AMS, SECOND}
    assert one.answered(asked[AMS], HolderSays(granted=True, epoch=1), 1.1) == [Inherit(record(), 1)]


def test_holders_of_whose_promises_nobody_knows_have_no_say():
    one = keeper()
    asked = {action.holder: action for action in look(one, 1.0, ended=frozenset({AMS, SECOND})) if isinstance(action, Ask)}
    lost = HolderSays(granted=False, epoch=0, is_lost=True)
    assert one.answered(asked[AMS], lost, 1.1) == []
    assert one.answered(asked[SECOND], lost, 1.2) == [Inherit(record(), 1)]


def test_a_holder_that_has_left_in_good_order_has_no_say():
    one = keeper()
    left = frozenset({AMS, SECOND})
    assert one.look(lambda holder: holder not in left, frozenset(), 1.0, left) == [Inherit(record(), 1)]


def test_a_keeper_that_its_first_version_has_not_reached_promises():
    one = Inheriting(FIRST, lambda query: 1)
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False) == HolderSays(granted=False, epoch=1)
    assert one.promise(Attempt(QUERY, 2, SECOND, FIRST), is_owner_there=True) == HolderSays(granted=False, epoch=1)
    assert one.promise(Attempt(QUERY, 2, SECOND, FIRST), is_owner_there=False) == HolderSays(granted=True, epoch=2)
    assert not one.keep(record(9, 1)).granted, "the record would bypass the promise"


def test_a_process_without_a_record_promises_for_the_former_one():
    one = Inheriting(FIRST, lambda query: 0)
    former = Holder(FIRST.name, 77)
    assert one.promise(Attempt(QUERY, 1, SECOND, former), is_owner_there=True) == HolderSays(granted=False, epoch=0)
    assert one.promise(Attempt(QUERY, 1, SECOND, former), is_owner_there=False) == HolderSays(granted=True, epoch=1)
    assert one.promise(Attempt(QUERY, 1, AMS, former), is_owner_there=False) == HolderSays(granted=False, epoch=1)
    assert one.promises.all == (Promise(QUERY, 1, SECOND),)
    one.remembers = False
    assert one.promise(Attempt(QUERY, 5, SECOND, former), is_owner_there=False) == HolderSays(granted=False, epoch=1, is_lost=True)


def test_a_former_owner_promises_with_its_latest_version_until_the_query_has_ended():
    one = Inheriting(AMS, lambda query: 1)
    one.former_versions.add(record(7))
    one.former_versions.add(None)
    assert not one.promise(Attempt(QUERY, 2, SECOND, AMS), is_owner_there=True).granted
    assert one.promise(Attempt(QUERY, 2, SECOND, AMS), is_owner_there=False) == HolderSays(granted=True, epoch=2, record=record(7))
    one.owned(QUERY, 2)
    assert one.promise(Attempt(QUERY, 3, SECOND, AMS), is_owner_there=False).granted
    one.forget(QUERY, 3, is_over=False)
    assert one.promise(Attempt(QUERY, 4, SECOND, AMS), is_owner_there=False).granted
    one.forget(QUERY, 4, is_over=True)
    assert not one.promise(Attempt(QUERY, 5, SECOND, AMS), is_owner_there=False).granted


def test_a_dismissed_keeper_promises_with_the_version_that_has_dismissed_it():
    one, dismissing = keeper(), Record(QUERY, 0, 2, AMS, (TRIO, (AMS, SECOND, RIO)), b"content")
    assert one.keep(dismissing).granted
    one.forget(QUERY, 0, is_over=False)
    assert one.records == {}
    assert one.last_owner(QUERY) == (0, AMS)
    assert not one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=True).granted
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False) == HolderSays(granted=True, epoch=1, record=dismissing)


def test_whoever_owned_it_last_is_looked_for_before_a_promise_is_given():
    one = keeper()
    one.owned(QUERY, 1)
    assert one.last_owner(QUERY) == (0, AMS)
    one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False)
    assert one.last_owner(QUERY) == (1, SECOND)
    assert keeper().last_owner(QUERY) == (0, AMS)
    assert Inheriting(AMS, lambda query: 0).last_owner(QUERY) is None


def test_a_former_owner_that_keeps_a_later_version_promises_with_that_one():
    one = Inheriting(AMS, lambda query: 0)
    one.former_versions.add(record(7))
    assert one.keep(record(8, 1, SECOND)).granted
    one.owned(QUERY, 2)
    assert one.promise(Attempt(QUERY, 3, FIRST, AMS), is_owner_there=False).record == record(8, 1, SECOND)


@pytest.mark.parametrize(("limit", "most"), [("VERSIONS_MAX", 1), ("BYTES_MAX", len(record().content))])
def test_the_versions_of_former_owners_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, most: int):
    monkeypatch.setattr(former_versions, limit, most)
    one = Inheriting(AMS, lambda query: 0)
    for query in ("first", QUERY):
        one.former_versions.add(msgspec.structs.replace(record(), query=query))
    assert one.promise(Attempt("first", 1, SECOND, AMS), is_owner_there=False).record is None
    assert one.promise(Attempt(QUERY, 1, SECOND, AMS), is_owner_there=False).record == record()


def test_a_query_that_has_ended_here_is_neither_promised_nor_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(promises, "OVER_MAX", 1)
    before, one = Inheriting(AMS, lambda query: 0), Inheriting(AMS, lambda query: 0)
    for query in ("first", QUERY):
        before.ended(query)
    one.promises.restore(before.promises.all)  # the agent has restarted
    assert not one.keep(record(7, 3, FIRST)).granted
    assert not one.promise(Attempt(QUERY, 1, SECOND, Holder(AMS.name, 77)), is_owner_there=False).granted
    assert one.promise(Attempt("first", 1, SECOND, Holder(AMS.name, 77)), is_owner_there=False).granted, "the oldest is forgotten"


def test_an_owner_that_has_restarted_gets_no_promise_where_its_record_is():
    one, again = keeper(), Holder(AMS.name, 99)
    assert not one.promise(Attempt(QUERY, 1, again, FIRST, is_anew=True), is_owner_there=False).granted
    one.forget(QUERY, 0, is_over=False)
    assert one.promise(Attempt(QUERY, 1, again, FIRST, is_anew=True), is_owner_there=False).granted


def test_a_claim_is_a_promise_to_oneself_that_a_later_promise_ends():
    one = Inheriting(AMS, lambda query: 0)
    epoch = one.claim(QUERY)
    assert one.promises.is_latest(QUERY, epoch, AMS)
    assert one.promise(Attempt(QUERY, epoch + 1, FIRST, Holder(AMS.name, 77)), is_owner_there=False).granted
    assert not one.promises.is_latest(QUERY, epoch, AMS)


def test_who_hears_of_another_owner_under_a_higher_epoch_forgets_its_record_and_not_for_the_record_s_own():
    for owner, epoch, keeps in ((RIO, 2, False), (RIO, 0, True), (AMS, 2, True)):
        one = keeper()
        (asked,) = look(one, 1.0)
        assert isinstance(asked, Ask)
        assert one.answered(asked, HolderSays(granted=False, epoch=epoch, owner=owner), 1.1) == []
        assert (QUERY in one.records) is keeps


def test_a_record_that_is_handed_back_is_asked_for_again_and_may_be_promised_to_another_holder_meanwhile():
    one = keeper()
    (asked,) = look(one, 1.0)
    assert isinstance(asked, Ask)
    (inherit,) = one.answered(asked, HolderSays(granted=True, epoch=1), 1.1)
    assert isinstance(inherit, Inherit)
    one.hand_back(inherit.record, 1, (), 2.0)
    assert look(one, 2.0) == []
    due_s = one.next_wake()
    assert due_s is not None
    assert due_s > 2.0
    assert not one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted
    assert one.promise(Attempt(QUERY, 2, SECOND, FIRST), is_owner_there=False).granted
    (again,) = look(one, due_s)
    assert isinstance(again, Ask)
    assert again.epoch == 3


def handed_back(*written_to: Holder) -> Inheriting:
    """Returns a keeper whose first version as an owner has got no answer; the former owner is back."""
    one = keeper()
    one.hand_back(record(), 1, written_to, 0.0)
    return one


def asked_again(one: Inheriting) -> dict[Holder, Ask]:
    due_s = one.next_wake()
    assert due_s is not None
    return {asked.holder: asked for asked in look(one, due_s, gone=()) if isinstance(asked, Ask)}


def test_a_keeper_whose_version_another_one_may_have_asks_on_though_the_former_owner_is_there():
    one = handed_back(FIRST, SECOND)
    for asked in asked_again(one).values():
        assert one.answered(asked, SILENCE, 2.0) == []
    asked = asked_again(one)[SECOND]
    own = record(2, 1, FIRST)
    assert one.answered(asked, HolderSays(granted=True, epoch=asked.epoch, record=own), 3.0) == [Inherit(record(), asked.epoch)]


def test_the_former_owner_is_asked_too_and_those_that_the_new_version_names():
    """Seed 7077: the other keeper had left, so nobody was asked and the version was given up. But its new keeper had it."""
    one = handed_back(FIRST, SECOND, OSL)
    asked = asked_again(one)
    assert set(asked) == {AMS, SECOND, OSL}
    refusal = HolderSays(granted=False, epoch=0)
    assert one.answered(asked[AMS], refusal, 2.0) == one.answered(asked[SECOND], refusal, 2.0) == []
    assert one.answered(asked[OSL], HolderSays(granted=True, epoch=asked[OSL].epoch, record=record(2, 1, FIRST)), 2.0) == []
    assert set(asked_again(one)) == {AMS, SECOND, OSL}, "osl has this agent's version, and accepts none of the former owner"


def test_a_keeper_whose_version_nobody_has_leaves_the_former_owner_alone():
    one = handed_back(FIRST, SECOND)
    for asked in asked_again(one).values():
        assert one.answered(asked, HolderSays(granted=False, epoch=0), 2.0) == []
    assert look(one, 99.0, gone=()) == []
    assert one.next_wake() is None


def test_a_former_owner_that_has_promised_its_query_asks_for_it_again_unless_the_other_one_owns_it():
    one = Inheriting(AMS, lambda query: 0)
    one.give_back(record(3), 2, FIRST, 0.0)
    assert look(one, 4.9, gone=()) == []
    assert one.keep(record(2, 1, SECOND)) == HolderSays(granted=False, epoch=2), "the former owner has promised a higher epoch"
    asked = look(one, 5.0, gone=())
    assert asked == [Ask(QUERY, 3, holder) for holder in (FRA, NYC)]
    assert one.answered(Ask(QUERY, 3, FIRST), HolderSays(granted=True, epoch=3), 5.1) == [Inherit(record(3), 3)]

    other = Inheriting(AMS, lambda query: 0)
    other.promises.note(Promise(QUERY, 2, FIRST))
    other.give_back(record(3), 2, FIRST, 0.0)
    assert other.keep(record(4, 2, FIRST)).granted
    assert look(other, 99.0, gone=()) == []


def test_a_former_owner_asks_on_though_no_holder_knows_another_owner():
    one = Inheriting(AMS, lambda query: 0)
    one.give_back(record(3), 2, FIRST, 0.0)
    for asked in look(one, 5.0, gone=()):
        assert isinstance(asked, Ask)
        assert one.answered(asked, HolderSays(granted=False, epoch=2), 5.1) == []
    assert ask_twice(one) == 4


def test_what_has_ended_is_not_given_back():
    one = Inheriting(AMS, lambda query: 0)
    one.ended(QUERY)
    one.give_back(record(3), 2, FIRST, 0.0)
    assert one.records == {}


def ask_twice(one: Inheriting) -> int:
    """Makes an agent ask for its record again; returns the epoch."""
    due_s = one.next_wake()
    assert due_s is not None
    epochs = {asked.epoch for asked in look(one, due_s, gone=()) if isinstance(asked, Ask)}
    assert len(epochs) == 1
    return epochs.pop()


def test_a_holder_that_has_promised_more_may_have_the_version():
    one = handed_back(FIRST, SECOND)
    for asked in asked_again(one).values():
        assert one.answered(asked, HolderSays(granted=False, epoch=7), 2.0) == []
    assert {asked.epoch for asked in asked_again(one).values()} == {8}


def test_a_version_of_the_former_owner_under_a_higher_epoch_ends_the_asking():
    one = handed_back()
    assert not one.keep(record(2)).granted
    assert one.keep(record(2, 2)).granted
    assert look(one, 99.0, gone=()) == []


def test_an_owner_whose_epoch_was_promised_goes_on_under_a_higher_one_and_a_stranger_does_not():
    one = keeper()
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted
    assert one.keep(record(2)) == HolderSays(granted=False, epoch=1)
    assert not one.keep(record(3, 2, SECOND)).granted, "this epoch was not promised to the second keeper"
    assert one.keep(record(3, 2)).granted


def test_a_former_owner_does_not_pass_the_present_one():
    one = keeper()
    assert one.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted
    assert one.keep(record(2, 1, SECOND)).granted
    assert one.keep(record(9, 2)) == HolderSays(granted=False, epoch=1, owner=SECOND)


def test_what_has_ended_is_forgotten_and_what_is_newer_is_not():
    one = keeper()
    one.promise(Attempt(QUERY, 3, SECOND, FIRST), is_owner_there=False)
    one.keep(record(1, 3, SECOND))
    one.forget(QUERY, 2, is_over=False)
    one.forget(QUERY, 2, is_over=True)
    one.owned(QUERY, 3)
    assert QUERY in one.records
    one.forget(QUERY, 3, is_over=True)
    assert one.records == {}
    assert not one.promise(Attempt(QUERY, 9, SECOND, FIRST), is_owner_there=False).granted


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch):
    assert RECORDS_MAX > 1000
    assert BYTES_MAX > 2**20
    monkeypatch.setattr(inheriting, "RECORDS_MAX", 1)
    one = keeper()
    assert not one.keep(Record("other", 0, 1, AMS, (TRIO,), b"")).granted
    monkeypatch.undo()
    monkeypatch.setattr(inheriting, "BYTES_MAX", 10)
    assert not one.keep(Record("other", 0, 1, AMS, (TRIO,), b"12345")).granted
    assert one.keep(Record("other", 0, 1, AMS, (TRIO,), b"123")).granted


@pytest.mark.parametrize(("phase", "event"), [(phase, event) for phase in Phase for event in Event if (phase, event) not in TABLE])
def test_other_events_are_bugs(phase: Phase, event: Event):
    one = keeper()
    one._held[QUERY].phase = phase
    with pytest.raises(LocalProtocolError, match=phase.value):
        inheriting._turn(one._held[QUERY], event)


def test_the_epoch_of_an_owner_only_grows():
    owners = Owners()
    assert owners.of(QUERY) == Owner("ams", 1)
    assert owners.heard(QUERY, Owner("fra", 5, 2))
    assert not owners.heard(QUERY, Owner("nyc", 5, 1))
    assert not owners.heard(QUERY, Owner("nyc", 5, 2))
    assert owners.of(QUERY) == Owner("fra", 5, 2)
    assert owners.heard(QUERY, Owner("fra", 6, 3))


def test_a_keeper_that_has_restarted_promises_no_epoch_twice_and_takes_no_record_of_a_lower_one():
    before = keeper()
    assert before.promise(Attempt(QUERY, 1, SECOND, FIRST), is_owner_there=False).granted
    again = Holder(FIRST.name, 99)
    after = Inheriting(again, lambda query: 0)
    after.promises.restore(before.promises.all)
    sets = (tuple(sorted((AMS, again, SECOND))),)
    assert after.keep(record(7, sets=sets)) == HolderSays(granted=False, epoch=1)
    assert after.keep(record(7, 1, AMS, sets)) == HolderSays(granted=False, epoch=1, promised_to=SECOND)
    assert after.keep(record(7, 1, SECOND, sets)).granted
    assert not after.promise(Attempt(QUERY, 1, AMS, FIRST), is_owner_there=False).granted
    assert after.promise(Attempt(QUERY, 2, AMS, FIRST), is_owner_there=False).granted


def test_a_keeper_that_asks_remembers_its_own_promise_and_an_owner_that_it_keeps_a_record_of():
    one = keeper()
    look(one, 1.0)
    assert one.promises.all == (Promise(QUERY, 1, FIRST),)
    other = keeper(SECOND)
    assert other.promises.all == ()
    assert other.keep(Record("other", 4, 1, AMS, (tuple(sorted((AMS, FIRST, SECOND))),), b"")).granted
    assert other.promises.all == (Promise("other", 4, AMS, owns=True),)


def test_what_is_remembered_of_promises_is_bounded():
    one = keeper()
    one.promises.restore(Promise(f"q{number}", 1, AMS) for number in range(PROMISES_MAX + 1))
    assert [one.promises.all[0].query, len(one.promises.all)] == ["q1", PROMISES_MAX]


def test_a_record_that_its_owner_disowns_twice_is_forgotten():
    one = keeper()
    assert one.kept_for() == {"ams": {QUERY}}
    for unwanted in ({QUERY}, set(), {QUERY}):
        one.doubted({QUERY}, unwanted)
        assert QUERY in one.records
    one.doubted({QUERY}, {QUERY})
    assert one.records == {}
    gone = keeper(SECOND)
    look(gone, 1.0)
    assert gone.kept_for() == {}
    for _ in range(3):
        gone.doubted({QUERY}, {QUERY})
    assert QUERY in gone.records, "the word of the owner's next process does not count"
