"""Brief tasks run on the event loop: small batches through operators that keep no state and wait for nothing."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sbon.engine.execution
from sbon.batching import Cost
from sbon.connectors.datagen import DatagenSource
from sbon.engine.execution import Execution
from sbon.execution.brief import BRIEF_ROWS_MAX, is_brief
from tests.connector_world import columns, source
from tests.examples import examples
from tests.worlds import settled_world

SQL = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = {rate}, rows = {rows},
    batch_rows_max = 100000, fields.key.min = 0, fields.key.max = 3);
CREATE SINK kept FROM (SELECT ts, key FROM s WHERE key = 0) WITH (connector = 'discard');
CREATE SINK counted FROM (SELECT key, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second')
    GROUP BY key, window_start, window_end) WITH (connector = 'discard');
"""
LIGHT = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = {rate}, rows = {rows},
    fields.key.min = 0, fields.key.max = 3);
CREATE SINK kept FROM (SELECT ts, key FROM s WHERE key >= 0) WITH (connector = 'discard');
"""


FLOOD = """
CREATE SOURCE f (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 'max', rows = 10000000,
    pool_rows = 4096);
CREATE SINK all FROM (SELECT ts FROM f WHERE key = 0) WITH (connector = 'discard');
"""


class Judged(NamedTuple):
    """A task of a virtual world."""

    kinds: list[str]
    """Classes of the parameters of its operators."""
    rows: int
    """Rows that the task takes, or that its source may give."""
    brief: bool


@pytest.fixture
def judged(monkeypatch):
    """Records the tasks of a virtual world, and which of them were brief."""
    found = []

    def noted(task):
        brief = is_brief(task)
        kinds = [stage.instance.spec.params.__class__.__name__ for stage in task.stages]
        found.append(Judged(kinds, sum(batch.rows for batch in task.batches) or task.asked_rows or 0, brief))
        return brief

    monkeypatch.setattr(sbon.engine.execution, "is_brief", noted)
    return found


def run(sql: str, until: Callable[[dict[str, str]], bool] = lambda states: not states, **options: object) -> list[dict[str, Any]]:
    """Runs statements in a world of one agent and returns the operators that are left.

    Parameters
    ----------
    until : gets the states of the unfinished operators by their texts; the run ends when it holds
    """
    world = settled_world(1, seed=1, settings={"engine": {"batch_interval_s": 0.05}})
    world.submit(sql.format(**options))

    def operators() -> list[dict[str, Any]]:
        return [one for one in world.ask(0, "operators") if one["state"] != "finished"]

    world.run_until(lambda: until({one["text"]: one["state"] for one in operators()}), 60)
    left = operators()
    world.close()
    return left


def test_lone_rows_pass_on_the_event_loop_but_not_into_windows(judged):
    run(SQL, rate=50, rows=200)
    light = [task.brief for task in judged if "WindowParams" not in task.kinds]
    assert light.count(False) <= 4, "only the first task of each kind is not brief, because it loads libraries"
    assert light.count(True) > 100
    assert not any(task.brief for task in judged if "WindowParams" in task.kinds)
    assert any("WindowParams" in task.kinds for task in judged)


@pytest.mark.parametrize(("rate", "rows"), [("'max'", 100_000), (10_000_000, 200_000)])
def test_a_flood_goes_to_the_threads(judged, rate, rows):
    run(SQL, rate=rate, rows=rows)
    assert [task for task in judged if task.rows > BRIEF_ROWS_MAX]
    assert not [task for task in judged if task.rows > BRIEF_ROWS_MAX and task.brief]


@pytest.mark.parametrize(("rate", "brief"), [(1_000, True), (10_000, True), (1_000_000, False), ("'max'", False)])
def test_a_source_is_asked_on_the_event_loop_if_what_is_due_is_little(judged, rate, brief):
    run(LIGHT, rate=rate, rows=500_000 if not brief else 5_000)
    asking = [task for task in judged if task.kinds[0] == "SourceParams"]
    assert [task.brief for task in asking[1:-1]] == [brief] * (len(asking) - 2), "only the last poll may get few rows"
    assert len(asking) > 4
    assert all(task.rows <= BRIEF_ROWS_MAX for task in asking if task.brief)


def test_a_source_that_does_not_say_how_much_is_due_is_asked_on_a_thread(judged, monkeypatch):
    monkeypatch.delattr(DatagenSource, "due_rows")
    run(LIGHT, rate=1_000, rows=200)
    asking = [task.brief for task in judged if task.kinds[0] == "SourceParams"]
    assert asking
    assert not any(asking)


def test_while_threads_are_at_work_a_source_is_asked_there(monkeypatch):
    asked, execute = [], Execution._execute

    def noted(self, task):
        if task.stages[0].instance.spec.params.__class__.__name__ == "SourceParams" and task.stages[0].instance.source.batch_rows <= 50:
            asked.append((self._on_threads > 0, is_brief(task)))
        execute(self, task)

    monkeypatch.setattr(Execution, "_execute", noted)
    run(LIGHT.format(rate=500, rows=500) + FLOOD)
    assert {busy for busy, _ in asked[1:]} == {True, False}, "the flood ends before the other source does"
    assert [brief for _, brief in asked[1:]] == [not busy for busy, _ in asked[1:]]


def test_an_error_of_a_source_on_the_event_loop_is_its_own(judged, monkeypatch):
    polls, given, poll = Counter[str](), Counter[str](), DatagenSource.poll

    def breaking(source, now, wall):
        name = source._params.name
        polls[name] += 1
        if name == "s" and polls[name] == 3:
            assert judged[-1].brief
            raise RuntimeError("broken")
        polled = poll(source, now, wall)
        given[name] += polled.rows
        return polled

    monkeypatch.setattr(DatagenSource, "poll", breaking)
    other = LIGHT.replace("SOURCE s", "SOURCE t").replace("FROM s", "FROM t").replace("kept", "other")
    left = run(LIGHT + other, lambda states: "source t (datagen)" not in states, rate=1_000, rows=200)
    assert [(one["text"], one["reason"]) for one in left if one["state"] == "failed"] == [("source s (datagen)", "RuntimeError: broken")]
    assert given["t"] == 200


@given(
    st.one_of(st.just("max"), st.floats(0.1, 1e8)),
    st.lists(st.floats(0, 0.01), min_size=1, max_size=12),
    st.integers(1, 5000),
    st.integers(0, 50_000),
)
@examples(100)
def test_no_more_comes_than_was_told_to_be_due(rate, pauses, batch_rows, limit):
    schema = columns(ts="time", key="int")
    stream: Any = source("datagen", schema, time="ts", rows_per_second=rate, rows=limit, batch_rows_max=1_000_000)
    now = 100.0
    for pause_s in pauses:
        now += pause_s
        due = stream.due_rows(now)
        stream.batch_rows = batch_rows
        polled = stream.poll(now, 1e9 + now)
        assert polled.rows == min(due, batch_rows)
        if polled.finished:
            assert stream.due_rows(now) == 0
            break


def test_what_a_batch_will_cost_is_unknown_before_the_first_and_grows_with_its_rows():
    cost = Cost()
    assert cost.expected_s(1) == float("inf")
    for rows in (100, 300, 100, 300):
        cost.took(rows, 0.001 + rows * 1e-5)
    assert cost.expected_s(100) < cost.expected_s(200) < cost.expected_s(300)
    assert cost.expected_s(200) == pytest.approx(0.003, rel=0.01)
