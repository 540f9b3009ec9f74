"""The scheduler's queue: earliest stimulus time first."""

import numpy as np

from sbon.scheduling import EarliestStimulusFirst


def test_the_earliest_stimulus_time_is_first_whatever_the_order_of_arrival():
    queue = EarliestStimulusFirst[str]()
    for key, stimulus_s in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        queue.push(key, stimulus_s)
    assert [queue.pop() for _ in range(4)] == ["a", "b", "c", None]


def test_ties_go_to_whoever_waited_longest():
    queue = EarliestStimulusFirst[str]()
    queue.push("second", 1.0)
    queue.push("third", 1.0)
    queue.push("second", 1.0)
    assert queue.pop() == "second"


def test_a_new_word_replaces_the_old_one_and_removal_is_final():
    queue = EarliestStimulusFirst[str]()
    queue.push("a", 1.0)
    queue.push("a", 9.0)
    queue.push("b", 5.0)
    queue.push("gone", 0.0)
    queue.remove("gone")
    assert len(queue) == 2
    assert [queue.pop(), queue.pop(), queue.pop()] == ["b", "a", None]


def test_it_agrees_with_sorting():
    rng = np.random.default_rng(5)
    queue = EarliestStimulusFirst[int]()
    latest: dict[int, float] = {}
    for _ in range(500):
        key, stimulus_s = int(rng.integers(40)), float(rng.random())
        queue.push(key, stimulus_s)
        latest[key] = stimulus_s
    popped = [queue.pop() for _ in range(len(latest))]
    assert popped == sorted(latest, key=lambda key: latest[key])
