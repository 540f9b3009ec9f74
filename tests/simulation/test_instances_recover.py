"""Queries with several instances heal like others: what ran on a crashed host runs again, with its part of the keys."""

from pathlib import Path

import pytest

from tests.simulation.test_recovery import MIDDLE, SOURCE, Story

BY_KEY = "SELECT window_start, v % 5 AS k, COUNT(*) AS n, SUM(v) AS s FROM TUMBLE(r, ts, INTERVAL '1 second') GROUP BY window_start, v % 5"


class Dealt(Story):
    """The story of a query with three instances of its window."""

    OPTIONS = ", instances = 3"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The answers without a crash, of one instance."""
    return Story(tmp_path_factory.mktemp("undisturbed"), BY_KEY).answers()


def test_a_crashed_exchange_gives_each_instance_its_own_rows_again_and_nothing_twice(tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Dealt(tmp_path, BY_KEY)
    here = story.world.nodes[SOURCE]
    for operator, spec in story.record.specs.items():
        if spec.pinned is None and story.record.nodes[operator] == here:
            assert story.world.ask(here, "migrate", operator=operator, node=story.world.nodes[MIDDLE])["committed"]
            story.world.run(1.0)
    left = {spec.params.__struct_config__.tag for operator, spec in story.record.specs.items() if story.record.nodes[operator] == here}
    assert left == {"source", "exchange"}
    story.crash(SOURCE)

    assert story.answers() == undisturbed


def test_a_crashed_merge_gives_no_answer_twice_and_none_with_fewer_rows(tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Dealt(tmp_path, BY_KEY)
    merge = story.move("merge")
    figures = story.world.agents[MIDDLE].operators.instances[merge].figures  # type: ignore[union-attr]
    before = figures.rows_out
    story.world.run_until(lambda: figures.rows_out > before, 5.0, "it has just given answers, which are on their way")
    story.crash(MIDDLE, back_s=None)

    found = story.answers()
    assert len({(start, key) for start, key, _, _ in found}) == len(found)
    assert all(row in undisturbed for row in found)
    assert len(found) >= len(undisturbed) - 15
