"""`sbon bench engine` on real agents, for a short time."""

import json

import pytest

import sbon_testbed.bench.engine as bench
from sbon.cli.__main__ import run
from sbon.errors import ConfigError


@pytest.mark.slow
def test_an_agent_is_measured_at_full_speed_by_the_clock_and_while_saturated(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WARM_ROWS", 100_000)
    monkeypatch.setattr(bench, "MEMORY_ROWS", 200_000)
    monkeypatch.setattr(bench, "WARM_S", 0.2)

    assert run(["bench", "engine", "--workload", "W1", "--seconds", "0.5", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    (one,) = result["workloads"].values()
    assert one["rows_per_s"] > 100_000
    assert one["memory_after_rows"] >= 200_000
    assert 20 < one["peak_memory_mb"] < 2000
    assert one["longest_quantum_ms"] > 0
    # How long they take is for the benchmark to say.
    assert result["latency"]["W1"]["rows"] > 1000
    assert 0 < result["latency"]["W1"]["p50_ms"] <= result["latency"]["W1"]["p99_ms"]
    assert 0 < result["latency"]["W1"]["cores_used"] <= result["cores"] * 1.1
    assert result["loop_lag"]["rows"] > 0
    bench.show(result)
    assert "W1" in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match=r"at least 0\.5"):
        bench.measure([], float("nan"), 1)
    with pytest.raises(ConfigError, match="--workload W9, expected one of W1, W2, W3"):
        bench.measure(["W9"], 1.0, 1)
    with pytest.raises(ConfigError, match="--runs 0"):
        bench.measure([], 1.0, 0)
