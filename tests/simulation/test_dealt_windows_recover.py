"""Queries whose windows are dealt to several instances heal like others. A splitter by turns has no state, so its crash loses nothing. One
that asks a dealer fails after its crash: it cannot know any more which instance has which windows.
"""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from sbon.dealing.dealer import Silent
from sbon.operators import asking_splitter
from sbon.supervision.record import QueryState
from tests.simulation.test_recovery import MIDDLE, SINK, SOURCE, Story

PATTERN = """SELECT began, n FROM r MATCH_RECOGNIZE (ORDER BY ts, v MEASURES FIRST(v) AS began, COUNT(*) AS n
    PATTERN (a b+ c) WITHIN INTERVAL '500 milliseconds' DEFINE a AS v % 7 = 3, b AS v % 7 <> 3, c AS v > a.v + 4) AS m"""


class Dealt(Story):
    """The story of a pattern whose windows are dealt to three instances."""

    OPTIONS = ", instances = 3, dealing = 'window', turn = '300 milliseconds'"


class Asked(Story):
    """The story of a pattern whose windows are dealt to three instances as a dealer says that changes its mind."""

    OPTIONS = ", instances = 3, dealing = 'window', turn = '300 milliseconds', dealer = 'round-robin'"


class Erratic(Silent):
    """Deals at random."""

    asked = 0

    def deal(self, at_s: float, closes_s: float) -> int:
        Erratic.asked += 1
        return Random(Erratic.asked).randrange(self.setting.instances)


@pytest.fixture
def erratic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_splitter, "dealer_of", lambda _, setting, records: Erratic(setting, records))
    Erratic.asked = 0


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


@pytest.mark.usefixtures("erratic")
@pytest.mark.parametrize("tag", ["match", "merge"])
def test_a_crash_of_an_instance_or_the_merger_gives_no_wrong_match_whatever_the_dealer_says(
    tag: str, tmp_path: Path, undisturbed: list[list[str]]
) -> None:
    story = Asked(tmp_path, PATTERN)
    story.move(tag)
    story.crash(MIDDLE, back_s=None)

    found = [(int(began), int(rows)) for began, rows in story.answers()]
    # A match that is lost lets another one begin: each start has a match of 8 rows, and the next start behind it is 14 rows later.
    assert all(began % 7 == 3 and rows == 8 for began, rows in found)
    assert all(after - before >= 14 for (before, _), (after, _) in pairwise(found))
    assert len(undisturbed) - 4 <= len(found)
    assert Erratic.asked > 10


def test_after_a_crash_of_a_splitter_that_asks_a_dealer_the_query_says_so_and_gives_no_wrong_match(
    tmp_path: Path, undisturbed: list[list[str]]
) -> None:
    story = Asked(tmp_path, PATTERN)
    assert "split" in story.without_movable(SOURCE)
    story.crash(SOURCE)
    story.world.run_until(lambda: story.record.state is QueryState.DEGRADED, 20.0, "the splitter has failed")
    story.world.run(20.0)

    assert "a crash has taken the splitter that knew which instance has which windows" in story.record.row(None)["reason"]
    [file] = story.world.data_dir_of(SINK).rglob("k.csv")
    found = [line.split(",") for line in file.read_text().splitlines()[1:]]
    assert 0 < len(found) < len(undisturbed)
    assert found == undisturbed[: len(found)]
