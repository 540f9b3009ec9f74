"""Queries whose windows are dealt to several instances heal like others. A splitter has no state, so its crash loses nothing."""

from pathlib import Path

import pytest

from tests.simulation.test_recovery import MIDDLE, SOURCE, Story

PATTERN = """SELECT began, n FROM r MATCH_RECOGNIZE (ORDER BY ts, v MEASURES FIRST(v) AS began, COUNT(*) AS n
    PATTERN (a b+ c) WITHIN INTERVAL '500 milliseconds' DEFINE a AS v % 7 = 3, b AS v % 7 <> 3, c AS v > a.v + 4) AS m"""


class Dealt(Story):
    """The story of a pattern whose windows are dealt to three instances."""

    OPTIONS = ", instances = 3, dealing = 'window', turn = '300 milliseconds'"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Returns the answers of one instance without a crash."""
    return Story(tmp_path_factory.mktemp("undisturbed"), PATTERN).answers()


def test_a_crashed_splitter_gives_each_instance_its_own_rows_again_and_nothing_twice(tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Dealt(tmp_path, PATTERN)
    left = story.without_movable(SOURCE)
    assert {"source", "exchange"} <= left <= {"source", "exchange", "map"}
    story.crash(SOURCE)

    assert len(undisturbed) > 20
    assert story.answers() == undisturbed


@pytest.mark.parametrize("tag", ["match", "merge"])
def test_a_crashed_instance_or_merger_gives_no_match_twice(tag: str, tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Dealt(tmp_path, PATTERN)
    story.move(tag)
    story.crash(MIDDLE, back_s=None)

    found = [tuple(row) for row in story.answers()]
    assert len(set(found)) == len(found)
    assert len(undisturbed) // 2 < len(found)
