"""Costs of recovery while nothing fails: ratios of alternating runs, and bytes in virtual time."""

import pytest

from sbon.errors import UsageError
from sbon_testbed.bench.calm import BYTES_PER_S_MAX, QUERIES, bytes_per_s, measure, show, summary


def test_ratios_are_medians_of_pairs_of_runs() -> None:
    """If the machine slows down, it slows down both runs of a pair."""
    without, healed = [(1.0, 2.0), (2.0, 4.0), (9.0, 2.0)], [(1.25, 2.0), (2.5, 4.4), (3.0, 2.2)]
    assert summary(without, healed, 1000) == {
        "rows_per_s_without": 500,
        "rows_per_s": 400,
        "throughput_ratio": 0.8,
        "cpu_ratio": 1.1,
    }


def test_a_query_pays_for_its_keepers_and_an_idle_overlay_nothing() -> None:
    idle = bytes_per_s(True, 0) - bytes_per_s(False, 0)
    query = (bytes_per_s(True, QUERIES) - bytes_per_s(False, QUERIES) - idle) / QUERIES
    assert idle <= 1.0
    assert 0 < query <= BYTES_PER_S_MAX, "a query has keepers, so 0 would mean that their bytes are not counted"


@pytest.mark.parametrize("numbers", [(10, 3), (1_000_000, 0)])
def test_numbers_that_are_too_small_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        measure(*numbers)


def test_the_table_has_the_goals(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"idle_bytes_per_s": 0.2, "query_bytes_per_s": 10.4, "rows": 1_000_000, "runs": 3}
    show({"calm": {**one, **summary([(1.0, 2.0)], [(1.0, 2.0)], 1_000_000)}})
    told = capsys.readouterr().out
    assert "10 bytes/s" in told
    assert "0.99" in told
    assert "1,000,000 rows/s with recovery" in told
