"""The README's five minutes, the tutorial, and the first example of docs/sql.md: the commands in them work."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbon.cli.__main__ import run
from tests.processes import Process, wait_until

ROOT = Path(__file__).parents[2]


def found_in(page: str, pattern: str) -> str:
    """Returns the group of the first match of a pattern in a page."""
    found = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def agents(tmp_path, monkeypatch) -> Iterator[tuple[Process, Process]]:
    """Yields two agents that share their operators however busy this machine is."""
    config = tmp_path / "agent.toml"
    config.write_text("[hosting]\nshare_load_max = 2.0\n")
    common = ("--config", str(config), "--bind", "127.0.0.1:0")
    ams = Process(tmp_path, "ams", *common, "--label", "region=eu").wait_until_ready()
    nyc = Process(tmp_path, "nyc", *common, "--label", "region=us", "--join", ams.ask("status")["address"])
    nyc.wait_until_ready()
    monkeypatch.setenv("SBON_SOCKET", str(ams.directory))
    wait_until(lambda: ams.ask("status")["members"]["alive"] == nyc.ask("status")["members"]["alive"] == 2)
    yield ams, nyc
    ams.end()
    nyc.end()


def sbon(capsys, *arguments: str) -> str:
    code = run(list(arguments))
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    return said.out


def test_tutorial_from_statement_to_rows(agents, capsys, tmp_path):
    path = tmp_path / "prices.sql"
    path.write_text(found_in("docs/tutorial.md", r"\$ cat prices\.sql\n(.*?)```"))

    plan: dict[str, Any] = {}

    def is_as_told() -> bool:
        """Tells whether the placement is as documented; on a busy machine it may not be until the agents have measured each other."""
        plan.update(json.loads(sbon(capsys, "explain", str(path), "--json")))
        places = {operator["kind"]: operator["node"] for operator in plan["operators"]}
        return places == {"source": "nyc", "window": "nyc", "map": "nyc", "sink": "ams"}

    wait_until(is_as_told)
    submitted = json.loads(sbon(capsys, "sql", str(path), "--json"))
    query = submitted[-1]["query"]
    rows = [json.loads(line) for line in sbon(capsys, "tail", query, "--limit", "6", "--json").splitlines()]

    assert plan["network_usage"]["here"] < plan["network_usage"]["consumer"]
    assert [statement["statement"] for statement in submitted] == ["source", "view", "query"]
    assert [set(row) for row in rows] == [{"window_start", "symbol", "price"}] * 6
    assert query in sbon(capsys, "queries")
    assert sbon(capsys, "drop", query) == f"dropped {query}\n"
    assert json.loads(sbon(capsys, "queries", "--json")) == []


def test_five_minutes_with_one_agent(agents, capsys, tmp_path):
    path = tmp_path / "trades.sql"
    path.write_text(found_in("README.md", r"\$ cat trades\.sql\n(.*?)```"))
    sink = found_in("README.md", r'\$ sbon sql -c "(CREATE SINK .*?)"\n')
    drops = found_in("README.md", r'\$ sbon sql -c "(DROP SINK .*?)"\n')

    query = json.loads(sbon(capsys, "sql", str(path), "--json"))[-1]["query"]
    rows = [json.loads(line) for line in sbon(capsys, "tail", query, "--limit", "4", "--json").splitlines()]
    (second,) = json.loads(sbon(capsys, "sql", "-c", sink, "--json"))

    assert [set(row) for row in rows] == [{"window_start", "symbol", "price"}] * 4
    assert any(operator["reused"] for operator in second["operators"])
    assert sbon(capsys, "drop", query) == f"dropped {query}\n"
    assert sbon(capsys, "sql", "-c", drops) == "sink trend dropped\nview prices dropped\nsource trades dropped\n"


def test_statements_of_the_page_on_sql_run_and_share_operators(agents, capsys, tmp_path):
    submitted = json.loads(sbon(capsys, "sql", "-c", found_in("docs/sql.md", r"```sql\n(.*?)```"), "--json"))

    assert [statement["statement"] for statement in submitted] == ["source", "view", "sink", "query", "query"]
    assert any(operator["reused"] for operator in submitted[3]["operators"])
    wait_until(lambda: {query["state"] for query in agents[0].ask("queries")} == {"running"})
    written = agents[0].directory / "big.ndjson"
    wait_until(lambda: written.exists() and "\n" in written.read_text())
    assert set(json.loads(written.read_text().splitlines()[0])) == {"window_start", "symbol", "turnover", "trades"}
