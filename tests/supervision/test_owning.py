"""An owner hands each version of a record to its keepers, and acts when a majority has it: stepped through without a network."""

from typing import Any

import pytest

from sbon.errors import LinkError, LocalProtocolError
from sbon.supervision.keepers import agree, holders_of, in_order
from sbon.supervision.owning import LAG_S, TABLE, Action, Counts, Denied, Depose, Dismiss, Event, Owning, Phase, Write
from sbon.wire.ownership import SETS_MAX, Holder, HolderSays, Record

QUERY = "ams.0000001.01"
AMS, FRA, NYC, OSL, RIO = (Holder(name, number) for number, name in enumerate(("ams", "fra", "nyc", "osl", "rio")))
TRIO = (AMS, FRA, NYC)
YES = HolderSays(granted=True, epoch=0)
SILENCE = LinkError("no answer")


def writes(actions: list[Action]) -> dict[Holder, Record]:
    return {action.keeper: action.record for action in actions if isinstance(action, Write)}


def kept() -> Owning:
    """Returns the owner's machine of a query whose first version both keepers have."""
    one = Owning(QUERY, AMS)
    sent = writes(one.look(b"1", TRIO, 0.0))
    for keeper, record in sent.items():
        one.answered(record, keeper, YES, 0.1)
    assert one.phase is Phase.KEPT
    return one


def test_a_version_counts_when_one_of_two_keepers_has_it():
    one = Owning(QUERY, AMS)
    sent = writes(one.look(b"1", TRIO, 0.0))
    assert set(sent) == {FRA, NYC}
    assert sent[FRA].sets == (TRIO,)
    assert (sent[FRA].version, sent[FRA].epoch, sent[FRA].owner, sent[FRA].content) == (1, 0, AMS, b"1")
    assert one.phase is Phase.WRITING
    assert one.answered(sent[FRA], FRA, YES, 0.1) == [Counts(1)]
    assert one.phase is Phase.KEPT
    assert one.keepers == (FRA, NYC)
    assert one.says == ""


def test_nothing_counts_before_a_keeper_has_answered():
    one = kept()
    actions = one.look(b"1", TRIO, 1.0, act=True)
    assert not any(isinstance(action, Counts) for action in actions)
    assert writes(actions)[FRA].version == 2
    assert one.phase is Phase.WRITING


def test_what_has_not_changed_is_not_written():
    one = kept()
    assert one.look(b"1", TRIO, 1.0) == []
    assert one.next_wake() is None


def test_without_an_answer_it_does_not_count_and_is_written_again():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    assert one.answered(sent[FRA], FRA, SILENCE, 2.0) == []
    (denied,) = one.answered(sent[NYC], NYC, SILENCE, 3.0)
    assert isinstance(denied, Denied)
    assert denied.version == 2
    assert one.phase is Phase.CUT_OFF
    assert "fra, nyc" in one.says
    assert one.look(b"2", TRIO, 3.1) == [], "the owner pauses before it writes again"
    due_s = one.next_wake()
    assert due_s is not None
    again = writes(one.wake(due_s))
    assert {record.version for record in again.values()} == {3}
    assert one.answered(sent[FRA], FRA, YES, due_s) == [], "an answer to the former version does not count"
    assert one.answered(again[FRA], FRA, YES, due_s) == [Counts(3)]
    assert one.says == ""


def test_an_act_does_not_wait_for_the_pause():
    one = kept()
    for keeper, record in writes(one.look(b"2", TRIO, 1.0)).items():
        one.answered(record, keeper, SILENCE, 1.0)
    assert one.phase is Phase.CUT_OFF
    assert set(writes(one.look(b"2", TRIO, 1.1, act=True))) == {FRA, NYC}


def test_a_refusal_with_a_higher_epoch_deposes():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    assert one.answered(sent[FRA], FRA, HolderSays(granted=False, epoch=3, owner=OSL), 1.1) == [Depose(3, OSL)]
    assert one.phase is Phase.DEPOSED
    assert one.look(b"3", TRIO, 2.0, act=True) == []
    assert one.answered(sent[NYC], NYC, YES, 2.0) == []
    assert one.wake(9.0) == []


def test_an_owner_that_writes_under_the_epoch_of_another_one_gives_way():
    """The owner raised its epoch for a version that never counted; meanwhile another agent owns the query under that epoch."""
    one = kept()
    for keeper, record in writes(one.look(b"2", TRIO, 1.0)).items():
        one.answered(record, keeper, HolderSays(granted=False, epoch=1), 1.1)
    sent = writes(one.look(b"3", TRIO, 2.0, act=True))
    assert {record.epoch for record in sent.values()} == {2}
    assert one.answered(sent[FRA], FRA, HolderSays(granted=False, epoch=2, owner=OSL), 2.1) == [Depose(2, OSL)]


