"""The new host's machine, step by step: an operator runs once it is whole and decided, and never after it has been dropped."""

from collections.abc import Callable
from typing import Any

import pytest

from sbon.errors import LinkError, LocalProtocolError, MigrationError
from sbon.migration.config import MigrationConfig
from sbon.migration.latecomers import check_prepare, check_unexpected_piece, check_unexpected_word
from sbon.migration.newcomer import (
    FORGOTTEN_S,
    LOOK_S,
    ORPHAN_S,
    QUEUED_BYTES_MAX,
    TABLE,
    Action,
    Answer,
    AskOutcome,
    Drop,
    Install,
    KeepRoom,
    Load,
    Newcomer,
    Reach,
    Remove,
    Run,
    Stage,
    Take,
)
from sbon.query.params.streams import UnionParams
from sbon.query.plan import OperatorSpec
from sbon.wire.migration import Activate, Prepare, StateChunk

EPOCH = 3
FEEDS = ("down",)
CONFIG = MigrationConfig(prepared_s=5.0, copy_share=0.1)
PREPARE = Prepare(OperatorSpec("q.1", UnionParams(), (), None, None, "s"), EPOCH, "old", FEEDS)
BYTES_MAX = 100 * 2**20


def chunk(index: int, last: bool = False, data: bytes = b"piece", urgent: float = 0.0) -> StateChunk:
    return StateChunk("q.1", EPOCH, index, last, data, urgent)


def make_newcomer(bytes_max: int = BYTES_MAX) -> Newcomer:
    return Newcomer(PREPARE, bytes_max, CONFIG, now=0.0)


def brought_to(stage: Stage) -> Newcomer:
    machine = make_newcomer()
    steps: list[Callable[[], Any]] = [
        machine.start,
        lambda: (machine.piece(chunk(0, last=True), 1.0), machine.taken(0.0, 1.0, is_built=True)),
        lambda: machine.installed(1.0),
        lambda: machine.first_batch(1.0),
    ]
    for step in steps if stage is not Stage.DROPPED else [lambda: machine.destroyed(1.0)]:
        step()
        if machine.stage is stage:
            break
    assert machine.stage is stage
    return machine


EVENTS: dict[str, Callable[[Newcomer], list[Action]]] = {
    "prepared_again": lambda machine: machine.prepared_again(2.0),
    "piece": lambda machine: machine.piece(chunk(0), 2.0),
    "taken": lambda machine: machine.taken(0.0, 2.0, is_built=False),
    "not_taken": lambda machine: machine.not_taken("it is no piece", 2.0),
    "installed": lambda machine: machine.installed(2.0),
    "word": lambda machine: machine.word(Activate("q.1", EPOCH), 2.0),
    "first_batch": lambda machine: machine.first_batch(2.0),
    "committed": lambda machine: machine.verdict("committed", 2.0),
    "abandoned": lambda machine: machine.verdict("abandoned", 2.0),
    "undecided": lambda machine: machine.verdict("undecided", 2.0),
    "forgotten": lambda machine: machine.verdict("forgotten", 2.0),
    "nonsense": lambda machine: machine.verdict("nonsense", 2.0),
    "abandon": lambda machine: machine.abandoned(EPOCH, 2.0),
    "late abandon": lambda machine: machine.abandoned(EPOCH - 1, 2.0),
    "destroyed": lambda machine: machine.destroyed(2.0),
    "call_off": lambda machine: machine.call_off(2.0),
    "coordinator_gone": lambda machine: machine.coordinator_gone("old", 2.0),
    "another gone": lambda machine: machine.coordinator_gone("other", 2.0),
    "wake": lambda machine: machine.wake(0.5),
    "ten minutes": lambda machine: machine.wake(1.0 + ORPHAN_S),
}
DROPS = {"not_taken", "abandoned", "forgotten", "abandon", "destroyed", "call_off", "coordinator_gone", "ten minutes"}
EXPECTED: dict[Stage, dict[str, tuple[Stage, list[type]]]] = {
    Stage.COMING: {
        "prepared_again": (Stage.COMING, [Load]),
        "piece": (Stage.COMING, [Take]),
        **dict.fromkeys(DROPS, (Stage.DROPPED, [Drop])),
    },
    Stage.INSTALLING: {
        "prepared_again": (Stage.INSTALLING, [Load]),
        "installed": (Stage.INSTALLED, [Answer]),
        **dict.fromkeys(DROPS, (Stage.DROPPED, [Drop])),
    },
    Stage.INSTALLED: {
        "prepared_again": (Stage.INSTALLED, [Load]),
        "piece": (Stage.INSTALLED, [Answer]),
        "word": (Stage.RUNNING, [Run]),
        "first_batch": (Stage.RUNNING, [Run]),
        "committed": (Stage.RUNNING, [Run]),
        **dict.fromkeys(DROPS - {"not_taken", "forgotten", "call_off", "coordinator_gone"}, (Stage.DROPPED, [Drop, Remove])),
    },
    Stage.RUNNING: {},
    Stage.DROPPED: {},
}
"""Events that change something, with the next stage and the kinds of actions. Other events are late, repeated, or for others."""


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_stage_does_what_the_table_says(event: str, stage: Stage):
    machine = brought_to(stage)
    if event == "taken" and stage is Stage.COMING:
        machine.piece(chunk(0), 1.0)
    if event == "word" and stage is not Stage.INSTALLED:
        with pytest.raises(MigrationError):
            EVENTS[event](machine)
        assert machine.stage is stage
        return
    actions = EVENTS[event](machine)
    after, kinds = EXPECTED[stage].get(event, (stage, []))
    if (event, stage) == ("taken", Stage.COMING):
        kinds = [Answer]
    assert (machine.stage, [type(action) for action in actions]) == (after, kinds)
    if after is not stage:
        names = {"abandon": "abandoned", "ten minutes": "wake", "committed": "verdict", "abandoned": "verdict", "forgotten": "verdict"}
        assert after in TABLE.rows[stage][names.get(event, event)]
    if after in (Stage.RUNNING, Stage.DROPPED):
        assert machine.next_wake() is None


