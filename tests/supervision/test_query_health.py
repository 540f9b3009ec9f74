"""The table of operators' conditions: each condition after each piece of news, and the reasons that a query gives."""

from itertools import product

import pytest

from sbon.supervision.health import GONE, LOST, TABLE, Condition, Health, News

OF_HOST = {News.HOST_FAILED: Condition.AWAY, News.HOST_LEFT: Condition.LEFT}
SAID = {
    News.RUNS: Condition.WELL,
    News.STALLS: Condition.STALLED,
    News.IDLES: Condition.IDLE,
    News.GAVE_UP_LINK: Condition.CUT_OFF,
    News.FAILED: Condition.FAILED,
    News.MISSING: Condition.MISSING,
}
WAYS = {condition: news for news, condition in (SAID | OF_HOST).items()}
"""News that leads to each condition from the beginning."""


@pytest.mark.parametrize(("before", "news"), list(product(Condition, News)))
def test_every_pair_leads_where_it_should(before, news):
    health = Health()
    health.heard("one", WAYS[before], "before")
    health.heard("one", news, "after")

    stays = before in GONE and news in OF_HOST
    expected = before if stays else (SAID | OF_HOST)[news]
    assert health.of("one") is expected
    assert health.of("another") is Condition.WELL
    told = [] if expected is Condition.WELL else ["before" if stays else "after"]
    assert health.reasons == told
    assert health.is_degraded == (expected not in (Condition.WELL, Condition.STALLED))


def test_table_has_every_pair():
    assert set(TABLE) == set(product(Condition, News))


def test_stalled_sinks_are_told_last_and_forgotten_operators_not_at_all():
    health = Health()
    health.heard("a", News.STALLS, "a waits")
    health.heard("c", News.HOST_FAILED, "c was on x")
    health.heard("b", News.IDLES, "b does nothing")

    assert health.reasons == ["b does nothing", "c was on x", "a waits"]
    assert health.those(LOST) == ["c"]
    health.forget("c")
    assert health.those(LOST) == []
