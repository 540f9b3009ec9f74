"""The part `agents`: an overload of agents in virtual time, whose engine leaves rows out or puts them off (`on_miss`).

A source on one node gives rows faster than a keyed function and a sink on another have time for. A row is in time if the sink has it within
the bound from its event time, when it was made.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from sbon.deadline_scheduling.bound import most_in_time
from sbon.errors import MigrationError
from sbon.execution.instance import Instance
from sbon.extensions import Extensions
from sbon.functions import KeyedFunction, keyed_function
from sbon.query.plan import FunctionParams
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
"""Time of a row in the function and the sink together."""
BATCH_S = 0.05
LOAD = 0.9
"""Load at the normal rate."""
NORMAL = 1.1
"""The normal rate, in millions of the paper's tweets."""
_LOOK_S = 0.005
_SQL = """
CREATE SOURCE words (ts TIMESTAMP, word TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}', seed = {seed},
    rows_per_second = {rate}, rows = {rows}, fields.word.count = 1000, estimated_rows_per_second = 1);
CREATE VIEW counts WITH (max_latency = '{bound_s} s', on_miss = '{on_miss}') AS
    SELECT ts, word, n FROM numbered_words(words, PARTITION BY word);
SELECT * FROM counts;
"""


@keyed_function(
    name="numbered_words",
    version="1",
    inputs={"ts": "time", "word": "text"},
    outputs={"ts": "time", "word": "text", "n": "int"},
    states={"seen": "int"},
    event_time="ts",
    commutes=True,
)
class NumberedWords(KeyedFunction):
    """Gives each row with how many of its word have come."""

    def init(self, keys: pl.DataFrame) -> pl.DataFrame:
        """No word has come yet."""
        return pl.select(seen=pl.zeros(keys.height, dtype=pl.Int64))

    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Numbers the rows of each word."""
        place = rows.select_seq(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("state")).to_series()
        counts = rows.group_by("state").len().sort("state")["len"].cast(pl.Int64)
        n = (states["seen"].gather(rows["state"]) + place).alias("n")
        return pl.DataFrame({"seen": states["seen"] + counts}), pl.DataFrame([rows["ts"], rows["word"], n])


_FUNCTION: Any = NumberedWords  # a declaration, which the decorator has made of the class


def evaluate_agents(seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `agents`: figure 7 c through the engine, with 1.1, 1.5 and 2.0 M rows/s of the paper's; bound 1 s."""
    found: dict[str, Any] = {}
    rates = (1.1, 1.5, 2.0)
    for number, rate in enumerate(rates):
        report("agents", number, len(rates))
        load = LOAD * rate / NORMAL
        rows_per_s = round(load / ROW_S)
        rows = round(rows_per_s * seconds)
        found[f"{rate:g}"] = one = {"load": load, "rows": rows}
        for on_miss in CHOICES:
            one[on_miss], given, left_out = _utility(on_miss, rows_per_s, rows, seed)
            one[f"{on_miss}_rows"] = given
            one[f"{on_miss}_left_out"] = left_out
        entered_s = np.arange(rows) / rows_per_s
        arrived_s = (np.floor(entered_s / BATCH_S) + 1) * BATCH_S
        one["bound"] = min(1.0, most_in_time(arrived_s, entered_s + BOUND_S, np.full(rows, ROW_S), BATCH_S) / rows)
        one["of_bound"] = one["shed"] / one["bound"]
    report("agents", len(rates), len(rates))
    return found


def _utility(on_miss: str, rows_per_s: int, rows: int, seed: int) -> tuple[float, int, int]:
    """Returns the share of rows in time, the rows that came to the sink, and the rows that were shed or put off."""

    def make(config: AgentConfig, host: Host, ring: KeyRing | None) -> Any:
        return Agent(config, host, ring, lambda: Extensions(functions={"numbered_words": lambda: _FUNCTION}))

    settings = {"engine": {"batch_interval_s": BATCH_S}, "optimiser": {"enabled": False}}
    cpu = CpuConfig(cores=1, batch_us=100.0, row_ns=1e9 * ROW_S / 2, timed=True)
    world = World(2, seed=seed, settings=settings, make_agent=make, cpu=cpu)
    world.start_all()
    world.settle()
    text = _SQL.format(node=world.nodes[1], seed=seed, rate=rows_per_s, rows=rows, bound_s=BOUND_S, on_miss=on_miss)
    tail = world.tail(world.submit(text))
    function: Instance | None = None
    in_time, seen = 0, 0
    until_s = world.now + 100 + 10 * rows * ROW_S
    while not tail.finished and world.now < until_s:
        function = _to_the_sink(world) or function
        world.run(_LOOK_S)
        wall_s = WALL_START_S + world.now
        for row in tail.rows[seen:]:
            made_s = datetime.fromisoformat(str(row[0])).replace(tzinfo=UTC).timestamp()
            in_time += wall_s - made_s <= BOUND_S + _LOOK_S
        seen = len(tail.rows)
    if not tail.finished or function is None:
        raise TimeoutError(f"overload of {rows} rows with on_miss = {on_miss!r}, seed {seed}: not at its end at {world.now:.0f} virtual s")
    world.close()
    figures = function.figures
    return in_time / rows, seen, sum(figures.shed_rows) + sum(figures.deferred_rows)


def _to_the_sink(world: World) -> Instance | None:
    """Has the function move to the sink's node, if it is not there; returns it if it is."""
    agents: list[Any] = list(world.agents)
    for node, agent in enumerate(agents):
        for instance in agent.engine.instances.values():
            if isinstance(instance.spec.params, FunctionParams):
                if node == 0:
                    found: Instance = instance
                    return found
                with suppress(MigrationError):
                    agent.migrations.migrate(instance.id, world.nodes[0], "asked for")
    return None
