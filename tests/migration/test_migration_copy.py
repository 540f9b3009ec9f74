"""The machine that copies a state, step by step: which piece comes next, and when a round ends."""

from collections.abc import Callable

import pytest

from sbon.migration.config import MigrationConfig
from sbon.migration.copy import (
    LOOK_S,
    TABLE,
    Action,
    Copied,
    Copy,
    Delivered,
    EndLog,
    Export,
    Fork,
    MakeInput,
    MakeState,
    Overtaken,
    Progressed,
    Send,
    Stage,
)
from sbon.migration.pieces import Piece

CONFIG = MigrationConfig(
    retry_s=1.0, piece_bytes=1024, window_bytes=64 * 1024, input_bytes_max=10_000, copy_timeout_s=100.0, copy_share=0.1
)


class Log:
    """A log whose amount of input the test sets."""

    def __init__(self) -> None:
        self.added_bytes = self.taken_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self.added_bytes - self.taken_bytes

    @property
    def work_bytes(self) -> int:
        return self.size_bytes


def brought_to(stage: Stage, log: Log | None = None) -> Copy:
    machine = Copy(CONFIG)
    assert machine.start(0.0) == [Fork()]
    if stage in (Stage.STATE, Stage.INPUT):
        assert machine.forked(log or Log(), 0.0) == [MakeState(1024)]
    if stage is Stage.INPUT:
        machine.made(None, 0.0)
        machine.spent(0.0, 0.0)
    if stage is Stage.STOPPED:
        machine.stop()
    assert machine.stage is stage
    return machine


def sent(actions: list[Action]) -> list[int]:
    """Returns the numbers of the pieces sent."""
    return [action.piece.index for action in actions if isinstance(action, Send)]


PIECE = Piece(0, False, b"x", 0.0)
EVENTS: dict[str, Callable[[Copy], list[Action] | None]] = {
    "forked": lambda machine: machine.forked(Log(), 1.0),
    "more": lambda machine: machine.more(1.0),
    "repeats": lambda machine: machine.repeats(0.5, 1.0),
    "made": lambda machine: machine.made(None, 1.0),
    "spent": lambda machine: machine.spent(0.0, 1.0),
    "answered": lambda machine: machine.answered(PIECE, 1.0),
    "lost": lambda machine: machine.lost(1.0),
    "finish": lambda machine: machine.finish(1.0),
    "exported": lambda machine: machine.exported([b"rest"], 1.0),
    "wake": lambda machine: machine.wake(1.0),
    "stop": lambda machine: machine.stop(),
}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", sorted(TABLE.events))
def test_every_event_in_every_stage_does_what_the_table_says(event: str, stage: Stage):
    machine = brought_to(stage)
    actions = EVENTS[event](machine)
    if not TABLE.takes(stage, event):
        assert (actions or [], machine.stage) == ([], stage)
        return
    assert machine.stage in TABLE.rows[stage][event]
    if machine.stage is Stage.STOPPED:
        assert (actions, machine.next_wake()) == ([EndLog()], None)


def test_a_state_goes_over_piece_by_piece_then_the_input_then_the_record():
    log = Log()
    machine = brought_to(Stage.STATE, log)
    (first,) = machine.made(b"one", 0.1)
    assert first == Send(Piece(0, False, b"one", 0.1), pytest.approx(0.002))
    assert machine.spent(0.0, 0.1) == [MakeState(1024)]
    assert machine.made(None, 0.2) == [], "the first piece has not been applied"
    assert machine.answered(first.piece, 0.3) == [Progressed(), Copied(0)]
    log.added_bytes = 500
    assert machine.more(0.4) == [MakeInput(1024)]
    log.taken_bytes = 500
    assert sent(machine.made(b"calls", 0.5)) == [1]
    log.added_bytes = 700
    assert machine.spent(0.0, 0.5) == [MakeInput(1024)], "continues with the input that came since"
    log.taken_bytes = 700
    assert machine.answered(Piece(1, False, b"calls", 0.5), 0.6) == [Progressed(), Copied(0)], "the round ended with the first piece"
    assert sent(machine.made(b"more calls", 0.7)) == [2]
    machine.spent(0.0, 0.7)
    assert machine.finish(0.8) == [Export()]
    record = machine.exported([b"re", b"cord"], 0.9)
    assert [(action.piece.data, action.piece.last, action.urgent) for action in record if isinstance(action, Send)] == [
        (b"re", False, 1.0),
        (b"cord", True, 1.0),
    ]
    assert machine.answered(Piece(3, False, b"re", 0.9), 1.0) == [Progressed()]
    assert machine.answered(Piece(4, True, b"cord", 0.9), 1.0) == [Delivered()]
    assert machine.answered(Piece(4, True, b"cord", 0.9), 1.0) == [], "a repeated answer"
    assert machine.stop() == [EndLog()]


def test_an_operator_without_state_has_a_record_alone():
    machine = Copy(CONFIG)
    machine.start(0.0)
    assert machine.forked(None, 0.0) == [Copied(0)]
    assert machine.more(0.1) == [Copied(0)]
    machine.finish(0.2)
    (record,) = machine.exported([b"record"], 0.3)
    assert record == Send(Piece(0, True, b"record", 0.3), 1.0)
    assert machine.next_wake() is None


