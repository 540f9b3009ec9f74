"""window_time is a window's last millisecond wherever it is named. EMIT is refused unless it says what is done anyway."""

import pytest

from sbon.errors import QueryError
from sbon.query.sql import CreateSink, CreateView, parse
from tests.query_worlds import plan_of, run

TUMBLE = "TUMBLE(s, ts, INTERVAL '5 s')"
HOP = "HOP(s, ts, INTERVAL '2 s', INTERVAL '6 s')"
LAST = "window_end - INTERVAL '1 ms'"
PAIR = f"{TUMBLE} AS x JOIN TUMBLE(u, ts, INTERVAL '5 s') AS y ON x.window_{{0}} = y.window_{{0}} AND x.k = y.k"


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        (f"SELECT window_time, k FROM {HOP}", f"SELECT {LAST} AS window_time, k FROM {HOP}"),
        (
            f"SELECT k, window_time AS t, sum(v) AS x FROM {TUMBLE} GROUP BY window_time, k",
            f"SELECT k, {LAST} AS t, sum(v) AS x FROM {TUMBLE} GROUP BY window_end, k",
        ),
        (
            f"SELECT window_start, window_end, window_time, count(*) AS n FROM {HOP} GROUP BY window_start, window_end, window_time",
            f"SELECT window_start, window_end, {LAST} AS window_time, count(*) AS n FROM {HOP} GROUP BY window_start",
        ),
        (
            f"SELECT window_time, k FROM {TUMBLE} WHERE v > 0 GROUP BY 1, 2 HAVING max(v) > 1",
            f"SELECT {LAST} AS window_time, k FROM {TUMBLE} WHERE v > 0 GROUP BY window_end, k HAVING max(v) > 1",
        ),
        (
            f"SELECT DISTINCT window_time, k FROM {TUMBLE}",
            f"SELECT {LAST} AS window_time, k FROM {TUMBLE} GROUP BY window_end, k",
        ),
        (
            f"SELECT * FROM (SELECT k, ts, ROW_NUMBER() OVER (PARTITION BY window_time, k ORDER BY v) AS r FROM {TUMBLE}) WHERE r <= 2",
            f"SELECT * FROM (SELECT k, ts, ROW_NUMBER() OVER (PARTITION BY window_end, k ORDER BY v) AS r FROM {TUMBLE}) WHERE r <= 2",
        ),
        (
            f"SELECT x.window_time, x.k, y.w FROM {PAIR.format('time')}",
            f"SELECT x.{LAST} AS window_time, x.k, y.w FROM {PAIR.format('end')}",
        ),
        (
            "SELECT window_time, k, count(*) AS n FROM SESSION(s, ts, INTERVAL '2 s') GROUP BY window_end, window_time, k",
            f"SELECT {LAST} AS window_time, k, count(*) AS n FROM SESSION(s, ts, INTERVAL '2 s') GROUP BY window_end, k",
        ),
    ],
)
def test_window_time_is_the_last_millisecond_of_a_window(sql: str, same: str) -> None:
    found = run(plan_of(sql))
    assert found.height > 0
    assert found.columns == run(plan_of(same)).columns
    assert [o.signature for o in plan_of(sql).operators[:-1]] == [o.signature for o in plan_of(same).operators[:-1]]


def test_a_window_over_window_time_waits_for_it() -> None:
    """The watermark is that of window_end: one millisecond more has to pass."""
    inner = f"SELECT window_time AS t, window_end AS e, sum(v) AS v FROM {TUMBLE} GROUP BY window_time, e"
    plan = plan_of(f"SELECT window_start, sum(v) AS v FROM TUMBLE(({inner}), t, INTERVAL '10 s') GROUP BY window_start")
    lateness = [o.params.allowed_lateness_us for o in plan.operators if hasattr(o.params, "allowed_lateness_us")]
    assert lateness == [0, 1000]
    assert run(plan).height == 4


def test_each_window_has_its_own_window_time() -> None:
    inner = f"(SELECT window_time, window_end AS e, sum(v) AS v FROM {TUMBLE} GROUP BY window_time, e)"
    found = run(plan_of(f"SELECT window_time, sum(v) AS v FROM TUMBLE({inner}, window_time, INTERVAL '10 s') GROUP BY window_time"))
    outer = f"TUMBLE({inner.replace('window_time,', 'window_time AS t,', 1)}, t, INTERVAL '10 s')"
    assert found.equals(run(plan_of(f"SELECT {LAST} AS window_time, sum(v) AS v FROM {outer} GROUP BY window_end")))


def test_window_time_alone_is_no_event_time_and_a_source_has_none() -> None:
    inner = f"SELECT window_time AS t, sum(v) AS v FROM {TUMBLE} GROUP BY window_time"
    with pytest.raises(QueryError, match="t is not an event time") as refused:
        plan_of(f"SELECT window_start, sum(v) AS v FROM TUMBLE(({inner}), t, INTERVAL '10 s') GROUP BY window_start")
    assert "keep window_end" in refused.value.hint
    with pytest.raises(QueryError, match="there is no column window_time"):
        plan_of("SELECT window_time FROM s")


QUERY = f"SELECT window_end, k, count(*) AS n FROM {TUMBLE} GROUP BY window_end, k"


@pytest.mark.parametrize("emit", ["EMIT ON WINDOW CLOSE", "emit final", "EMIT AFTER WATERMARK"])
def test_emit_on_window_close_is_what_is_done_anyway(emit: str) -> None:
    plain, said = plan_of(QUERY), plan_of(f"{QUERY} {emit}")
    assert [o.signature for o in plain.operators[:-1]] == [o.signature for o in said.operators[:-1]]
    view, sink = parse(f"CREATE MATERIALIZED VIEW v AS {QUERY} {emit}; CREATE SINK k AS {QUERY} {emit} WITH (connector = 'discard')")
    assert isinstance(view, CreateView)
    assert isinstance(sink, CreateSink)
    assert view.query.tree == sink.query.tree == parse(f"CREATE VIEW v AS {QUERY}")[0].query.tree  # type: ignore[union-attr]


@pytest.mark.parametrize("emit", ["EMIT CHANGES", "EMIT ON UPDATE", "EMIT STREAM AFTER DELAY INTERVAL '1' SECOND"])
def test_answers_that_would_be_taken_back_are_refused(emit: str) -> None:
    with pytest.raises(QueryError, match=f"{emit[:11]}.* is not supported: an answer leaves once") as refused:
        parse(f"{QUERY} {emit}")
    assert "EMIT ON WINDOW CLOSE" in refused.value.hint
    assert refused.value.column == len(QUERY) + 2


def test_emit_may_be_a_name() -> None:
    assert run(plan_of("SELECT emit FROM (SELECT v AS emit FROM s) AS emit")).height > 0
