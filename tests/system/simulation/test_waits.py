"""An agent measures how long tasks wait for a processor, and which share of its operators' work the event loop does."""

from sbon_testbed.simulator.world import SimulatedHost
from tests.worlds import settled_world

SQL = """
CREATE SOURCE s (n BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'london', rows_per_second = 20);
CREATE SINK kept FROM (SELECT n FROM s WHERE n > 3) WITH (connector = 'discard', node = 'london');
"""


class Clock:
    """A clock that advances by a fixed time at each reading."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self, host: SimulatedHost) -> float:
        self.now_s += self.step_s
        return self.now_s


def waits(monkeypatch, step_s):
    clock = Clock(step_s)
    monkeypatch.setattr(SimulatedHost, "stopwatch", lambda host: clock(host))
    world = settled_world(settings={"engine": {"batch_interval_s": 0.05}})
    try:
        world.submit(SQL, at="london")
        world.run(10.0)
        cost_store = world.agents[0].execution.cost_store
        return cost_store.waits.waits(), cost_store.processors
    finally:
        world.close()


def test_a_task_waits_for_what_goes_by_beyond_its_processor_time(monkeypatch):
    """A batch costs some 100 us in virtual time: readings of the clock that take 1 ns leave no wait, those that take 10 ms do."""
    calm, _ = waits(monkeypatch, 1e-9)
    late, _ = waits(monkeypatch, 0.01)

    assert calm is not None
    assert late is not None
    assert max(calm.most_s) == 0
    assert max(late.most_s) > 0.01
    assert late.usual_s() > 0.01


def test_brief_operators_count_as_work_of_the_event_loop(monkeypatch):
    _, processors = waits(monkeypatch, 1e-9)

    assert 0 < processors.on_loop_ns <= processors.operators_ns
    assert processors.on_loop_ns > 0.5 * processors.operators_ns
