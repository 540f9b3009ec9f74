"""Queries that express the same in different ways share operators, and each gets its own columns."""

from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE orders (ts TIMESTAMP, item BIGINT, amount DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{a}', rows_per_second = 40, seed = 5, fields.item.min = 0, fields.item.max = 4);
CREATE SOURCE prices (ts TIMESTAMP, item BIGINT, price DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{b}', rows_per_second = 10, seed = 6, fields.item.min = 0, fields.item.max = 4)
"""
ONE = """
SELECT o.ts, o.item, amount, price FROM orders AS o JOIN prices AS p
ON o.item = p.item AND p.ts BETWEEN o.ts - INTERVAL '2 seconds' AND o.ts WHERE amount >= 0.2 AND amount <= 0.9 AND price > 0.1
"""
OTHER = """
SELECT cost AS c, wanted.amount AS a, wanted.item AS i, wanted.ts AS t
FROM (SELECT item, price AS cost, ts FROM prices WHERE NOT price <= 0.1) AS offer JOIN orders AS wanted USING (item)
WHERE wanted.ts BETWEEN offer.ts AND offer.ts + INTERVAL '2000 ms' AND wanted.amount BETWEEN 0.2 AND 0.9
"""


def make_world(seed: int) -> World:
    world = settled_world(5, seed=seed, settings={"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.2}})
    world.submit(SOURCES.format(a=world.nodes[1], b=world.nodes[2]))
    world.run(2.0)
    return world


def test_a_join_the_other_way_round_is_shared_and_each_author_gets_the_columns_asked_for():
    world = make_world(21)
    one = world.submit(ONE, at=0)
    tails = [world.tail(one, 0)]
    world.run_until(lambda: len(tails[0].rows) >= 20, 60, "the first has answers")

    other = world.submit(OTHER, at=3)
    tails.append(world.tail(other, 3))
    world.run_until(lambda: len(tails[1].rows) >= 200, 60, "the second has answers")
    world.run(3.0)

    row = next(row for row in world.ask(3, "queries") if row["id"] == other)
    assert {operator["kind"] for operator in row["operators"] if not operator["reused"]} == {"sink"}, "only the sink is new"
    joins = [row for number in range(5) for row in world.ask(number, "operators") if row["kind"] == "join"]
    assert [join["queries"] for join in joins] == [sorted([one, other])]
    assert [tail.columns for tail in tails] == [("ts", "item", "amount", "price"), ("c", "a", "i", "t")]
    first = {tuple(row) for row in tails[0].rows}
    late = [(t, i, a, c) for c, a, i, t in tails[1].rows]
    assert set(late) <= first, "the same pairs, under other names"
    assert len(set(late)) == len(late)


def test_a_query_over_rows_that_are_there_from_the_start_reads_all_of_them():
    world = make_world(23)
    world.submit(
        f"CREATE SOURCE listed (n BIGINT) WITH (connector = 'datagen', nodes = '{world.nodes[1]}', rows_per_second = 'max', rows = 20000,"
        " batch_rows_max = 5, fields.n.kind = 'sequence')"
    )
    first = world.submit("SELECT n FROM listed", at=0)
    tails = [world.tail(first, 0)]
    world.run_until(lambda: len(tails[0].rows) > 100, 60, "the first is in the midst of its rows")
    assert not tails[0].finished

    tails.append(world.tail(world.submit("SELECT n FROM listed", at=3), 3))
    world.run_until(lambda: all(tail.finished for tail in tails), 120, "both have ended")
    assert [[row[0] for row in tail.rows] for tail in tails] == [list(range(20_000))] * 2


def test_a_query_that_asks_for_something_else_gets_operators_of_its_own():
    world = make_world(22)
    world.rows(world.submit(ONE, at=0), count=20)

    other = world.submit(OTHER.replace("2000 ms", "2001 ms"), at=3)

    joins = [row for number in range(5) for row in world.ask(number, "operators") if row["kind"] == "join"]
    assert [len(join["queries"]) for join in joins] == [1, 1]
    sources = [row for number in range(5) for row in world.ask(number, "operators") if row["kind"] == "source"]
    assert [len(source["queries"]) for source in sources] == [2, 2], "their sources must be shared"
    assert world.rows(other, at=3, count=20)
