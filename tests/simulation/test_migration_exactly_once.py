"""Migrations under load lose and repeat nothing: every sink's rows equal those of the same query run on one node.

Every seed is another overlay with other troubles; see `testbed.exactly_once.story`. The first words of a failure message are the seed.
`sbon testbed exactly-once --seeds 2000` runs more of them.
"""

from collections.abc import Callable

import pytest

from testbed.backend import Tail
from testbed.exactly_once.command import summary
from testbed.exactly_once.story import BEGIN, Outcome, Rows, problem_of, rows_on_one_node, tell

SEEDS = 120
SEEDS_PER_TEST = 10


def test_one_node_gives_every_query_rows():
    assert all(len(rows) > 200 for rows in rows_on_one_node())


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_sinks_have_the_rows_of_a_run_on_one_node(first: int):
    outcomes = [tell(seed) for seed in range(first, first + SEEDS_PER_TEST)]

    assert [outcome.problem for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.committed for outcome in outcomes) >= SEEDS_PER_TEST, "hardly anything has moved"


@pytest.mark.parametrize("seed", [1099, 1169])
def test_cuts_that_follow_each_other_for_half_a_minute_lose_nothing_where_answers_wait_for_longer(seed: int):
    assert tell(seed).problem == ""


def test_an_operator_stays_beside_a_neighbour_that_is_cut_off_and_will_come_back():
    assert [tell(seed).problem for seed in (1676, 1909)] == ["", ""]


@pytest.mark.parametrize(
    ("change", "told"), [(lambda rows: rows[:-1], "1 of 611 rows missing, 0 too many"), (lambda rows: (*rows, rows[7]), "1 too many")]
)
def test_a_row_that_is_lost_or_comes_twice_is_told(change: Callable[[Rows], Rows], told: str):
    tail = Tail("q", rows=list(change(rows_on_one_node()[0])), finished=True)

    problem = problem_of(5, [0], [tail], [BEGIN])

    assert problem.startswith("seed 5, query 0: ")
    assert told in problem


def test_the_figures_name_the_seeds_that_went_wrong():
    outcomes = [Outcome(3, "seed 3, query 0: 1 of 9 rows missing", 1, 2, 3, 8), Outcome(4, "", 1, 0, 0, 9)]

    result = summary(outcomes, 3, 1.0)

    assert (result["seeds"], result["wrong"], result["migrations_committed"], result["rows"]) == (2, 1, 2, 17)
    assert result["problems"] == ["seed 3, query 0: 1 of 9 rows missing"]