def test_a_refusal_for_a_promise_alone_makes_the_owner_go_on_under_a_higher_epoch():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    no = HolderSays(granted=False, epoch=3)
    assert one.answered(sent[FRA], FRA, no, 1.1) == []
    assert isinstance(one.answered(sent[NYC], NYC, no, 1.1)[0], Denied)
    due_s = one.next_wake()
    assert due_s is not None
    assert {record.epoch for record in writes(one.wake(due_s)).values()} == {4}


def test_an_owner_whose_epoch_a_holder_has_promised_to_another_one_goes_on_under_a_higher_one():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    # fra itself has asked another holder to promise this epoch, and meanwhile takes ams for the owner under that epoch.
    no = HolderSays(granted=False, epoch=sent[FRA].epoch, owner=AMS, promised_to=FRA)
    assert one.answered(sent[FRA], FRA, no, 1.1) == []
    assert isinstance(one.answered(sent[NYC], NYC, SILENCE, 1.1)[0], Denied)
    due_s = one.next_wake()
    assert due_s is not None
    assert {record.epoch for record in writes(one.wake(due_s)).values()} == {sent[FRA].epoch + 1}


def test_an_owner_that_learns_of_a_higher_epoch_does_not_wait_as_long_as_one_that_hears_nothing():
    one = kept()
    now = 1.0
    for _ in range(6):
        for keeper, record in writes(one.look(b"2", TRIO, now, act=True)).items():
            one.answered(record, keeper, SILENCE, now)
        now += 20.0
    silent_s = one.next_wake()
    sent = writes(one.look(b"3", TRIO, now, act=True))
    for keeper, record in sent.items():
        one.answered(record, keeper, HolderSays(granted=False, epoch=7), now)
    assert silent_s is not None
    assert silent_s - (now - 20.0) > 10.0
    assert one.next_wake() == now + 0.5


def test_an_epoch_counts_only_with_a_version():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    one.answered(sent[FRA], FRA, HolderSays(granted=False, epoch=3), 1.1)
    assert (one.epoch, one.counted) == (4, 0)
    assert Counts(2) in one.answered(sent[NYC], NYC, YES, 1.2)
    assert (one.epoch, one.counted) == (4, 0)
    assert one.confirmed is sent[NYC]
    again = writes(one.look(b"3", TRIO, 2.0))
    one.answered(again[FRA], FRA, HolderSays(granted=True, epoch=4), 2.1)
    assert one.counted == 4


def test_an_owner_deposes_one_that_has_only_tried_a_higher_epoch_and_a_mere_keeper_does_not():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    for keeper in (FRA, NYC):
        one.answered(sent[keeper], keeper, HolderSays(granted=False, epoch=3), 1.1)
    again = writes(one.look(b"3", TRIO, 2.0, act=True))
    assert one.answered(again[FRA], FRA, HolderSays(granted=False, epoch=3, owner=NYC), 2.1) == []
    assert one.answered(again[NYC], NYC, HolderSays(granted=False, epoch=3, owner=NYC), 2.2) == [Depose(3, NYC)]


def test_a_promise_told_first_does_not_hide_another_owner():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    assert one.answered(sent[FRA], FRA, HolderSays(granted=False, epoch=3), 1.1) == []
    assert one.answered(sent[NYC], NYC, HolderSays(granted=False, epoch=3, owner=NYC), 1.2) == [Depose(3, NYC)]


def test_a_refusal_without_one_is_no_answer():
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    no = HolderSays(granted=False, epoch=0)
    assert one.answered(sent[FRA], FRA, no, 1.1) == []
    assert isinstance(one.answered(sent[NYC], NYC, no, 1.1)[0], Denied)


def test_a_change_while_a_version_is_under_way_follows_it():
    one = Owning(QUERY, AMS)
    first = writes(one.look(b"1", TRIO, 0.0))
    assert one.look(b"2", TRIO, 0.1) == []
    assert one.version_to_come == 2
    actions = one.answered(first[FRA], FRA, YES, 0.2)
    assert actions[0] == Counts(1)
    assert writes(actions)[NYC].content == b"2"


def test_a_keeper_that_has_not_answered_gets_the_version_again():
    one = Owning(QUERY, AMS)
    sent = writes(one.look(b"1", TRIO, 0.0))
    one.answered(sent[FRA], FRA, YES, 0.0)
    one.answered(sent[NYC], NYC, SILENCE, 2.0)
    assert one.next_wake() == LAG_S
    again = writes(one.wake(LAG_S))
    for keeper, record in again.items():
        one.answered(record, keeper, YES, LAG_S)
    assert one.next_wake() is None


