"""Window functions in Flink's syntax give the plans of ours; a form without equivalent is refused with its place."""

import msgspec
import pytest

from sbon.errors import QueryError
from sbon.query.dialect import Text, tokenize
from sbon.query.flink import windows_as_ours
from tests.query.test_plans_run import STATEMENTS
from tests.query_worlds import plan_of, run

FLINK = "TABLE({}(TABLE s, DESCRIPTOR(ts), {}))"
TEN = "INTERVAL '10' SECOND"
FIVE = "INTERVAL '5' SECOND"
SAME = [
    # Flink's form of a FROM, ours, and the rest of the query
    (
        FLINK.format("TUMBLE", TEN),
        f"TUMBLE(s, ts, {TEN})",
        "SELECT window_start, window_end, k, sum(v) AS x FROM {} GROUP BY window_start, window_end, k",
    ),
    (FLINK.format("tumble", TEN).lower(), f"TUMBLE(s, ts, {TEN})", "SELECT window_end, count(*) AS n FROM {} GROUP BY window_end"),
    (f"TUMBLE(TABLE s, DESCRIPTOR(ts), {TEN})", f"TUMBLE(s, ts, {TEN})", "SELECT window_end, count(*) AS n FROM {} GROUP BY window_end"),
    (
        FLINK.format("HOP", f"{FIVE}, {TEN}"),
        f"HOP(s, ts, {FIVE}, {TEN})",
        "SELECT window_end, k, max(v) AS x FROM {} GROUP BY window_end, k",
    ),
    (
        f"TABLE(HOP(DATA => TABLE s, TIMECOL => DESCRIPTOR(ts), SIZE => {TEN}, SLIDE => {FIVE}))",
        f"HOP(s, ts, {FIVE}, {TEN})",
        "SELECT window_end, k, max(v) AS x FROM {} AS w GROUP BY window_end, k",
    ),
    (
        f"TABLE(TUMBLE(TABLE s, DESCRIPTOR(ts), {TEN}, lateness => {FIVE}))",
        f"TUMBLE(s, ts, {TEN}, lateness => {FIVE})",
        "SELECT window_end, k, max(v) AS x FROM {} AS w GROUP BY window_end, k",
    ),
    (
        f"TABLE(SESSION(TABLE s PARTITION BY k, DESCRIPTOR(ts), {FIVE}))",
        f"SESSION(s, ts, {FIVE})",
        "SELECT window_start, window_end, k, count(*) AS n FROM {} GROUP BY window_start, window_end, k",
    ),
    (
        f"TABLE(SESSION(TABLE s PARTITION BY (k, n), DESCRIPTOR(ts), {FIVE}))",
        f"SESSION(s, ts, {FIVE})",
        "SELECT window_start, k, n, count(*) AS m FROM {} GROUP BY n, window_start, k",
    ),
    (
        f"TABLE(SESSION(DATA => TABLE s PARTITION BY k, n, TIMECOL => DESCRIPTOR(ts), GAP => {FIVE}))",
        f"SESSION(s, ts, {FIVE})",
        "SELECT window_start, k, n, count(*) AS m FROM {} GROUP BY n, window_start, k",
    ),
    (FLINK.format("SESSION", FIVE), f"SESSION(s, ts, {FIVE})", "SELECT window_start, count(*) AS n FROM {} GROUP BY window_start"),
    (
        f"TABLE(TUMBLE((SELECT window_end, max(v) AS v FROM {FLINK.format('HOP', f'{FIVE}, {TEN}')} GROUP BY window_end),"
        f" DESCRIPTOR(window_end), {TEN}))",
        f"TUMBLE((SELECT window_end, max(v) AS v FROM HOP(s, ts, {FIVE}, {TEN}) GROUP BY window_end), window_end, {TEN})",
        "SELECT window_start, sum(v) AS x FROM {} GROUP BY window_start",
    ),
    (
        FLINK.format("TUMBLE", TEN),
        f"TUMBLE(s, ts, {TEN})",
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY v DESC) AS r FROM {}) WHERE r <= 3",
    ),
    (
        FLINK.format("TUMBLE", TEN),
        f"TUMBLE(s, ts, {TEN})",
        "SELECT l.k, r.w FROM {} AS l JOIN TABLE(TUMBLE(TABLE u, DESCRIPTOR(ts), INTERVAL '10' SECOND)) AS r"
        " ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end",
    ),
]
REFUSED = [
    # text with ^ before the place, a part of the message, a part of the hint
    (
        "SELECT * FROM TABLE(^CUMULATE(TABLE s, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))",
        "CUMULATE is not supported",
        "HOP",
    ),
    ("SELECT * FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(ts), INTERVAL '9' SECOND, ^INTERVAL '1' SECOND))", "offset is not supported", "leave"),
    ("SELECT * FROM TABLE(^TUMBLE(TABLE s, DESCRIPTOR(ts)))", "TUMBLE without its size", "write TUMBLE(TABLE input, DESCRIPTOR(ts), size)"),
    ("SELECT * FROM TABLE(^HOP(TABLE s, DESCRIPTOR(ts), SIZE => INTERVAL '1' SECOND))", "HOP without its slide", "slide, size)"),
    ("SELECT * FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(ts), ^GAP => INTERVAL '1' SECOND))", "TUMBLE has no argument GAP", "size)"),
    ("SELECT * FROM TABLE(TUMBLE(TABLE s PARTITION BY ^k, DESCRIPTOR(ts), INTERVAL '1' SECOND))", "does not belong to TUMBLE", "GROUP BY"),
    ("SELECT * FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(^tts), INTERVAL '1' SECOND))", "there is no column tts", "did you mean ts?"),
    ("SELECT * FROM TABLE(TUMBLE(TABLE ^t, DESCRIPTOR(ts), INTERVAL '1' SECOND))", "there is no source or view t", ""),
    (
        "SELECT window_start, k, count(*) AS n FROM TABLE(^SESSION(TABLE s, DESCRIPTOR(ts), INTERVAL '1' SECOND)) GROUP BY window_start, k",
        "PARTITION BY of the SESSION and GROUP BY differ",
        "write GROUP BY window_start, window_end",
    ),
    (
        "SELECT window_end, count(*) FROM TABLE(^SESSION(TABLE s PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' SECOND)) GROUP BY window_end",
        "PARTITION BY of the SESSION and GROUP BY differ",
        "write GROUP BY window_start, window_end, k",
    ),
    (
        "SELECT count(*) AS n FROM s GROUP BY ^TUMBLE(ts, INTERVAL '10' SECOND), k",
        "TUMBLE stands in FROM here",
        "write FROM TUMBLE(s, ts, INTERVAL '10 SECOND') GROUP BY window_start",
    ),
    (
        "SELECT ^TUMBLE_START(ts, INTERVAL '9' SECOND) AS x, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '9' SECOND) GROUP BY window_start",
        "there is no function TUMBLE_START",
        "write window_start, with TUMBLE in FROM",
    ),
]


