"""Agents in virtual time get 1.5 times as many rows as they can process in time: late rows are processed, shed or deferred."""

from contextlib import suppress
from typing import Any, NamedTuple

import polars as pl
import pytest

from sbon.engine.execution import Execution
from sbon.errors import MigrationError
from sbon.execution.closing import Closing
from sbon.execution.figures import Figures
from sbon.execution.instance import Instance, deferred_rows
from sbon.execution.life import State
from sbon.extensions import Extensions
from sbon.query.params.rowwise import FunctionParams
from sbon.sealing import KeyRing
from sbon_agent.config import AgentConfig
from sbon_agent.host import Host
from sbon_agent.node import Agent
from sbon_testbed.deadlines.agents import NumberedWords, declared, overload
from sbon_testbed.simulator.cpu import CpuConfig
from tests.examples import seeds
from tests.worlds import settled_world

BOUND_S = 1.0
ROWS = 12_000
SQL = """
CREATE SOURCE readings (ts TIMESTAMP, word TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}', seed = 1,
    rows_per_second = 1500, rows = 12000, fields.word.count = 7, estimated_rows_per_second = 1);
CREATE VIEW counts WITH (max_latency = '1 s'{on_miss}) AS
    SELECT ts, word, n FROM {function}(readings, PARTITION BY word{arguments});
SELECT * FROM counts;
"""


class InWindows(NumberedWords):
    """Counts each word in each window."""

    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, None]:
        return super().update(rows, states)[0], None

    def finalize(self, states: pl.DataFrame) -> pl.DataFrame:
        return states.select(pl.col("window_end").alias("ts"), "word", pl.col("seen").alias("n"))


FUNCTIONS = {"counting": declared("counting"), "in_windows": declared("in_windows", InWindows, windows=True)}
EXTENSIONS = Extensions(functions={name: lambda one=one: one for name, one in FUNCTIONS.items()})


class Story(NamedTuple):
    rows: list[tuple[Any, ...]]
    in_time: int
    figures: Figures
    """Figures of the function after the last row."""
    moved_with_deferred_rows: int
    bytes_on_disk: int
    """Total bytes written to the disks."""

    @property
    def counts(self) -> list[tuple[Any, ...]]:
        """Returns each row without its time."""
        return sorted(row[1:] for row in self.rows)


def tell(
    on_miss: str,
    *,
    function: str = "counting",
    moves: bool = False,
    seed: int = 1,
    deferred_bytes: int = 2**20,
    disk_bytes: int = 0,
    beside: str = "",
) -> Story:
    """Runs a source on one node, and on another node a function and the sink, which can process 1,000 of its 1,500 rows a second."""
    latencies: list[tuple[float, int]] = []
    delivered = Figures.delivered

    def watched(self: Figures, now: float, latency_ms: float, rows: int) -> None:
        latencies.append((latency_ms / 1000, rows))
        delivered(self, now, latency_ms, rows)

    def make(config: AgentConfig, host: Host, ring: KeyRing | None) -> Any:
        return Agent(config, host, ring, lambda: EXTENSIONS)

    engine = {"batch_interval_s": 0.05, "deferred_bytes": deferred_bytes, "state_disk_max": disk_bytes}
    settings = {"engine": engine, "optimiser": {"enabled": False}, "membership": {"interval_s": 0.5}}
    cpu = CpuConfig(cores=1, batch_us=100.0, row_ns=1e6 if function == "in_windows" else 2e5 if beside else 5e5, timed=True)
    world = settled_world(3, seed=seed, settings=settings, make_agent=make, cpu=cpu)
    option = f", on_miss = '{on_miss}'" if on_miss else ""
    arguments = ", size_s => 2.0" if function == "in_windows" else ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figures, "delivered", watched)
        tail = world.tail(world.submit(SQL.format(node=world.nodes[1], on_miss=option, function=function, arguments=arguments)))
        if beside:
            world.submit(beside)
            world.load(0, 0.7)
        found: Instance | None = None
        began = world.now
        at, target, loaded = -1, 0, 0
        while not tail.finished and world.now < 300:
            for node, agent in enumerate(world.agents):
                for instance in agent.execution.engine.instances.values():
                    if isinstance(instance.spec.params, FunctionParams) and instance.state is State.RUNNING:
                        loaded += node not in (at, -1) and at >= 0 and deferred_rows(instance) > 0
                        found, at = instance, node
            if at == target and moves and world.now < began + 6:
                target = 2 - at
            if found is not None and at != target:
                with suppress(MigrationError):
                    world.agents[at].execution.migrations.migrate(found.id, world.nodes[target], "asked for")
            world.run(0.2)
            if world.now > began + 4:
                world.load(0, 0.0)
        assert tail.finished, f"the query has not ended after {world.now:.0f} virtual seconds"
        world.close()
    assert found is not None
    written = sum(machine.disk.bytes_written for machine in world.world.machines)
    in_time = sum(rows for late_s, rows in latencies if late_s <= BOUND_S)
    return Story(sorted(tail.rows), in_time, found.figures, loaded, written)


