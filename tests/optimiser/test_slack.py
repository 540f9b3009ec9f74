"""The check before a change that lengthens paths of running queries."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sbon.optimiser.slack import UNBOUNDED_MS, Way, least_slack_ms, lengthening_ms, may_lengthen

MS = st.floats(0, 1000)


def test_the_least_slack_is_that_of_the_user_who_can_bear_least():
    assert least_slack_ms([40.0, None, -2.0]) == -2.0
    assert least_slack_ms([None]) == least_slack_ms([]) == UNBOUNDED_MS == math.inf


def test_a_short_way_may_grow_up_to_the_longest():
    ways = [Way(True, 10.0, 10.0, 50.0), Way(True, 1.0, 30.0, 5.0), Way(False, 4.0, 4.0)]
    assert lengthening_ms(ways) == 0.0
    assert may_lengthen(ways, 0.0)


def test_a_way_of_unknown_delay_counts_with_all_that_it_grows():
    ways = [Way(True, 10.0, 10.0, 50.0), Way(True, 1.0, 30.0, None)]
    assert lengthening_ms(ways) == 29.0
    assert not may_lengthen(ways, 28.0)
    assert may_lengthen(ways, 29.0)


def test_what_shortens_the_ways_is_allowed_even_beyond_the_bound():
    assert may_lengthen([Way(True, 10.0, 5.0), Way(False, 10.0, 14.0)], -100.0)
    assert not may_lengthen([Way(True, 10.0, 5.0), Way(False, 10.0, 16.0)], -100.0)


@given(
    st.lists(st.tuples(MS, MS, MS, st.booleans()), min_size=1, max_size=4),
    st.lists(st.tuples(MS, MS, MS), min_size=1, max_size=4),
)
def test_no_way_through_an_operator_grows_the_longest_by_more(
    inputs: list[tuple[float, float, float, bool]], outputs: list[tuple[float, float, float]]
):
    """Compares with all paths one by one: delay upstream, in, out, delay downstream."""
    ways = [Way(True, here, there, delay if known else None) for here, there, delay, known in inputs]
    ways += [Way(False, here, there) for here, there, _ in outputs]
    before = max(i[2] + i[0] + o[0] + o[2] for i in inputs for o in outputs)
    after = max(i[2] + i[1] + o[1] + o[2] for i in inputs for o in outputs)

    assert after - before <= lengthening_ms(ways) + 1e-6
