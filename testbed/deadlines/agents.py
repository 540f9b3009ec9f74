"""The part `agents`: overloaded agents in virtual time, whose engine sheds or defers rows (`on_miss`).

A source on one node gives rows faster than a keyed function and a sink on another node can process them. A row is in time if the sink has
it within the bound from its event time, which is when it was made. A second experiment has most states on disk, so that rows of rare words
cost more.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from sbon.deadline_scheduling.bound import most_in_time
from sbon.errors import MigrationError
from sbon.execution.figures import Figures
from sbon.execution.instance import Instance
from sbon.extensions import Extensions
from sbon.functions import BatchFunction, KeyedFunction, keyed_function
from sbon.query.params.rowwise import FunctionParams
from sbon.sealing import KeyRing
from sbon_agent.config import AgentConfig
from sbon_agent.host import Host
from sbon_agent.node import Agent
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.world import WALL_START_S

Report = Callable[[str, int, int], None]
CHOICES = ("finish", "shed", "defer")
BOUND_S = 1.0
ROW_S = 0.0005
"""Processing time of a row in the function and the sink together."""
BATCH_S = 0.05
LOAD = 0.9
"""Load at the normal rate."""
NORMAL = 1.1
"""The normal rate, in millions of the paper's tweets."""
WORDS = 1000
DISK_WORDS, DISK_MEMORY_BYTES, DISK_ROW_S, DISK_READ_S = 3000, 40_000, 0.0002, 0.001
"""With states on disk: number of words, memory for states (holds a twentieth of them), and seconds for a row and for reading a block."""
DISK_ROWS_PER_S = 4000
FAIRNESS = 0.8
_LOOK_S = 0.005
_SQL = """
CREATE SOURCE words (ts TIMESTAMP, word TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}', seed = {seed},
    rows_per_second = {rate}, rows = {rows}, fields.word.count = {words}, estimated_rows_per_second = 1);
CREATE VIEW counts WITH (max_latency = '{bound_s} s', on_miss = '{on_miss}'{fairness}) AS
    SELECT ts, word, n FROM numbered_words(words, PARTITION BY word);
SELECT * FROM counts;
"""