def test_a_change_of_keepers_needs_a_majority_of_both():
    one = kept()
    sent = writes(one.look(b"1", (AMS, OSL, RIO), 1.0))
    assert set(sent) == {FRA, NYC, OSL, RIO}
    assert sent[OSL].sets == (TRIO, (AMS, OSL, RIO))
    assert one.answered(sent[OSL], OSL, YES, 1.1) == []
    assert one.answered(sent[RIO], RIO, YES, 1.1) == [], "the owner is the only former holder that has the version"
    actions = one.answered(sent[FRA], FRA, YES, 1.2)
    assert actions[:3] == [Counts(2), Dismiss(FRA), Dismiss(NYC)]
    after = writes(actions)
    assert set(after) == {OSL, RIO}, "the new keepers learn that the change counts"
    assert after[OSL].sets == ((AMS, OSL, RIO),)


def test_a_keeper_whose_process_has_ended_has_no_say():
    one = kept()
    assert writes(one.look(b"2", TRIO, 1.0, ended=frozenset({FRA, NYC}))) == {}
    assert one.phase is Phase.KEPT
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0, ended=frozenset({FRA})))
    assert set(sent) == {NYC}
    assert isinstance(one.answered(sent[NYC], NYC, SILENCE, 1.1)[0], Denied), "the owner alone is no majority of two"


def test_alone_it_acts_by_itself_and_says_that_nobody_inherits():
    one = Owning(QUERY, AMS)
    assert one.look(b"1", (AMS,), 0.0) == [Counts(1)]
    assert one.phase is Phase.ALONE
    assert "nobody takes it over" in one.says
    assert one.look(b"1", (AMS,), 1.0, act=True) == [Counts(2)]
    sent = writes(one.look(b"1", TRIO, 2.0))
    assert set(sent) == {FRA, NYC}
    assert Counts(3) in one.answered(sent[NYC], NYC, YES, 2.1)


def test_who_was_sent_the_first_version_may_have_it_whether_or_not_an_answer_has_come():
    """Afterwards the owner has no majority by itself, nor with other keepers alone."""
    for chosen in ((AMS,), (AMS, OSL, RIO)):
        one = Owning(QUERY, AMS)
        sent = writes(one.look(b"1", TRIO, 0.0))
        one.answered(sent[FRA], FRA, SILENCE, 2.0)
        assert isinstance(one.answered(sent[NYC], NYC, SILENCE, 2.0)[0], Denied)
        due_s = one.next_wake()
        assert due_s is not None
        again = writes(one.look(b"1", chosen, due_s))
        assert again[FRA].sets == (TRIO, chosen)
        for keeper in set(again) - {FRA, NYC}:
            assert not any(isinstance(action, Counts) for action in one.answered(again[keeper], keeper, YES, due_s))
        assert any(isinstance(action, Counts) for action in one.answered(again[FRA], FRA, YES, due_s))


def test_an_owner_that_was_alone_is_alone_again_if_those_that_came_have_not_answered():
    """A keeper with the unanswered version takes nothing over without the owner, the only holder of the version before."""
    one = kept()
    sent = writes(one.look(b"1", (AMS,), 1.0))
    assert any(isinstance(action, Counts) for action in one.answered(sent[FRA], FRA, YES, 1.1))
    assert one.phase is Phase.ALONE
    sent = writes(one.look(b"2", TRIO, 3.0))
    assert sent[FRA].sets == ((AMS,), TRIO)
    one.answered(sent[FRA], FRA, SILENCE, 5.0)
    assert isinstance(one.answered(sent[NYC], NYC, SILENCE, 5.0)[0], Denied)
    due_s = one.next_wake()
    assert due_s is not None
    assert one.look(b"2", (AMS,), due_s) == [Counts(one.version)]
    assert one.phase is Phase.ALONE
    assert "fewer than three" in one.says


def test_the_next_process_of_a_keeper_agrees_for_the_former_one_if_it_knows_what_that_has_promised():
    for is_lost in (False, True):
        again = Holder(NYC.name, 99)
        one = kept()
        sent = writes(one.look(b"1", (AMS, FRA, again), 1.0, ended=frozenset({NYC})))
        assert set(sent) == {FRA, again}
        actions = one.answered(sent[again], again, HolderSays(granted=True, epoch=0, is_lost=is_lost), 1.1)
        assert any(isinstance(action, Counts) for action in actions) is not is_lost


def test_an_owner_cut_off_from_both_keepers_does_not_become_its_own_majority():
    one = kept()
    sent = writes(one.look(b"1", (AMS,), 1.0))
    assert set(sent) == {FRA, NYC}
    one.answered(sent[FRA], FRA, SILENCE, 3.0)
    assert isinstance(one.answered(sent[NYC], NYC, SILENCE, 3.0)[0], Denied)
    assert one.phase is Phase.CUT_OFF


