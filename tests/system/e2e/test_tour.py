"""Commands of the pages work: README, tutorial, changing keys, examples of the reference; and the statements of docs/sql.md run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbon.cli.__main__ import run
from sbon.sealing import KeyRing, generate_key, key_id
from tests.documents import Command, commands_run_by
from tests.page_player import Player
from tests.processes import Process, wait_until

ROOT = Path(__file__).parents[3]


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


@pytest.fixture
def player(tmp_path, capsys, monkeypatch) -> Iterator[Player]:
    made = Player(tmp_path, capsys, monkeypatch)
    yield made
    made.end()


def test_five_minutes_with_one_agent(player):
    for command in commands_run_by("tests/system/e2e/test_tour.py::test_five_minutes_with_one_agent"):
        player.play(command)

    wait_until(lambda: player.agents[0].ask("queries") == [])


def test_tutorial_and_what_its_agents_have_recorded(player, capsys):
    """The sources are in `us` and the answers wanted in `eu`, so the window is placed beside the source."""
    played = commands_run_by("tests/system/e2e/test_tour.py::test_tutorial_and_what_its_agents_have_recorded")
    player.meaning |= {"127.0.0.1:7947": "127.0.0.1:0", "/tmp/nyc": str(player.folder / "nyc")}

    said = {one.text: player.play(one) for one in played if one.page == "docs/tutorial.md"}
    usage = re.search(r"at the consumer .* ([\d,.]+) times as much", said["sbon explain prices.sql"])
    assert usage is not None
    assert float(usage[1].replace(",", "")) > 10
    assert json.loads(sbon(capsys, "queries", "--json")) == []
    player.end()
    player.folder = player.agents[0].directory
    recorded = [player.play(command) for command in played if command.page == "docs/telemetry.md"]

    assert "nyc" in recorded[-1]


def test_changing_the_key_of_a_cluster(player, tmp_path):
    """Two keys of the page stand for the old one and the new one."""
    old = generate_key(b"o" * 32)
    (tmp_path / "a.key").write_text(old)
    (tmp_path / "a.key").chmod(0o600)
    player.play(Command("this test", 0, f"sbon agent --name a --key-file {tmp_path / 'a.key'}"))
    player.meaning["5b1d0e77"] = key_id(b"o" * 32).hex()

    for command in commands_run_by("tests/system/e2e/test_tour.py::test_changing_the_key_of_a_cluster"):
        if (new := tmp_path / "new.key").exists():
            player.meaning["3f3f2c8a"] = KeyRing.parse(new.read_text()).ids[0]
        player.play(command)

    assert KeyRing.parse((tmp_path / "a.key").read_text()).ids == KeyRing.parse(new.read_text()).ids


EXAMPLES = """
CREATE SOURCE trades (ts TIMESTAMP, symbol TEXT, price DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 100);
CREATE SOURCE quotes (ts TIMESTAMP, symbol TEXT, bid DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 100);
CREATE VIEW busy AS SELECT ts, symbol FROM trades WHERE price > 0.5;
SELECT * FROM trades;
"""
QUERY = """
SELECT trades.ts, price, bid FROM trades
JOIN quotes ON trades.symbol = quotes.symbol AND quotes.ts BETWEEN trades.ts - INTERVAL '1 second' AND trades.ts;
"""


def test_examples_of_the_commands(player):
    """Each command of the reference that asks an agent and ends; what they need is there."""
    for name in ("paris-1", "tokyo-1", "paris-2"):
        player.play(Command("this test", 0, f"sbon agent --name {name}" + (" --join 127.0.0.1:7946" if player.agents else "")))
    wait_until(lambda: [agent.ask("status")["members"]["alive"] for agent in player.agents] == [3, 3, 3])
    (player.folder / "query.sql").write_text(QUERY)
    (player.folder / "queries.sql").write_text(QUERY)
    (player.folder / "setup.sql").write_text(EXAMPLES)
    (player.folder / "monday.txt").write_text("25\n" * 40)
    player.play(Command("this test", 0, "sbon sql setup.sql", "follow it with: sbon tail paris-1.1t95lbp.02\n"))

    wanted = commands_run_by("tests/system/e2e/test_tour.py::test_examples_of_the_commands")
    said = {one.text: player.play(one) for one in sorted(wanted, key=lambda one: "leave" in one.text)}

    assert len(said) > 10
    assert {text: out for text, out in said.items() if out.startswith(("sbon: ", "command line:"))} == {}


def test_statements_of_the_page_on_sql_run_and_share_operators(agents, capsys, tmp_path):
    submitted = json.loads(sbon(capsys, "sql", "-c", found_in("docs/sql.md", r"```sql\n(.*?)```"), "--json"))

    assert [statement["statement"] for statement in submitted] == ["source", "view", "sink", "query", "query"]
    assert any(operator["reused"] for operator in submitted[3]["operators"])
    wait_until(lambda: {query["state"] for query in agents[0].ask("queries")} == {"running"})
    written = agents[0].directory / "big.ndjson"
    wait_until(lambda: written.exists() and "\n" in written.read_text())
    assert set(json.loads(written.read_text().splitlines()[0])) == {"window_start", "symbol", "turnover", "trades"}