def test_a_round_takes_all_input_that_had_come_when_it_began():
    log = Log()
    machine = brought_to(Stage.INPUT, log)
    log.added_bytes = 3000
    assert machine.more(0.1) == [MakeInput(1024)]
    for taken in (1024, 2048, 3072):
        log.taken_bytes = taken
        machine.made(b"calls", 0.1)
        log.added_bytes += 100
        actions = machine.spent(0.0, 0.1)
    assert actions == [MakeInput(1024)]
    assert machine.answered(Piece(1, False, b"", 0.1), 0.2) == [Progressed()]
    assert machine.answered(Piece(2, False, b"", 0.1), 0.2) == [Progressed(), Copied(log.size_bytes)]


def test_no_more_is_under_way_than_the_window_allows_unless_it_is_urgent():
    machine = brought_to(Stage.STATE)
    machine.made(bytes(65 * 1024), 0.0)
    assert machine.spent(0.0, 0.0) == []
    assert MakeState(1024) in machine.answered(Piece(0, False, b"", 0.0), 0.1)


def test_making_pieces_takes_its_share_of_a_core_and_no_more():
    machine = brought_to(Stage.STATE)
    machine.made(b"piece", 0.0)
    assert machine.spent(0.009, 0.0) == [], "5 ms are free; the other 4 ms are a tenth of 40 ms"
    wakes = []
    now = 0.0
    while (at := machine.next_wake()) is not None and not any(isinstance(action, MakeState) for action in wakes):
        now = at
        wakes += machine.wake(now)
    assert now == pytest.approx(0.04, abs=0.011)


def test_the_more_waits_and_the_longer_it_lasts_the_more_urgent_it_is():
    log = Log()
    machine = brought_to(Stage.STATE, log)
    (send,) = machine.made(b"piece", 0.0)
    assert isinstance(send, Send)
    assert send.urgent == 0.0
    log.added_bytes = 2500
    machine.lost(0.0)
    urgent = [action.urgent for action in machine.wake(1.0) if isinstance(action, Send)]
    assert urgent == [0.5], "2,500 bytes are half of the input at which copying is no longer slowed down"
    machine.lost(25.0)
    log.added_bytes = 0
    assert [action.urgent for action in machine.wake(26.0) if isinstance(action, Send)] == [0.52]


def test_pieces_without_answer_are_sent_again_in_order_once_after_a_pause():
    machine = brought_to(Stage.STATE)
    for _ in range(3):
        machine.made(b"piece", 0.0)
        machine.spent(0.0, 0.0)
    machine.answered(PIECE, 0.1)
    assert machine.lost(0.2) == machine.lost(0.3) == []
    assert sent(machine.wake(1.1)) == []
    assert sent(machine.wake(1.2)) == [1, 2]
    assert sent(machine.wake(2.5)) == []


def test_more_input_than_is_kept_is_told_until_the_operator_is_paused():
    log = Log()
    machine = brought_to(Stage.STATE, log)
    log.added_bytes = 10_001
    assert Overtaken() in machine.wake(LOOK_S)
    machine.finish(0.02)
    assert Overtaken() not in machine.wake(0.03)


def test_input_is_repeated_not_much_faster_than_it_came():
    log = Log()
    machine = brought_to(Stage.INPUT, log)
    log.added_bytes = 100
    assert machine.wake(1.0) == [MakeInput(1024)]
    machine.repeats(1.0, 1.0)
    log.taken_bytes = 100
    machine.made(b"calls", 1.0)
    log.added_bytes = 200
    assert machine.spent(0.0, 1.0) == [], "input of one second is repeated in a third of a second"
    assert machine.wake(1.04) == []
    assert machine.wake(1.06) == [MakeInput(1024)], "but no piece waits longer than 50 ms"


def test_what_a_thread_gives_after_the_end_is_thrown_away():
    machine = brought_to(Stage.STATE)
    machine.stop()
    assert machine.made(b"piece", 0.1) == machine.spent(0.1, 0.1) == machine.exported([b"x"], 0.1) == []
    assert machine.sent_bytes == 0


def test_the_record_waits_for_all_input():
    log = Log()
    machine = brought_to(Stage.INPUT, log)
    log.added_bytes = 2000
    machine.finish(0.1)
    assert machine.exported([b"record"], 0.1) == [MakeInput(1024)]
    log.taken_bytes = 1024
    assert sent(machine.made(b"calls", 0.2)) == [0]
    assert machine.spent(0.0, 0.2) == [MakeInput(1024)]
    log.taken_bytes = 2000
    assert sent(machine.made(b"calls", 0.3)) == [1]
    (record,) = machine.spent(0.0, 0.3)
    assert isinstance(record, Send)
    assert (record.piece.index, record.piece.last) == (2, True)


def test_a_fork_that_comes_after_the_end_ends_its_log():
    machine = brought_to(Stage.STOPPED)
    assert machine.forked(Log(), 0.1) == [EndLog()]
