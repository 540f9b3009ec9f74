"""Sessions, joins, first rows, sketches and patterns move between agents with their state: the answers equal those of a run on one node."""

from collections.abc import Callable

import pytest

from sbon_testbed.exactly_once.story import make_world
from tests.examples import seeds
from tests.worlds import moves_in

SOURCES = """
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{left}',
    rows_per_second = 300, rows = 1500, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{right}',
    rows_per_second = 300, rows = 1500, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
"""
SESSIONS = """
SELECT v.start, v.key, v.n, v.high, r.value, r.ts
FROM (SELECT window_start AS start, window_end AS t, key, count(*) AS n, approx_percentile(value, 0.9) AS high
      FROM SESSION(l, ts, INTERVAL '100 ms') GROUP BY window_start, window_end, key) AS v
LEFT JOIN r ON v.key = r.key AND r.ts BETWEEN v.t - INTERVAL '50 ms' AND v.t;
"""
JOINED = """
SELECT window_start, x.key, x.value, y.value AS other FROM HOP(l, ts, INTERVAL '100 ms', INTERVAL '200 ms') AS x
LEFT JOIN HOP(r, ts, INTERVAL '100 ms', INTERVAL '200 ms') AS y ON x.key = y.key AND x.window_start = y.window_start;
"""
FIRST_ROWS = """
SELECT DISTINCT window_end, high, key FROM (
    SELECT window_end, key, max(value) AS high, approx_count_distinct(value) AS values
    FROM HOP(l, ts, INTERVAL '250 ms', INTERVAL '1 s') GROUP BY window_end, key ORDER BY values DESC, high LIMIT 5
);
"""
DEDUPLICATED = """
WITH b AS (SELECT * FROM l UNION ALL SELECT * FROM r)
SELECT 'first' AS what, key, value FROM (SELECT DISTINCT ON (window_start, key) * FROM TUMBLE(b, ts, INTERVAL '300 ms')) UNION ALL
SELECT 'paused', key, value FROM (SELECT DISTINCT ON (window_start, key) * FROM SESSION(b, ts, INTERVAL '80 ms')) UNION ALL
SELECT 'last', key, value FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, key ORDER BY ts DESC) AS n FROM TUMBLE(b, ts, INTERVAL '300 ms')
) WHERE n <= 2;
"""
PATTERNS = """
WITH b AS (SELECT * FROM l UNION ALL SELECT * FROM r)
SELECT 'valley' AS what, key, m.n, m.low FROM b MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY ts MEASURES COUNT(*) AS n, LAST(down.value) AS low
    PATTERN (down+ up+) WITHIN INTERVAL '400 ms' DEFINE down AS value < PREV(value), up AS value > PREV(value)) AS m UNION ALL
SELECT 'above', key, m.n, m.low FROM b MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY ts MEASURES MATCH_NUMBER() AS n, c.value AS low ALL ROWS PER MATCH AFTER MATCH SKIP TO NEXT ROW
    PATTERN (a b{2,} c) WITHIN INTERVAL '600 ms' DEFINE b AS b.value > a.value, c AS c.value < a.value) AS m UNION ALL
SELECT 'never', key, m.n, m.low FROM b MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY ts MEASURES COUNT(*) AS n, FIRST(value) AS low ONE ROW PER MATCH SHOW TIMEOUT MATCHES
    PATTERN (a b* c) WITHIN INTERVAL '300 ms' DEFINE a AS value > 0.5, b AS value > 0.2, c AS value > 100) AS m;
"""


@pytest.fixture(scope="module")
def alone() -> Callable[[str], list[str]]:
    """Returns a function that gives a query's answers on one node; each is computed once."""
    known: dict[str, list[str]] = {}

    def answers(query: str) -> list[str]:
        if query not in known:
            known[query], _ = run(query, nodes=1, seed=1)
        return known[query]

    return answers


def run(query: str, nodes: int, seed: int) -> tuple[list[str], int]:
    """Returns the rows of the sink, sorted, and the number of migrations."""
    world = make_world(nodes, seed)
    left, right = world.nodes[1 % nodes], world.nodes[2 % nodes]
    tail = world.tail(world.submit(SOURCES.format(left=left, right=right) + query))
    faults = moves_in(world, seed)
    while not tail.finished and world.now < 200:
        faults.run(0.3)
    assert tail.finished, f"seed {seed}: the query has not ended after {world.now:.0f} virtual seconds"
    moves = sum(record["committed"] for agent in world.agents for record in agent.monitoring.measuring.migrations)
    return sorted(map(str, tail.rows)), moves


@pytest.mark.parametrize(
    "query",
    [SESSIONS, FIRST_ROWS, JOINED, DEDUPLICATED, PATTERNS],
    ids=["sessions and left joins", "first rows and sketches", "window joins", "deduplication", "patterns"],
)
@pytest.mark.parametrize("numbers", seeds([[1]], [[0, 1]]))
def test_answers_are_those_of_a_run_on_one_node(query: str, numbers: list[int], alone: Callable[[str], list[str]]) -> None:
    moves = 0
    for seed in numbers:
        rows, moved = run(query, nodes=4, seed=seed)
        assert rows == alone(query), f"seed {seed}"
        moves += moved
    assert len(alone(query)) > 50
    assert moves >= len(numbers)
