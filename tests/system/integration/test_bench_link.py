"""`sbon bench link` on real agents, for a short time."""

import json

import pytest

import sbon_testbed.bench.link as bench
from sbon.cli.__main__ import run
from sbon.errors import ConfigError


@pytest.mark.slow
def test_a_link_is_measured_flooded_by_the_clock_and_row_by_row(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WARM_S", 0.2)
    monkeypatch.setattr(bench.lone, "WARM_S", 0.2)
    monkeypatch.setattr(bench.lone, "SECONDS_MIN", dict.fromkeys(bench.lone.PACES, 0.5))

    assert run(["bench", "link", "--seconds", "0.5", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["rows_per_s"] > 100_000
    assert result["mib_per_s"] == pytest.approx(result["rows_per_s"] * 24 / 2**20, rel=0.01)
    assert 0 < result["cores"] <= result["machine_cores"] * 1.1
    # The values are not checked here.
    assert 0 < result["latency_p50_ms"] <= result["latency_p99_ms"]
    for name in ("lone", "lone_rare"):
        assert result[f"{name}_p50_ms"] > 0
        assert result[f"{name}_bare_p50_ms"] > 0
    assert result["lone_tcp_p50_ms"] > 0
    # A hundred rows are too few for a 99th percentile.
    assert {value for key, value in result.items() if key.startswith("lone") and key.endswith("p99_ms")} == {None}
    bench.show(result)
    assert "flood" in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match=r"at least 0\.5"):
        bench.measure(float("nan"), 1)
    with pytest.raises(ConfigError, match="--runs 0"):
        bench.measure(1.0, 0)
