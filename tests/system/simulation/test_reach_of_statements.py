"""An agent's statements can use only the allowed files, on the agent itself and on others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sbon.errors import SbonError
from sbon.query.params.source import SourceParams
from sbon.reach import ConnectorsConfig, FileConfig
from sbon.wire.replication import CatalogUpdate
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

FILE = "CREATE SOURCE {} (a BIGINT) WITH (connector = 'file', path = '{}', nodes = '{}')"
SETTING = r"add its folder to connectors\.file\.allow in the configuration of new-york"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "secret.csv").write_text("a\n42\n")
    made = settled_world(3, seed=4, data_dir=tmp_path / "agents", log_file=tmp_path / "log", settings={"optimiser": {"enabled": False}})
    yield made
    made.close()


def rows(world: World, source: str, at: int) -> list[Any]:
    tail = world.tail(world.submit(f"SELECT a FROM {source}", at=at), at)
    world.run_until(lambda: tail.finished, 30)
    return [row[0] for row in tail.rows]


def test_another_agents_source_reads_only_what_the_settings_allow(world: World, tmp_path: Path):
    here, there, _ = world.nodes
    world.submit(FILE.format("s", tmp_path / "secret.csv", there), at=0)
    with pytest.raises(SbonError, match=SETTING):
        world.submit("SELECT a FROM s", at=0)
    refusals = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if "operator.refused" in line]
    assert [(line["node"], line["asked_by"], "secret.csv" in line["reason"]) for line in refusals] == [(there, here, True)]
    with pytest.raises(SbonError, match=SETTING):
        world.submit("SELECT a FROM s", at=1)  # another agent has defined the source, although this agent's own user queries it
    world.submit(FILE.format("own", tmp_path / "secret.csv", here), at=0)
    assert rows(world, "own", at=0) == [42]
    world.run(2)
    assert rows(world, "own", at=1) == [42], "a source that a user defines on the own agent is available to all"

    files = world.data_dir_of(1) / "files"
    files.mkdir()
    (files / "in.csv").write_text("a\n7\n")
    world.submit(FILE.format("shared", "in.csv", there), at=0)
    world.run(2)
    assert rows(world, "shared", at=2) == [7]


def test_another_agents_sink_writes_only_where_the_settings_allow(world: World, tmp_path: Path):
    there = world.nodes[1]
    (world.data_dir_of(0) / "in.csv").write_text("a\n7\n")
    world.submit(FILE.format("s", "in.csv", world.nodes[0]), at=0)
    sink = "CREATE SINK {} FROM s WITH (connector = 'file', path = '{}', node = '{}', mode = '{}')"
    for mode in ("append", "replace"):
        with pytest.raises(SbonError, match=SETTING):
            world.submit(sink.format("k", tmp_path / "secret.csv", there, mode), at=0)
    assert (tmp_path / "secret.csv").read_text() == "a\n42\n"
    for name, at in (("near", 1), ("far", 0)):
        world.run(2)
        world.submit(sink.format(name, f"{name}.csv", there, "append"), at=at)
    paths = [world.data_dir_of(1) / "near.csv", world.data_dir_of(1) / "files" / "far.csv"]
    world.run_until(lambda: all(path.exists() and path.read_text() == "a\n7\n" for path in paths), 30)
    world.run_until(lambda: all(row["state"] == "finished" for row in world.ask(0, "queries")), 30)


def test_a_sample_is_taken_only_of_files_that_may_be_read(world: World, tmp_path: Path):
    """The share of rows that pass a filter would reveal a file's content."""
    many = "a\n" + "42\n7\n" * 50
    (tmp_path / "secret.csv").write_text(many)
    files = world.data_dir_of(1) / "files"
    files.mkdir()
    (files / "in.csv").write_text(many)
    for name, path, sampled in (("s", tmp_path / "secret.csv", 0), ("shared", "in.csv", 2)):
        world.submit(FILE.format(name, path, world.nodes[1]), at=0)
        shown = world.ask(0, "explain", sql=f"SELECT a FROM {name} WHERE a = 42")
        assert shown["prediction"]["operators"]["sampled"] == sampled


def test_settings_allow_more_and_can_change_while_an_agent_runs(world: World, tmp_path: Path):
    there = world.nodes[1]
    agent: Any = world.agents[1]
    world.submit(FILE.format("s", tmp_path / "secret.csv", there), at=0)
    wider = ConnectorsConfig(file=FileConfig(allow=("files", str(tmp_path))))
    assert agent.reload(msgspec.structs.replace(agent.config, connectors=wider)).applied == ("connectors.file.allow",)
    assert rows(world, "s", at=0) == [42]


def test_nobody_else_can_put_words_into_this_agents_mouth(world: World, tmp_path: Path):
    """A forged entry of the catalogue claims a source that this agent has defined."""
    world.submit(FILE.format("s", "in.csv", world.nodes[1]), at=1)
    world.run(2)
    catalog = world.agents[1].queries.replication.catalog  # type: ignore[union-attr]
    (entry,) = [one for one in catalog.entries() if one.name == "s"]
    forged = msgspec.structs.replace(entry.source, options=(("path", str(tmp_path / "secret.csv")),))
    entry = msgspec.structs.replace(entry, version=entry.version + 1, source=forged)
    told: list[Any] = []
    world.agents[2].network.directory.request(world.nodes[1], CatalogUpdate(entries=(entry,)), told.append)  # type: ignore[union-attr]
    world.run_until(lambda: told, 10)
    assert isinstance(forged.params, SourceParams)
    assert catalog.get("s").source == forged
    with pytest.raises(SbonError, match=SETTING):
        world.submit("SELECT a FROM s", at=1)


def test_a_source_that_is_defined_again_in_the_same_words_is_the_agents_own(world: World, tmp_path: Path):
    there = world.nodes[1]
    again = FILE.format("IF NOT EXISTS s", tmp_path / "secret.csv", there)
    world.submit(again, at=1)
    world.run(5)
    world.kill(1)
    world.run(5)
    world.start(1)
    world.run_until(lambda: any(row["name"] == "s" for row in world.ask(1, "names")), 60)
    assert rows(world, "s", at=1) == [42]  # a restart keeps the definition
    world.restart(1, lose_data=True)
    world.run_until(lambda: any(row["name"] == "s" for row in world.ask(1, "names")), 60)
    with pytest.raises(SbonError, match=SETTING):
        world.submit("SELECT a FROM s", at=1)
    (told,) = world.ask(1, "submit", sql=again)
    assert told["message"] == "source s exists already"
    assert rows(world, "s", at=1) == [42]
