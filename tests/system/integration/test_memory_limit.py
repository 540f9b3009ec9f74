"""A real agent whose operator collects groups without end: the operator fails in time, the agent and its other query continue."""

import psutil

from tests.processes import Process, wait_until

LIMIT = 128 * 2**20
SOURCES = """
CREATE SOURCE many (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 20000000,
    'start' = '2026-01-01T00:00:00', fields.key.kind = 'sequence');
CREATE SOURCE few (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 1000, seed = 3);
"""


def test_groups_without_end_end_their_operator_and_nothing_else(tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text(f"[engine]\nmemory_max = {LIMIT}\n")
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0", "--config", str(config)).wait_until_ready()
    try:
        agent.ask("submit", sql=SOURCES)
        [steady] = agent.ask(
            "submit", sql="SELECT window_end, key, count(*) AS n FROM TUMBLE(few, ts, INTERVAL '1 second') GROUP BY window_end, key;"
        )
        [growing] = agent.ask(
            "submit", sql="SELECT window_end, key, count(*) AS n FROM TUMBLE(many, ts, INTERVAL '1 day') GROUP BY window_end, key;"
        )
        memory, most = psutil.Process(agent.process.pid), 0

        def failed() -> list[dict[str, object]]:
            nonlocal most
            most = max(most, memory.memory_info().rss)
            return [one for one in agent.ask("operators") if one["state"] == "failed"]

        wait_until(lambda: bool(failed()))

        [operator] = failed()
        assert operator["queries"] == [growing["query"]]
        assert "engine.memory_max" in operator["reason"]
        assert most < 900 * 2**20, "observed: 400 MiB, of which 200 are the libraries"

        def rows() -> int:
            return next(one["rows_out"] for one in agent.ask("queries") if one["id"] == steady["query"])

        before = rows()
        wait_until(lambda: rows() > before)
        assert agent.ask("status")["memory"]["state_bytes"] < LIMIT / 10
        assert "operator.failed" in agent.events()
    finally:
        assert agent.end() == 0
