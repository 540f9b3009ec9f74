"""The backlog of a link: batches that do not fit into memory go to disk and come back in order."""

from collections import deque

import pytest

from sbon.errors import LocalProtocolError, SpillError
from sbon.links.backlog import RETRY_S, SpillBudget, SpillFetch, SpillWrite
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.sender import LinkSender

MIB = 2**20


class Rows:
    def __init__(self, rows: int, size_bytes: int) -> None:
        self.rows, self.size_bytes = rows, size_bytes


class Link:
    """A sender with its disk; the far end is away until `deliver`."""

    def __init__(self, window: int = 8, budget_bytes: int = 64 * MIB, after_s: float = 1.0, size_bytes: int = 100) -> None:
        self.budget = SpillBudget(budget_bytes)
        self.sender = LinkSender("a>b:0", LinkConfig(window_batches=window, spill_bytes=budget_bytes, spill_after_s=after_s))
        self.sender.backlog.budget = self.budget
        self.disk: deque[Batch] = deque()
        self.now = 0.0
        self._size_bytes = size_bytes

    def fill(self, batches_max: int = 10_000) -> int:
        """Offers batches while there is credit, and writes those that are to be spilled. Returns how many were taken."""
        taken = 0
        while self.sender.has_credit and taken < batches_max:
            self.sender.offer(0.0, 0, Rows(1, self._size_bytes))
            taken += 1
            self.step()
        return taken

    def step(self) -> SpillWrite | SpillFetch | None:
        io = self.sender.backlog.next_io(self.now, may_spill=True)
        if isinstance(io, SpillWrite):
            self.disk.extend(io.batches)
            self.sender.backlog.written(io.reserved_bytes)
        elif isinstance(io, SpillFetch):
            back = [self.disk.popleft() for _ in range(min(io.batches_max, len(self.disk)))]
            self.budget.release(sum(batch.size_bytes + 64 for batch in back))
            self.sender.fetched(back)
        return io

    def deliver(self) -> list[int]:
        """Lets the far end return and take everything; returns the sequence numbers that it got."""
        got = []
        self.sender.rewind()
        while self.sender.held:
            while (batch := self.sender.peek()) is not None:
                self.sender.sent(batch)
                got.append(batch.sequence)
            if got:
                assert self.sender.acknowledge(got[-1], credit=64)
            self.step()
        return got


def test_a_full_link_waits_a_moment_and_then_goes_to_disk():
    link = Link(window=8, after_s=1.0)
    assert link.fill() == 8
    assert link.sender.backlog.next_wake() == 1.0
    assert not link.sender.on_disk

    link.now = 1.0
    link.step()

    assert link.sender.spilled_batches == 4
    assert link.sender.memory_batches == 4
    assert link.fill(batches_max=500) == 500
    assert link.sender.memory_batches <= 8
    assert link.deliver() == list(range(1, 509))
    assert link.budget.used_bytes == 0


def test_a_link_with_a_moments_room_now_and_then_does_not_spill():
    link = Link(window=4, after_s=1.0)
    for processed in range(1, 20):
        link.fill()
        link.step()
        link.now += 0.6
        for _ in range(4):
            if (batch := link.sender.peek()) is not None:
                link.sender.sent(batch)
        link.sender.acknowledge(processed, credit=64)
        link.step()
    assert not link.sender.on_disk


def test_credit_ends_with_the_budget_says_why_and_comes_back_as_the_disk_drains():
    link = Link(window=8, budget_bytes=MIB, after_s=0.0, size_bytes=10_000)
    taken = link.fill()

    assert not link.sender.has_credit
    assert MIB * 0.9 < link.budget.used_bytes <= MIB
    assert link.sender.memory_batches <= 8 + 1
    assert "the spill budget of 1 MiB (links.spill_bytes) is used up" in link.sender.trouble

    assert link.deliver() == list(range(1, taken + 1))
    assert link.sender.has_credit
    assert link.sender.trouble == ""


def test_a_disk_that_cannot_be_written_leaves_memory_as_it_was_and_is_tried_again_later():
    link = Link(window=8, after_s=0.0)
    for _ in range(8):
        link.sender.offer(0.0, 0, Rows(1, 100))
    assert isinstance(link.sender.backlog.next_io(0.0, may_spill=True), SpillWrite)
    link.sender.write_failed("No space left on device", 0.0)

    assert not link.sender.has_credit
    assert link.budget.used_bytes == 0
    assert "No space left on device" in link.sender.trouble
    assert link.sender.backlog.next_io(RETRY_S - 1, may_spill=True) is None
    assert link.sender.backlog.next_wake() == RETRY_S
    assert isinstance(link.sender.backlog.next_io(RETRY_S, may_spill=True), SpillWrite)
    link.sender.write_failed("No space left on device", RETRY_S)
    assert link.deliver() == list(range(1, 9))


def test_rows_that_are_acknowledged_while_a_write_fails_count_as_acknowledged():
    link = Link(window=4, after_s=0.0)
    for _ in range(4):
        link.sender.offer(0.0, 0, Rows(5, 100))
    assert isinstance(link.sender.backlog.next_io(0.0, may_spill=True), SpillWrite)
    assert link.sender.acknowledge(4, credit=4)
    assert link.sender.rows_acknowledged == 10, "the batches being written are not dropped yet"

    link.sender.write_failed("No space left on device", 0.0)

    assert (link.sender.rows_acknowledged, link.sender.rows_held, link.sender.memory_batches) == (20, 0, 0)


def test_after_an_outage_in_which_the_disk_failed_the_next_one_spills_in_time():
    link = Link()
    link.fill()
    link.now = 1.0
    assert isinstance(link.sender.backlog.next_io(link.now, may_spill=True), SpillWrite)
    link.sender.write_failed("No space left on device", link.now)
    link.deliver()
    link.now = RETRY_S + 5.0
    link.fill()
    assert link.sender.backlog.next_wake() == link.now + 1.0
    link.now += 1.0
    assert isinstance(link.step(), SpillWrite)


def test_what_comes_back_from_disk_must_be_what_was_written():
    link = Link(window=8, after_s=0.0)
    link.fill(batches_max=100)
    link.disk.popleft()
    with pytest.raises(SpillError, match="from disk, expected batch 5"):
        link.deliver()


def test_an_operator_with_batches_on_disk_has_nothing_to_take_along():
    link = Link(window=8, after_s=0.0)
    link.fill(batches_max=100)
    with pytest.raises(LocalProtocolError, match="on disk"):
        link.sender.export()
    assert link.deliver()[-1] == 100
    assert link.sender.export()[3] == ()


def test_a_link_within_the_host_does_not_spill():
    link = Link(window=8, after_s=0.0)
    for _ in range(8):
        link.sender.offer(0.0, 0, Rows(1, 100))
    assert link.sender.backlog.next_io(0.0, may_spill=False) is None


def test_without_a_budget_nothing_spills():
    sender = LinkSender("a>b:0", LinkConfig(window_batches=2))
    sender.offer(0.0, 0, None)
    sender.offer(0.0, 0, None)
    assert sender.backlog.next_io(100.0, may_spill=True) is None
    assert sender.backlog.next_wake() is None
