"""One machine dies: the others notice it, continue, and report no broken query as healthy."""

import signal
import time

import pytest

from sbon.cli.client import ControlClient
from tests.processes import Process, wait_until


@pytest.fixture
def three(tmp_path):
    first = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    address = first.ask("status")["address"]
    agents = [first, *(Process(tmp_path, name, "--bind", "127.0.0.1:0", "--join", address) for name in "bc")]
    for agent in agents[1:]:
        agent.wait_until_ready()
    wait_until(lambda: all(agent.ask("status")["members"]["alive"] == 3 for agent in agents))
    yield agents
    for agent in agents:
        agent.end()


def test_killed_agent_is_failed_within_ten_seconds_and_its_queries_degraded(three):
    a, b, c = three
    [on_all] = a.ask("submit", sql="SELECT node, cpu FROM sys.load")
    [on_others] = b.ask("submit", sql="SELECT node, load_ms FROM sys.load WHERE node <> 'c'")
    wait_until(lambda: {query["state"] for query in a.ask("queries")} == {"running"})

    c.end(signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: all({m["name"]: m["status"] for m in agent.ask("members")}["c"] == "failed" for agent in (a, b)))
    noticed_s = time.monotonic() - killed_at
    wait_until(lambda: {q["id"]: q["state"] for q in a.ask("queries")} == {on_all["query"]: "degraded", on_others["query"]: "running"})

    assert noticed_s < 10
    degraded = next(query for query in a.ask("queries") if query["state"] == "degraded")
    assert "was on c, which failed" in degraded["reason"]
    assert {o["node"] for o in degraded["operators"] if o["lost"]} == {"c"}
    assert a.ask("drop", query=on_all["query"]) == {"dropped": [on_all["query"]]}
    with ControlClient(b.directory / "control.sock") as client:
        rows = [row for batch in client.stream("tail", query=on_others["query"], limit=4) for row in batch["rows"]]
    assert {node for node, _ in rows} <= {"a", "b"}
    assert len(rows) == 4
