"""The engine itself, on one virtual core that has too much to do: whatever begins is the oldest of all that could begin."""

import math

from sbon.engine.execution import Execution
from sbon.execution.life import State
from sbon_testbed.simulator.cpu import CpuConfig
from tests.worlds import settled_world

SQL = """
CREATE SOURCE {name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen',
    rows_per_second = {rate}, rows = {rows}, fields.key.min = 0, fields.key.max = 9);
CREATE SINK {name}_a FROM (SELECT ts, key FROM {name} WHERE value > 0.5) WITH (connector = 'discard');
CREATE SINK {name}_b FROM (
    SELECT window_end, key, sum(value) AS total FROM TUMBLE({name}, ts, INTERVAL '200 milliseconds') GROUP BY window_end, key
) WITH (connector = 'discard');
"""


def test_the_oldest_batch_runs_first_across_operators_and_queries(monkeypatch):
    begun: list[tuple[float, float]] = []
    begin = Execution._run

    def watched(self, instance, incoming):
        others = [
            other.waiting.earliest_s
            for other in self._instances.values()
            if other is not instance and other.state is State.RUNNING and not other.busy and other.source is None and other.has_credit
        ]
        begun.append((incoming.queue.earliest_s, min(others, default=math.inf)))
        begin(self, instance, incoming)

    monkeypatch.setattr(Execution, "_run", watched)
    world = settled_world(1, seed=4, cpu=CpuConfig(cores=1, batch_us=20_000.0))
    for name, rate in (("slow", 40), ("fast", 4000)):
        world.submit(SQL.format(name=name, rate=rate, rows=2 * rate))

    world.run_until(lambda: not world.ask(0, "operators"), 300, "the queries end")
    world.close()

    contested = [(ours, best) for ours, best in begun if best < math.inf]
    assert len(contested) > 10, "there was nothing to choose from"
    assert [(ours, best) for ours, best in contested if ours > best] == []
