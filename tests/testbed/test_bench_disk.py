"""`sbon bench disk`: each operator answers all keys with most of its state on disk."""

import pytest

from sbon.errors import StateError
from sbon_testbed.bench.disk import OPERATORS, measure


def test_figures_of_the_operators():
    told: list[str] = []
    result = measure(10_000, 4_000, 500, "text", list(OPERATORS), [0.3], told.append, "")
    found = {one["operator"]: one for one in result["runs"]}
    assert list(found) == list(OPERATORS)
    assert found["tumbling"]["answers"] == found["deduplication"]["answers"] == 10_000 < found["hopping"]["answers"]
    for one in found.values():
        assert one["disk_mb"] > 0.1
        assert min(one["rows_per_s"], one["new_keys_per_s"], one["rows_per_s_with_end"]) > 0
    assert told[0] == "tumbling: 10,000 keys, 4,000 rows, 0.3 MB"


def test_a_budget_below_one_batch_is_refused():
    with pytest.raises(StateError, match="cannot hold the states of one batch of 500 keys"):
        measure(1_000, 1_000, 500, "int", ["tumbling"], [0.01], lambda what: None, "")
