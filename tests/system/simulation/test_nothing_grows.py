"""Queries that begin and end, migrations and broken links leave no data behind in an agent."""

import gc
from collections import Counter, deque
from typing import Any

import numpy as np

from sbon_agent.node import Agent
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{}', rows_per_second = 20, seed = 5, fields.key.min = 0, fields.key.max = 3)
"""
QUERIES = (
    "SELECT window_end, key, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end, key",
    "SELECT ts, key FROM s WHERE key > 1",
    "SELECT a.ts, a.key, b.value FROM s AS a JOIN s AS b ON a.key = b.key AND b.ts BETWEEN a.ts - INTERVAL '1 second' AND a.ts",
)
REMEMBERED = (
    "gossip", "measuring.migrations", "migrations._epochs", "ends._gone", "remembering._knowledge", "register.ended", "polling._asked",
    "cost_store._use", "cost_store.nodes._told", "cost_store.statistics", "cost_store.waits", "cost_store._latencies_ms",
    "owners._heard", "promises._given", "promises._over", "former_versions._of", "_owned._anew", "register._anew",
    "catalog._entries", "catalog._sizes",
    "authority._reported_at_s",  # former owners that do not know of their successors yet
)  # fmt: skip
"""Containers that keep past data on purpose, each with its own limit."""
CYCLES = 3


def sizes(agent: Agent) -> Counter[str]:
    """Returns the number of entries of every container in an agent, by its attribute path."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[Any, str]] = [(agent, "")]
    while waiting:
        thing, path = waiting.pop()
        if id(thing) in seen or isinstance(thing, str | bytes | int | float):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            found[path] += len(thing)
            waiting += [(value, f"{path}[]") for value in thing.values()] + [(key, f"{path}<>") for key in thing]
        elif isinstance(thing, list | set | frozenset | deque | tuple):
            found[path] += len(thing)
            waiting += [(value, f"{path}[]") for value in thing]
        elif type(thing).__module__.startswith(("sbon_agent.", "sbon.")):
            names = [*getattr(thing, "__dict__", ()), *(name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))]
            # A component is reachable from several others: the path from the agent itself is used first.
            waiting[0:0] = [(getattr(thing, name, None), f"{path}.{name}") for name in (*names, *getattr(thing, "__struct_fields__", ()))]
    return Counter({path: count for path, count in found.items() if not any(name in path for name in REMEMBERED)})


class Churn:
    """An overlay in which three agents submit and drop queries repeatedly."""

    def __init__(self) -> None:
        settings = {
            "engine": {"batch_interval_s": 0.5, "wanted_interval_s": 5.0},
            "optimiser": {"interval_s": 2.0, "cooldown_s": 3.0, "lookup_interval_s": 4.0},
        }
        self.world = settled_world(5, seed=2, settings=settings)
        self.world.submit(SOURCE.format(f"{self.world.nodes[1]},{self.world.nodes[2]}"))
        self.rng = np.random.default_rng(1)
        self.cycles = 0

    @property
    def agents(self) -> list[Agent]:
        return [agent for agent in self.world.agents if isinstance(agent, Agent)]

    def cycle(self) -> None:
        """Runs three queries, moves some of their operators, sometimes cuts a node off, and ends the queries."""
        world, self.cycles = self.world, self.cycles + 1
        taken = [(taker, world.submit(sql, at=taker)) for taker, sql in ((0, QUERIES[0]), (3, QUERIES[0]), (4, QUERIES[self.cycles % 3]))]
        for taker, query in taken:
            world.tail(query, taker)
        world.run(1.0)
        for agent in self.agents:
            for operator in list(agent.execution.engine.instances):
                there = world.nodes[int(self.rng.integers(5))]
                if there != agent.name and self.rng.random() < 0.5 and agent.execution.migrations.may_migrate(operator):
                    agent.execution.migrations.migrate(operator, there, "moved by the test")
        world.run(float(self.rng.uniform(0.05, 3.0)))
        if self.cycles % 3 == 0:
            world.partition([[int(self.rng.integers(1, 5))]])
            world.run(float(self.rng.uniform(0.2, 9.0)))
        for taker, query in taken:
            world.ask(taker, "drop", query=query)
            world.run(float(self.rng.uniform(0.0, 0.3)))
        world.heal()
        world.run(2.0)
        world.settle()

    def rest(self) -> list[Counter[str]]:
        """Returns the sizes of the agents' containers after all queries have ended."""
        self.world.run_until(lambda: not any(agent.execution.engine.instances for agent in self.agents), 120)
        self.world.run(30.0)
        # Agents exchange their tables periodically, over connections that close when idle.
        self.world.run_until(lambda: not any(agent.network.peers._connections for agent in self.agents), 1200)
        gc.collect()
        return [sizes(agent) for agent in self.agents]


def test_what_has_ended_is_forgotten() -> None:
    churn = Churn()
    for _ in range(CYCLES):
        churn.cycle()
    before = churn.rest()
    for _ in range(2 * CYCLES):
        churn.cycle()
    after = churn.rest()
    assert sum(len(agent.monitoring.measuring.migrations) for agent in churn.agents) > CYCLES, "operators must move"
    grown: Counter[str] = Counter()
    for then, now in zip(before, after, strict=True):
        grown.update({path: count - then[path] for path, count in now.items() if count > then[path]})
    found = {path: count for path, count in grown.items() if count >= CYCLES}
    assert found == {}
