"""One seed of trouble: what the network does, how slow consumers are, who migrates when - and the queries that must not notice.

Two streams feed two of four queries, which share operators: a join of windows with a stream, the windows themselves, a union of both
streams, and a left join. While their rows flow, datagrams are lost, doubled and held back, nodes are cut off for longer than their
connections last, machines slow down until credit ends, and operators are moved, several at once and many in vain. On two seeds of five,
what links cannot deliver goes to disks that are slow, full or broken at times. Every sink must have the rows that it has when all runs on
one node; the second query, which comes while the first one's rows flow already, from then on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agent.node import Agent
from sbon.config import Layer
from sbon.errors import SbonError
from testbed.backend import Tail
from testbed.virtual.harness import World
from testbed.virtual.network import NetworkConfig

ROWS = 3_000
"""Of each source, 500 a second."""
VIRTUAL_S_MAX = 300.0
"""Every seed has ended long before this; where one has not, rows are lost."""
STEP_S = 0.3
"""Virtual time between two troubles."""

SOURCES = f"""
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{left}}',
    rows_per_second = 500, rows = {ROWS}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{right}}',
    rows_per_second = 500, rows = {ROWS}, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE VIEW w AS SELECT window_end, key, count(*) AS n, sum(value) AS total, max(value) AS top
    FROM TUMBLE(l, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key;
"""
BEGIN = datetime(2026, 1, 1)
"""Event time of the sources' first rows."""
SETTLED_S = 1.0
"""Event time after which nothing in a query depends on rows from before it came: longer than its windows and intervals."""
QUERIES = (
    "SELECT w.window_end, w.key, w.n, w.top, r.value, r.ts FROM w JOIN r"
    " ON w.key = r.key AND r.ts BETWEEN w.window_end - INTERVAL '100 milliseconds' AND w.window_end;",
    "SELECT window_end, key, n, total FROM w WHERE n > 5;",
    "SELECT ts, key, value FROM l WHERE key < 8 UNION ALL SELECT ts, key, value FROM r WHERE key < 8;",
    "SELECT l.ts, l.key, l.value, r.value AS other FROM l LEFT JOIN r"
    " ON l.key = r.key AND r.ts BETWEEN l.ts - INTERVAL '20 milliseconds' AND l.ts + INTERVAL '20 milliseconds';",
)
PAIRS = tuple((one, other) for one in range(len(QUERIES)) for other in range(one + 1, len(QUERIES)))
"""Which two of the queries run, by the seed."""

SPILL = {"spill_bytes": 2**20, "spill_after_s": 0.1}

Rows: TypeAlias = tuple[tuple[Any, ...], ...]


class Outcome(NamedTuple):
    """What came of one seed."""

    seed: int
    problem: str
    """Empty: every sink has the rows of a run on one node."""
    committed: int
    """Migrations that moved their operator."""
    abandoned: int
    """Migrations after which all was as before."""
    resent: int
    """Batches that went more than once."""
    rows: int
    """At all sinks."""
    spilled_bytes: int = 0
    """What links wrote to disk."""


def make_world(nodes: int, seed: int, network: NetworkConfig | None = None, window_batches: int = 64) -> World:
    """An overlay in which only the story moves operators."""
    settings = {
        # One cut may follow another until a node has seemed gone for longer than answers wait by default: then rows are lost by right.
        "engine": {"batch_interval_s": 0.1, "lost_input_s": VIRTUAL_S_MAX},
        "optimiser": {"enabled": False},
        "links": {"window_batches": window_batches, **(SPILL if spills(seed) else {})},
        "membership": {"interval_s": 0.5},
        # States are small here: cut them as if they were large, and run after every byte of input.
        "migration": {"piece_bytes": 1024, "window_bytes": (1, 4096, 2**20)[seed % 3], "rest_bytes": (1, 65_536)[seed % 2]},
    }
    world = World(nodes, seed=seed, network=network, settings=settings, settings_of=_small_quanta)
    world.start_all()
    world.settle()
    return world


def spills(seed: int) -> bool:
    """Whether links have disks."""
    return seed % 5 >= 3


def _small_quanta(number: int) -> Layer:
    """Every other node works on its batches in slices."""
    return {"engine": {"quantum_rows": 16}} if number % 2 else {}


@cache
def rows_on_one_node() -> tuple[Rows, ...]:
    """The rows of every query without a network."""
    answers = []
    for sql in QUERIES:
        world = make_world(1, seed=1)
        world.submit(SOURCES.format(left=world.nodes[0], right=world.nodes[0]))
        tail = world.tail(world.submit(sql))
        world.run_until(lambda tail=tail: tail.finished)  # type: ignore[misc]
        answers.append(tuple(tail.rows))
    return tuple(answers)


class Trouble:
    """What happens to one world, drawn from a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = np.random.default_rng(seed)
        self._disk_rng = np.random.default_rng([seed, 2])
        self._heals_at: float | None = None
        self._eases_at: float | None = None
        self._slow = 0

    def step(self) -> None:
        """Up to three migrations at once, and now and then a cut or a machine that slows down."""
        for _ in range(int(self._rng.integers(1, 4))):
            self.move_one()
        self._cut_or_heal()
        self._slow_or_ease()
        self._break_or_mend_disks()

    def agents(self) -> list[Agent]:
        """All of them; nobody dies here, which would be a loss by right."""
        return [agent for agent in self._world.agents if isinstance(agent, Agent)]

    def move_one(self) -> None:
        """Ask some agent to move some operator somewhere."""
        agents = self.agents()
        for number in self._rng.permutation(len(agents)):
            agent = agents[int(number)]
            movable = [operator for operator in agent.engine.instances if agent.migrations.may_migrate(operator)]
            if movable:
                there = self._world.nodes[int(self._rng.integers(len(agents)))]
                if there != agent.name:
                    agent.migrations.migrate(movable[int(self._rng.integers(len(movable)))], there, "moved by the story")
                return

    def _cut_or_heal(self) -> None:
        now = self._world.now
        if self._heals_at is not None and now >= self._heals_at:
            self._world.heal()
            self._heals_at = None
        elif self._heals_at is None and self._rng.random() < 0.1:
            nodes = len(self._world.nodes)
            cut = [int(n) for n in self._rng.permutation(nodes)[: int(self._rng.integers(1, 3))]]
            self._world.partition([cut])
            self._heals_at = now + float(self._rng.uniform(0.5, 9.0))

    def _slow_or_ease(self) -> None:
        now = self._world.now
        if self._eases_at is not None and now >= self._eases_at:
            self._world.load(self._slow, 0.0)
            self._eases_at = None
        elif self._eases_at is None and self._rng.random() < 0.15:
            self._slow = int(self._rng.integers(len(self._world.nodes)))
            self._world.load(self._slow, 0.99)
            self._eases_at = now + float(self._rng.uniform(0.5, 3.0))

    def _break_or_mend_disks(self) -> None:
        """No draw of the rest depends on it."""
        for machine in self._world.world.machines:
            disk, fault = machine.disk, int(self._disk_rng.integers(12))
            disk.delay_s = 0.5 if fault == 0 else 0.0
            disk.failing = fault == 1
            disk.capacity_bytes = disk.used_bytes + 2_000 if fault == 2 else float("inf")


def network_of(rng: np.random.Generator) -> NetworkConfig:
    """Loss, repetition, reordering, delay, and streams that break sooner or later when they stall."""
    return NetworkConfig(
        loss=float(rng.uniform(0.0, 0.05)),
        duplicate=float(rng.uniform(0.0, 0.05)),
        reorder=float(rng.uniform(0.0, 0.1)),
        jitter_ms=float(rng.uniform(0.2, 10.0)),
        split=float(rng.uniform(0.0, 0.6)),
        stream_timeout_s=float(rng.choice([1.0, 3.0, 20.0])),
    )


def tell(seed: int) -> Outcome:
    """Run one seed to its end and compare all sinks with the run on one node."""
    rng = np.random.default_rng([seed, 1])
    world = make_world(int(rng.integers(3, 7)), seed, network_of(rng), window_batches=int(rng.integers(1, 9)))
    names = world.nodes
    world.submit(SOURCES.format(left=names[int(rng.integers(len(names)))], right=names[int(rng.integers(len(names)))]))
    chosen = PAIRS[seed % len(PAIRS)]
    tails: list[Tail] = []
    complete_from: list[datetime] = []
    began = world.now
    for number in chosen:
        owner = int(rng.integers(len(names)))
        tails.append(world.tail(_submitted(world, QUERIES[number], owner), node=owner))
        complete_from.append(BEGIN + timedelta(seconds=world.now - began + SETTLED_S) if complete_from else BEGIN)
    trouble = Trouble(world, seed)
    while not all(tail.finished for tail in tails) and world.now < VIRTUAL_S_MAX:
        world.run(STEP_S)
        trouble.step()
    ended = [record for agent in trouble.agents() for record in agent.measuring.migrations]
    committed = sum(bool(record["committed"]) for record in ended)
    outputs = [output for agent in trouble.agents() for i in agent.engine.instances.values() for output in i.outputs.values()]
    return Outcome(
        seed,
        problem_of(seed, chosen, tails, complete_from),
        committed,
        len(ended) - committed,
        sum(output.sender.batches_resent for output in outputs),
        sum(len(tail.rows) for tail in tails),
        sum(machine.disk.bytes_written for machine in world.world.machines),
    )


def _submitted(world: World, sql: str, owner: int) -> str:
    """Submit as soon as the owner has heard of the sources."""
    while True:
        try:
            return world.submit(sql, at=owner)
        except SbonError:
            if world.now > VIRTUAL_S_MAX:
                raise
            world.run(STEP_S)


def problem_of(seed: int, chosen: Sequence[int], tails: Sequence[Tail], complete_from: Sequence[datetime]) -> str:
    """What is wrong with the first sink that has not the rows of a run on one node; empty where all have them.

    Parameters
    ----------
    chosen : numbers of the queries
    tails : their rows
    complete_from : for each of them the event time from which on it has all rows
    """
    for number, tail, first in zip(chosen, tails, complete_from, strict=True):
        what = f"seed {seed}, query {number}"
        if tail.error:
            return f"{what}: {tail.error}"
        if not tail.finished:
            return f"{what} has not ended after {VIRTUAL_S_MAX:g} virtual seconds, with {len(tail.rows)} rows"
        rows, expected = _from(first, tail.rows), _from(first, rows_on_one_node()[number])
        if rows != expected:
            missing = (expected - rows).total()
            return f"{what}: {missing} of {expected.total()} rows missing, {(rows - expected).total()} too many, from {first} on"
    return ""


def _from(first: datetime, rows: Iterable[tuple[Any, ...]]) -> Counter[str]:
    """Rows with an event time, their first column, not before `first`."""
    return Counter(str(row) for row in rows if datetime.fromisoformat(str(row[0])).replace(tzinfo=None) >= first)
