"""Batches in transit while an operator moves: its undelivered output moves with it, and its unprocessed input is sent to its new host. In
both cases no later batch follows that would reveal a gap.
"""

import numpy as np

from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.migration.outcome import MigrationRecord
from sbon.query.params.rowwise import MapParams
from sbon.query.params.windowed import WindowParams
from sbon_agent.node import Agent
from sbon_testbed.backend import Tail
from sbon_testbed.simulator.cpu import CpuConfig
from tests.worlds import settled_world

OWNER, SOURCE, HOST, THERE, AFTER = range(5)
ROWS = 1_000
FAR_MS = 4_000.0
"""Round trip between the source and the window, so that batches are in transit for long."""
SQL = """
CREATE SOURCE s (ts TIMESTAMP, i BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 100,
    rows = {2}, 'start' = '2026-01-01T00:00:00', fields.i.kind = 'sequence');
CREATE SOURCE other (ts TIMESTAMP, i BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 1);
CREATE SINK others FROM (SELECT ts, i FROM other) WITH (connector = 'discard', node = '{1}');
SELECT window_end, i, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '100 milliseconds') GROUP BY window_end, i;
"""
"""The second stream goes to the window's new host: a new connection would make its senders start again, whether they know of the move or
not."""


class Overlay:
    """A source, a window, a projection and a sink, each on a different host."""

    def __init__(self, batch_us: float = 100.0) -> None:
        self.world = settled_world(
            5, seed=3, cpu=CpuConfig(batch_us=batch_us), settings={"engine": {"batch_interval_s": 0.1}, "optimiser": {"enabled": False}}
        )
        self.query = self.world.submit(SQL.format(self.world.nodes[SOURCE], self.world.nodes[THERE], ROWS), at=OWNER)
        self.tail: Tail = self.world.tail(self.query, OWNER)
        self.move(MapParams, AFTER)
        self.move(WindowParams, HOST)

    def agent(self, number: int) -> Agent:
        agent = self.world.agents[number]
        assert isinstance(agent, Agent)
        return agent

    def source(self) -> Instance:
        """Returns the source of the query."""
        return self.agent(SOURCE).execution.engine.instances[f"{self.query}.0"]

    def find(self, params: type) -> tuple[int, Instance]:
        """Returns a running operator, and the number of its host."""
        (found,) = (
            (number, instance)
            for number in range(len(self.world.nodes))
            for instance in self.agent(number).execution.engine.instances.values()
            if isinstance(instance.spec.params, params)
        )
        return found

    def move(self, params: type, there: int) -> None:
        """Moves an operator, and waits until it runs on its new host."""
        here, instance = self.find(params)
        agent, at = self.agent(here), self.agent(there).execution.engine.instances
        self.world.run_until(lambda: agent.execution.migrations.may_migrate(instance.id), 30, "the operator may move")
        agent.execution.migrations.migrate(instance.id, self.world.nodes[there], "moved by the test")
        self.world.run_until(lambda: instance.id in at and at[instance.id].state is State.RUNNING, 60, "it runs there")
        self.world.run_until(lambda: instance.id not in agent.execution.engine.instances, 60, "it is no more where it was")

    def held(self, params: type) -> int:
        """Returns the number of batches that an operator has sent and that are not acknowledged."""
        (output,) = self.find(params)[1].outputs.values()
        return output.sender.held

    def assert_all_rows_come(self) -> None:
        """Checks that each row comes once, in order of the windows."""
        self.world.run_until(lambda: self.tail.finished, 60, "the query ends")
        assert sorted(row[1:] for row in self.tail.rows) == [(i, 1) for i in range(ROWS)]
        ends = [row[0] for row in self.tail.rows]
        assert ends == sorted(ends)


def test_output_that_is_not_acknowledged_goes_with_its_operator():
    overlay = Overlay(batch_us=20_000.0)
    overlay.world.load(AFTER, 0.99)
    overlay.world.run_until(lambda: overlay.held(WindowParams) >= 10, 60, "output is held")
    overlay.move(WindowParams, THERE)
    assert overlay.held(WindowParams) >= 10
    overlay.world.load(AFTER, 0.0)

    overlay.assert_all_rows_come()


def test_batches_that_an_operator_has_not_worked_on_are_sent_to_its_new_host_though_none_follow():
    overlay = Overlay()
    far = np.zeros((5, 5), bool)
    far[SOURCE, HOST] = far[HOST, SOURCE] = True
    overlay.world.scale(far, FAR_MS / overlay.world.topology.rtt_ms[SOURCE, HOST])
    source = overlay.source()
    overlay.world.run_until(lambda: source.figures.rows_out >= ROWS - 500, 60, "the stream ends soon")
    overlay.move(WindowParams, THERE)
    assert source.figures.rows_out == ROWS
    (output,) = source.outputs.values()
    (incoming,) = overlay.find(WindowParams)[1].inputs.values()
    assert output.sender.offered - incoming.receiver.processed >= 5, "batches must be in transit to the old host"

    overlay.assert_all_rows_come()


def test_an_operator_stays_while_the_host_of_one_that_it_feeds_is_away():
    """A host that is only cut off may move its operators itself, to a host that nobody could find."""
    overlay = Overlay()
    name, window = overlay.world.nodes[AFTER], overlay.find(WindowParams)[1]
    agent = overlay.agent(HOST)
    overlay.world.partition([[AFTER]])
    overlay.world.run_until(lambda: not agent.network.gossip.members[name].reachable, 60, "the host has failed")
    records: list[MigrationRecord] = []
    overlay.world.run_until(lambda: agent.execution.migrations.may_migrate(window.id), 30, "nothing stands in the way on this host")
    agent.execution.migrations.migrate(window.id, overlay.world.nodes[THERE], "moved by the test", records.append)
    overlay.world.run_until(lambda: bool(records), 60, "the migration has ended")
    assert not records[0].committed
    overlay.world.heal()

    overlay.assert_all_rows_come()
