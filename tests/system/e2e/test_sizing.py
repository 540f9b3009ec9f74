"""`instances = 'auto'` on a real agent: a statement gets the planner's number of instances, and the same answers as with one."""

from pathlib import Path

from tests.processes import Process, wait_until

SOURCE = """CREATE SOURCE trades_{name} (ts TIMESTAMP, symbol BIGINT, price BIGINT, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', rows = 40000, rows_per_second = 20000, estimated_rows_per_second = {expected}, seed = 3,
start = '2026-01-01T00:00:00', fields.symbol.max = 99);"""
QUERY = """CREATE SINK {name} WITH (connector = 'file', path = '{name}.csv', instances = {instances}) AS
SELECT window_end, symbol, COUNT(*) AS n, SUM(price) AS total FROM TUMBLE(trades_{name}, ts, INTERVAL '500 milliseconds')
GROUP BY window_end, symbol;"""


def test_a_statement_gets_as_many_instances_as_its_rate_needs_and_the_answers_of_one(tmp_path: Path) -> None:
    """The source's estimated rate is so high that any machine needs all cores for it."""
    agent = Process(tmp_path, "ams", "--bind", "127.0.0.1:0").wait_until_ready()
    try:
        for name in ("one", "auto"):
            agent.ask("submit", sql=SOURCE.format(name=name, expected=500_000_000))
        agent.ask("submit", sql=QUERY.format(name="one", instances=1))
        explained = agent.ask("explain", sql=QUERY.format(name="auto", instances="'auto'"))["instances"]
        (told,) = agent.ask("submit", sql=QUERY.format(name="auto", instances="'auto'"))
        (shown,) = next(row for row in agent.ask("queries") if row["name"] == "auto")["instances"]
        wait_until(lambda: {row["name"]: row["state"] for row in agent.ask("queries")} == {"one": "finished", "auto": "finished"})
        answers = [next(tmp_path.rglob(f"{name}.csv")).read_text().splitlines() for name in ("one", "auto")]
    finally:
        agent.end()

    assert len(shown["operators"]) == shown["auto"]["most"]
    assert explained[0]["auto"]["rate_rows_per_s"] == 500_000_000
    assert f"{shown['auto']['most']} of window: rate 500,000,000/s needs" in told["message"]
    assert len(answers[0]) > 300
    assert answers[1] == answers[0]