def test_an_operator_without_trouble_comes_and_runs():
    machine = make_newcomer()
    assert machine.start() == [Load(FEEDS)]
    assert machine.piece(chunk(0, data=b"a"), 0.1) == [Take(b"a")]
    assert machine.piece(chunk(1, data=b"b"), 0.1) == []
    assert machine.taken(0.0, 0.2, is_built=False) == [Answer(0), Take(b"b")]
    assert machine.piece(chunk(2, last=True, data=b"c"), 0.2) == []
    assert machine.taken(0.0, 0.3, is_built=True) == [Answer(1), Take(b"c")]
    assert machine.taken(0.0, 0.4, is_built=True) == [Install()]
    assert machine.installed(0.5) == [Answer(2)]
    assert machine.word(Activate("q.1", EPOCH), 0.6) == [Run()]


def test_pieces_are_taken_once_and_answered_as_often_as_they_come():
    machine = make_newcomer()
    assert machine.piece(chunk(0), 0.1) == [Take(b"piece")]
    assert machine.piece(chunk(0), 0.2) == [], "the answer comes once the piece has been applied"
    assert machine.taken(0.0, 0.3, is_built=False) == [Answer(0)]
    assert machine.piece(chunk(0), 0.4) == [Answer(0)]
    with pytest.raises(LinkError, match="piece 2, expected 1"):
        machine.piece(chunk(2), 0.5)
    machine.piece(chunk(1, last=True), 0.6)
    with pytest.raises(LocalProtocolError, match="after the last"):
        machine.piece(chunk(2), 0.7)


