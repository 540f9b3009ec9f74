"""`sbon bench engine` on real agents, for a short time."""

import json

import polars as pl
import pytest

import sbon_testbed.bench.engine as bench
from sbon.cli.__main__ import run
from sbon.digest import quantile
from sbon.errors import ConfigError
from sbon_testbed.bench.workloads import WORKLOADS
from tests.examples import seeds


@pytest.mark.slow
def test_an_agent_is_measured_at_full_speed_by_the_clock_and_while_saturated(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WARM_ROWS", 100_000)
    monkeypatch.setattr(bench, "MEMORY_ROWS", 200_000)
    monkeypatch.setattr(bench, "WARM_S", 0.2)

    assert run(["bench", "engine", "--workload", "W1", "--seconds", "0.5", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    (one,) = result["workloads"].values()
    assert result["rows"] == "fresh"
    assert one["answers_equal"] is True
    assert one["rows_per_s"] > 100_000
    assert one["memory_after_rows"] >= 200_000
    assert 20 < one["peak_memory_mb"] < 2000
    assert one["longest_quantum_ms"] > 0
    # The values are not checked here.
    assert result["latency"]["W1"]["samples"] > 1000
    assert 0 < result["latency"]["W1"]["p50_ms"] <= result["latency"]["W1"]["p99_ms"]
    assert 0 < result["latency"]["W1"]["cores_used"] <= result["cores"] * 1.1
    assert 0 < result["loop_lag"]["samples"] < 1000
    assert result["loop_lag"]["p99_ms"] is None
    bench.show(result)
    assert "too few  too few" in capsys.readouterr().out


@pytest.mark.parametrize("rows", seeds(["tcp"], ["csv"]))
def test_rows_of_a_file_are_read_or_sent_to_the_end(rows, monkeypatch, capsys):
    monkeypatch.setattr(bench, "CHECKED_ROWS", 210_000)
    monkeypatch.setattr(bench, "FILE_ROWS", 50_000)

    assert run(["bench", "engine", "--workload", "W2", "--rows", rows, "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["workloads"]["W2"]["memory_after_rows"] == 50_000
    assert result["workloads"]["W2"]["answers_equal"] is True
    assert result["latency"] == {}
    assert "loop_lag" not in result
    bench.show(result)
    assert "right" in capsys.readouterr().out


def test_wrong_answers_are_told_and_fail(monkeypatch, capsys):
    """The batch run is changed to count one row too many."""
    honest = WORKLOADS["W2"].batch
    monkeypatch.setitem(WORKLOADS, "W2", WORKLOADS["W2"]._replace(batch=lambda left: honest(left).with_columns(pl.col("n") + 1)))
    monkeypatch.setattr(bench, "CHECKED_ROWS", 50_000)
    monkeypatch.setattr(bench, "FILE_ROWS", 50_000)

    assert run(["bench", "engine", "--workload", "W2", "--rows", "csv"]) == 1

    out, err = capsys.readouterr()
    assert "W2: WRONG: its answers are not those of a batch run over the same rows" in err
    assert "WRONG" in out


def test_percentiles_are_of_the_rows_of_all_runs_and_of_no_fewer_than_a_thousand():
    assert bench.percentiles([(10, 999)]) == {"p50_ms": None, "p99_ms": None, "samples": 999}
    together = bench._together([{"buckets": {10: 600}, "cores_used": 1.0}, {"buckets": {10: 100, 90: 300}, "cores_used": 2.0}])
    assert together["samples"] == 1000
    assert together["p50_ms"] == pytest.approx(quantile({10: 1}, 0.5), abs=0.001)
    assert together["p99_ms"] == pytest.approx(quantile({90: 1}, 0.99), abs=0.001)
    assert together["cores_used"] == 1.5


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match=r"at least 0\.5"):
        bench.measure([], float("nan"), 1)
    with pytest.raises(ConfigError, match="--workload W9, expected one of W1, W2, W3"):
        bench.measure(["W9"], 1.0, 1)
    with pytest.raises(ConfigError, match="--runs 0"):
        bench.measure([], 1.0, 0)
    with pytest.raises(ConfigError, match="--rows xml, expected one of fresh, pool, csv, csv-iso, ndjson, parquet, tcp"):
        bench.measure([], 1.0, 1, rows="xml")
