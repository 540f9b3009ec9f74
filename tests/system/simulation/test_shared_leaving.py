"""Queries that share operators are dropped in any order, through partitions: the remaining queries lose nothing, and nothing remains in the
end.

Partitions and crashes give queries other owners, which their former homes may not know.
"""

import random

import pytest

from sbon.errors import SbonError
from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{nodes}', rows_per_second = 50, seed = 5, fields.key.min = 0, fields.key.max = 2)
"""
WINDOWED = """
SELECT window_end, key, count(*) AS n FROM TUMBLE(readings, ts, INTERVAL '1 second') GROUP BY window_end, key
"""
TAKERS = (0, 3, 5)
MOVING = {"interval_s": 5.0, "cooldown_s": 10.0, "lookup_interval_s": 20.0, "confirmations": 2}


def make_world(seed: int) -> World:
    settings = {"engine": {"batch_interval_s": 0.2, "take_over": True}, "optimiser": MOVING, "links": {"window_batches": 512}}
    world = settled_world(7, seed=seed, settings=settings)
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]}"))
    return world


def instances(world: World) -> list[str]:
    return [f"{agent.name}: {operator}" for agent in world.agents for operator in agent.execution.engine.instances]


def drop(world: World, taker: int, query: str) -> bool:
    """Drops a query. Returns False if this is not possible yet, because an earlier partition gave it an owner that is cut off now."""
    try:
        world.ask(taker, "drop", query=query)
    except SbonError as refusal:
        return "there is no query" in str(refusal)  # an earlier request was executed, but its answer was lost
    return True


@pytest.mark.parametrize("seed", seeds([3, 4], [1, 2]))
def test_queries_that_share_leave_in_any_order_through_partitions(seed):
    rng = random.Random(seed)
    world = make_world(seed)
    queries = {taker: world.submit(WINDOWED, at=taker) for taker in TAKERS}
    tails = {taker: world.tail(query, taker) for taker, query in queries.items()}
    world.run_until(lambda: all(len(tail.rows) >= 10 for tail in tails.values()), 60, "all have answers")
    assert any(len(instance.users) == 3 for agent in world.agents for instance in agent.execution.engine.instances.values()), (
        "operators are shared"
    )

    for taker in rng.sample(TAKERS, 3):
        cut = rng.sample(range(7), rng.randint(1, 3))
        world.partition([cut])
        world.run(rng.uniform(0.0, 8.0))
        query = queries.pop(taker)
        done = drop(world, taker, query)
        world.run(rng.uniform(0.0, 12.0))
        world.heal()
        while not done:
            world.run(1.0)
            done = drop(world, taker, query)
            assert world.now < 600.0, f"{query} could not be dropped after the partition"
        staying = {name: len(tails[name].rows) for name in queries}

        def all_go_on(staying=staying):
            return all(len(tails[name].rows) >= seen + 10 for name, seen in staying.items())

        world.run_until(all_go_on, 90, f"queries {staying} go on after {taker} has left")
    for name, tail in tails.items():
        windows = [(row[0], row[1]) for row in tail.rows]
        assert len(set(windows)) == len(windows), f"{name} has an answer twice"

    world.run_until(lambda: not instances(world), 120, "nothing is left running")


@pytest.mark.parametrize("seed", [5, 6])
def test_the_query_of_a_taker_that_crashes_goes_on_with_what_it_shares(seed):
    world = make_world(seed)
    queries = {taker: world.submit(WINDOWED, at=taker) for taker in TAKERS}
    tails = {taker: world.tail(query, taker) for taker, query in queries.items()}
    world.run_until(lambda: all(len(tail.rows) >= 10 for tail in tails.values()), 60, "all have answers")
    victim = next(
        taker
        for taker in TAKERS
        if not any(len(instance.users) > 1 for instance in world.agents[taker].execution.engine.instances.values())
    )

    world.restart(victim)
    query = queries[victim]

    def is_taken_over():
        records = [agent.queries.owned.records[query] for agent in world.agents if query in agent.queries.owned.records]
        return [record.state.value for record in records] == ["running"] and records[0].owner != world.nodes[victim]

    world.run_until(
        lambda: is_taken_over() and query in world.agents[victim].queries.owned.register.tails, 60, "its query is taken over, sink and all"
    )
    own = world.tail(query, victim)
    world.run_until(lambda: len(own.rows) >= 10, 60, "its query has answers again")

    staying = [taker for taker in TAKERS if taker != victim]
    seen = {taker: len(tails[taker].rows) for taker in staying}
    world.run_until(lambda: all(len(tails[taker].rows) >= seen[taker] + 10 for taker in staying), 60, "the others go on")
    for taker in staying:
        windows = [(row[0], row[1]) for row in tails[taker].rows]
        assert len(set(windows)) == len(windows), f"{taker} has an answer twice"
        world.ask(taker, "drop", query=queries[taker])
    world.ask(victim, "drop", query=query)
    world.run_until(lambda: not instances(world), 60, "nothing is left running")