def test_no_more_waits_to_be_taken_than_is_allowed():
    machine, data = make_newcomer(2**40), bytes(QUEUED_BYTES_MAX // 2)
    for index in range(4):
        machine.piece(chunk(index, data=data), 0.1)
    with pytest.raises(LinkError, match="wait to be taken"):
        machine.piece(chunk(4, data=data), 0.1)
    machine.taken(0.0, 0.2, is_built=True)
    assert machine.piece(chunk(4, data=data), 0.3) == [], "there is room again"


def test_a_state_too_large_is_refused():
    with pytest.raises(LocalProtocolError, match="state_bytes_max"):
        make_newcomer(bytes_max=4).piece(chunk(0), 0.1)


def test_taking_the_state_is_paced_until_the_operator_is_built_or_it_is_urgent():
    machine = make_newcomer()
    machine.piece(chunk(0), 0.0)
    machine.piece(chunk(1), 0.0)
    assert machine.taken(0.01, 0.0, is_built=False) == [Answer(0)], "the first piece took more than its share, so the next one waits"
    at = machine.next_wake()
    assert at is not None
    assert 0.0 < at < LOOK_S
    assert machine.wake(at - 0.001) == []
    assert machine.wake(at) == [Take(b"piece")]
    machine.taken(0.05, at, is_built=False)
    assert machine.piece(chunk(2, urgent=1.0), at) == [Take(b"piece")], "urgent: the operator waits"
    machine.taken(0.05, at, is_built=True)
    assert machine.piece(chunk(3), at) == [Take(b"piece")], "input is paced by the sender"


def test_room_and_connections_are_kept_and_the_coordinator_is_asked_in_silence():
    machine = make_newcomer()
    assert machine.next_wake() == LOOK_S
    for now in (1.0, 2.0, 3.0, 4.0):
        assert machine.wake(now) == [KeepRoom(), Reach(FEEDS)]
    assert machine.wake(5.0) == [KeepRoom(), Reach(FEEDS), AskOutcome("old")]
    assert machine.wake(6.0) == [KeepRoom(), Reach(FEEDS)], "asked once for each silence"
    machine.piece(chunk(0, last=True), 9.5)
    assert machine.wake(10.0) == [KeepRoom(), Reach(FEEDS)], "the coordinator has sent a piece"
    machine.taken(0.0, 10.0, is_built=True)
    machine.installed(10.0)
    assert machine.wake(14.5) == [Reach(FEEDS), AskOutcome("old")]


def test_ten_minutes_without_a_piece_end_it_whatever_the_coordinator_says():
    machine = make_newcomer()
    machine.piece(chunk(0), 100.0)
    machine.verdict("undecided", 100.0 + ORPHAN_S - 1.0)
    assert Drop not in map(type, machine.wake(100.0 + ORPHAN_S - 1.0))
    assert machine.wake(100.0 + ORPHAN_S) == [Drop("no piece of it has come for 600 s")]


def test_a_whole_operator_that_its_coordinator_has_forgotten_waits_for_somebody_else_s_word_and_not_for_ever():
    machine = brought_to(Stage.INSTALLED)
    assert machine.verdict("forgotten", 10.0) == []
    assert machine.verdict("forgotten", 15.0) == [], "the wait does not restart"
    assert Drop not in map(type, machine.wake(10.0 + FORGOTTEN_S - 1.0))
    assert machine.wake(10.0 + FORGOTTEN_S)[-2:] == [Drop("old has restarted, and nobody told the operator to run"), Remove()]


def test_what_a_thread_gives_after_the_end_is_thrown_away():
    machine = make_newcomer()
    machine.piece(chunk(0), 0.1)
    machine.piece(chunk(1), 0.1)
    machine.abandoned(EPOCH, 0.2)
    assert machine.taken(0.0, 0.3, is_built=False) == []
    assert machine.not_taken("too late", 0.3) == []


def test_a_word_of_another_epoch_runs_nothing():
    machine = brought_to(Stage.INSTALLED)
    with pytest.raises(MigrationError):
        machine.word(Activate("q.1", EPOCH + 1), 2.0)
    assert machine.stage is Stage.INSTALLED


def coming(pieces: int, epoch: int = EPOCH) -> Newcomer:
    machine = Newcomer(Prepare(PREPARE.spec, epoch, "old"), BYTES_MAX, CONFIG, 0.0)
    for index in range(pieces):
        machine.piece(chunk(index), 0.0)
    return machine


@pytest.mark.parametrize(
    ("present", "is_here", "is_leaving", "why"),
    [
        (None, False, False, ""),
        (None, True, False, "is on me already"),
        (None, False, True, "not everyone has been told"),
        (coming(0), False, False, ""),
        (coming(1), False, False, "on its way to me already"),
        (coming(1, EPOCH - 1), False, False, ""),
        (coming(0, EPOCH + 1), False, False, "on its way to me already"),
        (brought_to(Stage.INSTALLED), True, False, "on its way to me already"),
    ],
)
def test_an_operator_may_come_once_and_a_late_question_replaces_nothing(
    present: Newcomer | None, is_here: bool, is_leaving: bool, why: str
):
    if not why:
        check_prepare(PREPARE, present, "me", is_here=is_here, is_leaving=is_leaving)
        return
    with pytest.raises(MigrationError, match=why):
        check_prepare(PREPARE, present, "me", is_here=is_here, is_leaving=is_leaving)


@pytest.mark.parametrize(("here_epoch", "heard"), [(None, False), (EPOCH, True), (EPOCH - 1, False), (EPOCH + 1, False)])
def test_a_piece_is_answered_again_only_where_its_operator_runs_since_then(here_epoch: int | None, heard: bool):
    if heard:
        check_unexpected_piece(chunk(9), "me", here_epoch)
        return
    with pytest.raises(MigrationError, match="not expected"):
        check_unexpected_piece(chunk(9), "me", here_epoch)


@pytest.mark.parametrize(
    ("here_epoch", "gone_epoch", "heard"),
    [
        (None, None, False),
        (EPOCH, None, True),
        (EPOCH + 2, None, True),
        (EPOCH - 1, None, False),
        (None, EPOCH + 1, True),
        (None, EPOCH, False),
    ],
)
def test_the_word_to_run_is_heard_again_only_where_the_operator_has_run_since(here_epoch: int | None, gone_epoch: int | None, heard: bool):
    word = Activate("q.1", EPOCH)
    if heard:
        check_unexpected_word(word, "me", here_epoch, gone_epoch)
        return
    with pytest.raises(MigrationError, match="not prepared"):
        check_unexpected_word(word, "me", here_epoch, gone_epoch)
