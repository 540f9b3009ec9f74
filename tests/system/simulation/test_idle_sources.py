"""A running but silent source holds back windows and joins, unless its option says after which time it counts as idle."""

import pytest

from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE busy (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1 second') WITH (connector = 'datagen', nodes = '{busy}',
    rows_per_second = 100, seed = 1, fields.key.max = 9);
CREATE SOURCE silent (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1 second') WITH (connector = 'datagen',
    nodes = '{silent}', rows_per_second = 0.01, seed = 2, disorder = '{disorder}', fields.key.max = 9{option});
"""
COUNTED = """SELECT window_start, count(*) AS n FROM TUMBLE((SELECT ts, key FROM busy UNION ALL SELECT ts, key FROM silent), ts,
    INTERVAL '1 second') GROUP BY window_start"""
JOINED = """SELECT b.ts, b.key FROM busy AS b LEFT JOIN silent AS s ON b.key = s.key
    AND s.ts BETWEEN b.ts AND b.ts + INTERVAL '1 second'"""
SETTINGS = {"optimiser": {"enabled": False}, "links": {"window_batches": 8}}
IDLE = ", idle_after = '5 seconds'"


def run(sql: str, option: str, disorder: str = "0 s", ahead_rows_max: int = 4_000_000) -> tuple[World, list[tuple[object, ...]]]:
    """Returns the answers after 25 s; the silent source gives its first row at once and the second after 100 s."""
    world = settled_world(3, seed=3, settings=SETTINGS | {"engine": {"ahead_rows_max": ahead_rows_max}})
    sources = SOURCES.format(busy=world.nodes[0], silent=world.nodes[1], disorder=disorder, option=option)
    tail = world.tail(world.submit(sources + sql, at=2), 2)
    world.run(25)
    return world, tail.rows


@pytest.mark.parametrize("sql", [COUNTED, JOINED])
def test_a_silent_source_holds_answers_back_until_it_is_idle(sql: str) -> None:
    _, held = run(sql, "")
    assert len(held) <= (100 if sql == JOINED else 1), "the watermark of the silent source must stay at its only row"
    _, flowing = run(sql, IDLE)
    assert len(flowing) >= 16 * (100 if sql == JOINED else 1), "answers must be about five seconds, the delay and a window behind the clock"


def test_an_idle_source_lets_go_of_the_other_side_of_a_join() -> None:
    """At most 1,000 rows, those of ten seconds, may wait for the silent source; without idleness it would hold the busy source back."""
    world, rows = run(JOINED, "", ahead_rows_max=1000)
    assert _sent(world) < 1800
    held = [str(row["reason"]) for agent in range(3) for row in world.ask(agent, "operators")]
    assert any("waits until the other input has caught up" in reason for reason in held)
    world, rows = run(JOINED, IDLE, ahead_rows_max=1000)
    assert _sent(world) > 2400
    assert len(rows) > 1600


def test_rows_that_come_behind_an_idle_watermark_are_late_and_counted() -> None:
    world, rows = run(COUNTED, IDLE, disorder="60 s")
    world.run(80)  # the second row of the silent source comes at 100 s, with a time up to 60 s earlier
    late = sum(int(row["late_rows"]) for agent in range(3) for row in world.ask(agent, "operators"))
    assert late == 1
    assert len({row[0] for row in rows}) == len(rows)


def _sent(world: World) -> int:
    return max(int(row["rows_out"]) for agent in range(3) for row in world.ask(agent, "operators") if row["kind"] == "source")
