"""`sbon bench nexmark` with a real agent, which loads the connector by its entry point."""

import os
from pathlib import Path

import pytest

import sbon_testbed.nexmark.bench as bench
from sbon.errors import ConfigError
from sbon_testbed.bench.agent_process import AgentProcess
from sbon_testbed.nexmark.bench import measure
from tests.entry_points import install


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = install(tmp_path / "installed", "nexmark-here", {"sbon.connectors": {"nexmark": "sbon_testbed.nexmark.source:CONNECTOR"}})
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), root, os.environ.get("PYTHONPATH", "")]))


def test_a_join_of_windows_is_right_and_timed(monkeypatch):
    monkeypatch.setattr(bench, "EVENTS_PER_S", 5_000)  # so that few events cover several windows and laps of the pool
    monkeypatch.setattr(bench, "POOL_EVENTS", 50_000)
    submitted: list[str] = []
    submit = AgentProcess.submit
    monkeypatch.setattr(AgentProcess, "submit", lambda agent, sql: submitted.append(sql) or submit(agent, sql))

    result = measure(["q8"], events=50_000, checked_events=120_000)

    checked, timed = (next(sql for sql in submitted if sink in sql and "CREATE" in sql) for sink in ("checked_q8", "timed_q8"))
    checked = checked.replace("checked_q8", "timed_q8").replace("events = 120000", "events = 50000")
    assert checked.rsplit("WITH", 1)[0] == timed.rsplit("WITH", 1)[0]
    assert "events_per_second = 5000, pool_events = 50000" in timed

    figures = result["queries"]["q8"]
    assert figures["answers_equal"] is True
    assert figures["events"] == 4_000
    assert figures["events_per_s"] > 0
    assert figures["events_per_s_per_core"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": ["q12"]}, "--query q12 has no equal here: windows here go by .* expected one of q0, q1"),
        ({"queries": ["q23"]}, "--query q23, expected one of q0, q1"),
        ({"events": 10}, "--events 10, expected at least"),
        ({"runs": 0}, "--runs 0, expected at least 1"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        measure(**arguments)
