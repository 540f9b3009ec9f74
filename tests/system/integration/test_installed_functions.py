"""The installed example package, used by a real agent process."""

import os
import tomllib
from pathlib import Path

import polars as pl
import pytest

from sbon.cli.client import RefusedError
from sbon_testbed.bench.agent_process import one_agent
from tests.entry_points import install

EXAMPLE = Path(__file__).parents[2] / "example_package"
SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, sensor TEXT, fahrenheit DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen',
    rows_per_second = 'max', rows = 1000, seed = 1, 'start' = '2026-01-01T00:00:00', fields.sensor.count = 7, fields.fahrenheit.max = 100);
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = install(tmp_path / "installed", project["name"], project["entry-points"])
    path = [str(folder), str(EXAMPLE), str(EXAMPLE.parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


@pytest.mark.usefixtures("_installed")
def test_an_agent_runs_the_functions_of_an_installed_package():
    with one_agent() as agent:
        told = {row["name"]: row for row in agent.client.ask("functions")}
        assert told["to_celsius"]["call"] == "to_celsius(stream, offset => 0.0)"
        assert (told["smooth"]["version"], told["smooth"]["problem"]) == ("2", "")

        agent.submit(SOURCE)
        queries = {"plain": "readings", "cold": "to_celsius(readings, -1)", "calm": "smooth(readings, 0.5)"}
        for name, stream in queries.items():
            agent.submit(f"CREATE SINK {name} AS SELECT * FROM {stream} WITH (connector = 'file', path = '{name}', format = 'parquet')")
        agent.wait_until(lambda: [q["state"] for q in agent.client.ask("queries")] == ["finished"] * 3, "all queries end")
        plain, cold, calm = (pl.read_parquet(agent.data_dir / name / "*.parquet") for name in queries)

        assert plain.height == 1000
        assert cold["celsius"].to_list() == pytest.approx(((plain["fahrenheit"] - 32) * 5 / 9 - 1).to_list())
        for sensor in plain["sensor"].unique():
            levels = plain.filter(sensor=sensor)["fahrenheit"].ewm_mean(alpha=0.5, adjust=False)
            assert calm.filter(sensor=sensor)["level"].to_list() == pytest.approx(levels.to_list())

        with pytest.raises(RefusedError, match=r"function smooth 2: ValueError: factor = 7.0, expected above 0 and at most 1"):
            agent.submit("SELECT * FROM smooth(readings, 7)")


def test_an_agent_without_the_package_says_which_functions_there_are():
    with one_agent() as agent:
        agent.submit(SOURCE)

        with pytest.raises(RefusedError, match="there is no table function smooth"):
            agent.submit("SELECT * FROM smooth(readings, 0.5)")
