"""The scheduler's queue gives the order of sorting, for any insertions and removals."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sbon.scheduling import EarliestStimulusFirst, StimulusFifo

times = st.integers(0, 8).map(float)
waysteps = st.lists(st.tuples(st.integers(0, 4), times) | st.just("take"), max_size=60)


@given(st.lists(st.tuples(st.integers(0, 5), times | st.none()) | st.just("pop"), max_size=120))
def test_keys_come_out_in_the_order_of_time_then_of_word(steps):
    queue = EarliestStimulusFirst[int]()
    waiting: dict[int, tuple[float, int]] = {}
    for number, step in enumerate(steps):
        if step == "pop":
            expected = min(waiting, key=lambda key: waiting[key], default=None)
            assert queue.first() == expected
            assert queue.pop() == expected
            waiting.pop(expected, None)
            continue
        key, stimulus_s = step
        if stimulus_s is None:
            queue.remove(key)
            waiting.pop(key, None)
        else:
            queue.push(key, stimulus_s)
            if waiting.get(key, (None,))[0] != stimulus_s:
                waiting[key] = (stimulus_s, number)
        assert len(queue) == len(waiting)
    rest = sorted(waiting, key=lambda key: waiting[key])
    assert [queue.pop() for _ in range(len(rest) + 1)] == [*rest, None]


@given(st.lists(times | st.just("take"), max_size=80))
def test_a_fifo_keeps_its_order_and_knows_its_least(steps):
    fifo, plain = StimulusFifo(), []
    for step in steps:
        if step != "take":
            batch = SimpleNamespace(stimulus_s=step)
            fifo.append(batch)
            plain.append(batch)
        elif plain:
            assert fifo.head is plain[0]
            assert fifo.popleft() is plain.pop(0)
        assert fifo.earliest_s == min((batch.stimulus_s for batch in plain), default=float("inf"))
        assert list(fifo) == plain
        assert len(fifo) == len(plain)


@given(waysteps)
def test_ways_in_order_of_time_merge_into_one_order_of_time(steps):
    """The paper relies on this: if every way is in order of stimulus time, so is the merge."""
    ways = [StimulusFifo() for _ in range(5)]
    merge = EarliestStimulusFirst[int]()
    clock, waiting = 0.0, []

    def take() -> float:
        way = merge.first()
        batch = ways[way].popleft()
        if ways[way]:
            merge.push(way, ways[way].earliest_s)
        else:
            merge.remove(way)
        return batch.stimulus_s

    for step in steps:
        if step == "take":
            if waiting:
                waiting.sort()
                assert take() == waiting.pop(0)
            continue
        way, pause = step
        clock += pause
        ways[way].append(SimpleNamespace(stimulus_s=clock))
        merge.push(way, ways[way].earliest_s)
        waiting.append(clock)
    assert [take() for _ in range(len(waiting))] == sorted(waiting)
    assert merge.first() is None


def test_words_that_are_out_of_date_do_not_pile_up():
    queue = EarliestStimulusFirst[int]()
    queue.push(0, 0.0)
    for number in range(10_000):
        queue.push(1, 1.0 + number)
        queue.push(2, 1.0 + number)
        queue.remove(2)
    assert len(queue._heap) < 40
    assert [queue.pop(), queue.pop(), queue.pop()] == [0, 1, None]
