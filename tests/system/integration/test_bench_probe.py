"""`sbon bench probe` on real agents, for a short time."""

import json

import pytest

import sbon_testbed.bench.probe as bench
from sbon.cli.__main__ import run
from sbon.errors import ConfigError
from sbon_testbed.bench.percentiles import SAMPLES_MIN


@pytest.mark.slow
def test_a_busy_agent_measures_about_the_round_trips_of_an_idle_one(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WARM_S", 0.5)

    for seconds in ("2", "30"):  # a busy machine gets more time if it needs it
        assert run(["bench", "probe", "--seconds", seconds, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        idle, saturated = result["idle"], result["saturated"]
        if min(idle["samples"], saturated["samples"]) >= 20 and saturated["rows_per_s"] > 10_000:
            break

    assert min(idle["samples"], saturated["samples"]) >= 20
    assert idle["rows_per_s"] == 0
    assert saturated["rows_per_s"] > 10_000
    # The values are not checked here; observed 0.07 and 0.08 ms.
    for phase in (idle, saturated):
        assert phase["median_ms"] > 0
        assert (phase["p99_ms"] is None) == (phase["samples"] < SAMPLES_MIN)
    bench.show(result)
    assert capsys.readouterr().out.splitlines()[1].startswith("idle")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_no_time_is_too_little(seconds):
    with pytest.raises(ConfigError, match="at least 2"):
        bench.measure(seconds)
