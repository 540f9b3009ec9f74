"""The engine on one overloaded virtual core: each task that begins is the most urgent of all that could begin."""

import math

import pytest

from sbon.engine.execution import Execution
from sbon.execution.life import State
from sbon_testbed.simulator.cpu import CpuConfig
from tests.worlds import settled_world

SQL = """
CREATE SOURCE {name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen',
    estimated_rows_per_second = 1, rows_per_second = {rate}, rows = {rows}, fields.key.min = 0, fields.key.max = 9);
CREATE SINK {name}_a FROM (SELECT ts, key FROM {name} WHERE value > 0.5) WITH (connector = 'discard'{bound});
CREATE SINK {name}_b FROM (
    SELECT window_end, key, sum(value) AS total FROM TUMBLE({name}, ts, INTERVAL '200 milliseconds') GROUP BY window_end, key
) WITH (connector = 'discard'{bound});
"""


@pytest.mark.parametrize("bounds", [("", ""), ("3 seconds", ""), ("9 seconds", "4 seconds"), ("300 seconds", "30 seconds")])
def test_the_most_urgent_batch_runs_first_across_operators_and_queries(monkeypatch: pytest.MonkeyPatch, bounds: tuple[str, str]):
    within_s = {"": 10.0, "3 seconds": 3.0, "4 seconds": 4.0, "9 seconds": 9.0, "30 seconds": 10.0, "300 seconds": 10.0}
    slow: set[str] = set()
    begun: list[tuple[float, float]] = []
    begin = Execution._run

    def urgency_s(instance):
        return instance.waiting.earliest_s + within_s[bounds[0 if slow & set(instance.users) else 1]]

    def watched(self, instance, incoming):
        others = [
            urgency_s(other)
            for other in self._instances.values()
            if other is not instance and other.state is State.RUNNING and not other.busy and other.source is None and other.has_credit
        ]
        begun.append((urgency_s(instance), min(others, default=math.inf)))
        begin(self, instance, incoming)

    world = settled_world(1, seed=4, cpu=CpuConfig(cores=1, batch_us=20_000.0), settings={"engine": {"batch_interval_s": 0.05}})
    monkeypatch.setattr(Execution, "_run", watched)
    for name, rate, bound in (("slow", 40, bounds[0]), ("fast", 4000, bounds[1])):
        option = f", max_latency = '{bound}'" if bound else ""
        world.submit(SQL.format(name=name, rate=rate, rows=2 * rate, bound=option))
        if name == "slow":
            slow.update(query for instance in world.agents[0].execution.engine.instances.values() for query in instance.users)
            begun.clear()

    world.run_until(lambda: not world.ask(0, "operators"), 300, "the queries end")
    world.close()

    contested = [(ours, best) for ours, best in begun if best < math.inf]
    assert len(contested) > 10, "there must be several tasks to choose from"
    assert [(ours, best) for ours, best in contested if ours > best] == []


def test_a_query_without_a_bound_gets_its_turn_beside_one_that_has_a_bound_and_too_many_rows():
    world = settled_world(1, seed=5, cpu=CpuConfig(cores=1, batch_us=20_000.0), settings={"engine": {"batch_interval_s": 0.05}})
    hasty, free = (
        SQL.format(name="hasty", rate=4000, rows=10**9, bound=", max_latency = '3 seconds'"),
        SQL.format(name="free", rate=40, rows=80, bound=""),
    )
    world.submit(hasty)
    world.submit(free)

    def names() -> set[str]:
        return {query["name"] for query in world.ask(0, "queries") if query["state"] == "running"}

    world.run_until(lambda: not names() & {"free_a", "free_b"}, 300, "the query without a bound ends")
    assert names() == {"hasty_a", "hasty_b"}
    world.close()