class NumberedWords(KeyedFunction):
    """Outputs each row with the number of rows of its word so far."""

    def init(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Returns states with a count of 0."""
        return pl.select(seen=pl.zeros(keys.height, dtype=pl.Int64))

    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Numbers the rows of each word."""
        place = rows.select_seq(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("state")).to_series()
        counts = rows.group_by("state").len().sort("state")["len"].cast(pl.Int64)
        n = (states["seen"].gather(rows["state"]) + place).alias("n")
        return pl.DataFrame({"seen": states["seen"] + counts}), pl.DataFrame([rows["ts"], rows["word"], n])


def declared(name: str, made: type[NumberedWords] = NumberedWords, **more: Any) -> BatchFunction:
    """Returns a function with a count for each word."""
    return keyed_function(
        name=name,
        version="1",
        inputs={"ts": "time", "word": "text"},
        outputs={"ts": "time", "word": "text", "n": "int"},
        states={"seen": "int"},
        event_time="ts",
        commutes=True,
        **more,
    )(made)


_FUNCTION = declared("numbered_words")


def evaluate_agents(seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `agents`: figure 7 c with the agents' engine, at loads of the paper's 1.1, 1.5 and 2.0 M rows/s; bound 1 s."""
    found: dict[str, Any] = {}
    rates = (1.1, 1.5, 2.0)
    for number, rate in enumerate(rates):
        report("agents", number, len(rates))
        load = LOAD * rate / NORMAL
        rows_per_s = round(load / ROW_S)
        rows = round(rows_per_s * seconds)
        found[f"{rate:g}"] = one = {"load": load, "rows": rows}
        for on_miss in CHOICES:
            story = overload(on_miss, rows_per_s, rows, seed)
            one[on_miss], one[f"{on_miss}_rows"] = story.in_time / rows, story.rows
            one[f"{on_miss}_left_out"] = sum(story.figures.shed_rows) + sum(story.figures.deferred_rows)
        entered_s = np.arange(rows) / rows_per_s
        arrived_s = (np.floor(entered_s / BATCH_S) + 1) * BATCH_S
        one["bound"] = min(1.0, most_in_time(arrived_s, entered_s + BOUND_S, np.full(rows, ROW_S), BATCH_S) / rows)
        one["of_bound"] = one["shed"] / one["bound"]
    report("agents", len(rates), len(rates))
    return found


def evaluate_agents_disk(seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns, for each choice of `on_miss`, the share of rows in time and the rows shed by cost class, with most states on disk."""
    found: dict[str, Any] = {}
    rows = round(DISK_ROWS_PER_S * seconds)
    choices = {"finish": ("finish", 0.0), "shed": ("shed", 0.0), f"shed_fairness {FAIRNESS}": ("shed", FAIRNESS)}
    for number, (name, (on_miss, fairness)) in enumerate(choices.items()):
        report("agents, disk", number, len(choices))
        story = overload(on_miss, DISK_ROWS_PER_S, rows, seed, fairness=fairness, on_disk=True)
        found[name] = {"in_time": story.in_time / rows, "rows": story.rows, "shed_rows": list(story.figures.shed_rows)}
    report("agents, disk", len(choices), len(choices))
    return found


class Overload(NamedTuple):
    """A run of one query."""

    in_time: int
    """Rows that the sink had within the bound."""
    rows: int
    """Rows that came to the sink."""
    figures: Figures
    """Figures of the function."""


def overload(on_miss: str, rows_per_s: int, rows: int, seed: int, *, fairness: float = 0.0, on_disk: bool = False) -> Overload:
    """Runs the query to its end.

    Parameters
    ----------
    on_disk : most states are on disk, and reading them takes time
    """

    def make(config: AgentConfig, host: Host, ring: KeyRing | None) -> Any:
        return Agent(config, host, ring, lambda: Extensions(functions={"numbered_words": lambda: _FUNCTION}))

    engine: dict[str, float] = {"batch_interval_s": BATCH_S}
    if on_disk:
        engine |= {"quantum_rows": 64, "state_disk_max": 10**9, "state_memory_max": DISK_MEMORY_BYTES}
    row_s = DISK_ROW_S if on_disk else ROW_S
    settings = {"engine": engine, "optimiser": {"enabled": False}}
    cpu = CpuConfig(cores=1, batch_us=100.0, row_ns=1e9 * row_s / 2, timed=True)
    world = World(2, seed=seed, settings=settings, make_agent=make, cpu=cpu)
    world.start_all()
    world.settle()
    if on_disk:
        world.world.machines[0].disk.delay_s = DISK_READ_S
    chosen = {
        "on_miss": on_miss,
        "fairness": f", shed_fairness = {fairness}" if fairness else "",
        "words": DISK_WORDS if on_disk else WORDS,
    }
    text = _SQL.format(node=world.nodes[1], seed=seed, rate=rows_per_s, rows=rows, bound_s=BOUND_S, **chosen)
    tail = world.tail(world.submit(text))
    function: Instance | None = None
    in_time, seen = 0, 0
    until_s = world.now + 100 + 10 * rows * (row_s + DISK_READ_S * on_disk)
    while not tail.finished and world.now < until_s:
        function = _to_the_sink(world) or function
        world.run(_LOOK_S)
        wall_s = WALL_START_S + world.now
        for row in tail.rows[seen:]:
            made_s = datetime.fromisoformat(str(row[0])).replace(tzinfo=UTC).timestamp()
            in_time += wall_s - made_s <= BOUND_S + _LOOK_S
        seen = len(tail.rows)
    if not tail.finished or function is None:
        raise TimeoutError(f"overload of {rows} rows with on_miss = {on_miss!r}, seed {seed}: not finished at {world.now:.0f} virtual s")
    world.close()
    return Overload(in_time, seen, function.figures)


def _to_the_sink(world: World) -> Instance | None:
    """Returns the function if it is on the sink's node; otherwise starts its migration there."""
    agents: list[Any] = list(world.agents)
    for node, agent in enumerate(agents):
        for instance in agent.execution.engine.instances.values():
            if isinstance(instance.spec.params, FunctionParams):
                if node == 0:
                    found: Instance = instance
                    return found
                with suppress(MigrationError):
                    agent.execution.migrations.migrate(instance.id, world.nodes[0], "asked for")
    return None
