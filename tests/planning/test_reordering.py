"""Another order for a running query: how much it must gain, and which queries keep theirs."""

import msgspec
import pytest

from sbon.cost.placed_query import by_rule_of
from sbon.planning.reordering import gain, reordered
from tests.planning.test_sizing import placed, planned


@pytest.mark.parametrize(
    ("present", "other", "gained"),
    [
        ((1.0, 50.0), (1.2, 500.0), "to carry 1.2 times the incoming rows instead of 1 times"),
        ((1.1, 50.0), (1.2, 50.0), ""),
        ((1.25, 50.0), (90.0, 50.0), ""),
        ((9.0, 1000.0), (2.0, 700.0), "for 700 bytes in transit instead of 1,000"),
        ((9.0, 1000.0), (2.0, 900.0), ""),
        ((1.2, 1000.0), (1.1, 10.0), ""),
    ],
)
def test_an_order_must_carry_more_or_cost_less_by_a_fifth(present: tuple[float, float], other: tuple[float, float], gained: str) -> None:
    assert gain(present, other) == gained


WINDOW = "SELECT window_end, k, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end, k"


def test_a_query_whose_order_is_the_best_keeps_it() -> None:
    found = reordered(placed(planned(WINDOW)[0], 1e4))
    assert (found.plan, found.text) == (None, "no other order of its operators is better")


def test_rules_of_thumb_do_not_change_the_order_of_a_query_that_runs() -> None:
    query = placed(planned(WINDOW)[0], 1e4)
    rules = {spec.id: by_rule_of(spec, 1.0) for spec in query.plan.operators}
    found = reordered(msgspec.structs.replace(query, statistics=rules))
    assert (found.plan, found.text) == (None, "the costs of its operators have not been measured yet; try again in a minute")
