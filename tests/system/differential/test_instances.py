"""Random queries give the same rows in the same order with any number of instances."""

from pathlib import Path

import pytest

from sbon.query.instances import NO_KEYS
from sbon_testbed.random_queries.data import make_data
from sbon_testbed.random_queries.parts import QUERIES
from tests.examples import seeds
from tests.system.differential.run import Overlay, queries_of

SEEDS = range(1, 5)
INTERLEAVED = ("interval_join", "union_all", "join_of_aggregates")
"""Shapes whose answers are ordered by when rows of two streams meet. A FULL JOIN is one too: it is a union of two joins."""
DEALT_MIN = 20
"""Least number of a seed's queries that have an operator with keys."""


@pytest.mark.parametrize(("seed", "step"), seeds([(1, 6)], [(seed, 1) for seed in SEEDS]))
def test_any_number_of_instances_gives_the_answers_of_one_in_its_order(seed: int, step: int, tmp_path: Path) -> None:
    data = make_data(seed)
    queries = queries_of(data, range(0, QUERIES, step))
    found = {}
    for instances in (1, 2 + seed % 2, 8):
        folder = tmp_path / str(instances)
        folder.mkdir()
        overlay = Overlay(data, folder)
        found[instances] = overlay.answers(queries, instances)
        overlay.close()
    one = found.pop(1)
    for instances, answers in found.items():
        dealt = 0
        for number, (query, expected, answer) in enumerate(zip(queries, one, answers, strict=True)):
            if NO_KEYS in answer.error:
                continue
            dealt += 1
            where = f"seed {seed}, query {number} ({query.shape}) with {instances} instances: {query.ours}"
            rows, wanted = ([repr(row) for row in rows] for rows in (answer.rows, expected.rows))
            assert answer.error == expected.error, where
            is_interleaved = query.shape in INTERLEAVED or "FULL JOIN" in query.ours
            assert (sorted(rows) == sorted(wanted)) if is_interleaved else (rows == wanted), where
        assert dealt >= DEALT_MIN // step, (instances, dealt)
