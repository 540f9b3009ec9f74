"""Digests of durations: rows by bucket, recent and total."""

import pytest

from sbon.digest import RECENT_S, Digest, RecentDigest


def test_every_row_of_an_addition_counts():
    digest = Digest()
    digest.add(1.0, 99)
    digest.add(1000.0, 1)

    assert (digest.rows, sum(rows for _, rows in digest.buckets)) == (100, 100)
    assert digest.quantile(0.98) == pytest.approx(1.0, rel=0.02)
    assert digest.quantile(1.0) == pytest.approx(1000.0, rel=0.02)


def test_total_keeps_what_recent_figures_have_forgotten():
    digest = RecentDigest()
    for number in range(8):
        digest.add(number * 0.7 * RECENT_S, 5.0, rows=10)

    assert digest.total.rows == 80
    told = digest.told(8 * 0.7 * RECENT_S)
    assert told["rows"] < 80
    assert sum(rows for _, rows in told["buckets"]) == 80
