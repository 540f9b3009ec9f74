"""Tests when another order of a running query's operators is searched for, and which order is better."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbon.planning.ordering import Ordering
from sbon.planning.reordering import Reordered, carries_more
from sbon.planning.resizing import OFF_S
from sbon.query.plan import Plan
from tests.planning.test_sizing import planned

WINDOW = "SELECT window_end, k, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end, k"
PLAN = planned(WINDOW)[0]
(SOURCE,) = (link.source for link in PLAN.links[:1])
EXPECTED = PLAN.links[0].rate_rows_per_s
OTHER = cast(Plan, "another order")


def searches(ordering: Ordering, rates: list[float], every_s: float = 10.0, begin_s: float = 0.0) -> list[float]:
    """Returns the instants at which a search begins if the source has these rates."""
    found = []
    for number, rate in enumerate(rates):
        reports: Any = {SOURCE: SimpleNamespace(rows_per_s_out=rate)}
        if ordering.look(reports, begin_s + number * every_s):
            found.append(begin_s + number * every_s)
            ordering.looked(Reordered(None, "no other order of its operators is better"))
    return found


def test_a_rate_that_has_left_what_was_expected_for_a_minute_leads_to_one_search() -> None:
    ordering = Ordering(PLAN)
    twice = 2 * EXPECTED
    assert searches(ordering, [EXPECTED * 1.1] * 20) == []
    assert searches(ordering, [twice] * 4 + [EXPECTED] + [twice] * 5 + [EXPECTED]) == [], "the rate was never off for a whole minute"
    assert searches(ordering, [twice] * 30, begin_s=1000.0) == [1000.0 + OFF_S]
    assert searches(ordering, [EXPECTED] * 30, begin_s=2000.0) == [2000.0 + OFF_S]


def test_nothing_is_looked_for_before_all_sources_have_told() -> None:
    assert not any(Ordering(PLAN).look({}, now) for now in (0.0, OFF_S, 2 * OFF_S))


def test_a_query_says_that_another_order_carries_what_comes_until_none_does() -> None:
    ordering = Ordering(PLAN)
    ordering.looked(Reordered(OTHER, "two joins exchanged to carry 2 times what comes"))
    assert ordering.better is not None
    assert "`sbon replan --order`" in ordering.reason
    ordering.outlook = "it gets another one by itself"
    assert ordering.reason.endswith("it gets another one by itself")
    ordering.looked(Reordered(None, "no other order of its operators is better"))
    assert ordering.reason == ""


@pytest.mark.parametrize(("present", "other", "more"), [(1.0, 1.2, True), (1.0, 1.19, False), (1.1, 9.0, False), (0.5, 0.7, True)])
def test_an_order_that_carries_what_comes_with_some_room_is_as_good_as_any(present: float, other: float, more: bool) -> None:
    assert carries_more(present, other) is more