def test_a_later_owner_is_heard_of_when_the_version_counts_already_and_when_too_few_have_it():
    no = HolderSays(granted=False, epoch=3, owner=OSL)
    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    assert Counts(2) in one.answered(sent[FRA], FRA, YES, 1.1)
    assert one.answered(sent[NYC], NYC, no, 1.2) == [Depose(3, OSL)]

    one = kept()
    sent = writes(one.look(b"2", TRIO, 1.0))
    for keeper in (FRA, NYC):
        one.answered(sent[keeper], keeper, SILENCE, 2.0)
    assert one.phase is Phase.CUT_OFF
    assert one.answered(sent[NYC], NYC, no, 2.1) == [Depose(3, OSL)], "a late answer is heard"
    assert one.phase is Phase.DEPOSED


def test_an_owner_that_was_left_alone_hears_of_a_later_one():
    one = kept()
    sent = writes(one.look(b"2", (AMS,), 1.0))
    assert Counts(2) in one.answered(sent[FRA], FRA, YES, 1.1)
    assert one.phase is Phase.ALONE
    no = HolderSays(granted=False, epoch=3, owner=OSL)
    assert one.answered(sent[NYC], NYC, no, 1.2) == [], "an answer to an earlier version is ignored"
    assert one.latest is not None
    assert one.answered(one.latest, NYC, no, 1.2) == [Depose(3, OSL)]


def test_who_takes_a_query_over_needs_a_majority_of_the_former_holders():
    before = Record(QUERY, 0, 7, AMS, (TRIO, (AMS, FRA, OSL)), b"1")
    one = Owning(QUERY, FRA, 1, before)
    assert one.phase is Phase.CUT_OFF
    sent = writes(one.look(b"1", (FRA, OSL, RIO), 0.0))
    assert (sent[OSL].epoch, sent[OSL].version, sent[OSL].sets) == (1, 8, (TRIO, (AMS, FRA, OSL), (FRA, OSL, RIO)))
    assert one.answered(sent[OSL], OSL, HolderSays(granted=True, epoch=1), 0.1) == []
    assert Counts(8) in one.answered(sent[NYC], NYC, HolderSays(granted=True, epoch=1), 0.1)


def test_the_number_of_sets_is_bounded():
    sets = tuple((Holder(f"n{number}", 0),) for number in range(SETS_MAX))
    one = Owning(QUERY, AMS, 1, Record(QUERY, 0, 7, FRA, sets, b"1"))
    (record, *_) = writes(one.look(b"1", TRIO, 0.0)).values()
    assert record.sets == sets


@pytest.mark.parametrize(("phase", "event"), [(phase, event) for phase in Phase for event in Event if (phase, event) not in TABLE])
def test_other_events_are_bugs(phase: Phase, event: Event):
    one = Owning(QUERY, AMS)
    one.phase = phase
    with pytest.raises(LocalProtocolError, match=phase.value):
        one._turn(event)


def test_all_agents_choose_the_same_keepers_whatever_they_see_first():
    living = [AMS, FRA, NYC, OSL, RIO]
    chosen = holders_of(QUERY, AMS, living)
    assert len(chosen) == 3
    assert AMS in chosen
    assert all(holders_of(QUERY, AMS, [*living[first:], *living[:first]]) == chosen for first in range(5))
    keepers = [one for one in in_order(QUERY, living) if one != AMS][:2]
    assert set(keepers) == set(chosen) - {AMS}


def test_a_member_that_comes_changes_the_choice_by_itself_alone():
    living = [Holder(f"n{number}", 0) for number in range(50)]
    for number in range(30):
        query = f"ams.0000001.{number:02d}"
        before, after = (set(holders_of(query, AMS, some)) for some in (living[1:], living))
        assert before == after or after - before == {living[0]}


def test_keepers_are_spread_over_the_members():
    living = [Holder(f"n{number}", 0) for number in range(10)]
    counts: dict[str, int] = {}
    for number in range(500):
        for holder in holders_of(f"ams.0000001.{number:02d}", AMS, living)[1:]:
            counts[holder.name] = counts.get(holder.name, 0) + 1
    assert min(counts.values()) > 60
    assert max(counts.values()) < 150


@pytest.mark.parametrize(
    ("agreed", "ended", "enough"),
    [({AMS}, (), False), ({AMS, FRA}, (), True), ({AMS}, (FRA,), False), ({AMS}, (FRA, NYC), True), (set(), TRIO, True)],
)
def test_a_majority_is_more_than_half_of_those_that_have_not_ended(agreed: Any, ended: Any, enough: bool):
    assert agree([TRIO], agreed, ended) is enough
