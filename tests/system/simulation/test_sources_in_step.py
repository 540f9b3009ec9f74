"""The inputs of a join stay in step after its host was too slow for a while, so that the join keeps few rows."""

from typing import Any

from sbon.engine.leads import ROWS_AHEAD
from sbon_testbed.simulator.cpu import CpuConfig
from tests.worlds import QUIET, settled_world

ROWS_PER_S = 20_000
SOURCE = """CREATE SOURCE {name} (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = {rate}, seed = {seed}, fields.key.min = 0, fields.key.max = 1999);"""
QUERY = """
SELECT a.ts, a.key FROM a JOIN b ON a.key = b.key AND b.ts BETWEEN a.ts - INTERVAL '50 ms' AND a.ts + INTERVAL '50 ms'
JOIN c ON a.key = c.key AND c.ts BETWEEN a.ts - INTERVAL '50 ms' AND a.ts + INTERVAL '50 ms'
"""


def test_after_a_slow_moment_no_source_runs_ahead_of_those_it_is_joined_with() -> None:
    """The source of `a` has two joins behind it, the others one, so that equal turns would let the others catch up first."""
    cpu = CpuConfig(cores=1, batch_us=100.0, row_ns=4_000.0, timed=True)
    world = settled_world(1, seed=3, settings=QUIET, cpu=cpu)
    sources = "".join(SOURCE.format(name=name, node=world.nodes[0], rate=ROWS_PER_S, seed=seed) for seed, name in enumerate("abc"))
    world.submit(f"{sources} CREATE SINK out AS {QUERY} WITH (connector = 'discard')")
    world.run(3.0)
    agent: Any = world.agents[0]
    instances = list(agent.execution.engine.instances.values())
    joins = [one.operator for one in instances if one.operator is not None and one.operator.rows_ahead()]
    given = [one.figures for one in instances if one.source is not None]
    assert (len(joins), len(given)) == (2, 3)

    def kept() -> int:
        return max(int(sum(join.rows_ahead())) for join in joins)

    calm, most = kept(), 0
    world.world.machines[0].cpu.set_background(0.9)
    world.run(2.0)
    assert min(figures.rows_out for figures in given) < 0.7 * ROWS_PER_S * 5, "the host was too slow"
    world.world.machines[0].cpu.set_background(0.0)
    for _ in range(20):
        world.run(0.2)
        most = max(most, kept())
    assert min(figures.rows_out for figures in given) > 0.99 * ROWS_PER_S * 9, "they have caught up"
    assert most < calm + 2 * ROWS_AHEAD


def test_after_a_slow_moment_rows_of_another_host_wait_for_the_source_that_is_behind() -> None:
    """Batches from the other host have entered the overlay earlier than the rows that the source has not given yet."""
    cpu = CpuConfig(cores=1, batch_us=100.0, row_ns=4_000.0, timed=True)
    world = settled_world(2, seed=3, settings=QUIET, cpu=cpu)
    nodes = dict(zip("abc", (0, 1, 1), strict=True))
    sources = "".join(SOURCE.format(name=n, node=world.nodes[nodes[n]], rate=ROWS_PER_S, seed=nr) for nr, n in enumerate("abc"))
    world.submit(f"{sources} CREATE SINK out AS {QUERY} WITH (connector = 'discard', node = '{world.nodes[0]}')")
    world.run(3.0)
    agents: Any = world.agents
    instances = [one for agent in agents for one in agent.execution.engine.instances.values()]
    local = list(agents[0].execution.engine.instances.values())
    joins = [one.operator for one in local if one.operator is not None and one.operator.rows_ahead()]
    given = [one.figures for one in instances if one.source is not None]
    assert (len(joins), len(given)) == (2, 3), "both joins are on the host that becomes slow"

    def kept() -> int:
        return max(int(sum(join.rows_ahead())) for join in joins)

    calm, most = kept(), 0
    world.world.machines[0].cpu.set_background(0.9)
    world.run(2.0)
    world.world.machines[0].cpu.set_background(0.0)
    for _ in range(20):
        world.run(0.2)
        most = max(most, kept())
    assert min(figures.rows_out for figures in given) > 0.99 * ROWS_PER_S * 9, "they have caught up"
    assert most < calm + 4 * ROWS_AHEAD
