"""Whatever is lost, repeated or reordered between the two ends of a link, the receiver gets every batch once and in order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver, Verdict
from sbon.links.sender import LinkSender
from tests.examples import examples


@examples(60)
@given(seed=st.integers(0, 2**32 - 1), window=st.integers(1, 8), batches=st.integers(1, 40), trouble=st.floats(0, 0.6))
def test_every_batch_arrives_once_and_in_order(seed: int, window: int, batches: int, trouble: float) -> None:
    rng = np.random.default_rng(seed)
    config = LinkConfig(window_batches=window)
    sender, receiver = LinkSender("a>b:0", config), LinkReceiver("a>b:0", config)
    forward: list[int] = []
    backward: list[tuple[int, bool]] = []
    got: list[int] = []
    queue: list[int] = []
    offered = 0
    for step in range(20_000):
        healthy = step > 2_000  # faults end; now everything must arrive
        if offered < batches and sender.has_credit:
            sender.offer(0.0, 0, None)
            offered += 1
        assert sender.held <= window
        if not healthy and rng.random() < trouble / 10:  # the connection breaks: batches in flight are lost, then sent again
            forward.clear()
            backward.clear()
            sender.rewind()
        if healthy and step % 50 == 0:
            sender.rewind()
        while (batch := sender.peek()) is not None and len(forward) < 5:
            sender.sent(batch)
            if healthy or rng.random() >= trouble:
                forward.append(batch.sequence)
                if not healthy and rng.random() < trouble:
                    forward.append(batch.sequence)
        if forward:
            sequence = forward.pop(0 if healthy else int(rng.integers(len(forward))))
            verdict = receiver.accept(sequence)
            if verdict is Verdict.ACCEPTED:
                queue.append(sequence)
            elif verdict is not Verdict.GAP_TOLD:
                backward.append((receiver.processed, verdict is Verdict.GAP))
        if queue and rng.random() < 0.7:
            sequence = queue.pop(0)
            receiver.process(sequence, rows=0)
            got.append(sequence)
            backward.append((receiver.processed, False))
        if backward:
            processed, resume = backward.pop(0 if healthy else int(rng.integers(len(backward))))
            assert sender.acknowledge(processed, receiver.credit)
            if resume:
                sender.rewind()
        if len(got) == batches and sender.held == 0:
            break
    assert got == list(range(1, batches + 1))
    assert sender.held == 0
