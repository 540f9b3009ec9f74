"""Mace, section III-D, theorem 1: on one node, no scheduling policy has a lower worst-case latency than stimulus-time scheduling.

The tests use virtual time and the library's queue. Every event reaches an exit, as the theorem requires. Work without an answer counts in
no latency, so an order that foresees such work could do better.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.paper.single_core import (
    OTHERS,
    Arrival,
    ByOperator,
    Graph,
    StimulusTime,
    bursts,
    latencies,
    least_worst_latency,
    random_graph,
)

TOLERANCE = 1e-9
"""Allows for rounding: the same costs are summed in different orders."""


@examples(200)
@given(seed=st.integers(0, 2**32), operators=st.integers(1, 9), events=st.integers(1, 60))
def test_no_usual_order_has_a_lower_worst_case(seed, operators, events):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, operators)
    arrivals = bursts(rng, graph, events)

    ours = max(latencies(graph, arrivals, StimulusTime()))

    for name, rule in OTHERS.items():
        assert ours <= max(latencies(graph, arrivals, ByOperator(rule))) + TOLERANCE, name


@examples(60)
@given(seed=st.integers(0, 2**32), operators=st.integers(1, 3), events=st.integers(1, 4))
def test_no_order_at_all_has_a_lower_worst_case(seed, operators, events):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, operators)
    arrivals = [Arrival(float(rng.integers(4)), int(rng.integers(operators))) for _ in range(events)]

    ours = max(latencies(graph, arrivals, StimulusTime()))

    assert ours == pytest.approx(least_worst_latency(graph, arrivals))


@examples(50)
@given(seed=st.integers(0, 2**32), operators=st.integers(1, 6), events=st.integers(1, 30))
def test_any_order_does_the_same_work(seed, operators, events):
    """The core is busy at the same times in any order, so the tests compare orders only."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, operators)
    arrivals = bursts(rng, graph, events)

    def last_exit(found: list[float]) -> float:
        return max(arrival.stimulus_s + latency for arrival, latency in zip(arrivals, found, strict=True))

    ends = [last_exit(latencies(graph, arrivals, scheduler)) for scheduler in (StimulusTime(), *map(ByOperator, OTHERS.values()))]
    assert ends == pytest.approx([ends[0]] * len(ends))


BURSTY = Graph(cost=(1.0,) * 7, behind=((1,), (2,), (3,), (4,), (), (), ()))
"""A query of five operators in a chain (0 to 4), and two queries of one operator each (5, 6)."""


def test_bursts_make_it_strictly_better_than_each_of_the_others():
    """Two queries get a burst at the same time. The third gets smaller bursts while the first ones are still being processed."""
    arrivals = [
        *(Arrival(0.0, 0) for _ in range(4)),
        *(Arrival(0.0, 6) for _ in range(10)),
        *(Arrival(3.0 + 4.0 * burst + 0.01 * i, 5) for burst in range(8) for i in range(3)),
    ]

    found = {name: max(latencies(BURSTY, arrivals, ByOperator(rule))) for name, rule in OTHERS.items()}

    assert max(latencies(BURSTY, arrivals, StimulusTime())) == pytest.approx(30.0)
    assert found == pytest.approx({"FIFO per operator": 54.0, "round robin": 40.0, "longest queue first": 54.0})


def test_a_newer_event_is_never_served_before_an_older_one_that_waits():
    served = []

    class Watched(StimulusTime):
        def next(self):
            waiting = super().next()
            if waiting is not None:
                others = [event.stimulus_s for fifo in self._fifos.values() for event in fifo]
                served.append(waiting.stimulus_s <= min(others, default=np.inf))
            return waiting

    rng = np.random.default_rng(3)
    graph = random_graph(rng, 8)
    latencies(graph, bursts(rng, graph, 100), Watched())

    assert len(served) > 100
    assert all(served)
