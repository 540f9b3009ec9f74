"""The state machine of an operator's life, without an engine."""

import re
from itertools import product
from pathlib import Path

import pytest

from sbon.errors import LocalProtocolError
from sbon.execution.life import ROWS, TABLE, Do, Event, Life, State

LETS_GO = {Do.LET_GO, Do.LET_GO_LATER, Do.ABANDON}
TOLD = {Do.TELL_RESTS, Do.TELL_CALLED_OFF}
BEGINNINGS = (State.BUILDING, State.PREPARED)


def changes(state: State) -> list[tuple[Event, bool, State, tuple[Do, ...]]]:
    """Returns the events that a state allows, with their results."""
    return [(event, ended, *found) for (known, event, ended), found in TABLE.items() if known is state]


def reachable(state: State, *, within: frozenset[State] = frozenset(State)) -> set[State]:
    """Returns the states that an operator may reach by way of the states `within`."""
    seen, open_ = set[State](), [state]
    while open_:
        for _, _, then, _ in changes(open_.pop()):
            if then not in seen:
                seen.add(then)
                if then in within:
                    open_.append(then)
    return seen


@pytest.mark.parametrize(("state", "event", "ended"), [*product(State, Event, (False, True))])
def test_every_pair_leads_where_the_table_says_or_is_an_error_of_ours(state: State, event: Event, ended: bool):
    life = Life(state)
    life.reason = "before"

    found = TABLE.get((state, event, ended))

    assert life.allows(event) == (found is not None)
    if found is None:
        with pytest.raises(LocalProtocolError, match=f"an operator that is {state.value} cannot take: {event.value}"):
            life.on(event, ended=ended)
        assert (life.state, life.reason) == (state, "before")
    else:
        assert life.on(event, ended=ended, reason="why") == found[1]
        assert life.state is found[0]
        assert life.reason == ("before" if found[0] in (state, State.GONE) else "why")


def test_no_row_stands_twice_and_every_state_and_event_is_used():
    entries = [(state, row.event, ended) for row in ROWS for state in row.states for ended in (False, True) if row.ended in (None, ended)]

    assert len(entries) == len(set(entries)) == len(TABLE)
    assert {event for _, event, _ in entries} == set(Event)
    assert {does for row in ROWS for does in row.does} == set(Do)
    assert set.union(*(reachable(state) for state in BEGINNINGS)) | set(BEGINNINGS) == set(State)


@pytest.mark.parametrize("state", [state for state in State if state is not State.GONE])
def test_whatever_it_does_it_can_be_destroyed_or_fail(state: State):
    then, does = TABLE[state, Event.DESTROY, False]
    assert then is State.GONE
    assert (state is State.FAILED) or LETS_GO & set(does), "otherwise files would stay open"

    then, does = TABLE[state, Event.FAULT, False]
    assert then is State.FAILED
    assert (state is State.FAILED) == (does == ()), "a failure is reported once"
    assert state is State.FAILED or {Do.ABANDON, Do.FREE, Do.TELL_FAILED} <= set(does)


def test_nothing_comes_back_from_another_host_or_from_a_fault():
    assert reachable(State.GONE) == {State.GONE}
    assert reachable(State.FAILED) == {State.FAILED, State.GONE}


def test_a_file_that_is_not_complete_never_replaces_the_former_one():
    for state, event, ended in TABLE:
        then, does = TABLE[state, event, ended]
        if Do.LET_GO in does:
            assert state not in (State.BUILDING, State.WAITING)
            assert then is not State.FAILED


def test_who_asked_for_rest_is_told_exactly_once():
    for state, event, ended in TABLE:
        then, does = TABLE[state, event, ended]
        assert len(TOLD & set(does)) == (state is State.RESTING), (state, event)
        assert (Do.TELL_RESTS in does) == (then is State.PAUSED)
        assert (Do.FINISH_BATCH in does) == (then is State.RESTING) == (event is Event.REST)


def test_batches_are_taken_up_whenever_it_runs_again():
    for state, event, ended in TABLE:
        then, does = TABLE[state, event, ended]
        if then is State.RUNNING:
            assert {Do.START, Do.TAKE_UP} & set(does), (state, event)
            assert not ended or event is Event.BEGIN


def test_a_state_that_a_thread_copies_changes_by_nothing_but_the_end_of_the_copy():
    assert {event for event, _, _, _ in changes(State.FORKING)} == {Event.FORKED, Event.FAULT, Event.DESTROY}


def test_what_has_been_exported_either_leaves_or_goes_on():
    assert {(event, then) for event, _, then, _ in changes(State.EXPORTED)} == {
        (Event.HAND_OVER, State.GONE),
        (Event.GO_ON, State.RUNNING),
        (Event.GO_ON, State.FINISHED),
        (Event.FAULT, State.FAILED),
        (Event.DESTROY, State.GONE),
    }


@pytest.mark.parametrize(
    ("first", "events", "states"),
    [
        (
            State.BUILDING,
            "SINK_BUILT BEGIN NOT_TAKEN OFFER RESULT_DUE NOT_TAKEN OFFER+ IN_PLACE DESTROY",
            "WAITING RUNNING STALLED RUNNING FINISHING STALLED FINISHING FINISHED GONE",
        ),
        (State.BUILDING, "BUILT REST IDLE FORK FORKED REST GO_ON", "RUNNING RESTING PAUSED FORKING RUNNING RESTING RUNNING"),
        (State.BUILDING, "BUILT REST IDLE EXPORT HAND_OVER FAULT", "RUNNING RESTING PAUSED EXPORTED GONE GONE"),
        (State.PREPARED, "RUN REST IDLE EXPORT GO_ON+ REST GO_ON+", "RUNNING RESTING PAUSED EXPORTED FINISHED RESTING FINISHED"),
        (State.PREPARED, "RUN+ REST IDLE EXPORT FAULT HAND_OVER", "FINISHED RESTING PAUSED EXPORTED FAILED GONE"),
        (State.BUILDING, "BUILT+ FAULT FAULT DESTROY", "FINISHED FAILED FAILED GONE"),
        (State.BUILDING, "BUILT GAVE_ALL DESTROY", "RUNNING FINISHED GONE"),
        (State.BUILDING, "BUILT ENDED REST IDLE FORK FORKED+", "RUNNING FINISHED RESTING PAUSED FORKING FINISHED"),
    ],
)
def test_stories(first: State, events: str, states: str):
    life, seen = Life(first), []
    for event in events.split():
        life.on(Event[event.removesuffix("+")], ended=event.endswith("+"))
        seen.append(life.state.name)

    assert seen == states.split()


def test_people_are_told_of_a_pause_whatever_it_is_for():
    assert {state.told for state in State} == {state.value for state in State} - {"waiting", "resting", "forking", "exported"}


def test_the_state_changes_nowhere_else():
    agent = Path(__file__).parents[2] / "agent"
    found = [
        path.name
        for path in agent.rglob("*.py")
        if re.search(r"\.state\b[^=\n]*(?<![=!<>])=(?!=)[^=\n]*\bState\.", path.read_text(encoding="utf-8"))
    ]

    assert found == []
