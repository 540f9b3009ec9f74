"""Queries whose windows are dealt to several instances heal like others. A splitter by turns has no state, so its crash loses nothing. One
that asks a dealer learns from the instances which of them has which windows.
"""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from sbon.dealing.dealer import Silent
from sbon.operators import asking_splitter
from tests.simulation.test_recovery import MIDDLE, OTHER, SOURCE, Story

PATTERN = """SELECT began, n FROM r MATCH_RECOGNIZE (ORDER BY ts, v MEASURES FIRST(v) AS began, COUNT(*) AS n
    PATTERN (a b+ c) WITHIN INTERVAL '500 milliseconds' DEFINE a AS v % 7 = 3, b AS v % 7 <> 3, c AS v > a.v + 4) AS m"""


BOTH = PATTERN.replace("FROM r ", "FROM both ").replace(
    "SELECT", "WITH both AS (SELECT ts, v FROM r UNION ALL SELECT ts, v - 400 + 3 AS v FROM other) SELECT", 1
)


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


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Returns the answers of one instance to two sources without a crash."""
    return Story(tmp_path_factory.mktemp("both"), BOTH).answers()


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


@pytest.mark.usefixtures("erratic")
def test_crashes_of_a_splitter_and_its_source_lose_nothing_whatever_the_dealer_says(tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Asked(tmp_path, PATTERN)
    assert "split" in story.without_movable(SOURCE)
    story.crash(SOURCE)
    story.world.run(3.0)
    story.crash(SOURCE, silent=True)

    assert story.answers() == undisturbed
    assert [lost["exact"] for lost in story.record.row(None)["lost"]] == [True, True]
    assert Erratic.asked > 10


@pytest.mark.usefixtures("erratic")
def test_a_splitter_behind_a_union_is_made_elsewhere_and_loses_nothing(tmp_path: Path, both: list[list[str]]) -> None:
    story = Asked(tmp_path, BOTH)
    story.move("union")
    story.move("split")
    story.crash(MIDDLE, back_s=None)

    assert story.answers() == both
    assert [lost["exact"] for lost in story.record.row(None)["lost"]] == [True]


@pytest.mark.usefixtures("erratic")
def test_a_splitter_learns_from_an_instance_that_has_learnt_from_it(tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Asked(tmp_path, PATTERN)
    story.without_movable(SOURCE)
    story.move("match", OTHER)
    story.crash(OTHER)
    story.world.run(1.0)
    story.crash(SOURCE)

    found = [(int(began), int(rows)) for began, rows in story.answers()]
    assert all(began % 7 == 3 and rows == 8 for began, rows in found)
    assert all(after - before >= 14 for (before, _), (after, _) in pairwise(found))
    assert len(undisturbed) - 4 <= len(found)
