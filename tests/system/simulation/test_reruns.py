"""Crashes after which nobody would know exactly what a query lacks: all its operators begin again, and nothing is missing.

The seeds are those of 2,000 in which queries said *about* before there were reruns.
"""

import pytest

from sbon_testbed.simulator.simulation import simulate
from tests.examples import seeds

INTERVALS = "joins within an interval get all rows again in another order, and their consumer lives"
PART = "a consumer has had a part of the answers of a window join"
AHEAD = "a join has gone on without an input that was away"
LACKING = "a state that had begun empty is lost again with the sink and its files"
LINKS = "a link was replaced shortly before the crash"
AWAY = "one of two sources was away while operators that both feed were made again"
MOVED = "an operator had left out rows without an event time, and has moved since"
NO_LOG = "a sink does not find its notes on which rows it has written"
AGAIN = "a sink has compared its rows, and is lost once more"
FINISHED = "the query has finished before anybody knew that rows were missing"

EVERY = [(1703, FINISHED)]
LONG = [
    *(
        (1247, INTERVALS),
        (1655, INTERVALS),
        (1744, MOVED),
        (937, AHEAD),
        (1736, AHEAD),
        (1493, AHEAD),
        (1652, PART),
        (1393, PART),
        (728, LACKING),
    ),
    *((291, INTERVALS), (574, LINKS)),
    *((1264, LACKING), (1832, LINKS), (39, AWAY), (149, AWAY), (212, MOVED), (1656, NO_LOG), (1274, AGAIN)),
]


@pytest.mark.parametrize(("seed", "why"), seeds(EVERY, LONG))
def test_a_query_that_begins_again_lacks_nothing(seed: int, why: str) -> None:
    outcome = simulate(seed)
    assert (outcome.problem, outcome.inexact) == ("", ()), why
