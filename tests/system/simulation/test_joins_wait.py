"""A join stops reading an input that is too far ahead of the other: its state is bounded, the sources wait, and no row is lost."""

from collections.abc import Sequence
from functools import cache

import pytest

from sbon.engine import alignment
from sbon.engine.alignment import Alignment
from sbon.execution.reporting import operator_report
from sbon.execution.waiting import Waiting
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{left}',
    rows_per_second = 500, rows = 5000, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 400);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{right}',
    rows_per_second = 500, rows = 5000, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 400);
"""
JOINS = {
    "interval": "SELECT l.ts, l.key, r.value FROM l LEFT JOIN r ON l.key = r.key AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '200 ms'",
    "window": """SELECT window_start, x.key, x.value, y.value AS other FROM TUMBLE(l, ts, INTERVAL '250 ms') AS x
                 JOIN TUMBLE(r, ts, INTERVAL '250 ms') AS y ON x.key = y.key AND x.window_start = y.window_start""",
}
AHEAD_ROWS_MAX = 600


def run(sql: str, *, cut: bool) -> tuple[list[str], list[tuple[int, ...]], list[str]]:
    """Returns the rows of the sink, sorted; and samples of the rows that the join keeps of each side, and of the reasons why it waits."""
    settings = {"engine": {"batch_interval_s": 0.1, "ahead_rows_max": AHEAD_ROWS_MAX}, "optimiser": {"enabled": False}}
    world = settled_world(3, seed=3, settings=settings)
    left, right = world.nodes[0], world.nodes[2]
    tail = world.tail(world.submit(SOURCES.format(left=left, right=right) + sql))
    kept: list[tuple[int, ...]] = []
    reasons: list[str] = []
    world.run(1.0)
    if cut:
        world.partition([[2]])
    for step in range(400):
        if tail.finished:
            break
        if step == 14:
            world.heal()
        world.run(0.5)
        for agent in world.agents:
            for instance in agent.execution.engine.instances.values():
                if instance.operator is not None and instance.operator.rows_ahead():
                    kept.append(tuple(instance.operator.rows_ahead()))
                    reasons.append(operator_report(instance, agent.name).reason)
    assert tail.finished
    return sorted(map(str, tail.rows)), kept, reasons


@cache
def calm_run(name: str) -> tuple[list[str], list[tuple[int, ...]], list[str]]:
    """Returns what a run without a partition gives."""
    return run(JOINS[name], cut=False)


@pytest.mark.parametrize("name", JOINS)
def test_a_join_holds_back_the_input_that_is_ahead(name: str) -> None:
    calm, _, calm_reasons = calm_run(name)
    rows, kept, reasons = run(JOINS[name], cut=True)
    assert rows == calm
    assert len(rows) > 1000
    most = max(max(sides) for sides in kept)
    assert AHEAD_ROWS_MAX < most < 2 * AHEAD_ROWS_MAX, "a partition of seven seconds at 500 rows a second would bring 3,500"
    assert any("waits until the other input has caught up" in reason for reason in reasons)
    assert not any("waits until" in reason for reason in calm_reasons)


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("always", [False, True], ids=["while rows wait for the other", "always"])
def test_an_input_that_is_ahead_in_event_time_waits_for_the_other_and_no_answer_changes(
    monkeypatch: pytest.MonkeyPatch, name: str, always: bool
) -> None:
    """However often inputs are held back, everything goes on: also if they are held back for inputs that bring nothing."""
    calm = calm_run(name)[0]
    led: list[int] = []
    align = Waiting.align

    def noted(waiting: Waiting, kept: Sequence[int], rows_max: int, leading: int | None = None) -> None:
        led.extend(() if leading is None else (leading,))
        align(waiting, kept, rows_max, leading)

    monkeypatch.setattr(Waiting, "align", noted)
    monkeypatch.setattr(alignment, "ROWS_AHEAD", 0)
    monkeypatch.setattr(alignment, "STEP_S", 0.0)
    if always:
        monkeypatch.setattr(Alignment, "_is_fed", lambda *asked: True)
    rows, kept, _ = run(JOINS[name], cut=True)
    assert rows == calm
    assert len(led) > 5
    assert max(max(sides) for sides in kept) > AHEAD_ROWS_MAX, "it goes on while nothing else does"


def test_a_stream_that_is_joined_with_its_own_windows_is_never_held_back() -> None:
    """Both sides come from one source, so holding back one side would hold back the other."""
    own = """SELECT l.ts, v.n FROM l JOIN
             (SELECT window_end, key, count(*) AS n FROM TUMBLE(l, ts, INTERVAL '5 s') GROUP BY window_end, key) AS v
             ON l.key = v.key AND v.window_end BETWEEN l.ts AND l.ts + INTERVAL '5 s'"""
    rows, kept, _ = run(own, cut=False)
    assert len(rows) >= 5000
    assert not kept