@pytest.fixture(scope="module")
def finish() -> Story:
    return tell("finish")


def test_without_on_miss_and_with_finish_nothing_is_left_out(finish: Story):
    assert tell("").rows == finish.rows
    assert len(finish.rows) == finish.figures.rows_in == ROWS
    assert finish.figures.shed_rows == finish.figures.deferred_rows == ()
    assert finish.in_time < ROWS / 2  # the load is too high


def test_shed_has_more_rows_in_time_and_counts_each_that_it_leaves_out(finish: Story):
    shed = tell("shed")

    assert shed.in_time > 1.8 * finish.in_time
    assert shed.in_time > 0.95 * len(shed.rows)
    assert len(shed.rows) + sum(shed.figures.shed_rows) == shed.figures.rows_in == ROWS
    assert shed.counts[-1][0] == finish.counts[-1][0]


def test_defer_has_more_rows_in_time_and_ends_with_the_counts_of_finish(finish: Story):
    defer = tell("defer")

    assert defer.in_time > 1.8 * finish.in_time
    assert sum(defer.figures.deferred_rows) > ROWS / 10
    assert defer.counts == finish.counts
    assert defer.figures.rows_in == ROWS


@pytest.mark.parametrize("seed", seeds([0], [1, 2]))
def test_an_operator_that_moves_takes_deferred_rows_along(finish: Story, seed: int):
    defer = tell("defer", moves=True, seed=seed)

    assert defer.counts == finish.counts
    assert sum(defer.figures.deferred_rows) > 0
    assert defer.moved_with_deferred_rows > 0
    assert defer.figures.rows_in == ROWS


def test_each_row_is_counted_once_though_the_operator_moves():
    shed = tell("shed", moves=True)

    assert sum(shed.figures.shed_rows) > 0
    assert shed.figures.migrations > 1
    assert len(shed.rows) + sum(shed.figures.shed_rows) == shed.figures.rows_in == ROWS


@pytest.fixture(scope="module")
def finished_windows() -> Story:
    return tell("finish", function="in_windows")


@pytest.mark.parametrize("moves", seeds([True], [False]))
def test_windows_wait_for_their_deferred_rows(moves: bool, finished_windows: Story):
    finished, deferred = finished_windows, tell("defer", function="in_windows", moves=moves)

    assert sum(deferred.figures.deferred_rows) > ROWS / 10
    assert deferred.rows == finished.rows
    assert sum(row[2] for row in deferred.rows) == ROWS


def test_rows_whose_states_are_on_disk_are_shed_first():
    rows = 9_000
    shed = overload("shed", 4000, rows, 1, on_disk=True)

    in_memory, on_disk = shed.figures.shed_rows
    assert shed.rows + in_memory + on_disk == shed.figures.rows_in == rows
    assert in_memory == 0
    assert on_disk > 30
    assert shed.in_time > 0.95 * shed.rows


def test_a_full_log_takes_no_more_and_no_row_is_lost(finish: Story):
    defer = tell("defer", deferred_bytes=10_000)

    assert 0 < sum(defer.figures.deferred_rows) < ROWS / 10
    assert defer.counts == finish.counts


def test_a_log_larger_than_memory_goes_to_disk_and_moves(finish: Story):
    defer = tell("defer", deferred_bytes=10_000, disk_bytes=10**9, moves=True)

    assert defer.bytes_on_disk > 10_000
    assert sum(defer.figures.deferred_rows) > ROWS / 10
    assert defer.moved_with_deferred_rows > 0
    assert defer.counts == finish.counts


def test_a_log_whose_disk_is_full_takes_no_more_and_no_row_is_lost(finish: Story):
    defer = tell("defer", deferred_bytes=10_000, disk_bytes=5_000)

    assert 0 < sum(defer.figures.deferred_rows) < ROWS / 10
    assert defer.counts == finish.counts


def test_deferred_rows_wait_for_all_other_work_of_the_host(finish: Story, monkeypatch: pytest.MonkeyPatch):
    others: list[int] = []
    closed = Execution._close

    def watched(self: Execution, instance: Instance, closing: Closing) -> None:
        if closing.rows:
            others.append(len(self._ready))
        closed(self, instance, closing)

    monkeypatch.setattr(Execution, "_close", watched)
    story = tell("defer", beside="SELECT ts FROM readings WHERE word = 'word-2';")

    assert len(others) > 20
    assert set(others) == {0}
    assert story.counts == finish.counts
