"""Queries whose windows are dealt to several instances heal like others. A splitter by turns has no state, so its crash loses nothing. One
that asks a dealer learns from the instances which of them has which windows.
"""

from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from sbon.dealing.dealer import Silent
from sbon.errors import SbonError
from sbon.operators import asking_splitter
from tests.examples import seeds
from tests.system.simulation.test_recovery import HOME, MIDDLE, OTHER, PER_SECOND, ROWS, SINK, SOURCE, Story

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


@pytest.mark.soak
def test_a_crashed_splitter_gives_each_instance_its_own_rows_again_and_nothing_twice(tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Dealt(tmp_path, PATTERN)
    left = story.without_movable(SOURCE)
    assert {"source", "exchange"} <= left <= {"source", "exchange", "map"}
    story.crash(SOURCE)

    assert len(undisturbed) > 20
    assert story.answers() == undisturbed


@pytest.mark.parametrize("tag", seeds([], ["match", "merge"]))
def test_a_crashed_instance_or_merger_gives_no_match_twice(tag: str, tmp_path: Path, undisturbed: list[list[str]]) -> None:
    story = Dealt(tmp_path, PATTERN)
    story.move(tag)
    story.crash(MIDDLE, back_s=None)

    found = [tuple(row) for row in story.answers()]
    assert len(set(found)) == len(found)
    assert len(undisturbed) // 2 < len(found)


@pytest.mark.usefixtures("erratic")
@pytest.mark.parametrize("tag", seeds(["match"], ["merge"]))
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


@pytest.mark.soak
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


# ------------------------------------------------------------------------------------------------------- many crashes

COUNTED = """WITH both AS (SELECT ts, v FROM r UNION ALL SELECT ts, v FROM other) SELECT t, n FROM both MATCH_RECOGNIZE (ORDER BY ts
    MEASURES FIRST(ts) AS t, COUNT(*) AS n AFTER MATCH SKIP TO NEXT ROW PATTERN (a b*) WITHIN INTERVAL '500 milliseconds'
    DEFINE b AS TRUE) AS m"""
"""Counts the rows of each window: a row that is lost, repeated or dealt otherwise after a crash makes an answer wrong."""
STATELESS = {"source", "map", "union", "split", "sink"}


def counted(sources: int) -> Counter[tuple[float, int]]:
    """Returns the right answers: the time of each row in seconds, and the number of its place's and later rows within half a second."""
    times = sorted(place / PER_SECOND for place in range(ROWS) for _ in range(sources))
    return Counter((at, bisect_left(times, at + 0.5 - 1e-9) - place) for place, at in enumerate(times))


def disturbed(folder: Path, seed: int) -> str:
    """Runs a query whose hosts move and crash at random. Returns what is wrong; empty if nothing is."""
    random = Random(seed)
    sources = random.choice([1, 2])
    story = Asked(folder, COUNTED if sources == 2 else COUNTED.replace(" UNION ALL SELECT ts, v FROM other", ""))
    world, record = story.world, story.record
    end_s = world.now + 16.0
    while world.now < end_s:
        world.run(random.uniform(0.1, 1.5))
        movable = [one for one, spec in record.specs.items() if spec.pinned is None]
        if random.random() < 0.5:
            operator, there = random.choice(movable), random.choice([SINK, MIDDLE, OTHER])
            with suppress(SbonError):
                world.ask(record.nodes[operator], "migrate", operator=operator, node=world.nodes[there])
        else:
            kind = random.choice(["split", "split", "split", "match", "merge"])
            operator = random.choice([one for one, spec in record.specs.items() if spec.params.__struct_config__.tag == kind])
            host = list(world.nodes).index(record.nodes[operator])
            if host not in (HOME, SINK) and world.agents[host] is not None and not record.lost:
                world.kill(host, silent=random.random() < 0.3)
                world.run(random.choice([0.2, 2.0, 7.0]))
                world.start(host)
    lines = story.answers()
    found = Counter((float(at[17:].rstrip("Z").split("+")[0]), int(rows)) for at, rows in lines)
    done = record.health.healing.account.history
    lost = {str(record.specs[one].params.__struct_config__.tag) for recovery in done for one in recovery.go_on}
    is_exact = all(recovery["exact"] for recovery in record.row(None)["lost"])
    world.close()
    story_of = f"{sources} sources, {len(done)} recoveries of {lost}"
    if lost <= STATELESS and not is_exact:
        return f"{story_of}: not exact"
    wrong, missing = found - counted(sources), counted(sources) - found
    return f"{story_of}: wrong answers {wrong}, missing answers {missing}" if is_exact and (wrong or missing) else ""


@pytest.mark.soak
@pytest.mark.usefixtures("erratic")
@pytest.mark.parametrize("seed", range(200))
def test_a_splitter_loses_nothing_and_a_query_says_what_other_crashes_cost(tmp_path: Path, seed: int) -> None:
    assert not disturbed(tmp_path, seed)