@pytest.mark.parametrize(("flink", "ours", "query"), SAME)
def test_flinks_form_is_planned_as_ours_and_gives_its_rows(flink: str, ours: str, query: str) -> None:
    theirs, own = plan_of(query.format(flink)), plan_of(query.format(ours))
    assert [(o.params, o.signature) for o in theirs.operators] == [(o.params, o.signature) for o in own.operators]
    assert msgspec.structs.replace(theirs, sql="") == msgspec.structs.replace(own, sql="")
    rows = run(theirs)
    assert rows.height > 0
    assert rows.equals(run(own))


@pytest.mark.parametrize(("marked", "message", "hint"), REFUSED)
def test_what_ours_cannot_do_is_refused_at_its_place(marked: str, message: str, hint: str) -> None:
    with pytest.raises(QueryError) as refused:
        plan_of(marked.replace("^", ""))
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert (refused.value.line, refused.value.column) == (1, marked.index("^") + 1)


@pytest.mark.parametrize(
    "sql", [*STATEMENTS, "CREATE VIEW tumble AS SELECT 1", "SELECT tumble(", "SELECT HOP() FROM TABLE(", "TABLE(TUMBLE(,))"]
)
def test_all_else_stays_as_it_was_written(sql: str) -> None:
    text = Text(sql)
    tokens = tokenize(text)
    made = windows_as_ours(text, tokens)
    assert [(token.token_type, token.text) for token in made] == [(token.token_type, token.text) for token in tokens]
