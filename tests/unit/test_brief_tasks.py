"""What may be done on the event loop: small batches through operators that keep nothing and wait for nothing."""

import pytest

import agent.engine.execution
from agent.engine.brief import BRIEF_ROWS_MAX, is_brief
from sbon.batching import Cost
from testbed.virtual.harness import World

SQL = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = {rate}, rows = {rows},
    batch_rows_max = 100000, fields.key.min = 0, fields.key.max = 3);
CREATE SINK kept FROM (SELECT ts, key FROM s WHERE key = 0) WITH (connector = 'discard');
CREATE SINK counted FROM (SELECT key, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second')
    GROUP BY key, window_start, window_end) WITH (connector = 'discard');
"""


@pytest.fixture
def judged(monkeypatch):
    """Kinds of the operators of each task of a virtual world, its rows, and whether it was brief."""
    found = []

    def noted(task):
        brief = is_brief(task)
        kinds = [stage.instance.spec.params.__class__.__name__ for stage in task.stages]
        found.append((kinds, sum(batch.rows for batch in task.batches), brief))
        return brief

    monkeypatch.setattr(agent.engine.execution, "is_brief", noted)
    return found


def run(rate: int, rows: int) -> None:
    world = World(1, seed=1)
    world.start_all()
    world.settle()
    world.submit(SQL.format(rate=rate, rows=rows))
    world.run_until(lambda: all(operator["state"] == "finished" for operator in world.ask(0, "operators")), 60)
    world.close()


def test_lone_rows_pass_on_the_event_loop_but_not_into_windows(judged):
    run(50, 200)
    light = [brief for kinds, _, brief in judged if kinds[0] != "SourceParams" and "WindowParams" not in kinds]
    assert light.count(False) <= 4, "only the first of each kind, which load libraries"
    assert light.count(True) > 50
    assert not any(brief for kinds, _, brief in judged if "WindowParams" in kinds)
    assert any("WindowParams" in kinds for kinds, _, _ in judged)


def test_large_batches_go_to_the_threads(judged):
    run(10_000_000, 200_000)
    asking = [brief for kinds, _, brief in judged if kinds[0] == "SourceParams"]
    assert asking
    assert not any(asking), "however many rows it would give"
    large = [brief for _, rows, brief in judged if rows > BRIEF_ROWS_MAX]
    assert large
    assert not any(large)


def test_what_a_batch_will_cost_is_unknown_before_the_first_and_grows_with_its_rows():
    cost = Cost()
    assert cost.expected_s(1) == float("inf")
    for rows in (100, 300, 100, 300):
        cost.took(rows, 0.001 + rows * 1e-5)
    assert cost.expected_s(100) < cost.expected_s(200) < cost.expected_s(300)
    assert cost.expected_s(200) == pytest.approx(0.003, rel=0.01)
