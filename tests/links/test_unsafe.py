"""Batches of stateless operators that are processed but not safe."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.links.backlog import SpillBudget, SpillFetch, SpillWrite
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.sender import LinkSender
from sbon.links.unsafe import Mark, Unsafe
from sbon.watermarks import WATERMARK_MIN

Given = tuple[str, int]


def mark(sequence: int, made: int, *given: Given, parts: tuple[int, ...] = ()) -> Mark[Given]:
    return Mark(sequence, made, parts, given)


def test_a_batch_is_safe_when_every_output_is() -> None:
    unsafe, reached = Unsafe[Given](), {"x": 0, "y": 0}

    def is_safe(one: Given) -> bool:
        return reached[one[0]] >= one[1]

    unsafe.processed(mark(1, 10, ("x", 1), ("y", 1)))
    unsafe.processed(mark(2, 30, ("x", 2), ("y", 1)))
    assert unsafe.look(is_safe) is None
    reached["x"] = 2
    assert unsafe.look(is_safe) is None
    assert (unsafe.safe, unsafe.made) == (0, 0)
    reached["y"] = 1
    assert unsafe.look(is_safe) is not None
    assert (unsafe.safe, unsafe.made, len(unsafe)) == (2, 30, 0)


def test_a_batch_of_which_nothing_is_made_is_as_safe_as_the_one_before() -> None:
    unsafe = Unsafe[Given]()
    unsafe.processed(mark(1, 10, ("x", 1)))
    for sequence in range(2, 100):
        unsafe.processed(mark(sequence, 10, ("x", 1)))
    assert len(unsafe) == 1, "such batches cost no memory"
    assert unsafe.look(lambda one: False) is None
    unsafe.look(lambda one: True)
    assert unsafe.safe == 99


def test_a_copy_that_has_moved_calls_everything_safe_when_the_last_of_it_is() -> None:
    unsafe = Unsafe[Given]()
    unsafe.processed(mark(1, 10, ("x", 1)))
    unsafe.again(mark(3, 25, ("x", 4)))
    assert unsafe.look(lambda one: one[1] <= 3) is None
    unsafe.look(lambda one: one[1] <= 4)
    assert (unsafe.safe, unsafe.made) == (3, 25)
    unsafe.again(mark(3, 25, ("x", 5)))
    assert len(unsafe) == 0, "nothing has come since"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=40), st.integers(0, 80))
def test_what_is_safe_leads_to_acknowledged_output_only(batches: list[tuple[int, int]], acknowledged: int) -> None:
    """Each input batch gives some rows in some output batches; the output is acknowledged up to some number."""
    unsafe, offered, made = Unsafe[Given](), 0, 0
    history = [(0, 0)]
    for sequence, (rows, more) in enumerate(batches, 1):
        offered, made = offered + more, made + (rows if more else 0)
        history.append((offered, made))
        unsafe.processed(mark(sequence, made, ("x", offered)))
    unsafe.look(lambda one: one[1] <= acknowledged)

    assert history[unsafe.safe][0] <= max(acknowledged, 0)
    assert unsafe.made == history[unsafe.safe][1]
    assert unsafe.safe == len(batches) or history[unsafe.safe + 1][0] > acknowledged


def sender_of(count: int, window: int = 8) -> LinkSender:
    sender = LinkSender("a>b:0", LinkConfig(window_batches=window))
    for number in range(count):
        sender.offer(0.0, number, None)
    return sender


def sent(sender: LinkSender) -> list[int]:
    found: list[int] = []
    while (batch := sender.peek()) is not None:
        sender.sent(batch)
        found.append(batch.sequence)
    return found


class Payload:
    rows, size_bytes = 1, 8


answers = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8)
"""For each answer the number of its batches with rows, and whether its watermark comes alone."""


@given(answers, st.integers(0, 24), st.integers(0, 24), st.integers(0, 24))
@example(told=[(1, True)], dropped=0, arrived=0, before=1)  # its former host may have sent the rows
@example(told=[(1, True)], dropped=0, arrived=0, before=2)  # nothing is offered after the move
def test_a_sender_knows_for_which_watermark_rows_were_made(told: list[tuple[int, bool]], dropped: int, arrived: int, before: int):
    """A large answer is sent in parts, and only the last one has its watermark."""
    batches: list[tuple[int, bool, int]] = []  # watermark, whether there are rows, the watermark that they were made for
    for number, (parts, is_alone) in enumerate(told, 1):
        carried = [*[number - 1] * (parts if is_alone else max(0, parts - 1)), number]
        batches += [(10 * us if us else WATERMARK_MIN, place < parts, 10 * number) for place, us in enumerate(carried)]
    before, dropped = min(before, len(batches)), min(dropped, len(batches))
    sender = LinkSender("a>b:0", LinkConfig(window_batches=32))
    for number in range(len(batches) + 1):
        if number == before:  # it moves
            sender = LinkSender.restored("a>b:0", LinkConfig(window_batches=32), sender.export())
        if number < len(batches):
            us, has_rows, _ = batches[number]
            sender.offer(0.0, us, Payload() if has_rows else None)
            if number < dropped:
                assert sender.acknowledge(number + 1, 32, number + 1)
    while (batch := sender.peek()) is not None and batch.sequence <= arrived:
        sender.sent(batch)
    # The former host may have sent all that was offered before the move.
    may_have_arrived = max(dropped, min(arrived, len(batches)), before)
    assert sender.highest_sent == may_have_arrived
    for known, count in ((sender.made_for(sender.forgotten), dropped), (sender.made_for(sender.highest_sent), may_have_arrived)):
        right = max([made for _, has_rows, made in batches[:count] if has_rows], default=WATERMARK_MIN)
        is_moved = before > 0 and dropped > 0  # batches dropped before the move are unknown
        assert known == right or (is_moved and (known is None or known > right))


def test_nobody_knows_whether_the_last_batch_before_a_move_was_a_part() -> None:
    moved = LinkSender.restored("a>b:0", LinkConfig(window_batches=8), (6, 0, 0, ()))
    assert moved.made_for(5) is None
    moved.offer(0.0, 11, Payload())
    assert moved.made_for(5) is None
    moved.offer(0.0, 13, None)
    assert moved.made_for(5) == 13


def test_a_sender_keeps_what_is_processed_until_it_is_safe() -> None:
    sender = sender_of(5)
    assert sent(sender) == [1, 2, 3, 4, 5]
    assert sender.acknowledge(4, 8, 2)
    assert (sender.held, sender.forgotten, sender.memory_batches) == (1, 2, 3)
    assert not sender.is_settled
    assert sender.acknowledge(5, 8, 5)
    assert sender.is_settled
    assert not sender.acknowledge(5, 8, 6), "no batch is safe before it is processed"
    assert not sender.acknowledge(5, 8, -1)


def test_credit_waits_for_what_is_not_safe() -> None:
    sender = sender_of(4, window=4)
    sent(sender)
    assert sender.acknowledge(4, 4, 0)
    assert not sender.has_credit
    assert sender.acknowledge(4, 4, 1)
    assert sender.has_credit


@pytest.mark.parametrize(("safe", "again"), [(2, [4, 5]), (4, [5])])
def test_after_a_reconnect_one_processed_batch_asks_whether_it_is_safe(safe: int, again: list[int]) -> None:
    sender = sender_of(5)
    sent(sender)
    sender.acknowledge(4, 8, safe)
    sender.rewind()
    assert sent(sender) == again


def test_the_oldest_batch_asks_where_the_latest_processed_one_is_on_disk() -> None:
    sender = LinkSender("a>b:0", LinkConfig(window_batches=4, spill_bytes=2**20, spill_after_s=0.0))
    sender.backlog.budget = SpillBudget(2**20)
    for _ in range(4):
        sender.offer(0.0, 0, None)
    sent(sender)
    assert isinstance(sender.backlog.next_io(0.0, may_spill=True), SpillWrite)
    sender.backlog.written(100)
    sender.acknowledge(3, 4, 0)
    sender.rewind()
    assert sent(sender) == [1, 2], "3 and 4 are on disk, and there is no room for them"
    sender.acknowledge(3, 4, 3)
    assert isinstance(sender.backlog.next_io(0.0, may_spill=True), SpillFetch)


def test_an_operator_that_begins_anew_is_given_everything_that_is_not_safe() -> None:
    sender = sender_of(5)
    sent(sender)
    sender.acknowledge(4, 8, 2)
    sender.begins_anew()
    assert (sender.held, sent(sender)) == (3, [3, 4, 5])


def test_a_link_within_a_host_forgets_what_is_processed() -> None:
    sender = sender_of(3)
    sent(sender)
    sender.acknowledge(3, 8, 1, keeps=False)
    assert (sender.safe, sender.forgotten, sender.memory_batches, sender.is_settled) == (1, 3, 0, True)


def test_a_sender_that_moves_takes_along_what_is_not_safe() -> None:
    sender = sender_of(5)
    sent(sender)
    sender.acknowledge(4, 8, 2)
    following, _, _, held = sender.export()
    assert (following, [one.sequence for one in held if isinstance(one, Batch)]) == (6, [3, 4, 5])
    restored = LinkSender.restored("a>b:0", LinkConfig(), sender.export())
    assert (restored.safe, restored.forgotten, sent(restored)) == (2, 2, [3, 4, 5])
