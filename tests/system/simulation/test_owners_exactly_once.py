"""Keepers take queries over while other faults happen: rows are neither lost nor repeated."""

import pytest

from sbon_testbed.exactly_once.story import run_seed
from tests.examples import seeds


@pytest.mark.parametrize(
    "seed",
    seeds(
        [27], [685, 371, 531, 77, 125, 3062, 346, 497, 1152, 556, 621, 704, 866, 945, 1030, 1240, 1270, 1598, 1738, 1753, 1855, 1970, 1985]
    ),
)
def test_rows_are_those_of_a_run_on_one_node_though_queries_change_their_owners(seed: int) -> None:
    assert run_seed(seed, take_over=True).problem == ""
