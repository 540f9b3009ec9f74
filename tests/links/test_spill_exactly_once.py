"""A link that spills to disk delivers every batch once, in order and within its bounds, despite failures, losses and delays."""

from collections import deque

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.links.backlog import SpillBudget, SpillFetch, SpillWrite
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver, Verdict
from sbon.links.sender import LinkSender
from tests.examples import examples


class Rows:
    rows = 1

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class Disk:
    """A link's batches on disk, and its disk work in progress."""

    def __init__(self, sender: LinkSender, budget: SpillBudget, rng: np.random.Generator, failing: float) -> None:
        self.batches: deque[Batch] = deque()
        self.used_bytes = 0
        self._sender, self._budget, self._rng, self._failing = sender, budget, rng, failing
        self._busy: SpillWrite | SpillFetch | None = None

    def look(self, now: float) -> None:
        started = self._sender.backlog.next_io(now, may_spill=True)
        if started is not None:
            assert self._busy is None, "one at a time"
            self._busy = started

    def finish(self, now: float) -> None:
        busy, self._busy = self._busy, None
        if isinstance(busy, SpillWrite):
            if self._rng.random() < self._failing:
                self._sender.write_failed("no space left", now)
                return
            assert not self.batches or busy.batches[0].sequence == self.batches[-1].sequence + 1
            self.batches.extend(busy.batches)
            size_bytes = sum(batch.size_bytes for batch in busy.batches)  # less than reserved
            self.used_bytes += size_bytes
            self._sender.backlog.written(size_bytes)
        elif isinstance(busy, SpillFetch):
            back: list[Batch] = []
            while self.batches and len(back) < busy.batches_max and sum(b.size_bytes for b in back) < busy.bytes_max:
                back.append(self.batches.popleft())
            freed = sum(batch.size_bytes for batch in back)
            self.used_bytes -= freed
            self._budget.release(freed)
            self._sender.fetched(back)


@examples(80)
@given(
    seed=st.integers(0, 2**32 - 1),
    window=st.integers(1, 12),
    batches=st.integers(1, 120),
    trouble=st.floats(0, 0.5),
    failing=st.sampled_from((0.0, 0.0, 0.3)),
    budget_mib=st.sampled_from((1, 2)),
    after_s=st.sampled_from((0.0, 5.0)),
)
@example(seed=1031, window=3, batches=22, trouble=0.0, failing=0.3, budget_mib=1, after_s=5.0)
def test_every_batch_comes_once_and_in_order_through_memory_and_disk(
    seed: int, window: int, batches: int, trouble: float, failing: float, budget_mib: int, after_s: float
) -> None:
    rng = np.random.default_rng(seed)
    config = LinkConfig(window_batches=window, window_bytes=200_000, spill_bytes=budget_mib << 20, spill_after_s=after_s)
    budget = SpillBudget(config.spill_bytes)
    sender, receiver = LinkSender("a>b:0", config), LinkReceiver("a>b:0", config)
    sender.backlog.budget = budget
    disk = Disk(sender, budget, rng, failing)
    sizes = [int(rng.choice((100, 20_000, 150_000))) for _ in range(batches)]
    largest = max(sizes) + 64
    forward: list[Batch] = []
    backward: list[tuple[int, bool]] = []
    queue: list[Batch] = []
    got: list[int] = []
    offered = 0
    down_until = int(rng.integers(0, 3_000))
    for now in range(30_000):
        healthy = now > 5_000
        connected = healthy or now > down_until
        if offered < batches and sender.has_credit and rng.random() < 0.5:
            sender.offer(0.0, 0, Rows(sizes[offered]))
            offered += 1
        disk.look(now)
        if rng.random() < 0.4:
            disk.finish(now)
        disk.look(now)
        assert sender.memory_batches <= window + 2
        assert sender.backlog.memory_bytes <= config.window_bytes + 3 * largest
        assert disk.used_bytes <= budget.used_bytes <= budget.limit_bytes
        if not healthy and rng.random() < trouble / 10:  # the connection breaks: batches in flight are lost, then sent again
            forward.clear()
            backward.clear()
            sender.rewind()
        if healthy and now % 50 == 0:
            sender.rewind()
        while connected and (batch := sender.peek()) is not None and len(forward) < 5:
            sender.sent(batch)
            if healthy or rng.random() >= trouble:
                forward.append(batch)
                if not healthy and rng.random() < trouble:
                    forward.append(batch)
        if forward:
            batch = forward.pop(0 if healthy else int(rng.integers(len(forward))))
            verdict = receiver.accept(batch.sequence, batch.size_bytes)
            if verdict is Verdict.ACCEPTED:
                queue.append(batch)
            elif verdict is not Verdict.GAP_TOLD:
                backward.append((receiver.processed, verdict is Verdict.GAP))
        if queue and rng.random() < 0.7:
            batch = queue.pop(0)
            receiver.process(batch.sequence, rows=1)
            got.append(batch.sequence)
            backward.append((receiver.processed, receiver.wants_more()))
        if backward:
            processed, resume = backward.pop(0 if healthy else int(rng.integers(len(backward))))
            assert sender.acknowledge(processed, receiver.credit)
            if resume:
                sender.rewind()
        if len(got) == batches and sender.held == 0 and not sender.on_disk:
            break
    assert got == list(range(1, batches + 1))
    assert sender.rows_acknowledged == batches
    assert budget.used_bytes == 0
    assert not disk.batches
